/* conv.c: convolutions by rows (conv_rows.c): most of them.
 *
 * With few input features the last spatial dimension is padded in scratch memory, so that a whole window row is one
 * contiguous run.
 */
#include "conv_operands.h"

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

int hloc_conv_by_rows(hloc_conv_plan* plan, hloc_conv_type type) {
  hloc_conv_args* c = &plan->c;
  const hloc_conv_choices by = c->choices;
  hloc_conv_arrangement x = arrange_x(c, type, 0), w = arrange_w(c, type);
  if (by.one_piece) pad_last(c, &x);
  x.pitch = by.pitch;
  float* memory = hloc_scratch(HLOC_FIRST, by.first);
  if (!memory) return 1;
  x.target = memory, w.target = memory + by.at_w;
  if (by.move_x) hloc_conv_arrange(&x), use_x(c, &x, 0);
  if (by.move_w && !by.one_piece) hloc_conv_arrange(&w), use_w(c, &w);
  if (by.one_piece) {
    /* w as [s0][s1][s2, feature][output]: its s2 becomes part of the features */
    hloc_conv_arrangement v = {.source = c->w, .type = type, .padded = c->x_features, .inner = c->y_features};
    v.pitch = v.inner, v.inner_stride = c->w_o, v.outer = c->window[0], v.outer_stride = c->w_s[0];
    v.size[0] = c->window[1], v.stride[0] = c->w_s[1], v.size[1] = c->window[2], v.stride[1] = c->w_s[2];
    v.size[2] = c->x_features, v.stride[2] = c->w_i, v.target = w.target;
    if (by.move_w) hloc_conv_arrange(&v);
    long depth = c->window[2] * c->x_features;
    c->w = w.target, c->w_o = 1;
    c->w_s[1] = depth * c->y_features, c->w_s[0] = c->window[1] * c->w_s[1], c->w_s[2] = 0;
    use_padded(c, &x);
    c->w_i = c->y_features;
  }
  return hloc_conv_rows(plan, memory + by.at_panels);
}

HLOC_CONV_ENTRIES(rows, hloc_conv_by_rows)
