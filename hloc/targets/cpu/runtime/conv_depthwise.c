/* conv_depthwise.c: every channel has its own window (feature_groups == x_features == y_features, no base dilation);
 * vectorized over channels. Filter gradients of such convolutions are the same with one more dimension of the window
 * (by_channel in hloc/targets/cpu/plans/convolution_algorithms.py).
 *
 * With x_c == 1 and w_o == 1, f32. A task is a piece of the channels of one output row (batch, o0, o1). A tile has up
 * to POSITIONS positions of it x two vectors of channels, so that a weight is loaded once for all of them. For every
 * tap of the window each position has a pointer to x's channels, or to zeros in the padding.
 */
#include "conv_operands.h"

#if HLOC_CONV_ROWS == 14
enum { POSITIONS = 7 };
#else
enum { POSITIONS = 6 };
#endif
enum { CHANNELS = 2 * HLOC_LANES32 };
#define MOST_CHANNELS 1024
enum { MOST_TAPS = 64 }; /* whose pointers, and the zeros of MOST_CHANNELS, are in the first cache */
HLOC_COMPILED_FOR(conv_depthwise, MOST_CHANNELS, 0, 0, 0)
enum { POINTERS = 8 };                         /* of a tap: POSITIONS of them, as whole vectors */

/* The taps of one dimension that stay inside x for output position o: [*from, *to). */
static void inside_window(const hloc_conv_args* c, int d, long o, long* from, long* to) {
  long origin = o * c->stride[d] - c->pad_low[d], step = c->window_dilation[d];
  *from = origin < 0 ? (-origin + step - 1) / step : 0;
  *to = c->x_size[d] <= origin ? 0 : hloc_min(c->window[d], (c->x_size[d] - 1 - origin) / step + 1);
}
static long window_place(const hloc_conv_args* c, int d, long k) { return c->reversed[d] ? c->window[d] - 1 - k : k; }

static const float depthwise_zeros[MOST_CHANNELS] __attribute__((aligned(64)));

/* Some taps of the window, for one tile's positions; pointers are to the first channel. Tiles whose windows stay inside
 * x differ by one distance alone: those of a row share the pointers of the first one. */
typedef struct {
  long first, taps; /* first < 0: nothing is known yet */
  long o2;          /* of the tile */
  int inside;
  const float* x[MOST_TAPS * POINTERS];
  const float* w[MOST_TAPS];
} tap_rows;

/* sums[i][j] (+)= sum over taps of x[i][shift + j] w[channel + j], `vectors` vectors of channels */
HLOC_INLINE void sum_taps(const int count, const int vectors, const tap_rows* rows, long shift, long channel,
                          float* restrict sums, long stride, int accumulate) {
  hloc_vf32 left[POSITIONS], right[POSITIONS];
  HLOC_UNROLL for (int i = 0; i < count; i++) {
    left[i] = accumulate ? hloc_load_f32(sums + i * stride) : (hloc_vf32){0};
    right[i] = accumulate && vectors > 1 ? hloc_load_f32(sums + i * stride + HLOC_LANES32) : (hloc_vf32){0};
  }
  const float* const* x = rows->x;
  for (long t = 0; t < rows->taps; t++, x += POINTERS) {
    const float* w = rows->w[t] + channel;
    hloc_vf32 w0 = hloc_load_f32(w), w1 = vectors > 1 ? hloc_load_f32(w + HLOC_LANES32) : w0;
    HLOC_UNROLL for (int i = 0; i < count; i++) {
      left[i] += hloc_load_f32(x[i] + shift) * w0;
      if (vectors > 1) right[i] += hloc_load_f32(x[i] + shift + HLOC_LANES32) * w1;
    }
  }
  HLOC_UNROLL for (int i = 0; i < count; i++) {
    hloc_store_f32(sums + i * stride, left[i]);
    if (vectors > 1) hloc_store_f32(sums + i * stride + HLOC_LANES32, right[i]);
  }
}
typedef void sum_function(const tap_rows* rows, long shift, long channel, float* sums, long stride, int accumulate);
#define DEFINE_SUMS(VECTORS, COUNT)                                                                                   \
  static __attribute__((noinline)) void sum_##VECTORS##_##COUNT(const tap_rows* rows, long shift, long channel,       \
                                                                float* sums, long stride, int accumulate) {           \
    sum_taps(COUNT, VECTORS, rows, shift, channel, sums, stride, accumulate);                                         \
  }
#define NAME_SUMS(VECTORS, COUNT) sum_##VECTORS##_##COUNT,
#define EACH_COUNT_TO_6(X, VECTORS) X(VECTORS, 1) X(VECTORS, 2) X(VECTORS, 3) X(VECTORS, 4) X(VECTORS, 5) X(VECTORS, 6)
#if HLOC_CONV_ROWS == 14
#define EACH_COUNT(X, VECTORS) EACH_COUNT_TO_6(X, VECTORS) X(VECTORS, 7)
#else
#define EACH_COUNT EACH_COUNT_TO_6
#endif
EACH_COUNT(DEFINE_SUMS, 1)
EACH_COUNT(DEFINE_SUMS, 2)
static sum_function* const sum_functions[2][POSITIONS] = {{EACH_COUNT(NAME_SUMS, 1)}, {EACH_COUNT(NAME_SUMS, 2)}};

/* The same for channels that do not fill a vector. */
static void sum_few(const tap_rows* rows, long shift, long count, long channels, float* restrict sums, long stride,
                    int accumulate) {
  for (long i = 0; i < count; i++, sums += stride) {
    if (!accumulate) __builtin_memset(sums, 0, channels * sizeof(float));
    for (long t = 0; t < rows->taps; t++) {
      const float *x = rows->x[t * POINTERS + i] + shift, *w = rows->w[t];
      for (long j = 0; j < channels; j++) sums[j] += x[j] * w[j];
    }
  }
}

/* The positions of one tile: `count` from o2 on, of the row (o0, o1); the taps that stay inside x for some of them. */
typedef struct { const float *image, *weights; long o0, o1, o2, count, from[3], to[3]; } tile_place;

/* Whether no tap of any position is in the padding before or after a row. */
static int is_inside(const hloc_conv_args* c, const tile_place* at) {
  const long begin = at->o2 * c->stride[2] - c->pad_low[2];
  const long end = begin + (at->count - 1) * c->stride[2] + (c->window[2] - 1) * c->window_dilation[2];
  return begin >= 0 && end < c->x_size[2];
}

/* Pointers for the taps first <= tap < first + taps, counted along from[2] <= k2 < to[2] first. */
static void find_taps(const hloc_conv_args* c, const tile_place* at, long first, long taps, tap_rows* rows) {
  const long width = at->to[2] - at->from[2], height = at->to[1] - at->from[1];
  const unsigned long size = c->x_size[2];
  rows->first = first, rows->taps = taps, rows->o2 = at->o2, rows->inside = is_inside(c, at);
  if (!taps) return; /* the whole window is in the padding */
  long k2 = at->from[2] + first % width, k1 = at->from[1] + first / width % height;
  long k0 = at->from[0] + first / width / height;
  long place[POINTERS], offset[POINTERS]; /* of positions, from the first one; offsets in bytes */
  for (long i = 0; i < POINTERS; i++)
    place[i] = i * c->stride[2], offset[i] = place[i] * c->x_s[2] * (long)sizeof(float);
  for (long t = 0; t < taps; t++) {
    const long p0 = at->o0 * c->stride[0] - c->pad_low[0] + k0 * c->window_dilation[0];
    const long p1 = at->o1 * c->stride[1] - c->pad_low[1] + k1 * c->window_dilation[1];
    const long p2 = at->o2 * c->stride[2] - c->pad_low[2] + k2 * c->window_dilation[2];
    const long x = (long)(at->image + p0 * c->x_s[0] + p1 * c->x_s[1] + p2 * c->x_s[2]);
    const long padding = (long)depthwise_zeros;
    long* out = (long*)(void*)(rows->x + t * POINTERS); /* addresses as integers, so that the compiler vectorizes */
    for (long i = 0; i < POINTERS; i++)
      out[i] = (unsigned long)(p2 + place[i]) < size ? x + offset[i] : padding;
    rows->w[t] = at->weights + window_place(c, 0, k0) * c->w_s[0] + window_place(c, 1, k1) * c->w_s[1] +
                 window_place(c, 2, k2) * c->w_s[2];
    if (++k2 < at->to[2]) continue;
    k2 = at->from[2];
    if (++k1 < at->to[1]) continue;
    k1 = at->from[1], k0++;
  }
}

/* The sums of a tile for channels first <= channel < first + channels, to which the pointers lead. The last channels
 * overlap those before: their sums are apart until all taps are added. */
static void run_depthwise_tile(const hloc_conv_plan* plan, const tile_place* at, long position, long first,
                               long channels, tap_rows* rows) {
  const hloc_conv_args* c = &plan->c;
  const long width = channels >= CHANNELS ? CHANNELS : channels >= HLOC_LANES32 ? HLOC_LANES32 : channels;
  const long taps = (at->to[0] - at->from[0]) * (at->to[1] - at->from[1]) * (at->to[2] - at->from[2]);
  const int direct = !c->epilogue && plan->y_type == HLOC_CONV_IS_F32 && c->y_c == 1;
  const long stride = direct ? c->y_s[2] : channels, whole = channels / width * width;
  sum_function* sum = sum_functions[width == CHANNELS][at->count - 1];
  float tile[POSITIONS * MOST_CHANNELS] __attribute__((aligned(64)));
  float last[POSITIONS * CHANNELS] __attribute__((aligned(64)));
  float* sums = direct ? (float*)c->y + hloc_conv_y_offset(c, position) + first : tile;
  if (!rows->inside || !is_inside(c, at)) rows->first = -1;
  long tap = 0;
  do {
    const long count = hloc_min(MOST_TAPS, taps - tap);
    if (rows->first != tap) find_taps(c, at, tap, count, rows);
    const long shift = (at->o2 - rows->o2) * c->stride[2] * c->x_s[2], end = channels - width;
    if (width < HLOC_LANES32) sum_few(rows, shift, at->count, width, sums, stride, tap > 0);
    else
      for (long j = 0; j < whole; j += width) sum(rows, shift + j, j, sums + j, stride, tap > 0);
    if (whole < channels) sum(rows, shift + end, end, last, CHANNELS, tap > 0);
    tap += count;
  } while (tap < taps);
  for (long i = 0; whole < channels && i < at->count; i++)
    __builtin_memcpy(sums + i * stride + channels - width, last + i * CHANNELS, width * sizeof(float));
  if (!direct) hloc_conv_finish(plan, position, first, at->count, channels, tile, channels);
}

/* Some channels of one output row; `at` has the rest of its place. */
static void run_row(const hloc_conv_plan* plan, tile_place at, long position, long first, long channels) {
  const hloc_conv_args* c = &plan->c;
  tap_rows rows;
  rows.inside = 0;
  for (at.o2 = 0; at.o2 < c->y_size[2]; at.o2 += at.count) {
    const long rest = c->y_size[2] - at.o2, tiles = (rest + POSITIONS - 1) / POSITIONS;
    long unused;
    at.count = (rest + tiles - 1) / tiles;
    inside_window(c, 2, at.o2 + at.count - 1, &at.from[2], &unused);
    inside_window(c, 2, at.o2, &unused, &at.to[2]);
    for (int d = 0; d < 3; d++) at.to[d] = hloc_max(at.from[d], at.to[d]);
    run_depthwise_tile(plan, &at, position + at.o2, first, channels, &rows);
  }
}

static void run_rows(void* const* args, long begin, long end) {
  const hloc_conv_plan* plan = (const hloc_conv_plan*)args;
  const hloc_conv_args* c = &plan->c;
  const long piece = c->choices.piece, pieces = (c->x_features + piece - 1) / piece;
  for (long item = begin; item < end; item++) {
    const long row = item / pieces, first = item % pieces * piece, n = row / c->y_size[1] / c->y_size[0];
    tile_place at = {.o0 = row / c->y_size[1] % c->y_size[0], .o1 = row % c->y_size[1]};
    inside_window(c, 0, at.o0, &at.from[0], &at.to[0]);
    inside_window(c, 1, at.o1, &at.from[1], &at.to[1]);
    at.image = (const float*)c->x + n * c->x_n + first, at.weights = (const float*)c->w + first;
    run_row(plan, at, row * c->y_size[2], first, hloc_min(piece, c->x_features - first));
  }
}

int hloc_conv_by_depthwise(hloc_conv_plan* plan, hloc_conv_type type) {
  const hloc_conv_args* c = &plan->c;
  if (hloc_conv_move(&plan->c, type)) return 1;
  const long piece = c->choices.piece, rows = c->batch * c->y_size[0] * c->y_size[1];
  const long work = c->y_size[2] * piece * c->window[0] * c->window[1] * c->window[2];
  hloc_parallel(run_rows, (void* const*)plan, rows * ((c->x_features + piece - 1) / piece), 65536 / (work + 1) + 1);
  return 0;
}

HLOC_CONV_ENTRIES(depthwise, hloc_conv_by_depthwise)
