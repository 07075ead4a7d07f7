/* gemm_f32.c: matmuls of f32 (see gemm.h). */
#include "gemm_common.h"

HLOC_DEFINE_STORE(store_f32, float, float, HLOC_SAME)

#define G(name) f32_##name
#define G_NAME f32
#define G_CORRECTS 0
#define G_STORES_SUMS(g) 1
#define ELEMENT float
#define UNIT float
#define GROUP 1
#define UNIT_IS_MEMORY 1
#define SUM float
#define VECTOR hloc_vf32
#define LANES HLOC_LANES32
#define f32_vector_unit hloc_vf32
#define f32_load hloc_load_f32
#define f32_load_sum hloc_load_f32
#define f32_store_sum hloc_store_f32
#define f32_splat hloc_splat_f32
#define f32_multiply_add(sum, a, b) ((sum) + (a) * (b))
#define f32_unit(p, stride, count) ((void)(stride), (void)(count), *(p))
#define f32_widen hloc_load_f32
#define f32_widen_one(x) (x)
#define f32_fold hloc_sum_f32
#define f32_store store_f32
#include "gemm_tile.h"
