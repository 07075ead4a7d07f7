/* complex_near.h: elementary functions of c64 and c128 without branches and calls, for numbers of usual size.
 *
 * In: complex.h. Out, for CPUs, T in c64 c128 and op in exp expm1 logistic sinh cosh tanh sin cos tan power:
 *   hloc_<op>_is_near_<T>, whether the formula holds: no angle is large, none infinite, no e^x too large; and
 *   hloc_<op>_near_<T>, which is valid if that is so. Loops compute these, and if necessary hloc_<op>_far_<T>,
 *   which is hloc_<op>_<T> as one function for all loops of a unit: that is rare, and gcc takes long for each.
 * Example: hloc_exp_is_near_c64((1, 2)) == 1; hloc_exp_is_near_c64((1, NAN)) == 0
 */
#ifndef HLOC_COMPLEX_NEAR_H
#define HLOC_COMPLEX_NEAR_H
#include "complex.h"

#if !HLOC_CUDA
/* Of x + low, |x| < 2^30. 1 - cosine is a series of its own around 0, so is 1 + cosine around half a turn. */
HLOC_FN hloc_angle hloc_near_angle_f64(double x, double low) {
  hloc_u64 quarter;
  double r = hloc_near_quarter_f64(x, &quarter) + low, z = r * r, sine = hloc_sin_series_f64(r);
  double drop = 0.5 * z - hloc_cos_tail_f64(z), cosine = 1.0 - drop;
  hloc_angle a;
  a.sin = x == 0.0 ? x : hloc_signed_by_quarter_f64((quarter & 1u) ? cosine : sine, quarter);
  a.cos = hloc_signed_by_quarter_f64((quarter & 1u) ? sine : cosine, quarter + 1u);
  a.less = (quarter & 3u) == 0u ? drop : 1.0 - a.cos;
  a.more = (quarter & 3u) == 2u ? drop : 1.0 + a.cos;
  return a;
}
#define HLOC_NEAR_ANGLE(op, IS_NEAR)                                                                                  \
  HLOC_FN int hloc_##op##_is_near_c128(hloc_c128 z) { return hloc_sin_is_near_f64(z.im) & (IS_NEAR); }                \
  HLOC_FN hloc_c128 hloc_##op##_near_c128(hloc_c128 z) {                                                              \
    return hloc_##op##_of_c128(z.re, hloc_near_angle_f64(z.im, 0.0));                                                 \
  }
HLOC_NEAR_ANGLE(exp, z.re == z.re)
HLOC_NEAR_ANGLE(expm1, z.re < 700.0)
HLOC_NEAR_ANGLE(logistic, z.re == z.re)
HLOC_NEAR_ANGLE(sinh, hloc_abs_f64(z.re) < 700.0)
HLOC_NEAR_ANGLE(cosh, hloc_abs_f64(z.re) < 700.0)
HLOC_NEAR_ANGLE(tanh, z.re == z.re)
/* -i sinh(iz), cosh(iz), -i tanh(iz) */
HLOC_FN hloc_c128 hloc_times_i_c128(hloc_c128 z) { return hloc_complex_f64(-z.im, z.re); }
HLOC_FN hloc_c128 hloc_over_i_c128(hloc_c128 z) { return hloc_complex_f64(z.im, -z.re); }
HLOC_FN int hloc_sin_is_near_c128(hloc_c128 z) { return hloc_sinh_is_near_c128(hloc_times_i_c128(z)); }
HLOC_FN int hloc_cos_is_near_c128(hloc_c128 z) { return hloc_cosh_is_near_c128(hloc_times_i_c128(z)); }
HLOC_FN int hloc_tan_is_near_c128(hloc_c128 z) { return hloc_tanh_is_near_c128(hloc_times_i_c128(z)); }
HLOC_FN hloc_c128 hloc_sin_near_c128(hloc_c128 z) {
  return hloc_over_i_c128(hloc_sinh_near_c128(hloc_times_i_c128(z)));
}
HLOC_FN hloc_c128 hloc_cos_near_c128(hloc_c128 z) { return hloc_cosh_near_c128(hloc_times_i_c128(z)); }
HLOC_FN hloc_c128 hloc_tan_near_c128(hloc_c128 z) {
  return hloc_over_i_c128(hloc_tanh_near_c128(hloc_times_i_c128(z)));
}
HLOC_FN int hloc_power_is_near_c128(hloc_c128 z, hloc_c128 w) { /* then the angle is near */
  int is_near = (hloc_abs_f64(w.re) < 1e5) & (hloc_abs_f64(w.im) < 1e5) & (z.re - z.re == z.im - z.im);
  return HLOC_FMA & is_near & ((z.re != 0.0) | (z.im != 0.0));
}
HLOC_FN hloc_c128 hloc_power_near_c128(hloc_c128 z, hloc_c128 w) {
  hloc_exponent e = hloc_exponent_c128(z, w);
  return hloc_power_of_c128(e, hloc_near_angle_f64(e.im, e.im_low));
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
HLOC_NEAR_C64(sinh)
HLOC_NEAR_C64(cosh)
HLOC_NEAR_C64(tanh)
HLOC_NEAR_C64(sin)
HLOC_NEAR_C64(cos)
HLOC_NEAR_C64(tan)
HLOC_FAR hloc_power_far_c128(hloc_c128 z, hloc_c128 w) { return hloc_power_c128(z, w); }
HLOC_FN int hloc_power_is_near_c64(hloc_c64 z, hloc_c64 w) {
  return hloc_power_is_near_c128(hloc_widen_c64(z), hloc_widen_c64(w));
}
HLOC_THROUGH_C128_2(power_near)
HLOC_THROUGH_C128_2(power_far)
#endif

#endif
