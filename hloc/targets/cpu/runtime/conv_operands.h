/* conv_operands.h: the operands of a convolution in f32, in the order that a way of conv.h wants.
 *
 * arrange_x, arrange_w say what is to be copied; hloc_conv_arrange does it; use_x, use_w make of the copy the operand.
 */
#ifndef HLOC_CONV_OPERANDS_H
#define HLOC_CONV_OPERANDS_H
#include "conv_internal.h"

/* out[outer][s0][s1][s2][inner] as f32, s2 padded with zeros on both sides */
typedef struct {
  const void* source;
  hloc_conv_type type;
  long outer, outer_stride, inner, inner_stride, size[3], stride[3];
  long pad_low, padded; /* of s2: zeros before, length of the result */
  long pitch;           /* floats from one place of s2 to the next in the result: at least `inner` */
  float* target;
} hloc_conv_arrangement;
void hloc_conv_arrange(const hloc_conv_arrangement* a);

static inline long arranged_floats(const hloc_conv_arrangement* a) {
  return a->outer * a->size[0] * a->size[1] * a->padded * a->pitch + HLOC_CONV_COLUMNS;
}
static inline hloc_conv_arrangement arrange_x(const hloc_conv_args* c, hloc_conv_type type, int batch_inner) {
  hloc_conv_arrangement a = {.source = c->x, .type = type, .padded = c->x_size[2]};
  a.outer = batch_inner ? c->x_features : c->batch, a.outer_stride = batch_inner ? c->x_c : c->x_n;
  a.inner = batch_inner ? c->batch : c->x_features, a.inner_stride = batch_inner ? c->x_n : c->x_c;
  a.pitch = a.inner;
  for (int d = 0; d < 3; d++) a.size[d] = c->x_size[d], a.stride[d] = c->x_s[d];
  return a;
}
static inline hloc_conv_arrangement arrange_w(const hloc_conv_args* c, hloc_conv_type type) {
  hloc_conv_arrangement a = {.source = c->w, .type = type, .padded = c->window[2]};
  a.outer = c->x_features / c->feature_groups, a.outer_stride = c->w_i;
  a.inner = a.pitch = c->y_features, a.inner_stride = c->w_o;
  for (int d = 0; d < 3; d++) a.size[d] = c->window[d], a.stride[d] = c->w_s[d];
  return a;
}
/* The strides of the result, and the result itself, as the convolution's operand. */
static inline void use_x(hloc_conv_args* c, const hloc_conv_arrangement* a, int batch_inner) {
  long row = a->padded * a->pitch, outer = a->size[0] * a->size[1] * row;
  c->x = a->target;
  c->x_n = batch_inner ? 1 : outer, c->x_c = batch_inner ? outer : 1;
  c->x_s[2] = a->pitch, c->x_s[1] = row, c->x_s[0] = a->size[1] * row;
}
static inline void use_w(hloc_conv_args* c, const hloc_conv_arrangement* a) {
  long row = a->padded * a->inner;
  c->w = a->target;
  c->w_o = 1, c->w_i = a->size[0] * a->size[1] * row;
  c->w_s[2] = a->inner, c->w_s[1] = row, c->w_s[0] = a->size[1] * row;
}

static inline int all_ones(const long* v) { return v[0] == 1 && v[1] == 1 && v[2] == 1; }
static inline long taps_of(const hloc_conv_args* c) { return c->window[0] * c->window[1] * c->window[2]; }
static inline long element_bytes(hloc_conv_type type) { return type == HLOC_CONV_IS_F32 ? 4 : 2; }

#endif
