/* sort_network.h: many short rows sorted by a key, stably, as many at once as vectors have lanes (template, included
 * once per sort): rows are columns of a block, and all have the same sequence of comparisons.
 *
 * In: what sort.h says, with HLOC_SORT_KEY_BITS (at most 32); rows have at most 1 << HLOC_SORT_PLACE_BITS elements.
 * HLOC_SORT_KEPT, an expression of `args` and `n`: only so many first elements are put, all if it is not defined.
 * Out: static int N(void* const* args, long rows, long n), as there; it undefines the same.
 *
 * The network is Batcher's merge exchange (Knuth, The Art of Computer Programming 3, 5.2.2, algorithm M): 543 exchanges
 * for 64 elements. Keys include the positions of their elements in the row, so that all are different: equals keep
 * their order. Lanes without a row have arbitrary values, which are not read.
 */
#ifndef HLOC_SORT_NETWORK_H
#define HLOC_SORT_NETWORK_H
#include <string.h>

#include "base.h"
#include "pool.h"
#include "sort_keys.h"

#define HLOC_SORT_LANES 16
#define HLOC_SORT_PLACE_BITS 9
#endif

#if !defined(HLOC_SORT_KEPT)
#define HLOC_SORT_KEPT n
#endif
#define N(suffix) HLOC_SORT_PASTE(HLOC_SORT, suffix)
#define ELEMENT N(_element)

#if HLOC_SORT_KEY_BITS + HLOC_SORT_PLACE_BITS < 32
typedef hloc_s32 N(_place);
#else
typedef hloc_s64 N(_place);
#endif

/* keys: [n][HLOC_SORT_LANES]. gcc would unroll the outer loops for a known length. */
static HLOC_WIDE __attribute__((noinline, noclone)) void N(_exchange_all)(N(_place)* keys, long n) {
  for (long p = 1; p < n; p *= 2)
    for (long k = p; k >= 1; k /= 2)
      for (long j = k % p; j + k < n; j += 2 * k)
        for (long i = j; i < j + k && i + k < n; i++) {
          if ((i ^ (i + k)) & -(2 * p)) continue; /* of different pairs of runs */
          N(_place) *low = keys + i * HLOC_SORT_LANES, *high = low + k * HLOC_SORT_LANES;
          #pragma omp simd
          for (int lane = 0; lane < HLOC_SORT_LANES; lane++) {
            const N(_place) a = low[lane], b = high[lane];
            low[lane] = a < b ? a : b, high[lane] = a < b ? b : a;
          }
        }
}

typedef struct { void* const* args; long rows, n; int failed; } N(_work);

/* `lanes` rows from `row` on; data: their elements, as keys lie. */
static void N(_sort_block)(void* const* args, long n, long row, long lanes, N(_place)* keys, ELEMENT* data) {
  for (long i = 0; i < n; i++) {
    ELEMENT own[HLOC_SORT_LANES]; /* nothing that `args` reads lies there: the loop vectorizes */
    N(_place) places[HLOC_SORT_LANES];
    for (long lane = 0; lane < lanes; lane++) {
      N(_get)(args, row + lane, i, own + lane);
      places[lane] = (N(_place))(N(_key)(own + lane) << HLOC_SORT_PLACE_BITS | (hloc_u64)i);
    }
    memcpy(data + i * HLOC_SORT_LANES, own, sizeof own);
    memcpy(keys + i * HLOC_SORT_LANES, places, sizeof places);
  }
  N(_exchange_all)(keys, n);
  for (long i = 0; i < HLOC_SORT_KEPT; i++)
    for (long lane = 0; lane < lanes; lane++) {
      const long place = keys[i * HLOC_SORT_LANES + lane] & ((1 << HLOC_SORT_PLACE_BITS) - 1);
      N(_put)(args, row + lane, i, data + place * HLOC_SORT_LANES + lane);
    }
}

static void N(_sort_blocks)(void* const* work, long begin, long end) {
  N(_work)* w = (N(_work)*)work;
  const size_t bytes = (w->n * HLOC_SORT_LANES * sizeof(N(_place)) + 63) / 64 * 64;
  N(_place)* keys = hloc_own_scratch(bytes + w->n * HLOC_SORT_LANES * sizeof(ELEMENT), &w->failed);
  if (!keys) return;
  ELEMENT* data = (ELEMENT*)((char*)keys + bytes);
  for (long row = begin * HLOC_SORT_LANES; row < end * HLOC_SORT_LANES; row += HLOC_SORT_LANES) {
    const long left = w->rows - row;
    N(_sort_block)(w->args, w->n, row, left < HLOC_SORT_LANES ? left : HLOC_SORT_LANES, keys, data);
  }
}

static __attribute__((unused)) int HLOC_SORT(void* const* args, long rows, long n) {
  N(_work) w = {.args = args, .rows = rows, .n = n};
  const long blocks = (rows + HLOC_SORT_LANES - 1) / HLOC_SORT_LANES;
  hloc_parallel(N(_sort_blocks), (void* const*)&w, blocks, 2048 / (n * HLOC_SORT_LANES) + 1);
  return w.failed;
}

#include "sort_end.h"
