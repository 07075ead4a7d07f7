/* conv_windows.h: the elements that a window reads of each channel, for conv_depthwise.c and conv_gradient.c. */
#ifndef HLOC_CONV_WINDOWS_H
#define HLOC_CONV_WINDOWS_H
#include "conv_operands.h"

/* The taps of one dimension that stay inside x for output position o: [*from, *to). */
static inline void inside_window(const hloc_conv_args* c, int d, long o, long* from, long* to) {
  long origin = o * c->stride[d] - c->pad_low[d], step = c->window_dilation[d];
  *from = origin < 0 ? (-origin + step - 1) / step : 0;
  *to = c->x_size[d] <= origin ? 0 : hloc_min(c->window[d], (c->x_size[d] - 1 - origin) / step + 1);
}
static inline long window_place(const hloc_conv_args* c, int d, long k) {
  return c->reversed[d] ? c->window[d] - 1 - k : k;
}

#endif
