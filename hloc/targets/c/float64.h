/* float64.h: HLO's elementary functions on f64: the same names as float32.h with the suffix _f64.
 *
 * In: base.h. For CPUs exp expm1 log log1p logistic power cbrt erf tanh atan atan2 asin acos are written out, free of
 * branches and calls, so that loops vectorize (errors below 2 units in the last place); the rest, and everything under
 * CUDA, are the libm's functions. sin_near cos_near tan_near are written out for angles of which
 * {sin,cos,tan}_is_near is true.
 * Example: hloc_log1p_f64(1e-300) == 1e-300
 */
#ifndef HLOC_FLOAT64_H
#define HLOC_FLOAT64_H
#include "base.h"

#define HLOC_WRAP1_F64(op, name) HLOC_FN double hloc_##op##_f64(double x) { return HLOC_MATH_F64(name)(x); }
HLOC_WRAP1_F64(sqrt, sqrt)
HLOC_WRAP1_F64(floor, floor)
HLOC_WRAP1_F64(ceil, ceil)
HLOC_WRAP1_F64(round_nearest_even, rint)
HLOC_WRAP1_F64(round_nearest_afz, round)
HLOC_WRAP1_F64(sin, sin)
HLOC_WRAP1_F64(cos, cos)
HLOC_WRAP1_F64(tan, tan)
HLOC_WRAP1_F64(sinh, sinh)
HLOC_WRAP1_F64(cosh, cosh)
HLOC_WRAP1_F64(asinh, asinh)
HLOC_WRAP1_F64(acosh, acosh)
HLOC_WRAP1_F64(atanh, atanh)
HLOC_FN double hloc_rsqrt_f64(double x) { return 1.0 / HLOC_MATH_F64(sqrt)(x); }
#if HLOC_CUDA | !HLOC_FMA
HLOC_FN double hloc_power_f64(double x, double y) { return HLOC_MATH_F64(pow)(x, y); }
HLOC_WRAP1_F64(cbrt, cbrt)
HLOC_WRAP1_F64(erf, erf)
#endif
HLOC_FN double hloc_remainder_f64(double a, double b) { return HLOC_MATH_F64(fmod)(a, b); }
/* The same by one division, if the quotient is small: its whole part is exact, or one too large, and the remainder is
 * exact. There is no call, and loops vectorize. */
HLOC_FN int hloc_remainder_is_near_f64(double a, double b) {
  return (HLOC_MATH_F64(fabs)(a / b) < 9007199254740992.0) & (HLOC_MATH_F64(fabs)(b) > 1e-290)
      & (HLOC_MATH_F64(fabs)(b) < 0x1p1022); /* compilers multiply by reciprocals */
}
HLOC_FN double hloc_remainder_near_f64(double a, double b) {
  double size = HLOC_MATH_F64(fabs)(a), divisor = HLOC_MATH_F64(fabs)(b), whole = HLOC_MATH_F64(trunc)(size / divisor);
  double rest = HLOC_MATH_F64(fma)(-whole, divisor, size);
  rest = rest < 0 ? rest + divisor : rest;
  return hloc_copysign_f64(whole == 0 ? size : rest, a);
}
/* b: 1, 2, 4 ... Every step is exact. There is no call, and loops vectorize. */
HLOC_FN double hloc_remainder_by_power_f64(double a, double b) {
  double size = HLOC_MATH_F64(fabs)(a);
  return hloc_copysign_f64(size - HLOC_MATH_F64(floor)(size * (1 / b)) * b, a);
}

HLOC_FN double hloc_exponent_f64(hloc_u64 above) { /* bits less those of sqrt(1/2), as a signed exponent */
  return hloc_from_bits_f64((((above + (1023ull << 52)) >> 52) | 0x4330000000000000ull)) - 4503599627371519.0;
}
/* log x in two parts, for powers: e ln2 + 2 atanh(s), s = (m - 1) / (m + 1); *low is what the result lost. Every s, the
 * first two terms and their sum have a low part as well. x > 0 */
HLOC_FN double hloc_log_in_two_f64(double x, double* low) {
  int subnormal = x < 2.2250738585072014e-308;
  hloc_u64 above = hloc_bits_f64(subnormal ? x * 18014398509481984.0 : x) - 0x3fe6a09e667f3bcdull;
  double e = hloc_exponent_f64(above) - (subnormal ? 54.0 : 0.0);
  double m = hloc_from_bits_f64((above & 0x000fffffffffffffull) + 0x3fe6a09e667f3bcdull);
  double f = m - 1.0, g = m + 1.0, g_low = m - (g - 1.0), inverse = 1.0 / g;
  double s = f * inverse, s_low = hloc_fma_f64(-s, g_low, hloc_fma_f64(-s, g, f)) * inverse;
  double z = s * s, z_low = hloc_fma_f64(2.0 * s, s_low, hloc_fma_f64(s, s, -z));
  double p = 1.19819719533296953e-01;
  p = hloc_fma_f64(p, z, 1.16757558271853357e-01);
  p = hloc_fma_f64(p, z, 1.33362656424294179e-01);
  p = hloc_fma_f64(p, z, 1.53845584015382730e-01);
  p = hloc_fma_f64(p, z, 1.81818188443362561e-01);
  p = hloc_fma_f64(p, z, 2.22222222177875295e-01);
  p = hloc_fma_f64(p, z, 2.85714285714438465e-01);
  p = hloc_fma_f64(p, z, 3.99999999999999800e-01);
  double cube = s * z, cube_low = hloc_fma_f64(s_low, z, hloc_fma_f64(s, z_low, hloc_fma_f64(s, z, -cube)));
  double third = cube * 0.66666666666666663; /* of two cubes; 2/3 has a low part, too */
  double third_low = hloc_fma_f64(cube, 3.7007434154171886e-17, hloc_fma_f64(cube, 0.66666666666666663, -third));
  third_low = hloc_fma_f64(cube_low, 0.66666666666666663, third_low);
  double whole = e * 0.6931471805582987, one = whole + 2.0 * s, two = one + third;
  double lost = ((whole - one) + 2.0 * s) + ((one - two) + third);
  lost += hloc_fma_f64(e, 1.6465949582897082e-12, hloc_fma_f64(p * z, cube, hloc_fma_f64(2.0, s_low, third_low)));
  double y = two + lost;
  *low = (two - y) + lost;
  return y;
}

#if HLOC_CUDA
HLOC_WRAP1_F64(exp, exp)
HLOC_WRAP1_F64(exp2, exp2)
HLOC_WRAP1_F64(expm1, expm1)
HLOC_WRAP1_F64(log, log)
HLOC_WRAP1_F64(log1p, log1p)
HLOC_WRAP1_F64(tanh, tanh)
HLOC_WRAP1_F64(atan, atan)
HLOC_WRAP1_F64(asin, asin)
HLOC_WRAP1_F64(acos, acos)
HLOC_FN double hloc_atan2_f64(double y, double x) { return atan2(y, x); }
#else

HLOC_FN double hloc_exp_tail_f64(double r) { /* (e^r - 1 - r) / r^2 on [-ln2/2, ln2/2] */
  double p = 2.09199876760707393e-09;
  p = hloc_fma_f64(p, r, 2.51092515373897639e-08);
  p = hloc_fma_f64(p, r, 2.75572578642336642e-07);
  p = hloc_fma_f64(p, r, 2.75572436107158434e-06);
  p = hloc_fma_f64(p, r, 2.48015873418137297e-05);
  p = hloc_fma_f64(p, r, 1.98412698867043931e-04);
  p = hloc_fma_f64(p, r, 1.38888888888771020e-03);
  p = hloc_fma_f64(p, r, 8.33333333332140873e-03);
  p = hloc_fma_f64(p, r, 4.16666666666666782e-02);
  p = hloc_fma_f64(p, r, 1.66666666666666768e-01);
  return hloc_fma_f64(p, r, 0.5);
}
HLOC_FN double hloc_minus_ln2_multiple_f64(double x, double n) {
  return hloc_fma_f64(n, -1.6465949582897082e-12, hloc_fma_f64(n, -0.6931471805582987, x));
}
/* hloc_exp_f32 explains the method; 1.5 * 2^52 + 2046 here. This is e^r times the power of two that sum stands for. */
HLOC_FN double hloc_exp_times_power_f64(double r, hloc_s64 sum) {
  double p = hloc_fma_f64(hloc_exp_tail_f64(r), r * r, r) + 1.0;
  hloc_u64 first = (hloc_u64)sum >> 1, second = (hloc_u64)sum - first;
  return p * hloc_from_bits_f64(first << 52) * hloc_from_bits_f64(second << 52);
}
#define HLOC_EXP_SHIFT (6755399441055744.0 + 2046.0)
HLOC_FN hloc_s64 hloc_exp_sum_f64(double shifted) { /* clamped to the sum that gives infinity */
  hloc_s64 sum = (hloc_s64)hloc_bits_f64(shifted);
  return sum > 0x4338000000000000ll + 2046 + 1025 ? 0x4338000000000000ll + 2046 + 1025 : sum;
}
HLOC_FN double hloc_exp_f64(double x) {
  int is_zero = x < -746.0;
  double clamped = is_zero ? 0.0 : x;
  hloc_s64 sum = hloc_exp_sum_f64(hloc_fma_f64(clamped, 1.4426950408889634, HLOC_EXP_SHIFT));
  double r = hloc_minus_ln2_multiple_f64(clamped, hloc_from_bits_f64((hloc_u64)sum) - HLOC_EXP_SHIFT);
  double y = hloc_exp_times_power_f64(r, sum);
  return is_zero ? 0.0 : y;
}
HLOC_FN double hloc_exp2_f64(double x) { /* whole numbers give exact powers */
  int is_zero = x < -1076.0;
  double clamped = is_zero ? 0.0 : x;
  hloc_s64 sum = hloc_exp_sum_f64(clamped + HLOC_EXP_SHIFT);
  double r = (clamped - (hloc_from_bits_f64((hloc_u64)sum) - HLOC_EXP_SHIFT)) * 0.6931471805599453;
  double y = hloc_exp_times_power_f64(r, sum);
  return is_zero ? 0.0 : y;
}
#define HLOC_EXPM1_SHIFT (6755399441055744.0 + 1022.0)
HLOC_FN double hloc_expm1_parts_f64(double x, double sum) { /* sum: x / ln2, rounded, + HLOC_EXPM1_SHIFT */
  double r = hloc_minus_ln2_multiple_f64(x, sum - HLOC_EXPM1_SHIFT);
  double half_power = hloc_from_bits_f64(hloc_bits_f64(sum) << 52);
  double p = hloc_fma_f64(hloc_exp_tail_f64(r), r * r, r);
  return 2.0 * hloc_fma_f64(half_power, p, half_power - 0.5);
}
HLOC_FN double hloc_expm1_f64(double x) {
  double clamped = x < -50.0 ? -50.0 : x;
  hloc_s64 sum = (hloc_s64)hloc_bits_f64(hloc_fma_f64(clamped, 1.4426950408889634, HLOC_EXPM1_SHIFT));
  sum = sum > 0x4338000000000000ll + 1022 + 1024 ? 0x4338000000000000ll + 1022 + 1024 : sum;
  double y = hloc_expm1_parts_f64(clamped, hloc_from_bits_f64((hloc_u64)sum));
  y = x == 0.0 ? x : y;
  return x > 710.0 ? HLOC_INF_F64 : y;
}
HLOC_FN double hloc_log_parts_f64(double f, double e) { /* log(1 + f) + e ln2 through atanh(f / (2 + f)) */
  double s = f / (2.0 + f), z = s * s;
  double p = 1.47979042978527570e-01;
  p = hloc_fma_f64(p, z, 1.53138641319283120e-01);
  p = hloc_fma_f64(p, z, 1.81835712591752185e-01);
  p = hloc_fma_f64(p, z, 2.22221984465920924e-01);
  p = hloc_fma_f64(p, z, 2.85714287435564152e-01);
  p = hloc_fma_f64(p, z, 3.99999999994096911e-01);
  p = hloc_fma_f64(p, z, 6.66666666666673513e-01);
  double half_square = 0.5 * f * f;
  double tail = hloc_fma_f64(s, hloc_fma_f64(p, z, half_square), e * 1.6465949582897082e-12) - half_square;
  return hloc_fma_f64(e, 0.6931471805582987, f + tail);
}
HLOC_FN double hloc_log_special_f64(double x, double y) {
  y = x == HLOC_INF_F64 ? x : y;
  y = x == 0.0 ? -HLOC_INF_F64 : y;
  return x < 0.0 ? HLOC_NAN_F64 : x != x ? x : y;
}
HLOC_FN double hloc_log_f64(double x) {
  int subnormal = x < 2.2250738585072014e-308;
  hloc_u64 above = hloc_bits_f64(subnormal ? x * 18014398509481984.0 : x) - 0x3fe6a09e667f3bcdull;
  double e = hloc_exponent_f64(above) - (subnormal ? 54.0 : 0.0);
  double f = hloc_from_bits_f64((above & 0x000fffffffffffffull) + 0x3fe6a09e667f3bcdull) - 1.0;
  return hloc_log_special_f64(x, hloc_log_parts_f64(f, e));
}
HLOC_FN double hloc_log1p_f64(double x) {
  double u = 1.0 + x;
  double lost = x < 1.0 ? x - (u - 1.0) : 1.0 - (u - x);
  hloc_u64 above = hloc_bits_f64(u) - 0x3fe6a09e667f3bcdull;
  double m = hloc_from_bits_f64((above & 0x000fffffffffffffull) + 0x3fe6a09e667f3bcdull);
  hloc_u64 scale = hloc_bits_f64(m) - hloc_bits_f64(u) + (1023ull << 52); /* 2^-e */
  lost = x > 1e17 ? 0.0 : lost * hloc_from_bits_f64(scale);
  double y = hloc_log_parts_f64((m - 1.0) + lost, hloc_exponent_f64(above));
  y = __builtin_fabs(x) < 1e-290 ? x : y;
  return hloc_log_special_f64(u, y); /* always, as in float32.h */
}
HLOC_FN double hloc_tanh_f64(double x) {
  double a = -2.0 * __builtin_fabs(x), below = a < -50.0 ? -50.0 : a;
  double m = hloc_expm1_parts_f64(below, hloc_fma_f64(below, 1.4426950408889634, HLOC_EXPM1_SHIFT));
  int near_one = m < -0.75;
  double y = (near_one ? 2.0 + 2.0 * m : -m) / (2.0 + m);
  return hloc_copysign_f64(near_one ? 1.0 - y : y, x);
}
/* atan of a ratio in [0, 1] */
HLOC_FN double hloc_atan_unit_f64(double t) {
  double z = t * t;
  double p = 1.80619546186121511e-05;
  p = hloc_fma_f64(p, z, -1.99961893779013818e-04);
  p = hloc_fma_f64(p, z, 1.04960350849685148e-03);
  p = hloc_fma_f64(p, z, -3.49588597391630937e-03);
  p = hloc_fma_f64(p, z, 8.36893117845016223e-03);
  p = hloc_fma_f64(p, z, -1.55351524754141768e-02);
  p = hloc_fma_f64(p, z, 2.36967315800486224e-02);
  p = hloc_fma_f64(p, z, -3.12771890669963845e-02);
  p = hloc_fma_f64(p, z, 3.74948681253524721e-02);
  p = hloc_fma_f64(p, z, -4.26035663260165218e-02);
  p = hloc_fma_f64(p, z, 4.73774957952777867e-02);
  p = hloc_fma_f64(p, z, -5.25797333428411062e-02);
  p = hloc_fma_f64(p, z, 5.88150687779365605e-02);
  p = hloc_fma_f64(p, z, -6.66656469928910422e-02);
  p = hloc_fma_f64(p, z, 7.69229897103321653e-02);
  p = hloc_fma_f64(p, z, -9.09090859089193432e-02);
  p = hloc_fma_f64(p, z, 1.11111110934908275e-01);
  p = hloc_fma_f64(p, z, -1.42857142853841323e-01);
  p = hloc_fma_f64(p, z, 1.99999999999975309e-01);
  p = hloc_fma_f64(p, z, -3.33333333333333315e-01);
  return hloc_fma_f64(p * z, t, t);
}
HLOC_FN double hloc_atan2_f64(double y, double x) {
  double a = __builtin_fabs(y), b = __builtin_fabs(x);
  double large = a > b ? a : b, small = a > b ? b : a;
  double ratio = large == 0.0 ? 0.0 : small / large;
  double angle = hloc_atan_unit_f64(small == HLOC_INF_F64 ? 1.0 : ratio);
  int is_steep = a > b, is_left = (int)(hloc_bits_f64(x) >> 63);
  double from = is_steep ? 1.5707963267948966 : is_left ? 3.141592653589793 : 0.0; /* the angle between two axes */
  double rest = is_steep ? 6.123233995736766e-17 : is_left ? 1.2246467991473532e-16 : 0.0;
  angle = from + (rest + (is_steep != is_left ? -angle : angle));
  return ((x != x) | (y != y)) ? x + y : hloc_copysign_f64(angle, y);
}
HLOC_FN double hloc_atan_f64(double x) {
  double a = __builtin_fabs(x);
  double angle = hloc_atan_unit_f64(a > 1.0 ? 1.0 / a : a);
  return hloc_copysign_f64(a > 1.0 ? (1.5707963267948966 - angle) + 6.123233995736766e-17 : angle, x);
}
HLOC_FN double hloc_asin_small_f64(double x, double z) { /* z = x^2 <= 1/4 */
  double p = 2.87578513674215663e-02;
  p = hloc_fma_f64(p, z, -1.48518870712472037e-02);
  p = hloc_fma_f64(p, z, 1.74008794426940214e-02);
  p = hloc_fma_f64(p, z, 5.45750671864035815e-03);
  p = hloc_fma_f64(p, z, 1.03228143501857793e-02);
  p = hloc_fma_f64(p, z, 1.14791774151849057e-02);
  p = hloc_fma_f64(p, z, 1.39712129735529329e-02);
  p = hloc_fma_f64(p, z, 1.73523927208699726e-02);
  p = hloc_fma_f64(p, z, 2.23721729421498886e-02);
  p = hloc_fma_f64(p, z, 3.03819441385312465e-02);
  p = hloc_fma_f64(p, z, 4.46428571463554288e-02);
  p = hloc_fma_f64(p, z, 7.49999999999843292e-02);
  p = hloc_fma_f64(p, z, 1.66666666666666685e-01);
  return hloc_fma_f64(p * z, x, x);
}
HLOC_FN double hloc_asin_f64(double x) {
  double a = __builtin_fabs(x), z = a > 0.5 ? 0.5 - 0.5 * a : x * x;
  double y = hloc_asin_small_f64(a > 0.5 ? __builtin_sqrt(z) : a, z);
  return hloc_copysign_f64(a > 0.5 ? 1.5707963267948966 - (2.0 * y - 6.123233995736766e-17) : y, x);
}
HLOC_FN double hloc_acos_f64(double x) {
  double a = __builtin_fabs(x), z = a > 0.5 ? 0.5 - 0.5 * a : x * x;
  double y = hloc_asin_small_f64(a > 0.5 ? __builtin_sqrt(z) : x, z);
  double far = x < 0.0 ? 3.141592653589793 - (2.0 * y - 1.2246467991473532e-16) : 2.0 * y;
  return a > 0.5 ? far : 1.5707963267948966 - (y - 6.123233995736766e-17);
}

#if HLOC_FMA
/* |x|^y = e^(y log|x|), the product in two parts, too. The special cases of x and of y are selected by bit masks,
 * because compilers do not vectorize a loop with such branches. */
HLOC_FN double hloc_power_f64(double x, double y) {
  double low, a = __builtin_fabs(x), high = hloc_log_in_two_f64(a, &low);
  hloc_u64 usual = (a > 0.0) & (a < HLOC_INF_F64) ? ~0ull : 0ull, positive = a == 0.0 ? 0ull : ~0ull;
  hloc_u64 other = (hloc_bits_f64(a) & positive) | (0xfff0000000000000ull & ~positive);
  high = hloc_from_bits_f64((hloc_bits_f64(high) & usual) | (other & ~usual));
  double t = y * high, rest = hloc_fma_f64(y, low, hloc_fma_f64(y, high, -t));
  rest = __builtin_fabs(t) > 800.0 ? 0.0 : rest;
  t = t > 800.0 ? 800.0 : t;
  int is_zero = t < -746.0;
  t = is_zero ? 0.0 : t;
  hloc_s64 sum = hloc_exp_sum_f64(hloc_fma_f64(t, 1.4426950408889634, HLOC_EXP_SHIFT));
  double r = hloc_minus_ln2_multiple_f64(t, hloc_from_bits_f64((hloc_u64)sum) - HLOC_EXP_SHIFT);
  double magnitude = hloc_exp_times_power_f64(r + rest, sum);
  magnitude = is_zero ? 0.0 : magnitude;
  double half = 0.5 * y;
  int is_whole = __builtin_floor(y) == y, is_odd = is_whole & (__builtin_floor(half) != half);
  hloc_u64 sign = hloc_bits_f64(x) & (is_odd ? 0x8000000000000000ull : 0ull);
  hloc_u64 nan = ((x < 0.0) & (x > -HLOC_INF_F64) ? 0x7ff8000000000000ull : 0ull) & (is_whole ? 0ull : ~0ull);
  hloc_u64 one = (a == 1.0 ? ~0ull : 0ull) | (y == 0.0 ? ~0ull : 0ull);
  return hloc_from_bits_f64((hloc_bits_f64(magnitude) & ~one) | (0x3ff0000000000000ull & one) | sign | nan);
}

/* Below 1: x + x P(x^2). Above: 1 - 2^Q(|x| - 1), which is 1 from 6 on. */
HLOC_FN double hloc_erf_f64(double x) {
  double a = __builtin_fabs(x), z = x * x, u = (a > 6.0 ? 6.0 : a) - 1.0;
  double p = -7.800877880673212e-10;
  p = hloc_fma_f64(p, z, 1.3722804105921336e-08);
  p = hloc_fma_f64(p, z, -1.6209134730853716e-07);
  p = hloc_fma_f64(p, z, 1.6447512107189981e-06);
  p = hloc_fma_f64(p, z, -1.4924744195025172e-05);
  p = hloc_fma_f64(p, z, 0.00012055295295179123);
  p = hloc_fma_f64(p, z, -0.0008548325988816904);
  p = hloc_fma_f64(p, z, 0.005223977607404377);
  p = hloc_fma_f64(p, z, -0.026866170643273797);
  p = hloc_fma_f64(p, z, 0.11283791670945237);
  p = hloc_fma_f64(p, z, -0.3761263890318355);
  p = hloc_fma_f64(p, z, 0.12837916709551256);
  double q = -7.003041006854485e-12;
  q = hloc_fma_f64(q, u, 1.7176635056004697e-10);
  q = hloc_fma_f64(q, u, -1.898852228558467e-09);
  q = hloc_fma_f64(q, u, 1.226268277981642e-08);
  q = hloc_fma_f64(q, u, -4.805640240204865e-08);
  q = hloc_fma_f64(q, u, 8.334314681899086e-08);
  q = hloc_fma_f64(q, u, 2.9623325027950873e-07);
  q = hloc_fma_f64(q, u, -3.0769179133395046e-06);
  q = hloc_fma_f64(q, u, 1.3954200567144968e-05);
  q = hloc_fma_f64(q, u, -3.9240954512591814e-05);
  q = hloc_fma_f64(q, u, 3.793826088303526e-05);
  q = hloc_fma_f64(q, u, 0.00034237495613210014);
  q = hloc_fma_f64(q, u, -0.0028535081931522948);
  q = hloc_fma_f64(q, u, 0.014475749811974217);
  q = hloc_fma_f64(q, u, -0.05995999001305416);
  q = hloc_fma_f64(q, u, -1.216346657687314);
  q = hloc_fma_f64(q, u, -3.8072253458535843);
  q = hloc_fma_f64(q, u, -2.6684166967815997);
  double far = hloc_copysign_f64(1.0 - hloc_exp2_f64(q), x);
  return a > 1.0 ? far : hloc_fma_f64(p, x, x);
}
/* A guess from a third of the exponent, two cubically converging steps, and one from the remainder, of 106 bits. */
HLOC_FN double hloc_cbrt_f64(double x) {
  double a = __builtin_fabs(x);
  int tiny = a < 1e-290, huge = a > 1e290;
  double t = a * (tiny ? 0x1p54 : huge ? 0x1p-54 : 1.0);
  double y = hloc_from_bits_f64((((hloc_bits_f64(t) >> 32) * 0x55555556ull >> 32) + 715094163u) << 32);
  double cube = y * y * y;
  y = y * ((cube + 2.0 * t) / (2.0 * cube + t));
  cube = y * y * y;
  y = y * ((cube + 2.0 * t) / (2.0 * cube + t));
  double square = y * y, cubed = square * y;
  double low = hloc_fma_f64(square, y, -cubed) + hloc_fma_f64(y, y, -square) * y;
  y = y + ((t - cubed) - low) / (3.0 * square);
  y = y * (tiny ? 0x1p-18 : huge ? 0x1p18 : 1.0);
  return ((a == 0.0) | !(a < HLOC_INF_F64)) ? x : hloc_copysign_f64(y, x);
}
#endif

/* Angles up to 2^30: their quarter turns are subtracted in three parts, the first product being exact. */
HLOC_FN int hloc_sin_is_near_f64(double x) { return HLOC_FMA & (__builtin_fabs(x) < 0x1p30); }
HLOC_FN int hloc_cos_is_near_f64(double x) { return hloc_sin_is_near_f64(x); }
HLOC_FN int hloc_tan_is_near_f64(double x) { return hloc_sin_is_near_f64(x); }
HLOC_FN double hloc_near_quarter_f64(double x, hloc_u64* quarter) {
  double shifted = hloc_fma_f64(x, 0x1.45f306dc9c883p-1, 6755399441055744.0); /* 1.5 * 2^52 */
  double turns = shifted - 6755399441055744.0;
  *quarter = hloc_bits_f64(shifted);
  double r = hloc_fma_f64(turns, -0x1.1a62633145c07p-54, hloc_fma_f64(turns, -0x1.921fb54442d18p+0, x));
  return hloc_fma_f64(turns, 0x1.f1976b7ed8fbcp-110, r);
}
HLOC_FN double hloc_sin_series_f64(double r) {
  double z = r * r, p = 1.58968865036288729e-10;
  p = hloc_fma_f64(p, z, -2.50507598897600549e-08);
  p = hloc_fma_f64(p, z, 2.75573137050671100e-06);
  p = hloc_fma_f64(p, z, -1.98412698298533740e-04);
  p = hloc_fma_f64(p, z, 8.33333333332248599e-03);
  p = hloc_fma_f64(p, z, -1.66666666666666324e-01);
  return hloc_fma_f64(p * z, r, r);
}
HLOC_FN double hloc_cos_tail_f64(double z) { /* cos r - 1 + r^2 / 2, z = r^2 */
  double p = -1.13599173734146228e-11;
  p = hloc_fma_f64(p, z, 2.08757289949742548e-09);
  p = hloc_fma_f64(p, z, -2.75573143992695289e-07);
  p = hloc_fma_f64(p, z, 2.48015872896669120e-05);
  p = hloc_fma_f64(p, z, -1.38888888888744695e-03);
  return hloc_fma_f64(p, z, 4.16666666666666019e-02) * z * z;
}
HLOC_FN double hloc_cos_series_f64(double r) {
  double z = r * r, half = 0.5 * z, most = 1.0 - half;
  return most + (hloc_cos_tail_f64(z) + ((1.0 - most) - half));
}
HLOC_FN double hloc_signed_by_quarter_f64(double y, hloc_u64 quarter) { /* negative in quarters 3 and 4 */
  return hloc_from_bits_f64(hloc_bits_f64(y) ^ ((quarter & 2u) << 62));
}
HLOC_FN double hloc_sin_near_f64(double x) {
  hloc_u64 quarter;
  double r = hloc_near_quarter_f64(x, &quarter), sine = hloc_sin_series_f64(r), cosine = hloc_cos_series_f64(r);
  return x == 0.0 ? x : hloc_signed_by_quarter_f64((quarter & 1u) ? cosine : sine, quarter); /* keeps -0 */
}
HLOC_FN double hloc_cos_near_f64(double x) {
  hloc_u64 quarter;
  double r = hloc_near_quarter_f64(x, &quarter), sine = hloc_sin_series_f64(r), cosine = hloc_cos_series_f64(r);
  return hloc_signed_by_quarter_f64((quarter & 1u) ? sine : cosine, quarter + 1u);
}
HLOC_FN double hloc_tan_near_f64(double x) {
  hloc_u64 quarter;
  double r = hloc_near_quarter_f64(x, &quarter), sine = hloc_sin_series_f64(r), cosine = hloc_cos_series_f64(r);
  double y = ((quarter & 1u) ? -cosine : sine) / ((quarter & 1u) ? sine : cosine);
  return x == 0.0 ? x : y;
}
#endif

HLOC_FN double hloc_logistic_f64(double x) {
  double e = hloc_exp_f64(-HLOC_MATH_F64(fabs)(x));
  return (x < 0.0 ? e : 1.0) / (1.0 + e);
}

#endif
