/* generic_conv.h: the convolutions of one set of element types that conv.c does not know: f64, integers, complex.
 *
 * In: HLOC_GENERIC_CONV (f64, s8_s32, ...), HLOC_OPERAND and HLOC_TOTAL (element types of x and w, and of sums and y),
 * HLOC_PRODUCT (the element type of the matrix products of gemm.h that make such sums).
 * Out: hloc_conv_<HLOC_GENERIC_CONV> (see conv.h). These macros are undefined again.
 *
 *   channels on their own (one input and one output feature per group) -> vectors along the features
 *   anything else -> products: all that a window meets lies side by side in a row of `patches`, one row per output
 *                    position, one part per group; where the image is such rows already, it is read in place
 */
#define C(name) HLOC_GENERIC_NAME(conv_, HLOC_GENERIC_CONV, _##name)
#define OPERAND HLOC_GENERIC_NAME(hloc_, HLOC_OPERAND, )
#define SUM HLOC_GENERIC_NAME(hloc_, HLOC_TOTAL, )
#define FACTOR HLOC_GENERIC_NAME(hloc_, HLOC_PRODUCT, )
#define ADD HLOC_GENERIC_NAME(hloc_add_, HLOC_TOTAL, )
#define MULTIPLY HLOC_GENERIC_NAME(hloc_multiply_, HLOC_TOTAL, )

typedef struct {
  hloc_conv_args c;
  long column_offset;                          /* of the batch group's first output feature */
  long depth, features, taps, row;             /* per group: input and output features; elements of a row of patches */
  long first;                                  /* output position of the first row of patches */
  long y_step;                                 /* from one output position to the next in y; 0: not the same everywhere */
  FACTOR* patches;
} C(work);

static void C(position_of)(const hloc_conv_args* c, long position, long* batch, long* o) {
  for (int d = 2; d >= 0; d--) o[d] = position % c->y_size[d], position /= c->y_size[d];
  *batch = position;
}

/* Where window position k reads x for output position o of dimension d; -1 outside. */
static long C(read_at)(const hloc_conv_args* c, int d, long o, long k) {
  long at = o * c->stride[d] - c->pad_low[d] + (c->reversed[d] ? c->window[d] - 1 - k : k) * c->window_dilation[d];
  if (at < 0 || (c->base_dilation[d] > 1 && at % c->base_dilation[d])) return -1;
  if (c->base_dilation[d] > 1) at /= c->base_dilation[d];
  return at < c->x_size[d] ? at : -1;
}

/* ---- channels on their own */
enum { C(COLUMNS) = 64 };

static void C(put)(const C(work)* w, long position, long row_offset, long column, long columns, const SUM* sums) {
  const hloc_conv_args* c = &w->c;
  if (c->epilogue) {
    c->epilogue(c->epilogue_args, 0, position, w->column_offset + column, 1, columns, sums, columns);
    return;
  }
  SUM* y = (SUM*)c->y + row_offset + column * c->y_c;
  for (long j = 0; j < columns; j++) y[j * c->y_c] = sums[j];
}
static void C(channels)(const C(work)* w, const OPERAND* x, const OPERAND* v, long columns, SUM* sums) {
  const long x_c = w->c.x_c, w_o = w->c.w_o;
  if (x_c == 1 && w_o == 1)
    for (long j = 0; j < columns; j++) {
      SUM left = x[j], right = v[j];
      sums[j] = ADD(sums[j], MULTIPLY(left, right));
    }
  else
    for (long j = 0; j < columns; j++) {
      SUM left = x[j * x_c], right = v[j * w_o];
      sums[j] = ADD(sums[j], MULTIPLY(left, right));
    }
}
static void C(by_channels)(void* const* args, long begin, long end) {
  const C(work)* w = (const C(work)*)args;
  const hloc_conv_args* c = &w->c;
  for (long position = begin; position < end; position++) {
    long batch, o[3];
    C(position_of)(c, position, &batch, o);
    for (long column = 0; column < c->y_features; column += C(COLUMNS)) {
      long columns = c->y_features - column < C(COLUMNS) ? c->y_features - column : C(COLUMNS);
      SUM sums[C(COLUMNS)];
      for (long j = 0; j < C(COLUMNS); j++) sums[j] = (SUM){0};
      for (long k0 = 0; k0 < c->window[0]; k0++) {
        long p0 = C(read_at)(c, 0, o[0], k0);
        for (long k1 = 0; p0 >= 0 && k1 < c->window[1]; k1++) {
          long p1 = C(read_at)(c, 1, o[1], k1);
          for (long k2 = 0; p1 >= 0 && k2 < c->window[2]; k2++) {
            long p2 = C(read_at)(c, 2, o[2], k2);
            if (p2 < 0) continue;
            long at = batch * c->x_n + column * c->x_c + p0 * c->x_s[0] + p1 * c->x_s[1] + p2 * c->x_s[2];
            long weight = column * c->w_o + k0 * c->w_s[0] + k1 * c->w_s[1] + k2 * c->w_s[2];
            C(channels)(w, (const OPERAND*)c->x + at, (const OPERAND*)c->w + weight, columns, sums);
          }
        }
      }
      long offset = batch * c->y_n + o[0] * c->y_s[0] + o[1] * c->y_s[1] + o[2] * c->y_s[2];
      C(put)(w, position, offset, column, columns, sums);
    }
  }
}

/* ---- products */
static void C(copy)(const OPERAND* from, long step, long count, FACTOR* to) {
  if (step == 1) for (long i = 0; i < count; i++) to[i] = from[i];
  else for (long i = 0; i < count; i++) to[i] = from[i * step];
}
static void C(zeros)(FACTOR* to, long count) {
  for (long i = 0; i < count; i++) to[i] = (FACTOR){0};
}

/* What one run of the window along the last dimension meets of one group: to[k2][feature]. */
static void C(copy_run)(const C(work)* w, const OPERAND* image, long o2, FACTOR* to) {
  const hloc_conv_args* c = &w->c;
  const long n = c->window[2], start = o2 * c->stride[2] - c->pad_low[2];
  const int plain = c->window_dilation[2] == 1 && c->base_dilation[2] == 1 && !c->reversed[2];
  if (plain && c->x_c == 1 && c->x_s[2] == w->depth) { /* one piece of memory, zeros before and behind it */
    long low = start < 0 ? -start : 0, high = c->x_size[2] - start < n ? c->x_size[2] - start : n;
    low = low < n ? low : n, high = high > low ? high : low;
    C(zeros)(to, low * w->depth);
    C(copy)(image + (start + low) * c->x_s[2], 1, (high - low) * w->depth, to + low * w->depth);
    C(zeros)(to + high * w->depth, (n - high) * w->depth);
    return;
  }
  for (long k = 0; k < n; k++, to += w->depth) {
    long at = C(read_at)(c, 2, o2, k);
    if (at < 0) C(zeros)(to, w->depth);
    else C(copy)(image + at * c->x_s[2], c->x_c, w->depth, to);
  }
}
static void C(copy_patches)(void* const* args, long begin, long end) {
  const C(work)* w = (const C(work)*)args;
  const hloc_conv_args* c = &w->c;
  for (long row = begin; row < end; row++) {
    long batch, o[3];
    C(position_of)(c, w->first + row, &batch, o);
    FACTOR* to = w->patches + row * w->row;
    for (long group = 0; group < c->feature_groups; group++) {
      const OPERAND* image = (const OPERAND*)c->x + batch * c->x_n + group * w->depth * c->x_c;
      for (long k0 = 0; k0 < c->window[0]; k0++)
        for (long k1 = 0; k1 < c->window[1]; k1++, to += c->window[2] * w->depth) {
          long p0 = C(read_at)(c, 0, o[0], k0), p1 = C(read_at)(c, 1, o[1], k1);
          if (p0 < 0 || p1 < 0) C(zeros)(to, c->window[2] * w->depth);
          else C(copy_run)(w, image + p0 * c->x_s[0] + p1 * c->x_s[1], o[2], to);
        }
    }
  }
}

/* Weights as [group][taps, input feature][output feature]. */
static void C(copy_weights)(const C(work)* w, FACTOR* to) {
  const hloc_conv_args* c = &w->c;
  for (long group = 0; group < c->feature_groups; group++)
    for (long tap = 0; tap < w->taps; tap++) {
      long rest = tap, from = group * w->features * c->w_o;
      for (int d = 2; d >= 0; d--) from += rest % c->window[d] * c->w_s[d], rest /= c->window[d];
      for (long i = 0; i < w->depth; i++, to += w->features)
        C(copy)((const OPERAND*)c->w + from + i * c->w_i, c->w_o, w->features, to);
    }
}

/* The epilogue of the product: `batch` is the group. */
static void C(finish)(void* const* args, long batch, long row, long column, long rows, long columns, const void* tile,
                      long stride) {
  const C(work)* w = (const C(work)*)args;
  const hloc_conv_args* c = &w->c;
  column += batch * w->features, row += w->first;
  if (c->epilogue) {
    c->epilogue(c->epilogue_args, 0, row, w->column_offset + column, rows, columns, tile, stride);
    return;
  }
  for (long i = 0; i < rows; i++) {
    const SUM* sums = (const SUM*)tile + i * stride;
    long n = 0, o[3] = {0, 0, row + i};
    if (!w->y_step) C(position_of)(c, row + i, &n, o);
    long at = w->y_step ? o[2] * w->y_step : n * c->y_n + o[0] * c->y_s[0] + o[1] * c->y_s[1] + o[2] * c->y_s[2];
    SUM* y = (SUM*)c->y + at + column * c->y_c;
    if (c->y_c == 1) for (long j = 0; j < columns; j++) y[j] = sums[j];
    else for (long j = 0; j < columns; j++) y[j * c->y_c] = sums[j];
  }
}

/* The step through all positions in order, batch included; 0: there is none. */
static long C(step)(long batch, long batch_step, const long* size, const long* step) {
  long found = 0, expected = 0;
  for (int d = 2; d >= -1; d--) {
    long count = d >= 0 ? size[d] : batch, next = d >= 0 ? step[d] : batch_step;
    if (count == 1) continue;
    if (found && next != expected) return 0;
    if (!found) found = next;
    expected = next * count;
  }
  return found ? found : 1;
}

/* The step from row to row where the image is patches as it lies; 0: it is not. */
static long C(plain_step)(const hloc_conv_args* c) {
  if (sizeof(OPERAND) != sizeof(FACTOR)) return 0;
  for (int d = 0; d < 3; d++)
    if (c->window[d] != 1 || c->stride[d] != 1 || c->pad_low[d] || c->base_dilation[d] != 1 ||
        c->x_size[d] != c->y_size[d])
      return 0;
  return C(step)(c->batch, c->x_n, c->x_size, c->x_s);
}

static int C(by_product)(C(work)* w) {
  enum { BLOCK_BYTES = 1 << 22, FEWEST_ROWS = 64, GRAIN = 16384 };
  const hloc_conv_args* c = &w->c;
  const long positions = c->batch * c->y_size[0] * c->y_size[1] * c->y_size[2], k = w->taps * w->depth;
  const long plain = C(plain_step)(c), row_bytes = (long)sizeof(FACTOR) * (w->row + 1);
  long rows = BLOCK_BYTES / row_bytes > FEWEST_ROWS ? BLOCK_BYTES / row_bytes : FEWEST_ROWS;
  if (plain || rows > positions) rows = positions;
  const size_t patches = plain ? 0 : (size_t)(rows * w->row);
  const size_t filters = (size_t)(c->feature_groups * k * w->features);
  FACTOR* memory = hloc_scratch(HLOC_SECOND, (patches + filters + 1) * sizeof(FACTOR));
  if (!memory) return 1;
  FACTOR* weights = memory + patches;
  C(copy_weights)(w, weights);
  w->patches = memory;
  hloc_gemm_args g = {.batches = c->feature_groups, .inner_batches = c->feature_groups, .n = w->features, .k = k,
                      .a = memory, .a_inner = k, .a_row = w->row, .a_column = 1,
                      .b = weights, .b_inner = k * w->features, .b_row = w->features, .b_column = 1,
                      .epilogue = C(finish), .epilogue_args = (void* const*)w};
  if (plain) g.a = c->x, g.a_inner = w->depth * c->x_c, g.a_row = plain, g.a_column = c->x_c;
  for (w->first = 0; w->first < positions; w->first += rows) {
    g.m = positions - w->first < rows ? positions - w->first : rows;
    if (!plain) hloc_parallel(C(copy_patches), (void* const*)w, g.m, GRAIN / (w->row + 1) + 1);
    if (HLOC_GENERIC_NAME(hloc_gemm_, HLOC_PRODUCT, )(&g)) return 1;
  }
  return 0;
}

int HLOC_GENERIC_NAME(hloc_conv_, HLOC_GENERIC_CONV, )(const hloc_conv_args* args) {
  for (long group = 0; group < args->batch_groups; group++) { /* neighbouring parts of the batch and the features */
    C(work) w = {.c = *args};
    hloc_conv_args* c = &w.c;
    c->batch /= c->batch_groups, c->y_features /= c->batch_groups;
    w.column_offset = group * c->y_features;
    c->x = (const OPERAND*)c->x + group * c->batch * c->x_n;
    c->w = (const OPERAND*)c->w + w.column_offset * c->w_o;
    if (c->y) c->y = (SUM*)c->y + w.column_offset * c->y_c;
    w.depth = c->x_features / c->feature_groups, w.features = c->y_features / c->feature_groups;
    w.taps = c->window[0] * c->window[1] * c->window[2], w.row = c->feature_groups * w.taps * w.depth;
    w.y_step = C(step)(c->batch, c->y_n, c->y_size, c->y_s);
    long positions = c->batch * c->y_size[0] * c->y_size[1] * c->y_size[2];
    if (positions <= 0 || c->y_features <= 0) continue;
    if (c->feature_groups > 1 && w.depth == 1 && w.features == 1)
      hloc_parallel(C(by_channels), (void* const*)&w, positions, 16384 / (w.row + 1) + 1);
    else if (C(by_product)(&w)) return 1;
  }
  return 0;
}

#undef C
#undef OPERAND
#undef SUM
#undef FACTOR
#undef ADD
#undef MULTIPLY
#undef HLOC_GENERIC_CONV
#undef HLOC_OPERAND
#undef HLOC_TOTAL
#undef HLOC_PRODUCT
