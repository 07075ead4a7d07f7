/* attention.c: see attention.h. A task computes up to four panels of queries of one batch.
 *
 * A panel is two vectors of queries, one per lane. Scores of a block of keys are computed as keys x queries: a register
 * tile multiplies elements of keys, which are read where they lie, with the panel. So the softmax goes along vectors,
 * and its weights are the panel by which elements of values are multiplied, into features x queries. A task's panels
 * meet a block of keys and values while it is in cache. attention_thin.c does products of few queries.
 */
#include "attention_internal.h"

enum { HLOC_ATTENTION_MOST_PANELS = 4 };

/* sums[i][q] (+)= sum over p < k of a[i * a_row + p * a_k] b[p][q], for `rows` i and the queries of a panel. */
HLOC_INLINE void attend_multiply(const int rows, long k, const float* restrict a, long a_row, long a_k,
                                 const float* restrict b, float* restrict sums, int accumulate) {
  hloc_vf32 left[HLOC_ATTENTION_TILE], right[HLOC_ATTENTION_TILE];
  HLOC_UNROLL for (int i = 0; i < rows; i++) {
    left[i] = accumulate ? hloc_load_f32(sums + i * HLOC_PANEL) : (hloc_vf32){0};
    right[i] = accumulate ? hloc_load_f32(sums + i * HLOC_PANEL + HLOC_LANES32) : (hloc_vf32){0};
  }
  for (long p = 0; p < k; p++, a += a_k, b += HLOC_PANEL) {
    const hloc_vf32 b0 = hloc_load_f32(b), b1 = hloc_load_f32(b + HLOC_LANES32);
    HLOC_UNROLL for (int i = 0; i < rows; i++) {
      const hloc_vf32 ai = hloc_splat_f32(a[i * a_row]);
      left[i] += ai * b0;
      right[i] += ai * b1;
    }
  }
  HLOC_UNROLL for (int i = 0; i < rows; i++) {
    hloc_store_f32(sums + i * HLOC_PANEL, left[i]);
    hloc_store_f32(sums + i * HLOC_PANEL + HLOC_LANES32, right[i]);
  }
}

/* along: rows of a are lines along k (keys); across: they lie side by side (values) */
typedef void (*attend_kernel)(long k, const float* a, long stride, const float* b, float* sums, int accumulate);
#define HLOC_DEFINE_KERNELS(ROWS)                                                                                     \
  static __attribute__((noinline)) void attend_along_##ROWS(long k, const float* a, long stride, const float* b,      \
                                                            float* sums, int accumulate) {                            \
    (void)accumulate;                                                                                                 \
    attend_multiply(ROWS, k, a, stride, 1, b, sums, 0);                                                               \
  }                                                                                                                   \
  static __attribute__((noinline)) void attend_across_##ROWS(long k, const float* a, long stride, const float* b,     \
                                                             float* sums, int accumulate) {                           \
    attend_multiply(ROWS, k, a, 1, stride, b, sums, accumulate);                                                      \
  }
#define HLOC_SIX(X, a, b, c, d, e, f) X(a) X(b) X(c) X(d) X(e) X(f)
#if HLOC_VECTOR_BYTES == 64
#define HLOC_ALL_ROWS(X) HLOC_SIX(X, 1, 2, 3, 4, 5, 6) HLOC_SIX(X, 7, 8, 9, 10, 11, 12) X(13) X(14)
#elif defined(__aarch64__)
#define HLOC_ALL_ROWS(X) HLOC_SIX(X, 1, 2, 3, 4, 5, 6) HLOC_SIX(X, 7, 8, 9, 10, 11, 12)
#else
#define HLOC_ALL_ROWS(X) HLOC_SIX(X, 1, 2, 3, 4, 5, 6)
#endif
#define HLOC_ALONG(ROWS) attend_along_##ROWS,
#define HLOC_ACROSS(ROWS) attend_across_##ROWS,
HLOC_ALL_ROWS(HLOC_DEFINE_KERNELS)
static const attend_kernel attend_along[] = {HLOC_ALL_ROWS(HLOC_ALONG)};
static const attend_kernel attend_across[] = {HLOC_ALL_ROWS(HLOC_ACROSS)};
#undef HLOC_DEFINE_KERNELS
#undef HLOC_SIX
#undef HLOC_ALL_ROWS
#undef HLOC_ALONG
#undef HLOC_ACROSS

/* The same for any number of rows, in tiles of about equal size; step: from one row to the next. */
static void attend_product(const attend_kernel* kernels, long rows, long k, const float* a, long step, long stride,
                           const float* b, float* sums, int accumulate) {
  for (long tiles = (rows + HLOC_ATTENTION_TILE - 1) / HLOC_ATTENTION_TILE, row = 0; row < rows; tiles--) {
    const long count = (rows - row + tiles - 1) / tiles;
    kernels[count - 1](k, a + row * step, stride, b, sums + row * HLOC_PANEL, accumulate);
    row += count;
  }
}

/* Scores -> weights relative to the largest score so far, both of n keys; state: largest, sum, and what to multiply
 * earlier sums by. Whether that is anything but 1 is told. */
static int attend_soften(float* tile, long n, float* state) {
  int grows = 0;
  hloc_vf32 top[2], shift[2], sum[2];
  for (int h = 0; h < 2; h++) top[h] = hloc_load_f32(state + h * HLOC_LANES32);
  for (long j = 0; j < n; j++)
    HLOC_UNROLL for (int h = 0; h < 2; h++)
      top[h] = hloc_attention_larger(top[h], hloc_load_f32(tile + j * HLOC_PANEL + h * HLOC_LANES32));
  for (int h = 0; h < 2; h++) {
    const hloc_vf32 before = hloc_load_f32(state + h * HLOC_LANES32);
    shift[h] = hloc_attention_shift(top[h]);
    const hloc_vf32 scale = hloc_attention_exp(before - shift[h]);
    sum[h] = hloc_load_f32(state + HLOC_PANEL + h * HLOC_LANES32) * scale;
    hloc_store_f32(state + h * HLOC_LANES32, top[h]);
    hloc_store_f32(state + 2 * HLOC_PANEL + h * HLOC_LANES32, scale);
    for (int q = 0; q < HLOC_LANES32; q++) grows |= state[2 * HLOC_PANEL + h * HLOC_LANES32 + q] != 1.0f;
  }
  for (long j = 0; j < n; j++)
    HLOC_UNROLL for (int h = 0; h < 2; h++) {
      float* at = tile + j * HLOC_PANEL + h * HLOC_LANES32;
      const hloc_vf32 weight = hloc_attention_exp(hloc_load_f32(at) - shift[h]);
      hloc_store_f32(at, weight);
      sum[h] += weight;
    }
  for (int h = 0; h < 2; h++) hloc_store_f32(state + HLOC_PANEL + h * HLOC_LANES32, sum[h]);
  return grows;
}

/* rows x columns floats turned: target[c * target_stride + r]; square blocks go through registers. */
static void attend_turn(const float* source, long stride, long rows, long columns, float* target, long target_stride) {
  float block[HLOC_LANES32 * HLOC_LANES32], turned[HLOC_LANES32 * HLOC_LANES32];
  for (long r = 0; r < rows; r += HLOC_LANES32)
    for (long c = 0; c < columns; c += HLOC_LANES32) {
      const long count = hloc_smaller(HLOC_LANES32, rows - r), width = hloc_smaller(HLOC_LANES32, columns - c);
      const float* from = source + r * stride + c;
      float* to = target + c * target_stride + r;
      if (count == HLOC_LANES32 && width == HLOC_LANES32) {
        hloc_transpose_32(from, stride, to, target_stride);
        continue;
      }
      for (long i = 0; i < count; i++)
        __builtin_memcpy(block + i * HLOC_LANES32, from + i * stride, width * sizeof(float));
      hloc_transpose_32(block, HLOC_LANES32, turned, HLOC_LANES32);
      for (long i = 0; i < width; i++)
        __builtin_memcpy(to + i * target_stride, turned + i * HLOC_LANES32, count * sizeof(float));
    }
}

typedef struct { float *panels, *tile, *turned, *k, *v, *room; } attend_scratch;
typedef struct { float *q, *out, *state; } attend_panel;  /* [depth][query], [feature][query], see attend_soften */
typedef struct { long batch, row, column, n; } attend_place; /* of a panel's first query and n keys */

static long attend_aligned(long floats) { return (floats + 15) / 16 * 16; }
static long attend_panel_size(const hloc_attention_args* g) { return (g->depth + g->features + 3) * HLOC_PANEL; }
static attend_panel attend_panel_of(const hloc_attention_plan* plan, const attend_scratch* s, long number) {
  float* memory = s->panels + number * attend_panel_size(&plan->g);
  float* out = memory + plan->g.depth * HLOC_PANEL;
  return (attend_panel){memory, out, out + plan->g.features * HLOC_PANEL};
}

static int attend_take_scratch(const hloc_attention_plan* plan, attend_scratch* s) {
  const hloc_attention_args* g = &plan->g;
  const long panels = plan->panels * attend_panel_size(g), tile = HLOC_KEYS * HLOC_PANEL;
  const long turned = g->score_by_columns ? HLOC_KEY_ROOM * HLOC_PANEL : 0;
  const long k = plan->k_in_place ? 0 : attend_aligned(plan->block * plan->k_stride);
  const long v = plan->v_in_place ? 0 : attend_aligned(plan->block * plan->v_stride);
  const long room = attend_aligned(g->depth > g->features ? g->depth : g->features) * HLOC_PANEL;
  float* memory = hloc_scratch(0, (panels + tile + turned + k + v + room) * sizeof(float));
  if (!memory) return 0;
  *s = (attend_scratch){memory, memory + panels, memory + panels + tile, memory + panels + tile + turned};
  s->v = s->k + k, s->room = s->v + v;
  return 1;
}

static void attend_start(const hloc_attention_plan* plan, const attend_scratch* s, long batch, long row,
                         attend_panel panel) {
  const hloc_attention_args* g = &plan->g;
  const long rows = hloc_smaller(HLOC_PANEL, g->rows - row);
  const long at = hloc_attention_base(g, &g->q, batch) + row * g->q.row;
  const float* from = (const float*)g->q.at + at;
  long stride = g->q.row;
  if (g->q.type != HLOC_ATTENTION_F32 || g->q.column != 1) {
    stride = attend_aligned(g->depth);
    hloc_attention_load(&g->q, at, rows, g->depth, s->room, stride);
    from = s->room;
  }
  if (rows < HLOC_PANEL) __builtin_memset(panel.q, 0, g->depth * HLOC_PANEL * sizeof(float));
  attend_turn(from, stride, rows, g->depth, panel.q, HLOC_PANEL);
  __builtin_memset(panel.out, 0, g->features * HLOC_PANEL * sizeof(float));
  for (int i = 0; i < HLOC_PANEL; i++) panel.state[i] = -HLOC_INF_F32, panel.state[HLOC_PANEL + i] = 0;
}

static void attend_finish(const hloc_attention_plan* plan, const attend_scratch* s, long batch, long row,
                          attend_panel panel) {
  const hloc_attention_args* g = &plan->g;
  const long rows = hloc_smaller(HLOC_PANEL, g->rows - row), stride = attend_aligned(g->features);
  const long at = hloc_attention_base(g, &g->out, batch) + row * g->out.row;
  const float* total = panel.state + HLOC_PANEL;
  for (long f = 0; f < g->features; f++) {
    _Pragma("omp simd") for (int q = 0; q < HLOC_PANEL; q++) panel.out[f * HLOC_PANEL + q] /= total[q];
  }
  attend_turn(panel.out, HLOC_PANEL, g->features, rows, s->room, stride);
  for (long i = 0; i < rows; i++)
    hloc_attention_store(&g->out, at + i * g->out.row, g->features, s->room + i * stride);
}

static void attend_score(const hloc_attention_plan* plan, const attend_scratch* s, const attend_place* at) {
  const hloc_attention_args* g = &plan->g;
  const long rows = hloc_smaller(HLOC_PANEL, g->rows - at->row);
  if (!g->score) return;
  if (!g->score_by_columns) {
    g->score(g->score_args, at->batch, at->row, at->column, rows, at->n, s->tile, 1, HLOC_PANEL);
    return;
  }
  attend_turn(s->tile, HLOC_PANEL, at->n, HLOC_PANEL, s->turned, HLOC_KEY_ROOM);
  g->score(g->score_args, at->batch, at->row, at->column, rows, at->n, s->turned, HLOC_KEY_ROOM, 1);
  attend_turn(s->turned, HLOC_KEY_ROOM, HLOC_PANEL, at->n, s->tile, HLOC_PANEL);
}

/* One panel against a block of keys, of which `dead` says that the mask lets nothing through. */
static void attend_meet(const hloc_attention_plan* plan, const attend_scratch* s, const attend_place* at, int dead,
                        const float* k, long k_stride, const float* v, long v_stride, const attend_panel* panel) {
  const hloc_attention_args* g = &plan->g;
  if (dead) {
    for (long e = 0; e < at->n * HLOC_PANEL; e++) s->tile[e] = g->masked;
  } else {
    attend_product(attend_along, at->n, g->depth, k, k_stride, k_stride, panel->q, s->tile, 0);
    attend_score(plan, s, at);
  }
  if (attend_soften(s->tile, at->n, panel->state)) {
    const float* scale = panel->state + 2 * HLOC_PANEL;
    for (long f = 0; f < g->features; f++) {
      _Pragma("omp simd") for (int i = 0; i < HLOC_PANEL; i++) panel->out[f * HLOC_PANEL + i] *= scale[i];
    }
  }
  attend_product(attend_across, g->features, at->n, v, 1, v_stride, s->tile, panel->out, 1);
}

/* Whether masked scores have no weight in any row of a panel, so that only values that are not finite would matter. */
static int attend_weightless(const hloc_attention_plan* plan, const float* state) {
  const float masked = plan->g.masked;
  int all = 1;
  for (int q = 0; q < HLOC_PANEL; q++) {
    const float shift = state[q] == -HLOC_INF_F32 ? 0.0f : state[q];
    all &= (masked <= state[q]) & (masked - shift < HLOC_ATTENTION_LEAST);
  }
  return all;
}
static int attend_finite(const float* v, long stride, long n, long features) {
  float sum = 0;
  for (long j = 0; j < n; j++) {
    _Pragma("omp simd reduction(+:sum)") for (long f = 0; f < features; f++) sum += v[j * stride + f] * 0.0f;
  }
  return sum == 0.0f;
}

/* All panels of a task against one block: those that the mask lets see something of it, or (`second`) the others. */
static void attend_block(const hloc_attention_plan* plan, const attend_scratch* s, attend_place at, long count,
                         int second) {
  const hloc_attention_args* g = &plan->g;
  int wanted[HLOC_ATTENTION_MOST_PANELS], any = 0, weightless = 1;
  for (long p = 0; p < count; p++) {
    const long row = at.row + p * HLOC_PANEL, rows = hloc_smaller(HLOC_PANEL, g->rows - row);
    const int live = !g->live || g->live(g->score_args, at.batch, row, at.column, rows, at.n);
    wanted[p] = second ? !live : live;
    if (wanted[p]) any = 1, weightless &= second && attend_weightless(plan, attend_panel_of(plan, s, p).state);
  }
  if (!any) return;
  long k_stride = plan->k_stride, v_stride = plan->v_stride;
  const long k_base = hloc_attention_base(g, &g->k, at.batch), v_base = hloc_attention_base(g, &g->v, at.batch);
  const float* v = hloc_attention_block(&g->v, plan->v_in_place, v_base, at.column, at.n, g->features, s->v, &v_stride);
  if (weightless && attend_finite(v, v_stride, at.n, g->features)) return;
  const float* k = s->k;
  if (!second) k = hloc_attention_block(&g->k, plan->k_in_place, k_base, at.column, at.n, g->depth, s->k, &k_stride);
  for (long p = 0; p < count; p++, at.row += HLOC_PANEL) {
    const attend_panel panel = attend_panel_of(plan, s, p);
    if (wanted[p]) attend_meet(plan, s, &at, second, k, k_stride, v, v_stride, &panel);
  }
}

static void attend_run_panels(const hloc_attention_plan* plan, const attend_scratch* s, long batch, long first,
                              long count) {
  const hloc_attention_args* g = &plan->g;
  for (long p = 0; p < count; p++) attend_start(plan, s, batch, (first + p) * HLOC_PANEL, attend_panel_of(plan, s, p));
  for (int second = 0; second <= (g->live != NULL); second++)
    for (long j = 0; j < g->columns; j += plan->block) {
      const attend_place at = {batch, first * HLOC_PANEL, j, hloc_smaller(plan->block, g->columns - j)};
      attend_block(plan, s, at, count, second);
    }
  for (long p = 0; p < count; p++) attend_finish(plan, s, batch, (first + p) * HLOC_PANEL, attend_panel_of(plan, s, p));
}

static void attend_run_tasks(void* const* args, long begin, long end) {
  hloc_attention_plan* plan = (hloc_attention_plan*)args;
  const long panels = (plan->g.rows + HLOC_PANEL - 1) / HLOC_PANEL;
  attend_scratch s;
  if (!attend_take_scratch(plan, &s)) {
    __atomic_store_n(&plan->failed, 1, __ATOMIC_RELAXED);
    return;
  }
  for (long t = begin; t < end; t++) {
    const long first = t % plan->tasks_of_batch * plan->panels;
    attend_run_panels(plan, &s, t / plan->tasks_of_batch, first, hloc_smaller(plan->panels, panels - first));
  }
}

/* Whether keys or values are best read where they lie: rows of f32 that do not all fall into the same cache sets. */
static int attend_in_place(const hloc_attention_array* x) {
  return x->type == HLOC_ATTENTION_F32 && x->column == 1 && x->row % 512 != 0;
}
static long attend_dense_stride(long columns) {
  return attend_aligned(columns) + (attend_aligned(columns) % 128 == 0) * 16;
}

int hloc_attention(const hloc_attention_args* g) {
  hloc_attention_plan plan = {.g = *g, .batches = 1};
  for (long d = 0; d < g->dims; d++) plan.batches *= g->batch[d];
  plan.blocks = (g->columns + HLOC_KEYS - 1) / HLOC_KEYS;
  plan.block = (g->columns + plan.blocks - 1) / plan.blocks;
  plan.k_in_place = attend_in_place(&g->k), plan.v_in_place = attend_in_place(&g->v);
  plan.k_stride = attend_dense_stride(g->depth), plan.v_stride = attend_dense_stride(g->features);
  if (g->rows <= HLOC_FEW) return hloc_attention_thin(&plan);
  const long panels = (g->rows + HLOC_PANEL - 1) / HLOC_PANEL, wanted = 4 * hloc_pool_threads();
  plan.panels = hloc_smaller(HLOC_ATTENTION_MOST_PANELS, panels);
  while (plan.panels > 1 && plan.batches * ((panels + plan.panels - 1) / plan.panels) < wanted) plan.panels--;
  plan.tasks_of_batch = (panels + plan.panels - 1) / plan.panels;
  const double work = (double)plan.panels * HLOC_PANEL * g->columns * (g->depth + g->features);
  hloc_parallel(attend_run_tasks, (void* const*)&plan, plan.batches * plan.tasks_of_batch, (long)(4e5 / work) + 1);
  return __atomic_load_n(&plan.failed, __ATOMIC_RELAXED);
}
