/* gemm_f16.c: matmuls of f16: converted to f32 while packing, sums in f32 */
#include "vector.h"
#include "half_rows.h"
#include "gemm_common.h"
#include "narrow.h"

HLOC_DEFINE_STORE(store_apart, float, hloc_f16, hloc_narrow_f32)
static void f16_store(const hloc_gemm_args* g, long at, long rows, long columns, const float* tile, long stride) {
  if (!g->c_is_narrow || g->c_column != 1) {
    store_apart(g, at, rows, columns, tile, stride);
    return;
  }
  for (long i = 0; i < rows; i++)
    hloc_narrow_here_f16(tile + i * stride, (hloc_f16*)g->c + at + i * g->c_row, columns);
}

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

#define G(name) f16_##name
#define G_NAME f16
#define ELEMENT hloc_f16
#define SUM float
#define G_WIDEN_ONE hloc_widen_f16
#define G_OWN_STORE
#define VECTOR hloc_vf32
#define V(name) hloc_##name##_f32
#define LANES HLOC_LANES32
#include "gemm_unit.h"
