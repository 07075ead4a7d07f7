/* gemm_f64.c: matmuls of f64 (see gemm.h). */
#include "gemm_common.h"

HLOC_DEFINE_STORE(store_f64, double, double, HLOC_SAME)

#define G(name) f64_##name
#define G_NAME f64
#define G_CORRECTS 0
#define G_STORES_SUMS(g) 1
#define ELEMENT double
#define UNIT double
#define GROUP 1
#define UNIT_IS_MEMORY 1
#define SUM double
#define VECTOR hloc_vf64
#define LANES HLOC_LANES64
#define f64_vector_unit hloc_vf64
#define f64_load hloc_load_f64
#define f64_load_sum hloc_load_f64
#define f64_store_sum hloc_store_f64
#define f64_splat hloc_splat_f64
#define f64_multiply_add(sum, a, b) ((sum) + (a) * (b))
#define f64_unit(p, stride, count) ((void)(stride), (void)(count), *(p))
#define f64_widen hloc_load_f64
#define f64_widen_one(x) (x)
#define f64_fold hloc_sum_f64
#define f64_store store_f64
#include "gemm_tile.h"
