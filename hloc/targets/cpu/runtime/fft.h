/* fft.h: HLO's fft over the last one to three dimensions of contiguous row-major arrays, any lengths.
 *
 * int hloc_fft_f32(const hloc_fft_plan*, const void* in, void* out)   c64 and f32
 * int hloc_fft_f64(...)                                               c128 and f64
 * Returns 0 when done, 1 when memory is exhausted. `in` and `out` must not overlap.
 *
 * Mixed radix (4, 2, 3, 5 and other small primes) by Stockham's algorithm, large primes by Bluestein's. Real lines of
 * even length are transformed as complex ones of half the length; of odd length, without the redundant half. Lines are
 * transformed in parallel, as many at a time as a vector has lanes; a few long ones as the columns and then the rows of
 * a matrix of their points, many at a time. hloc/targets/cpu/plans/fft.py decides all of this, and says what the fields
 * mean.
 */
#ifndef HLOC_FFT_H
#define HLOC_FFT_H
#include <stddef.h>

#include "fits.h"

#define HLOC_FFT_PLAN_BYTES 128 /* of the roots of one length, beside the numbers themselves */
#define HLOC_FFT_LARGEST_FACTOR 31 /* of a step */
/* HLOC_FFT complex to complex, HLOC_IFFT its inverse (divided by the number of points), HLOC_RFFT real to the first
 * n / 2 + 1 complex, HLOC_IRFFT back */
enum { HLOC_FFT, HLOC_IFFT, HLOC_RFFT, HLOC_IRFFT };

typedef struct hloc_fft_points {
  long n;
  size_t bytes;
  int real, factor_count;
  const int* factors;
  const struct hloc_fft_points *wide, *column, *row;
} hloc_fft_points;
typedef struct { long inner, outer_step, step; } hloc_fft_places;
typedef struct hloc_fft_lines {
  const hloc_fft_points* points;
  int kind, folded, from_reals;
  long n, lines, lanes, grain;
  size_t own;
  hloc_fft_places start, end;
  const struct hloc_fft_lines* split; /* two, or NULL */
} hloc_fft_lines;
typedef struct {
  int dimensions, through_scratch;
  size_t first;
  long middle;
  const hloc_fft_lines* lines;
} hloc_fft_plan;

int hloc_fft_f32(const hloc_fft_plan* plan, const void* in, void* out);
int hloc_fft_f64(const hloc_fft_plan* plan, const void* in, void* out);
#endif
