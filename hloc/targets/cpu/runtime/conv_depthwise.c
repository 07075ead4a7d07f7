/* conv_depthwise.c: every channel has its own window (feature_groups == x_features == y_features), vectors along them;
 * and the filter gradients of such convolutions, where every channel is a batch group (batch_groups == batch ==
 * y_features).
 *
 * In: a plan with x_c == 1 (gradients: x_n == 1) and w_o == 1, f32, no base dilation. A task is one output row (batch,
 * o0, o1), of a gradient for LANES channels.
 */
#include "conv_internal.h"

enum { CHANNELS = 4 * HLOC_LANES32 };

/* The taps of one dimension that stay inside x for output position o: [*from, *to). */
static void inside_window(const hloc_conv_args* c, int d, long o, long* from, long* to) {
  long origin = o * c->stride[d] - c->pad_low[d], step = c->window_dilation[d];
  *from = origin < 0 ? (-origin + step - 1) / step : 0;
  *to = c->x_size[d] <= origin ? 0 : hloc_min(c->window[d], (c->x_size[d] - 1 - origin) / step + 1);
}
static long window_place(const hloc_conv_args* c, int d, long k) { return c->reversed[d] ? c->window[d] - 1 - k : k; }

/* sums of `channels` <= CHANNELS channels at one output position */
static void position_sums(const hloc_conv_args* c, const float* image, const float* weights, const long* origin,
                          const long* from, const long* to, long channels, float* sums) {
  hloc_vf32 sum[4] = {{0}};
  float rest[CHANNELS] = {0};
  int whole = channels == CHANNELS;
  for (long k0 = from[0]; k0 < to[0]; k0++)
    for (long k1 = from[1]; k1 < to[1]; k1++)
      for (long k2 = from[2]; k2 < to[2]; k2++) {
        const float* x = image + (origin[0] + k0 * c->window_dilation[0]) * c->x_s[0] +
                         (origin[1] + k1 * c->window_dilation[1]) * c->x_s[1] +
                         (origin[2] + k2 * c->window_dilation[2]) * c->x_s[2];
        const float* w = weights + window_place(c, 0, k0) * c->w_s[0] + window_place(c, 1, k1) * c->w_s[1] +
                         window_place(c, 2, k2) * c->w_s[2];
        if (whole) {
          HLOC_UNROLL for (int i = 0; i < 4; i++)
            sum[i] += hloc_load_f32(x + i * HLOC_LANES32) * hloc_load_f32(w + i * HLOC_LANES32);
        } else {
          for (long i = 0; i < channels; i++) rest[i] += x[i] * w[i];
        }
      }
  if (whole) for (int i = 0; i < 4; i++) hloc_store_f32(sums + i * HLOC_LANES32, sum[i]);
  else __builtin_memcpy(sums, rest, channels * sizeof(float));
}

static void run_rows(void* const* args, long begin, long end) {
  const hloc_conv_plan* plan = (const hloc_conv_plan*)args;
  const hloc_conv_args* c = &plan->c;
  float sums[CHANNELS] __attribute__((aligned(64)));
  for (long row = begin; row < end; row++) {
    long o1 = row % c->y_size[1], o0 = row / c->y_size[1] % c->y_size[0], n = row / c->y_size[1] / c->y_size[0];
    long from[3], to[3], origin[3];
    inside_window(c, 0, o0, &from[0], &to[0]);
    inside_window(c, 1, o1, &from[1], &to[1]);
    origin[0] = o0 * c->stride[0] - c->pad_low[0], origin[1] = o1 * c->stride[1] - c->pad_low[1];
    for (long o2 = 0; o2 < c->y_size[2]; o2++) {
      inside_window(c, 2, o2, &from[2], &to[2]);
      origin[2] = o2 * c->stride[2] - c->pad_low[2];
      long position = row * c->y_size[2] + o2;
      for (long channel = 0; channel < c->x_features; channel += CHANNELS) {
        long channels = hloc_min(CHANNELS, c->x_features - channel);
        const float* image = (const float*)c->x + n * c->x_n + channel;
        position_sums(c, image, (const float*)c->w + channel, origin, from, to, channels, sums);
        for (long part = 0; part < channels; part += HLOC_GEMM_TILE_COLUMNS)
          hloc_conv_finish(plan, position, channel + part, 1, hloc_min(HLOC_GEMM_TILE_COLUMNS, channels - part),
                           sums + part, CHANNELS);
      }
    }
  }
}

int hloc_conv_depthwise(hloc_conv_plan* plan) {
  const hloc_conv_args* c = &plan->c;
  long rows = c->batch * c->y_size[0] * c->y_size[1];
  long work = c->y_size[2] * c->x_features * c->window[0] * c->window[1] * c->window[2];
  hloc_parallel(run_rows, (void* const*)plan, rows, 65536 / (work + 1) + 1);
  return 0;
}

/* ---- filter gradients: y[o][channel] = sum over features i of x and w, and places k of w, of x[i][o + k] w[i][k] */

/* sum += along one row of w: x moves as w does. Several sums, so that additions do not wait for one another. */
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

int hloc_conv_channel_gradient(const hloc_conv_plan* plan) {
  const hloc_conv_args* c = &plan->c;
  const long blocks = (c->y_features + HLOC_LANES32 - 1) / HLOC_LANES32;
  const long work = c->y_size[2] * c->x_features * c->window[0] * c->window[1] * c->window[2];
  hloc_parallel(gradient_rows, (void* const*)plan, c->y_size[0] * c->y_size[1] * blocks, 32768 / (work + 1) + 1);
  return 0;
}
