/* conv_memory.c: memory accesses of convolutions: rearranging operands and storing finished sums.
 */
#include "conv_operands.h"
#include "half_rows.h"
#include "narrow.h"

/* ---- rearranging an operand */
HLOC_INLINE float pair_of(const hloc_conv_arrangement* a, long at) {
  const hloc_bf16* first = (const hloc_bf16*)a->source + at;
  return hloc_from_bits_f32(first[0] | (hloc_u32)first[a->partner] << 16);
}
HLOC_INLINE float load_as_f32(const hloc_conv_arrangement* a, hloc_conv_type type, long at) {
  if (type == HLOC_CONV_IS_F32) return ((const float*)a->source)[at];
  if (type == HLOC_CONV_IS_PAIRS) return pair_of(a, at);
  return type == HLOC_CONV_IS_BF16 ? hloc_bf16_to_f32(((const hloc_bf16*)a->source)[at])
                                   : hloc_widen_f16(((const hloc_f16*)a->source)[at]);
}
HLOC_INLINE void widen_row(const hloc_conv_arrangement* a, hloc_conv_type type, long from, long count, float* to) {
  if (type == HLOC_CONV_IS_F32) __builtin_memcpy(to, (const float*)a->source + from, count * sizeof(float));
  else if (type == HLOC_CONV_IS_F16) hloc_widen_row_f16((const hloc_f16*)a->source + from, to, count);
  else for (long i = 0; i < count; i++) to[i] = load_as_f32(a, type, from + i);
}
/* A row that is contiguous in memory, possibly of another type. */
HLOC_INLINE void copy_row(const hloc_conv_arrangement* a, hloc_conv_type type, long from, float* to) {
  const long places = hloc_max(0, hloc_min(a->size[2], a->padded - a->pad_low)), skipped = hloc_max(0, -a->pad_low);
  const long before = hloc_min(a->padded, hloc_max(0, a->pad_low)), copied = hloc_max(0, places - skipped);
  __builtin_memset(to, 0, before * a->inner * sizeof(float));
  to += before * a->inner;
  widen_row(a, type, from + skipped * a->inner, copied * a->inner, to);
  __builtin_memset(to + copied * a->inner, 0, (a->padded - before - copied) * a->inner * sizeof(float));
}
/* Positions are contiguous and features are not: blocks of both are transposed. */
HLOC_INLINE void transpose_block(const hloc_conv_arrangement* a, hloc_conv_type type, long from, float* to) {
  if (type == HLOC_CONV_IS_F32) {
    hloc_transpose_tile_32((const float*)a->source + from, a->inner_stride, to, a->pitch);
    return;
  }
  float wide[HLOC_LANES32 * HLOC_LANES32] __attribute__((aligned(64)));
  for (long i = 0; i < HLOC_LANES32; i++)
    widen_row(a, type, from + i * a->inner_stride, HLOC_LANES32, wide + i * HLOC_LANES32);
  hloc_transpose_tile_32(wide, HLOC_LANES32, to, a->pitch);
}
/* A part of a block: positions after it are also read, if there are any. */
HLOC_INLINE void transpose_part(const hloc_conv_arrangement* a, hloc_conv_type type, long from, long features,
                                long places, float* to) {
  float wide[HLOC_LANES32 * HLOC_LANES32] __attribute__((aligned(64)));
  float transposed[HLOC_LANES32 * HLOC_LANES32] __attribute__((aligned(64)));
  const int is_whole = from + (features - 1) * a->inner_stride + HLOC_LANES32 - 1 + a->partner <= a->last;
  for (long i = 0; i < features; i++, from += a->inner_stride) {
    float* row = wide + i * HLOC_LANES32;
    if (is_whole) widen_row(a, type, from, HLOC_LANES32, row);
    else for (long s = 0; s < places; s++) row[s] = load_as_f32(a, type, from + s);
  }
  hloc_transpose_tile_32(wide, HLOC_LANES32, transposed, HLOC_LANES32);
  for (long s = 0; s < places; s++, to += a->pitch) {
    const float* row = transposed + s * HLOC_LANES32;
    if (features == HLOC_LANES32) __builtin_memcpy(to, row, HLOC_LANES32 * sizeof(float));
    else for (long j = 0; j < features; j++) to[j] = row[j];
  }
}
HLOC_INLINE void transpose_row(const hloc_conv_arrangement* a, hloc_conv_type type, long from, long places, float* to) {
  enum { FEW = HLOC_LANES32 / 4 }; /* gathered one by one */
  for (long i = 0; i < a->inner; i += HLOC_LANES32) {
    const long features = hloc_min(HLOC_LANES32, a->inner - i), first = from + i * a->inner_stride;
    float* target = to + i;
    for (long s = 0, count; s < places; s += count, target += count * a->pitch) {
      count = features <= FEW || places <= FEW ? 1 : hloc_min(HLOC_LANES32, places - s);
      if (features == HLOC_LANES32 && count == HLOC_LANES32) transpose_block(a, type, first + s, target);
      else if (count > 1) transpose_part(a, type, first + s, features, count, target);
      else for (long j = 0; j < features; j++) target[j] = load_as_f32(a, type, first + s + j * a->inner_stride);
    }
  }
}
HLOC_INLINE void arrange_row(const hloc_conv_arrangement* a, hloc_conv_type type, long from, float* to) {
  if (a->inner_stride == 1 && a->stride[2] == a->inner && a->pitch == a->inner) {
    copy_row(a, type, from, to);
    return;
  }
  for (long i0 = 0; i0 < a->inner; i0 += 16) { /* strips: the source may be contiguous along s2 rather than inner */
    long i1 = hloc_min(a->inner, i0 + 16);
    for (long s = 0; s < a->padded; s++) {
      float* out = to + s * a->pitch;
      long at = s - a->pad_low;
      if (at < 0 || at >= a->size[2]) {
        for (long i = i0; i < i1; i++) out[i] = 0.0f;
      } else if (a->inner_stride == 1 && type == HLOC_CONV_IS_F16) {
        hloc_widen_row_f16((const hloc_f16*)a->source + from + at * a->stride[2] + i0, out + i0, i1 - i0);
      } else if (a->inner_stride == 1) {
        for (long i = i0; i < i1; i++) out[i] = load_as_f32(a, type, from + at * a->stride[2] + i);
      } else {
        for (long i = i0; i < i1; i++)
          out[i] = load_as_f32(a, type, from + at * a->stride[2] + i * a->inner_stride);
      }
    }
  }
}
HLOC_INLINE void arrange_rows(const hloc_conv_arrangement* a, hloc_conv_type type, long begin, long end) {
  for (long task = begin; task < end; task++) {
    const long row = task / a->pieces, place = task % a->pieces * a->piece;
    long s1 = row % a->size[1], s0 = row / a->size[1] % a->size[0], n = row / a->size[1] / a->size[0];
    long from = n * a->outer_stride + s0 * a->stride[0] + s1 * a->stride[1];
    float* to = a->target + row * a->row;
    if (a->transposed)
      transpose_row(a, type, from + place, hloc_min(a->piece, a->padded - place), to + place * a->pitch);
    else arrange_row(a, type, from, to);
  }
}
#define DEFINE_ARRANGING(NAME, TYPE)                                                                                  \
  static void NAME(void* const* args, long begin, long end) {                                                         \
    arrange_rows((const hloc_conv_arrangement*)args, TYPE, begin, end);                                               \
  }
DEFINE_ARRANGING(arrange_f32, HLOC_CONV_IS_F32)
DEFINE_ARRANGING(arrange_bf16, HLOC_CONV_IS_BF16)
DEFINE_ARRANGING(arrange_f16, HLOC_CONV_IS_F16)
DEFINE_ARRANGING(arrange_pairs, HLOC_CONV_IS_PAIRS)

/* ---- storing sums */
HLOC_COMPILED_FOR(conv, HLOC_CONV_ROWS, HLOC_VECTOR_BYTES, 0, 0)

static void store_sums_bf16(hloc_bf16* to, long step, long count, const float* from) {
  if (step == 1) for (long j = 0; j < count; j++) to[j] = hloc_f32_to_bf16(from[j]);
  else for (long j = 0; j < count; j++) to[j * step] = hloc_f32_to_bf16(from[j]);
}
static void store_sums_f16(hloc_f16* to, long step, long count, const float* from) {
  if (step == 1) hloc_narrow_row_f16(from, to, count);
  else for (long j = 0; j < count; j++) to[j * step] = hloc_narrow_f32(from[j]);
}

long hloc_conv_y_offset(const hloc_conv_args* c, long position) {
  long offset = 0;
  for (int d = 2; d >= 0; d--) offset += position % c->y_size[d] * c->y_s[d], position /= c->y_size[d];
  return offset + position * c->y_n;
}

/* Stores sums to y, the first at element `at`, `step` apart. */
static void store_sums(const hloc_conv_plan* plan, long at, long step, long count, const float* from) {
  float* y = (float*)plan->c.y + at;
  if (plan->y_type == HLOC_CONV_IS_BF16) store_sums_bf16((hloc_bf16*)plan->c.y + at, step, count, from);
  else if (plan->y_type == HLOC_CONV_IS_F16) store_sums_f16((hloc_f16*)plan->c.y + at, step, count, from);
  else if (step == 1) __builtin_memcpy(y, from, count * sizeof(float));
  else for (long j = 0; j < count; j++) y[j * step] = from[j];
}
/* Whether the sums of neighbouring positions are contiguous in y. */
static int is_one_piece(const hloc_conv_args* c, long columns) {
  return c->y_features == columns && c->y_c == 1 && c->y_s[2] == columns && c->y_s[1] == c->y_s[2] * c->y_size[2] &&
         c->y_s[0] == c->y_s[1] * c->y_size[1] && (c->batch == 1 || c->y_n == c->y_s[0] * c->y_size[0]);
}
/* transposed[j][i] = tile[i][j], by blocks of vectors if a row of the tile has whole ones. */
enum { TRANSPOSED_FEATURES = 32, TRANSPOSED_POSITIONS = 128 };
static void transpose_sums(const float* tile, long stride, long rows, long columns, float* transposed) {
  const long whole = rows / HLOC_LANES32 * HLOC_LANES32;
  for (long j = 0, done; j < columns; j += HLOC_LANES32) {
    done = j + HLOC_LANES32 <= stride ? whole : 0;
    for (long i = 0; i < done; i += HLOC_LANES32)
      hloc_transpose_tile_32(tile + i * stride + j, stride, transposed + j * TRANSPOSED_POSITIONS + i,
                             TRANSPOSED_POSITIONS);
    for (long k = j; k < hloc_min(columns, j + HLOC_LANES32); k++)
      for (long i = done; i < rows; i++) transposed[k * TRANSPOSED_POSITIONS + i] = tile[i * stride + k];
  }
}
/* The same as hloc_conv_finish, feature by feature, if the positions of an image are contiguous. */
static void finish_transposed(const hloc_conv_plan* plan, long position, long column, long rows, long columns,
                          const float* tile, long stride) {
  const hloc_conv_args* c = &plan->c;
  float transposed[TRANSPOSED_FEATURES * TRANSPOSED_POSITIONS] __attribute__((aligned(64)));
  const int plain = c->y_s[0] == c->y_size[1] * c->y_s[1] && c->y_s[1] == c->y_size[2];
  const long span = c->epilogue || plain ? c->y_size[0] * c->y_size[1] * c->y_size[2] : c->y_size[2];
  for (long count, end = position + rows; position < end; position += count, tile += count * stride) {
    const long place = position % span;
    count = hloc_min(hloc_min(end - position, span - place), TRANSPOSED_POSITIONS);
    for (long j = 0, features; j < columns; j += features) {
      features = hloc_min(columns - j, TRANSPOSED_FEATURES);
      transpose_sums(tile + j, stride, count, features, transposed);
      if (c->epilogue) {
        c->epilogue(c->epilogue_args, position / span, plan->column_offset + column + j, place, features, count,
                    transposed, TRANSPOSED_POSITIONS);
        continue;
      }
      const long at = hloc_conv_y_offset(c, position) + (column + j) * c->y_c;
      for (long k = 0; k < features; k++)
        store_sums(plan, at + k * c->y_c, 1, count, transposed + k * TRANSPOSED_POSITIONS);
    }
  }
}
void hloc_conv_finish(const hloc_conv_plan* plan, long position, long column, long rows, long columns,
                      const float* tile, long stride) {
  const hloc_conv_args* c = &plan->c;
  if (goes_along_positions(c) && (rows > 1 || c->epilogue)) {
    finish_transposed(plan, position, column, rows, columns, tile, stride);
    return;
  }
  if (c->epilogue) {
    c->epilogue(c->epilogue_args, 0, position, plan->column_offset + column, rows, columns, tile, stride);
    return;
  }
  if (stride == columns && is_one_piece(c, columns)) {
    store_sums(plan, position * columns, 1, rows * columns, tile);
    return;
  }
  long at = hloc_conv_y_offset(c, position), left[3], rest = position; /* positions left in each dimension's run */
  for (int d = 2; d >= 0; d--) left[d] = c->y_size[d] - rest % c->y_size[d], rest /= c->y_size[d];
  for (long i = 0; i < rows; i++) {
    store_sums(plan, at + column * c->y_c, c->y_c, columns, tile + i * stride);
    int d = 2;
    for (; d >= 0 && --left[d] == 0; d--) { /* back to the run's start, one further in the next dimension */
      at -= (c->y_size[d] - 1) * c->y_s[d];
      left[d] = c->y_size[d];
    }
    at += d >= 0 ? c->y_s[d] : c->y_n;
  }
}

/* An arrangement that transposes blocks: contiguous dimensions are collapsed into one, which is divided into pieces. */
static hloc_conv_arrangement in_pieces(const hloc_conv_arrangement* given) {
  enum { PIECE = 16 * HLOC_LANES32 };
  hloc_conv_arrangement a = *given;
  a.last = (a.outer - 1) * a.outer_stride + (a.inner - 1) * a.inner_stride + a.partner;
  for (int d = 0; d < 3; d++) a.last += (a.size[d] - 1) * a.stride[d];
  a.transposed = a.inner_stride != 1 && a.stride[2] == 1 && a.padded == a.size[2] && !a.pad_low;
  if (a.transposed && !a.row) {
    if (a.stride[1] == a.size[2]) a.size[2] *= a.size[1], a.size[1] = 1, a.stride[1] = a.size[2];
    if (a.size[1] == 1 && a.stride[0] == a.size[2]) a.size[2] *= a.size[0], a.size[0] = 1;
    if (a.size[0] * a.size[1] == 1 && a.outer_stride == a.size[2]) a.size[2] *= a.outer, a.outer = 1;
    a.padded = a.size[2];
  }
  if (!a.row) a.row = a.padded * a.pitch;
  a.piece = a.transposed ? hloc_min(PIECE, a.padded) : a.padded;
  a.pieces = a.piece ? (a.padded + a.piece - 1) / a.piece : 1;
  return a;
}

void hloc_conv_arrange(const hloc_conv_arrangement* given) {
  const hloc_conv_arrangement a = in_pieces(given);
  hloc_task task = a.type == HLOC_CONV_IS_F32     ? arrange_f32
                   : a.type == HLOC_CONV_IS_BF16  ? arrange_bf16
                   : a.type == HLOC_CONV_IS_PAIRS ? arrange_pairs
                                                  : arrange_f16;
  long tasks = a.outer * a.size[0] * a.size[1] * a.pieces;
  hloc_parallel(task, (void* const*)&a, tasks, 16384 / (a.piece * a.inner + 1) + 1);
}

int hloc_conv_move(hloc_conv_args* c, hloc_conv_type type) {
  hloc_conv_arrangement x = arrange_x(c, type), w = arrange_w(c, type);
  float* memory = hloc_scratch(HLOC_FIRST, c->choices.first);
  if (!memory) return 1;
  x.target = memory, w.target = memory + c->choices.at_w;
  if (c->choices.move_x) hloc_conv_arrange(&x), use_x(c, &x);
  if (c->choices.move_w) hloc_conv_arrange(&w), use_w(c, &w);
  return 0;
}
