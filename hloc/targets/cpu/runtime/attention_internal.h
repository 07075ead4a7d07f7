/* attention_internal.h: shared by the files attention*.c: a call's arrays, blocks of keys and values as dense f32, the
 * online softmax.
 *
 * Keys are processed in blocks of at most HLOC_KEYS. For the previous blocks, a row keeps its largest score, the sum of
 * exponentials relative to it, and the sums of weighted values. A larger score scales both sums down.
 */
#ifndef HLOC_ATTENTION_INTERNAL_H
#define HLOC_ATTENTION_INTERNAL_H
#include "attention.h"

#include "half_rows.h"
#include "narrow.h"
#include "pool.h"
#include "vector.h"

#if HLOC_VECTOR_BYTES == 64
enum { HLOC_ATTENTION_TILE = 14 };
#elif defined(__aarch64__)
enum { HLOC_ATTENTION_TILE = 12 };
#else
enum { HLOC_ATTENTION_TILE = 6 };
#endif
/* queries of a panel; keys of a block, and that rounded up to vectors */
#define HLOC_KEYS 140
#define HLOC_KEY_ROOM 144
enum { HLOC_PANEL = 2 * HLOC_LANES32 };

typedef struct {
  hloc_attention_args g;
  long batches;
  int failed;
  long tasks_of_batch;
} hloc_attention_plan;

HLOC_INLINE long hloc_smaller(long a, long b) { return a < b ? a : b; }

static inline hloc_attention_plan hloc_attention_plan_of(const hloc_attention_args* g) {
  hloc_attention_plan plan = {.g = *g, .batches = 1};
  for (long d = 0; d < g->dims; d++) plan.batches *= g->batch[d];
  return plan;
}

/* The offset of an array's batch, in elements. */
static inline long hloc_attention_base(const hloc_attention_args* g, const hloc_attention_array* x, long batch) {
  long at = 0;
  for (long d = g->dims - 1; d >= 0; batch /= g->batch[d], d--) at += batch % g->batch[d] * x->batch[d];
  return at;
}

/* rows x columns elements from position `at`, as f32 rows that are `stride` apart. */
static __attribute__((noinline, unused)) void hloc_attention_load(const hloc_attention_array* x, long at, long rows,
                                                                  long columns, float* out, long stride) {
  for (long i = 0; i < rows; i++, at += x->row, out += stride) {
    const float* wide = (const float*)x->at + at;
    const hloc_bf16* bf16 = (const hloc_bf16*)x->at + at;
    const hloc_f16* f16 = (const hloc_f16*)x->at + at;
    const long step = x->column;
    if (x->type == HLOC_ATTENTION_F32 && step == 1) __builtin_memcpy(out, wide, columns * sizeof(float));
    else if (x->type == HLOC_ATTENTION_F32) for (long c = 0; c < columns; c++) out[c] = wide[c * step];
    else if (x->type == HLOC_ATTENTION_BF16 && step == 1) {
      _Pragma("omp simd") for (long c = 0; c < columns; c++) out[c] = hloc_bf16_to_f32(bf16[c]);
    } else if (x->type == HLOC_ATTENTION_BF16) {
      for (long c = 0; c < columns; c++) out[c] = hloc_bf16_to_f32(bf16[c * step]);
    } else if (step == 1) {
      hloc_widen_row_f16(f16, out, columns);
    } else {
      for (long c = 0; c < columns; c++) out[c] = hloc_widen_f16(f16[c * step]);
    }
  }
}

/* One row of results. */
static inline void hloc_attention_store(const hloc_attention_array* x, long at, long columns, const float* from) {
  const long step = x->column;
  if (x->type == HLOC_ATTENTION_BF16)
    for (long c = 0; c < columns; c++) ((hloc_bf16*)x->at)[at + c * step] = hloc_f32_to_bf16(from[c]);
  else if (x->type == HLOC_ATTENTION_F16)
    for (long c = 0; c < columns; c++) ((hloc_f16*)x->at)[at + c * step] = hloc_narrow_f32(from[c]);
  else if (step == 1) __builtin_memcpy((float*)x->at + at, from, columns * sizeof(float));
  else
    for (long c = 0; c < columns; c++) ((float*)x->at)[at + c * step] = from[c];
}

/* Keys or values j0 <= j < j0 + n of a batch, as f32 rows: in place, or copied to `room`. */
static inline const float* hloc_attention_block(const hloc_attention_array* x, int in_place, long base, long j0, long n,
                                                long columns, float* room, long* stride) {
  if (in_place) {
    *stride = x->row;
    return (const float*)x->at + base + j0 * x->row;
  }
  hloc_attention_load(x, base + j0 * x->row, n, columns, room, *stride);
  return room;
}

#define HLOC_ATTENTION_LEAST (-87.0f) /* lower scores have weight 0 */
/* e^x for x <= 0 and NaN, as hloc_exp_f32 computes it; subnormal results are 0. */
HLOC_INLINE hloc_vf32 hloc_attention_exp(hloc_vf32 x) {
  const float shift = 12582912.0f + 127.0f; /* the sum's low bits: the biased exponent */
  const hloc_vs32 is_zero = x < HLOC_ATTENTION_LEAST;
  const hloc_vf32 sum = x * 1.44269504088896341f + shift, n = sum - shift;
  const hloc_vf32 r = n * -1.428606820e-6f + (n * -0.693145751953125f + x);
  hloc_vf32 p = r * 1.393750892e-3f + 8.368979208e-3f;
  p = p * r + 4.166643694e-2f;
  p = p * r + 1.666651815e-1f;
  p = p * r + 0.5f;
  p = p * (r * r) + r + 1.0f;
  p *= (hloc_vf32)((hloc_vu32)sum << 23);
  return (hloc_vf32)((hloc_vs32)p & ~is_zero);
}
/* The larger of two; a if b is NaN. */
HLOC_INLINE hloc_vf32 hloc_attention_larger(hloc_vf32 a, hloc_vf32 b) {
  const hloc_vs32 grows = b > a;
  return (hloc_vf32)(((hloc_vs32)b & grows) | ((hloc_vs32)a & ~grows));
}

/* The value that is subtracted from scores of a row with largest score `largest`; a row of -infinity has no weights. */
HLOC_INLINE hloc_vf32 hloc_attention_shift(hloc_vf32 largest) {
  return (hloc_vf32)((hloc_vs32)largest & ~(largest == -HLOC_INF_F32));
}

#endif
