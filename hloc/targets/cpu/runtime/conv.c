/* conv.c: convolutions by rows (conv_rows.c): most of them.
 *
 * With few input features the positions of the last dimension that a window reads are copied side by side, so that a
 * whole window row is one contiguous run. Those of neighbouring outputs overlap in the copy; with a dilation they
 * follow each other.
 */
#include "conv_operands.h"

/* x as such runs; it has only these afterwards. Images whose strides are one, as in filter gradients, are transposed:
 * a block has positions by images. */
static void arrange_windows(hloc_conv_args* c, hloc_conv_type type, float* target) {
  const long features = c->x_features, run = c->window[2] * features;
  const long pitch = c->choices.pitch, image = c->choices.image;
  const int overlaps = c->window_dilation[2] == 1, by_images = c->x_n == 1 && features == 1;
  const long length = overlaps ? (c->y_size[2] - 1) * c->stride[2] + c->window[2] : c->window[2];
  const long row = (c->y_size[2] - 1) * pitch + run, step = c->window_dilation[2];
  if (by_images) __builtin_memset(target, 0, (size_t)(c->batch * image) * sizeof(float)); /* the padding */
  for (long o = 0; o < (overlaps ? 1 : c->y_size[2]); o++) {
    const long origin = o * c->stride[2] - c->pad_low[2], first = origin < 0 ? (-origin + step - 1) / step : 0;
    const long end = c->x_size[2] <= origin ? 0 : hloc_min(length, (c->x_size[2] - 1 - origin) / step + 1);
    hloc_conv_arrangement x = arrange_x(c, type);
    x.source = (const char*)x.source + (origin + first * step) * c->x_s[2] * element_bytes(type);
    x.size[2] = hloc_max(0, end - first), x.stride[2] *= step;
    x.pad_low = first, x.padded = length, x.row = row, x.target = target + o * pitch;
    if (by_images) {
      x.inner = x.size[2], x.inner_stride = x.stride[2], x.target += first, x.pitch = image;
      x.outer = x.size[0], x.outer_stride = x.stride[0], x.size[0] = 1;
      x.size[2] = x.padded = c->batch, x.stride[2] = 1, x.pad_low = 0;
    }
    if (end > first || !by_images) hloc_conv_arrange(&x);
  }
  c->x = target, c->x_n = image, c->x_c = 1, c->x_s[0] = c->x_size[1] * row, c->x_s[1] = row, c->x_s[2] = pitch;
  c->x_size[2] = c->y_size[2], c->stride[2] = c->window_dilation[2] = 1, c->pad_low[2] = 0;
}

/* w as [s0][s1][s2, feature][output]: its s2 becomes part of the features. */
static void arrange_weights(hloc_conv_args* c, hloc_conv_type type, float* target) {
  hloc_conv_arrangement w = {.source = c->w, .type = type, .padded = c->x_features, .inner = c->y_features};
  w.pitch = w.inner, w.inner_stride = c->w_o, w.outer = c->window[0], w.outer_stride = c->w_s[0];
  w.size[0] = c->window[1], w.stride[0] = c->w_s[1], w.size[1] = c->window[2], w.stride[1] = c->w_s[2];
  w.size[2] = c->x_features, w.stride[2] = c->w_i, w.target = target;
  hloc_conv_arrange(&w);
  c->w = target, c->w_o = 1, c->w_i = c->y_features, c->w_s[2] = c->x_features * c->w_i;
  c->w_s[1] = c->window[2] * c->w_s[2], c->w_s[0] = c->window[1] * c->w_s[1];
}

int hloc_conv_by_rows(hloc_conv_plan* plan, hloc_conv_type type) {
  hloc_conv_args* c = &plan->c;
  const hloc_conv_choices by = c->choices;
  hloc_conv_arrangement x = arrange_x(c, type), w = arrange_w(c, type);
  float* memory = hloc_scratch(HLOC_FIRST, by.first);
  if (!memory) return 1;
  x.pitch = by.pitch, x.target = memory, w.target = memory + by.at_w;
  if (by.one_piece) {
    if (by.move_x) arrange_windows(c, type, memory);
    if (by.move_w) arrange_weights(c, type, w.target);
    if (c->x_features == 1) c->w_i = c->w_s[2];
    c->x_features *= c->window[2], c->window[2] = 1;
  } else {
    if (by.move_x) hloc_conv_arrange(&x), use_x(c, &x);
    if (by.move_w) hloc_conv_arrange(&w), use_w(c, &w);
  }
  return hloc_conv_rows(plan, memory + by.at_panels);
}

HLOC_CONV_ENTRIES(rows, hloc_conv_by_rows)
