/* conv_product.h: how convolutions that are matmuls lie in memory (conv_product.c computes them). */
#ifndef HLOC_CONV_PRODUCT_H
#define HLOC_CONV_PRODUCT_H
#include "conv_operands.h"

static inline int is_pointwise(const hloc_conv_args* c) { /* output positions read the input at the same position */
  for (int d = 0; d < 3; d++)
    if (c->window[d] != 1 || c->stride[d] != 1 || c->pad_low[d] || c->base_dilation[d] != 1 ||
        c->x_size[d] != c->y_size[d])
      return 0;
  return c->feature_groups == 1 && c->x_s[0] == c->x_size[1] * c->x_s[1] && c->x_s[1] == c->x_size[2] * c->x_s[2];
}
static inline int y_is_plain(const hloc_conv_args* c) {
  return c->y_s[0] == c->y_size[1] * c->y_s[1] && c->y_s[1] == c->y_size[2] * c->y_s[2];
}
/* Whether all positions of all images have one stride, in x and in y. */
static inline int is_in_line(const hloc_conv_args* c) {
  const int x_in_line = c->batch == 1 || c->x_n == c->x_size[0] * c->x_s[0];
  const int y_in_line = y_is_plain(c) && (c->batch == 1 || c->y_n == c->y_size[0] * c->y_s[0]);
  return is_pointwise(c) && x_in_line && (y_in_line || c->epilogue);
}
/* The one stride that visits all elements of (features, s0, s1, s2) in order; 0: there is none. */
static inline long step_through(long features, long feature_stride, const long* size, const long* stride) {
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

#endif
