/* gemm_f16.c: matmuls of f16: converted to f32 while packing, sums in f32 */
#include "vector.h"
#include "half_rows.h"
#include "gemm_common.h"
#include "narrow.h"

/* One vector of sums from narrow elements. */
HLOC_INLINE hloc_vf32 f16_widen(const hloc_f16* p) {
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

static void f16_store(const hloc_gemm_args* g, long at, long rows, long columns, const float* tile, long stride) {
  for (long i = 0; i < rows; i++, tile += stride, at += g->c_row) {
    hloc_f16* narrow = (hloc_f16*)g->c + at;
    float* wide = (float*)g->c + at;
    if (g->c_is_narrow && g->c_column == 1) hloc_narrow_here_f16(tile, narrow, columns);
    else if (g->c_is_narrow) for (long j = 0; j < columns; j++) narrow[j * g->c_column] = hloc_narrow_f32(tile[j]);
    else for (long j = 0; j < columns; j++) wide[j * g->c_column] = tile[j];
  }
}

#define G(name) f16_##name
#define G_NAME f16
#define G_OWN_STORE
#define ELEMENT hloc_f16
#define SUM float
#define VECTOR hloc_vf32
#define V(name) hloc_##name##_f32
#define LANES HLOC_LANES32
#define f16_widen_one hloc_widen_f16
#include "gemm_units.h"
