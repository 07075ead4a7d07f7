/* fft.c: the transforms of fft.h for both precisions. Roots of unity are computed in f64. */
#include "fft.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "pool.h"
#include "vector.h"

enum { LONGEST_KEPT = 1 << 14, MOST_KEPT = 64 }; /* some MB of plans at most */

/* cos of j / n turns for 0 <= j <= n / 4, through the smaller of the two angles */
static double cos_of_quarter(long j, long n) {
  const double turn = 6.283185307179586476925;
  return 8 * j > n ? sin(turn * (double)(n - 4 * j) / (4.0 * (double)n)) : cos(turn * (double)j / (double)n);
}
static double sin_of_quarter(long j, long n) {
  const double turn = 6.283185307179586476925;
  return 8 * j > n ? cos(turn * (double)(n - 4 * j) / (4.0 * (double)n)) : sin(turn * (double)j / (double)n);
}
static double cos_turn(long j, long n) { /* symmetric roots agree exactly */
  j %= n;
  if (2 * j > n) j = n - j;
  if (4 * j <= n) return cos_of_quarter(j, n);
  return -sin_of_quarter(4 * j - n, 4 * n);
}
static double sin_turn(long j, long n) {
  j %= n;
  double sign = 1.0;
  if (2 * j > n) j = n - j, sign = -1.0;
  if (4 * j <= n) return sign * sin_of_quarter(j, n);
  return sign * cos_of_quarter(4 * j - n, 4 * n);
}

#define F(name) hloc_##name##_f32
#define REAL float
#define POINT hloc_c64
#include "fft_lines.h"

#define F(name) hloc_##name##_f64
#define REAL double
#define POINT hloc_c128
#include "fft_lines.h"
