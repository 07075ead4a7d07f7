/* fft_roots.h: roots of unity, in f64: cos_turn(j, n) and sin_turn(j, n) of j / n turns; symmetric ones are equal.
 *
 * Example: cos_turn(1, 8) == sin_turn(1, 8)
 */
#ifndef HLOC_FFT_ROOTS_H
#define HLOC_FFT_ROOTS_H
#include <math.h>

/* cos of j / n turns for 0 <= j <= n / 4, through the smaller of the two angles */
static inline double cos_of_quarter(long j, long n) {
  const double turn = 6.283185307179586476925;
  return 8 * j > n ? sin(turn * (double)(n - 4 * j) / (4.0 * (double)n)) : cos(turn * (double)j / (double)n);
}
static inline double sin_of_quarter(long j, long n) {
  const double turn = 6.283185307179586476925;
  return 8 * j > n ? cos(turn * (double)(n - 4 * j) / (4.0 * (double)n)) : sin(turn * (double)j / (double)n);
}
static inline double cos_turn(long j, long n) { /* symmetric roots agree exactly */
  j %= n;
  if (2 * j > n) j = n - j;
  if (4 * j <= n) return cos_of_quarter(j, n);
  return -sin_of_quarter(4 * j - n, 4 * n);
}
static inline double sin_turn(long j, long n) {
  j %= n;
  double sign = 1.0;
  if (2 * j > n) j = n - j, sign = -1.0;
  if (4 * j <= n) return sign * sin_of_quarter(j, n);
  return sign * cos_of_quarter(4 * j - n, 4 * n);
}

#endif
