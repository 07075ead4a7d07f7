/* complex_near.h: elementary functions of c64 and c128 without branches and calls, for numbers of usual size.
 *
 * In: complex.h. Out, for CPUs, T in c64 c128 and op in exp expm1 logistic sin cos tan tanh power:
 *   hloc_<op>_is_near_<T>, whether no part is infinite or an angle too large, and hloc_<op>_near_<T>, which holds where
 *   that is so. Loops compute these, and where they have to hloc_<op>_far_<T>, which is hloc_<op>_<T> as one function
 *   for all loops of a unit: that is rare, and gcc takes long for each.
 * Example: hloc_exp_is_near_c64((1, 2)) == 1; hloc_exp_is_near_c64((1, NAN)) == 0
 */
#ifndef HLOC_COMPLEX_NEAR_H
#define HLOC_COMPLEX_NEAR_H
#include "complex.h"

#if !HLOC_CUDA
HLOC_FN void hloc_sin_cos_near_f64(double x, double* sin, double* cos) {
  hloc_u64 quarter;
  double r = hloc_near_quarter_f64(x, &quarter), sine = hloc_sin_series_f64(r), cosine = hloc_cos_series_f64(r);
  *sin = x == 0.0 ? x : hloc_turned_f64((quarter & 1u) ? cosine : sine, quarter);
  *cos = hloc_turned_f64((quarter & 1u) ? sine : cosine, quarter + 1u);
}
HLOC_FN void hloc_sinh_cosh_near_f64(double x, double* sinh, double* cosh) { /* |x| < 700 */
  double grown = hloc_expm1_f64(hloc_abs_f64(x)), e = grown + 1.0, inverse = 1.0 / e;
  *sinh = hloc_copysign_f64(0.5 * hloc_fma_f64(grown, inverse, grown), x);
  *cosh = 0.5 * (e + inverse);
}

HLOC_FN int hloc_exp_is_near_c128(hloc_c128 z) { return hloc_sin_is_near_f64(z.im); }
HLOC_FN hloc_c128 hloc_exp_near_c128(hloc_c128 z) {
  double sine, cosine, radius = hloc_exp_f64(z.re);
  hloc_sin_cos_near_f64(z.im, &sine, &cosine);
  return hloc_complex_f64(radius * cosine, z.im == 0.0 ? z.im : radius * sine); /* radius may be infinite */
}
HLOC_FN int hloc_expm1_is_near_c128(hloc_c128 z) { return hloc_sin_is_near_f64(z.im); }
HLOC_FN hloc_c128 hloc_expm1_near_c128(hloc_c128 z) { /* (e^x - 1) cos y - 2 sin^2(y/2), all of y/2 */
  double sine, cosine, grown = hloc_expm1_f64(z.re);
  hloc_sin_cos_near_f64(0.5 * z.im, &sine, &cosine);
  double im = z.im == 0.0 ? z.im : (grown + 1.0) * (2.0 * sine * cosine);
  return hloc_complex_f64(grown * ((cosine - sine) * (cosine + sine)) - 2.0 * sine * sine, im);
}
HLOC_FN int hloc_logistic_is_near_c128(hloc_c128 z) {
  return hloc_sin_is_near_f64(z.im) & (hloc_abs_f64(z.re) < 300.0);
}
HLOC_FN hloc_c128 hloc_logistic_near_c128(hloc_c128 z) { /* 1 / (1 + e^-z) */
  double sine, cosine, radius = hloc_exp_f64(-z.re);
  hloc_sin_cos_near_f64(z.im, &sine, &cosine);
  double re = hloc_fma_f64(radius, cosine, 1.0), im = radius * sine, inverse = 1.0 / (re * re + im * im);
  return hloc_complex_f64(re * inverse, im * inverse);
}
HLOC_FN int hloc_sin_is_near_c128(hloc_c128 z) { return hloc_sin_is_near_f64(z.re) & (hloc_abs_f64(z.im) < 700.0); }
HLOC_FN hloc_c128 hloc_sin_near_c128(hloc_c128 z) {
  double sin, cos, sinh, cosh;
  hloc_sin_cos_near_f64(z.re, &sin, &cos);
  hloc_sinh_cosh_near_f64(z.im, &sinh, &cosh);
  return hloc_complex_f64(sin * cosh, cos * sinh);
}
HLOC_FN int hloc_cos_is_near_c128(hloc_c128 z) { return hloc_sin_is_near_c128(z); }
HLOC_FN hloc_c128 hloc_cos_near_c128(hloc_c128 z) {
  double sin, cos, sinh, cosh;
  hloc_sin_cos_near_f64(z.re, &sin, &cos);
  hloc_sinh_cosh_near_f64(z.im, &sinh, &cosh);
  return hloc_complex_f64(cos * cosh, -sin * sinh);
}
HLOC_FN int hloc_tanh_is_near_c128(hloc_c128 z) { return hloc_logistic_is_near_c128(z); }
HLOC_FN hloc_c128 hloc_tanh_near_c128(hloc_c128 z) { /* (sinh x cosh x + i sin y cos y) / (sinh^2 x + cos^2 y) */
  double sin, cos, sinh, cosh;
  hloc_sin_cos_near_f64(z.im, &sin, &cos);
  hloc_sinh_cosh_near_f64(z.re, &sinh, &cosh);
  double inverse = 1.0 / hloc_fma_f64(sinh, sinh, cos * cos);
  return hloc_complex_f64(sinh * cosh * inverse, sin * cos * inverse);
}
HLOC_FN int hloc_tan_is_near_c128(hloc_c128 z) { return hloc_tanh_is_near_c128(hloc_complex_f64(-z.im, z.re)); }
HLOC_FN hloc_c128 hloc_tan_near_c128(hloc_c128 z) { /* -i tanh(iz) */
  hloc_c128 w = hloc_tanh_near_c128(hloc_complex_f64(-z.im, z.re));
  return hloc_complex_f64(w.im, -w.re);
}
HLOC_FN int hloc_power_is_near_c128(hloc_c128 z, hloc_c128 w) { /* then |z|^2 is normal and the angle near */
  double a = hloc_abs_f64(z.re), b = hloc_abs_f64(z.im), large = a > b ? a : b, small = a > b ? b : a;
  return HLOC_FMA & (large > 1e-150) & (large < 1e150) & (small == small) & (hloc_abs_f64(w.re) < 1e5) &
         (hloc_abs_f64(w.im) < 1e5);
}
HLOC_FN hloc_c128 hloc_power_near_c128(hloc_c128 z, hloc_c128 w) {
  double square = z.re * z.re + z.im * z.im, angle = hloc_atan2_f64(z.im, z.re), sine, cosine;
  double radius = hloc_power_f64(square, 0.5 * w.re) * hloc_exp_f64(-w.im * angle);
  double turned = 0.5 * w.im * hloc_log_f64(square) + w.re * angle;
  hloc_sin_cos_near_f64(turned, &sine, &cosine);
  return hloc_complex_f64(radius * cosine, turned == 0.0 ? turned : radius * sine);
}

#define HLOC_FAR static __attribute__((noinline, cold, unused)) hloc_c128
#define HLOC_NEAR_C64(op)                                                                                             \
  HLOC_FAR hloc_##op##_far_c128(hloc_c128 z) { return hloc_##op##_c128(z); }                                          \
  HLOC_FN int hloc_##op##_is_near_c64(hloc_c64 z) { return hloc_##op##_is_near_c128(hloc_widen_c64(z)); }             \
  HLOC_THROUGH_C128(op##_near)                                                                                        \
  HLOC_THROUGH_C128(op##_far)
HLOC_NEAR_C64(exp)
HLOC_NEAR_C64(expm1)
HLOC_NEAR_C64(logistic)
HLOC_NEAR_C64(sin)
HLOC_NEAR_C64(cos)
HLOC_NEAR_C64(tan)
HLOC_NEAR_C64(tanh)
HLOC_FAR hloc_power_far_c128(hloc_c128 z, hloc_c128 w) { return hloc_power_c128(z, w); }
HLOC_FN int hloc_power_is_near_c64(hloc_c64 z, hloc_c64 w) {
  return hloc_power_is_near_c128(hloc_widen_c64(z), hloc_widen_c64(w));
}
HLOC_THROUGH_C128_2(power_near)
HLOC_THROUGH_C128_2(power_far)
#endif

#endif
