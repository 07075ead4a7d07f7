/* complex_parts.h: building blocks of functions of complex numbers: sums and products in two parts, angles,
 * exponentials that do not overflow before they are multiplied, logarithms of sums of squares.
 *
 * In: floats.h. Out: hloc_<helper>_f64, without branches except hloc_angle_f64, for complex.h and similar files.
 * A number "in two" is high + low, low being below half a unit in the last place of high: 106 bits. Where there is no
 * multiply-add (HLOC_FMA), products are split (T. J. Dekker, A floating-point technique, 1971).
 * Example: hloc_product_f64(1 + 2^-30, 1 + 2^-30, &low) == 1 + 2^-29, low == 2^-60
 */
#ifndef HLOC_COMPLEX_PARTS_H
#define HLOC_COMPLEX_PARTS_H
#include "floats.h"

HLOC_FN double hloc_two_sum_f64(double a, double b, double* low) {
  double sum = a + b, other = sum - a;
  *low = (a - (sum - other)) + (b - other);
  return sum;
}
HLOC_FN double hloc_fast_two_sum_f64(double a, double b, double* low) { /* |a| >= |b|, or a = 0 */
  double sum = a + b;
  *low = b - (sum - a);
  return sum;
}
HLOC_FN double hloc_product_f64(double a, double b, double* low) {
  double product = a * b;
#if HLOC_FMA
  *low = hloc_fma_f64(a, b, -product);
#else
  double c = 134217729.0 * a, d = 134217729.0 * b, a_high = c - (c - a), b_high = d - (d - b);
  double a_low = a - a_high, b_low = b - b_high;
  *low = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low;
#endif
  return product;
}
/* a b + c d, 1.5 units in the last place whatever cancels (W. Kahan). */
HLOC_FN double hloc_sum_of_products_f64(double a, double b, double c, double d) {
  double low, other = hloc_product_f64(c, d, &low);
#if HLOC_FMA
  return hloc_fma_f64(a, b, other) + low;
#else
  double one_low, one = hloc_product_f64(a, b, &one_low), lost, sum = hloc_two_sum_f64(one, other, &lost);
  return sum + (lost + (one_low + low));
#endif
}
HLOC_FN double hloc_larger_part_f64(double x, double y) {
  double a = hloc_abs_f64(x), b = hloc_abs_f64(y);
  return a > b ? a : b;
}

/* An angle's sine, cosine, 1 - cosine and 1 + cosine. */
typedef struct { double sin, cos, less, more; } hloc_angle;
HLOC_FN hloc_angle hloc_angle_f64(double x) { /* any, by the libm */
  hloc_angle a;
  a.sin = hloc_sin_f64(x);
  a.cos = hloc_cos_f64(x);
  a.less = a.cos > 0.0 ? a.sin * a.sin / (1.0 + a.cos) : 1.0 - a.cos;
  a.more = a.cos < 0.0 ? a.sin * a.sin / (1.0 - a.cos) : 1.0 + a.cos;
  return a;
}

/* e^x from -700 to 700, *less is e^x - 1; below, e^x is zero where it would be subnormal. */
HLOC_FN double hloc_exp_and_less_f64(double x, double* less) {
#if HLOC_CUDA
  *less = hloc_expm1_f64(x);
  return hloc_exp_f64(x);
#else
  double clamped = x < -708.0 ? -708.0 : x > 708.0 ? 708.0 : x;
  double sum = hloc_fma_f64(clamped, 1.4426950408889634, HLOC_EXPM1_SHIFT);
  double r = hloc_minus_ln2_multiple_f64(clamped, sum - HLOC_EXPM1_SHIFT);
  double half = hloc_from_bits_f64(hloc_bits_f64(sum) << 52); /* 2^(n - 1) */
  double p = hloc_fma_f64(hloc_exp_tail_f64(r), r * r, r);
  *less = 2.0 * hloc_fma_f64(half, p, half - 0.5);
  return x < -708.0 ? 0.0 : 2.0 * hloc_fma_f64(half, p, half);
#endif
}
/* e^x as the result times *power: both are normal numbers from e^-1400 to e^1418. Other factors between the two may
 * bring the product back into range. */
HLOC_FN double hloc_exp_in_two_f64(double x, double* power) {
  double clamped = x < -1400.0 ? -1400.0 : x > 1418.5 ? 1418.5 : x;
#if HLOC_CUDA
  return *power = hloc_exp_f64(0.5 * clamped);
#else
  hloc_s64 sum = (hloc_s64)hloc_bits_f64(hloc_fma_f64(clamped, 1.4426950408889634, HLOC_EXP_SHIFT));
  double r = hloc_minus_ln2_multiple_f64(clamped, hloc_from_bits_f64((hloc_u64)sum) - HLOC_EXP_SHIFT);
  hloc_u64 first = (hloc_u64)sum >> 1, second = (hloc_u64)sum - first;
  *power = hloc_from_bits_f64(second << 52);
  return (hloc_fma_f64(hloc_exp_tail_f64(r), r * r, r) + 1.0) * hloc_from_bits_f64(first << 52);
#endif
}

/* log(u + low), low being a low part of u, or more where u is 1: every digit of a sum near 1 counts. */
HLOC_FN double hloc_log_of_sum_f64(double u, double low) {
#if HLOC_CUDA
  double above = (u - 1.0) + low;
  return (u > 0.5) & (u < 2.0) ? hloc_log1p_f64(above) : hloc_log_f64(u);
#else
  hloc_u64 above = hloc_bits_f64(u) - 0x3fe6a09e667f3bcdull;
  double m = hloc_from_bits_f64((above & 0x000fffffffffffffull) + 0x3fe6a09e667f3bcdull);
  hloc_u64 scale = hloc_bits_f64(m) - hloc_bits_f64(u) + (1023ull << 52); /* 2^-e */
  double y = hloc_log_parts_f64((m - 1.0) + low * hloc_from_bits_f64(scale), hloc_exponent_f64(above));
  return hloc_log_special_f64(u, y);
#endif
}
/* A power of two that keeps squares of numbers of this size in range, and its logarithm. */
HLOC_FN double hloc_scale_for_squares_f64(double most) {
  return most > 0x1p500 ? 0x1p-600 : most < 0x1p-400 ? 0x1p600 : 1.0;
}
HLOC_FN double hloc_log_of_scale_f64(double by) {
  return by < 1.0 ? -415.88830833596718 : by > 1.0 ? 415.88830833596718 : 0.0;
}
/* (x + x_low)^2 + y^2 = u + low, for log_of_sum; x_low is 0 unless x is rounded. */
HLOC_FN double hloc_squares_f64(double x, double x_low, double y, double* low) {
  double x_rest, y_rest, sum_rest, one = hloc_product_f64(x, x, &x_rest), other = hloc_product_f64(y, y, &y_rest);
  double u = hloc_two_sum_f64(one, other, &sum_rest);
  *low = ((2.0 * x * x_low + sum_rest) + (x_rest + y_rest)) + x_low * x_low;
  return u;
}
/* log of the length of (x + x_low, y) */
HLOC_FN double hloc_log_of_length_f64(double x, double x_low, double y) {
  double most = hloc_larger_part_f64(x, y), by = hloc_scale_for_squares_f64(most), low;
  double u = hloc_squares_f64(x * by, x_low * by, y * by, &low);
  double length = hloc_fma_f64(0.5, hloc_log_of_sum_f64(u, low), -hloc_log_of_scale_f64(by));
  return (hloc_abs_f64(x) == HLOC_INF_F64) | (hloc_abs_f64(y) == HLOC_INF_F64) ? HLOC_INF_F64 : length;
}

/* The angle of (x, y) in two. The angle's tangent, taken from the larger part, differs by d <= 1/8 from 0, 1/4 .. 1:
 * atan(k) + d - d^3/3 + .., the first two terms in two. */
HLOC_FN double hloc_direction_in_two_f64(double y, double x, double* low) {
  double a = hloc_abs_f64(y), b = hloc_abs_f64(x), large = a > b ? a : b, small = a > b ? b : a;
  double four = HLOC_MATH_F64(floor)(4.0 * (small / large) + 0.5), k = 0.25 * four;
  double of_large_low, of_small_low, d_low, of_large = hloc_product_f64(k, large, &of_large_low);
  double of_small = hloc_product_f64(k, small, &of_small_low);
  double above = small - of_large, below = hloc_fast_two_sum_f64(large, of_small, &d_low), inverse = 1.0 / below;
  double d = above * inverse, square, cube, third, rest;
  double d_below = hloc_product_f64(d, below, &rest); /* the remainder of the quotient */
  d_low = (((above - d_below) - rest) - of_large_low - d * (d_low + of_small_low)) * inverse;
  double square_low, cube_low, third_low, p = -4.7619047619047616e-02;
  square = hloc_product_f64(d, d, &square_low);
  square_low += 2.0 * d * d_low;
  p = hloc_fma_f64(p, square, 5.2631578947368418e-02);
  p = hloc_fma_f64(p, square, -5.8823529411764705e-02);
  p = hloc_fma_f64(p, square, 6.6666666666666666e-02);
  p = hloc_fma_f64(p, square, -7.6923076923076927e-02);
  p = hloc_fma_f64(p, square, 9.0909090909090912e-02);
  p = hloc_fma_f64(p, square, -1.1111111111111110e-01);
  p = hloc_fma_f64(p, square, 1.4285714285714285e-01);
  p = hloc_fma_f64(p, square, -0.2);
  cube = hloc_product_f64(d, square, &cube_low);
  cube_low += hloc_fma_f64(d, square_low, d_low * square);
  third = hloc_product_f64(cube, 0.33333333333333331, &third_low);
  third_low += hloc_fma_f64(cube, 1.850371707708594e-17, cube_low * 0.33333333333333331);
  rest = hloc_fma_f64(p * square, cube, third_low) - d_low; /* of -d + third */
  /* atan(k), and from which axis */
  double base = four < 0.5 ? 0.0 : four < 1.5 ? 0.24497866312686414 : four < 2.5 ? 0.46364760900080609
                : four < 3.5 ? 0.64350110879328437 : 0.78539816339744828;
  double base_low = four < 0.5 ? 0.0 : four < 1.5 ? 1.0698755618734451e-17 : four < 2.5 ? 2.2698777452961687e-17
                    : four < 3.5 ? 1.5834785051444286e-17 : 3.061616997868383e-17;
  int is_steep = a > b, is_left = (int)(hloc_bits_f64(x) >> 63);
  double from = is_steep ? 1.5707963267948966 : is_left ? 3.141592653589793 : 0.0;
  double from_low = is_steep ? 6.123233995736766e-17 : is_left ? 1.2246467991473532e-16 : 0.0;
  double sign = is_steep != is_left ? -1.0 : 1.0, one_low, two_low, three_low;
  double sum = hloc_fast_two_sum_f64(from, sign * base, &one_low);
  sum = hloc_fast_two_sum_f64(sum, sign * d, &two_low);
  sum = hloc_fast_two_sum_f64(sum, -sign * third, &three_low);
  double lost = (from_low + sign * base_low) + (one_low + two_low + three_low - sign * rest), angle = sum + lost;
  double up = hloc_copysign_f64(1.0, y);
  *low = up * ((sum - angle) + lost);
  return up * angle;
}
#endif
