/* conv_pairs.c: convolutions of bf16 by rows (conv_rows.c), on CPUs that multiply pairs of them.
 *
 * In: a plan with x_c == 1 and an even number of features per group, places of x that are even numbers of elements
 * apart. Two neighbouring features are one number of 32 bits: x is read where it lies, of w the pairs are brought
 * together. Sums are of f32, as products of bf16 have them.
 */
#include "conv_operands.h"
#include "pairs.h"

/* Weights as pairs: target[pair of features][s0][s1][s2][output]. */
typedef struct { const hloc_conv_args* c; unsigned* target; } pairing;

static void pair_rows(void* const* args, long begin, long end) {
  const pairing* p = (const pairing*)args;
  const hloc_conv_args* c = p->c;
  for (long row = begin; row < end; row++) {
    const unsigned short* first = c->w;
    long rest = row;
    for (int d = 2; d >= 0; d--) first += rest % c->window[d] * c->w_s[d], rest /= c->window[d];
    first += rest * 2 * c->w_i;
    const unsigned short* second = first + c->w_i;
    unsigned* to = p->target + row * c->y_features;
    if (c->w_o == 1) for (long j = 0; j < c->y_features; j++) to[j] = first[j] | (unsigned)second[j] << 16;
    else for (long j = 0; j < c->y_features; j++) to[j] = first[j * c->w_o] | (unsigned)second[j * c->w_o] << 16;
  }
}

int hloc_conv_by_pairs(hloc_conv_plan* plan, hloc_conv_type type) {
  hloc_conv_args* c = &plan->c;
  hloc_conv_arrangement w = arrange_w(c, type);
  const hloc_conv_args numbers = *c;
  pairing pairs = {.c = &numbers};
  c->x_features /= 2, c->x_n /= 2, w.outer /= 2;
  for (int d = 0; d < 3; d++) c->x_s[d] /= 2;
  const long w_pairs = arranged_floats(&w), panel_pairs = hloc_conv_panel_floats(c);
  pairs.target = hloc_scratch(HLOC_FIRST, (size_t)(w_pairs + panel_pairs) * sizeof(unsigned));
  if (!pairs.target) return 1;
  hloc_parallel(pair_rows, (void* const*)&pairs, w.outer * taps_of(c), 16384 / (c->y_features + 1) + 1);
  w.target = (float*)pairs.target;
  use_w(c, &w);
  plan->of_pairs = 1;
  return hloc_conv_rows(plan, w.target + w_pairs);
}

#if HLOC_HAS_PAIRS
int hloc_conv_pairs_bf16(const hloc_conv_args* args) {
  return convolve(args, HLOC_CONV_IS_BF16, hloc_conv_by_pairs, NULL);
}
#endif
