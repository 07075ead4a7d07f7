/* conv_pairs.c: convolutions of bf16 by rows (conv_rows.c), on CPUs that multiply pairs of them.
 *
 * In: a plan with an even number of features per group. Two neighbouring features are one number of 32 bits. If they
 * are contiguous in memory, and strides of x are even, x is read in place; else, and for w, pairs are copied. Sums are
 * f32, as in products of bf16.
 */
#include "conv_operands.h"
#include "pairs.h"

static void use_x_in_place(hloc_conv_args* c) {
  c->x_n /= 2;
  for (int d = 0; d < 3; d++) c->x_s[d] /= 2;
}

int hloc_conv_by_pairs(hloc_conv_plan* plan, hloc_conv_type type) {
  hloc_conv_args* c = &plan->c;
  const hloc_conv_choices by = c->choices;
  hloc_conv_arrangement x = arrange_x(c, type), w = arrange_w(c, type);
  x_in_pairs(&x), w_in_pairs(&w);
  x.pitch = by.pitch, c->x_features /= 2;
  float* memory = hloc_scratch(HLOC_FIRST, by.first);
  if (!memory) return 1;
  x.target = memory, w.target = memory + by.at_w;
  if (by.move_x) hloc_conv_arrange(&x), use_x(c, &x);
  else use_x_in_place(c);
  if (by.move_w) hloc_conv_arrange(&w), use_w(c, &w);
  plan->of_pairs = 1;
  return hloc_conv_rows(plan, memory + by.at_panels);
}

#if HLOC_HAS_PAIRS
int hloc_conv_pairs_bf16(const hloc_conv_args* args) {
  return convolve(args, HLOC_CONV_IS_BF16, hloc_conv_by_pairs);
}
#endif
