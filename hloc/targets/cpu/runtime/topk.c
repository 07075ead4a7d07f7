/* topk.c: see topk.h. A heap of {key, index} with the smallest on top; keys are floats as ordered unsigned numbers. */
#include "topk.h"

#include "base.h"
#include "pool.h"

typedef struct { const float* x; float* values; int* places; long n, k, row_stride, groups; int failed; } work;
typedef struct { hloc_u32 key; hloc_s32 place; } entry;

static inline hloc_u32 key_of(float x) {
  hloc_u32 bits = hloc_bits_f32(x);
  return bits ^ ((bits >> 31) ? 0xffffffffu : 0x80000000u);
}
static inline float value_of(hloc_u32 key) {
  return hloc_from_bits_f32(key ^ ((key >> 31) ? 0x80000000u : 0xffffffffu));
}
static inline int weaker(entry a, entry b) { return a.key < b.key || (a.key == b.key && a.place > b.place); }

static void sift_down(entry* heap, long count, long at) {
  entry e = heap[at];
  for (;;) {
    long child = 2 * at + 1;
    if (child >= count) break;
    if (child + 1 < count && weaker(heap[child + 1], heap[child])) child++;
    if (!weaker(heap[child], e)) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = e;
}

enum { SHORTEST = 512 }; /* shortest row for other algorithms than a linear scan */

/* Inserts values whose keys are greater than the smallest one's, from the few parts of a block that have such. */
static void take_in(const float* x, long begin, long n, entry* heap, long k) {
  enum { BLOCK = 64 };
  const long part = n < SHORTEST ? BLOCK : 16;
  for (long i = begin; i < n; i += BLOCK) {
    const long end = n - i < BLOCK ? n : i + BLOCK;
    const hloc_u32 least = heap[0].key;
    int any = 0;
    for (long j = i; j < end; j++) any |= key_of(x[j]) > least; /* vectorizes; most blocks have no new values */
    if (!any) continue;
    for (long first = i; first < end; first += part) {
      const long last = end - first < part ? end : first + part;
      if (part < BLOCK) {
        any = 0;
        for (long j = first; j < last; j++) any |= key_of(x[j]) > least;
        if (!any) continue;
      }
      for (long j = first; j < last; j++) {
        const entry e = {key_of(x[j]), (hloc_s32)j};
        if (!weaker(heap[0], e)) continue;
        heap[0] = e;
        sift_down(heap, k, 0);
      }
    }
  }
}

/* A key that at least k values of a row reach: the k-th of the largest values of its groups; value j is in group
 * j % groups. */
static hloc_u32 reached_key(const float* x, long n, entry* heap, long k, hloc_u32* strongest, long groups) {
  for (long g = 0; g < groups; g++) strongest[g] = key_of(x[g]);
  for (long first = groups; first < n; first += groups) {
    const long count = n - first < groups ? n - first : groups;
    for (long g = 0; g < count; g++) {
      const hloc_u32 key = key_of(x[first + g]);
      strongest[g] = key > strongest[g] ? key : strongest[g];
    }
  }
  for (long j = 0; j < k; j++) heap[j] = (entry){strongest[j], 0};
  for (long j = k / 2; j-- > 0;) sift_down(heap, k, j);
  for (long g = k; g < groups; g++) {
    if (strongest[g] <= heap[0].key) continue;
    heap[0] = (entry){strongest[g], 0};
    sift_down(heap, k, 0);
  }
  return heap[0].key;
}

static void one_row(const work* w, const float* x, float* values, int* places, entry* heap) {
  const long k = w->k, groups = w->groups;
  const hloc_u32 reached = groups ? reached_key(x, w->n, heap, k, (hloc_u32*)(heap + k + 1), groups) : 0;
  if (reached) { /* all of these are removed again */
    for (long j = 0; j < k; j++) heap[j] = (entry){reached - 1, (hloc_s32)w->n};
    take_in(x, 0, w->n, heap, k);
  } else {
    for (long j = 0; j < k; j++) heap[j] = (entry){key_of(x[j]), (hloc_s32)j};
    for (long j = k / 2; j-- > 0;) sift_down(heap, k, j);
    take_in(x, k, w->n, heap, k);
  }
  for (long count = k; count > 0; count--) { /* the smallest is removed first and stored last */
    values[count - 1] = value_of(heap[0].key), places[count - 1] = heap[0].place;
    heap[0] = heap[count - 1];
    if (count > 1) sift_down(heap, count - 1, 0);
  }
}

/* Few values: the position of each is the number of larger ones (see sort_piece.h). */
enum { FEW = 64 };
static void short_row(const work* w, const float* x, float* values, int* places) {
  hloc_u64 strength[FEW], before[FEW];
  for (long i = 0; i < w->n; i++) strength[i] = (hloc_u64)key_of(x[i]) << 6 | (hloc_u64)(FEW - 1 - i), before[i] = 0;
  for (long j = 0; j < w->n; j++)
    for (long i = 0; i < w->n; i++) before[i] += strength[j] > strength[i];
  for (long i = 0; i < w->n; i++)
    if ((long)before[i] < w->k) values[before[i]] = x[i], places[before[i]] = (int)i;
}

/* The largest of few values, one by one: each time all are compared, and the largest is removed. */
static void first_of_short_row(const work* w, const float* x, float* values, int* places) {
  enum { PRESENT_BIT = 40 };
  hloc_u64 strength[FEW];
  for (long i = 0; i < w->n; i++)
    strength[i] = (hloc_u64)1 << PRESENT_BIT | (hloc_u64)key_of(x[i]) << 6 | (hloc_u64)(FEW - 1 - i);
  for (long i = w->n; i < FEW; i++) strength[i] = 0;
  for (long j = 0; j < w->k; j++) {
    hloc_u64 most = 0;
    for (long i = 0; i < FEW; i++) most = strength[i] > most ? strength[i] : most;
    long place = FEW - 1 - (long)(most % FEW);
    values[j] = x[place], places[j] = (int)place;
    strength[place] = 0;
  }
}

static void some_rows(void* const* args, long begin, long end) {
  work* w = (work*)args;
  const size_t groups = w->groups * sizeof(hloc_u32);
  entry* heap = hloc_scratch(HLOC_OWN, (w->k + 1) * sizeof *heap + groups);
  if (!heap) {
    __atomic_store_n(&w->failed, 1, __ATOMIC_RELAXED);
    return;
  }
  for (long row = begin; row < end; row++) {
    const float* x = w->x + row * w->row_stride;
    float* values = w->values + row * w->k;
    int* places = w->places + row * w->k;
    if (w->n > FEW) one_row(w, x, values, places, heap);
    else if (w->k * 4 <= w->n) first_of_short_row(w, x, values, places);
    else short_row(w, x, values, places);
  }
}

int hloc_topk_f32(const float* x, float* values, int* places, long rows, long n, long k, long row_stride,
                  long groups) {
  work w = {x, values, places, n, k < n ? k : n, row_stride, groups, 0};
  if (rows <= 0 || w.k <= 0) return 0;
  hloc_parallel(some_rows, (void* const*)&w, rows, 16384 / n + 1);
  return w.failed;
}
