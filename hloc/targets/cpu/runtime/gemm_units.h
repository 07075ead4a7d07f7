/* gemm_units.h: matmuls of one type: its units, of which gemm_tile.h makes everything else (template; gemm_<type>.c).
 *
 * In (macros): G(name), G_NAME, ELEMENT, LANES; VECTOR, of sums, and V(name), the function of vector.h for it. Where
 * sums have another type: SUM, G(widen)(p), LANES elements as a VECTOR, and G(widen_one)(x). Optional:
 *   NARROW, TO_NARROW(x)     C may hold this type instead of sums; G_OWN_STORE: G(store) is defined
 *   GROUP 2 or 4             so many consecutive k are a unit of 32 bits; G(multiply_add)(sum, a, b) of such units. For
 *                            4 G(unit) and G(interleaved) are defined
 *   those of gemm_tile.h
 * Without GROUP a unit is one element, which is converted to SUM while it is packed; integers wrap.
 */
#if !defined(SUM)
#define SUM ELEMENT
#define UNIT_IS_MEMORY 1
HLOC_INLINE VECTOR G(widen)(const void* p) { return V(load)(p); }
HLOC_INLINE ELEMENT G(widen_one)(ELEMENT x) { return x; }
#endif
#if !defined(NARROW)
#define NARROW SUM
#define TO_NARROW(x) (x)
#endif
#if !defined(G_CORRECTS)
#define G_CORRECTS 0
#endif

#if defined(GROUP)
#define UNIT hloc_unit32
#define UNIT_IS_MEMORY 1
typedef hloc_vu32 G(vector_unit);
HLOC_INLINE hloc_vu32 G(load)(const void* p) { return hloc_load_u32(p); }
HLOC_INLINE hloc_vu32 G(splat)(unsigned x) { return hloc_splat_u32(x); }
#else
#define UNIT SUM
#define GROUP 1
typedef VECTOR G(vector_unit);
HLOC_INLINE VECTOR G(load)(const void* p) { return V(load)(p); }
HLOC_INLINE VECTOR G(splat)(SUM x) { return V(splat)(x); }
HLOC_INLINE VECTOR G(multiply_add)(VECTOR sum, VECTOR a, VECTOR b) { return sum + a * b; }
HLOC_INLINE UNIT G(unit)(const ELEMENT* p, long stride, long count) {
  return (void)stride, (void)count, (SUM)G(widen_one)(*p);
}
#endif
#if !defined(UNIT_IS_MEMORY)
#define UNIT_IS_MEMORY 0
#endif
#if GROUP == 2
HLOC_INLINE unsigned G(unit)(const ELEMENT* p, long stride, long count) {
  return (hloc_u16)p[0] | (count > 1 ? (unsigned)(hloc_u16)p[stride] << 16 : 0u);
}
HLOC_INLINE hloc_vu32 G(interleaved)(const ELEMENT* p, long stride) {
  return hloc_widen_u16(p) | hloc_widen_u16(p + stride) << 16;
}
#endif

HLOC_INLINE VECTOR G(load_sum)(const void* p) { return V(load)(p); }
HLOC_INLINE void G(store_sum)(void* p, VECTOR v) { V(store)(p, v); }
HLOC_INLINE SUM G(fold)(VECTOR v) { return V(sum)(v); }

#if !defined(G_OWN_STORE)
/* Stores a tile of sums: as they are, or rounded. */
static void G(store)(const hloc_gemm_args* g, long at, long rows, long columns, const SUM* tile, long stride) {
  for (long i = 0; i < rows; i++) {
    const SUM* from = tile + i * stride;
    NARROW* narrow = (NARROW*)g->c + at + i * g->c_row;
    SUM* wide = (SUM*)g->c + at + i * g->c_row;
    if (g->c_is_narrow && g->c_column == 1) for (long j = 0; j < columns; j++) narrow[j] = TO_NARROW(from[j]);
    else if (g->c_is_narrow) for (long j = 0; j < columns; j++) narrow[j * g->c_column] = TO_NARROW(from[j]);
    else if (g->c_column == 1) for (long j = 0; j < columns; j++) wide[j] = from[j];
    else for (long j = 0; j < columns; j++) wide[j * g->c_column] = from[j];
  }
}
#endif
#include "gemm_tile.h"
#undef V
#undef NARROW
#undef TO_NARROW
#undef G_OWN_STORE
