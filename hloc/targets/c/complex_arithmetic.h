/* complex_arithmetic.h: arithmetic of c64 and c128, their lengths and directions.
 *
 * In: complex_parts.h. Out, for T in c64 c128: hloc_<op>_<T> for add subtract multiply divide negate conj abs (real
 *   result) sign real imag select compare_eq compare_ne; hloc_complex_f32(re, im), hloc_complex_f64(re, im) are in
 *   base.h.
 * Without branches: loops make vectors of all. add, subtract and multiply are the formulas as they stand, as in XLA: a
 * product may have NaN where its parts overflow. Of the rest, largest and smallest numbers have no part in between that
 * overflows or vanishes. docs/support.md has the errors.
 * Example: hloc_divide_c128((1e300, 1e300), (1e300, 0)) == (1, 1)
 */
#ifndef HLOC_COMPLEX_ARITHMETIC_H
#define HLOC_COMPLEX_ARITHMETIC_H
#include "complex_parts.h"

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

#define HLOC_INF_c64 HLOC_INF_F32
#define HLOC_INF_c128 HLOC_INF_F64
#define HLOC_NAN_c64 HLOC_NAN_F32
#define HLOC_NAN_c128 HLOC_NAN_F64
#define HLOC_MATH_c64 HLOC_MATH_F32
#define HLOC_MATH_c128 HLOC_MATH_F64

/* size: the power of two by which parts are divided before they are squared; the larger one becomes 1 to 8. */
#define HLOC_DEFINE_LENGTHS(T, R, F, S, EXPONENTS, LEAST, MOST, BOTH)                                                 \
  HLOC_FN R hloc_size_##T(hloc_##T z) {                                                                               \
    R a = hloc_abs_##F(z.re), b = hloc_abs_##F(z.im);                                                                 \
    S exponent = (S)(hloc_bits_##F(a > b ? a : b) & EXPONENTS);                                                       \
    exponent = exponent < LEAST ? LEAST : exponent;                                                                   \
    return hloc_from_bits_##F(exponent > MOST ? MOST : exponent);                                                     \
  }                                                                                                                   \
  HLOC_FN R hloc_inverse_size_##T(R size) { return hloc_from_bits_##F(BOTH - hloc_bits_##F(size)); }                  \
  HLOC_FN int hloc_is_infinite_##T(hloc_##T z) {                                                                      \
    return (hloc_abs_##F(z.re) == HLOC_INF_##T) | (hloc_abs_##F(z.im) == HLOC_INF_##T);                               \
  }                                                                                                                   \
  HLOC_FN R hloc_abs_##T(hloc_##T z) {                                                                                \
    R size = hloc_size_##T(z), by = hloc_inverse_size_##T(size), re = z.re * by, im = z.im * by;                      \
    R magnitude = HLOC_MATH_##T(sqrt)(hloc_fma_##F(re, re, im * im)) * size;                                          \
    return hloc_is_infinite_##T(z) ? HLOC_INF_##T : magnitude;                                                        \
  }                                                                                                                   \
  HLOC_FN hloc_##T hloc_sign_##T(hloc_##T z) {                                                                        \
    R by = hloc_inverse_size_##T(hloc_size_##T(z)), re = z.re * by, im = z.im * by;                                   \
    R length = HLOC_MATH_##T(sqrt)(hloc_fma_##F(re, re, im * im));                                                    \
    int infinite = hloc_is_infinite_##T(z), is_zero = (z.re == 0) & (z.im == 0);                                      \
    re = infinite ? z.re * 0 : re / length;                                                                           \
    im = infinite ? z.im * 0 : im / length;                                                                           \
    return hloc_complex_##F(is_zero ? z.re : re, is_zero ? z.im : im);                                                \
  }
HLOC_DEFINE_LENGTHS(c64, float, f32, hloc_s32, 0x7f800000u, 0x00800000, 0x7e800000, 0x7f000000u)
HLOC_DEFINE_LENGTHS(c128, double, f64, hloc_s64, 0x7ff0000000000000ull, 0x0010000000000000ll, 0x7fd0000000000000ll,
                    0x7fe0000000000000ull)

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
HLOC_DEFINE_LOST_QUOTIENT(c64, float, f32)
HLOC_DEFINE_LOST_QUOTIENT(c128, double, f64)
/* a times the conjugate of b over |b|^2: products of floats are exact in f64, and neither overflow nor vanish there. */
HLOC_FN hloc_c64 hloc_divide_c64(hloc_c64 a, hloc_c64 b) {
  double p = a.re, q = a.im, u = b.re, v = b.im, inverse = 1.0 / (u * u + v * v);
  hloc_c128 usual = hloc_complex_f64((p * u + q * v) * inverse, (q * u - p * v) * inverse);
  return hloc_quotient_c64(a, b, hloc_narrow_c128(usual));
}
/* The same of parts multiplied by powers of two, with sums of products that keep their digits. The larger part of a
 * becomes 2^500 where it may, so that a far smaller one is not lost. The powers are put back in two steps. */
HLOC_FN hloc_c128 hloc_divide_c128(hloc_c128 a, hloc_c128 b) {
  double size = hloc_size_c128(b), by = hloc_inverse_size_c128(size), u = b.re * by, v = b.im * by;
  hloc_s64 up = 1523 - (hloc_s64)(hloc_bits_f64(hloc_size_c128(a)) >> 52), least = up < 1000 ? up : 1000;
  double up_by = hloc_from_bits_f64((hloc_u64)(1023 + least) << 52), p = a.re * up_by, q = a.im * up_by;
  double inverse = 1.0 / hloc_fma_f64(u, u, v * v);
  double re = hloc_sum_of_products_f64(p, u, q, v) * inverse, im = hloc_sum_of_products_f64(q, u, -p, v) * inverse;
  hloc_u64 back = 3069u - (hloc_u64)least - (hloc_bits_f64(size) >> 52), half = back >> 1; /* exponents + 2046 */
  double first = hloc_from_bits_f64(half << 52), second = hloc_from_bits_f64((back - half) << 52);
  return hloc_quotient_c128(a, b, hloc_complex_f64(re * first * second, im * first * second));
}

#endif
