/* conv_transposed.c: convolutions with a base dilation and stride 1, such as the gradients of strided ones.
 *
 * A matmul computes the terms that each input position adds to each tap's output, spread[position][tap][feature], for
 * some images at a time; then the terms of every run of outputs are added. No input position is multiplied by a tap
 * that does not read it, and features that are too few for a vector are contiguous with those of the other taps.
 *
 *   along the last dimension   output = position * base_dilation + pad_low - tap: taps are reversed in w
 *   in the others              for each tap, the position that the output reads, if there is one
 */
#include "conv_operands.h"


typedef struct {
  const hloc_conv_plan* plan;
  const float* spread;
  long first_image, taps, row;     /* row: floats that one input position adds */
  long pieces, piece;              /* of an output row, and outputs in one */
} transposed_work;

/* The input position that tap k adds to output o of dimension d; -1: none. */
static long met_by(const hloc_conv_args* c, int d, long o, long k) {
  long at = o - c->pad_low[d] + (c->reversed[d] ? c->window[d] - 1 - k : k) * c->window_dilation[d];
  if (at < 0 || at % c->base_dilation[d]) return -1;
  at /= c->base_dilation[d];
  return at < c->x_size[d] ? at : -1;
}

/* Adds the terms of one row of input positions to the outputs [begin, end) of a row: to sums[output][feature]; from:
 * the terms of the row's first position. */
static void add_runs(const transposed_work* w, const float* from, long begin, long end, float* restrict sums) {
  const hloc_conv_args* c = &w->plan->c;
  const long n = c->window[2], step = c->base_dilation[2], features = c->y_features;
  const long shift = c->pad_low[2] - (n - 1); /* the output of position 0's first tap */
  long p = begin - shift - n + 1; /* the first position whose last tap reaches `begin` */
  p = p > 0 ? (p + step - 1) / step : 0;
  for (; p < c->x_size[2] && p * step + shift < end; p++) {
    long start = p * step + shift, low = hloc_max(start, begin), high = hloc_min(start + n, end);
    const float* run = from + p * w->row + (low - start) * features;
    float* to = sums + (low - begin) * features;
    for (long i = 0; i < (high - low) * features; i++) to[i] += run[i];
  }
}

/* Pieces of output rows: all taps of the first two dimensions. */
static void sum_pieces(void* const* args, long first, long last) {
  const transposed_work* w = (const transposed_work*)args;
  const hloc_conv_args* c = &w->plan->c;
  float* sums = hloc_own_scratch(c->choices.own, w->plan->failed);
  if (!sums) return;
  for (long item = first; item < last; item++) {
    long begin = item % w->pieces * w->piece, line = item / w->pieces, end = hloc_min(begin + w->piece, c->y_size[2]);
    long o1 = line % c->y_size[1], o0 = line / c->y_size[1] % c->y_size[0], image = line / c->y_size[1] / c->y_size[0];
    __builtin_memset(sums, 0, (size_t)((end - begin) * c->y_features) * sizeof(float));
    for (long k0 = 0; k0 < c->window[0]; k0++)
      for (long k1 = 0; k1 < c->window[1]; k1++) {
        long p0 = met_by(c, 0, o0, k0), p1 = met_by(c, 1, o1, k1);
        if (p0 < 0 || p1 < 0) continue;
        long place = ((image * c->x_size[0] + p0) * c->x_size[1] + p1) * c->x_size[2];
        long tap = (k0 * c->window[1] + k1) * c->window[2];
        add_runs(w, w->spread + place * w->row + tap * c->y_features, begin, end, sums);
      }
    long position = (w->first_image * c->y_size[0] * c->y_size[1] + line) * c->y_size[2] + begin;
    hloc_conv_finish(w->plan, position, 0, end - begin, c->y_features, sums, c->y_features);
  }
}

static int run_spread(hloc_conv_plan* plan, float* spread) {
  const hloc_conv_args* c = &plan->c;
  const long positions = c->x_size[0] * c->x_size[1] * c->x_size[2], images = c->choices.images;
  transposed_work w = {.plan = plan, .spread = spread, .taps = c->window[0] * c->window[1] * c->window[2]};
  w.row = w.taps * c->y_features;
  w.piece = c->choices.piece;
  w.pieces = (c->y_size[2] + w.piece - 1) / w.piece;
  hloc_gemm_args g = {.inner_batches = 1, .m = positions, .n = w.row, .k = c->x_features, .a_outer = c->x_n,
                      .a_row = c->x_s[2], .a_column = c->x_c, .b = c->w, .b_row = c->w_i, .b_column = 1, .c = spread,
                      .c_outer = positions * w.row, .c_row = w.row, .c_column = 1};
  for (w.first_image = 0; w.first_image < c->batch; w.first_image += images) {
    g.batches = hloc_min(images, c->batch - w.first_image);
    g.a = (const float*)c->x + w.first_image * c->x_n;
    g.plan = hloc_gemm_plan_for(c->products, g.batches, positions);
    if (g.m && g.k && hloc_gemm_f32(&g)) return 1;
    if (!g.k) __builtin_memset(spread, 0, (size_t)(g.batches * positions * w.row) * sizeof(float));
    long items = g.batches * c->y_size[0] * c->y_size[1] * w.pieces;
    long work = w.piece * c->y_features * c->window[0] * c->window[1];
    hloc_parallel(sum_pieces, (void* const*)&w, items, 32768 / (work + 1) + 1);
  }
  return 0;
}

int hloc_conv_by_spread(hloc_conv_plan* plan, hloc_conv_type type) {
  hloc_conv_args* c = &plan->c;
  const hloc_conv_choices by = c->choices;
  hloc_conv_arrangement x = arrange_x(c, type), w = arrange_w(c, type);
  if (!c->reversed[2]) { /* reverses the taps of the last dimension */
    w.source = (const char*)w.source + (c->window[2] - 1) * w.stride[2] * element_bytes(type);
    w.stride[2] = -w.stride[2];
  }
  float* memory = hloc_scratch(HLOC_SECOND, by.second);
  if (!memory) return 1;
  x.target = memory, w.target = memory + by.at_w;
  if (by.move_x) hloc_conv_arrange(&x), use_x(c, &x);
  hloc_conv_arrange(&w), use_w(c, &w);
  return run_spread(plan, memory + by.at_panels);
}

HLOC_CONV_ENTRIES(spread, hloc_conv_by_spread)
