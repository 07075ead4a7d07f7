/* sort.h: stable sorting of rows by a comparator or by a key (template, included once per sort).
 *
 * In: before including, define HLOC_SORT as a name N, and in C
 *   typedef struct { float v0; int v1; ... } N_element;             one value of every operand
 *   static inline int N_less(const N_element* a, const N_element* b);          the comparator, a before b
 *   static inline void N_get(void* const* args, long row, long i, N_element* out);     reads element i of a row
 *   static inline void N_put(void* const* args, long row, long i, const N_element* e); writes it sorted
 * and, where the comparator is a plain less-than of one operand, #define HLOC_SORT_KEY_BITS 32 (or 64, 16, 8) and
 *   static inline hloc_u64 N_key(const N_element* e);        unsigned, in the order of the comparator: see the helpers
 * and, if it is known, #define HLOC_SORT_LENGTH, the elements of every row: code for other rows is omitted.
 * Out: static int N(void* const* args, long rows, long n): sorts every row, stably, over the pool; 0 when done, 1 when
 * memory is exhausted. Rows of up to HLOC_SORT_CHUNK elements are one piece (sort_piece.h), longer ones are merged of
 * several where threads outnumber rows. (Many rows of up to 512 elements: sort_network.h; the first or last elements
 * of rows: sort_select.h.) A comparator that is not an order gives some permutation of the row. HLOC_SORT,
 * HLOC_SORT_KEY_BITS and HLOC_SORT_LENGTH are undefined afterwards.
 *
 * Keys (sort_keys.h): hloc_sort_key_{s8,s16,s32,s64,f32,f64}(x) orders signed numbers and floats by their total order
 * (-NaN < -inf < .. < -0 < +0 < .. < NaN), as HLO's total-order comparisons do; unsigned numbers are their own key;
 * ~key sorts downward. For a comparator of type FLOAT, where -0 equals +0, pass hloc_sort_key_f32(x + 0.0f).
 *
 * Example, argsort of f32 rows: element {float v0; int v1;}, key hloc_sort_key_f32(e->v0), get: v0 = x[row * n + i],
 * v1 = i.
 */
#include "pool.h"
#include "sort_piece.h"

typedef struct { void* const* args; long n, row, pieces, run; ELEMENT *from, *to; int failed; } N(_work);

#if !HLOC_SORT_BY_PIECES
static void N(_sort_rows)(void* const* work, long begin, long end) {
  N(_work)* w = (N(_work)*)work;
  const size_t elements = (2 * w->n * sizeof(ELEMENT) + 63) / 64 * 64;
  ELEMENT* data = hloc_own_scratch(elements + N(_room)(w->n), &w->failed);
  if (!data) return;
  for (long row = begin; row < end; row++) {
    for (long i = 0; i < w->n; i++) N(_get)(w->args, row, i, data + i);
    N(_sort_piece)(data, data + w->n, (char*)data + elements, w->n);
    for (long i = 0; i < w->n; i++) N(_put)(w->args, row, i, data + i);
  }
}
#endif

#if HLOC_SORT_BY_PIECES
/* One long row: pieces are sorted in parallel, then merged pairwise; every merge is divided into equal parts. */
static void N(_sort_pieces)(void* const* work, long begin, long end) {
  N(_work)* w = (N(_work)*)work;
  const size_t bytes = N(_room)(HLOC_SORT_CHUNK);
  void* room = bytes ? hloc_scratch(HLOC_OWN, bytes) : NULL;
  if (bytes && !room) {
    __atomic_store_n(&w->failed, 1, __ATOMIC_RELAXED);
    return;
  }
  for (long piece = begin; piece < end; piece++) {
    long first = piece * HLOC_SORT_CHUNK, count = w->n - first < HLOC_SORT_CHUNK ? w->n - first : HLOC_SORT_CHUNK;
    for (long i = first; i < first + count; i++) N(_get)(w->args, w->row, i, w->from + i);
    N(_sort_piece)(w->from + first, w->to + first, room, count);
  }
}
/* The number of elements of a among the first `rank` elements of the merge. */
static long N(_split)(const ELEMENT* a, long a_count, const ELEMENT* b, long b_count, long rank) {
  long low = rank > b_count ? rank - b_count : 0, high = rank < a_count ? rank : a_count;
  while (low < high) {
    long i = (low + high) / 2;
    if (N(_less)(b + rank - i - 1, a + i)) high = i;
    else low = i + 1;
  }
  return low;
}
static void N(_merge_pieces)(void* const* work, long begin, long end) {
  N(_work)* w = (N(_work)*)work;
  for (long part = begin; part < end; part++) { /* a part is HLOC_SORT_CHUNK elements of the result */
    long at = part * HLOC_SORT_CHUNK, first = at / (2 * w->run) * (2 * w->run);
    long middle = first + w->run < w->n ? first + w->run : w->n;
    long last = first + 2 * w->run < w->n ? first + 2 * w->run : w->n;
    long stop = at + HLOC_SORT_CHUNK < last ? at + HLOC_SORT_CHUNK : last;
    const ELEMENT *a = w->from + first, *b = w->from + middle;
    long a0 = N(_split)(a, middle - first, b, last - middle, at - first), b0 = at - first - a0;
    long a1 = N(_split)(a, middle - first, b, last - middle, stop - first), b1 = stop - first - a1;
    if (a1 < a0 || b1 < b0) { /* only if the comparator is not an order: the part stays unchanged, a permutation */
      __atomic_store_n(&w->failed, 2, __ATOMIC_RELAXED);
      continue;
    }
    N(_merge)(a + a0, a1 - a0, b + b0, b1 - b0, w->to + at);
  }
}
static void N(_put_pieces)(void* const* work, long begin, long end) {
  N(_work)* w = (N(_work)*)work;
  for (long i = begin; i < end; i++) N(_put)(w->args, w->row, i, w->from + i);
}

static int N(_sort_long_row)(N(_work)* w) {
  ELEMENT* memory = hloc_scratch(HLOC_FIRST, 2 * w->n * sizeof(ELEMENT));
  if (!memory) return 1;
  w->from = memory, w->to = memory + w->n;
  hloc_parallel(N(_sort_pieces), (void* const*)w, w->pieces, 1);
  if (w->failed) return 1;
  for (w->run = HLOC_SORT_CHUNK; w->run < w->n; w->run *= 2) {
    hloc_parallel(N(_merge_pieces), (void* const*)w, w->pieces, 1);
    if (w->failed == 2) { /* start the merges over, one after the other */
      w->failed = 0;
      N(_merge_sort)(w->from, w->to, w->n);
      break;
    }
    ELEMENT* t = w->from;
    w->from = w->to, w->to = t;
  }
  hloc_parallel(N(_put_pieces), (void* const*)w, w->n, HLOC_SORT_CHUNK);
  return 0;
}
#endif

static __attribute__((unused)) int HLOC_SORT(void* const* args, long rows, long n) {
  N(_work) w = {.args = args, .n = n, .pieces = (n + HLOC_SORT_CHUNK - 1) / HLOC_SORT_CHUNK};
  if (rows <= 0 || n <= 0) return 0;
#if HLOC_SORT_BY_PIECES
  for (w.row = 0; w.row < rows; w.row++)
    if (N(_sort_long_row)(&w)) return 1;
  return 0;
#else
  hloc_parallel(N(_sort_rows), (void* const*)&w, rows, 2048 / n + 1);
  return w.failed;
#endif
}

#include "sort_end.h"
