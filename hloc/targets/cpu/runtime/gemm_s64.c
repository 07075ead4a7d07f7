/* gemm_s64.c: matmuls of s64, and of u64, whose sums have the same bits (see gemm.h): they wrap. */
#include "gemm_common.h"

HLOC_DEFINE_STORE(store_u64, hloc_u64, hloc_u64, HLOC_SAME)

#define G(name) s64_##name
#define G_NAME s64
#define G_CORRECTS 0
#define G_STORES_SUMS(g) 1
#define ELEMENT hloc_u64
#define UNIT hloc_u64
#define GROUP 1
#define UNIT_IS_MEMORY 1
#define SUM hloc_u64
#define VECTOR hloc_vu64
#define LANES HLOC_LANES64
#define s64_vector_unit hloc_vu64
#define s64_load hloc_load_u64
#define s64_load_sum hloc_load_u64
#define s64_store_sum hloc_store_u64
#define s64_splat hloc_splat_u64
#define s64_multiply_add(sum, a, b) ((sum) + (a) * (b))
#define s64_unit(p, stride, count) ((void)(stride), (void)(count), *(p))
#define s64_widen hloc_load_u64
#define s64_widen_one(x) (x)
#define s64_fold hloc_sum_u64
#define s64_store store_u64
#include "gemm_tile.h"
