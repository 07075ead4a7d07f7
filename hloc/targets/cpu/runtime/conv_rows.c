/* conv_rows.c: a convolution as a matmul whose left operand is not stored (implicit GEMM).
 *
 * In: a plan with x_c == 1, w any order, f32. A tile (conv_tiles.c) has HLOC_CONV_ROWS output positions x two vectors
 * of output features; for every tap (window position) each of its rows is a pointer to x's contiguous features, or to
 * zeros in the padding. Few output features would leave most lanes empty: then lanes are x's features, and are reduced
 * at the end (conv_dots.c). With base dilation the output is divided into phases, each with the taps that read
 * elements of x rather than inserted zeros.
 *
 * A plan of pairs (conv_pairs.c) has two neighbouring features of bf16 instead of each float of x and w.
 */
#include "conv_internal.h"

#define TILES 8
#define CHUNK 512
enum { PART = 64, AHEAD = 8 };
HLOC_COMPILED_FOR(conv_rows, TILES, CHUNK, 0, 0)

typedef struct { long first[3], step[3], count[3]; } grid; /* output positions of one phase */

typedef struct { long shift[3], offset; } tap_place;

typedef struct {
  const hloc_conv_plan* plan;
  const float* panels;   /* [group][panel][tap][feature][column]; by_dots: [group][panel][tap][column][feature] */
  int by_dots;           /* lanes are x's features */
  long width;            /* columns of a panel: output features */
  long depth;            /* features of x per group */
  long group_panels;     /* panels per group */
  long parts;            /* of the features, while packing */
  long panels_at_once;   /* of a task, if positions are few */
  const float* zeros;    /* features of a position in the padding */
  long taps, all_taps;   /* of the phase, of the window */
  const long* tap_index; /* which taps of the window */
  grid positions;
  long position_count, tile_groups;
  tap_place* places;     /* of the phase's taps */
  long advance[3];       /* strides of the phase's positions in x */
  long reach_low[3], reach_high[3]; /* least and greatest shift of a tap */
  int even_rows;         /* y's positions have one stride, its features are contiguous */
  const float** rows;    /* few positions: all tiles' pointers */
  int consecutive;       /* the phase is the whole output in order */
  hloc_conv_tile_of* tile; /* of numbers, or of pairs */
  hloc_conv_half_tile_of* half_tile;
} rows_work;

/* The n-th position of the phase: its batch index and its spatial coordinates. */
static void position_of(const rows_work* w, long n, long* batch, long* o) {
  const grid* g = &w->positions;
  o[2] = g->first[2] + n % g->count[2] * g->step[2], n /= g->count[2];
  o[1] = g->first[1] + n % g->count[1] * g->step[1], n /= g->count[1];
  o[0] = g->first[0] + n % g->count[0] * g->step[0], *batch = n / g->count[0];
}
static long linear_position(const hloc_conv_args* c, long batch, const long* o) {
  return ((batch * c->y_size[0] + o[0]) * c->y_size[1] + o[1]) * c->y_size[2] + o[2];
}

/* The position that a tap reads in each dimension for the phase's first position, and the offset of that in x.
 * Positions and strides are whole numbers by the choice of the phase's taps. */
static void place_taps(rows_work* w) {
  const hloc_conv_args* c = &w->plan->c;
  const grid* g = &w->positions;
  for (int d = 0; d < 3; d++) {
    w->advance[d] = g->step[d] * c->stride[d] / c->base_dilation[d];
    w->reach_low[d] = 0, w->reach_high[d] = 0;
  }
  for (long t = 0; t < w->taps; t++) {
    long tap = w->tap_index[t];
    w->places[t].offset = 0;
    for (int d = 2; d >= 0; d--) {
      long k = tap % c->window[d], at = (c->reversed[d] ? c->window[d] - 1 - k : k) * c->window_dilation[d];
      long shift = (g->first[d] * c->stride[d] - c->pad_low[d] + at) / c->base_dilation[d];
      tap /= c->window[d];
      w->places[t].shift[d] = shift, w->places[t].offset += shift * c->x_s[d];
      w->reach_low[d] = t ? hloc_min(w->reach_low[d], shift) : shift;
      w->reach_high[d] = t ? hloc_max(w->reach_high[d], shift) : shift;
    }
  }
}

/* The distance of the rows of one tile from the phase's first position: as an offset in x, and in each dimension. */
typedef struct { long start[ROWS], origin[3][ROWS]; int inside; } tile_origins;

/* Pointers of one tile: rows[tap][row], zeros where a tap is in the padding. */
static void find_rows(const rows_work* w, const tile_origins* at, const float** rows) {
  const hloc_conv_args* c = &w->plan->c;
  const long x = (long)c->x, padding = (long)w->zeros, element = sizeof(float);
  const unsigned long size0 = c->x_size[0], size1 = c->x_size[1], size2 = c->x_size[2];
  for (long t = 0; t < w->taps; t++) {
    const tap_place p = w->places[t];
    long* out = (long*)(void*)(rows + t * ROWS); /* addresses as integers, so that the compiler vectorizes */
    if (at->inside) {
      for (long i = 0; i < ROWS; i++) out[i] = x + (at->start[i] + p.offset) * element;
      continue;
    }
    for (long i = 0; i < ROWS; i++) {
      int meets = ((unsigned long)(at->origin[0][i] + p.shift[0]) < size0) &
                  ((unsigned long)(at->origin[1][i] + p.shift[1]) < size1) &
                  ((unsigned long)(at->origin[2][i] + p.shift[2]) < size2);
      long address = x + (at->start[i] + p.offset) * element;
      out[i] = meets ? address : padding;
    }
  }
}

/* Pointers of `tiles` tiles starting at `first_tile`: rows[tile][tap][row]; the last position is repeated. */
static void find_tiles(const rows_work* w, long first_tile, long tiles, const float** rows) {
  const hloc_conv_args* c = &w->plan->c;
  const grid* g = &w->positions;
  long batch, o[3], place[3]; /* among the phase's positions */
  position_of(w, first_tile * ROWS, &batch, o);
  for (int d = 0; d < 3; d++) place[d] = (o[d] - g->first[d]) / g->step[d];
  for (long n = first_tile * ROWS, q = 0; q < tiles; q++, rows += ROWS * w->taps) {
    tile_origins at = {.inside = 1};
    for (long i = 0; i < ROWS; i++, n++) {
      at.start[i] = batch * c->x_n;
      for (int d = 0; d < 3; d++) {
        long origin = at.origin[d][i] = place[d] * w->advance[d];
        at.start[i] += origin * c->x_s[d];
        at.inside &= origin + w->reach_low[d] >= 0 && origin + w->reach_high[d] < c->x_size[d];
      }
      if (n >= w->position_count - 1) continue;
      for (int d = 2; d >= 0; d--) { /* the next position */
        if (++place[d] < g->count[d]) break;
        place[d] = 0;
        if (d == 0) batch++;
      }
    }
    find_rows(w, &at, rows);
  }
}

/* Stores neighbouring tiles of finished sums. */
static void finish_tiles(const rows_work* w, long tile, long tiles, long group, long panel, const float* sums,
                         long stride) {
  const hloc_conv_args* c = &w->plan->c;
  long features = c->y_features / c->feature_groups, column = panel * w->width, first = tile * ROWS;
  long columns = hloc_min(w->width, features - column), batch, o[3];
  long count = hloc_min(tiles * ROWS, w->position_count - first);
  column += group * features;
  if (w->consecutive) {
    hloc_conv_finish(w->plan, first, column, count, columns, sums, stride);
    return;
  }
  for (long i = 0; i < count; i++) {
    position_of(w, first + i, &batch, o);
    hloc_conv_finish(w->plan, linear_position(c, batch, o), column, 1, columns, sums + i * stride, stride);
  }
}

/* The sums of one tile; returns their row stride. */
static long sum_tile(const rows_work* w, const float** rows, long group, long panel, float* sums) {
  const hloc_conv_plan* plan = w->plan;
  const hloc_conv_args* c = &plan->c;
  long features = c->y_features / c->feature_groups, column = panel * w->width;
  const float* weights = w->panels + (group * w->group_panels + panel) * w->all_taps * w->depth * COLUMNS;
  if (w->by_dots) {
    const long columns = hloc_min(w->width, features - column);
    weights = w->panels + (group * features + column) * w->all_taps * w->depth;
    hloc_conv_dots(columns, w->taps, w->tap_index, rows, w->depth, weights, sums);
    return columns;
  }
  if (features - column > HLOC_LANES32)
    w->tile(w->taps, w->tap_index, rows, 0, w->depth, weights, sums, COLUMNS, 0, (const char*)weights, 0);
#if HLOC_VECTOR_BYTES == 64
  else if (features - column <= HLOC_LANES32 / 2 && !plan->of_pairs)
    hloc_conv_quarter_tile(w->taps, w->tap_index, rows, w->depth, weights, sums);
#endif
  else w->half_tile(w->taps, w->tap_index, rows, w->depth, weights, sums);
  return COLUMNS;
}

static void run_tile(const rows_work* w, long tile, const float** rows, long group, long panel) {
  const hloc_conv_args* c = &w->plan->c;
  long features = c->y_features / c->feature_groups, column = panel * w->width, first = tile * ROWS;
  int whole = w->position_count - first >= ROWS && features - column >= COLUMNS;
  float sums[ROWS * COLUMNS] __attribute__((aligned(64)));
  if (w->consecutive && w->even_rows && whole && !w->by_dots && !c->epilogue && w->plan->y_type == HLOC_CONV_IS_F32) {
    const float* weights = w->panels + (group * w->group_panels + panel) * w->all_taps * w->depth * COLUMNS;
    float* y = (float*)c->y + first * c->y_s[2] + group * features + column;
    w->tile(w->taps, w->tap_index, rows, 0, w->depth, weights, y, c->y_s[2], 0, (const char*)weights, 0);
    return;
  }
  long stride = sum_tile(w, rows, group, panel, sums);
  finish_tiles(w, tile, 1, group, panel, sums, stride);
}
/* Several tiles, whose sums are stored at once. */
static void run_tiles_together(const rows_work* w, long tile, long tiles, const float** rows, long group, long panel) {
  float sums[TILES * ROWS * COLUMNS] __attribute__((aligned(64)));
  long stride = 0;
  for (long q = 0; q < tiles; q++)
    stride = sum_tile(w, rows + q * ROWS * w->taps, group, panel, sums + q * ROWS * stride);
  finish_tiles(w, tile, tiles, group, panel, sums, stride);
}

/* A task: a few neighbouring tiles of positions with all panels; a panel is used several times from cache. */
static void run_tiles(void* const* args, long begin, long end) {
  const rows_work* w = (const rows_work*)args;
  const hloc_conv_args* c = &w->plan->c;
  const float** rows = hloc_own_scratch(c->choices.own, w->plan->failed);
  if (!rows) return;
  const float** shifted = rows;
  for (long t = begin; t < end; t++) {
    long first_tile = t % w->tile_groups * c->choices.row_group, group = t / w->tile_groups;
    long tiles = hloc_min(c->choices.row_group, (w->position_count + ROWS - 1) / ROWS - first_tile);
    find_tiles(w, first_tile, tiles, rows);
    if (c->feature_groups > 1)
      for (long r = 0; r < tiles * ROWS * w->taps; r++)
        if (shifted[r] != w->zeros) shifted[r] += group * w->depth;
    for (long panel = 0; panel < w->group_panels; panel++) {
      if (w->consecutive && goes_along_positions(c)) run_tiles_together(w, first_tile, tiles, rows, group, panel);
      else for (long q = 0; q < tiles; q++) run_tile(w, first_tile + q, rows + q * ROWS * w->taps, group, panel);
    }
  }
}

/* The start of a tap's weights. */
static long tap_offset(const hloc_conv_args* c, long tap) {
  long offset = 0;
  for (int d = 2; d >= 0; d--) offset += tap % c->window[d] * c->w_s[d], tap /= c->window[d];
  return offset;
}

/* Features k0 <= k < k1 of one tap for `panels` panels of output features: to[panel * panel_step + (k - k0) * COLUMNS
 * + column]. Copies whole rows if output features are contiguous. */
static void pack_tap(const rows_work* w, long group, long panel0, long panels, long tap, long k0, long k1, float* to,
                     long panel_step) {
  const hloc_conv_args* c = &w->plan->c;
  long features = c->y_features / c->feature_groups, k = k0;
  const float* from = (const float*)c->w + (group * features + panel0 * COLUMNS) * c->w_o + tap_offset(c, tap);
  if (c->w_i == 1 && features >= (panel0 + panels) * COLUMNS)
    for (; k + HLOC_LANES32 <= k1; k += HLOC_LANES32)
      for (long j = 0; j < panels * COLUMNS; j += HLOC_LANES32)
        hloc_transpose_tile_32(from + k + j * c->w_o, c->w_o,
                          to + j / COLUMNS * panel_step + (k - k0) * COLUMNS + j % COLUMNS, COLUMNS);
  const long ahead = hloc_max(1, AHEAD / panels) * c->w_i;
  const int whole = c->w_o == 1 && features >= (panel0 + panels) * COLUMNS;
  for (; k < k1; k++) {
    const float* row = from + k * c->w_i;
    float* out = to + (k - k0) * COLUMNS;
    if (whole) {
      for (long panel = 0; panel < panels; panel++, row += COLUMNS, out += panel_step) {
        __builtin_prefetch(row + ahead), __builtin_prefetch(row + ahead + HLOC_LANES32);
        for (long j = 0; j < COLUMNS; j++) out[j] = row[j];
      }
      continue;
    }
    for (long panel = 0; panel < panels; panel++, row += COLUMNS * c->w_o, out += panel_step) {
      long columns = hloc_min(COLUMNS, features - (panel0 + panel) * COLUMNS);
      for (long j = 0; j < columns; j++) out[j] = row[j * c->w_o];
      for (long j = columns; j < COLUMNS; j++) out[j] = 0.0f;
    }
  }
}

/* Weights as panels of COLUMNS output features: [group][panel][tap][feature][column]. A task has some features of one
 * tap, for all panels. */
static void pack_panels(void* const* args, long begin, long end) {
  const rows_work* w = (const rows_work*)args;
  for (long item = begin; item < end; item++) {
    long part = item % w->parts, tap = item / w->parts % w->all_taps, group = item / w->parts / w->all_taps;
    long k0 = part * PART, k1 = hloc_min(w->depth, k0 + PART), panel_step = w->all_taps * w->depth * COLUMNS;
    float* to = (float*)w->panels + group * w->group_panels * panel_step + (tap * w->depth + k0) * COLUMNS;
    pack_tap(w, group, 0, w->group_panels, tap, k0, k1, to, panel_step);
  }
}

/* Weights for dot products: [group][panel][tap][column][feature]. A task has a panel. */
static void pack_columns(void* const* args, long begin, long end) {
  const rows_work* w = (const rows_work*)args;
  const hloc_conv_args* c = &w->plan->c;
  const long features = c->y_features / c->feature_groups;
  for (long item = begin; item < end; item++) {
    const long first = item % w->group_panels * w->width, columns = hloc_min(w->width, features - first);
    const long column = item / w->group_panels * features + first;
    float* to = (float*)w->panels + column * w->all_taps * w->depth;
    for (long tap = 0; tap < w->all_taps; tap++) {
      const float* from = (const float*)c->w + column * c->w_o + tap_offset(c, tap);
      for (long j = 0; j < columns; j++)
        for (long k = 0; k < w->depth; k++) *to++ = from[j * c->w_o + k * c->w_i];
    }
  }
}

/* The range of the phase's taps and of x's features that is packed at once; k0 == depth: the end. */
typedef struct { long tap0, taps, k0, depth; } chunk;

static chunk chunk_from(const rows_work* w, long tap0, long k0) {
  const long taps_at_once = hloc_max(1, CHUNK / w->depth);
  if (k0 >= w->depth) tap0 += taps_at_once, k0 = 0;
  if (tap0 >= w->taps) return (chunk){0};
  return (chunk){tap0, hloc_min(taps_at_once, w->taps - tap0), k0, hloc_min(hloc_min(w->depth, CHUNK), w->depth - k0)};
}

typedef struct { const char* from; long step; } lines;

/* The prefetches of the n-th tile of a chunk, of the weights that are packed next, if these are evenly spaced rows: one
 * line of each. */
static lines lines_ahead(const rows_work* w, chunk next, long panel, long panels, long n, const float* otherwise) {
  const hloc_conv_args* c = &w->plan->c;
  if (c->w_o != 1 || !next.depth || n >= panels * COLUMNS / HLOC_LANES32) return (lines){(const char*)otherwise, 0};
  const long first = tap_offset(c, w->tap_index[next.tap0]);
  const long last = tap_offset(c, w->tap_index[next.tap0 + next.taps - 1]);
  if (last - first != (next.taps - 1) * next.depth * c->w_i) return (lines){(const char*)otherwise, 0};
  const float* from = (const float*)c->w + first + next.k0 * c->w_i + panel * COLUMNS + n * HLOC_LANES32;
  return (lines){(const char*)from, c->w_i * (long)sizeof(float)};
}

/* Few positions: a task has a few panels of output features and all positions. Weights are packed in chunks. All tiles
 * use a chunk while it is in cache; their sums stay in cache too. */
static void run_panels(void* const* args, long begin, long end) {
  const rows_work* w = (const rows_work*)args;
  long tiles = (w->position_count + ROWS - 1) / ROWS, in_order[CHUNK], most = hloc_min(w->panels_at_once, end - begin);
  const chunk first = chunk_from(w, 0, 0);
  for (long i = 0; i < first.taps; i++) in_order[i] = i;
  const long panel_step = first.taps * first.depth * COLUMNS, tile_step = ROWS * COLUMNS;
  float* packed = hloc_own_scratch(w->plan->c.choices.own, w->plan->failed);
  if (!packed) return;
  float* sums = packed + most * panel_step;
  for (long panel = begin; panel < end; panel += most) {
    long panels = hloc_min(most, end - panel);
    for (chunk now = first, next; now.depth; now = next) {
      next = chunk_from(w, now.tap0, now.k0 + now.depth);
      for (long t = 0; t < now.taps; t++)
        pack_tap(w, 0, panel, panels, w->tap_index[now.tap0 + t], now.k0, now.k0 + now.depth,
                 packed + t * now.depth * COLUMNS, panel_step);
      for (long p = 0; p < panels; p++)
        for (long q = 0; q < tiles; q++) {
          const float* from = packed + p * panel_step;
          const lines ahead = lines_ahead(w, next, panel, panels, p * tiles + q, from);
          w->tile(now.taps, in_order, w->rows + (q * w->taps + now.tap0) * ROWS, now.k0, now.depth, from,
                  sums + (p * tiles + q) * tile_step, COLUMNS, now.tap0 + now.k0 > 0, ahead.from, ahead.step);
        }
    }
    for (long p = 0; p < panels; p++)
      finish_tiles(w, 0, tiles, 0, panel + p, sums + p * tiles * tile_step, COLUMNS);
  }
}

static long greatest_common_divisor(long a, long b) {
  while (b) {
    long rest = a % b;
    a = b, b = rest;
  }
  return a;
}

/* The window positions that read elements of x for output positions congruent to `first`. */
static long taps_of_phase(const hloc_conv_args* c, const long* first, long* tap_index) {
  long taps = c->window[0] * c->window[1] * c->window[2], found = 0;
  for (long tap = 0; tap < taps; tap++) {
    long rest = tap;
    int whole = 1;
    for (int d = 2; d >= 0; d--) {
      long k = rest % c->window[d];
      rest /= c->window[d];
      long at = first[d] * c->stride[d] - c->pad_low[d] +
                (c->reversed[d] ? c->window[d] - 1 - k : k) * c->window_dilation[d];
      whole &= at % c->base_dilation[d] == 0;
    }
    if (whole) tap_index[found++] = tap;
  }
  return found;
}

static void run_phase(rows_work* w) {
  const hloc_conv_args* c = &w->plan->c;
  w->position_count = c->batch * w->positions.count[0] * w->positions.count[1] * w->positions.count[2];
  if (!w->position_count) return;
  long tiles = (w->position_count + ROWS - 1) / ROWS;
  if (w->rows && w->taps) { /* without taps sums are zero, and no weights are read */
    find_tiles(w, 0, tiles, w->rows);
    hloc_parallel(run_panels, (void* const*)w, w->group_panels, w->panels_at_once);
    return;
  }
  w->tile_groups = (tiles + c->choices.row_group - 1) / c->choices.row_group;
  hloc_parallel(run_tiles, (void* const*)w, w->tile_groups * c->feature_groups, c->choices.grain);
}

static long period_of(const hloc_conv_args* c, int d) {
  return c->base_dilation[d] / greatest_common_divisor(c->base_dilation[d], c->stride[d]);
}
int hloc_conv_rows(hloc_conv_plan* plan, float* scratch) {
  const hloc_conv_args* c = &plan->c;
  const float* panels = c->pack_to ? c->pack_to : c->w_packed ? c->w_packed : scratch;
  rows_work w = {.plan = plan, .panels = panels, .depth = c->x_features / c->feature_groups};
  w.all_taps = c->window[0] * c->window[1] * c->window[2];
  const long features = c->y_features / c->feature_groups;
  const int few = c->choices.is_few;
  w.tile = plan->of_pairs ? hloc_conv_tile_of_pairs : hloc_conv_tile;
  w.half_tile = plan->of_pairs ? hloc_conv_half_tile_of_pairs : hloc_conv_half_tile;
  w.by_dots = c->choices.by_dots;
  w.width = w.by_dots ? HLOC_CONV_DOTS : COLUMNS;
  w.group_panels = (features + w.width - 1) / w.width;
  w.even_rows = c->y_c == 1 && c->y_s[1] == c->y_s[2] * c->y_size[2] && c->y_s[0] == c->y_s[1] * c->y_size[1] &&
                c->y_n == c->y_s[0] * c->y_size[0];
  long period[3];
  for (int d = 0; d < 3; d++) period[d] = period_of(c, d);
  w.consecutive = period[0] * period[1] * period[2] == 1;
  w.places = hloc_scratch(HLOC_SECOND, c->choices.second);
  if (!w.places) return 1;
  long* tap_index = (long*)(w.places + w.all_taps);
  w.tap_index = tap_index;
  w.zeros = __builtin_memset(tap_index + w.all_taps, 0, w.depth * sizeof(float));
  if (few) w.rows = (const float**)(tap_index + w.all_taps + w.depth);
  w.panels_at_once = c->choices.panels_at_once;
  w.parts = (w.depth + PART - 1) / PART;
  long items = c->feature_groups * w.all_taps * w.parts, item = hloc_min(w.depth, PART) * w.group_panels * COLUMNS;
  if (c->w_packed) (void)0; /* already packed */
  else if (w.by_dots)
    hloc_parallel(pack_columns, (void* const*)&w, c->feature_groups * w.group_panels,
                  16384 / (w.all_taps * w.depth * w.width + 1) + 1);
  else if (!few) hloc_parallel(pack_panels, (void* const*)&w, items, 16384 / (item + 1) + 1);
  if (c->pack_to) return 0;
  for (long phase = 0; phase < period[0] * period[1] * period[2]; phase++) {
    long rest = phase;
    for (int d = 2; d >= 0; d--) {
      w.positions.first[d] = rest % period[d], rest /= period[d];
      w.positions.step[d] = period[d];
      w.positions.count[d] = (c->y_size[d] - w.positions.first[d] + period[d] - 1) / period[d];
    }
    w.taps = taps_of_phase(c, w.positions.first, tap_index);
    place_taps(&w);
    run_phase(&w);
  }
  return 0;
}
