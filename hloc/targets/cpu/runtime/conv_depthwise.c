/* conv_depthwise.c: every channel has its own window (feature_groups == x_features == y_features, no base dilation);
 * vectorized over channels.
 *
 * With x_c == 1 and w_o == 1, f32. A task is one output row (batch, o0, o1).
 */
#include "conv_windows.h"

enum { CHANNELS = 4 * HLOC_LANES32 };

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

static int run_depthwise(hloc_conv_plan* plan) {
  const hloc_conv_args* c = &plan->c;
  long rows = c->batch * c->y_size[0] * c->y_size[1];
  long work = c->y_size[2] * c->x_features * c->window[0] * c->window[1] * c->window[2];
  hloc_parallel(run_rows, (void* const*)plan, rows, 65536 / (work + 1) + 1);
  return 0;
}

int hloc_conv_by_depthwise(hloc_conv_plan* plan, hloc_conv_type type) {
  hloc_conv_args* c = &plan->c;
  int move_x = type != HLOC_CONV_IS_F32 || c->x_c != 1, move_w = type != HLOC_CONV_IS_F32 || c->w_o != 1;
  return hloc_conv_move(c, type, 0, move_x, move_w) || run_depthwise(plan);
}

HLOC_CONV_ENTRIES(depthwise, hloc_conv_by_depthwise)
