/* conv_product.c: convolutions that are matmuls (conv_product.h): 1x1 windows over contiguous images, and one output
 * position that reads all of x.
 */
#include "conv_product.h"

static hloc_gemm_args of_positions(const hloc_conv_args* c) {
  const int in_line = is_in_line(c);
  hloc_gemm_args g = {.batches = 1, .inner_batches = 1, .n = c->y_features, .k = c->x_features};
  g.m = c->batch * c->y_size[0] * c->y_size[1] * c->y_size[2];
  g.a = c->x, g.a_row = c->x_s[2], g.a_column = c->x_c;
  g.b = c->w, g.b_row = c->w_i, g.b_column = c->w_o;
  if (!in_line) {
    g.k *= taps_of(c);
    g.a_row = c->x_n, g.a_column = step_through(c->x_features, c->x_c, c->x_size, c->x_s);
    g.b_row = step_through(c->x_features, c->w_i, c->window, c->w_s);
  }
  g.c = c->y, g.c_row = in_line ? c->y_s[2] : c->y_n, g.c_column = c->y_c;
  return g;
}
int hloc_conv_by_product(hloc_conv_plan* plan, hloc_conv_type type) {
  (void)type;
  const hloc_conv_args* c = &plan->c;
  hloc_gemm_args g = of_positions(c);
  g.c_is_narrow = plan->y_type != HLOC_CONV_IS_F32;
  g.epilogue = c->epilogue, g.epilogue_args = c->epilogue_args;
  g.b_packed = c->w_packed, g.pack_to = c->pack_to, g.plan = c->products;
  return plan->product(&g);
}

#pragma weak hloc_gemm_f32 /* a program contains those that it calls */
#pragma weak hloc_gemm_bf16
#pragma weak hloc_gemm_f16
int hloc_conv_product_f32(const hloc_conv_args* args) {
  return convolve(args, HLOC_CONV_IS_F32, hloc_conv_by_product, hloc_gemm_f32);
}
int hloc_conv_product_bf16(const hloc_conv_args* args) {
  return convolve(args, HLOC_CONV_IS_BF16, hloc_conv_by_product, hloc_gemm_bf16);
}
int hloc_conv_product_f16(const hloc_conv_args* args) {
  return convolve(args, HLOC_CONV_IS_F16, hloc_conv_by_product, hloc_gemm_f16);
}
