/* gemm_f16.c: matmuls of f16: converted to f32 while packing, sums in f32 */
#include "vector.h"
#include "half_rows.h"
#include "gemm_common.h"
#include "narrow.h"

HLOC_DEFINE_STORE(store_apart, float, hloc_f16, hloc_narrow_f32)
static void store_f16(const hloc_gemm_args* g, long at, long rows, long columns, const float* tile, long stride) {
  if (!g->c_is_narrow || g->c_column != 1) {
    store_apart(g, at, rows, columns, tile, stride);
    return;
  }
  for (long i = 0; i < rows; i++)
    hloc_narrow_here_f16(tile + i * stride, (hloc_f16*)g->c + at + i * g->c_row, columns);
}

/* One vector of sums from narrow elements. */
HLOC_INLINE hloc_vf32 widen_f16(const hloc_f16* p) {
#if HLOC_VECTOR_BYTES == 64
  return hloc_widen_sixteen(*(const hloc_sixteen_halves_any*)p);
#elif HLOC_VECTOR_BYTES == 32 && defined(__F16C__)
  return hloc_widen_eight(*(const hloc_eight_halves_any*)p);
#else
  float lane[HLOC_LANES32];
  for (int i = 0; i < HLOC_LANES32; i++) lane[i] = hloc_widen_f16(p[i]);
  return hloc_load_f32(lane);
#endif
}

#define G(name) f16_##name
#define G_NAME f16
#define G_CORRECTS 0
#define G_STORES_SUMS(g) (!(g)->c_is_narrow)
#define ELEMENT hloc_f16
#define UNIT float
#define GROUP 1
#define UNIT_IS_MEMORY 0
#define SUM float
#define VECTOR hloc_vf32
#define LANES HLOC_LANES32
#define f16_vector_unit hloc_vf32
#define f16_load hloc_load_f32
#define f16_load_sum hloc_load_f32
#define f16_store_sum hloc_store_f32
#define f16_splat hloc_splat_f32
#define f16_multiply_add(sum, a, b) ((sum) + (a) * (b))
#define f16_unit(p, stride, count) ((void)(stride), (void)(count), hloc_widen_f16(*(p)))
#define f16_widen widen_f16
#define f16_widen_one hloc_widen_f16
#define f16_fold hloc_sum_f32
#define f16_store store_f16
#include "gemm_tile.h"
