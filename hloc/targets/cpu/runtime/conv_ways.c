/* conv_ways.c: convolutions that go another way than conv_rows.c: chooses it, and brings the operands into its order.
 *
 *   1x1 windows over plain images, and
 *   one output position that meets all of x -> a matrix product (gemm.h)
 *   one window per channel, and
 *   the filter gradients of those          -> conv_depthwise.c
 *   windows of many positions, x_n == 1    -> conv_outer.c (filter gradients)
 *   base dilation, few or small images     -> conv_transposed.c
 */
#include "conv_operands.h"

typedef enum { BY_PRODUCT, BY_DEPTHWISE, BY_OUTER, BY_SPREAD, BY_ROWS } way;

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

static int by_outer(hloc_conv_plan* plan, hloc_conv_type type) {
  hloc_conv_args* c = &plan->c;
  hloc_conv_arrangement x = arrange_x(c, type, 1), w = arrange_w(c, type);
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
  if (move_x) hloc_conv_arrange(&x), use_x(c, &x, 1);
  if (move_w) hloc_conv_arrange(&w), use_w(c, &w);
  if (plan->merged) c->x_size[2] = x.padded, c->pad_low[2] = 0;
  return hloc_conv_outer(plan);
}

/* Puts image and filter where the routine finds them as it wants them; 1 where memory is exhausted. */
static int move_operands(hloc_conv_args* c, hloc_conv_type type, int batch_inner, int move_x, int move_w) {
  hloc_conv_arrangement x = arrange_x(c, type, batch_inner), w = arrange_w(c, type);
  long x_floats = move_x ? arranged_floats(&x) : 0, w_floats = move_w ? arranged_floats(&w) : 0;
  float* memory = hloc_scratch(HLOC_FIRST, (size_t)(x_floats + w_floats + 1) * sizeof(float));
  if (!memory) return 1;
  x.target = memory, w.target = memory + x_floats;
  if (move_x) hloc_conv_arrange(&x), use_x(c, &x, batch_inner);
  if (move_w) hloc_conv_arrange(&w), use_w(c, &w);
  return 0;
}

static int by_depthwise(hloc_conv_plan* plan, hloc_conv_type type) {
  hloc_conv_args* c = &plan->c;
  int move_x = type != HLOC_CONV_IS_F32 || c->x_c != 1, move_w = type != HLOC_CONV_IS_F32 || c->w_o != 1;
  return move_operands(c, type, 0, move_x, move_w) || hloc_conv_depthwise(plan);
}

static int is_channel_gradient(const hloc_conv_args* c) {
  return c->batch_groups > 1 && c->batch_groups == c->batch && c->batch_groups == c->y_features &&
         c->feature_groups == 1 && all_ones(c->base_dilation);
}
int hloc_conv_by_channel_gradient(hloc_conv_plan* plan, hloc_conv_type type) {
  if (!is_channel_gradient(&plan->c)) return HLOC_CONV_BY_ROWS;
  hloc_conv_args* c = &plan->c;
  int move_x = type != HLOC_CONV_IS_F32 || c->x_n != 1, move_w = type != HLOC_CONV_IS_F32 || c->w_o != 1;
  return move_operands(c, type, 1, move_x, move_w) || hloc_conv_channel_gradient(plan);
}

static int by_spread(hloc_conv_plan* plan, hloc_conv_type type) {
  hloc_conv_args* c = &plan->c;
  hloc_conv_arrangement x = arrange_x(c, type, 0), w = arrange_w(c, type);
  int plain = c->x_s[1] == c->x_size[2] * c->x_s[2] && c->x_s[0] == c->x_size[1] * c->x_s[1];
  int move_x = type != HLOC_CONV_IS_F32 || !plain;
  if (!c->reversed[2]) { /* taps of the last dimension backwards */
    w.source = (const char*)w.source + (c->window[2] - 1) * w.stride[2] * element_bytes(type);
    w.stride[2] = -w.stride[2];
  }
  long x_floats = move_x ? arranged_floats(&x) : 0, w_floats = arranged_floats(&w);
  const size_t floats = x_floats + w_floats + hloc_conv_spread_floats(c) + 1;
  float* memory = hloc_scratch(HLOC_SECOND, floats * sizeof(float));
  if (!memory) return 1;
  x.target = memory, w.target = memory + x_floats;
  if (move_x) hloc_conv_arrange(&x), use_x(c, &x, 0);
  hloc_conv_arrange(&w), use_w(c, &w);
  return hloc_conv_transposed(plan, hloc_gemm_f32, memory + x_floats + w_floats);
}

/* Those of which a program is certain that it goes another way need not be there. */
#pragma weak hloc_conv_outer
#pragma weak hloc_conv_depthwise
#pragma weak hloc_conv_channel_gradient
#pragma weak hloc_conv_transposed
#pragma weak hloc_conv_spread_floats
#pragma weak hloc_gemm_f32
int hloc_conv_other_way(hloc_conv_plan* plan, hloc_conv_type type, hloc_product product) {
  const way chosen = choose(&plan->c);
  if (chosen == BY_PRODUCT && !plan->column_offset) return by_product(plan, product);
  if (chosen == BY_DEPTHWISE) return by_depthwise(plan, type);
  if (chosen == BY_OUTER) return by_outer(plan, type);
  return chosen == BY_SPREAD ? by_spread(plan, type) : HLOC_CONV_BY_ROWS;
}
