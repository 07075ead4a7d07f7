/* attention.c: see attention.h. A task computes up to four panels of queries of one batch.
 *
 * A panel is two vectors of queries, one query per lane; a last panel of few queries is one vector. Scores of a block
 * of keys are computed as keys x queries: a register tile multiplies elements of keys, read in place, by the panel. So
 * the softmax is vectorized over queries, and its weights are the panel by which elements of values are multiplied,
 * into features x queries. All panels of a task use a block of keys and values while it is in cache.
 * attention_kernels.h has the register tiles.
 */
#include "attention_internal.h"
#include "attention_kernels.h"

#define HLOC_ATTENTION_MOST_PANELS 4 /* of a task */

static inline long attend_aligned(long floats) { return (floats + 15) / 16 * 16; }

typedef struct { float *panels, *tile, *transposed, *k, *v, *room; } attend_scratch;
typedef struct { int lanes; float *q, *out, *state; } attend_panel; /* [depth][lane], [feature][lane], soften's */
typedef struct { long batch, row, column, n; } attend_place; /* of a panel's first query and n keys */

#if defined(HLOC_PAIRS)
typedef unsigned attend_pair __attribute__((may_alias));
/* Numbers, or pairs, in the depth of a query or key; keys per product with weights. */
static inline long attend_depth(const hloc_attention_args* g) { return g->depth / 2; }
enum { ATTEND_KEYS = 2 };
/* Whether the products can read rows in place; if so, their address and stride in units of the products. */
static inline int attend_is_dense(const hloc_attention_array* x) { return x->column == 1 && x->row % 2 == 0; }
static inline const float* attend_in_memory(const hloc_attention_array* x, long at, long* stride) {
  *stride = x->row / 2;
  return (const float*)((const hloc_bf16*)x->at + at);
}
static inline void attend_load(const hloc_attention_array* x, long at, long rows, long depth, float* out, long stride) {
  for (long i = 0; i < rows; i++, at += x->row)
    __builtin_memcpy(out + i * stride, (const hloc_bf16*)x->at + at, depth * sizeof(float));
}
/* Values of n keys, interleaved by two keys; an odd last key is interleaved with zeros. */
static inline void attend_load_values(const hloc_attention_array* x, long at, long n, long features, float* out,
                                      long stride) {
  const long step = x->column;
  for (long j = 0; j < n; j += 2, at += 2 * x->row, out += stride) {
    const unsigned short *first = (const unsigned short*)x->at + at, *second = first + x->row;
    attend_pair* to = (attend_pair*)out;
    if (j + 1 == n) for (long f = 0; f < features; f++) to[f] = first[f * step];
    else if (step == 1) for (long f = 0; f < features; f++) to[f] = first[f] | (unsigned)second[f] << 16;
    else for (long f = 0; f < features; f++) to[f] = first[f * step] | (unsigned)second[f * step] << 16;
  }
}
/* Rounds numbers; NaN stays NaN. Signs are not kept. */
HLOC_INLINE hloc_vu32 attend_rounded(hloc_vf32 weights) {
  const hloc_vu32 bits = (hloc_vu32)weights & 0x7fffffffu, nan = (hloc_vu32)(bits > 0x7f800000u);
  const hloc_vu32 x = (bits & ~nan) | (nan & 0x7fc00000u);
  return x + 0x7fffu + (x >> 16 & 1);
}
#else
static inline long attend_depth(const hloc_attention_args* g) { return g->depth; }
enum { ATTEND_KEYS = 1 };
static inline int attend_is_dense(const hloc_attention_array* x) {
  return x->type == HLOC_ATTENTION_F32 && x->column == 1;
}
static inline const float* attend_in_memory(const hloc_attention_array* x, long at, long* stride) {
  *stride = x->row;
  return (const float*)x->at + at;
}
#define attend_load hloc_attention_load
#define attend_load_values hloc_attention_load
#endif

/* Multiplies the results of each query by its own factor. */
static void attend_scale(attend_panel panel, long features, const float* factors) {
  const int vectors = panel.lanes / HLOC_LANES32;
  for (int h = 0; h < vectors; h++) {
    const hloc_vf32 factor = hloc_load_f32(factors + h * HLOC_LANES32);
    for (long f = 0; f < features; f++) {
      float* at = panel.out + (f * vectors + h) * HLOC_LANES32;
      hloc_store_f32(at, hloc_load_f32(at) * factor);
    }
  }
}

/* Transposes rows x columns floats: target[c * target_stride + r]; square blocks are transposed in registers. */
static void attend_transpose(const float* source, long stride, long rows, long columns, float* target,
                             long target_stride) {
  float block[HLOC_LANES32 * HLOC_LANES32], transposed[HLOC_LANES32 * HLOC_LANES32];
  for (long r = 0; r < rows; r += HLOC_LANES32)
    for (long c = 0; c < columns; c += HLOC_LANES32) {
      const long count = hloc_smaller(HLOC_LANES32, rows - r), width = hloc_smaller(HLOC_LANES32, columns - c);
      const float* from = source + r * stride + c;
      float* to = target + c * target_stride + r;
      if (count == HLOC_LANES32 && width == HLOC_LANES32) {
        hloc_transpose_tile_32(from, stride, to, target_stride);
        continue;
      }
      for (long i = 0; i < count; i++)
        __builtin_memcpy(block + i * HLOC_LANES32, from + i * stride, width * sizeof(float));
      hloc_transpose_tile_32(block, HLOC_LANES32, transposed, HLOC_LANES32);
      for (long i = 0; i < width; i++)
        __builtin_memcpy(to + i * target_stride, transposed + i * HLOC_LANES32, count * sizeof(float));
    }
}

static void attend_start(const hloc_attention_plan* plan, const attend_scratch* s, long batch, long row,
                              attend_panel panel) {
  const hloc_attention_args* g = &plan->g;
  const long rows = hloc_smaller(HLOC_PANEL, g->rows - row), depth = attend_depth(g);
  const long at = hloc_attention_base(g, &g->q, batch) + row * g->q.row;
  long stride = g->q.row;
  const float* from = attend_in_memory(&g->q, at, &stride);
  if (!attend_is_dense(&g->q) || rows < panel.lanes) {
    attend_load(&g->q, at, rows, depth, s->room, stride = attend_aligned(depth));
    __builtin_memset(s->room + rows * stride, 0, (panel.lanes - rows) * stride * sizeof(float));
    from = s->room;
  }
  attend_transpose(from, stride, panel.lanes, depth, panel.q, panel.lanes);
  __builtin_memset(panel.out, 0, g->features * panel.lanes * sizeof(float));
  for (int i = 0; i < HLOC_PANEL; i++) panel.state[i] = -HLOC_INF_F32, panel.state[HLOC_PANEL + i] = 0;
}

static void attend_finish(const hloc_attention_plan* plan, const attend_scratch* s, long batch, long row,
                               attend_panel panel) {
  const hloc_attention_args* g = &plan->g;
  const long rows = hloc_smaller(HLOC_PANEL, g->rows - row), stride = attend_aligned(g->features);
  const long at = hloc_attention_base(g, &g->out, batch) + row * g->out.row;
  float share[HLOC_PANEL];
  for (int q = 0; q < panel.lanes; q++) share[q] = 1.0f / panel.state[HLOC_PANEL + q];
  attend_scale(panel, g->features, share);
  attend_transpose(panel.out, panel.lanes, g->features, panel.lanes, s->room, stride);
  for (long i = 0; i < rows; i++)
    hloc_attention_store(&g->out, at + i * g->out.row, g->features, s->room + i * stride);
}

static void attend_score(const hloc_attention_plan* plan, const attend_scratch* s, const attend_place* at,
                              int lanes) {
  const hloc_attention_args* g = &plan->g;
  const long rows = hloc_smaller(HLOC_PANEL, g->rows - at->row);
  if (!g->score) return;
  if (!g->score_by_columns) {
    g->score(g->score_args, at->batch, at->row, at->column, rows, at->n, s->tile, lanes);
    return;
  }
  attend_transpose(s->tile, lanes, at->n, lanes, s->transposed, HLOC_KEY_ROOM);
  g->score(g->score_args, at->batch, at->row, at->column, rows, at->n, s->transposed, HLOC_KEY_ROOM);
  attend_transpose(s->transposed, HLOC_KEY_ROOM, lanes, at->n, s->tile, lanes);
}

#if defined(HLOC_PAIRS)
#define ATTENTION_KERNEL attention_pairs
#else
#define ATTENTION_KERNEL attention
#endif
HLOC_COMPILED_FOR(ATTENTION_KERNEL, HLOC_VECTOR_BYTES, HLOC_KEYS, HLOC_KEY_ROOM, HLOC_ATTENTION_MOST_PANELS)

static long attend_panel_size(const hloc_attention_args* g) { return (g->depth + g->features + 3) * HLOC_PANEL; }
/* A product of any number of rows, in tiles of about equal size; step: distance of rows. */
static void attend_product(const attend_kernel* kernel, int lanes, long rows, long k, const float* a,
                           long step, long stride, const float* b, float* sums) {
  for (long row = 0, count; row < rows; row += count) {
    const long rest = rows - row, tiles = (rest + HLOC_ATTENTION_TILE - 1) / HLOC_ATTENTION_TILE;
    count = rest == 1 ? 1 : hloc_smaller((rest / tiles + 1) / 2 * 2, rest / 2 * 2);
    if (count * tiles < rest && count + 2 <= hloc_smaller(HLOC_ATTENTION_TILE, rest)) count += 2;
    kernel[count / 2](k, a + row * step, stride, b, sums + row * lanes);
  }
}

/* Scores -> weights (or pairs) of n keys, relative to the largest score so far; state: largest score, sum, and the
 * factor of earlier sums. Returns whether a factor differs from 1. */
HLOC_INLINE int attend_soften_of(const int vectors, float* tile, long n, float* state) {
  int grows = 0;
  hloc_vf32 top[2], shift[2], sum[2];
  for (int h = 0; h < vectors; h++) top[h] = hloc_load_f32(state + h * HLOC_LANES32);
  for (long j = 0; j < n; j++)
    HLOC_UNROLL for (int h = 0; h < vectors; h++)
      top[h] = hloc_attention_larger(top[h], hloc_load_f32(tile + (j * vectors + h) * HLOC_LANES32));
  for (int h = 0; h < vectors; h++) {
    float* at = state + h * HLOC_LANES32;
    shift[h] = hloc_attention_shift(top[h]);
    const hloc_vf32 scale = hloc_attention_exp(hloc_load_f32(at) - shift[h]);
    sum[h] = hloc_load_f32(at + HLOC_PANEL) * scale;
    hloc_store_f32(at, top[h]);
    hloc_store_f32(at + 2 * HLOC_PANEL, scale);
    for (int q = 0; q < HLOC_LANES32; q++) grows |= at[2 * HLOC_PANEL + q] != 1.0f;
  }
  for (long j = 0; j < n; j += ATTEND_KEYS)
    HLOC_UNROLL for (int h = 0; h < vectors; h++) {
      float* at = tile + (j * vectors + h) * HLOC_LANES32;
      const hloc_vf32 weight = hloc_attention_exp(hloc_load_f32(at) - shift[h]);
      sum[h] += weight;
#if defined(HLOC_PAIRS)
      hloc_vf32 second = {0};
      if (j + 1 < n) second = hloc_attention_exp(hloc_load_f32(at + vectors * HLOC_LANES32) - shift[h]);
      sum[h] += second;
      const hloc_vu32 both = attend_rounded(weight) >> 16 | (attend_rounded(second) & 0xffff0000u);
      hloc_store_f32(tile + (j / 2 * vectors + h) * HLOC_LANES32, (hloc_vf32)both);
#else
      hloc_store_f32(at, weight);
#endif
    }
  for (int h = 0; h < vectors; h++) hloc_store_f32(state + HLOC_PANEL + h * HLOC_LANES32, sum[h]);
  return grows;
}
static int attend_soften(int lanes, float* tile, long n, float* state) {
  return lanes == HLOC_PANEL ? attend_soften_of(2, tile, n, state) : attend_soften_of(1, tile, n, state);
}

/* A task's panel, whose first query is `row`. */
static attend_panel attend_panel_of(const hloc_attention_plan* plan, const attend_scratch* s, long number, long row) {
  const hloc_attention_args* g = &plan->g;
  float* memory = s->panels + number * attend_panel_size(g);
  float* out = memory + g->depth * HLOC_PANEL;
  const int two = g->rows - row > HLOC_LANES32;
  return (attend_panel){two ? HLOC_PANEL : HLOC_LANES32, memory, out, out + g->features * HLOC_PANEL};
}

static int attend_take_scratch(hloc_attention_plan* plan, attend_scratch* s) {
  const hloc_attention_choices* by = &plan->g.choices;
  float* memory = hloc_own_scratch(by->own, &plan->failed);
  if (!memory) return 0;
  *s = (attend_scratch){.panels = memory, .tile = memory + by->at_tile, .transposed = memory + by->at_transposed,
                        .k = memory + by->at_k, .v = memory + by->at_v, .room = memory + by->at_room};
  return 1;
}

/* One panel with a block of keys; dead: the block is masked entirely. */
static void attend_meet(const hloc_attention_plan* plan, const attend_scratch* s, const attend_place* at, int dead,
                        const float* k, long k_stride, const float* v, long v_stride, const attend_panel* panel) {
  const hloc_attention_args* g = &plan->g;
  const int lanes = panel->lanes, two = lanes == HLOC_PANEL;
  if (dead) {
    for (long e = 0; e < at->n * lanes; e++) s->tile[e] = g->masked;
  } else {
    attend_product(two ? attend_along : attend_along_one, lanes, at->n, attend_depth(g), k, k_stride,
                   k_stride, panel->q, s->tile);
    attend_score(plan, s, at, lanes);
  }
  if (attend_soften(lanes, s->tile, at->n, panel->state))
    attend_scale(*panel, g->features, panel->state + 2 * HLOC_PANEL);
  attend_product(two ? attend_across : attend_across_one, lanes, g->features,
                 (at->n + ATTEND_KEYS - 1) / ATTEND_KEYS, v, 1, v_stride, s->tile, panel->out);
}

/* Whether masked scores have zero weight in all rows of a panel, so that only non-finite values would matter. */
static int attend_weightless(const hloc_attention_plan* plan, attend_panel panel) {
  const float masked = plan->g.masked;
  int all = 1;
  for (int q = 0; q < panel.lanes; q++) {
    const float largest = panel.state[q], shift = largest == -HLOC_INF_F32 ? 0.0f : largest;
    all &= (masked <= largest) & (masked - shift < HLOC_ATTENTION_LEAST);
  }
  return all;
}
static int attend_finite(const float* v, long stride, long n, long features) {
#if defined(HLOC_PAIRS)
  unsigned wrong = 0; /* exponents of infinities and NaN cause a carry */
  for (long j = 0; j < n; j += 2) {
    const attend_pair* at = (const attend_pair*)(v + j / 2 * stride);
    _Pragma("omp simd reduction(|:wrong)") for (long f = 0; f < features; f++)
      wrong |= ((at[f] & 0x7f80u) + 0x80u) | ((at[f] >> 16 & 0x7f80u) + 0x80u);
  }
  return !(wrong & 0x8000u);
#else
  float sum = 0;
  for (long j = 0; j < n; j++) {
    _Pragma("omp simd reduction(+:sum)") for (long f = 0; f < features; f++) sum += v[j * stride + f] * 0.0f;
  }
  return sum == 0.0f;
#endif
}

/* All panels of a task with one block: those with unmasked scores in it, or (`second`) the others. */
static void attend_block(const hloc_attention_plan* plan, const attend_scratch* s, attend_place at, long count,
                         int second) {
  const hloc_attention_args* g = &plan->g;
  int wanted[HLOC_ATTENTION_MOST_PANELS], any = 0, weightless = 1;
  for (long p = 0; p < count; p++) {
    const long row = at.row + p * HLOC_PANEL, rows = hloc_smaller(HLOC_PANEL, g->rows - row);
    const int live = !g->live || g->live(g->score_args, at.batch, row, at.column, rows, at.n);
    wanted[p] = second ? !live : live;
    if (wanted[p]) any = 1, weightless &= second && attend_weightless(plan, attend_panel_of(plan, s, p, row));
  }
  if (!any) return;
  long k_stride = plan->g.choices.k_stride, v_stride = plan->g.choices.v_stride;
  const long k_base = hloc_attention_base(g, &g->k, at.batch), v_base = hloc_attention_base(g, &g->v, at.batch);
  const float *v = s->v, *k = s->k;
  const long v_at = v_base + at.column * g->v.row, k_at = k_base + at.column * g->k.row;
  if (plan->g.choices.v_in_place) v = attend_in_memory(&g->v, v_at, &v_stride);
  else attend_load_values(&g->v, v_at, at.n, g->features, s->v, v_stride);
  if (weightless && attend_finite(v, v_stride, at.n, g->features)) return;
  if (!second && plan->g.choices.k_in_place) k = attend_in_memory(&g->k, k_at, &k_stride);
  else if (!second) attend_load(&g->k, k_at, at.n, attend_depth(g), s->k, k_stride);
  for (long p = 0; p < count; p++, at.row += HLOC_PANEL) {
    const attend_panel panel = attend_panel_of(plan, s, p, at.row);
    if (wanted[p]) attend_meet(plan, s, &at, second, k, k_stride, v, v_stride, &panel);
  }
}

static void attend_run_panels(const hloc_attention_plan* plan, const attend_scratch* s, long batch, long first,
                              long count) {
  const hloc_attention_args* g = &plan->g;
  for (long p = 0, row = first * HLOC_PANEL; p < count; p++, row += HLOC_PANEL)
    attend_start(plan, s, batch, row, attend_panel_of(plan, s, p, row));
  for (int second = 0; second <= (g->live != NULL); second++)
    for (long j = 0; j < g->columns; j += plan->g.choices.block) {
      const attend_place at = {batch, first * HLOC_PANEL, j, hloc_smaller(plan->g.choices.block, g->columns - j)};
      attend_block(plan, s, at, count, second);
    }
  for (long p = 0, row = first * HLOC_PANEL; p < count; p++, row += HLOC_PANEL)
    attend_finish(plan, s, batch, row, attend_panel_of(plan, s, p, row));
}

static void attend_run_tasks(void* const* args, long begin, long end) {
  hloc_attention_plan* plan = (hloc_attention_plan*)args;
  const long panels = (plan->g.rows + HLOC_PANEL - 1) / HLOC_PANEL;
  attend_scratch s;
  if (!attend_take_scratch(plan, &s)) return;
  for (long t = begin; t < end; t++) {
    const long first = t % plan->tasks_of_batch * plan->g.choices.panels;
    attend_run_panels(plan, &s, t / plan->tasks_of_batch, first, hloc_smaller(plan->g.choices.panels, panels - first));
  }
}

int hloc_attention(const hloc_attention_args* g) {
  hloc_attention_plan plan = hloc_attention_plan_of(g);
  const long panels = (g->rows + HLOC_PANEL - 1) / HLOC_PANEL;
  plan.tasks_of_batch = (panels + g->choices.panels - 1) / g->choices.panels;
  hloc_parallel(attend_run_tasks, (void* const*)&plan, plan.batches * plan.tasks_of_batch, g->choices.grain);
  return __atomic_load_n(&plan.failed, __ATOMIC_RELAXED);
}
