/* conv.h: convolutions with any dimension order, padding, dilation, reversal, groups and a fused epilogue.
 *
 * Entry points (sizes and strides are arguments; they split the work over the pool and return 0 when done, 1 if there
 * is no scratch memory):
 *   int hloc_conv_<algorithm>_f32(const hloc_conv_args*)     sums and tiles f32
 *   int hloc_conv_<algorithm>_bf16, _f16         x, w of that type, sums f32; y of that type if y_is_narrow, else f32.
 *                                                The algorithm is chosen at compile time
 *                                                (targets/cpu/plans/convolution_algorithms.py): rows, depthwise,
 *                                                spread, winograd (conv_internal.h); of bf16 alone: pairs
 *   int hloc_conv_<t>      for t in s32 s64 u32 u64 f64 c64 c128: sums in t (generic_conv.h)
 *   int hloc_conv_<t>_s32  for t in pred s8 u8 s16 u16: sums s32, which wrap
 *
 * All sizes are per HLO's window: for every output position o and window position k of a spatial dimension d
 *     p = o * stride[d] - pad_low[d] + (reversed[d] ? window[d] - 1 - k : k) * window_dilation[d]
 * reads x at p / base_dilation[d] when that is whole and within [0, x_size[d]), else zero. pad_low may be negative.
 * Careful: HLO's window_reversal says that the window is read backwards: set reversed[d] for it.
 * Unused spatial dimensions (rank below 3) come first and have x_size = window = y_size = stride = dilations = 1.
 * Any strides (in elements) are allowed, so every dim_labels maps to the arguments without a transpose:
 *   x[n * x_n + c * x_c + sum_d position_d * x_s[d]]       n < batch, c < x_features
 *   w[i * w_i + o * w_o + sum_d k_d * w_s[d]]              i < x_features / feature_groups, o < y_features
 *   y[n * y_n + o * y_c + sum_d o_d * y_s[d]]              n < batch / batch_groups
 * Fast when x_c, w_o and y_c are 1 (NHWC x HWIO -> NHWC), and for filter gradients written as convolutions (dim_labels
 * f01b_i01o->01bf over NHWC memory) when x_n and w_o are 1; other orders are rearranged into scratch memory first.
 *
 * Epilogue (optional, the same type as gemm.h's): epilogue(args, 0, row, column, rows, columns, tile, tile_stride): the
 * sum for output feature column + j at the row + i-th output position is tile[i * tile_stride + j]; positions are
 * counted in the order batch, spatial 0, 1, 2: row = ((n * y_size[0] + o0) * y_size[1] + o1) * y_size[2] + o2. A
 * transposed one is called as epilogue(args, n, feature, position, features, positions, tile, tile_stride). Its rows
 * are features: tile[i * tile_stride + j] is the sum of feature + i at the position + j-th of image n.
 *
 * w_packed: the filter as written by a call with pack_to, as in gemm.h: that call neither reads x nor computes sums.
 * hloc/targets/cpu/plans/packing.py has the algorithms that pack, and the numbers of bytes.
 * products: the plans of its matmuls, the last one empty (gemm.h). choices: how it is computed, as decided by
 * hloc/targets/cpu/plans/convolutions.py, which says what each field means.
 *
 * Example: 3x3, stride 1, padding 1, NHWC f32[8,56,56,64] x HWIO f32[3,3,64,64]:
 *   hloc_conv_args args = {.batch = 8, .x_features = 64, .y_features = 64, .feature_groups = 1, .batch_groups = 1,
 *     .x_size = {1, 56, 56}, .window = {1, 3, 3}, .y_size = {1, 56, 56}, .stride = {1, 1, 1}, .pad_low = {0, 1, 1},
 *     .base_dilation = {1, 1, 1}, .window_dilation = {1, 1, 1}, .x = x, .x_n = 56*56*64, .x_c = 1,
 *     .x_s = {0, 56*64, 64}, .w = w, .w_i = 64, .w_o = 1, .w_s = {0, 3*64*64, 64*64}, .y = y, ...};
 *   hloc_conv_rows_f32(&args);
 */
#ifndef HLOC_CONV_H
#define HLOC_CONV_H
#include "fits.h"
#include "gemm.h"

typedef struct {
  int move_x, move_w, one_piece, is_few, by_dots, framed;
  long pitch, image, at_w, at_panels, first, second, own;
  long panels_at_once, blocks_at_once, row_group, grain, images, piece, patch_rows;
} hloc_conv_choices;

typedef struct {
  long batch, x_features, y_features, feature_groups, batch_groups;
  long x_size[3], window[3], y_size[3], stride[3], pad_low[3], base_dilation[3], window_dilation[3];
  int reversed[3];
  const void* x;
  long x_n, x_c, x_s[3];
  const void* w;
  long w_i, w_o, w_s[3];
  void* y;
  long y_n, y_c, y_s[3];
  int y_is_narrow;
  hloc_gemm_epilogue epilogue;
  void* const* epilogue_args;
  int epilogue_is_transposed;
  const void* w_packed;
  void* pack_to;
  const hloc_gemm_plan* products;
  hloc_conv_choices choices;
} hloc_conv_args;

#define HLOC_DECLARE_CONV(T) int hloc_conv_##T(const hloc_conv_args* args);
#define HLOC_DECLARE_ALGORITHM(W) HLOC_DECLARE_CONV(W##_f32) HLOC_DECLARE_CONV(W##_bf16) HLOC_DECLARE_CONV(W##_f16)
HLOC_DECLARE_ALGORITHM(rows)
HLOC_DECLARE_CONV(pairs_bf16)
HLOC_DECLARE_ALGORITHM(depthwise)
HLOC_DECLARE_ALGORITHM(spread)
HLOC_DECLARE_ALGORITHM(winograd)
HLOC_DECLARE_CONV(pred)
HLOC_DECLARE_CONV(s8)
HLOC_DECLARE_CONV(s16)
HLOC_DECLARE_CONV(s32)
HLOC_DECLARE_CONV(s64)
HLOC_DECLARE_CONV(u8)
HLOC_DECLARE_CONV(u16)
HLOC_DECLARE_CONV(u32)
HLOC_DECLARE_CONV(u64)
HLOC_DECLARE_CONV(f64)
HLOC_DECLARE_CONV(c64)
HLOC_DECLARE_CONV(c128)
HLOC_DECLARE_CONV(s8_s32)
HLOC_DECLARE_CONV(u8_s32)

#endif
