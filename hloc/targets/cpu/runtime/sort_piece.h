/* sort_piece.h: stable sorting of a piece of a row in memory (template, included by sort.h and sort_select.h).
 *
 * In: as sort.h says: HLOC_SORT as a name N, N_element, N_less where pieces may be merged, N_key and
 * HLOC_SORT_KEY_BITS; HLOC_SORT_LENGTH, the most elements of a piece, where it is known: what longer ones need is left
 * out.
 * Out: static void N_sort_piece(N_element* data, N_element* spare, void* room, long n): sorts data[0 .. n); spare: as
 * many elements, room: N_room(n) bytes. With a key: up to 128 elements by counting, radix sort for more; else merge
 * sort. And N(suffix) and ELEMENT, which sort_end.h undefines with everything else that was defined for one sort.
 */
#ifndef HLOC_SORT_PIECE_H
#define HLOC_SORT_PIECE_H
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
#if !defined(HLOC_SORT_LENGTH) || HLOC_SORT_LENGTH > HLOC_SORT_VERY_FEW && HLOC_SORT_LENGTH <= HLOC_SORT_FEW
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
#endif

/* Rows of such a length are pieces for radix sort: merging is omitted. */
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
    if (HLOC_STOPS()) return;
    for (long left = HLOC_SORT_CHUNK; left && i < a_count && j < b_count; left--) {
      int take_b = N(_less)(b + j, a + i);
      const ELEMENT* from = take_b ? b + j : a + i;
      *out++ = *from;
      j += take_b, i += !take_b;
    }
  }
  memcpy(out, a + i, (a_count - i) * sizeof *a);
  memcpy(out + (a_count - i), b + j, (b_count - j) * sizeof *b);
}

/* Sorts `data` with `spare` of the same length as working memory: runs by insertion, then merges of doubling length. */
static __attribute__((noinline)) void N(_merge_sort)(ELEMENT* data, ELEMENT* spare, long n) {
  for (long begin = 0; begin < n; begin += HLOC_SORT_RUN) {
    if (HLOC_STOPS()) return;
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
typedef struct { N(_word) key; ELEMENT element; } N(_keyed);

/* Least significant digit first, eight bits at a time; digits that are the same everywhere are skipped. Keys are
 * computed once and moved with their elements. room: for 2 n of them. */
static void N(_radix_sort)(ELEMENT* data, N(_keyed)* room, long n) {
  enum { DIGITS = (HLOC_SORT_KEY_BITS + 7) / 8 };
  long counts[DIGITS][256], digits[DIGITS], used = 0;
  N(_keyed) *from = room, *to = room + n;
  memset(counts, 0, sizeof counts);
  for (long done = 0, end; done < n; done = end) {
    if (HLOC_STOPS()) return;
    end = n - done < HLOC_SORT_CHUNK ? n : done + HLOC_SORT_CHUNK;
    for (long i = done; i < end; i++) from[i].key = (N(_word))N(_key)(data + i), from[i].element = data[i];
  }
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
    for (long done = 0, end; done < n; done = end) {
      if (HLOC_STOPS()) return;
      end = n - done < HLOC_SORT_CHUNK ? n : done + HLOC_SORT_CHUNK;
      for (long i = done; i < end; i++) to[places[((hloc_u64)from[i].key >> shift) & 255]++] = from[i];
    }
    N(_keyed)* t = from;
    from = to, to = t;
  }
}
#define HLOC_SORT_RADIX 1
#endif
#endif

#if HLOC_SORT_COUNTS && HLOC_SORT_KEY_BITS > 64 - HLOC_SORT_FEW_BITS
/* The same if a key has no bits for the position: equals are ordered by position. Keys are signed here, one register at
 * a time: gcc compares wider vectors, and before AVX-512 unsigned ones, element by element. */
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
/* Few elements: the position of each is the number of elements before it. Keys with their positions are all different,
 * so that equals keep their order; comparing all with all is fast, as there are no branches. */
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

/* The bytes that a piece needs besides `data` and `spare`. */
static size_t N(_room)(long n) {
  if (HLOC_SORT_COUNTS && n <= HLOC_SORT_FEW) return 0;
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
