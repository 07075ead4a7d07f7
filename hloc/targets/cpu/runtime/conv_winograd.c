/* conv_winograd.c: windows of 3x3 by Winograd's algorithm, with 16 multiplications for every 2x2 positions instead of
 * 36 (A. Lavin, S. Gray, Fast Algorithms for Convolutional Neural Networks, 2015, arXiv:1509.09308, section 4.1).
 *
 * In: a plan of one group, strides and dilations of one, features of x and of y multiples of 16 (goes_by_blocks in
 * hloc/targets/cpu/plans/winograd.py). A block is 2x2 positions of y and the 4x4 positions of x that their windows
 * read. Along one dimension, d are the positions of x, g the taps of the window, y the positions of y:
 *
 *     image(d)  = d0 - d2, d1 + d2, d2 - d1, d1 - d3
 *     filter(g) = g0, (g0 + g1 + g2) / 2, (g0 - g1 + g2) / 2, g2
 *     m         = sums over x's features of image * filter: 16 matmuls, of all blocks by y's features
 *     y         = m0 + m1 + m2, m1 - m2 - m3
 *
 * Sums are shorter than a window's, and errors are a half to a quarter of those of direct sums. A position of x affects
 * only the positions whose windows read it: NaN propagates as in direct sums. Infinities and overflow give non-finite
 * sums; these are recomputed directly.
 *
 *   many blocks   filters are transformed once; a task has some blocks, transforms them once, and multiplies them by
 *                 all panels of y's features (run_image_blocks)
 *   few           a task has some panels, and transforms all blocks and its filters in chunks of x's features: reading
 *                 transforms that other threads have written would be slower (run_filter_panels)
 */
#include "conv_operands.h"

#define DEPTH 64
#define MOST_FEATURES 16384
enum { TAPS = 9, PRODUCTS = 16 };
#define APART 16 /* floats between matrices, so that their elements are not in the same sets of a cache */
HLOC_COMPILED_FOR(conv_winograd, DEPTH, APART, MOST_FEATURES, 0)
enum { FILTER_STEP = DEPTH * COLUMNS + APART, FILTER_FLOATS = PRODUCTS * FILTER_STEP };

static const float no_places[MOST_FEATURES] __attribute__((aligned(64)));

typedef struct {
  const hloc_conv_plan* plan;
  long across, down, blocks;   /* of a row, of an image, of all images */
  long chunks, panels;         /* of x's features, of y's */
  long blocks_at_once, panels_at_once; /* of a task */
  long tap[TAPS];              /* offsets in w */
  float* filters;              /* [panel][chunk], each as transform_filters makes it; few blocks: NULL, or packed */
} winograd_work;

/* From one product's matrix to the next. */
static long image_step(long blocks) { return blocks * DEPTH + APART; }
static long sum_step(long blocks) { return (blocks + ROWS - 1) / ROWS * ROWS * COLUMNS + APART; }

static long chunk_depth(const winograd_work* w, long chunk) {
  return hloc_min(DEPTH, w->plan->c.x_features - chunk * DEPTH);
}
static long panel_columns(const winograd_work* w, long panel) {
  return hloc_min(COLUMNS, w->plan->c.y_features - panel * COLUMNS);
}

/* ---- images */
#define EACH_4(X) X(0) X(1) X(2) X(3)
#define TRANSFORM_IMAGE(out, d0, d1, d2, d3)                                                                          \
  out##0 = d0 - d2, out##1 = d1 + d2, out##2 = d2 - d1, out##3 = d1 - d3;
#define IMAGE_COLUMN(j)                                                                                               \
  hloc_vf32 d##j##0, d##j##1, d##j##2, d##j##3;                                                                       \
  {                                                                                                                   \
    const hloc_vf32 a0 = hloc_load_f32(places[j] + k), a1 = hloc_load_f32(places[4 + j] + k);                         \
    const hloc_vf32 a2 = hloc_load_f32(places[8 + j] + k), a3 = hloc_load_f32(places[12 + j] + k);                    \
    TRANSFORM_IMAGE(d##j, a0, a1, a2, a3)                                                                             \
  }
#define IMAGE_ROW(i)                                                                                                  \
  {                                                                                                                   \
    hloc_vf32 v0, v1, v2, v3;                                                                                         \
    float* row = to + 4 * i * step;                                                                                   \
    TRANSFORM_IMAGE(v, d0##i, d1##i, d2##i, d3##i)                                                                    \
    hloc_store_f32(row, v0), hloc_store_f32(row + step, v1);                                                          \
    hloc_store_f32(row + 2 * step, v2), hloc_store_f32(row + 3 * step, v3);                                           \
  }

/* The addresses of the 4x4 positions of a block in x; zeros in the padding. */
static void find_places(const winograd_work* w, long block, const float** places) {
  const hloc_conv_args* c = &w->plan->c;
  const long image = block / (w->across * w->down), inside = block % (w->across * w->down);
  const long y = inside / w->across * 2 - c->pad_low[1], x = inside % w->across * 2 - c->pad_low[2];
  const float* from = (const float*)c->x + image * c->x_n;
  for (long i = 0; i < 4; i++)
    for (long j = 0; j < 4; j++) {
      const int meets = ((unsigned long)(y + i) < (unsigned long)c->x_size[1]) &
                        ((unsigned long)(x + j) < (unsigned long)c->x_size[2]);
      places[i * 4 + j] = meets ? from + (y + i) * c->x_s[1] + (x + j) * c->x_s[2] : no_places;
    }
}

/* to[product][block][feature] of a chunk of x's features. */
static void transform_images(const winograd_work* w, long first, long count, long chunk, float* images) {
  const long begin = chunk * DEPTH, end = begin + chunk_depth(w, chunk), step = image_step(count);
  for (long n = 0; n < count; n++) {
    const float* places[16];
    float* to = images + n * DEPTH;
    find_places(w, first + n, places);
    for (long k = begin; k < end; k += HLOC_LANES32, to += HLOC_LANES32) { EACH_4(IMAGE_COLUMN) EACH_4(IMAGE_ROW) }
  }
}

/* ---- filters */
#define TRANSFORM_FILTER(out, g0, g1, g2)                                                                             \
  {                                                                                                                   \
    const hloc_vf32 ends = (g0 + g2) * 0.5f, middle = g1 * 0.5f;                                                      \
    out##0 = g0, out##1 = ends + middle, out##2 = ends - middle, out##3 = g2;                                         \
  }
#define FILTER_COLUMN(j)                                                                                              \
  hloc_vf32 g##j##0, g##j##1, g##j##2, g##j##3;                                                                       \
  {                                                                                                                   \
    const hloc_vf32 a0 = hloc_load_f32(from + tap[j]), a1 = hloc_load_f32(from + tap[3 + j]);                         \
    const hloc_vf32 a2 = hloc_load_f32(from + tap[6 + j]);                                                            \
    TRANSFORM_FILTER(g##j, a0, a1, a2)                                                                                \
  }
#define FILTER_ROW(i)                                                                                                 \
  {                                                                                                                   \
    hloc_vf32 v0, v1, v2, v3;                                                                                         \
    float* row = to + 4 * i * FILTER_STEP;                                                                            \
    TRANSFORM_FILTER(v, g0##i, g1##i, g2##i)                                                                          \
    hloc_store_f32(row, v0), hloc_store_f32(row + FILTER_STEP, v1);                                                   \
    hloc_store_f32(row + 2 * FILTER_STEP, v2), hloc_store_f32(row + 3 * FILTER_STEP, v3);                             \
  }

/* to[product * FILTER_STEP] of one feature of x and a vector of y's, whose taps are at from[tap]. */
static inline void transform_filter(const float* from, const long* tap, float* to) {
  FILTER_COLUMN(0) FILTER_COLUMN(1) FILTER_COLUMN(2) EACH_4(FILTER_ROW)
}
/* The same for a vector of x's features, which are contiguous: to[product * FILTER_STEP + feature of x * COLUMNS]. */
static void transform_transposed(const winograd_work* w, const float* from, float* to) {
  enum { TAP = HLOC_LANES32 * HLOC_LANES32 };
  static const long tap[TAPS] = {0, TAP, 2 * TAP, 3 * TAP, 4 * TAP, 5 * TAP, 6 * TAP, 7 * TAP, 8 * TAP};
  float transposed[TAPS * TAP] __attribute__((aligned(64)));
  for (long t = 0; t < TAPS; t++)
    hloc_transpose_tile_32(from + w->tap[t], w->plan->c.w_o, transposed + tap[t], HLOC_LANES32);
  for (long i = 0; i < HLOC_LANES32; i++) transform_filter(transposed + i * HLOC_LANES32, tap, to + i * COLUMNS);
}

static const float* filters_at(const winograd_work* w, long panel, long chunk) {
  const hloc_conv_args* c = &w->plan->c;
  return (const float*)c->w + chunk * DEPTH * c->w_i + panel * COLUMNS * c->w_o;
}
/* to[product][feature][column] of a panel and a chunk. */
static void transform_filters(const winograd_work* w, long panel, long chunk, float* to) {
  const hloc_conv_args* c = &w->plan->c;
  const long depth = chunk_depth(w, chunk), columns = panel_columns(w, panel);
  const float* from = filters_at(w, panel, chunk);
  if (columns < COLUMNS) __builtin_memset(to, 0, FILTER_FLOATS * sizeof(float));
  for (long k = 0; k < depth; k += c->w_o == 1 ? 1 : HLOC_LANES32)
    for (long j = 0; j < columns; j += HLOC_LANES32)
      if (c->w_o == 1) transform_filter(from + k * c->w_i + j, w->tap, to + k * COLUMNS + j);
      else transform_transposed(w, from + k + j * c->w_o, to + k * COLUMNS + j);
}

/* ---- products */
typedef struct { const float* from; long step; } filter_lines; /* to be prefetched, one for each feature of x */

/* The prefetches of the n-th tile of a chunk, of the filters that are transformed next: one line of each row of a
 * tap. */
static filter_lines filter_lines_ahead(const winograd_work* w, const float* next, long n) {
  enum { LINES = COLUMNS / 16, EACH = LINES ? LINES : 1 };
  if (!next || n >= TAPS * LINES || w->plan->c.w_o != 1) return (filter_lines){0};
  return (filter_lines){next + w->tap[n / EACH] + n % EACH * 16, w->plan->c.w_i};
}

/* sums[product][block][column] (+)= images * filters of a chunk; next: the filters used after these, or NULL. */
static void multiply(const winograd_work* w, long chunk, const float* images, long blocks, const float* filters,
                     float* sums, const float* next) {
  const long depth = chunk_depth(w, chunk), tap = 0;
  const int accumulate = chunk > 0;
  for (long p = 0, tile = 0; p < PRODUCTS; p++, filters += FILTER_STEP)
    for (long n = 0; n < blocks; n += ROWS) {
      const float *rows[ROWS], *from = images + p * image_step(blocks) + n * DEPTH;
      float* to = sums + p * sum_step(blocks) + n * COLUMNS;
      for (long i = 0; i < ROWS; i++) rows[i] = from + hloc_min(i, blocks - 1 - n) * DEPTH;
      if (blocks - n <= ROWS / 2) {
        hloc_conv_short_tile(rows, depth, filters, to, accumulate);
        continue;
      }
      filter_lines ahead = filter_lines_ahead(w, next, tile++);
      if (!ahead.from) ahead = (filter_lines){from + ROWS * DEPTH, 16};
      hloc_conv_tile(1, &tap, rows, 0, depth, filters, to, COLUMNS, accumulate, (const char*)ahead.from,
                     ahead.step * (long)sizeof(float));
    }
}

/* ---- sums */
#define TRANSFORM_SUMS(out, m0, m1, m2, m3) out##0 = m0 + (m1 + m2), out##1 = (m1 - m2) - m3;
#define SUM_COLUMN(j)                                                                                                 \
  hloc_vf32 m##j##0, m##j##1;                                                                                         \
  {                                                                                                                   \
    const float* from = sums + j * step + k;                                                                          \
    const hloc_vf32 a0 = hloc_load_f32(from), a1 = hloc_load_f32(from + 4 * step);                                    \
    const hloc_vf32 a2 = hloc_load_f32(from + 8 * step), a3 = hloc_load_f32(from + 12 * step);                        \
    TRANSFORM_SUMS(m##j, a0, a1, a2, a3)                                                                              \
  }
#define SUM_ROW(i)                                                                                                    \
  {                                                                                                                   \
    hloc_vf32 y0, y1;                                                                                                 \
    TRANSFORM_SUMS(y, m0##i, m1##i, m2##i, m3##i)                                                                     \
    hloc_store_f32(to + i * row + k, y0), hloc_store_f32(to + i * row + COLUMNS + k, y1);                             \
    odd += y0 * 0.0f, odd += y1 * 0.0f;                                                                               \
  }

/* The sums of a block: to[row of y * row + column of y * COLUMNS + feature]. Returns 0, NaN if they are not finite. */
static hloc_vf32 transform_sums(const float* sums, long step, float* to, long row) {
  hloc_vf32 odd = {0};
  for (long k = 0; k < COLUMNS; k += HLOC_LANES32) { EACH_4(SUM_COLUMN) SUM_ROW(0) SUM_ROW(1) }
  return odd;
}

/* The sums of a vector of y's features starting at the j-th; if x's are contiguous in w, the lanes of the j-th's
 * sum. */
static hloc_vf32 sum_vector(const winograd_work* w, const float* const* places, const float* weights, long j) {
  const hloc_conv_args* c = &w->plan->c;
  hloc_vf32 sum = {0};
  for (long t = 0; t < TAPS; t++) {
    const float* from = weights + w->tap[t] + j * c->w_o;
    if (c->w_o == 1)
      for (long k = 0; k < c->x_features; k++) sum += hloc_splat_f32(places[t][k]) * hloc_load_f32(from + k * c->w_i);
    else
      for (long k = 0; k < c->x_features; k += HLOC_LANES32)
        sum += hloc_load_f32(places[t] + k) * hloc_load_f32(from + k);
  }
  return sum;
}
/* Whether a window reads NaN: then all sums are NaN. */
static int meets_nan(const float* const* places, long features) {
  hloc_vs32 found = {0};
  for (long t = 0; t < TAPS; t++)
    for (long k = 0; k < features; k += HLOC_LANES32) {
      const hloc_vf32 v = hloc_load_f32(places[t] + k);
      found |= v != v;
    }
  return hloc_sum_s32(found) != 0;
}
/* The sums of one position, directly; NaN sums are already right. */
static void sum_directly(const winograd_work* w, long image, long o1, long o2, long panel, float* to) {
  const hloc_conv_args* c = &w->plan->c;
  const float *weights = filters_at(w, panel, 0), *places[TAPS];
  for (long t = 0; t < TAPS; t++) {
    const long y = o1 - c->pad_low[1] + t / 3, x = o2 - c->pad_low[2] + t % 3;
    const int meets = y >= 0 && y < c->x_size[1] && x >= 0 && x < c->x_size[2];
    places[t] = meets ? (const float*)c->x + image * c->x_n + y * c->x_s[1] + x * c->x_s[2] : no_places;
  }
  if (meets_nan(places, c->x_features)) return;
  for (long j = 0; j < panel_columns(w, panel); j += c->w_o == 1 ? HLOC_LANES32 : 1) {
    const hloc_vf32 sum = sum_vector(w, places, weights, j);
    if (c->w_o == 1) hloc_store_f32(to + j, sum);
    else to[j] = hloc_sum_f32(sum);
  }
}
static int is_finite(const float* sums) {
  hloc_vf32 odd = {0};
  for (long k = 0; k < COLUMNS; k += HLOC_LANES32) odd += hloc_load_f32(sums + k) * 0.0f;
  return hloc_sum_f32(odd) == 0.0f;
}

/* Stores the sums of neighbouring blocks of a row; made: memory for them as rows of y. */
static void finish_row(const winograd_work* w, long block, long count, long panel, const float* sums, long step,
                       float* made) {
  const hloc_conv_args* c = &w->plan->c;
  const long image = block / (w->across * w->down), inside = block % (w->across * w->down);
  const long o1 = inside / w->across * 2, o2 = inside % w->across * 2, row = 2 * count * COLUMNS;
  const long height = hloc_min(2, c->y_size[1] - o1), width = hloc_min(2 * count, c->y_size[2] - o2);
  hloc_vf32 odd = {0};
  for (long n = 0; n < count; n++) odd += transform_sums(sums + n * COLUMNS, step, made + n * 2 * COLUMNS, row);
  if (hloc_sum_f32(odd) != 0.0f)
    for (long i = 0; i < height; i++)
      for (long j = 0; j < width; j++) {
        float* to = made + i * row + j * COLUMNS;
        if (!is_finite(to)) sum_directly(w, image, o1 + i, o2 + j, panel, to);
      }
  for (long i = 0; i < height; i++)
    hloc_conv_finish(w->plan, (image * c->y_size[1] + o1 + i) * c->y_size[2] + o2, panel * COLUMNS, width,
                     panel_columns(w, panel), made + i * row, COLUMNS);
}

static void finish_blocks(const winograd_work* w, long first, long count, long panel, const float* sums, float* made) {
  for (long n = 0, together; n < count; n += together) {
    together = hloc_min(count - n, w->across - (first + n) % w->across);
    finish_row(w, first + n, together, panel, sums + n * COLUMNS, sum_step(count), made);
  }
}

/* ---- tasks */
static float* scratch_of_task(const winograd_work* w) {
  return hloc_own_scratch(w->plan->c.choices.own, w->plan->failed);
}

static void make_filters(void* const* args, long begin, long end) {
  const winograd_work* w = (const winograd_work*)args;
  for (long n = begin; n < end; n++)
    transform_filters(w, n / w->chunks, n % w->chunks, w->filters + n * FILTER_FLOATS);
}

static const float* filters_made(const winograd_work* w, long panel, long chunk) {
  return w->filters ? w->filters + (panel * w->chunks + chunk) * FILTER_FLOATS : NULL;
}

static void run_image_blocks(void* const* args, long begin, long end) {
  const winograd_work* w = (const winograd_work*)args;
  const long most = w->blocks_at_once, image_floats = PRODUCTS * image_step(most);
  const long sum_floats = PRODUCTS * sum_step(most);
  float* images = scratch_of_task(w);
  if (!images) return;
  float *sums = images + w->chunks * image_floats, *made = sums + sum_floats;
  for (long task = begin; task < end; task++) {
    const long first = task * most, count = hloc_min(most, w->blocks - first);
    for (long chunk = 0; chunk < w->chunks; chunk++)
      transform_images(w, first, count, chunk, images + chunk * image_floats);
    for (long panel = 0; panel < w->panels; panel++) {
      for (long chunk = 0; chunk < w->chunks; chunk++)
        multiply(w, chunk, images + chunk * image_floats, count, filters_made(w, panel, chunk), sums, NULL);
      finish_blocks(w, first, count, panel, sums, made);
    }
  }
}

static void run_filter_panels(void* const* args, long begin, long end) {
  const winograd_work* w = (const winograd_work*)args;
  const long blocks = w->blocks, image_floats = PRODUCTS * image_step(blocks), sum_floats = PRODUCTS * sum_step(blocks);
  float* filters = scratch_of_task(w);
  if (!filters) return;
  float *images = filters + FILTER_FLOATS, *sums = images + image_floats, *made = sums + w->panels_at_once * sum_floats;
  for (long first = begin, panels; first < end; first += panels) {
    panels = hloc_min(w->panels_at_once, end - first);
    for (long chunk = 0; chunk < w->chunks; chunk++) {
      transform_images(w, 0, blocks, chunk, images);
      for (long p = 0; p < panels; p++) {
        const long next_chunk = chunk + (p + 1 == panels), next_panel = first + (p + 1) % panels;
        const float* next = next_chunk < w->chunks ? filters_at(w, next_panel, next_chunk) : NULL;
        const float* made_before = filters_made(w, first + p, chunk);
        if (!made_before) transform_filters(w, first + p, chunk, filters);
        multiply(w, chunk, images, blocks, made_before ? made_before : filters, sums + p * sum_floats,
                 made_before ? NULL : next);
      }
    }
    for (long p = 0; p < panels; p++) finish_blocks(w, 0, blocks, first + p, sums + p * sum_floats, made);
  }
}

static int run_winograd(winograd_work* w) {
  const hloc_conv_args* c = &w->plan->c;
  if (w->filters && !c->w_packed) hloc_parallel(make_filters, (void* const*)w, w->panels * w->chunks, 1);
  if (c->pack_to) return 0;
  if (c->choices.is_few) {
    hloc_parallel(run_filter_panels, (void* const*)w, w->panels, w->panels_at_once);
    return 0;
  }
  hloc_parallel(run_image_blocks, (void* const*)w, (w->blocks + w->blocks_at_once - 1) / w->blocks_at_once, 1);
  return 0;
}

int hloc_conv_by_winograd(hloc_conv_plan* plan, hloc_conv_type type) {
  hloc_conv_args* c = &plan->c;
  const hloc_conv_choices by = c->choices;
  winograd_work w = {.plan = plan, .across = (c->y_size[2] + 1) / 2, .down = (c->y_size[1] + 1) / 2};
  w.blocks = c->batch * w.across * w.down;
  w.chunks = (c->x_features + DEPTH - 1) / DEPTH, w.panels = (c->y_features + COLUMNS - 1) / COLUMNS;
  w.blocks_at_once = by.blocks_at_once, w.panels_at_once = by.panels_at_once;
  hloc_conv_arrangement x = arrange_x(c, type), v = arrange_w(c, type);
  float* packed = c->pack_to ? c->pack_to : (float*)c->w_packed; /* filters, followed by w if it is copied */
  float* memory = hloc_scratch(HLOC_FIRST, by.first);
  if (!memory) return 1;
  x.target = memory, v.target = packed ? packed + w.panels * w.chunks * FILTER_FLOATS : memory + by.at_w;
  w.filters = packed ? packed : by.is_few ? NULL : memory + by.at_panels;
  if (by.move_x) hloc_conv_arrange(&x), use_x(c, &x);
  if (by.move_w && !c->w_packed) hloc_conv_arrange(&v);
  if (by.move_w) use_w(c, &v);
  for (long i = 0; i < 3; i++)
    for (long j = 0; j < 3; j++)
      w.tap[i * 3 + j] = (c->reversed[1] ? 2 - i : i) * c->w_s[1] + (c->reversed[2] ? 2 - j : j) * c->w_s[2];
  return run_winograd(&w);
}

HLOC_CONV_ENTRIES(winograd, hloc_conv_by_winograd)
