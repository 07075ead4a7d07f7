/* attention.c: see attention.h. A task computes one row: scores, their softmax, the sum of weighted values. */
#include "attention.h"

#include "pool.h"
#include "scalar.h"

static float load(const hloc_attention_array* x, long at) {
  if (x->type == HLOC_ATTENTION_BF16) return hloc_bf16_to_f32(((const hloc_bf16*)x->at)[at]);
  if (x->type == HLOC_ATTENTION_F16) return hloc_f16_to_f32(((const hloc_f16*)x->at)[at]);
  return ((const float*)x->at)[at];
}
static void store(const hloc_attention_array* x, long at, float value) {
  if (x->type == HLOC_ATTENTION_BF16) ((hloc_bf16*)x->at)[at] = hloc_f32_to_bf16(value);
  else if (x->type == HLOC_ATTENTION_F16) ((hloc_f16*)x->at)[at] = hloc_f32_to_f16(value);
  else ((float*)x->at)[at] = value;
}
static long base(const hloc_attention_args* g, const hloc_attention_array* x, long batch) {
  long at = 0;
  for (long d = g->dims - 1; d >= 0; batch /= g->batch[d], d--) at += batch % g->batch[d] * x->batch[d];
  return at;
}

static void run_rows(void* const* args, long begin, long end) {
  const hloc_attention_args* g = (const hloc_attention_args*)args[0];
  float* z = hloc_scratch(0, g->columns * sizeof(float));
  if (!z) __atomic_store_n((int*)args[1], 1, __ATOMIC_RELAXED);
  for (long t = begin; z && t < end; t++) {
    const long b = t / g->rows, i = t % g->rows;
    const long q = base(g, &g->q, b) + i * g->q.row, k = base(g, &g->k, b), v = base(g, &g->v, b);
    for (long j = 0; j < g->columns; j++) {
      float sum = 0;
      for (long d = 0; d < g->depth; d++)
        sum += load(&g->q, q + d * g->q.column) * load(&g->k, k + j * g->k.row + d * g->k.column);
      z[j] = sum;
    }
    if (g->score) g->score(g->score_args, b, i, 0, 1, g->columns, z, g->columns, 1);
    float largest = -HLOC_INF_F32, total = 0;
    for (long j = 0; j < g->columns; j++) largest = hloc_maximum_f32(largest, z[j]);
    for (long j = 0; j < g->columns; j++) total += z[j] = hloc_exp_f32(z[j] - largest);
    for (long f = 0; f < g->features; f++) {
      float sum = 0;
      for (long j = 0; j < g->columns; j++) sum += z[j] * load(&g->v, v + j * g->v.row + f * g->v.column);
      store(&g->out, base(g, &g->out, b) + i * g->out.row + f * g->out.column, sum / total);
    }
  }
}

int hloc_attention(const hloc_attention_args* g) {
  int failed = 0;
  long batches = 1;
  for (long d = 0; d < g->dims; d++) batches *= g->batch[d];
  hloc_parallel(run_rows, (void* const[]){(void*)g, &failed}, batches * g->rows, 4);
  return __atomic_load_n(&failed, __ATOMIC_RELAXED);
}
