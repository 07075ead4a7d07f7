/* conv_dots.c: the register tiles of conv_rows.c for few output features, with lanes along x's features. */
#include "conv_internal.h"

enum { DOT_ROWS = HLOC_CONV_ROWS };

/* sums[i * count + j] = sum over taps t, features k < depth of rows[t * DOT_ROWS + i][k] * weights[taps[t]][j][k];
 * depth is at least a vector. The last vector of features overlaps the previous one if it is not whole. */
HLOC_INLINE void dots_of_rows(const int count, long taps, const long* tap_index, const float* const* rows, long depth,
                              const float* weights, float* sums) {
  enum { AT_ONCE = DOT_ROWS / 2, DOT_LANES = HLOC_LANES32 };
  static const unsigned char met[2 * HLOC_VECTOR_BYTES] = {[HLOC_VECTOR_BYTES ... 2 * HLOC_VECTOR_BYTES - 1] = 255};
  const long whole = depth / DOT_LANES * DOT_LANES;
  const hloc_vu32 new = hloc_load_u32(met + (depth - whole) * sizeof(float));
  hloc_vf32 lanes[DOT_ROWS * HLOC_CONV_DOTS + DOT_LANES];
  for (int i = 0; i < DOT_LANES; i++) lanes[DOT_ROWS * count + i] = (hloc_vf32){0}; /* the rest of a vector */
  for (int first = 0; first < DOT_ROWS; first += AT_ONCE) {
    hloc_vf32 sum[AT_ONCE * HLOC_CONV_DOTS];
    HLOC_UNROLL for (int i = 0; i < AT_ONCE * count; i++) sum[i] = (hloc_vf32){0};
    for (long t = 0; t < taps; t++) {
      const float* w = weights + tap_index[t] * count * depth;
      const float* row[AT_ONCE];
      HLOC_UNROLL for (int i = 0; i < AT_ONCE; i++) row[i] = rows[t * DOT_ROWS + first + i];
      for (long k = 0; k < whole; k += DOT_LANES) {
        HLOC_UNROLL for (int i = 0; i < AT_ONCE; i++) {
          const hloc_vf32 x = hloc_load_f32(row[i] + k);
          HLOC_UNROLL for (int j = 0; j < count; j++) sum[i * count + j] += x * hloc_load_f32(w + j * depth + k);
        }
      }
      if (whole == depth) continue;
      HLOC_UNROLL for (int i = 0; i < AT_ONCE; i++) {
        const hloc_vf32 x = (hloc_vf32)(hloc_load_u32(row[i] + depth - DOT_LANES) & new);
        HLOC_UNROLL for (int j = 0; j < count; j++)
          sum[i * count + j] += x * (hloc_vf32)(hloc_load_u32(w + (j + 1) * depth - DOT_LANES) & new);
      }
    }
    HLOC_UNROLL for (int i = 0; i < AT_ONCE * count; i++) lanes[first * count + i] = sum[i];
  }
  for (int i = 0; i < DOT_ROWS * count; i += DOT_LANES) hloc_store_f32(sums + i, hloc_fold_f32(lanes + i));
}
void hloc_conv_dots(long count, long taps, const long* tap_index, const float* const* rows, long depth,
                    const float* weights, float* sums) {
  if (count == 1) dots_of_rows(1, taps, tap_index, rows, depth, weights, sums);
  else if (count == 2) dots_of_rows(2, taps, tap_index, rows, depth, weights, sums);
  else if (count == 3) dots_of_rows(3, taps, tap_index, rows, depth, weights, sums);
  else dots_of_rows(4, taps, tap_index, rows, depth, weights, sums);
}
