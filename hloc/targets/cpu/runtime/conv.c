/* conv.c: chooses how a convolution is computed and brings operands into the order that way wants (see conv.h).
 *
 *   1x1 windows over plain images, and
 *   one output position that meets all of x -> a matrix product (gemm.h)
 *   one window per channel, and
 *   the filter gradients of those          -> conv_depthwise.c
 *   windows of many positions, x_n == 1    -> conv_outer.c (filter gradients)
 *   base dilation, few or small images     -> conv_transposed.c
 *   anything else                          -> conv_rows.c; with few input features the last spatial dimension is padded
 *                                             in scratch memory, so that a whole window row is one contiguous run
 */
#include "conv_internal.h"
#include "half_rows.h"
#include "narrow.h"

long hloc_conv_y_offset(const hloc_conv_args* c, long position) {
  long offset = 0;
  for (int d = 2; d >= 0; d--) offset += position % c->y_size[d] * c->y_s[d], position /= c->y_size[d];
  return offset + position * c->y_n;
}

static void store_row(const hloc_conv_plan* plan, long at, long columns, const float* from) {
  const hloc_conv_args* c = &plan->c;
  if (plan->y_type == HLOC_CONV_IS_F32) {
    float* y = (float*)c->y + at;
    if (c->y_c == 1) __builtin_memcpy(y, from, columns * sizeof(float));
    else for (long j = 0; j < columns; j++) y[j * c->y_c] = from[j];
  } else if (plan->y_type == HLOC_CONV_IS_BF16) {
    hloc_bf16* y = (hloc_bf16*)c->y + at;
    if (c->y_c == 1) for (long j = 0; j < columns; j++) y[j] = hloc_f32_to_bf16(from[j]);
    else for (long j = 0; j < columns; j++) y[j * c->y_c] = hloc_f32_to_bf16(from[j]);
  } else {
    hloc_f16* y = (hloc_f16*)c->y + at;
    if (c->y_c == 1) hloc_narrow_row_f16(from, y, columns);
    else for (long j = 0; j < columns; j++) y[j * c->y_c] = hloc_f32_to_f16(from[j]);
  }
}
/* Whether all sums of neighbouring positions lie side by side in y. */
static int is_one_piece(const hloc_conv_args* c, long columns) {
  return c->y_features == columns && c->y_c == 1 && c->y_s[2] == columns && c->y_s[1] == c->y_s[2] * c->y_size[2] &&
         c->y_s[0] == c->y_s[1] * c->y_size[1] && (c->batch == 1 || c->y_n == c->y_s[0] * c->y_size[0]);
}
void hloc_conv_finish(const hloc_conv_plan* plan, long position, long column, long rows, long columns,
                      const float* tile, long stride) {
  const hloc_conv_args* c = &plan->c;
  if (c->epilogue) {
    c->epilogue(c->epilogue_args, 0, position, plan->column_offset + column, rows, columns, tile, stride);
    return;
  }
  if (stride == columns && is_one_piece(c, columns)) {
    store_row(plan, position * columns, rows * columns, tile);
    return;
  }
  long at = hloc_conv_y_offset(c, position), left[3], rest = position; /* positions left in each dimension's run */
  for (int d = 2; d >= 0; d--) left[d] = c->y_size[d] - rest % c->y_size[d], rest /= c->y_size[d];
  for (long i = 0; i < rows; i++) {
    store_row(plan, at + column * c->y_c, columns, tile + i * stride);
    int d = 2;
    for (; d >= 0 && --left[d] == 0; d--) { /* back to the run's first position, and on in the next dimension */
      at -= (c->y_size[d] - 1) * c->y_s[d];
      left[d] = c->y_size[d];
    }
    at += d >= 0 ? c->y_s[d] : c->y_n;
  }
}

/* ---- rearranging an operand: out[outer][s0][s1][s2][inner] as f32, s2 padded with zeros on both sides */
typedef struct {
  const void* source;
  hloc_conv_type type;
  long outer, outer_stride, inner, inner_stride, size[3], stride[3];
  long pad_low, padded; /* of s2: zeros before, length of the result */
  long pitch;           /* floats from one place of s2 to the next in the result: at least `inner` */
  float* target;
} arrangement;

HLOC_INLINE float load_as_f32(const void* source, hloc_conv_type type, long at) {
  if (type == HLOC_CONV_IS_F32) return ((const float*)source)[at];
  return type == HLOC_CONV_IS_BF16 ? hloc_bf16_to_f32(((const hloc_bf16*)source)[at])
                                   : hloc_f16_to_f32(((const hloc_f16*)source)[at]);
}
HLOC_INLINE void widen_row(const void* source, hloc_conv_type type, long from, long count, float* to) {
  if (type == HLOC_CONV_IS_F32) __builtin_memcpy(to, (const float*)source + from, count * sizeof(float));
  else if (type == HLOC_CONV_IS_F16) hloc_widen_row_f16((const hloc_f16*)source + from, to, count);
  else for (long i = 0; i < count; i++) to[i] = hloc_bf16_to_f32(((const hloc_bf16*)source)[from + i]);
}
/* A row that lies in memory as it is wanted, but for its type. */
HLOC_INLINE void copy_row(const arrangement* a, hloc_conv_type type, long from, float* to) {
  const long places = hloc_max(0, hloc_min(a->size[2], a->padded - a->pad_low)), skipped = hloc_max(0, -a->pad_low);
  const long before = hloc_min(a->padded, hloc_max(0, a->pad_low)), copied = hloc_max(0, places - skipped);
  __builtin_memset(to, 0, before * a->inner * sizeof(float));
  to += before * a->inner;
  widen_row(a->source, type, from + skipped * a->inner, copied * a->inner, to);
  __builtin_memset(to + copied * a->inner, 0, (a->padded - before - copied) * a->inner * sizeof(float));
}
HLOC_INLINE void arrange_row(const arrangement* a, hloc_conv_type type, long from, float* to) {
  if (a->inner_stride == 1 && a->stride[2] == a->inner && a->pitch == a->inner) {
    copy_row(a, type, from, to);
    return;
  }
  for (long i0 = 0; i0 < a->inner; i0 += 16) { /* strips: the source may be contiguous along s2 rather than inner */
    long i1 = hloc_min(a->inner, i0 + 16);
    for (long s = 0; s < a->padded; s++) {
      float* out = to + s * a->pitch;
      long at = s - a->pad_low;
      if (at < 0 || at >= a->size[2]) {
        for (long i = i0; i < i1; i++) out[i] = 0.0f;
      } else if (a->inner_stride == 1 && type == HLOC_CONV_IS_F16) {
        hloc_widen_row_f16((const hloc_f16*)a->source + from + at * a->stride[2] + i0, out + i0, i1 - i0);
      } else if (a->inner_stride == 1) {
        for (long i = i0; i < i1; i++) out[i] = load_as_f32(a->source, type, from + at * a->stride[2] + i);
      } else {
        for (long i = i0; i < i1; i++)
          out[i] = load_as_f32(a->source, type, from + at * a->stride[2] + i * a->inner_stride);
      }
    }
  }
}
static void arrange_rows(void* const* args, long begin, long end) {
  const arrangement* a = (const arrangement*)args;
  for (long row = begin; row < end; row++) {
    long s1 = row % a->size[1], s0 = row / a->size[1] % a->size[0], n = row / a->size[1] / a->size[0];
    long from = n * a->outer_stride + s0 * a->stride[0] + s1 * a->stride[1];
    float* to = a->target + row * a->padded * a->pitch;
    if (a->type == HLOC_CONV_IS_F32) arrange_row(a, HLOC_CONV_IS_F32, from, to);
    else if (a->type == HLOC_CONV_IS_BF16) arrange_row(a, HLOC_CONV_IS_BF16, from, to);
    else arrange_row(a, HLOC_CONV_IS_F16, from, to);
  }
}
static long arranged_floats(const arrangement* a) {
  return a->outer * a->size[0] * a->size[1] * a->padded * a->pitch + HLOC_CONV_COLUMNS;
}
static void arrange(const arrangement* a) {
  long rows = a->outer * a->size[0] * a->size[1];
  hloc_parallel(arrange_rows, (void* const*)a, rows, 16384 / (a->padded * a->inner + 1) + 1);
}

static arrangement arrange_x(const hloc_conv_args* c, hloc_conv_type type, int batch_inner) {
  arrangement a = {.source = c->x, .type = type, .padded = c->x_size[2]};
  a.outer = batch_inner ? c->x_features : c->batch, a.outer_stride = batch_inner ? c->x_c : c->x_n;
  a.inner = batch_inner ? c->batch : c->x_features, a.inner_stride = batch_inner ? c->x_n : c->x_c;
  a.pitch = a.inner;
  for (int d = 0; d < 3; d++) a.size[d] = c->x_size[d], a.stride[d] = c->x_s[d];
  return a;
}
static arrangement arrange_w(const hloc_conv_args* c, hloc_conv_type type) {
  arrangement a = {.source = c->w, .type = type, .padded = c->window[2]};
  a.outer = c->x_features / c->feature_groups, a.outer_stride = c->w_i;
  a.inner = a.pitch = c->y_features, a.inner_stride = c->w_o;
  for (int d = 0; d < 3; d++) a.size[d] = c->window[d], a.stride[d] = c->w_s[d];
  return a;
}
/* The strides of the result, and the result itself, as the convolution's operand. */
static void use_x(hloc_conv_args* c, const arrangement* a, int batch_inner) {
  long row = a->padded * a->pitch, outer = a->size[0] * a->size[1] * row;
  c->x = a->target;
  c->x_n = batch_inner ? 1 : outer, c->x_c = batch_inner ? outer : 1;
  c->x_s[2] = a->pitch, c->x_s[1] = row, c->x_s[0] = a->size[1] * row;
}
static void use_w(hloc_conv_args* c, const arrangement* a) {
  long row = a->padded * a->inner;
  c->w = a->target;
  c->w_o = 1, c->w_i = a->size[0] * a->size[1] * row;
  c->w_s[2] = a->inner, c->w_s[1] = row, c->w_s[0] = a->size[1] * row;
}

/* ---- the choice */
typedef enum { BY_PRODUCT, BY_DEPTHWISE, BY_OUTER, BY_SPREAD, BY_ROWS } way;

static int all_ones(const long* v) { return v[0] == 1 && v[1] == 1 && v[2] == 1; }
static long taps_of(const hloc_conv_args* c) { return c->window[0] * c->window[1] * c->window[2]; }

static int is_product(const hloc_conv_args* c) { /* every output position reads the one input at its place */
  for (int d = 0; d < 3; d++)
    if (c->window[d] != 1 || c->stride[d] != 1 || c->pad_low[d] || c->base_dilation[d] != 1 ||
        c->x_size[d] != c->y_size[d])
      return 0;
  int x_plain = c->x_s[0] == c->x_size[1] * c->x_s[1] && c->x_s[1] == c->x_size[2] * c->x_s[2] &&
                (c->batch == 1 || c->x_n == c->x_size[0] * c->x_s[0]);
  int y_plain = c->y_s[0] == c->y_size[1] * c->y_s[1] && c->y_s[1] == c->y_size[2] * c->y_s[2] &&
                (c->batch == 1 || c->y_n == c->y_size[0] * c->y_s[0]);
  return c->feature_groups == 1 && x_plain && (y_plain || c->epilogue);
}
/* The stride by which one walks through all places of (features, s0, s1, s2) in order; 0: there is none. */
static long step_through(long features, long feature_stride, const long* size, const long* stride) {
  long step = 0, expected = 0;
  for (int d = 2; d >= -1; d--) {
    long count = d >= 0 ? size[d] : features, next = d >= 0 ? stride[d] : feature_stride;
    if (count == 1) continue;
    if (step && next != expected) return 0;
    if (!step) step = next;
    expected = next * count;
  }
  return step ? step : 1;
}
/* Filter gradients of 1x1 windows: one sum over images and positions for each pair of features. */
static int sums_everything(const hloc_conv_args* c) {
  for (int d = 0; d < 3; d++)
    if (c->y_size[d] != 1 || c->window[d] != c->x_size[d] || c->pad_low[d] || c->base_dilation[d] != 1 ||
        (c->window[d] > 1 && (c->window_dilation[d] != 1 || c->reversed[d])))
      return 0;
  return c->feature_groups == 1 && step_through(c->x_features, c->x_c, c->x_size, c->x_s) &&
         step_through(c->x_features, c->w_i, c->window, c->w_s);
}
/* What conv_transposed.c can do, and better than conv_rows.c: features that leave lanes empty there, or images for
 * whose few positions the phases of conv_rows.c cost too much, if weights stay in cache from one to the next. Only
 * where way_of in routines.py says "spread". */
static int is_transposed(const hloc_conv_args* c) {
  enum { FEWEST_FEATURES = 8, FEW = HLOC_LANES32, SMALL_IMAGE = 1 << 18, SMALL_WEIGHTS = 1 << 16 };
  if (all_ones(c->base_dilation) || !all_ones(c->stride) || c->window_dilation[2] != 1) return 0;
  if (taps_of(c) > 4 * c->y_size[0] * c->y_size[1] * c->y_size[2]) return 0;
  long floats = c->x_size[0] * c->x_size[1] * c->x_size[2] * taps_of(c) * c->y_features;
  int small = floats <= SMALL_IMAGE && taps_of(c) * c->x_features * c->y_features <= SMALL_WEIGHTS;
  return c->feature_groups == 1 && c->x_features >= FEWEST_FEATURES && (c->y_features <= FEW || small);
}
static way choose(const hloc_conv_args* c) {
  if (is_product(c) || sums_everything(c)) return BY_PRODUCT;
  if (c->feature_groups > 1 && c->feature_groups == c->x_features && c->y_features == c->x_features &&
      all_ones(c->base_dilation))
    return BY_DEPTHWISE;
  long places = c->y_size[0] * c->y_size[1] * c->y_size[2], depth = c->x_features / c->feature_groups;
  int like_filter_gradient = taps_of(c) > 4 * places && (taps_of(c) > 128 || (c->x_c != 1 && c->x_n == 1));
  if (c->feature_groups == 1 && (like_filter_gradient || depth > 16384)) return BY_OUTER;
  if (is_transposed(c)) return BY_SPREAD;
  return BY_ROWS;
}

/* Strides of dimensions of size one are free: chosen so that images that are plain look so, and features neighbours. */
static void settle_strides(hloc_conv_args* c) {
  for (int d = 1; d >= 0; d--) {
    if (c->x_size[d] == 1) c->x_s[d] = c->x_size[d + 1] * c->x_s[d + 1];
    if (c->y_size[d] == 1) c->y_s[d] = c->y_size[d + 1] * c->y_s[d + 1];
  }
  if (c->x_features == 1) c->x_c = 1;
  if (c->y_features == 1) c->y_c = 1;
}

static int by_product(const hloc_conv_plan* plan, hloc_product product) {
  const hloc_conv_args* c = &plan->c;
  hloc_gemm_args g = {.batches = 1, .inner_batches = 1, .n = c->y_features, .k = c->x_features};
  g.m = c->batch * c->y_size[0] * c->y_size[1] * c->y_size[2];
  g.a = c->x, g.a_row = c->x_s[2], g.a_column = c->x_c;
  g.b = c->w, g.b_row = c->w_i, g.b_column = c->w_o;
  if (!is_product(c)) {
    g.k *= taps_of(c);
    g.a_row = c->x_n, g.a_column = step_through(c->x_features, c->x_c, c->x_size, c->x_s);
    g.b_row = step_through(c->x_features, c->w_i, c->window, c->w_s);
  }
  g.c = c->y, g.c_row = is_product(c) ? c->y_s[2] : c->y_n, g.c_column = c->y_c;
  g.c_is_narrow = plan->y_type != HLOC_CONV_IS_F32;
  g.epilogue = c->epilogue, g.epilogue_args = c->epilogue_args;
  return product(&g);
}

/* Few input features: the last spatial dimension padded, so that window rows lie in one piece. */
static int rows_in_one_piece(const hloc_conv_args* c) {
  return c->feature_groups == 1 && c->x_features <= 8 && c->window[2] > 1 && c->window_dilation[2] == 1 &&
         all_ones(c->base_dilation) && !c->reversed[2] && c->window[2] * c->x_features <= 1024;
}
static void pad_last(const hloc_conv_args* c, arrangement* a) {
  a->pad_low = c->pad_low[2];
  a->padded = (c->y_size[2] - 1) * c->stride[2] + c->window[2];
}
static void use_padded(hloc_conv_args* c, const arrangement* a) {
  c->x_size[2] = a->padded - c->window[2] + 1; /* positions at which a whole window row may begin */
  c->x_features *= c->window[2];
  c->w_i = 1, c->pad_low[2] = 0; /* w itself is packed by by_rows before its window shrinks */
  c->window[2] = 1;
}

/* Windows of one position that pass over some of x: what they meet is an image of its own. */
static void pass_over(hloc_conv_args* c) {
  for (int d = 0; d < 3; d++)
    if (c->window[d] == 1 && c->stride[d] > 1 && !c->pad_low[d] && c->base_dilation[d] == 1 &&
        (c->y_size[d] - 1) * c->stride[d] < c->x_size[d])
      c->x_s[d] *= c->stride[d], c->x_size[d] = c->y_size[d], c->stride[d] = 1;
}

/* Whether the rows of a tile, one every `step` floats, lie so that most fall into the same few sets of the first cache
 * and drive each other out before their next element is read. */
static int rows_collide(const hloc_conv_args* c, long step) {
  enum { PAGE = 4096, WAYS = 8 }; /* lines at one place of a page that the cache keeps */
  long bytes = step * (c->base_dilation[2] == 1 ? c->stride[2] : 1) * (long)sizeof(float), sets = PAGE;
  while (sets > 1 && bytes % (2 * PAGE / sets) == 0) sets /= 2;
  return HLOC_CONV_ROWS > WAYS * sets && taps_of(c) * c->y_features >= 128;
}

static int by_rows(hloc_conv_plan* plan, hloc_conv_type type) {
  hloc_conv_args* c = &plan->c;
  int one_piece = rows_in_one_piece(c);
  pass_over(c);
  arrangement x = arrange_x(c, type, 0), w = arrange_w(c, type);
  if (one_piece) pad_last(c, &x);
  int move_x = one_piece || type != HLOC_CONV_IS_F32 || c->x_c != 1, move_w = one_piece || type != HLOC_CONV_IS_F32;
  if (!one_piece && rows_collide(c, move_x ? x.inner : c->x_s[2])) x.pitch += HLOC_LANES32, move_x = 1;
  hloc_conv_args in_rows = *c; /* what conv_rows.c will see */
  if (one_piece) in_rows.x_features *= c->window[2], in_rows.window[2] = 1;
  long panel_floats = hloc_conv_panel_floats(&in_rows);
  long x_floats = move_x ? arranged_floats(&x) : 0, w_floats = move_w ? arranged_floats(&w) : 0;
  float* memory = hloc_scratch(HLOC_FIRST, (size_t)(x_floats + w_floats + panel_floats) * sizeof(float));
  if (!memory) return 1;
  x.target = memory, w.target = memory + x_floats;
  if (move_x) arrange(&x), use_x(c, &x, 0);
  if (move_w && !one_piece) arrange(&w), use_w(c, &w);
  if (one_piece) {
    /* w as [s0][s1][s2, feature][output]: its s2 becomes part of the features */
    arrangement v = {.source = c->w, .type = type, .padded = c->x_features, .inner = c->y_features};
    v.pitch = v.inner, v.inner_stride = c->w_o, v.outer = c->window[0], v.outer_stride = c->w_s[0];
    v.size[0] = c->window[1], v.stride[0] = c->w_s[1], v.size[1] = c->window[2], v.stride[1] = c->w_s[2];
    v.size[2] = c->x_features, v.stride[2] = c->w_i, v.target = w.target;
    arrange(&v);
    long depth = c->window[2] * c->x_features;
    c->w = w.target, c->w_o = 1;
    c->w_s[1] = depth * c->y_features, c->w_s[0] = c->window[1] * c->w_s[1], c->w_s[2] = 0;
    use_padded(c, &x);
    c->w_i = c->y_features;
  }
  return hloc_conv_rows(plan, memory + x_floats + w_floats);
}

static int by_outer(hloc_conv_plan* plan, hloc_conv_type type) {
  hloc_conv_args* c = &plan->c;
  arrangement x = arrange_x(c, type, 1), w = arrange_w(c, type);
  plan->merged = c->batch <= 8 && c->y_size[2] > 1 && c->stride[2] == 1 && all_ones(c->base_dilation);
  if (plan->merged) { /* rows for all o2 lie in one piece of the padded x */
    x.pad_low = c->pad_low[2];
    x.padded = c->y_size[2] + (c->window[2] - 1) * c->window_dilation[2];
  }
  int move_x = plan->merged || type != HLOC_CONV_IS_F32 || c->x_n != 1;
  int move_w = type != HLOC_CONV_IS_F32 || c->w_o != 1;
  long x_floats = move_x ? arranged_floats(&x) : 0, w_floats = move_w ? arranged_floats(&w) : 0;
  float* memory = hloc_scratch(HLOC_FIRST, (size_t)(x_floats + w_floats + 1) * sizeof(float));
  if (!memory) return 1;
  x.target = memory, w.target = memory + x_floats;
  if (move_x) arrange(&x), use_x(c, &x, 1);
  if (move_w) arrange(&w), use_w(c, &w);
  if (plan->merged) c->x_size[2] = x.padded, c->pad_low[2] = 0;
  return hloc_conv_outer(plan);
}

/* Puts image and filter where the routine finds them as it wants them; 1 where memory is exhausted. */
static int move_operands(hloc_conv_args* c, hloc_conv_type type, int batch_inner, int move_x, int move_w) {
  arrangement x = arrange_x(c, type, batch_inner), w = arrange_w(c, type);
  long x_floats = move_x ? arranged_floats(&x) : 0, w_floats = move_w ? arranged_floats(&w) : 0;
  float* memory = hloc_scratch(HLOC_FIRST, (size_t)(x_floats + w_floats + 1) * sizeof(float));
  if (!memory) return 1;
  x.target = memory, w.target = memory + x_floats;
  if (move_x) arrange(&x), use_x(c, &x, batch_inner);
  if (move_w) arrange(&w), use_w(c, &w);
  return 0;
}

static int by_depthwise(hloc_conv_plan* plan, hloc_conv_type type) {
  hloc_conv_args* c = &plan->c;
  int move_x = type != HLOC_CONV_IS_F32 || c->x_c != 1, move_w = type != HLOC_CONV_IS_F32 || c->w_o != 1;
  return move_operands(c, type, 0, move_x, move_w) || hloc_conv_depthwise(plan);
}

static long element_bytes(hloc_conv_type type) { return type == HLOC_CONV_IS_F32 ? 4 : 2; }

static int is_channel_gradient(const hloc_conv_args* c) {
  return c->batch_groups > 1 && c->batch_groups == c->batch && c->batch_groups == c->y_features &&
         c->feature_groups == 1 && all_ones(c->base_dilation);
}
static int by_channel_gradient(hloc_conv_plan* plan, hloc_conv_type type) {
  hloc_conv_args* c = &plan->c;
  int move_x = type != HLOC_CONV_IS_F32 || c->x_n != 1, move_w = type != HLOC_CONV_IS_F32 || c->w_o != 1;
  return move_operands(c, type, 1, move_x, move_w) || hloc_conv_channel_gradient(plan);
}

static int by_spread(hloc_conv_plan* plan, hloc_conv_type type) {
  hloc_conv_args* c = &plan->c;
  arrangement x = arrange_x(c, type, 0), w = arrange_w(c, type);
  int plain = c->x_s[1] == c->x_size[2] * c->x_s[2] && c->x_s[0] == c->x_size[1] * c->x_s[1];
  int move_x = type != HLOC_CONV_IS_F32 || !plain;
  if (!c->reversed[2]) { /* taps of the last dimension backwards */
    w.source = (const char*)w.source + (c->window[2] - 1) * w.stride[2] * element_bytes(type);
    w.stride[2] = -w.stride[2];
  }
  long x_floats = move_x ? arranged_floats(&x) : 0, w_floats = arranged_floats(&w);
  float* memory = hloc_scratch(HLOC_SECOND, (size_t)(x_floats + w_floats + hloc_conv_spread_floats(c) + 1) * sizeof(float));
  if (!memory) return 1;
  x.target = memory, w.target = memory + x_floats;
  if (move_x) arrange(&x), use_x(c, &x, 0);
  arrange(&w), use_w(c, &w);
  return hloc_conv_transposed(plan, hloc_gemm_f32, memory + x_floats + w_floats);
}

int hloc_convolve(const hloc_conv_args* args, hloc_conv_type type, hloc_product product) {
  int failed = 0;
  hloc_conv_type y_type = args->y_is_narrow ? type : HLOC_CONV_IS_F32;
  if (args->batch <= 0 || args->y_features <= 0 || args->y_size[0] * args->y_size[1] * args->y_size[2] <= 0) return 0;
  if (product && is_channel_gradient(args)) {
    hloc_conv_plan plan = {.c = *args, .y_type = y_type, .failed = &failed};
    return by_channel_gradient(&plan, type) || failed;
  }
  for (long group = 0; group < args->batch_groups; group++) { /* neighbouring parts of the batch and the features */
    hloc_conv_plan plan = {.c = *args, .y_type = y_type, .failed = &failed};
    hloc_conv_args* c = &plan.c;
    c->batch /= c->batch_groups, c->y_features /= c->batch_groups;
    plan.column_offset = group * c->y_features;
    c->x = (const char*)c->x + group * c->batch * c->x_n * element_bytes(type);
    c->w = (const char*)c->w + group * c->y_features * c->w_o * element_bytes(type);
    if (c->y) c->y = (char*)c->y + group * c->y_features * c->y_c * element_bytes(y_type);
    settle_strides(c);
    way chosen = product ? choose(c) : BY_ROWS;
    int failure;
    if (chosen == BY_PRODUCT && !plan.column_offset) failure = by_product(&plan, product);
    else if (chosen == BY_DEPTHWISE) failure = by_depthwise(&plan, type);
    else if (chosen == BY_OUTER) failure = by_outer(&plan, type);
    else if (chosen == BY_SPREAD) failure = by_spread(&plan, type);
    else failure = by_rows(&plan, type);
    if (failure) return 1;
  }
  return failed;
}

/* For convolutions that go this way for certain; the files of the others need not be there. */
#pragma weak hloc_conv_outer
#pragma weak hloc_conv_depthwise
#pragma weak hloc_conv_channel_gradient
#pragma weak hloc_conv_transposed
#pragma weak hloc_conv_spread_floats
#pragma weak hloc_gemm_f32
int hloc_conv_rows_f32(const hloc_conv_args* args) { return hloc_convolve(args, HLOC_CONV_IS_F32, NULL); }
int hloc_conv_rows_bf16(const hloc_conv_args* args) { return hloc_convolve(args, HLOC_CONV_IS_BF16, NULL); }
int hloc_conv_rows_f16(const hloc_conv_args* args) { return hloc_convolve(args, HLOC_CONV_IS_F16, NULL); }
int hloc_conv_spread_f32(const hloc_conv_args* args) { return hloc_convolve(args, HLOC_CONV_IS_F32, hloc_gemm_f32); }
int hloc_conv_spread_bf16(const hloc_conv_args* args) { return hloc_convolve(args, HLOC_CONV_IS_BF16, hloc_gemm_f32); }
int hloc_conv_spread_f16(const hloc_conv_args* args) { return hloc_convolve(args, HLOC_CONV_IS_F16, hloc_gemm_f32); }
