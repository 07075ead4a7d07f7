/* float32.h: HLO's elementary functions on f32.
 *
 * In: base.h. Out: hloc_<op>_f32 for exp expm1 log log1p logistic tanh sin cos tan erf power sqrt rsqrt cbrt
 *   floor ceil round_nearest_even round_nearest_afz remainder atan2 atan asin acos sinh cosh asinh acosh atanh
 *
 * For CPUs everything is free of branches and of calls, so that loops vectorize (with -fno-math-errno
 * -fno-trapping-math); under CUDA the device's own functions are taken. Errors measured against f64 are below 1.6 units
 * in the last place for exp log log1p expm1 sin cos tan erf power cbrt rsqrt, below 2.4 for the rest. NaN, infinities,
 * signed zeros and subnormal results follow IEEE 754. Polynomials are minimax fits, rounded one coefficient after the
 * other.
 * Example: hloc_exp_f32(-INFINITY) == 0; hloc_log_f32(-1) is NaN; hloc_tanh_f32(-0.0f) is -0.0f
 */
#ifndef HLOC_FLOAT32_H
#define HLOC_FLOAT32_H
#include "base.h"

#define HLOC_WRAP1_F32(op, name) HLOC_FN float hloc_##op##_f32(float x) { return HLOC_MATH_F32(name)(x); }
HLOC_WRAP1_F32(sqrt, sqrt)
HLOC_WRAP1_F32(floor, floor)
HLOC_WRAP1_F32(ceil, ceil)
HLOC_WRAP1_F32(round_nearest_even, rint)
HLOC_FN float hloc_remainder_f32(float a, float b) { return HLOC_MATH_F32(fmod)(a, b); }
/* The same by one division, if the quotient is small: its whole part is exact, or one too large, and the remainder is
 * exact. There is no call, and loops vectorize. */
HLOC_FN int hloc_remainder_is_near_f32(float a, float b) {
  return (HLOC_MATH_F32(fabs)(a / b) < 16777216.0f) & (HLOC_MATH_F32(fabs)(b) > 1e-30f)
      & (HLOC_MATH_F32(fabs)(b) < 0x1p126f); /* compilers multiply by reciprocals */
}
HLOC_FN float hloc_remainder_near_f32(float a, float b) {
  float size = HLOC_MATH_F32(fabs)(a), divisor = HLOC_MATH_F32(fabs)(b), whole = HLOC_MATH_F32(trunc)(size / divisor);
  float rest = HLOC_MATH_F32(fma)(-whole, divisor, size);
  rest = rest < 0 ? rest + divisor : rest;
  return hloc_copysign_f32(whole == 0 ? size : rest, a);
}
/* b: 1, 2, 4 ... Every step is exact. There is no call, and loops vectorize. */
HLOC_FN float hloc_remainder_by_power_f32(float a, float b) {
  float size = HLOC_MATH_F32(fabs)(a);
  return hloc_copysign_f32(size - HLOC_MATH_F32(floor)(size * (1 / b)) * b, a);
}

/* The same of numbers of at most eleven bits, in f64 and without a call: each step takes off the upper 44 bits of the
 * quotient, whose products are exact, and leaves less than 2^-43. One step for quotients below 2^41 (f16), six for any
 * bf16. A quotient may have been rounded up: then the remainder is negative, by less than the divisor. */
#if HLOC_CUDA
HLOC_FN float hloc_remainder_of_few_bits_f32(float a, float b, int steps) { return fmodf(a, b); }
#else
HLOC_FN double hloc_remainder_step_f64(double rest, double divisor) {
  double upper = hloc_from_bits_f64(hloc_bits_f64(rest / divisor) & ~0x1ffull);
  return hloc_fma_f64(-__builtin_trunc(upper), divisor, rest);
}
HLOC_FN float hloc_remainder_of_few_bits_f32(float a, float b, int steps) {
  double divisor = (double)__builtin_fabsf(b), rest = (double)__builtin_fabsf(a);
  if (steps > 1) {
    rest = hloc_remainder_step_f64(hloc_remainder_step_f64(rest, divisor), divisor);
    rest = hloc_remainder_step_f64(hloc_remainder_step_f64(rest, divisor), divisor);
    rest = hloc_remainder_step_f64(rest, divisor);
  }
  rest = hloc_remainder_step_f64(rest, divisor);
  rest = rest < 0.0 ? rest + divisor : rest;
  float y = __builtin_fabsf(b) == HLOC_INF_F32 ? a + (a - a) : (float)rest;
  return y != y ? y : hloc_copysign_f32(y, a);
}
#endif

#if HLOC_CUDA
HLOC_WRAP1_F32(rsqrt, rsqrt)
HLOC_WRAP1_F32(cbrt, cbrt)
HLOC_WRAP1_F32(round_nearest_afz, round)
HLOC_WRAP1_F32(exp, exp)
HLOC_WRAP1_F32(expm1, expm1)
HLOC_WRAP1_F32(log, log)
HLOC_WRAP1_F32(log1p, log1p)
HLOC_WRAP1_F32(tanh, tanh)
HLOC_WRAP1_F32(sin, sin)
HLOC_WRAP1_F32(cos, cos)
HLOC_WRAP1_F32(tan, tan)
HLOC_WRAP1_F32(erf, erf)
HLOC_WRAP1_F32(atan, atan)
HLOC_WRAP1_F32(asin, asin)
HLOC_WRAP1_F32(acos, acos)
HLOC_WRAP1_F32(sinh, sinh)
HLOC_WRAP1_F32(cosh, cosh)
HLOC_WRAP1_F32(asinh, asinh)
HLOC_WRAP1_F32(acosh, acosh)
HLOC_WRAP1_F32(atanh, atanh)
HLOC_FN float hloc_power_f32(float a, float b) { return powf(a, b); }
HLOC_FN float hloc_atan2_f32(float y, float x) { return atan2f(y, x); }
HLOC_FN float hloc_logistic_f32(float x) {
  float e = expf(-fabsf(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}
#else

HLOC_FN float hloc_rsqrt_f32(float x) { return 1.0f / __builtin_sqrtf(x); }
HLOC_FN float hloc_round_nearest_afz_f32(float x) {
  float whole = __builtin_truncf(x);
  float rounded = __builtin_fabsf(x - whole) >= 0.5f ? whole + hloc_copysign_f32(1.0f, x) : whole;
  return hloc_copysign_f32(rounded, x);
}

/* (e^r - 1 - r) / r^2 on [-ln2/2, ln2/2] */
HLOC_FN float hloc_exp_tail_f32(float r) {
  float p = 1.393750892e-3f;
  p = hloc_fma_f32(p, r, 8.368979208e-3f);
  p = hloc_fma_f32(p, r, 4.166643694e-2f);
  p = hloc_fma_f32(p, r, 1.666651815e-1f);
  return hloc_fma_f32(p, r, 0.5f);
}
HLOC_FN float hloc_minus_ln2_multiple_f32(float x, float n) { /* x - n ln2, the first product exact */
  return hloc_fma_f32(n, -1.428606820e-6f, hloc_fma_f32(n, -0.693145751953125f, x));
}

/* e^x = 2^n e^r. Adding 1.5 * 2^23 + 254 rounds x / ln2 to the integer n and leaves n + 254 in the low bits of the
 * sum: half of that, twice, are the biased exponents of two factors whose product is 2^n, so that results below
 * 2^-126 are rounded right. The upper clamp is on integers: it keeps NaN and infinity in r. What rounds to zero (the
 * masked places of a softmax) is chosen, not computed: a product that underflows costs a CPU a hundred cycles. */
HLOC_FN float hloc_exp_f32(float x) {
  const float shift = 12582912.0f + 254.0f;
  int is_zero = x < -104.0f;
  float clamped = is_zero ? 0.0f : x;
  hloc_s32 sum = (hloc_s32)hloc_bits_f32(hloc_fma_f32(clamped, 1.44269504088896341f, shift));
  sum = sum > 0x4b400000 + 254 + 129 ? 0x4b400000 + 254 + 129 : sum;
  float n = hloc_from_bits_f32((hloc_u32)sum) - shift;
  float r = hloc_minus_ln2_multiple_f32(clamped, n);
  float p = hloc_fma_f32(hloc_exp_tail_f32(r), r * r, r) + 1.0f;
  hloc_s32 first = sum >> 1, second = sum - first;
  float y = p * hloc_from_bits_f32((hloc_u32)first << 23) * hloc_from_bits_f32((hloc_u32)second << 23);
  return is_zero ? 0.0f : y;
}

/* 2 (2^(n-1) (e^r - 1) + (2^(n-1) - 1/2)): halved, so that n = 128 still has a power of two */
HLOC_FN float hloc_expm1_f32(float x) {
  const float shift = 12582912.0f + 126.0f;
  float clamped = x < -25.0f ? -25.0f : x;
  hloc_s32 sum = (hloc_s32)hloc_bits_f32(hloc_fma_f32(clamped, 1.44269504088896341f, shift));
  sum = sum > 0x4b400000 + 126 + 128 ? 0x4b400000 + 126 + 128 : sum;
  float r = hloc_minus_ln2_multiple_f32(clamped, hloc_from_bits_f32((hloc_u32)sum) - shift);
  float half_power = hloc_from_bits_f32((hloc_u32)sum << 23);
  float p = hloc_fma_f32(hloc_exp_tail_f32(r), r * r, r);
  float y = 2.0f * hloc_fma_f32(half_power, p, half_power - 0.5f);
  y = x == 0.0f ? x : y;
  return x > 89.0f ? HLOC_INF_F32 : y;
}

/* log(1 + f) for f in [sqrt(1/2) - 1, sqrt(2) - 1], plus e ln2 */
HLOC_FN float hloc_log_parts_f32(float f, float e) {
  float p = 6.904889643e-2f;
  p = hloc_fma_f32(p, f, -1.178371534e-1f);
  p = hloc_fma_f32(p, f, 1.187449247e-1f);
  p = hloc_fma_f32(p, f, -1.238555461e-1f);
  p = hloc_fma_f32(p, f, 1.421861798e-1f);
  p = hloc_fma_f32(p, f, -1.666917503e-1f);
  p = hloc_fma_f32(p, f, 2.000222504e-1f);
  p = hloc_fma_f32(p, f, -2.499998808e-1f);
  p = hloc_fma_f32(p, f, 3.333331048e-1f);
  float square = f * f;
  float tail = hloc_fma_f32(p * f, square, e * 1.428606820e-6f);
  tail = hloc_fma_f32(square, -0.5f, tail);
  return hloc_fma_f32(e, 0.693145751953125f, f + tail);
}
HLOC_FN float hloc_log_special_f32(float x, float y) { /* x: the logarithm's argument, y: its value if regular */
  y = x == HLOC_INF_F32 ? x : y;
  y = x == 0.0f ? -HLOC_INF_F32 : y;
  return x < 0.0f ? HLOC_NAN_F32 : x != x ? x : y;
}
HLOC_FN float hloc_log_f32(float x) {
  hloc_u32 subnormal = x < 1.17549435e-38f;
  hloc_u32 above = hloc_bits_f32(subnormal ? x * 8388608.0f : x) - 0x3f3504f3u; /* from sqrt(1/2) on */
  float e = (float)((hloc_s32)above >> 23) - (subnormal ? 23.0f : 0.0f);
  float f = hloc_from_bits_f32((above & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
  return hloc_log_special_f32(x, hloc_log_parts_f32(f, e));
}
HLOC_FN float hloc_log1p_f32(float x) {
  float u = 1.0f + x;
  float lost = x < 1.0f ? x - (u - 1.0f) : 1.0f - (u - x);
  hloc_s32 e = (hloc_s32)(hloc_bits_f32(u) - 0x3f3504f3u) >> 23;
  float scale = hloc_from_bits_f32((hloc_u32)(127 - (e > 126 ? 126 : e)) << 23); /* 2^-e; nothing is lost above 2^24 */
  float m = hloc_from_bits_f32(hloc_bits_f32(u) - ((hloc_u32)e << 23));
  float y = hloc_log_parts_f32((m - 1.0f) + lost * scale, (float)e);
  y = __builtin_fabsf(x) < 1e-30f ? x : y; /* also -0 */
  return hloc_log_special_f32(u, y); /* always: gcc does not vectorize log1p(exp(x)) if this is conditional */
}

HLOC_FN float hloc_logistic_f32(float x) { /* never overflows: results near zero keep their digits */
  float e = hloc_exp_f32(-__builtin_fabsf(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}
/* Below 0.6: x + x^3 S(x^2). Above: 1 - 2 / (e^(2|x|) + 1), which is 1 from 9.02 on: e^(2|x|) = 2^n e^r can neither
 * overflow nor is it near enough to 1 for the rounding of ln2 to matter; n + 127 is left in the low bits of the sum. */
HLOC_FN float hloc_tanh_f32(float x) {
  const float shift = 12582912.0f + 127.0f;
  float a = __builtin_fabsf(x), z = a * a, c = a > 9.02f ? 9.02f : a;
  float s = -6.269119714e-3f;
  s = hloc_fma_f32(s, z, 2.111095904e-2f);
  s = hloc_fma_f32(s, z, -5.387394885e-2f);
  s = hloc_fma_f32(s, z, 1.333291537e-1f);
  s = hloc_fma_f32(s, z, -3.333333033e-1f);
  float sum = hloc_fma_f32(c, 2.885390082f, shift);
  float r = 2.0f * hloc_fma_f32(sum - shift, -0.3465735903f, c);
  float power = hloc_from_bits_f32(hloc_bits_f32(sum) << 23);
  float p = hloc_fma_f32(hloc_exp_tail_f32(r), r * r, r);
  float far = 1.0f - 2.0f / hloc_fma_f32(power, p, power + 1.0f);
  return hloc_copysign_f32(a < 0.6f ? hloc_fma_f32(s * z, a, a) : far, x);
}
HLOC_FN float hloc_sinh_f32(float x) {
  float a = __builtin_fabsf(x);
  float m = hloc_expm1_f32(a), half = hloc_exp_f32(0.5f * a);
  float y = a > 88.0f ? 0.5f * half * half : 0.5f * (m + m / (m + 1.0f));
  return hloc_copysign_f32(y, x);
}
HLOC_FN float hloc_cosh_f32(float x) {
  float a = __builtin_fabsf(x);
  float e = hloc_exp_f32(a), half = hloc_exp_f32(0.5f * a);
  return a > 88.0f ? 0.5f * half * half : 0.5f * (e + 1.0f / e);
}

/* The angle as a fraction of a turn within 1/8 of a quarter turn's multiple; *quarter gets that multiple's low bits.
 * frac(x / 2pi) = frac(N frac(2^s / 2pi)) for x = 2^s N with whole N: three scales cover every float, and 1/2pi comes
 * in chunks of 29 bits whose products with N's 24 bits are exact in f64. */
HLOC_FN double hloc_turn_fraction_f32(float x, hloc_u32* quarter) {
  float a = __builtin_fabsf(x);
  int large = a >= 0x1p58f, huge = a >= 0x1p93f;
  double n = (double)x * (huge ? 0x1p-70 : large ? 0x1p-35 : 1.0);
  double product = n * (huge ? 0x1.84eafa3p-1 : large ? 0x1.391054ap-1 : 0x1.45f306cp-3);
  double turn = product - __builtin_rint(product);
  product = n * (huge ? 0x1.d4d3770p-30 : large ? 0x1.fc2757cp-31 : 0x1.c9c882ap-31);
  turn += product - __builtin_rint(product);
  turn = hloc_fma_f64(n, huge ? 0x1.b6c52b3278872p-61 : large ? 0x1.1f534ddc0db63p-59 : 0x1.4fe13abe8fa9ap-61, turn);
  double shifted = 4.0 * turn + 6755399441055744.0; /* 1.5 * 2^52: the low bits become the nearest whole number */
  *quarter = (hloc_u32)hloc_bits_f64(shifted);
  return turn - 0.25 * (shifted - 6755399441055744.0);
}
HLOC_FN float hloc_sin_series_f32(float r) {
  float z = r * r, p = -1.951877784e-4f;
  p = hloc_fma_f32(p, z, 8.332191966e-3f);
  p = hloc_fma_f32(p, z, -1.666665524e-1f);
  return hloc_fma_f32(p * z, r, r);
}
HLOC_FN float hloc_cos_series_f32(float r) {
  float z = r * r, p = 2.443276207e-5f;
  p = hloc_fma_f32(p, z, -1.388731180e-3f);
  p = hloc_fma_f32(p, z, 4.166664556e-2f);
  return hloc_fma_f32(p * z, z, hloc_fma_f32(z, -0.5f, 1.0f));
}
HLOC_FN float hloc_sin_quarter_f32(float r, hloc_u32 quarter) { /* sin(r + quarter pi/2) */
  float y = (quarter & 1u) ? hloc_cos_series_f32(r) : hloc_sin_series_f32(r);
  return hloc_from_bits_f32(hloc_bits_f32(y) ^ ((quarter & 2u) << 30));
}
HLOC_FN float hloc_sin_f32(float x) {
  hloc_u32 quarter;
  float r = (float)(hloc_turn_fraction_f32(x, &quarter) * 6.283185307179586);
  float y = hloc_sin_quarter_f32(r, quarter);
  float small = hloc_copysign_f32(hloc_sin_series_f32(x), x); /* keeps -0 and the digits of tiny numbers */
  return __builtin_fabsf(x) < 0.5f ? small : y;
}
HLOC_FN float hloc_cos_f32(float x) {
  hloc_u32 quarter;
  float r = (float)(hloc_turn_fraction_f32(x, &quarter) * 6.283185307179586);
  return hloc_sin_quarter_f32(r, quarter + 1u);
}
HLOC_FN float hloc_tan_f32(float x) {
  hloc_u32 quarter;
  double r = hloc_turn_fraction_f32(x, &quarter) * 6.283185307179586, z = r * r;
  double s = 2.71828112336019241e-06;
  s = hloc_fma_f64(s, z, -1.98393314827934552e-04);
  s = hloc_fma_f64(s, z, 8.33332937471558885e-03);
  s = r + r * z * hloc_fma_f64(s, z, -1.66666666415222403e-01);
  double c = -2.72098589824671090e-07;
  c = hloc_fma_f64(c, z, 2.47995153049301497e-05);
  c = hloc_fma_f64(c, z, -1.38888837350510316e-03);
  c = hloc_fma_f64(z * z, hloc_fma_f64(c, z, 4.16666666226096286e-02), 1.0 - 0.5 * z);
  float y = (float)((quarter & 1u) ? -c / s : s / c);
  return __builtin_fabsf(x) < 1e-4f ? x : y;
}

/* Below 1: x + x P(x^2). Above: 1 - 2^Q(|x|), which reaches 1 at 3.92. */
HLOC_FN float hloc_erf_f32(float x) {
  float a = __builtin_fabsf(x), z = x * x;
  float p = 7.920296775e-5f;
  p = hloc_fma_f32(p, z, -8.030749741e-4f);
  p = hloc_fma_f32(p, z, 5.190733355e-3f);
  p = hloc_fma_f32(p, z, -2.685512602e-2f);
  p = hloc_fma_f32(p, z, 1.128361821e-1f);
  p = hloc_fma_f32(p, z, -3.761262894e-1f);
  p = hloc_fma_f32(p, z, 1.283791661e-1f);
  float near = hloc_fma_f32(p, x, x);
  float c = a > 3.95f ? 3.95f : a;
  float q = 2.679030877e-4f;
  q = hloc_fma_f32(q, c, -4.242686089e-3f);
  q = hloc_fma_f32(q, c, 3.146532178e-2f);
  q = hloc_fma_f32(q, c, -1.486658454e-1f);
  q = hloc_fma_f32(q, c, -9.207485914e-1f);
  q = hloc_fma_f32(q, c, -1.625984907f);
  q = hloc_fma_f32(q, c, -5.079007242e-4f);
  float sum = q + 12582912.0f, r = q - (sum - 12582912.0f);
  float e = 1.339167356e-3f;
  e = hloc_fma_f32(e, r, 9.678402916e-3f);
  e = hloc_fma_f32(e, r, 5.550358072e-2f);
  e = hloc_fma_f32(e, r, 2.402203530e-1f);
  e = hloc_fma_f32(e, r, 6.931471825e-1f);
  e = hloc_fma_f32(e, r, 1.000000119f);
  float power = hloc_from_bits_f32((hloc_bits_f32(sum) << 23) + 0x3f800000u); /* 2^round(q) */
  float far = hloc_copysign_f32(hloc_fma_f32(-power, e, 1.0f), x);
  return a > 1.0f ? far : near;
}

/* |x|^y = 2^(y log2|x|) in f64, whose exponent range also holds results that round to subnormals or overflow. */
HLOC_FN double hloc_log2_wide_f32(float x) { /* x >= 0 */
  hloc_u64 above = hloc_bits_f64((double)x) - 0x3fe6a09e667f3bcdull;
  double e = hloc_from_bits_f64((((above + (1023ull << 52)) >> 52) | 0x4330000000000000ull)) - 4503599627371519.0;
  double f = hloc_from_bits_f64((above & 0x000fffffffffffffull) + 0x3fe6a09e667f3bcdull) - 1.0;
  double s = f / (2.0 + f), z = s * s;
  double p = 3.40249639751532107e-01;
  p = hloc_fma_f64(p, z, 4.11704745797749849e-01);
  p = hloc_fma_f64(p, z, 5.77082876545575441e-01);
  p = hloc_fma_f64(p, z, 9.61796679086981410e-01);
  double y = hloc_fma_f64(p * z, s, hloc_fma_f64(s, 2.8853900817779268, e));
  y = x == 0.0f ? -HLOC_INF_F64 : y;
  return x == HLOC_INF_F32 || x != x ? (double)x : y;
}
HLOC_FN float hloc_exp2_wide_f32(double t) {
  t = t > 200.0 ? 200.0 : t;
  t = t < -200.0 ? -200.0 : t;
  double sum = t + 6755399441055744.0, r = t - (sum - 6755399441055744.0);
  double p = 1.54716678071792644e-04;
  p = hloc_fma_f64(p, r, 1.34004822637371680e-03);
  p = hloc_fma_f64(p, r, 9.61802114558824549e-03);
  p = hloc_fma_f64(p, r, 5.55032710511355054e-02);
  p = hloc_fma_f64(p, r, 2.40226511958281569e-01);
  p = hloc_fma_f64(p, r, 6.93147206729491594e-01);
  double power = hloc_from_bits_f64((hloc_bits_f64(sum) << 52) + 0x3ff0000000000000ull);
  return (float)(t != t ? t : power * hloc_fma_f64(p, r, 1.0));
}
HLOC_FN float hloc_power_f32(float x, float y) {
  float magnitude = hloc_exp2_wide_f32((double)y * hloc_log2_wide_f32(__builtin_fabsf(x)));
  magnitude = __builtin_fabsf(x) == 1.0f ? 1.0f : magnitude;
  float half = 0.5f * y;
  /* not rint: gcc does not fold it for a constant, and does not vectorize the condition that remains */
  int whole = __builtin_floorf(y) == y, odd = whole & (__builtin_floorf(half) != half);
  hloc_u32 sign = odd ? hloc_bits_f32(x) & 0x80000000u : 0u;
  float result = hloc_from_bits_f32(hloc_bits_f32(magnitude) | sign);
  result = ((x < 0.0f) & (x > -HLOC_INF_F32) & !whole) ? HLOC_NAN_F32 : result;
  result = ((x != x) | (y != y)) ? x + y : result;
  return ((x == 1.0f) | (y == 0.0f)) ? 1.0f : result;
}

HLOC_FN float hloc_cbrt_f32(float x) { /* a guess from a third of the exponent, then two cubically converging steps */
  float a = __builtin_fabsf(x);
  double t = (double)a;
  hloc_u32 high = (hloc_u32)(hloc_bits_f64(t) >> 32);
  double y = hloc_from_bits_f64((hloc_u64)(high / 3u + 715094163u) << 32);
  double cube = y * y * y;
  y = y * (cube + 2.0 * t) / (2.0 * cube + t);
  cube = y * y * y;
  y = y * (cube + 2.0 * t) / (2.0 * cube + t);
  return ((a == 0.0f) | !(a < HLOC_INF_F32)) ? x : hloc_copysign_f32((float)y, x);
}

/* atan of a ratio in [0, 1] */
HLOC_FN float hloc_atan_unit_f32(float t) {
  float z = t * t, p = -1.822599908e-3f;
  p = hloc_fma_f32(p, z, 1.104439422e-2f);
  p = hloc_fma_f32(p, z, -3.141950816e-2f);
  p = hloc_fma_f32(p, z, 5.819943175e-2f);
  p = hloc_fma_f32(p, z, -8.417481184e-2f);
  p = hloc_fma_f32(p, z, 1.095692515e-1f);
  p = hloc_fma_f32(p, z, -1.426512599e-1f);
  p = hloc_fma_f32(p, z, 1.999862790e-1f);
  p = hloc_fma_f32(p, z, -3.333330154e-1f);
  return hloc_fma_f32(p * z, t, t);
}
HLOC_FN float hloc_atan2_f32(float y, float x) {
  float a = __builtin_fabsf(y), b = __builtin_fabsf(x);
  float large = a > b ? a : b, small = a > b ? b : a;
  float ratio = large == 0.0f ? 0.0f : small / large;
  float angle = hloc_atan_unit_f32(small == HLOC_INF_F32 ? 1.0f : ratio);
  angle = a > b ? (1.570796371f - angle) - 4.371139000e-8f : angle;
  angle = (hloc_bits_f32(x) >> 31) ? (3.141592741f - angle) - 8.742278000e-8f : angle;
  return ((x != x) | (y != y)) ? x + y : hloc_copysign_f32(angle, y);
}
HLOC_FN float hloc_atan_f32(float x) {
  float a = __builtin_fabsf(x);
  float angle = hloc_atan_unit_f32(a > 1.0f ? 1.0f / a : a);
  return hloc_copysign_f32(a > 1.0f ? (1.570796371f - angle) - 4.371139000e-8f : angle, x);
}
HLOC_FN float hloc_asin_small_f32(float x, float z) { /* z = x^2 <= 1/4 */
  float p = 4.221811891e-2f;
  p = hloc_fma_f32(p, z, 2.414925955e-2f);
  p = hloc_fma_f32(p, z, 4.547642544e-2f);
  p = hloc_fma_f32(p, z, 7.495250553e-2f);
  p = hloc_fma_f32(p, z, 1.666675359e-1f);
  return hloc_fma_f32(p * z, x, x);
}
HLOC_FN float hloc_asin_f32(float x) {
  float a = __builtin_fabsf(x), z = a > 0.5f ? 0.5f - 0.5f * a : x * x;
  float y = hloc_asin_small_f32(a > 0.5f ? __builtin_sqrtf(z) : a, z);
  return hloc_copysign_f32(a > 0.5f ? 1.570796371f - (2.0f * y + 4.371139000e-8f) : y, x);
}
HLOC_FN float hloc_acos_f32(float x) {
  float a = __builtin_fabsf(x), z = a > 0.5f ? 0.5f - 0.5f * a : x * x;
  float y = hloc_asin_small_f32(a > 0.5f ? __builtin_sqrtf(z) : x, z);
  float far = x < 0.0f ? 3.141592741f - (2.0f * y + 8.742278000e-8f) : 2.0f * y;
  return a > 0.5f ? far : 1.570796371f - (y + 4.371139000e-8f);
}
HLOC_FN float hloc_asinh_f32(float x) {
  float a = __builtin_fabsf(x), large = hloc_log_f32(a) + 0.693147182f;
  float y = hloc_log1p_f32(a + a * a / (1.0f + __builtin_sqrtf(hloc_fma_f32(a, a, 1.0f))));
  return hloc_copysign_f32(a > 1e9f ? large : y, x);
}
HLOC_FN float hloc_acosh_f32(float x) {
  float t = x - 1.0f, large = hloc_log_f32(x) + 0.693147182f;
  float y = hloc_log1p_f32(t + __builtin_sqrtf(hloc_fma_f32(t, t, 2.0f * t)));
  y = x < 1.0f ? HLOC_NAN_F32 : y;
  return x > 1e9f ? large : y;
}
HLOC_FN float hloc_atanh_f32(float x) {
  float a = __builtin_fabsf(x);
  return hloc_copysign_f32(0.5f * hloc_log1p_f32(2.0f * a / (1.0f - a)), x);
}
#endif

#endif
