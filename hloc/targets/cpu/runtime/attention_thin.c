/* attention_thin.c: attention of a few queries (see attention.h), as for a decoder's next token: keys and values are
 * read once, in memory order. A task computes a part of a batch's keys; the results of the parts are combined at the
 * end.
 */
#include "attention_internal.h"

/* scores[r][j] = q_r . k_j for `rows` queries (1, 2 or 4) and n keys: as many dot products at once as a vector has
 * lanes; their sums are reduced into one vector. Both are padded with 0 to whole vectors. */
HLOC_INLINE void few_dots_of(const int rows, const float* restrict q, long q_stride, const float* restrict k,
                             long stride, long depth, long n, float* scores) {
  const int keys = HLOC_LANES32 / rows;
  for (long j = 0; j < n; j += keys) {
    hloc_vf32 sum[HLOC_LANES32];
    const float* key[HLOC_LANES32];
    float total[HLOC_LANES32];
    for (int i = 0; i < keys; i++) key[i] = k + hloc_smaller(j + i, n - 1) * stride; /* the last may repeat */
    HLOC_UNROLL for (int i = 0; i < HLOC_LANES32; i++) sum[i] = (hloc_vf32){0};
    for (long d = 0; d < depth; d += HLOC_LANES32) {
      HLOC_UNROLL for (int i = 0; i < keys; i++) {
        const hloc_vf32 ki = hloc_load_f32(key[i] + d);
        HLOC_UNROLL for (int r = 0; r < rows; r++) sum[r * keys + i] += ki * hloc_load_f32(q + r * q_stride + d);
      }
    }
    hloc_store_f32(total, hloc_fold_f32(sum));
    for (int r = 0; r < rows; r++)
      __builtin_memcpy(scores + r * HLOC_KEY_ROOM + j, total + r * keys, hloc_smaller(keys, n - j) * sizeof(float));
  }
}
static void few_dots(long rows, const float* q, long q_stride, const float* k, long stride, long depth,
                          long n, float* scores) {
  for (; rows > 0; rows -= 4, q += 4 * q_stride, scores += 4 * HLOC_KEY_ROOM)
    if (rows == 1) few_dots_of(1, q, q_stride, k, stride, depth, n, scores);
    else if (rows == 2) few_dots_of(2, q, q_stride, k, stride, depth, n, scores);
    else few_dots_of(4, q, q_stride, k, stride, depth, n, scores);
}

/* out_r[f] = out_r[f] * scale_r + sum over j of weights[r][j] v_j[f], `count` vectors of features at once */
HLOC_INLINE void few_weigh_some(const int rows, const int count, const float* weights, const float* v, long stride,
                                long n, const float* scale, float* const* out, long f) {
  hloc_vf32 sum[4 * 4];
  HLOC_UNROLL for (int i = 0; i < rows * count; i++)
    sum[i] = hloc_load_f32(out[i / count] + f + i % count * HLOC_LANES32) * scale[i / count];
  for (long j = 0; j < n; j++) {
    HLOC_UNROLL for (int c = 0; c < count; c++) {
      const hloc_vf32 vj = hloc_load_f32(v + j * stride + f + c * HLOC_LANES32);
      HLOC_UNROLL for (int r = 0; r < rows; r++) sum[r * count + c] += vj * weights[r * HLOC_KEY_ROOM + j];
    }
  }
  HLOC_UNROLL for (int i = 0; i < rows * count; i++)
    hloc_store_f32(out[i / count] + f + i % count * HLOC_LANES32, sum[i]);
}
HLOC_INLINE void few_weigh_of(const int rows, const float* weights, const float* v, long stride, long features, long n,
                              const float* scale, float* const* out) {
  long f = 0;
  for (; f + 4 * HLOC_LANES32 <= features; f += 4 * HLOC_LANES32)
    few_weigh_some(rows, 4, weights, v, stride, n, scale, out, f);
  for (; f < features; f += HLOC_LANES32)
    few_weigh_some(rows, 1, weights, v, stride, n, scale, out, f);
}
static void few_weigh(long rows, const float* weights, const float* v, long stride, long features, long n,
                           const float* scale, float* const* out) {
  for (; rows > 0; rows -= 4, weights += 4 * HLOC_KEY_ROOM, scale += 4, out += 4)
    if (rows == 1) few_weigh_of(1, weights, v, stride, features, n, scale, out);
    else if (rows == 2) few_weigh_of(2, weights, v, stride, features, n, scale, out);
    else if (rows == 3) few_weigh_of(3, weights, v, stride, features, n, scale, out);
    else few_weigh_of(4, weights, v, stride, features, n, scale, out);
}

HLOC_COMPILED_FOR(attention_few, HLOC_VECTOR_BYTES, HLOC_KEYS, HLOC_KEY_ROOM, HLOC_FEW)

HLOC_INLINE float few_exp(float x) { return hloc_attention_exp(hloc_splat_f32(x))[0]; }

/* Scores of n keys -> weights; state: the largest score and the sum. Returns the factor of earlier sums. */
static float few_soften(float* scores, long n, float* state) {
  hloc_vf32 top = hloc_splat_f32(state[0]), sum = {0};
  for (long j = n; j % HLOC_LANES32; j++) scores[j] = -HLOC_INF_F32; /* no weight */
  for (long j = 0; j < n; j += HLOC_LANES32) top = hloc_attention_larger(top, hloc_load_f32(scores + j));
  const float largest = hloc_max_f32(top), shift = hloc_attention_shift(hloc_splat_f32(largest))[0];
  for (long j = 0; j < n; j += HLOC_LANES32) {
    const hloc_vf32 weight = hloc_attention_exp(hloc_load_f32(scores + j) - shift);
    hloc_store_f32(scores + j, weight);
    sum += weight;
  }
  const float scale = few_exp(state[0] - shift);
  state[0] = largest, state[1] = state[1] * scale + hloc_sum_f32(sum);
  return scale;
}

/* A part's results for each row: weighted values in whole vectors, the largest score, the sum. */
static long few_vectors(long floats) { return (floats + HLOC_LANES32 - 1) / HLOC_LANES32 * HLOC_LANES32; }
static long few_partial_size(const hloc_attention_args* g) { return few_vectors(g->features) + HLOC_LANES32; }
static float* few_partial_of(const hloc_attention_plan* plan, long task, long row) {
  return plan->partial + (task * plan->g.rows + row) * few_partial_size(&plan->g);
}

static void few_run_part(const hloc_attention_plan* plan, long task, float* memory) {
  const hloc_attention_args* g = &plan->g;
  const hloc_attention_choices* by = &g->choices;
  const long batch = task / plan->splits, part = task % plan->splits;
  const long j0 = part * by->blocks_of_split * by->block;
  const long j1 = hloc_smaller(g->columns, j0 + by->blocks_of_split * by->block);
  const long k_base = hloc_attention_base(g, &g->k, batch), v_base = hloc_attention_base(g, &g->v, batch);
  float *q = memory, *scores = q + HLOC_FEW * by->k_stride, *k_room = scores + HLOC_FEW * HLOC_KEY_ROOM;
  float *v_room = k_room + by->block * by->k_stride, *out[HLOC_FEW], scale[HLOC_FEW];
  __builtin_memset(q, 0, HLOC_FEW * by->k_stride * sizeof(float));
  if (!by->k_in_place) __builtin_memset(k_room, 0, by->block * by->k_stride * sizeof(float));
  hloc_attention_load(&g->q, hloc_attention_base(g, &g->q, batch), g->rows, g->depth, q, by->k_stride);
  for (long i = 0; i < g->rows; i++) {
    out[i] = few_partial_of(plan, task, i);
    __builtin_memset(out[i], 0, few_partial_size(g) * sizeof(float));
    out[i][few_vectors(g->features)] = -HLOC_INF_F32;
  }
  const long state = few_vectors(g->features);
  for (long j = j0; j < j1; j += by->block) {
    const long n = hloc_smaller(by->block, j1 - j);
    long k_stride = by->k_stride, v_stride = by->v_stride;
    if (g->live && !g->live(g->score_args, batch, 0, j, g->rows, n)) {
      for (long e = 0; e < g->rows * HLOC_KEY_ROOM; e++) scores[e] = g->masked;
    } else {
      const float* k = hloc_attention_block(&g->k, by->k_in_place, k_base, j, n, g->depth, k_room, &k_stride);
      few_dots(g->rows, q, by->k_stride, k, k_stride, g->depth, n, scores);
      if (g->score) g->score(g->score_args, batch, 0, j, g->rows, n, scores, HLOC_KEY_ROOM, 1);
    }
    const float* v = hloc_attention_block(&g->v, by->v_in_place, v_base, j, n, g->features, v_room, &v_stride);
    for (long i = 0; i < g->rows; i++) scale[i] = few_soften(scores + i * HLOC_KEY_ROOM, n, out[i] + state);
    few_weigh(g->rows, scores, v, v_stride, g->features, n, scale, out);
  }
}

static void few_run_parts(void* const* args, long begin, long end) {
  hloc_attention_plan* plan = (hloc_attention_plan*)args;
  float* memory = hloc_own_scratch(plan->g.choices.own, &plan->failed);
  for (long t = begin; memory && t < end; t++) few_run_part(plan, t, memory);
}

/* into[f] = from[f] * factor, or into[f] += it */
static void few_scale(float* into, const float* from, long features, float factor, int adds) {
  for (long f = 0; f < features; f += HLOC_LANES32) {
    const hloc_vf32 before = adds ? hloc_load_f32(into + f) : (hloc_vf32){0};
    hloc_store_f32(into + f, before + hloc_load_f32(from + f) * factor);
  }
}

/* Combines the parts of each row of a batch, scaled to the largest score of all. */
static void few_finish(void* const* args, long begin, long end) {
  const hloc_attention_plan* plan = (const hloc_attention_plan*)args;
  const hloc_attention_args* g = &plan->g;
  const long state = few_vectors(g->features);
  for (long t = begin; t < end; t++) {
    const long batch = t / g->rows, row = t % g->rows;
    float *first = few_partial_of(plan, batch * plan->splits, row), top = first[state], total = 0;
    for (long s = 1; s < plan->splits; s++) {
      const float other = few_partial_of(plan, batch * plan->splits + s, row)[state];
      top = other > top ? other : top;
    }
    const float shift = hloc_attention_shift(hloc_splat_f32(top))[0];
    for (long s = 0; s < plan->splits && plan->splits > 1; s++) {
      const float* part = few_partial_of(plan, batch * plan->splits + s, row);
      const float scale = few_exp(part[state] - shift);
      total += part[state + 1] * scale;
      few_scale(first, part, g->features, scale, s > 0);
    }
    few_scale(first, first, g->features, 1.0f / (plan->splits > 1 ? total : first[state + 1]), 0);
    hloc_attention_store(&g->out, hloc_attention_base(g, &g->out, batch) + row * g->out.row, g->features, first);
  }
}

int hloc_attention_few(const hloc_attention_args* g) {
  hloc_attention_plan whole = hloc_attention_plan_of(g), *const plan = &whole;
  const hloc_attention_choices* by = &g->choices;
  const long of_split = by->block * by->blocks_of_split;
  plan->splits = (g->columns + of_split - 1) / of_split;
  plan->partial = hloc_scratch(HLOC_FIRST, by->first);
  if (!plan->partial) return 1;
  hloc_parallel(few_run_parts, (void* const*)plan, plan->batches * plan->splits, by->grain);
  hloc_parallel(few_finish, (void* const*)plan, plan->batches * g->rows, 65536 / (g->features * plan->splits) + 1);
  return __atomic_load_n(&plan->failed, __ATOMIC_RELAXED);
}
