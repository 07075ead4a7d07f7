/* conv_outer.c: convolutions whose window is as large as an image, that is gradients with respect to the filter.
 *
 * In: a plan with x_n == 1 and w_o == 1, f32, no groups: for every output position (o0, o1, o2) a matrix
 * y[n, f] = sum over x's features and window positions of x[.., n] * w[.., f], a sum of outer products of contiguous
 * rows. A register tile of HLOC_CONV_ROWS n x two vectors of f sums a chunk of them that stays in cache.
 * Few n and a stride of one (the gradient of a first layer): x is padded so that its rows for all o2 are contiguous,
 * and (o2, n) together are the rows of one matrix (plan->c.choices.merged).
 */
#include "conv_operands.h"

enum { OUTER_ROWS = HLOC_CONV_ROWS, OUTER_COLUMNS = HLOC_CONV_COLUMNS };
#define OUTER_MOST_CHUNK 448
HLOC_COMPILED_FOR(conv_outer, OUTER_MOST_CHUNK, 0, 0, 0)

typedef struct {
  const hloc_conv_plan* plan;
  long rows, row_group, row_groups, column_group, column_groups, chunk;
  const float *x_end, *w_end; /* after the last elements */
} outer_work;

/* tile += sum over p of x[p][i] w[p][j]; rows and columns beyond the matrix are computed from adjacent memory: `x` and
 * `w` must have OUTER_ROWS and OUTER_COLUMNS readable elements. Without `both`: only the first vector of columns. */
HLOC_INLINE void sum_products(const int both, long count, const float* const* x, long x_offset,
                              const float* const* w, long w_offset, float* restrict tile, long stride,
                              int accumulate) {
  hloc_vf32 left[OUTER_ROWS], right[OUTER_ROWS];
  HLOC_UNROLL for (int i = 0; i < OUTER_ROWS; i++) left[i] = right[i] = (hloc_vf32){0};
  if (accumulate) {
    HLOC_UNROLL for (int i = 0; i < OUTER_ROWS; i++) {
      left[i] = hloc_load_f32(tile + i * stride);
      if (both) right[i] = hloc_load_f32(tile + i * stride + HLOC_LANES32);
    }
  }
  for (long p = 0; p < count; p++) {
    const float *a = x[p] + x_offset, *b = w[p] + w_offset;
    hloc_vf32 b0 = hloc_load_f32(b), b1 = both ? hloc_load_f32(b + HLOC_LANES32) : b0;
    HLOC_UNROLL for (int i = 0; i < OUTER_ROWS; i++) {
      hloc_vf32 ai = hloc_splat_f32(a[i]);
      left[i] += ai * b0;
      if (both) right[i] += ai * b1;
    }
  }
  HLOC_UNROLL for (int i = 0; i < OUTER_ROWS; i++) {
    hloc_store_f32(tile + i * stride, left[i]);
    if (both) hloc_store_f32(tile + i * stride + HLOC_LANES32, right[i]);
  }
}
static __attribute__((noinline)) void tile_of_products(long count, const float* const* x, long x_offset,
                                                       const float* const* w, long w_offset, float* tile,
                                                       long stride, int accumulate) {
  sum_products(1, count, x, x_offset, w, w_offset, tile, stride, accumulate);
}
static __attribute__((noinline)) void half_tile_of_products(long count, const float* const* x, long x_offset,
                                                            const float* const* w, long w_offset, float* tile,
                                                            long stride, int accumulate) {
  sum_products(0, count, x, x_offset, w, w_offset, tile, stride, accumulate);
}

/* Half of a vector of columns, if that takes half of the time. */
#if HLOC_VECTOR_BYTES == 64
typedef float half_vector __attribute__((vector_size(32), aligned(4), may_alias));
static __attribute__((noinline)) void quarter_tile_of_products(long count, const float* const* x, long x_offset,
                                                               const float* const* w, long w_offset,
                                                               float* restrict tile, long stride, int accumulate) {
  half_vector sums[OUTER_ROWS];
  HLOC_UNROLL for (int i = 0; i < OUTER_ROWS; i++)
    sums[i] = accumulate ? *(const half_vector*)(tile + i * stride) : (half_vector){0};
  for (long p = 0; p < count; p++) {
    const float* a = x[p] + x_offset;
    const half_vector b = *(const half_vector*)(w[p] + w_offset);
    HLOC_UNROLL for (int i = 0; i < OUTER_ROWS; i++) sums[i] += (a[i] - (half_vector){0}) * b;
  }
  HLOC_UNROLL for (int i = 0; i < OUTER_ROWS; i++) *(half_vector*)(tile + i * stride) = sums[i];
}
#endif

/* Copies rows after which no whole tile can be read: `end` is the end of their memory. The others are read in place:
 * sums of elements after a row are not used. Returns the pointers to use. */
static const float* const* widened(long count, const float* const* rows, long offset, long have, long need,
                                   const float* end, float* copy, const float** pointers) {
  for (long p = 0; p < count; p++) {
    pointers[p] = rows[p] + offset;
    if (end - pointers[p] >= need) continue;
    for (long i = 0; i < need; i++) copy[p * need + i] = i < have ? pointers[p][i] : 0.0f;
    pointers[p] = copy + p * need;
  }
  return pointers;
}

typedef struct {
  const float* x[OUTER_MOST_CHUNK];
  const float* w[OUTER_MOST_CHUNK];
  const float* x_copy[OUTER_MOST_CHUNK];
  const float* w_copy[OUTER_MOST_CHUNK];
  float x_edge[OUTER_MOST_CHUNK * OUTER_ROWS];
  float w_edge[OUTER_MOST_CHUNK * OUTER_COLUMNS];
} chunk_rows;

static void run_chunk(const outer_work* w, chunk_rows* rows, long count, long m0, long m1, long n0, long n1,
                      float* sums, long stride, int accumulate) {
  for (long column = n0; column < n1; column += OUTER_COLUMNS) {
    const float* const* right = rows->w;
    long right_offset = column;
    if (n1 - column < OUTER_COLUMNS) {
      right = widened(count, rows->w, column, n1 - column, OUTER_COLUMNS, w->w_end, rows->w_edge, rows->w_copy);
      right_offset = 0;
    }
    for (long row = m0; row < m1; row += OUTER_ROWS) {
      const float* const* left = rows->x;
      long left_offset = row;
      if (w->rows - row < OUTER_ROWS) {
        left = widened(count, rows->x, row, m1 - row, OUTER_ROWS, w->x_end, rows->x_edge, rows->x_copy);
        left_offset = 0;
      }
      float* tile = sums + (row - m0) * stride + column - n0;
      if (n1 - column > HLOC_LANES32)
        tile_of_products(count, left, left_offset, right, right_offset, tile, stride, accumulate);
#if HLOC_VECTOR_BYTES == 64
      else if (n1 - column <= HLOC_LANES32 / 2)
        quarter_tile_of_products(count, left, left_offset, right, right_offset, tile, stride, accumulate);
#endif
      else half_tile_of_products(count, left, left_offset, right, right_offset, tile, stride, accumulate);
    }
  }
}

/* The position of x that a window position reads for output position o of dimension d; -1 outside. */
static long read_at(const hloc_conv_args* c, int d, long o, long k) {
  long at = o * c->stride[d] - c->pad_low[d] + (c->reversed[d] ? c->window[d] - 1 - k : k) * c->window_dilation[d];
  if (at >= 0 && c->base_dilation[d] > 1) at = at % c->base_dilation[d] ? -1 : at / c->base_dilation[d];
  return at >= 0 && at < c->x_size[d] ? at : -1;
}

static void run_matrix(const outer_work* w, const long* o, long m0, long m1, long n0, long n1, float* sums, long stride,
                       chunk_rows* rows) {
  const hloc_conv_args* c = &w->plan->c;
  long count = 0;
  int accumulate = 0;
  for (long feature = 0; feature < c->x_features; feature++)
    for (long k0 = 0; k0 < c->window[0]; k0++)
      for (long k1 = 0; k1 < c->window[1]; k1++) {
        long at0 = read_at(c, 0, o[0], k0), at1 = read_at(c, 1, o[1], k1);
        if (at0 < 0 || at1 < 0) continue;
        const float* x = (const float*)c->x + feature * c->x_c + at0 * c->x_s[0] + at1 * c->x_s[1];
        const float* v = (const float*)c->w + feature * c->w_i + k0 * c->w_s[0] + k1 * c->w_s[1];
        for (long k2 = 0; k2 < c->window[2]; k2++) {
          long at2 = read_at(c, 2, o[2], k2);
          if (at2 < 0) continue;
          rows->x[count] = x + at2 * c->x_s[2];
          rows->w[count++] = v + k2 * c->w_s[2];
          if (count < w->chunk) continue;
          run_chunk(w, rows, count, m0, m1, n0, n1, sums, stride, accumulate);
          accumulate = 1, count = 0;
        }
      }
  if (count || !accumulate) run_chunk(w, rows, count, m0, m1, n0, n1, sums, stride, accumulate);
}

/* The output position of a row: rows are batch entries, or with merged positions (o2, batch entry). */
static long position_of_row(const outer_work* w, long row, long place) {
  const hloc_conv_args* c = &w->plan->c;
  long y2 = c->y_size[2], o2 = w->plan->c.choices.merged ? row / c->batch : place % y2;
  long n = w->plan->c.choices.merged ? row % c->batch : row, rest = w->plan->c.choices.merged ? place : place / y2;
  return (n * c->y_size[0] * c->y_size[1] + rest) * y2 + o2;
}

static void run_matrices(void* const* args, long begin, long end) {
  const outer_work* w = (const outer_work*)args;
  const hloc_conv_args* c = &w->plan->c;
  long stride = (w->column_group + OUTER_COLUMNS - 1) / OUTER_COLUMNS * OUTER_COLUMNS;
  long y2 = w->plan->c.choices.merged ? 1 : c->y_size[2];
  size_t sum_bytes = (size_t)((w->row_group + OUTER_ROWS - 1) / OUTER_ROWS * OUTER_ROWS) * stride * sizeof(float);
  char* memory = hloc_own_scratch(c->choices.own, w->plan->failed);
  if (!memory) return;
  float* sums = (float*)memory;
  for (long t = begin; t < end; t++) {
    long place = t / w->row_groups / w->column_groups;
    long o[3] = {place / y2 / c->y_size[1], place / y2 % c->y_size[1], place % y2};
    long m0 = t % w->row_groups * w->row_group, n0 = t / w->row_groups % w->column_groups * w->column_group;
    long m1 = hloc_min(w->rows, m0 + w->row_group), n1 = hloc_min(c->y_features, n0 + w->column_group);
    run_matrix(w, o, m0, m1, n0, n1, sums, stride, (chunk_rows*)(void*)(memory + sum_bytes));
    for (long row = m0; row < m1; row++)
      hloc_conv_finish(w->plan, position_of_row(w, row, place), n0, 1, n1 - n0, sums + (row - m0) * stride, stride);
  }
}

/* The end of an operand: `outer` strips of `inner` contiguous elements, for each spatial position. */
static const float* end_of(const void* from, long outer, long outer_stride, const long* size, const long* stride,
                           long inner) {
  long last = (outer - 1) * outer_stride + inner;
  for (int d = 0; d < 3; d++) last += (size[d] - 1) * stride[d];
  return (const float*)from + last;
}

static int run_outer(hloc_conv_plan* plan) {
  const hloc_conv_args* c = &plan->c;
  const long places = c->y_size[0] * c->y_size[1] * (c->choices.merged ? 1 : c->y_size[2]);
  const long rows = c->choices.merged ? c->batch * c->y_size[2] : c->batch;
  long chunk = hloc_max(32, hloc_min(OUTER_MOST_CHUNK, 98304 / (rows + c->y_features)));
  outer_work w = {.plan = plan, .rows = rows, .chunk = chunk, .row_group = c->choices.row_group,
                  .column_group = c->choices.column_group};
  w.x_end = end_of(c->x, c->x_features, c->x_c, c->x_size, c->x_s, c->batch);
  w.w_end = end_of(c->w, c->x_features, c->w_i, c->window, c->w_s, c->y_features);
  w.row_groups = (rows + w.row_group - 1) / w.row_group;
  w.column_groups = (c->y_features + w.column_group - 1) / w.column_group;
  hloc_parallel(run_matrices, (void* const*)&w, places * w.row_groups * w.column_groups, 1);
  return 0;
}

int hloc_conv_by_outer(hloc_conv_plan* plan, hloc_conv_type type) {
  hloc_conv_args* c = &plan->c;
  const hloc_conv_choices by = c->choices;
  hloc_conv_arrangement x = arrange_x(c, type, 1), w = arrange_w(c, type);
  if (by.merged) { /* rows for all o2 are contiguous in the padded x */
    x.pad_low = c->pad_low[2];
    x.padded = c->y_size[2] + (c->window[2] - 1) * c->window_dilation[2];
  }
  float* memory = hloc_scratch(HLOC_FIRST, by.first);
  if (!memory) return 1;
  x.target = memory, w.target = memory + by.at_w;
  if (by.move_x) hloc_conv_arrange(&x), use_x(c, &x, 1);
  if (by.move_w) hloc_conv_arrange(&w), use_w(c, &w);
  if (by.merged) c->x_size[2] = x.padded, c->pad_low[2] = 0;
  return run_outer(plan);
}

HLOC_CONV_ENTRIES(outer, hloc_conv_by_outer)
