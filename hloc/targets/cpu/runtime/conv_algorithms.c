/* conv_algorithms.c: chooses the algorithm of a convolution. Programs call an algorithm itself, which
 * hloc/targets/cpu/scratch/convolution_algorithms.py chooses at compile time.
 *
 *   1x1 windows over contiguous images, and
 *   one output position that reads all of x -> conv_product.c
 *   one window per channel                  -> conv_depthwise.c
 *   filter gradients of depthwise           -> conv_gradient.c
 *   windows of many positions, x_n == 1     -> conv_outer.c (filter gradients)
 *   base dilation, few or small images      -> conv_transposed.c
 *   others                                  -> conv.c
 */
#include "conv_product.h"

/* Whether conv_transposed.c applies and is faster than conv_rows.c: features would leave lanes empty there, or images
 * have too few positions for the phases of conv_rows.c; weights must stay in cache between images. */
static int is_transposed(const hloc_conv_args* c) {
  enum { FEWEST_FEATURES = 8, FEW = HLOC_LANES32, SMALL_IMAGE = 1 << 18, SMALL_WEIGHTS = 1 << 16 };
  if (all_ones(c->base_dilation) || !all_ones(c->stride) || c->window_dilation[2] != 1) return 0;
  if (taps_of(c) > 4 * c->y_size[0] * c->y_size[1] * c->y_size[2]) return 0;
  long floats = c->x_size[0] * c->x_size[1] * c->x_size[2] * taps_of(c) * c->y_features;
  int small = floats <= SMALL_IMAGE && taps_of(c) * c->x_features * c->y_features <= SMALL_WEIGHTS;
  return c->feature_groups == 1 && c->x_features >= FEWEST_FEATURES && (c->y_features <= FEW || small);
}
static hloc_conv_algorithm choose(const hloc_conv_plan* plan) {
  const hloc_conv_args* c = &plan->c;
  if (is_product(c)) return plan->column_offset ? hloc_conv_by_rows : hloc_conv_by_product;
  if (c->feature_groups > 1 && c->feature_groups == c->x_features && c->y_features == c->x_features &&
      all_ones(c->base_dilation))
    return hloc_conv_by_depthwise;
  long places = c->y_size[0] * c->y_size[1] * c->y_size[2], depth = c->x_features / c->feature_groups;
  int like_filter_gradient = taps_of(c) > 4 * places && (taps_of(c) > 128 || (c->x_c != 1 && c->x_n == 1));
  if (c->feature_groups == 1 && (like_filter_gradient || depth > 16384)) return hloc_conv_by_outer;
  return is_transposed(c) ? hloc_conv_by_spread : hloc_conv_by_rows;
}
static int by_choice(hloc_conv_plan* plan, hloc_conv_type type) { return choose(plan)(plan, type); }

static int is_channel_gradient(const hloc_conv_args* c) {
  return c->batch_groups > 1 && c->batch_groups == c->batch && c->batch_groups == c->y_features &&
         c->feature_groups == 1 && all_ones(c->base_dilation);
}
static int convolve_any(const hloc_conv_args* args, hloc_conv_type type, hloc_product product) {
  return is_channel_gradient(args) ? hloc_conv_by_channels(args, type) : convolve(args, type, by_choice, product);
}
int hloc_conv_f32(const hloc_conv_args* args) { return convolve_any(args, HLOC_CONV_IS_F32, hloc_gemm_f32); }
int hloc_conv_bf16(const hloc_conv_args* args) { return convolve_any(args, HLOC_CONV_IS_BF16, hloc_gemm_bf16); }
int hloc_conv_f16(const hloc_conv_args* args) { return convolve_any(args, HLOC_CONV_IS_F16, hloc_gemm_f16); }
