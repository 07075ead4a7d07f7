/* sort.h: stable sorting of rows by a comparator or by a key (template, included once per sort).
 *
 * In: before including, define HLOC_SORT as a name N, and in C
 *   typedef struct { float v0; int v1; ... } N_element;             one value of every operand
 *   static inline int N_less(const N_element* a, const N_element* b);          the comparator, a before b
 *   static inline void N_get(void* const* args, long row, long i, N_element* out);     reads element i of a row
 *   static inline void N_put(void* const* args, long row, long i, const N_element* e); writes it sorted
 * and, where the comparator is a plain less-than of one operand, #define HLOC_SORT_KEY_BITS 32 (or 64, 16, 8) and
 *   static inline hloc_u64 N_key(const N_element* e);        unsigned, in the order of the comparator: see the helpers
 * and, where it is known, #define HLOC_SORT_LENGTH, the elements of every row: what other rows need is left out.
 * Out: static int N(void* const* args, long rows, long n): sorts every row, stably, over the pool; 0 when done, 1 when
 * memory is exhausted. With a key: rows of up to 128 by counting, radix sort for longer ones; else merge sort. (Many
 * rows of up to 512: sort_network.h.) A comparator that is no order gives some permutation of the row. HLOC_SORT and
 * HLOC_SORT_KEY_BITS are undefined
 * afterwards.
 *
 * Keys (sort_keys.h): hloc_sort_key_{s8,s16,s32,s64,f32,f64}(x) orders signed numbers and floats by their total order
 * (-NaN < -inf < .. < -0 < +0 < .. < NaN), as HLO's total-order comparisons do; unsigned numbers are their own key;
 * ~key sorts downward. For a comparator of type FLOAT, where -0 equals +0, pass hloc_sort_key_f32(x + 0.0f).
 *
 * Example, argsort of f32 rows: element {float v0; int v1;}, key hloc_sort_key_f32(e->v0), get: v0 = x[row * n + i],
 * v1 = i.
 */
#ifndef HLOC_SORT_H
#define HLOC_SORT_H
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "pool.h"
#include "sort_keys.h"
#include "vector_bytes.h"

#define HLOC_SORT_RUN 16
#define HLOC_SORT_CHUNK 65536
#define HLOC_SORT_LEAST_RADIX 64
#define HLOC_SORT_FEW 128
#define HLOC_SORT_VERY_FEW 8
#define HLOC_SORT_FEW_BITS 7
#endif

#if !defined(HLOC_SORT_KEY_BITS)
#define HLOC_SORT_COUNTS 0
#elif HLOC_SORT_KEY_BITS > 64 - HLOC_SORT_FEW_BITS
#if defined(HLOC_SORT_LENGTH) && HLOC_SORT_LENGTH > HLOC_SORT_VERY_FEW && HLOC_SORT_LENGTH <= HLOC_SORT_FEW
#define HLOC_SORT_COUNTS 1
#else
#define HLOC_SORT_COUNTS 0
#endif
#elif defined(HLOC_SORT_LENGTH)
#define HLOC_SORT_COUNTS (HLOC_SORT_LENGTH <= HLOC_SORT_FEW)
#else
#define HLOC_SORT_COUNTS 1
#endif
#if !defined(HLOC_SORT_LENGTH)
#define HLOC_SORT_LENGTH (1ul << 62)
#endif

#define N(suffix) HLOC_SORT_PASTE(HLOC_SORT, suffix)
#define ELEMENT N(_element)

/* Rows of such a length are pieces that radix sort takes: what merges is left out. */
#if defined(HLOC_SORT_KEY_BITS) && HLOC_SORT_LENGTH >= HLOC_SORT_LEAST_RADIX && HLOC_SORT_LENGTH <= HLOC_SORT_CHUNK
#define HLOC_SORT_MERGES 0
#else
#define HLOC_SORT_MERGES 1
#endif

#if !HLOC_SORT_COUNTS || HLOC_SORT_LENGTH > HLOC_SORT_FEW
#if HLOC_SORT_MERGES
/* out = the stable merge of a and b */
static __attribute__((noinline)) void N(_merge)(const ELEMENT* a, long a_count, const ELEMENT* b, long b_count,
                                                ELEMENT* out) {
  long i = 0, j = 0;
  while (i < a_count && j < b_count) {
    int take_b = N(_less)(b + j, a + i);
    const ELEMENT* from = take_b ? b + j : a + i;
    *out++ = *from;
    j += take_b, i += !take_b;
  }
  memcpy(out, a + i, (a_count - i) * sizeof *a);
  memcpy(out + (a_count - i), b + j, (b_count - j) * sizeof *b);
}

/* Sorts `data` with `spare` of the same length as working memory: runs by insertion, then merges of doubling length. */
static __attribute__((noinline)) void N(_merge_sort)(ELEMENT* data, ELEMENT* spare, long n) {
  for (long begin = 0; begin < n; begin += HLOC_SORT_RUN) {
    long end = n - begin < HLOC_SORT_RUN ? n : begin + HLOC_SORT_RUN;
    for (long i = begin + 1; i < end; i++) {
      ELEMENT e = data[i];
      long j = i;
      for (; j > begin && N(_less)(&e, data + j - 1); j--) data[j] = data[j - 1];
      data[j] = e;
    }
  }
  ELEMENT *from = data, *to = spare;
  for (long run = HLOC_SORT_RUN; run < n; run *= 2) {
    for (long i = 0; i < n; i += 2 * run) {
      long middle = i + run < n ? i + run : n, end = i + 2 * run < n ? i + 2 * run : n;
      N(_merge)(from + i, middle - i, from + middle, end - middle, to + i);
    }
    ELEMENT* t = from;
    from = to, to = t;
  }
  if (from != data) memcpy(data, from, n * sizeof *data);
}
#endif

#if defined(HLOC_SORT_KEY_BITS)
#if HLOC_SORT_KEY_BITS <= 8
typedef unsigned char N(_word);
#elif HLOC_SORT_KEY_BITS <= 16
typedef unsigned short N(_word);
#elif HLOC_SORT_KEY_BITS <= 32
typedef hloc_u32 N(_word);
#else
typedef hloc_u64 N(_word);
#endif
typedef struct { N(_word) key; ELEMENT element; } N(_keyed);

/* Least significant digit first, eight bits at a time; digits that are the same everywhere cost nothing. Keys are made
 * once and travel with their elements. room: for 2 n of them. */
static void N(_radix_sort)(ELEMENT* data, N(_keyed)* room, long n) {
  enum { DIGITS = (HLOC_SORT_KEY_BITS + 7) / 8 };
  long counts[DIGITS][256], digits[DIGITS], used = 0;
  N(_keyed) *from = room, *to = room + n;
  memset(counts, 0, sizeof counts);
  for (long i = 0; i < n; i++) from[i].key = (N(_word))N(_key)(data + i), from[i].element = data[i];
  for (long i = 0; i < n; i++)
    for (int d = 0; d < DIGITS; d++) counts[d][((hloc_u64)from[i].key >> (8 * d)) & 255]++;
  for (int d = 0; d < DIGITS; d++) {
    if (counts[d][((hloc_u64)from->key >> (8 * d)) & 255] != n) digits[used++] = d;
    for (long v = 0, place = 0; v < 256; v++) {
      long count = counts[d][v];
      counts[d][v] = place, place += count;
    }
  }
  for (long u = 0; u < used; u++) {
    const int shift = 8 * digits[u];
    long* places = counts[digits[u]];
    if (u == used - 1) {
      for (long i = 0; i < n; i++) data[places[((hloc_u64)from[i].key >> shift) & 255]++] = from[i].element;
      break;
    }
    for (long i = 0; i < n; i++) to[places[((hloc_u64)from[i].key >> shift) & 255]++] = from[i];
    N(_keyed)* t = from;
    from = to, to = t;
  }
}
#define HLOC_SORT_RADIX 1
#endif
#endif

#if HLOC_SORT_COUNTS && HLOC_SORT_KEY_BITS > 64 - HLOC_SORT_FEW_BITS
/* The same where a key leaves no room for the position: of equals, those at lower positions come before. Keys are
 * signed here, and a register's worth at once: gcc compares wider vectors, and before AVX-512 unsigned ones, one by
 * one. */
static HLOC_WIDE void N(_count_sort)(ELEMENT* data, ELEMENT* spare, long n) {
  enum { LANES = HLOC_VECTOR_BYTES / 8 };
  typedef hloc_s64 keys_of_lanes __attribute__((vector_size(HLOC_VECTOR_BYTES)));
  union { keys_of_lanes lanes[HLOC_SORT_FEW / LANES]; hloc_s64 at[HLOC_SORT_FEW]; } keys, before;
  keys_of_lanes place;
  for (long k = 0; k < LANES; k++) place[k] = k;
  for (long i = 0; i < n; i++) keys.at[i] = (hloc_s64)(N(_key)(data + i) ^ 1ull << 63);
  for (long i = n; i % LANES; i++) keys.at[i] = 0x7fffffffffffffffLL;
  for (long first = 0; first < n; first += LANES) {
    const keys_of_lanes own = keys.lanes[first / LANES];
    const long last = first + LANES < n ? first + LANES : n;
    keys_of_lanes count = {0};
    for (long j = 0; j < first; j++) count -= (keys_of_lanes)(keys.at[j] <= own);
    for (long j = first; j < last; j++)
      count -= (keys_of_lanes)((keys.at[j] < own) | ((keys.at[j] == own) & (j - first < place)));
    for (long j = last; j < n; j++) count -= (keys_of_lanes)(keys.at[j] < own);
    before.lanes[first / LANES] = count;
  }
  for (long i = 0; i < n; i++) spare[before.at[i]] = data[i];
  memcpy(data, spare, n * sizeof *data);
}
#elif HLOC_SORT_COUNTS
/* Few elements: the place of each is how many come before it. Keys with their positions are all different, so that
 * equals keep their order; comparing all with all is quick, as nothing branches. */
#if HLOC_SORT_KEY_BITS <= 16
typedef hloc_u32 N(_place);
#else
typedef hloc_u64 N(_place);
#endif
static HLOC_WIDE void N(_count_sort)(ELEMENT* data, ELEMENT* spare, long n) {
  N(_place) keys[HLOC_SORT_FEW], before[HLOC_SORT_FEW];
  for (long i = 0; i < n; i++)
    keys[i] = (N(_place))(N(_key)(data + i) << HLOC_SORT_FEW_BITS | (hloc_u64)i), before[i] = 0;
  for (long j = 0; j < n; j++) {
    const N(_place) key = keys[j];
    for (long i = 0; i < n; i++) before[i] += key < keys[i];
  }
  for (long i = 0; i < n; i++) spare[before[i]] = data[i];
  memcpy(data, spare, n * sizeof *data);
}
#endif

/* What a piece takes beside its elements and as many again, in bytes. */
static size_t N(_room)(long n) {
#if defined(HLOC_SORT_RADIX)
  if (n >= HLOC_SORT_LEAST_RADIX) return 2 * n * sizeof(N(_keyed));
#endif
  (void)n;
  return 0;
}
static void N(_sort_piece)(ELEMENT* data, ELEMENT* spare, void* room, long n) {
  (void)room;
#if HLOC_SORT_COUNTS
  if (n <= HLOC_SORT_FEW) {
    N(_count_sort)(data, spare, n);
    return;
  }
#endif
#if !HLOC_SORT_COUNTS || HLOC_SORT_LENGTH > HLOC_SORT_FEW
#if defined(HLOC_SORT_RADIX)
  if (!HLOC_SORT_MERGES || n >= HLOC_SORT_LEAST_RADIX) {
    N(_radix_sort)(data, room, n);
    return;
  }
#endif
#if HLOC_SORT_MERGES
  N(_merge_sort)(data, spare, n);
#endif
#endif
}

typedef struct { void* const* args; long n, row, pieces, run; ELEMENT *from, *to; int failed; } N(_work);

static void N(_sort_rows)(void* const* work, long begin, long end) {
  N(_work)* w = (N(_work)*)work;
  const size_t elements = (2 * w->n * sizeof(ELEMENT) + 63) / 64 * 64;
  ELEMENT* data = hloc_scratch(HLOC_OWN, elements + N(_room)(w->n));
  if (!data) {
    __atomic_store_n(&w->failed, 1, __ATOMIC_RELAXED);
    return;
  }
  for (long row = begin; row < end; row++) {
    for (long i = 0; i < w->n; i++) N(_get)(w->args, row, i, data + i);
    N(_sort_piece)(data, data + w->n, (char*)data + elements, w->n);
    for (long i = 0; i < w->n; i++) N(_put)(w->args, row, i, data + i);
  }
}

#if HLOC_SORT_LENGTH > HLOC_SORT_CHUNK
/* One long row: pieces are sorted side by side, then merged pairwise, every merge cut into equal parts. */
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
/* How many of the first `rank` elements of the merge come from a. */
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
    if (a1 < a0 || b1 < b0) { /* only a comparator that is no order: leave the part as it is, a permutation */
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
#if HLOC_SORT_LENGTH > HLOC_SORT_CHUNK
  if (rows < hloc_pool_threads() && w.pieces > 1) {
    for (w.row = 0; w.row < rows; w.row++)
      if (N(_sort_long_row)(&w)) return 1;
    return 0;
  }
#endif
  hloc_parallel(N(_sort_rows), (void* const*)&w, rows, 2048 / n + 1);
  return w.failed;
}

#undef N
#undef ELEMENT
#undef HLOC_SORT
#undef HLOC_SORT_KEY_BITS
#undef HLOC_SORT_LENGTH
#undef HLOC_SORT_COUNTS
#undef HLOC_SORT_MERGES
#undef HLOC_SORT_RADIX
