/* generic_conv.h: the convolutions of one set of element types that conv.c does not support: f64, integers, complex.
 *
 * In: HLOC_GENERIC_CONV (f64, s8_s32, ...), HLOC_OPERAND and HLOC_TOTAL (element types of x and w, and of sums and y),
 * HLOC_PRODUCT (the element type of the matmuls of gemm.h with such sums).
 * Out: hloc_conv_<HLOC_GENERIC_CONV> (see conv.h). These macros are undefined again.
 *
 * They are matmuls: a row of `patches` has all elements that a window reads, one row per output position, one part per
 * group. They are copied from a `frame`: the images with their padding, and contiguous features. An image that is
 * such a frame is read in place; so is the frame of a window along one dimension, whose rows overlap in memory.
 */
#define C(name) HLOC_GENERIC_NAME(conv_, HLOC_GENERIC_CONV, _##name)
#define OPERAND HLOC_GENERIC_NAME(hloc_, HLOC_OPERAND, )
#define SUM HLOC_GENERIC_NAME(hloc_, HLOC_TOTAL, )
#define FACTOR HLOC_GENERIC_NAME(hloc_, HLOC_PRODUCT, )

typedef struct {
  hloc_conv_args c;
  long column_offset;                          /* of the batch group's first output feature */
  long depth, features, taps, row;             /* per group: input and output features; elements of a row of patches */
  long first;                                  /* output position of the first row of patches */
  const FACTOR* frame;                         /* of images from first_image on; strides of images and dimensions */
  long first_image, frame_n, frame_s[3], frame_size[3];
  const long* runs;                            /* offsets in the frame of a row's runs, from its first one */
  long run_count, run;                         /* elements of one */
  long y_step;                                 /* between output positions in y; 0: not the same everywhere */
  FACTOR* patches;
} C(work);

static void C(position_of)(const hloc_conv_args* c, long position, long* batch, long* o) {
  for (int d = 2; d >= 0; d--) o[d] = position % c->y_size[d], position /= c->y_size[d];
  *batch = position;
}

static void C(copy)(const OPERAND* from, long step, long count, FACTOR* to) {
  if (step == 1) for (long i = 0; i < count; i++) to[i] = from[i];
  else for (long i = 0; i < count; i++) to[i] = from[i * step];
}
static void C(zeros)(FACTOR* to, long count) {
  for (long i = 0; i < count; i++) to[i] = (FACTOR){0};
}

/* One line of the frame, along the last dimension, from a line of the image. */
static void C(copy_line)(const C(work)* w, const OPERAND* from, FACTOR* to) {
  const hloc_conv_args* c = &w->c;
  const long n = w->frame_size[2], features = c->x_features, dilation = c->base_dilation[2], step = c->x_s[2];
  long first = c->pad_low[2] < 0 ? (-c->pad_low[2] + dilation - 1) / dilation : 0; /* of the image */
  long last = n > c->pad_low[2] ? (n - c->pad_low[2] - 1) / dilation + 1 : 0, low = c->pad_low[2] + first * dilation;
  last = last < c->x_size[2] ? last : c->x_size[2];
  if (last <= first || dilation > 1) C(zeros)(to, n * features);
  if (last <= first) return;
  from += first * step;
  if (dilation == 1) {
    const long end = low + last - first;
    C(zeros)(to, low * features);
    C(zeros)(to + end * features, (n - end) * features);
  }
  to += low * features;
  if (dilation == 1 && step == features && (c->x_c == 1 || features == 1)) {
    C(copy)(from, 1, (last - first) * features, to);
  } else if (c->x_c == 1) {
    for (long p = first; p < last; p++, from += step, to += dilation * features) C(copy)(from, 1, features, to);
  } else {
    for (long i = 0; i < features; i++)
      for (long p = 0; p < last - first; p++) to[p * dilation * features + i] = from[p * step + i * c->x_c];
  }
}
static void C(copy_frame)(void* const* args, long begin, long end) {
  const C(work)* w = (const C(work)*)args;
  const hloc_conv_args* c = &w->c;
  for (long line = begin; line < end; line++) {
    FACTOR* to = (FACTOR*)w->frame + line * w->frame_s[1];
    long place[2] = {line / w->frame_size[1] % w->frame_size[0], line % w->frame_size[1]}, inside = 1;
    const OPERAND* from = (const OPERAND*)c->x;
    from += (w->first_image + line / w->frame_size[1] / w->frame_size[0]) * c->x_n;
    for (int d = 0; d < 2; d++) {
      long at = place[d] - c->pad_low[d];
      inside &= at >= 0 && at % c->base_dilation[d] == 0 && at / c->base_dilation[d] < c->x_size[d];
      from += at / c->base_dilation[d] * c->x_s[d];
    }
    if (inside) C(copy_line)(w, from, to);
    else C(zeros)(to, w->frame_s[1]);
  }
}

/* The runs of a row, and their length: the window's last dimension, if its positions are contiguous. */
static int C(runs_are_long)(const C(work)* w) {
  const hloc_conv_args* c = &w->c;
  const int side_by_side = c->window_dilation[2] == 1 && !c->reversed[2] && w->frame_s[2] == c->x_features;
  return c->feature_groups == 1 && (side_by_side || c->window[2] == 1);
}
static void C(find_runs)(C(work)* w, long* runs) {
  const hloc_conv_args* c = &w->c;
  const long last = C(runs_are_long)(w) ? 1 : c->window[2];
  w->runs = runs, w->run = w->depth * (c->window[2] / last);
  for (long group = 0; group < c->feature_groups; group++)
    for (long tap = 0; tap < c->window[0] * c->window[1] * last; tap++) {
      const long k[3] = {tap / last / c->window[1], tap / last % c->window[1], tap % last};
      *runs = group * w->depth;
      for (int d = 0; d < 3; d++)
        if (d < 2 || last > 1)
          *runs += (c->reversed[d] ? c->window[d] - 1 - k[d] : k[d]) * c->window_dilation[d] * w->frame_s[d];
      runs++;
    }
  w->run_count = runs - w->runs;
}
static void C(copy_patches)(void* const* args, long begin, long end) {
  const C(work)* w = (const C(work)*)args;
  const hloc_conv_args* c = &w->c;
  long batch, o[3];
  C(position_of)(c, w->first + begin, &batch, o);
  for (long row = begin; row < end; row++) {
    FACTOR* to = w->patches + row * w->row;
    const FACTOR* from = w->frame + (batch - w->first_image) * w->frame_n;
    for (int d = 0; d < 3; d++) from += o[d] * c->stride[d] * w->frame_s[d];
    if (w->run == 1) for (long i = 0; i < w->run_count; i++) to[i] = from[w->runs[i]];
    else
      for (long i = 0; i < w->run_count; i++, to += w->run)
        copy_run((char*)to, (const char*)(from + w->runs[i]), w->run * sizeof(FACTOR));
    for (int d = 2; d >= 0; d--) { /* the next position */
      if (++o[d] < c->y_size[d]) break;
      o[d] = 0;
      if (d == 0) batch++;
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
  if (stride == columns && w->y_step == columns && c->y_c == 1) { /* contiguous */
    __builtin_memcpy((SUM*)c->y + row * columns + column, tile, rows * columns * sizeof(SUM));
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

/* The one stride that visits all positions in order, including the batch; 0: there is none. */
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

static int C(multiply)(C(work)* w, hloc_gemm_args* g, long first, long rows) {
  w->first = first, g->m = rows;
  if (w->c.products) g->plan = hloc_gemm_plan_for(w->c.products, g->batches, rows);
  return HLOC_GENERIC_NAME(hloc_gemm_, HLOC_PRODUCT, )(g);
}

/* The images starting at w->first_image, `rows` output positions at a time; 0: the image itself is the patches. */
static int C(multiply_images)(C(work)* w, hloc_gemm_args* g, long images, long rows) {
  enum { GRAIN = 16384 };
  const hloc_conv_args* c = &w->c;
  const long of_one = c->y_size[0] * c->y_size[1] * c->y_size[2], start = w->first_image * of_one;
  const long end = start + images * of_one;
  for (long image = 0; !rows && image < images; image++) {
    g->a = w->frame + image * w->frame_n, g->a_row = c->stride[2] * w->frame_s[2];
    if (C(multiply)(w, g, start + image * of_one, of_one)) return 1;
  }
  for (long first = start; rows && first < end; first += rows) {
    const long count = end - first < rows ? end - first : rows;
    w->first = first;
    hloc_parallel(C(copy_patches), (void* const*)w, count, GRAIN / (w->row + 1) + 1);
    if (C(multiply)(w, g, first, count)) return 1;
  }
  return 0;
}

static int C(by_product)(C(work)* w) {
  enum { GRAIN = 16384 };
  const hloc_conv_args* c = &w->c;
  const long k = w->taps * w->depth;
  const long images = c->choices.images, rows = c->choices.patch_rows;
  for (int d = 2; d >= 0; d--) {
    w->frame_size[d] = (c->y_size[d] - 1) * c->stride[d] + (c->window[d] - 1) * c->window_dilation[d] + 1;
    w->frame_s[d] = d == 2 ? c->x_features : w->frame_s[d + 1] * w->frame_size[d + 1];
  }
  w->frame_n = w->frame_s[0] * w->frame_size[0];
  const int framed = c->choices.framed;
  const long frame = framed ? 0 : images * w->frame_n;
  if (framed) for (int d = 0; d < 3; d++) w->frame_s[d] = c->x_s[d];
  if (framed) w->frame_n = c->x_n, w->frame = (const FACTOR*)(const void*)c->x;
  const size_t filters = (size_t)(c->feature_groups * k * w->features);
  const size_t run_bytes = (size_t)(c->feature_groups * w->taps) * sizeof(long);
  char* memory = hloc_scratch(HLOC_SECOND, c->choices.second);
  if (!memory) return 1;
  FACTOR* weights = (FACTOR*)(memory + run_bytes);
  w->patches = weights + filters;
  if (frame) w->frame = w->patches + rows * w->row;
  C(copy_weights)(w, weights);
  hloc_gemm_args g = {.batches = c->feature_groups, .inner_batches = c->feature_groups, .n = w->features, .k = k,
                      .a = w->patches, .a_inner = k, .a_row = w->row, .a_column = 1,
                      .b = weights, .b_inner = k * w->features, .b_row = w->features, .b_column = 1,
                      .epilogue = C(finish), .epilogue_args = (void* const*)w};
  C(find_runs)(w, (long*)(void*)memory);
  for (w->first_image = 0; w->first_image < c->batch; w->first_image += images) {
    const long count = c->batch - w->first_image < images ? c->batch - w->first_image : images;
    const long lines = count * w->frame_size[0] * w->frame_size[1];
    if (frame) hloc_parallel(C(copy_frame), (void* const*)w, lines, GRAIN / (w->frame_s[1] + 1) + 1);
    if (C(multiply_images)(w, &g, count, rows)) return 1;
  }
  return 0;
}

int HLOC_GENERIC_NAME(hloc_conv_, HLOC_GENERIC_CONV, )(const hloc_conv_args* args) {
  for (long group = 0; group < args->batch_groups; group++) { /* contiguous parts of the batch and the features */
    C(work) w = {.c = *args};
    hloc_conv_args* c = &w.c;
    c->batch /= c->batch_groups, c->y_features /= c->batch_groups;
    w.column_offset = group * c->y_features;
    c->x = (const OPERAND*)c->x + group * c->batch * c->x_n;
    c->w = (const OPERAND*)c->w + w.column_offset * c->w_o;
    if (c->y) c->y = (SUM*)c->y + w.column_offset * c->y_c;
    if (c->y_features == 1) c->y_c = 1;
    w.depth = c->x_features / c->feature_groups, w.features = c->y_features / c->feature_groups;
    w.taps = c->window[0] * c->window[1] * c->window[2], w.row = c->feature_groups * w.taps * w.depth;
    w.y_step = C(step)(c->batch, c->y_n, c->y_size, c->y_s);
    long positions = c->batch * c->y_size[0] * c->y_size[1] * c->y_size[2];
    if (positions <= 0 || c->y_features <= 0) continue;
    if (C(by_product)(&w)) return 1;
  }
  return 0;
}

#undef C
#undef OPERAND
#undef SUM
#undef FACTOR
#undef HLOC_GENERIC_CONV
#undef HLOC_OPERAND
#undef HLOC_TOTAL
#undef HLOC_PRODUCT
