/* conv_gradient.c: filter gradients of depthwise convolutions: every channel is a batch group (batch_groups == batch ==
 * y_features, no feature groups, no base dilation).
 *
 *     y[o][channel] = sum over features i of x and w, and positions k of w, of x[i][o + k] w[i][k]
 *
 * With x_n == 1 and w_o == 1, f32. A task is one output row (o0, o1) for LANES channels.
 */
#include "conv_windows.h"

/* sum += the products along one row of w and of x. There are several sums, so that additions are independent. */
static void add_row(const float* x, long x_step, const float* w, long w_step, long count, hloc_vf32 sum[4]) {
  long k = 0;
  for (; k + 4 <= count; k += 4)
    HLOC_UNROLL for (int j = 0; j < 4; j++)
      sum[j] += hloc_load_f32(x + (k + j) * x_step) * hloc_load_f32(w + (k + j) * w_step);
  for (; k < count; k++) sum[0] += hloc_load_f32(x + k * x_step) * hloc_load_f32(w + k * w_step);
}
static float add_row_of_one(const float* x, long x_step, const float* w, long w_step, long count, float sum) {
  for (long k = 0; k < count; k++) sum += x[k * x_step] * w[k * w_step];
  return sum;
}

/* The sums of `channels` <= HLOC_LANES32 channels at one output position. */
static void channel_sums(const hloc_conv_args* c, long channel, long channels, const long* o, float* sums) {
  long origin[3], from[3], to[3];
  for (int d = 0; d < 3; d++) {
    origin[d] = o[d] * c->stride[d] - c->pad_low[d];
    inside_window(c, d, o[d], &from[d], &to[d]);
    if (to[d] < from[d]) to[d] = from[d];
  }
  const long x_step = c->window_dilation[2] * c->x_s[2], count = to[2] - from[2];
  const long w_step = c->reversed[2] ? -c->w_s[2] : c->w_s[2];
  hloc_vf32 total[4] = {{0}};
  for (long j = 0; j < channels; j++) sums[j] = 0.0f;
  for (long i = 0; i < c->x_features; i++)
    for (long k0 = from[0]; k0 < to[0]; k0++)
      for (long k1 = from[1]; k1 < to[1]; k1++) {
        const float* x = (const float*)c->x + channel + i * c->x_c +
                         (origin[0] + k0 * c->window_dilation[0]) * c->x_s[0] +
                         (origin[1] + k1 * c->window_dilation[1]) * c->x_s[1] + origin[2] * c->x_s[2] +
                         from[2] * x_step;
        const float* w = (const float*)c->w + channel + i * c->w_i + window_place(c, 0, k0) * c->w_s[0] +
                         window_place(c, 1, k1) * c->w_s[1] + window_place(c, 2, from[2]) * c->w_s[2];
        if (channels == HLOC_LANES32) add_row(x, x_step, w, w_step, count, total);
        else for (long j = 0; j < channels; j++) sums[j] = add_row_of_one(x + j, x_step, w + j, w_step, count, sums[j]);
      }
  if (channels == HLOC_LANES32) hloc_store_f32(sums, (total[0] + total[1]) + (total[2] + total[3]));
}
static void gradient_rows(void* const* args, long begin, long end) {
  const hloc_conv_plan* plan = (const hloc_conv_plan*)args;
  const hloc_conv_args* c = &plan->c;
  const long blocks = (c->y_features + HLOC_LANES32 - 1) / HLOC_LANES32;
  for (long item = begin; item < end; item++) {
    long channel = item % blocks * HLOC_LANES32, row = item / blocks;
    long channels = hloc_min(HLOC_LANES32, c->y_features - channel), o[3] = {row / c->y_size[1], row % c->y_size[1], 0};
    for (; o[2] < c->y_size[2]; o[2]++) {
      float sums[HLOC_LANES32];
      channel_sums(c, channel, channels, o, sums);
      hloc_conv_finish(plan, row * c->y_size[2] + o[2], channel, 1, channels, sums, channels);
    }
  }
}

static void run_gradient(const hloc_conv_plan* plan) {
  const hloc_conv_args* c = &plan->c;
  const long blocks = (c->y_features + HLOC_LANES32 - 1) / HLOC_LANES32;
  const long work = c->y_size[2] * c->x_features * c->window[0] * c->window[1] * c->window[2];
  hloc_parallel(gradient_rows, (void* const*)plan, c->y_size[0] * c->y_size[1] * blocks, 32768 / (work + 1) + 1);
}

int hloc_conv_by_channels(const hloc_conv_args* args, hloc_conv_type type) {
  hloc_conv_plan plan = {.c = *args, .y_type = args->y_is_narrow ? type : HLOC_CONV_IS_F32};
  hloc_conv_args* c = &plan.c;
  if (c->y_size[0] * c->y_size[1] * c->y_size[2] <= 0) return 0;
  if (hloc_conv_move(c, type, 1)) return 1;
  run_gradient(&plan);
  return 0;
}

int hloc_conv_channels_f32(const hloc_conv_args* args) { return hloc_conv_by_channels(args, HLOC_CONV_IS_F32); }
int hloc_conv_channels_bf16(const hloc_conv_args* args) { return hloc_conv_by_channels(args, HLOC_CONV_IS_BF16); }
int hloc_conv_channels_f16(const hloc_conv_args* args) { return hloc_conv_by_channels(args, HLOC_CONV_IS_F16); }
