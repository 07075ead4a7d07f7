/* complex_inverse.h: the inverses of trigonometric and hyperbolic functions of c64 and c128.
 *
 * In: complex.h. Out, for T in c64 c128: hloc_<op>_<T> for asin acos asinh acosh atanh, with the branch cuts
 *   of C (Annex G): the sign of a zero says on which side of a cut a number lies.
 * Products of square roots instead of logarithms keep the digits (Kahan, Much ado about nothing's sign bit, 1987).
 * Example: hloc_acos_c128((2, 0)) == (0, -1.3169578969248166)
 */
#ifndef HLOC_COMPLEX_INVERSE_H
#define HLOC_COMPLEX_INVERSE_H
#include "complex.h"

/* The square roots of 1 - z and 1 + z. */
HLOC_FN hloc_c128 hloc_root_below_c128(hloc_c128 z) { return hloc_sqrt_c128(hloc_complex_f64(1.0 - z.re, -z.im)); }
HLOC_FN hloc_c128 hloc_root_above_c128(hloc_c128 z) { return hloc_sqrt_c128(hloc_complex_f64(1.0 + z.re, z.im)); }

/* For so large numbers, also infinite ones, the result is the logarithm of twice their length. */
HLOC_FN int hloc_is_vast_c128(hloc_c128 z) {
  return (hloc_larger_part_f64(z.re, z.im) > 0x1p500) | hloc_is_infinite_c128(z);
}
HLOC_FN double hloc_log_of_twice_c128(hloc_c128 z) {
  return 0.6931471805599453 + hloc_log_of_length_f64(z.re, 0.0, z.im);
}
HLOC_FN hloc_c128 hloc_asin_c128(hloc_c128 z) {
  if (hloc_is_vast_c128(z)) {
    double re = hloc_atan2_f64(z.re, hloc_abs_f64(z.im));
    return hloc_complex_f64(re, hloc_copysign_f64(hloc_log_of_twice_c128(z), z.im));
  }
  hloc_c128 below = hloc_root_below_c128(z), above = hloc_root_above_c128(z);
  double width = below.re * above.re - below.im * above.im, height = below.re * above.im - below.im * above.re;
  double re = z.re == 0.0 ? z.re : hloc_atan2_f64(z.re, width);
  return hloc_complex_f64(re, hloc_copysign_f64(hloc_asinh_f64(height), z.im));
}
HLOC_FN hloc_c128 hloc_acos_c128(hloc_c128 z) {
  if (hloc_is_vast_c128(z)) {
    double re = hloc_atan2_f64(hloc_abs_f64(z.im), z.re);
    return hloc_complex_f64(re, -hloc_copysign_f64(hloc_log_of_twice_c128(z), z.im));
  }
  hloc_c128 below = hloc_root_below_c128(z), above = hloc_root_above_c128(z);
  double height = above.re * below.im - above.im * below.re;
  double re = z.re == 0.0 ? 1.5707963267948966 : 2.0 * hloc_atan2_f64(below.re, above.re);
  return hloc_complex_f64(re, -hloc_copysign_f64(hloc_asinh_f64(height), z.im));
}
HLOC_FN hloc_c128 hloc_asinh_c128(hloc_c128 z) { /* -i asin(iz) */
  hloc_c128 w = hloc_asin_c128(hloc_complex_f64(-z.im, z.re));
  return hloc_complex_f64(w.im, -w.re);
}
HLOC_FN hloc_c128 hloc_acosh_c128(hloc_c128 z) { /* i acos(z) or -i acos(z): the one with the nonnegative real part */
  hloc_c128 w = hloc_acos_c128(z);
  return hloc_complex_f64(hloc_abs_f64(w.im), hloc_copysign_f64(w.re, z.im));
}
/* log(1 + 4 a / ((1 - a)^2 + b^2)) / 4, the squares scaled, beside half the angle of (1 - a)(1 + a) - b^2 + 2 b i. No
 * branches: loops make vectors of it. */
HLOC_FN hloc_c128 hloc_atanh_c128(hloc_c128 z) {
  double a = hloc_abs_f64(z.re), b = z.im, by = hloc_scale_for_squares_f64(hloc_larger_part_f64(1.0 - a, b));
  double x = (1.0 - a) * by, y = b * by, more = 4.0 * (by < 1.0 ? a * by : a) / (x * x + y * y);
  more = by < 1.0 ? more * by : more;
  double u = 1.0 + more, low = more - (u - 1.0); /* where it matters: else more is far below or above 1 */
  double re = 0.25 * (hloc_log_of_sum_f64(u, more < 1.0 ? low : 0.0) + (by > 1.0 ? 831.77661667193439 : 0.0));
  double im = 0.5 * hloc_atan2_f64(2.0 * b, (1.0 - a) * (1.0 + a) - b * b);
  int is_infinite = hloc_is_infinite_c128(z);
  im = by < 1.0 ? hloc_copysign_f64(1.5707963267948966, b) : im;
  return hloc_complex_f64(hloc_copysign_f64(is_infinite | (a == 0.0) ? 0.0 : re, z.re), b != b ? b : im);
}

HLOC_THROUGH_C128(asin)
HLOC_THROUGH_C128(acos)
HLOC_THROUGH_C128(asinh)
HLOC_THROUGH_C128(acosh)
HLOC_THROUGH_C128(atanh)

#endif
