/* conv_operands.h: the first steps of algorithms of conv.h: one plan per batch group, and the operands in f32, in the
 * order of the algorithm.
 *
 * convolve runs an algorithm for each batch group; HLOC_CONV_ENTRIES(rows, algorithm) defines hloc_conv_rows_<t>, which
 * calls it. arrange_x, arrange_w describe a copy; x_in_pairs, w_in_pairs describe one in which neighbouring features of
 * bf16 become one number of 32 bits. hloc_conv_arrange copies; use_x, use_w make the copy the operand.
 */
#ifndef HLOC_CONV_OPERANDS_H
#define HLOC_CONV_OPERANDS_H
#include "conv_internal.h"

/* out[outer][s0][s1][s2][inner] as f32, or pairs of bf16, s2 padded with zeros on both sides */
typedef struct {
  const void* source;
  hloc_conv_type type;
  long outer, outer_stride, inner, inner_stride, size[3], stride[3];
  long pad_low, padded; /* of s2: zeros before, length of the result */
  long pitch;           /* floats from one position of s2 to the next in the result: at least `inner` */
  long row;             /* and from one of s1: 0 means padded * pitch */
  long partner;         /* of pairs: elements from the first number of one to the second */
  float* target;
  int transposed;           /* set by hloc_conv_arrange, as the following: positions are contiguous in the source */
  long piece, pieces;   /* of s2, a task each */
  long last;            /* the furthest element of the source */
} hloc_conv_arrangement;
void hloc_conv_arrange(const hloc_conv_arrangement* a);

static inline hloc_conv_arrangement arrange_x(const hloc_conv_args* c, hloc_conv_type type) {
  hloc_conv_arrangement a = {.source = c->x, .type = type, .padded = c->x_size[2]};
  a.outer = c->batch, a.outer_stride = c->x_n;
  a.inner = a.pitch = c->x_features, a.inner_stride = c->x_c;
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
static inline void x_in_pairs(hloc_conv_arrangement* x) {
  x->type = HLOC_CONV_IS_PAIRS, x->partner = x->inner_stride;
  x->inner /= 2, x->inner_stride *= 2, x->pitch = x->inner;
}
static inline void w_in_pairs(hloc_conv_arrangement* w) {
  w->type = HLOC_CONV_IS_PAIRS, w->partner = w->outer_stride;
  w->outer /= 2, w->outer_stride *= 2;
}
/* The strides of the result, and the result itself, as the convolution's operand. */
static inline void use_x(hloc_conv_args* c, const hloc_conv_arrangement* a) {
  long row = a->padded * a->pitch;
  c->x = a->target;
  c->x_n = a->size[0] * a->size[1] * row, c->x_c = 1;
  c->x_s[2] = a->pitch, c->x_s[1] = row, c->x_s[0] = a->size[1] * row;
}
static inline void use_w(hloc_conv_args* c, const hloc_conv_arrangement* a) {
  long row = a->padded * a->inner;
  c->w = a->target;
  c->w_o = 1, c->w_i = a->size[0] * a->size[1] * row;
  c->w_s[2] = a->inner, c->w_s[1] = row, c->w_s[0] = a->size[1] * row;
}

/* Rearranges image and filter as c->choices say; 1 if memory is exhausted. */
int hloc_conv_move(hloc_conv_args* c, hloc_conv_type type);

static inline int all_ones(const long* v) { return v[0] == 1 && v[1] == 1 && v[2] == 1; }
static inline long taps_of(const hloc_conv_args* c) { return c->window[0] * c->window[1] * c->window[2]; }
static inline long element_bytes(hloc_conv_type type) { return type == HLOC_CONV_IS_F32 ? 4 : 2; }

static inline int convolve(const hloc_conv_args* args, hloc_conv_type type, hloc_conv_algorithm algorithm) {
  int failed = 0;
  if (args->batch <= 0 || args->y_features <= 0 || args->y_size[0] * args->y_size[1] * args->y_size[2] <= 0) return 0;
  for (long group = 0; group < args->batch_groups; group++) { /* contiguous parts of the batch and the features */
    hloc_conv_plan plan = {.c = *args, .y_type = args->y_is_narrow ? type : HLOC_CONV_IS_F32};
    hloc_conv_args* c = &plan.c;
    plan.failed = &failed;
    c->batch /= c->batch_groups, c->y_features /= c->batch_groups;
    plan.column_offset = group * c->y_features;
    c->x = (const char*)c->x + group * c->batch * c->x_n * element_bytes(type);
    c->w = (const char*)c->w + group * c->y_features * c->w_o * element_bytes(type);
    if (c->y) c->y = (char*)c->y + group * c->y_features * c->y_c * element_bytes(plan.y_type);
    if (c->y_features == 1) c->y_c = 1; /* whatever it was: features are contiguous */
    if (algorithm(&plan, type)) return 1;
  }
  return failed;
}
#define HLOC_CONV_ENTRIES(NAME, ALGORITHM)                                                                             \
  int hloc_conv_##NAME##_f32(const hloc_conv_args* args) { return convolve(args, HLOC_CONV_IS_F32, ALGORITHM); }       \
  int hloc_conv_##NAME##_bf16(const hloc_conv_args* args) { return convolve(args, HLOC_CONV_IS_BF16, ALGORITHM); }     \
  int hloc_conv_##NAME##_f16(const hloc_conv_args* args) { return convolve(args, HLOC_CONV_IS_F16, ALGORITHM); }

#endif
