/* topk.c: see topk.h. One algorithm for one type, with a key that is computed when an element is read.
 *
 * In: HLOC_GENERIC_TOPK, <algorithm>_<type>; HLOC_TOPK_SELECT, _NETWORK, _PIECES or _ROWS; HLOC_TYPE, of elements;
 * HLOC_KEY, the key of an element x in ascending order (sort_keys.h), and HLOC_KEY_BITS. These macros are undefined
 * again: the file may be included more than once.
 */
#include "topk.h"

#include "pool.h"
#include "scalar.h"
#include "sort_keys.h"

#define HLOC_SORT HLOC_SORT_PASTE(topk_, HLOC_GENERIC_TOPK)
#define N(suffix) HLOC_SORT_PASTE(HLOC_SORT, suffix)
typedef struct { HLOC_SORT_PASTE(hloc_u, HLOC_KEY_BITS) key; hloc_s32 place; } N(_element);
static inline hloc_u64 N(_key)(const N(_element)* e) { return e->key; }
static inline __attribute__((unused)) int N(_less)(const N(_element)* a, const N(_element)* b) {
  return a->key < b->key;
}
static inline void N(_get)(void* const* args, long row, long i, N(_element)* out) {
  const hloc_topk_args* given = (const hloc_topk_args*)args;
  const HLOC_TYPE x = ((const HLOC_TYPE*)given->buffers[0])[row * given->n + i];
  out->key = HLOC_KEY ^ (given->largest ? ~0ull : 0);
  out->place = (hloc_s32)i;
}
static inline void N(_put)(void* const* args, long row, long i, const N(_element)* e) {
  const hloc_topk_args* given = (const hloc_topk_args*)args;
  if (i >= given->kept) return;
  const long at = row * given->kept + i;
  ((HLOC_TYPE*)given->buffers[1])[at] = ((const HLOC_TYPE*)given->buffers[0])[row * given->n + e->place];
  ((hloc_s32*)given->buffers[2])[at] = e->place;
}
#undef N
#define HLOC_SORT_KEY_BITS HLOC_KEY_BITS
#define HLOC_SORT_KEPT (((const hloc_topk_args*)args)->kept)
#if defined(HLOC_TOPK_SELECT)
#define HLOC_SORT_FROM_END 0
#define HLOC_SORT_CANDIDATES (((const hloc_topk_args*)args)->candidates)
#define HLOC_SORT_GROUPS (((const hloc_topk_args*)args)->groups)
#include "sort_select.h"
#elif defined(HLOC_TOPK_NETWORK)
#include "sort_network.h"
#else
#if defined(HLOC_TOPK_PIECES)
#define HLOC_SORT_BY_PIECES 1
#endif
#include "sort.h"
#endif

#if defined(HLOC_TOPK_NETWORK)
HLOC_COMPILED_FOR(HLOC_SORT_PASTE(topk_, HLOC_GENERIC_TOPK), HLOC_KEY_BITS, HLOC_SORT_LANES, HLOC_SORT_PLACE_BITS, 0)
#else
HLOC_COMPILED_FOR(HLOC_SORT_PASTE(topk_, HLOC_GENERIC_TOPK), HLOC_KEY_BITS, HLOC_SORT_CHUNK, HLOC_SORT_LEAST_RADIX, 0)
#endif
int HLOC_SORT_PASTE(hloc_topk_, HLOC_GENERIC_TOPK)(const hloc_topk_args* args) {
  return HLOC_SORT_PASTE(topk_, HLOC_GENERIC_TOPK)((void* const*)args, args->rows, args->n);
}
#undef HLOC_GENERIC_TOPK
#undef HLOC_TOPK_SELECT
#undef HLOC_TOPK_NETWORK
#undef HLOC_TOPK_PIECES
#undef HLOC_TOPK_ROWS
#undef HLOC_TYPE
#undef HLOC_KEY
#undef HLOC_KEY_BITS
