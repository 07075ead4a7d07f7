/* gemm_plain.h: matmuls of a type whose sums have that type, and wrap if they are integers (template; gemm_<t>.c).
 *
 * In (macros): G(name), G_NAME, ELEMENT, LANES, VECTOR, V(name) the function of vector.h for it.
 */
#define G_CORRECTS 0
#define G_STORES_SUMS(g) 1
#define UNIT ELEMENT
#define GROUP 1
#define UNIT_IS_MEMORY 1
#define SUM ELEMENT

HLOC_DEFINE_STORE(G(store), ELEMENT, ELEMENT, HLOC_SAME)
typedef VECTOR G(vector_unit);
HLOC_INLINE VECTOR G(load)(const void* p) { return V(load)(p); }
HLOC_INLINE VECTOR G(load_sum)(const void* p) { return V(load)(p); }
HLOC_INLINE VECTOR G(widen)(const void* p) { return V(load)(p); }
HLOC_INLINE void G(store_sum)(void* p, VECTOR v) { V(store)(p, v); }
HLOC_INLINE VECTOR G(splat)(ELEMENT x) { return V(splat)(x); }
HLOC_INLINE ELEMENT G(fold)(VECTOR v) { return V(sum)(v); }
HLOC_INLINE VECTOR G(multiply_add)(VECTOR sum, VECTOR a, VECTOR b) { return sum + a * b; }
HLOC_INLINE ELEMENT G(widen_one)(ELEMENT x) { return x; }
HLOC_INLINE UNIT G(unit)(const ELEMENT* p, long stride, long count) { return (void)stride, (void)count, *p; }
#include "gemm_tile.h"
#undef V
