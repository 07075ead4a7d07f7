/* conv.c: convolutions by rows (conv_rows.c): most of them.
 *
 * With few input features the last spatial dimension is padded in scratch memory, so that a whole window row is one
 * contiguous run.
 */
#include "conv_operands.h"

/* Few input features: the last spatial dimension is padded, so that window rows are contiguous. */
static int rows_in_one_piece(const hloc_conv_args* c) {
  return c->feature_groups == 1 && c->x_features <= 8 && c->window[2] > 1 && c->window_dilation[2] == 1 &&
         all_ones(c->base_dilation) && !c->reversed[2] && c->window[2] * c->x_features <= 1024;
}
static void pad_last(const hloc_conv_args* c, hloc_conv_arrangement* a) {
  a->pad_low = c->pad_low[2];
  a->padded = (c->y_size[2] - 1) * c->stride[2] + c->window[2];
}
static void use_padded(hloc_conv_args* c, const hloc_conv_arrangement* a) {
  c->x_size[2] = a->padded - c->window[2] + 1; /* positions at which a whole window row may begin */
  c->x_features *= c->window[2];
  c->w_i = 1, c->pad_low[2] = 0; /* w itself is packed by by_rows before its window shrinks */
  c->window[2] = 1;
}

/* Windows of one position with strides: the positions of x that they read form an image. */
static void pass_over(hloc_conv_args* c) {
  for (int d = 0; d < 3; d++)
    if (c->window[d] == 1 && c->stride[d] > 1 && !c->pad_low[d] && c->base_dilation[d] == 1 &&
        (c->y_size[d] - 1) * c->stride[d] < c->x_size[d])
      c->x_s[d] *= c->stride[d], c->x_size[d] = c->y_size[d], c->stride[d] = 1;
}

int hloc_conv_by_rows(hloc_conv_plan* plan, hloc_conv_type type) {
  hloc_conv_args* c = &plan->c;
  int one_piece = rows_in_one_piece(c);
  pass_over(c);
  hloc_conv_arrangement x = arrange_x(c, type, 0), w = arrange_w(c, type);
  if (one_piece) pad_last(c, &x);
  int move_x = one_piece || type != HLOC_CONV_IS_F32 || c->x_c != 1, move_w = one_piece || type != HLOC_CONV_IS_F32;
  if (!one_piece && rows_collide(c, move_x ? x.inner : c->x_s[2])) x.pitch += HLOC_LANES32, move_x = 1;
  if (c->pack_to) move_x = 0;
  if (c->w_packed) move_w = 0;
  hloc_conv_args in_rows = *c; /* the convolution of conv_rows.c */
  if (one_piece) in_rows.x_features *= c->window[2], in_rows.window[2] = 1;
  long panel_floats = hloc_conv_panel_floats(&in_rows);
  long x_floats = move_x ? arranged_floats(&x) : 0, w_floats = move_w ? arranged_floats(&w) : 0;
  float* memory = hloc_scratch(HLOC_FIRST, (size_t)(x_floats + w_floats + panel_floats) * sizeof(float));
  if (!memory) return 1;
  x.target = memory, w.target = memory + x_floats;
  if (move_x) hloc_conv_arrange(&x), use_x(c, &x, 0);
  if (move_w && !one_piece) hloc_conv_arrange(&w), use_w(c, &w);
  if (one_piece) {
    /* w as [s0][s1][s2, feature][output]: its s2 becomes part of the features */
    hloc_conv_arrangement v = {.source = c->w, .type = type, .padded = c->x_features, .inner = c->y_features};
    v.pitch = v.inner, v.inner_stride = c->w_o, v.outer = c->window[0], v.outer_stride = c->w_s[0];
    v.size[0] = c->window[1], v.stride[0] = c->w_s[1], v.size[1] = c->window[2], v.stride[1] = c->w_s[2];
    v.size[2] = c->x_features, v.stride[2] = c->w_i, v.target = w.target;
    if (!c->w_packed) hloc_conv_arrange(&v);
    long depth = c->window[2] * c->x_features;
    c->w = w.target, c->w_o = 1;
    c->w_s[1] = depth * c->y_features, c->w_s[0] = c->window[1] * c->w_s[1], c->w_s[2] = 0;
    use_padded(c, &x);
    c->w_i = c->y_features;
  }
  return hloc_conv_rows(plan, memory + x_floats + w_floats);
}

HLOC_CONV_ENTRIES(rows, hloc_conv_by_rows)
