/* conv_tiles.c: register tiles of convolutions: sums of ROWS positions x two vectors of output features, for
 * conv_rows.c and conv_winograd.c.
 */
#include "conv_internal.h"
#include "pairs.h"

enum { PANEL_AHEAD = 8 };

#define BEGIN_ROW(i) hloc_vf32 left##i = {0}, right##i = {0};
#define LOAD_ROW(i)                                                                                                   \
  left##i = hloc_load_f32(tile + (i) * stride), right##i = hloc_load_f32(tile + (i) * stride + HLOC_LANES32);
#define FIND_ROW(i) const float* row##i = rows[i] + first;
#define ADD_ROW(i)                                                                                                    \
  {                                                                                                                   \
    const hloc_vf32 a = hloc_splat_f32(row##i[k]);                                                                    \
    left##i += a * b0, right##i += a * b1;                                                                            \
  }
#define ADD_ROW_OF_PAIRS(i)                                                                                           \
  {                                                                                                                   \
    const hloc_vu32 a = hloc_splat_u32(((const unsigned*)row##i)[k]);                                                 \
    left##i = (hloc_vf32)HLOC_MULTIPLY_PAIRS(left##i, a, b0);                                                         \
    right##i = (hloc_vf32)HLOC_MULTIPLY_PAIRS(right##i, a, b1);                                                       \
  }
#define STORE_ROW(i)                                                                                                  \
  hloc_store_f32(tile + (i) * stride, left##i), hloc_store_f32(tile + (i) * stride + HLOC_LANES32, right##i);
#define DEFINE_TILE(NAME, ADD)                                                                                        \
  void NAME(long taps, const long* tap_index, const float* const* rows, long first, long depth, const float* panel,   \
            float* tile, long stride, int accumulate, const char* ahead, long ahead_step) {                           \
    HLOC_EACH_CONV_ROW(BEGIN_ROW)                                                                                     \
    if (accumulate) { HLOC_EACH_CONV_ROW(LOAD_ROW) }                                                                  \
    for (long t = 0; t < taps; t++, rows += ROWS) {                                                                   \
      const float* b = panel + tap_index[t] * depth * COLUMNS;                                                        \
      HLOC_EACH_CONV_ROW(FIND_ROW)                                                                                    \
      for (long k = 0; k < depth; k++, b += COLUMNS) {                                                                \
        const hloc_vf32 b0 = hloc_load_f32(b), b1 = hloc_load_f32(b + HLOC_LANES32);                                  \
        __builtin_prefetch(b + PANEL_AHEAD * COLUMNS), __builtin_prefetch(b + PANEL_AHEAD * COLUMNS + HLOC_LANES32);  \
        __builtin_prefetch(ahead, 0, 2), ahead += ahead_step;                                                         \
        HLOC_EACH_CONV_ROW(ADD)                                                                                       \
      }                                                                                                               \
    }                                                                                                                 \
    HLOC_EACH_CONV_ROW(STORE_ROW)                                                                                     \
  }
#define BEGIN_HALF(i) hloc_vf32 sum##i = {0};
#define FIND_HALF(i) const float* row##i = rows[i];
#define ADD_HALF(i) sum##i += hloc_splat_f32(row##i[k]) * b0;
#define ADD_HALF_OF_PAIRS(i)                                                                                          \
  sum##i = (hloc_vf32)HLOC_MULTIPLY_PAIRS(sum##i, hloc_splat_u32(((const unsigned*)row##i)[k]), b0);
#define STORE_HALF(i) hloc_store_f32(tile + (i) * COLUMNS, sum##i);
#define DEFINE_HALF_TILE(NAME, ADD)                                                                                   \
  void NAME(long taps, const long* tap_index, const float* const* rows, long depth, const float* panel,               \
            float* tile) {                                                                                            \
    HLOC_EACH_CONV_ROW(BEGIN_HALF)                                                                                    \
    for (long t = 0; t < taps; t++, rows += ROWS) {                                                                   \
      const float* b = panel + tap_index[t] * depth * COLUMNS;                                                        \
      HLOC_EACH_CONV_ROW(FIND_HALF)                                                                                   \
      for (long k = 0; k < depth; k++, b += COLUMNS) {                                                                \
        const hloc_vf32 b0 = hloc_load_f32(b);                                                                        \
        __builtin_prefetch(b + PANEL_AHEAD * COLUMNS);                                                                \
        HLOC_EACH_CONV_ROW(ADD)                                                                                       \
      }                                                                                                               \
    }                                                                                                                 \
    HLOC_EACH_CONV_ROW(STORE_HALF)                                                                                    \
  }

#if HLOC_HAS_PAIRS
DEFINE_TILE(hloc_conv_tile_of_pairs, ADD_ROW_OF_PAIRS)
DEFINE_HALF_TILE(hloc_conv_half_tile_of_pairs, ADD_HALF_OF_PAIRS)
#endif
DEFINE_TILE(hloc_conv_tile, ADD_ROW)
DEFINE_HALF_TILE(hloc_conv_half_tile, ADD_HALF)

void hloc_conv_short_tile(const float* const* rows, long depth, const float* panel, float* tile, int accumulate) {
  const long first = 0, stride = COLUMNS;
  HLOC_EACH_SHORT_CONV_ROW(BEGIN_ROW)
  if (accumulate) { HLOC_EACH_SHORT_CONV_ROW(LOAD_ROW) }
  HLOC_EACH_SHORT_CONV_ROW(FIND_ROW)
  for (long k = 0; k < depth; k++, panel += COLUMNS) {
    const hloc_vf32 b0 = hloc_load_f32(panel), b1 = hloc_load_f32(panel + HLOC_LANES32);
    HLOC_EACH_SHORT_CONV_ROW(ADD_ROW)
  }
  HLOC_EACH_SHORT_CONV_ROW(STORE_ROW)
}

/* Half of a vector, if that takes half of the time. */
#if HLOC_VECTOR_BYTES == 64
typedef float half_vector __attribute__((vector_size(32), aligned(4), may_alias));
#define BEGIN_QUARTER(i) half_vector sum##i = {0};
#define ADD_QUARTER(i) sum##i += (row##i[k] - (half_vector){0}) * b0;
#define STORE_QUARTER(i) *(half_vector*)(tile + (i) * COLUMNS) = sum##i;
void hloc_conv_quarter_tile(long taps, const long* tap_index, const float* const* rows, long depth, const float* panel,
                            float* tile) {
  HLOC_EACH_CONV_ROW(BEGIN_QUARTER)
  for (long t = 0; t < taps; t++, rows += ROWS) {
    const float* b = panel + tap_index[t] * depth * COLUMNS;
    HLOC_EACH_CONV_ROW(FIND_HALF)
    for (long k = 0; k < depth; k++, b += COLUMNS) {
      const half_vector b0 = *(const half_vector*)b;
      HLOC_EACH_CONV_ROW(ADD_QUARTER)
    }
  }
  HLOC_EACH_CONV_ROW(STORE_QUARTER)
}
#endif
