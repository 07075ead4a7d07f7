/* gemm_s32.c: matmuls of s32, and of u32, whose sums have the same bits (see gemm.h): they wrap. */
#include "gemm_common.h"

HLOC_DEFINE_STORE(store_u32, unsigned, unsigned, HLOC_SAME)

#define G(name) s32_##name
#define G_NAME s32
#define G_CORRECTS 0
#define G_STORES_SUMS(g) 1
#define ELEMENT unsigned
#define UNIT unsigned
#define GROUP 1
#define UNIT_IS_MEMORY 1
#define SUM unsigned
#define VECTOR hloc_vu32
#define LANES HLOC_LANES32
#define s32_vector_unit hloc_vu32
#define s32_load hloc_load_u32
#define s32_load_sum hloc_load_u32
#define s32_store_sum hloc_store_u32
#define s32_splat hloc_splat_u32
#define s32_multiply_add(sum, a, b) ((sum) + (a) * (b))
#define s32_unit(p, stride, count) ((void)(stride), (void)(count), *(p))
#define s32_widen hloc_load_u32
#define s32_widen_one(x) (x)
#define s32_fold hloc_sum_u32
#define s32_store store_u32
#include "gemm_tile.h"
