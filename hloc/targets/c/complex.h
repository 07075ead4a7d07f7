/* complex.h: HLO's functions of c64 and c128.
 *
 * In: complex_arithmetic.h. Out, for T in c64 c128: hloc_<op>_<T> for exp expm1 log log1p sqrt rsqrt logistic sinh cosh
 *   tanh sin cos tan power atan2, in addition to complex_arithmetic.h.
 * c64's functions are computed in f64 and rounded once, which also keeps them from overflowing between.
 *
 * docs/support.md has the errors of finite arguments whose results are normal numbers, and what cancels. Infinities,
 * NaNs, signed zeros and branch cuts are those of C (Annex G) where C has the function. log log1p rsqrt sqrt have no
 * branches: loops make vectors of them. The rest but atan2 have others in complex_near.h, of the same formulas.
 * Example: hloc_sqrt_c64((-4, 0)) == (0, 2)
 */
#ifndef HLOC_COMPLEX_H
#define HLOC_COMPLEX_H
#include "complex_arithmetic.h"

HLOC_FN hloc_c128 hloc_log_c128(hloc_c128 z) {
  return hloc_complex_f64(hloc_log_of_length_f64(z.re, 0.0, z.im), hloc_atan2_f64(z.im, z.re));
}
HLOC_FN hloc_c128 hloc_log1p_c128(hloc_c128 z) {
  double low, re = hloc_two_sum_f64(1.0, z.re, &low);
  low = hloc_abs_f64(re) > 0x1p60 ? 0.0 : low; /* also of infinity */
  return hloc_complex_f64(hloc_log_of_length_f64(re, low, z.im), hloc_atan2_f64(z.im, re));
}
/* The square root's parts are t and |y| / 2t, t = sqrt((|z| + |x|) / 2): the larger one first where x is positive. */
HLOC_FN hloc_c128 hloc_sqrt_c128(hloc_c128 z) {
  double by = hloc_scale_for_squares_f64(hloc_larger_part_f64(z.re, z.im)), re = z.re * by, im = z.im * by;
  double back = by < 1.0 ? 0x1p300 : by > 1.0 ? 0x1p-300 : 1.0;
  double length = HLOC_MATH_F64(sqrt)(hloc_fma_f64(re, re, im * im)), y = hloc_abs_f64(z.im);
  double t = HLOC_MATH_F64(sqrt)(0.5 * (hloc_abs_f64(re) + length)) * back;
  t = hloc_is_infinite_c128(z) ? HLOC_INF_F64 : t;
  double other = t == 0.0 ? 0.0 : 0.5 * (y / t);
  other = y == HLOC_INF_F64 ? y : other;
  int is_right = z.re >= 0.0;
  return hloc_complex_f64(is_right ? t : other, hloc_copysign_f64(is_right ? other : t, z.im));
}
HLOC_FN hloc_c128 hloc_rsqrt_c128(hloc_c128 z) { /* the root's conjugate over |z|; of zero infinity */
  double by = hloc_scale_for_squares_f64(hloc_larger_part_f64(z.re, z.im)), re = z.re * by, im = z.im * by;
  double length = HLOC_MATH_F64(sqrt)(hloc_fma_f64(re, re, im * im));
  double back = by < 1.0 ? 0x1p-300 : by > 1.0 ? 0x1p300 : 1.0;
  double square = 0.5 * (hloc_abs_f64(re) + length), factor = back / (HLOC_MATH_F64(sqrt)(square) * length);
  int is_right = z.re >= 0.0, is_zero = (z.re == 0.0) & (z.im == 0.0), is_infinite = hloc_is_infinite_c128(z);
  double t = is_zero ? HLOC_INF_F64 : is_infinite ? 0.0 : square * factor;
  double other = is_zero ? HLOC_NAN_F64 : is_infinite ? 0.0 : 0.5 * hloc_abs_f64(im) * factor;
  return hloc_complex_f64(is_right ? t : other, hloc_copysign_f64(is_right ? other : t, -z.im));
}

/* The formulas of the rest, of an angle's functions: here those of the libm, in complex_near.h others. */
HLOC_FN hloc_c128 hloc_exp_of_c128(double x, hloc_angle y) {
  double power, radius = hloc_exp_in_two_f64(x, &power);
  return hloc_complex_f64(radius * y.cos * power, radius * y.sin * power);
}
HLOC_FN hloc_c128 hloc_expm1_of_c128(double x, hloc_angle y) { /* (e^x - 1) cos y - (1 - cos y); x < 700 */
  double less, radius = hloc_exp_and_less_f64(x, &less);
  return hloc_complex_f64(less * y.cos - y.less, radius * y.sin);
}
/* (e^x + cos y, sin y) / 2 (cosh x + cos y), both times E = e^-|x|: below it is (1 - E)^2 + 2 E (1 + cos y). Near the
 * poles, where the cosine is -1, the sum of E - 1 and 1 + cos y keeps the digits that E + cos y would lose. */
HLOC_FN hloc_c128 hloc_logistic_of_c128(double x, hloc_angle y) {
  double less, radius = hloc_exp_and_less_f64(-hloc_abs_f64(x), &less);
  double inverse = 1.0 / hloc_fma_f64(less, less, 2.0 * radius * y.more);
  double left = radius * (y.cos < -0.5 ? less + y.more : radius + y.cos), right = radius * y.more - less;
  return hloc_complex_f64((x < 0.0 ? left : right) * inverse, radius * y.sin * inverse);
}
HLOC_FN hloc_c128 hloc_sinh_of_c128(double x, hloc_angle y) { /* |x| < 700 */
  double less, radius = hloc_exp_and_less_f64(hloc_abs_f64(x), &less), inverse = 1.0 / radius;
  double sinh = hloc_copysign_f64(0.5 * hloc_fma_f64(less, inverse, less), x), cosh = 0.5 * (radius + inverse);
  return hloc_complex_f64(sinh * y.cos, cosh * y.sin);
}
HLOC_FN hloc_c128 hloc_cosh_of_c128(double x, hloc_angle y) {
  double less, radius = hloc_exp_and_less_f64(hloc_abs_f64(x), &less), inverse = 1.0 / radius;
  double sinh = hloc_copysign_f64(0.5 * hloc_fma_f64(less, inverse, less), x), cosh = 0.5 * (radius + inverse);
  return hloc_complex_f64(cosh * y.cos, sinh * y.sin);
}
/* (sinh 2x, sin 2y) / (cosh 2x + cos 2y), both times 2 E, E = e^-2|x| */
HLOC_FN hloc_c128 hloc_tanh_of_c128(double x, hloc_angle y) {
  double less, radius = hloc_exp_and_less_f64(-2.0 * hloc_abs_f64(x), &less);
  double inverse = 1.0 / hloc_fma_f64(less, less, 4.0 * radius * (y.cos * y.cos));
  double re = hloc_copysign_f64(less * (1.0 + radius) * inverse, x);
  return hloc_complex_f64(re, 4.0 * radius * (y.sin * y.cos) * inverse);
}

HLOC_FN hloc_c128 hloc_exp_c128(hloc_c128 z) {
  hloc_c128 y = hloc_exp_of_c128(z.re, hloc_angle_f64(z.im));
  if (!hloc_is_finite_f64(z.im) && z.re == -HLOC_INF_F64) return hloc_complex_f64(0.0, hloc_copysign_f64(0.0, z.im));
  if (!hloc_is_finite_f64(z.im) && z.re == HLOC_INF_F64) return hloc_complex_f64(z.re, HLOC_NAN_F64);
  return hloc_complex_f64(y.re, z.im == 0.0 ? z.im : y.im);
}
HLOC_FN hloc_c128 hloc_expm1_c128(hloc_c128 z) {
  if (z.re > 700.0) return hloc_exp_c128(z);
  if (!hloc_is_finite_f64(z.im) && z.re == -HLOC_INF_F64) return hloc_complex_f64(-1.0, hloc_copysign_f64(0.0, z.im));
  hloc_c128 y = hloc_expm1_of_c128(z.re, hloc_angle_f64(z.im));
  return hloc_complex_f64(y.re, z.im == 0.0 ? z.im : y.im);
}
HLOC_FN hloc_c128 hloc_logistic_c128(hloc_c128 z) {
  hloc_c128 y = hloc_logistic_of_c128(z.re, hloc_angle_f64(z.im));
  if (!hloc_is_finite_f64(z.im) && hloc_abs_f64(z.re) == HLOC_INF_F64)
    return hloc_complex_f64(z.re > 0.0 ? 1.0 : 0.0, hloc_copysign_f64(0.0, z.im));
  return hloc_complex_f64(y.re, z.im == 0.0 ? z.im : y.im);
}
/* sinh and cosh beyond the range of e^x; a small sine or cosine may bring the result back into range */
HLOC_FN hloc_c128 hloc_huge_sinh_c128(double x, hloc_angle y) {
  y.cos = x < 0.0 ? -0.5 * y.cos : 0.5 * y.cos;
  y.sin *= 0.5;
  return hloc_exp_of_c128(hloc_abs_f64(x), y);
}
HLOC_FN hloc_c128 hloc_sinh_c128(hloc_c128 z) {
  hloc_angle angle = hloc_angle_f64(z.im);
  hloc_c128 y = hloc_abs_f64(z.re) > 700.0 ? hloc_huge_sinh_c128(z.re, angle) : hloc_sinh_of_c128(z.re, angle);
  int is_lost = !hloc_is_finite_f64(z.im) && (z.re == 0.0 || hloc_abs_f64(z.re) == HLOC_INF_F64);
  return hloc_complex_f64(is_lost ? z.re : y.re, z.im == 0.0 ? z.im : y.im);
}
HLOC_FN hloc_c128 hloc_cosh_c128(hloc_c128 z) {
  hloc_angle angle = hloc_angle_f64(z.im);
  hloc_c128 huge = hloc_huge_sinh_c128(z.re, angle), usual = hloc_cosh_of_c128(z.re, angle);
  int is_huge = hloc_abs_f64(z.re) > 700.0, is_lost = !hloc_is_finite_f64(z.im) && hloc_abs_f64(z.re) == HLOC_INF_F64;
  double re = is_lost ? HLOC_INF_F64 : is_huge ? hloc_copysign_f64(huge.re, angle.cos) : usual.re;
  double im = is_huge ? (z.re < 0.0 ? -huge.im : huge.im) : usual.im;
  int is_real = z.re == 0.0 || z.im == 0.0;
  return hloc_complex_f64(re, is_real ? hloc_copysign_f64(0.0, z.re) * hloc_copysign_f64(1.0, z.im) : im);
}
HLOC_FN hloc_c128 hloc_sin_c128(hloc_c128 z) { /* -i sinh(iz) */
  hloc_c128 w = hloc_sinh_c128(hloc_complex_f64(-z.im, z.re));
  return hloc_complex_f64(w.im, -w.re);
}
HLOC_FN hloc_c128 hloc_cos_c128(hloc_c128 z) { return hloc_cosh_c128(hloc_complex_f64(-z.im, z.re)); }
HLOC_FN hloc_c128 hloc_tanh_c128(hloc_c128 z) {
  hloc_c128 y = hloc_tanh_of_c128(z.re, hloc_angle_f64(z.im));
  if (!hloc_is_finite_f64(z.im) && hloc_abs_f64(z.re) == HLOC_INF_F64)
    return hloc_complex_f64(hloc_copysign_f64(1.0, z.re), hloc_copysign_f64(0.0, z.im));
  return hloc_complex_f64(z.re == 0.0 ? z.re : y.re, z.im == 0.0 ? z.im : y.im);
}
HLOC_FN hloc_c128 hloc_tan_c128(hloc_c128 z) { /* -i tanh(iz) */
  hloc_c128 w = hloc_tanh_c128(hloc_complex_f64(-z.im, z.re));
  return hloc_complex_f64(w.im, -w.re);
}

/* The power's logarithm, w log z, of parts in two: e to the real part is its length, the imaginary one its angle. */
typedef struct { double re, re_low, im, im_low; } hloc_exponent;
HLOC_FN hloc_exponent hloc_exponent_c128(hloc_c128 z, hloc_c128 w) {
  double by = hloc_scale_for_squares_f64(hloc_larger_part_f64(z.re, z.im)), low, log_low, angle_low;
  double x = z.re * by, y = z.im * by, u = hloc_squares_f64(x, 0.0, y, &low), log = hloc_log_in_two_f64(u, &log_low);
  double scale = hloc_log_of_scale_f64(by), scale_low = by == 1.0 ? 0.0 : 1.8355172981578424e-14, sum_low;
  log_low = 0.5 * (log_low + low / u) - (by < 1.0 ? -scale_low : scale_low);
  log = hloc_fast_two_sum_f64(-scale, 0.5 * log, &sum_low);
  log_low += sum_low;
  double angle = hloc_direction_in_two_f64(y, x, &angle_low), one_low, other_low;
  double one = hloc_product_f64(w.re, log, &one_low), other = hloc_product_f64(w.im, angle, &other_low);
  hloc_exponent e;
  e.re = hloc_two_sum_f64(one, -other, &e.re_low);
  e.re_low += (one_low - other_low) + (w.re * log_low - w.im * angle_low);
  one = hloc_product_f64(w.im, log, &one_low), other = hloc_product_f64(w.re, angle, &other_low);
  e.im = hloc_two_sum_f64(one, other, &e.im_low);
  e.im_low += (one_low + other_low) + (w.im * log_low + w.re * angle_low);
  return e;
}
HLOC_FN hloc_c128 hloc_power_of_c128(hloc_exponent e, hloc_angle y) {
  double more = 1.0 + (hloc_abs_f64(e.re) < 2000.0 ? e.re_low : 0.0);
  y.cos *= more;
  y.sin *= more;
  return hloc_exp_of_c128(e.re, y);
}
HLOC_FN hloc_c128 hloc_power_c128(hloc_c128 z, hloc_c128 w) {
  if (w.re == 0.0 && w.im == 0.0) return hloc_complex_f64(1.0, 0.0);
  if (z.re == 0.0 && z.im == 0.0) {
    double radius = w.re > 0.0 ? 0.0 : w.re < 0.0 && w.im == 0.0 ? HLOC_INF_F64 : HLOC_NAN_F64;
    return hloc_complex_f64(radius, radius == radius ? 0.0 : radius);
  }
  if (w.im == 0.0 && z.im == 0.0 && z.re > 0.0) return hloc_complex_f64(hloc_power_f64(z.re, w.re), 0.0);
  if (!(hloc_is_finite_f64(z.re) && hloc_is_finite_f64(z.im) && hloc_larger_part_f64(w.re, w.im) < 1e300)) {
    double angle = hloc_atan2_f64(z.im, z.re), turned = w.im * hloc_log_of_length_f64(z.re, 0.0, z.im) + w.re * angle;
    double grown = hloc_power_f64(hloc_abs_c128(z), w.re) * hloc_exp_f64(-w.im * angle);
    return hloc_complex_f64(grown * hloc_cos_f64(turned), turned == 0.0 ? turned : grown * hloc_sin_f64(turned));
  }
  hloc_exponent e = hloc_exponent_c128(z, w);
  hloc_angle y = hloc_angle_f64(e.im);
  double sin = hloc_fma_f64(e.im_low, y.cos, y.sin);
  y.cos = hloc_fma_f64(-e.im_low, y.sin, y.cos);
  y.sin = sin;
  return hloc_power_of_c128(e, y);
}

/* -i log((x + iy) / sqrt(x^2 + y^2)), of a root of p/q, p = x + iy, q = x - iy: half its angle, and minus half the
 * logarithm of its length. |q|^2 - |p|^2 is 4 (Re x Im y - Im x Re y). Which of the two roots the formula says: that of
 * x^2 + y^2 = pq lies on the right; on the edge, the sign of pq's imaginary part counts. */
HLOC_FN hloc_c128 hloc_atan2_c128(hloc_c128 y, hloc_c128 x) {
  double by = hloc_inverse_size_c128(hloc_larger_part_f64(hloc_size_c128(x), hloc_size_c128(y)));
  double re = hloc_atan2_f64(y.re, x.re), half_turn = 3.141592653589793;
  if (y.im == 0.0 && x.im == 0.0) return hloc_complex_f64(re, re == re ? 0.0 : re);
  double a = x.re * by, b = x.im * by, c = y.re * by, d = y.im * by;
  hloc_c128 p = hloc_complex_f64(a - d, b + c), q = hloc_complex_f64(a + d, b - c);
  double more = 4.0 * hloc_sum_of_products_f64(a, d, -b, c), of_p = p.re * p.re + p.im * p.im, im;
  double of_q = q.re * q.re + q.im * q.im, least = of_p < of_q ? of_p : of_q;
  if (least > 1e-200)
    im = hloc_copysign_f64(0.25 * hloc_log1p_f64(hloc_abs_f64(more) / least), more);
  else
    im = 0.5 * (hloc_log_of_length_f64(q.re, 0.0, q.im) - hloc_log_of_length_f64(p.re, 0.0, p.im));
  double across = 2.0 * hloc_sum_of_products_f64(a, c, b, d), along = hloc_sum_of_products_f64(p.re, q.re, p.im, q.im);
  across = across == 0.0 ? hloc_copysign_f64(0.0, x.re * y.re + x.im * y.im) : across;
  re = 0.5 * hloc_atan2_f64(across, along);
  double cos = hloc_cos_f64(re), sin = hloc_sin_f64(re), right = p.re * cos + p.im * sin, up = p.im * cos - p.re * sin;
  double turn = a * b + c * d; /* the imaginary part of x^2 + y^2 */
  turn = turn == 0.0 ? x.re * x.im + y.re * y.im : turn;
  double side = hloc_abs_f64(right) >= hloc_abs_f64(up) ? right : up * hloc_copysign_f64(1.0, turn);
  if (side < 0.0) re = hloc_bits_f64(re) >> 63 ? re + half_turn : re - half_turn;
  return hloc_complex_f64(re, re == re ? im : re);
}

#define HLOC_THROUGH_C128(op)                                                                                         \
  HLOC_FN hloc_c64 hloc_##op##_c64(hloc_c64 z) { return hloc_narrow_c128(hloc_##op##_c128(hloc_widen_c64(z))); }
#define HLOC_THROUGH_C128_2(op)                                                                                       \
  HLOC_FN hloc_c64 hloc_##op##_c64(hloc_c64 a, hloc_c64 b) {                                                          \
    return hloc_narrow_c128(hloc_##op##_c128(hloc_widen_c64(a), hloc_widen_c64(b)));                                  \
  }
HLOC_THROUGH_C128(exp)
HLOC_THROUGH_C128(expm1)
HLOC_THROUGH_C128(log)
HLOC_THROUGH_C128(log1p)
HLOC_THROUGH_C128(sqrt)
HLOC_THROUGH_C128(rsqrt)
HLOC_THROUGH_C128(logistic)
HLOC_THROUGH_C128(sinh)
HLOC_THROUGH_C128(cosh)
HLOC_THROUGH_C128(tanh)
HLOC_THROUGH_C128(sin)
HLOC_THROUGH_C128(cos)
HLOC_THROUGH_C128(tan)
HLOC_THROUGH_C128_2(power)
HLOC_THROUGH_C128_2(atan2)

#endif
