/* complex_inverse.h: hyperbolic functions of c64 and c128, and the inverses of both families.
 *
 * In: complex.h. Out, for T in c64 c128: hloc_<op>_<T> for sinh cosh asin acos asinh acosh atanh, with the branch cuts
 *   of C (Annex G): the sign of a zero says on which side of a cut a number lies.
 * Products of square roots instead of logarithms keep the digits (Kahan, Much ado about nothing's sign bit, 1987).
 * Example: hloc_acos_c128((2, 0)) == (0, -1.3169578969248166)
 */
#ifndef HLOC_COMPLEX_INVERSE_H
#define HLOC_COMPLEX_INVERSE_H
#include "complex.h"

HLOC_FN hloc_c128 hloc_sinh_c128(hloc_c128 z) {
  double re = z.re == 0.0 ? z.re : hloc_sinh_f64(z.re) * hloc_cos_f64(z.im);
  double im = z.im == 0.0 ? z.im : hloc_cosh_f64(z.re) * hloc_sin_f64(z.im);
  return hloc_complex_f64(re, im);
}
HLOC_FN hloc_c128 hloc_cosh_c128(hloc_c128 z) {
  double im = z.re == 0.0 || z.im == 0.0 ? z.re * z.im : hloc_sinh_f64(z.re) * hloc_sin_f64(z.im);
  return hloc_complex_f64(hloc_cosh_f64(z.re) * hloc_cos_f64(z.im), im);
}

/* The square roots of 1 - z and 1 + z. */
HLOC_FN hloc_c128 hloc_root_below_c128(hloc_c128 z) { return hloc_sqrt_c128(hloc_complex_f64(1.0 - z.re, -z.im)); }
HLOC_FN hloc_c128 hloc_root_above_c128(hloc_c128 z) { return hloc_sqrt_c128(hloc_complex_f64(1.0 + z.re, z.im)); }

HLOC_FN hloc_c128 hloc_asin_c128(hloc_c128 z) {
  if (hloc_any_inf_c128(z)) {
    hloc_c128 way = hloc_direction_c128(z);
    return hloc_complex_f64(hloc_atan2_f64(way.re, hloc_abs_f64(way.im)), hloc_copysign_f64(HLOC_INF_F64, z.im));
  }
  hloc_c128 below = hloc_root_below_c128(z), above = hloc_root_above_c128(z);
  double width = below.re * above.re - below.im * above.im, height = below.re * above.im - below.im * above.re;
  return hloc_complex_f64(hloc_atan2_f64(z.re, width), hloc_copysign_f64(hloc_asinh_f64(height), z.im));
}
HLOC_FN hloc_c128 hloc_acos_c128(hloc_c128 z) {
  if (hloc_any_inf_c128(z)) {
    hloc_c128 way = hloc_direction_c128(z);
    return hloc_complex_f64(hloc_atan2_f64(hloc_abs_f64(way.im), way.re), -hloc_copysign_f64(HLOC_INF_F64, z.im));
  }
  hloc_c128 below = hloc_root_below_c128(z), above = hloc_root_above_c128(z);
  double height = above.re * below.im - above.im * below.re;
  return hloc_complex_f64(2.0 * hloc_atan2_f64(below.re, above.re), -hloc_copysign_f64(hloc_asinh_f64(height), z.im));
}
HLOC_FN hloc_c128 hloc_asinh_c128(hloc_c128 z) { /* -i asin(iz) */
  hloc_c128 w = hloc_asin_c128(hloc_complex_f64(-z.im, z.re));
  return hloc_complex_f64(w.im, -w.re);
}
HLOC_FN hloc_c128 hloc_acosh_c128(hloc_c128 z) { /* i acos(z) or -i acos(z), whichever lies to the right */
  hloc_c128 w = hloc_acos_c128(z);
  return hloc_complex_f64(hloc_abs_f64(w.im), hloc_copysign_f64(w.re, z.im));
}
HLOC_FN hloc_c128 hloc_atanh_c128(hloc_c128 z) {
  double a = hloc_abs_f64(z.re), b = z.im, large = a > hloc_abs_f64(b) ? a : hloc_abs_f64(b);
  double re = 0.0, im = hloc_copysign_f64(1.5707963267948966, b);
  if (large > 1e150) { /* nearly 1 / z beside a quarter turn */
    re = hloc_any_inf_c128(z) ? 0.0 : a / large / large / (a / large * (a / large) + b / large * (b / large));
  } else {
    re = 0.25 * hloc_log1p_f64(4.0 * a / ((1.0 - a) * (1.0 - a) + b * b));
    im = 0.5 * hloc_atan2_f64(2.0 * b, (1.0 - a) * (1.0 + a) - b * b);
  }
  return hloc_complex_f64(hloc_copysign_f64(re, z.re), im);
}

HLOC_THROUGH_C128(sinh)
HLOC_THROUGH_C128(cosh)
HLOC_THROUGH_C128(asin)
HLOC_THROUGH_C128(acos)
HLOC_THROUGH_C128(asinh)
HLOC_THROUGH_C128(acosh)
HLOC_THROUGH_C128(atanh)

#endif
