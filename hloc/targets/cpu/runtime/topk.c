/* topk.c: see topk.h. A heap of {key, place} with the weakest on top; keys are floats as ordered unsigned numbers. */
#include "topk.h"

#include "base.h"
#include "pool.h"

typedef struct { const float* x; float* values; int* places; long n, k, row_stride; int failed; } work;
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

static void one_row(const work* w, const float* x, float* values, int* places, entry* heap) {
  enum { BLOCK = 64 };
  long k = w->k, i = k;
  for (long j = 0; j < k; j++) heap[j] = (entry){key_of(x[j]), (hloc_s32)j};
  for (long j = k / 2; j-- > 0;) sift_down(heap, k, j);
  while (i < w->n) {
    long end = w->n - i < BLOCK ? w->n : i + BLOCK;
    int any = 0;
    hloc_u32 least = heap[0].key;
    for (long j = i; j < end; j++) any |= key_of(x[j]) > least; /* vectorizes; most blocks hold nothing new */
    if (any)
      for (long j = i; j < end; j++) {
        entry e = {key_of(x[j]), (hloc_s32)j};
        if (!weaker(heap[0], e)) continue;
        heap[0] = e;
        sift_down(heap, k, 0);
      }
    i = end;
  }
  for (long count = k; count > 0; count--) { /* the weakest leaves first and goes last */
    values[count - 1] = value_of(heap[0].key), places[count - 1] = heap[0].place;
    heap[0] = heap[count - 1];
    if (count > 1) sift_down(heap, count - 1, 0);
  }
}

/* Few values: the place of each is how many are stronger (see sort.h). */
enum { FEW = 64 };
static void short_row(const work* w, const float* x, float* values, int* places) {
  hloc_u64 strength[FEW], before[FEW];
  for (long i = 0; i < w->n; i++) strength[i] = (hloc_u64)key_of(x[i]) << 6 | (hloc_u64)(FEW - 1 - i), before[i] = 0;
  for (long j = 0; j < w->n; j++)
    for (long i = 0; i < w->n; i++) before[i] += strength[j] > strength[i];
  for (long i = 0; i < w->n; i++)
    if ((long)before[i] < w->k) values[before[i]] = x[i], places[before[i]] = (int)i;
}

/* The strongest of few values, one after the other: each time all are looked at, and the winner leaves. */
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
  entry* heap = hloc_scratch(HLOC_OWN, (w->k + 1) * sizeof *heap);
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

int hloc_topk_f32(const float* x, float* values, int* places, long rows, long n, long k, long row_stride) {
  work w = {x, values, places, n, k < n ? k : n, row_stride, 0};
  if (rows <= 0 || w.k <= 0) return 0;
  hloc_parallel(some_rows, (void* const*)&w, rows, 16384 / n + 1);
  return w.failed;
}
