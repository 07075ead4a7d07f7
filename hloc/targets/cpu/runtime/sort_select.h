/* sort_select.h: a few first or last elements of rows in sorted order (template, included once per sort): only
 * candidates are sorted.
 *
 * In: what sort.h says, with HLOC_SORT_KEY_BITS; HLOC_SORT_KEPT, the number of elements selected of each row (at most
 * an eighth of it), and HLOC_SORT_FROM_END, 0 for the first ones, 1 for the last ones; HLOC_SORT_GROUPS of a row, and
 * HLOC_SORT_CANDIDATES, the most that are sorted (hloc/targets/cpu/plans/sorts.py): expressions, which may
 * read `args`. HLOC_SORT_LENGTH, if it is known, is of the candidates.
 * Out: static int N(void* const* args, long rows, long n), as there, but N_put is called only for the selected
 * elements. It undefines the same, and these.
 *
 * Ranks are keys, complemented for last elements: those with the lowest ranks are selected. Element i is in group
 * i % groups. At least k elements, and few more, do not exceed the k-th of the groups' lowest ranks: these are the
 * candidates. If too many are equal for the memory, that rank usually is the k-th rank of the row; then, or after a
 * search for that rank, equals are counted.
 */
#ifndef HLOC_SORT_SELECT_H
#define HLOC_SORT_SELECT_H
#define HLOC_SORT_BLOCK 64
#endif

#include "sort_piece.h"

typedef struct { long kept, room, groups; } N(_sizes);

static inline N(_word) N(_rank)(void* const* args, long row, long i) {
  ELEMENT e;
  N(_get)(args, row, i, &e);
  const hloc_u64 key = N(_key)(&e);
  return (N(_word))(HLOC_SORT_FROM_END ? key ^ (~0ull >> (64 - HLOC_SORT_KEY_BITS)) : key);
}

/* By blocks in memory that does not alias `args`, so that the loop vectorizes. */
static HLOC_WIDE void N(_rank_all)(void* const* args, long row, long n, N(_word)* ranks) {
  N(_word) block[HLOC_SORT_BLOCK];
  long first = 0;
  for (; first + HLOC_SORT_BLOCK <= n; first += HLOC_SORT_BLOCK) {
    for (long i = 0; i < HLOC_SORT_BLOCK; i++) block[i] = N(_rank)(args, row, first + i);
    memcpy(ranks + first, block, sizeof block);
  }
  for (; first < n; first++) ranks[first] = N(_rank)(args, row, first);
}

static HLOC_WIDE long N(_below)(const N(_word)* ranks, long n, N(_word) bound) {
  hloc_u32 count = 0;
  for (long i = 0; i < n; i++) count += ranks[i] < bound;
  return count;
}

/* The k-th lowest rank, bit by bit: the highest number with fewer than k ranks below it. */
static N(_word) N(_kth)(const N(_word)* ranks, long n, long k) {
  N(_word) found = 0;
  for (int bit = HLOC_SORT_KEY_BITS - 1; bit >= 0; bit--) {
    const N(_word) tried = (N(_word))(found | (N(_word))1 << bit);
    if (N(_below)(ranks, n, tried) < k) found = tried;
  }
  return found;
}

/* A rank that no selected element exceeds; lowest: memory for one rank of every group. */
static HLOC_WIDE N(_word) N(_bound)(const N(_word)* ranks, long n, N(_sizes) sizes, N(_word)* lowest) {
  memcpy(lowest, ranks, sizes.groups * sizeof *ranks);
  for (long first = sizes.groups; first < n; first += sizes.groups) {
    const N(_word)* own = ranks + first;
    const long count = n - first < sizes.groups ? n - first : sizes.groups;
    for (long g = 0; g < count; g++) lowest[g] = own[g] < lowest[g] ? own[g] : lowest[g];
  }
  return N(_kth)(lowest, sizes.groups, sizes.kept);
}

static HLOC_WIDE int N(_has_any)(const N(_word)* ranks, long count, N(_word) bound) {
  N(_word) any = 0;
  for (long i = 0; i < count; i++) any |= ranks[i] <= bound;
  return any;
}

/* Elements up to a rank, `room` at most; of those with that rank only `taken` after the first `skipped` ones; `some`:
 * not all. */
typedef struct { N(_word) rank; int some; long skipped, taken, room; } N(_limit);

/* The positions from first to last - 1 of ranks up to this one: without branches, which would be unpredictable. */
static long N(_places)(const N(_word)* ranks, long first, long last, N(_word) rank, long* places) {
  long count = 0;
  for (long i = first; i < last; i++) {
    places[count] = i;
    count += ranks[i] <= rank;
  }
  return count;
}

/* Gets such elements in their order; returns their number, or -1 if there is no memory for them. */
static long N(_collect)(void* const* args, long row, long n, const N(_word)* ranks, N(_limit) limit, ELEMENT* data) {
  long found = 0, equals = 0, places[HLOC_SORT_BLOCK];
  for (long first = 0; first < n; first += HLOC_SORT_BLOCK) {
    const long last = n - first < HLOC_SORT_BLOCK ? n : first + HLOC_SORT_BLOCK;
    const int past = limit.some && equals >= limit.skipped + limit.taken;
    if (past && limit.rank == 0) break;
    const N(_word) rank = limit.rank - past;
    if (!N(_has_any)(ranks + first, last - first, rank)) continue;
    const long count = N(_places)(ranks, first, last, rank, places);
    if (!limit.some && found + count > limit.room) return -1;
    for (long c = 0; c < count; c++) {
      if (limit.some && ranks[places[c]] == limit.rank) {
        const long before = equals++;
        if (before < limit.skipped || before >= limit.skipped + limit.taken) continue;
      }
      N(_get)(args, row, places[c], data + found++);
    }
  }
  return found;
}

/* Exactly the selected elements, whatever the number of equals of the last one; `rank`: at least the last one's. */
static N(_limit) N(_exact_limit)(const N(_word)* ranks, long n, long kept, N(_word) rank) {
  long below = N(_below)(ranks, n, rank), equals = 0;
  if (below >= kept) {
    rank = N(_kth)(ranks, n, kept);
    below = N(_below)(ranks, n, rank);
  }
  for (long i = 0; i < n; i++) equals += ranks[i] == rank;
  const long taken = kept - below;
  return (N(_limit)){rank, 1, HLOC_SORT_FROM_END ? equals - taken : 0, taken, kept};
}

typedef struct { void* const* args; long n; N(_sizes) sizes; int failed; } N(_work);

/* Bytes of ranks, rounded up to whole cache lines. */
static size_t N(_rank_bytes)(long count) { return (count * sizeof(N(_word)) + 63) / 64 * 64; }

static void N(_select_rows)(void* const* work, long begin, long end) {
  N(_work)* w = (N(_work)*)work;
  const N(_sizes) sizes = w->sizes;
  const long n = w->n, kept = sizes.kept;
  const size_t data_bytes = (2 * sizes.room * sizeof(ELEMENT) + 63) / 64 * 64;
  const size_t rank_bytes = N(_rank_bytes)(n), group_bytes = N(_rank_bytes)(sizes.groups);
  char* memory = hloc_own_scratch(rank_bytes + group_bytes + data_bytes + N(_room)(sizes.room), &w->failed);
  if (!memory) return;
  N(_word)* ranks = (N(_word)*)memory;
  N(_word)* lowest = (N(_word)*)(memory + rank_bytes);
  ELEMENT* data = (ELEMENT*)(memory + rank_bytes + group_bytes);
  for (long row = begin; row < end; row++) {
    N(_rank_all)(w->args, row, n, ranks);
    const N(_word) bound = N(_bound)(ranks, n, sizes, lowest);
    long found = N(_collect)(w->args, row, n, ranks, (N(_limit)){.rank = bound, .room = sizes.room}, data);
    if (found < 0) found = N(_collect)(w->args, row, n, ranks, N(_exact_limit)(ranks, n, kept, bound), data);
    N(_sort_piece)(data, data + sizes.room, (char*)data + data_bytes, found);
    const long from = HLOC_SORT_FROM_END ? found - kept : 0, to = HLOC_SORT_FROM_END ? n - kept : 0;
    for (long i = 0; i < kept; i++) N(_put)(w->args, row, to + i, data + from + i);
  }
}

static __attribute__((unused)) int HLOC_SORT(void* const* args, long rows, long n) {
  N(_work) w = {.args = args, .n = n, .sizes = {HLOC_SORT_KEPT, HLOC_SORT_CANDIDATES, HLOC_SORT_GROUPS}};
  if (rows <= 0) return 0;
  hloc_parallel(N(_select_rows), (void* const*)&w, rows, 16384 / n + 1);
  return w.failed;
}

#undef HLOC_SORT_FROM_END
#undef HLOC_SORT_GROUPS
#undef HLOC_SORT_CANDIDATES
#include "sort_end.h"
