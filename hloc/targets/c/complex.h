/* complex.h: HLO's operations on c64 and c128.
 *
 * In: floats.h. Out, for T in c64 c128: hloc_<op>_<T> for add subtract multiply divide negate abs (real result) sign
 *   real imag conj compare_eq compare_ne select exp expm1 log log1p sqrt rsqrt cbrt logistic tanh sin cos tan power
 *   atan2; and hloc_complex_f32(re, im), hloc_complex_f64(re, im) in base.h.
 * c64's elementary functions are computed in f64 and rounded once, which also keeps them from overflowing between.
 * Example: hloc_sqrt_c64((-4, 0)) == (0, 2)
 */
#ifndef HLOC_COMPLEX_H
#define HLOC_COMPLEX_H
#include "floats.h"

#define HLOC_DEFINE_COMPLEX(T, R, F)                                                                                  \
  HLOC_FN hloc_##T hloc_add_##T(hloc_##T a, hloc_##T b) { return hloc_complex_##F(a.re + b.re, a.im + b.im); }        \
  HLOC_FN hloc_##T hloc_subtract_##T(hloc_##T a, hloc_##T b) { return hloc_complex_##F(a.re - b.re, a.im - b.im); }   \
  HLOC_FN hloc_##T hloc_multiply_##T(hloc_##T a, hloc_##T b) {                                                        \
    return hloc_complex_##F(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re);                                    \
  }                                                                                                                   \
  HLOC_FN hloc_##T hloc_negate_##T(hloc_##T a) { return hloc_complex_##F(-a.re, -a.im); }                             \
  HLOC_FN hloc_##T hloc_conj_##T(hloc_##T a) { return hloc_complex_##F(a.re, -a.im); }                                \
  HLOC_FN R hloc_real_##T(hloc_##T a) { return a.re; }                                                                \
  HLOC_FN R hloc_imag_##T(hloc_##T a) { return a.im; }                                                                \
  HLOC_FN hloc_##T hloc_select_##T(hloc_pred which, hloc_##T a, hloc_##T b) {                                         \
    return hloc_complex_##F(which ? a.re : b.re, which ? a.im : b.im);                                                \
  }                                                                                                                   \
  HLOC_FN hloc_pred hloc_compare_eq_##T(hloc_##T a, hloc_##T b) { return (a.re == b.re) & (a.im == b.im); }           \
  HLOC_FN hloc_pred hloc_compare_ne_##T(hloc_##T a, hloc_##T b) { return (a.re != b.re) | (a.im != b.im); }
HLOC_DEFINE_COMPLEX(c64, float, f32)
HLOC_DEFINE_COMPLEX(c128, double, f64)

HLOC_FN hloc_c128 hloc_widen_c64(hloc_c64 z) { return hloc_complex_f64(z.re, z.im); }
HLOC_FN hloc_c64 hloc_narrow_c128(hloc_c128 z) { return hloc_complex_f32((float)z.re, (float)z.im); }

/* sqrt(x x + y y) of numbers made large or small enough for their squares; unlike the libm's a vector operation */
HLOC_FN double hloc_scale_for_squares_f64(double x, double y) {
  const double a = hloc_abs_f64(x), b = hloc_abs_f64(y), most = a > b ? a : b;
  return most > 0x1p500 ? 0x1p-600 : most < 0x1p-400 ? 0x1p600 : 1.0;
}
HLOC_FN double hloc_hypot_f64(double x, double y) {
  const double by = hloc_scale_for_squares_f64(x, y), back = by < 1.0 ? 0x1p600 : by > 1.0 ? 0x1p-600 : 1.0;
  const double length = HLOC_MATH_F64(sqrt)(hloc_fma_f64(x * by, x * by, y * by * (y * by))) * back;
  return (hloc_abs_f64(x) == HLOC_INF_F64) | (hloc_abs_f64(y) == HLOC_INF_F64) ? HLOC_INF_F64 : length;
}
HLOC_FN double hloc_abs_c128(hloc_c128 z) { return hloc_hypot_f64(z.re, z.im); }
HLOC_FN hloc_c128 hloc_sign_c128(hloc_c128 z) {
  double by = hloc_scale_for_squares_f64(z.re, z.im), re = z.re * by, im = z.im * by;
  double inverse = 1.0 / HLOC_MATH_F64(sqrt)(hloc_fma_f64(re, re, im * im));
  int infinite = (hloc_abs_f64(z.re) == HLOC_INF_F64) | (hloc_abs_f64(z.im) == HLOC_INF_F64);
  int is_zero = (z.re == 0.0) & (z.im == 0.0);
  re = infinite ? z.re * 0.0 : re * inverse;
  im = infinite ? z.im * 0.0 : im * inverse;
  return hloc_complex_f64(is_zero ? z.re : re, is_zero ? z.im : im);
}
/* The power of two by which parts are divided before they are squared: the larger one becomes 1 to 8. */
HLOC_FN float hloc_size_c64(hloc_c64 z) {
  float a = hloc_abs_f32(z.re), b = hloc_abs_f32(z.im), large = a > b ? a : b;
  hloc_u32 exponent = hloc_bits_f32(large) & 0x7f800000u;
  exponent = exponent < 0x00800000u ? 0x00800000u : exponent;
  return hloc_from_bits_f32(exponent > 0x7e800000u ? 0x7e800000u : exponent);
}
HLOC_FN float hloc_inverse_size_c64(float size) { return hloc_from_bits_f32(0x7f000000u - hloc_bits_f32(size)); }
HLOC_FN float hloc_abs_c64(hloc_c64 z) {
  float size = hloc_size_c64(z), by = hloc_inverse_size_c64(size), re = z.re * by, im = z.im * by;
  float magnitude = HLOC_MATH_F32(sqrt)(hloc_fma_f32(re, re, im * im)) * size;
  int infinite = (hloc_abs_f32(z.re) == HLOC_INF_F32) | (hloc_abs_f32(z.im) == HLOC_INF_F32);
  return infinite ? HLOC_INF_F32 : magnitude;
}
HLOC_FN hloc_c64 hloc_sign_c64(hloc_c64 z) {
  float by = hloc_inverse_size_c64(hloc_size_c64(z)), re = z.re * by, im = z.im * by;
  float length = HLOC_MATH_F32(sqrt)(hloc_fma_f32(re, re, im * im)), x = hloc_abs_f32(z.re), y = hloc_abs_f32(z.im);
  int infinite = (x == HLOC_INF_F32) | (y == HLOC_INF_F32), is_zero = (x == 0.0f) & (y == 0.0f);
  re = infinite ? z.re * 0.0f : re / length;
  im = infinite ? z.im * 0.0f : im / length;
  return hloc_complex_f32(is_zero ? z.re : re, is_zero ? z.im : im);
}

/* The direction of a complex number with an infinite part: each part 1 where it is infinite, else 0, with its sign. */
HLOC_FN hloc_c128 hloc_direction_c128(hloc_c128 z) {
  double re = hloc_abs_f64(z.re) == HLOC_INF_F64 ? 1.0 : 0.0, im = hloc_abs_f64(z.im) == HLOC_INF_F64 ? 1.0 : 0.0;
  return hloc_complex_f64(hloc_copysign_f64(re, z.re), hloc_copysign_f64(im, z.im));
}
HLOC_FN int hloc_any_inf_c128(hloc_c128 z) {
  return (hloc_abs_f64(z.re) == HLOC_INF_F64) | (hloc_abs_f64(z.im) == HLOC_INF_F64);
}
/* `factor` times a times the conjugate of b. */
HLOC_FN hloc_c128 hloc_turned_c128(double factor, hloc_c128 a, hloc_c128 b) {
  return hloc_complex_f64(factor * (a.re * b.re + a.im * b.im), factor * (a.im * b.re - a.re * b.im));
}
/* A quotient that its formula makes no number: anything over zero is infinite, infinity over a finite number too, a
 * finite one over infinity zero (C, Annex G), in the directions of the infinite parts. No branches here and in
 * quotients: loops make vectors of them. */
#define HLOC_DEFINE_LOST_QUOTIENT(T, R, F)                                                                            \
  HLOC_FN R hloc_part_##T(int is_infinite, R part) { /* of the direction */                                           \
    return is_infinite ? hloc_copysign_##F(hloc_abs_##F(part) == HLOC_INF_##T ? 1 : 0, part) : part;                  \
  }                                                                                                                   \
  HLOC_FN hloc_##T hloc_lost_quotient_##T(hloc_##T a, hloc_##T b) {                                                   \
    R x = hloc_abs_##F(a.re), y = hloc_abs_##F(a.im), u = hloc_abs_##F(b.re), v = hloc_abs_##F(b.im);                 \
    int is_vast = ((x == HLOC_INF_##T) | (y == HLOC_INF_##T)) & (u < HLOC_INF_##T) & (v < HLOC_INF_##T);              \
    int is_vain = ((u == HLOC_INF_##T) | (v == HLOC_INF_##T)) & (x < HLOC_INF_##T) & (y < HLOC_INF_##T);              \
    int is_zero = (u == 0) & (v == 0);                                                                                \
    R infinity = hloc_copysign_##F(HLOC_INF_##T, b.re), factor = is_vast ? HLOC_INF_##T : is_vain ? 0 : HLOC_NAN_##T; \
    R a_re = hloc_part_##T(is_vast, a.re), a_im = hloc_part_##T(is_vast, a.im);                                       \
    R b_re = hloc_part_##T(is_vain, b.re), b_im = hloc_part_##T(is_vain, b.im);                                       \
    R re = factor * (a_re * b_re + a_im * b_im), im = factor * (a_im * b_re - a_re * b_im);                           \
    return hloc_complex_##F(is_zero ? infinity * a.re : re, is_zero ? infinity * a.im : im);                          \
  }                                                                                                                   \
  HLOC_FN hloc_##T hloc_quotient_##T(hloc_##T a, hloc_##T b, hloc_##T usual) {                                        \
    hloc_##T lost = hloc_lost_quotient_##T(a, b);                                                                     \
    int is_lost = (usual.re != usual.re) & (usual.im != usual.im);                                                    \
    return hloc_complex_##F(is_lost ? lost.re : usual.re, is_lost ? lost.im : usual.im);                              \
  }
#define HLOC_INF_c64 HLOC_INF_F32
#define HLOC_INF_c128 HLOC_INF_F64
#define HLOC_NAN_c64 HLOC_NAN_F32
#define HLOC_NAN_c128 HLOC_NAN_F64
HLOC_DEFINE_LOST_QUOTIENT(c64, float, f32)
HLOC_DEFINE_LOST_QUOTIENT(c128, double, f64)
/* a times the conjugate of b over |b|^2: products of floats neither overflow nor vanish in f64. */
HLOC_FN hloc_c64 hloc_divide_c64(hloc_c64 a, hloc_c64 b) {
  double inverse = 1.0 / ((double)b.re * b.re + (double)b.im * b.im);
  return hloc_quotient_c64(a, b, hloc_narrow_c128(hloc_turned_c128(inverse, hloc_widen_c64(a), hloc_widen_c64(b))));
}
/* Smith's: over the larger part of b first. */
HLOC_FN hloc_c128 hloc_divide_c128(hloc_c128 a, hloc_c128 b) {
  int is_turned = hloc_abs_f64(b.re) < hloc_abs_f64(b.im);
  double large = is_turned ? b.im : b.re, ratio = (is_turned ? b.re : b.im) / large;
  double one = is_turned ? a.im : a.re, other = is_turned ? a.re : a.im;
  double below = 1.0 / (large + (is_turned ? b.re : b.im) * ratio), im = (other - one * ratio) * below;
  return hloc_quotient_c128(a, b, hloc_complex_f64((one + other * ratio) * below, is_turned ? -im : im));
}
HLOC_FN hloc_c128 hloc_polar_c128(double radius, double angle) {
  return hloc_complex_f64(radius * hloc_cos_f64(angle), angle == 0.0 ? angle : radius * hloc_sin_f64(angle));
}
HLOC_FN hloc_c128 hloc_exp_c128(hloc_c128 z) {
  if (z.re == -HLOC_INF_F64 && !hloc_is_finite_f64(z.im)) return hloc_complex_f64(0.0, 0.0);
  return hloc_polar_c128(hloc_exp_f64(z.re), z.im);
}
HLOC_FN hloc_c128 hloc_expm1_c128(hloc_c128 z) { /* (e^x - 1) cos y - 2 sin^2(y/2) */
  double half_sine = hloc_sin_f64(0.5 * z.im), grown = hloc_expm1_f64(z.re);
  double im = z.im == 0.0 ? z.im : (grown + 1.0) * hloc_sin_f64(z.im);
  return hloc_complex_f64(grown * hloc_cos_f64(z.im) - 2.0 * half_sine * half_sine, im);
}
HLOC_FN double hloc_log_abs_c128(hloc_c128 z) {
  double a = hloc_abs_f64(z.re), b = hloc_abs_f64(z.im);
  double large = a > b ? a : b, small = a > b ? b : a;
  if (large > 0.5 && large < 2.0) /* near the unit circle the logarithm is small: keep its digits */
    return 0.5 * hloc_log1p_f64((large - 1.0) * (large + 1.0) + small * small);
  return hloc_log_f64(hloc_abs_c128(z));
}
HLOC_FN hloc_c128 hloc_log_c128(hloc_c128 z) {
  return hloc_complex_f64(hloc_log_abs_c128(z), hloc_atan2_f64(z.im, z.re));
}
HLOC_FN hloc_c128 hloc_log1p_c128(hloc_c128 z) {
  double re = z.re, im = z.im;
  double square = hloc_fma_f64(re, 2.0 + re, im * im); /* |1 + z|^2 - 1 */
  double magnitude = hloc_abs_f64(re) < 1e150 && hloc_abs_f64(im) < 1e150 ? 0.5 * hloc_log1p_f64(square)
                                                                             : hloc_log_abs_c128(z);
  return hloc_complex_f64(magnitude, hloc_atan2_f64(im, 1.0 + re));
}
HLOC_FN hloc_c128 hloc_sqrt_c128(hloc_c128 z) {
  if (z.re == 0.0 && z.im == 0.0) return hloc_complex_f64(0.0, z.im);
  if (hloc_abs_f64(z.im) == HLOC_INF_F64) return hloc_complex_f64(HLOC_INF_F64, z.im);
  if (z.re == -HLOC_INF_F64) return hloc_complex_f64(z.im != z.im ? z.im : 0.0, hloc_copysign_f64(HLOC_INF_F64, z.im));
  if (z.re == HLOC_INF_F64) return hloc_complex_f64(z.re, z.im != z.im ? z.im : hloc_copysign_f64(0.0, z.im));
  double scale = hloc_maximum_f64(hloc_abs_f64(z.re), hloc_abs_f64(z.im)) > 1e300 ? 0.25 : 1.0;
  double re = z.re * scale, im = z.im * scale, back = scale == 1.0 ? 1.0 : 2.0;
  double t = hloc_sqrt_f64(0.5 * (hloc_abs_f64(re) + hloc_hypot_f64(re, im)));
  double other = 0.5 * im / t;
  if (re >= 0.0) return hloc_complex_f64(back * t, back * other);
  return hloc_complex_f64(back * hloc_abs_f64(other), hloc_copysign_f64(back * t, z.im));
}
HLOC_FN hloc_c128 hloc_reciprocal_c128(hloc_c128 z) { return hloc_divide_c128(hloc_complex_f64(1.0, 0.0), z); }
HLOC_FN hloc_c128 hloc_rsqrt_c128(hloc_c128 z) { return hloc_reciprocal_c128(hloc_sqrt_c128(z)); }
HLOC_FN hloc_c128 hloc_cbrt_c128(hloc_c128 z) {
  return hloc_polar_c128(hloc_cbrt_f64(hloc_abs_c128(z)), hloc_atan2_f64(z.im, z.re) / 3.0);
}
HLOC_FN hloc_c128 hloc_logistic_c128(hloc_c128 z) {
  if (z.re < -700.0) return hloc_exp_c128(z);
  return hloc_reciprocal_c128(hloc_add_c128(hloc_complex_f64(1.0, 0.0), hloc_exp_c128(hloc_negate_c128(z))));
}
HLOC_FN hloc_c128 hloc_sin_c128(hloc_c128 z) {
  double im = z.im == 0.0 ? z.im : hloc_cos_f64(z.re) * hloc_sinh_f64(z.im);
  return hloc_complex_f64(hloc_sin_f64(z.re) * hloc_cosh_f64(z.im), im);
}
HLOC_FN hloc_c128 hloc_cos_c128(hloc_c128 z) {
  double im = z.re == 0.0 ? -z.re * z.im : -hloc_sin_f64(z.re) * hloc_sinh_f64(z.im);
  return hloc_complex_f64(hloc_cos_f64(z.re) * hloc_cosh_f64(z.im), im);
}
HLOC_FN hloc_c128 hloc_tanh_c128(hloc_c128 z) { /* (c s h + i t) / (1 + c s^2), t = tan y, c = 1 + t^2 .. */
  double a = hloc_abs_f64(z.re);
  if (a > 20.0) {
    double im = hloc_is_finite_f64(z.im) ? 2.0 * hloc_sin_f64(2.0 * z.im) * hloc_exp_f64(-2.0 * a) : 0.0;
    return hloc_complex_f64(hloc_copysign_f64(1.0, z.re), im);
  }
  double t = hloc_tan_f64(z.im), s = hloc_sinh_f64(z.re), c = 1.0 + t * t;
  double below = 1.0 + c * s * s;
  return hloc_complex_f64(c * hloc_cosh_f64(z.re) * s / below, t / below);
}
HLOC_FN hloc_c128 hloc_tan_c128(hloc_c128 z) { /* -i tanh(iz) */
  hloc_c128 w = hloc_tanh_c128(hloc_complex_f64(-z.im, z.re));
  return hloc_complex_f64(w.im, -w.re);
}
HLOC_FN hloc_c128 hloc_power_c128(hloc_c128 z, hloc_c128 w) {
  if (w.re == 0.0 && w.im == 0.0) return hloc_complex_f64(1.0, 0.0);
  if (z.re == 0.0 && z.im == 0.0) {
    double radius = w.re > 0.0 ? 0.0 : w.re < 0.0 && w.im == 0.0 ? HLOC_INF_F64 : HLOC_NAN_F64;
    return hloc_complex_f64(radius, radius == radius ? 0.0 : radius);
  }
  if (w.im == 0.0 && z.im == 0.0 && z.re > 0.0) return hloc_complex_f64(hloc_power_f64(z.re, w.re), 0.0);
  double radius = hloc_abs_c128(z), angle = hloc_atan2_f64(z.im, z.re);
  double grown = hloc_power_f64(radius, w.re) * hloc_exp_f64(-w.im * angle);
  return hloc_polar_c128(grown, w.im * hloc_log_abs_c128(z) + w.re * angle);
}
HLOC_FN hloc_c128 hloc_atan2_c128(hloc_c128 y, hloc_c128 x) { /* -i log((x + iy) / sqrt(x^2 + y^2)) */
  hloc_c128 squares = hloc_add_c128(hloc_multiply_c128(x, x), hloc_multiply_c128(y, y));
  hloc_c128 point = hloc_complex_f64(x.re - y.im, x.im + y.re);
  hloc_c128 log = hloc_log_c128(hloc_divide_c128(point, hloc_sqrt_c128(squares)));
  return hloc_complex_f64(log.im, -log.re);
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
HLOC_THROUGH_C128(cbrt)
HLOC_THROUGH_C128(logistic)
HLOC_THROUGH_C128(sin)
HLOC_THROUGH_C128(cos)
HLOC_THROUGH_C128(tan)
HLOC_THROUGH_C128(tanh)
HLOC_THROUGH_C128_2(power)
HLOC_THROUGH_C128_2(atan2)

#endif
