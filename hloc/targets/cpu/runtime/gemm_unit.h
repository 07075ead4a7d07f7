/* gemm_unit.h: what gemm_tile.h takes, as most types have it (template; gemm_<type>.c includes it).
 *
 * In (macros): G(name), G_NAME, ELEMENT; VECTOR, LANES, V(name) the functions of vector.h for sums. Of elements that
 * are narrower than sums: SUM, G_WIDEN_ONE an element as a sum, G(widen) a vector of them; G_TO_NARROW a sum as an
 * element, if C may hold these. UNIT and what gemm_kernel.h has for units of several elements (optional): else elements
 * are converted while they are packed. G_OWN_STORE: G(store) is defined.
 */
#if defined(SUM)
#define G_IS_NARROW 1
#else /* sums have the elements' type, and wrap if they are integers */
#define G_IS_NARROW 0
#define SUM ELEMENT
#define UNIT_IS_MEMORY 1
#define G_WIDEN_ONE
HLOC_INLINE VECTOR G(widen)(const void* p) { return V(load)(p); }
#endif
#if !defined(UNIT)
#define UNIT SUM
#define GROUP 1
#if !defined(UNIT_IS_MEMORY)
#define UNIT_IS_MEMORY 0
#endif
typedef VECTOR G(vector_unit);
HLOC_INLINE VECTOR G(load)(const void* p) { return V(load)(p); }
HLOC_INLINE VECTOR G(splat)(SUM x) { return V(splat)(x); }
HLOC_INLINE VECTOR G(multiply_add)(VECTOR sum, VECTOR a, VECTOR b) { return sum + a * b; }
HLOC_INLINE UNIT G(unit)(const ELEMENT* p, long stride, long count) {
  return (void)stride, (void)count, G_WIDEN_ONE(*p);
}
#endif
#if !defined(G_CORRECTS)
#define G_CORRECTS 0
#endif
#define G_STORES_SUMS(g) (!G_IS_NARROW || !(g)->c_is_narrow)
HLOC_INLINE VECTOR G(load_sum)(const void* p) { return V(load)(p); }
HLOC_INLINE void G(store_sum)(void* p, VECTOR v) { V(store)(p, v); }
HLOC_INLINE SUM G(fold)(VECTOR v) { return V(sum)(v); }
HLOC_INLINE SUM G(widen_one)(ELEMENT x) { return G_WIDEN_ONE(x); }
#if defined(G_TO_NARROW)
HLOC_DEFINE_STORE(G(store), SUM, ELEMENT, G_TO_NARROW)
#elif !defined(G_OWN_STORE)
HLOC_DEFINE_STORE(G(store), SUM, SUM, HLOC_SAME)
#endif
#include "gemm_tile.h"
#undef V
#undef G_IS_NARROW
#undef G_WIDEN_ONE
#undef G_TO_NARROW
#undef G_OWN_STORE
