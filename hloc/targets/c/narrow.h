/* narrow.h: conversions between storage types and the computation type they are computed in.
 *
 * In: base.h. Out, for each narrow float type t (f16 bf16 f8e3m4 f8e4m3 f8e4m3fn f8e4m3fnuz f8e4m3b11fnuz f8e5m2
 * f8e5m2fnuz f8e8m0fnu f6e2m3fn f6e3m2fn f4e2m1fn):  float hloc_<t>_to_f32(hloc_<t>),  hloc_<t> hloc_f32_to_<t>(float)
 * rounding to nearest even; NaN, infinity and overflow as each format defines them (the tests compare every pattern
 * with ml_dtypes). For s1 s2 s4 u1 u2 u4: hloc_<t>_to_s8/u8 and hloc_s8/u8_to_<t> (keeps the low bits).
 * hloc_round_<t>_f32(x) is hloc_<t>_to_f32(hloc_f32_to_<t>(x)), for f16 and bf16 at a third of its price.
 * hloc_f32_to_bf16_held(x), hloc_round_bf16_f32_held(x): the same where a NaN has zeros in its low 16 bits, at two
 * thirds.
 * f8e8m0fnu, which is computed in f64, has hloc_f8e8m0fnu_to_f64 and hloc_f64_to_f8e8m0fnu, too.
 * hloc_f64_to_f32_odd rounds to odd, so that hloc_f32_to_<t>(hloc_f64_to_f32_odd(x)) rounds a double only once.
 *
 * Example: hloc_f32_to_f8e4m3fn(448.0f) == 0x7e; hloc_f8e4m3fn_to_f32(0x7e) == 448.0f
 * All of it is free of branches: loops over it vectorize.
 */
#ifndef HLOC_NARROW_H
#define HLOC_NARROW_H
#include "base.h"

HLOC_FN float hloc_bf16_to_f32(hloc_bf16 x) { return hloc_from_bits_f32((hloc_u32)x << 16); }
HLOC_FN hloc_bf16 hloc_exact_f32_to_bf16(float x) { return (hloc_bf16)(hloc_bits_f32(x) >> 16); } /* in range */
#if HLOC_CUDA && !defined(HLOC_EMULATED) /* NaNs are 0x7fff; pairs are rounded four times as fast as single numbers */
HLOC_FN hloc_u32 hloc_rounded_pair_bf16(float low, float high) {
  hloc_u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
HLOC_FN hloc_u32 hloc_rounded_pair_f16(float low, float high) {
  hloc_u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
HLOC_FN hloc_bf16 hloc_f32_to_bf16(float x) { return (hloc_bf16)hloc_rounded_pair_bf16(x, 0.0f); }
HLOC_FN hloc_f16 hloc_f32_to_f16(float x) { return (hloc_f16)hloc_rounded_pair_f16(x, 0.0f); }
HLOC_FN float hloc_f16_to_f32(hloc_f16 x) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x));
  return wide;
}
HLOC_FN float hloc_round_bf16_f32(float x) { return hloc_from_bits_f32(hloc_rounded_pair_bf16(0.0f, x)); }
HLOC_FN float hloc_round_f16_f32(float x) { return hloc_f16_to_f32(hloc_f32_to_f16(x)); }
#else
HLOC_FN hloc_u32 hloc_raised_bf16(hloc_u32 bits) { return bits + 0x7fffu + ((bits >> 16) & 1u); }
HLOC_FN hloc_bf16 hloc_f32_to_bf16_held(float x) { return (hloc_bf16)(hloc_raised_bf16(hloc_bits_f32(x)) >> 16); }
HLOC_FN float hloc_round_bf16_f32_held(float x) {
  return hloc_from_bits_f32(hloc_raised_bf16(hloc_bits_f32(x)) & 0xffff0000u);
}
HLOC_FN hloc_bf16 hloc_f32_to_bf16(float x) {
  hloc_u32 bits = hloc_bits_f32(x);
  hloc_u32 rounded = hloc_raised_bf16(bits) >> 16;
  hloc_u32 quiet_nan = ((bits >> 16) & 0x8000u) | 0x7fc0u;
  return (hloc_bf16)(x != x ? quiet_nan : rounded);
}
HLOC_FN float hloc_round_bf16_f32(float x) {
  hloc_u32 bits = hloc_bits_f32(x);
  hloc_u32 rounded = hloc_raised_bf16(bits);
  return hloc_from_bits_f32((x == x ? rounded : bits | 0x400000u) & 0xffff0000u);
}
#endif

/* One binary format: sign bit above EXPONENT_BITS and MANTISSA_BITS. Codes are without the sign bit.
 * MAX_CODE: largest finite value; OVERFLOW_CODE: what larger values become, the next code
 * or MAX_CODE itself. INF_CODE: 0 where there is none. */
/* As if all codes were normal numbers; those that are none lie below 2^(1-BIAS), where twice the number less that
 * power is right, and smaller. No masks of integers, which vectors of bytes would be widened for; no subnormal f32. */
#define HLOC_NARROW_TO_F32(T, EXPONENT_BITS, MANTISSA_BITS, BIAS, MAX_CODE, INF_CODE)                                 \
  HLOC_FN float hloc_##T##_of_bits(hloc_u32 x) {                                                                      \
    const hloc_u32 width = EXPONENT_BITS + MANTISSA_BITS, drop = 23 - MANTISSA_BITS, rebias = (127u - BIAS) << 23;    \
    const float smallest_normal = hloc_from_bits_f32(rebias + (1u << 23));                                            \
    const float largest = hloc_from_bits_f32((MAX_CODE << drop) + rebias);                                            \
    const float infinity = hloc_from_bits_f32((INF_CODE << drop) + rebias);                                           \
    float normal = hloc_from_bits_f32(((x & ((1u << width) - 1u)) << drop) + rebias);                                 \
    float subnormal = 2.0f * normal - smallest_normal;                                                                \
    float y = subnormal < normal ? subnormal : normal;                                                                \
    y = y > largest ? (y == infinity ? HLOC_INF_F32 : HLOC_NAN_F32) : y;                                              \
    return hloc_from_bits_f32(hloc_bits_f32(y) | (((x >> width) & 1u) << 31));                                        \
  }
/* Of numbers and bits as 32-bit integers; there and back again no bytes come between, of which a vector has four times
 * as many. */
#define HLOC_NARROW_CONVERSIONS(T)                                                                                    \
  HLOC_FN float hloc_##T##_to_f32(hloc_##T x) { return hloc_##T##_of_bits(x); }                                       \
  HLOC_FN hloc_##T hloc_f32_to_##T(float x) { return (hloc_##T)hloc_bits_of_##T(x); }
#define HLOC_NARROW_ROUNDED(T)                                                                                        \
  HLOC_NARROW_CONVERSIONS(T)                                                                                          \
  HLOC_FN float hloc_round_##T##_f32(float x) { return hloc_##T##_of_bits(hloc_bits_of_##T(x)); }
#define HLOC_NARROW_CODE(MANTISSA_BITS, BIAS, OVERFLOW_CODE, NAN_CODE)                                                \
  const hloc_u32 drop = 23 - MANTISSA_BITS;                                                                           \
  hloc_u32 bits = hloc_bits_f32(x), magnitude = bits & 0x7fffffffu, sign = bits >> 31;                                \
  hloc_u32 rounded = magnitude + ((1u << (drop - 1)) - 1u) + ((magnitude >> drop) & 1u);                              \
  hloc_u32 normal = (rounded >> drop) - ((127u - BIAS) << MANTISSA_BITS);                                             \
  /* adding a power of two whose last place is the format's smallest step rounds subnormals */                        \
  const hloc_u32 align = (127u + 1u - BIAS - MANTISSA_BITS + 23u) << 23;                                              \
  hloc_u32 subnormal = hloc_bits_f32(hloc_from_bits_f32(magnitude) + hloc_from_bits_f32(align)) - align;              \
  hloc_u32 code = magnitude < ((127u - BIAS + 1u) << 23) ? subnormal : normal;                                        \
  code = code > OVERFLOW_CODE ? OVERFLOW_CODE : code;                                                                 \
  /* NaN has overflowed; its code adds bits to that one's. A mask, as gcc would make a branch of a selection */       \
  code |= (0u - (hloc_u32)(magnitude > 0x7f800000u)) & NAN_CODE;
#define HLOC_NARROW_SIGNED(T, EXPONENT_BITS, MANTISSA_BITS, BIAS, MAX_CODE, OVERFLOW_CODE, NAN_CODE, INF_CODE)        \
  HLOC_NARROW_TO_F32(T, EXPONENT_BITS, MANTISSA_BITS, BIAS, MAX_CODE, INF_CODE)                                       \
  HLOC_FN hloc_u32 hloc_bits_of_##T(float x) {                                                                        \
    HLOC_NARROW_CODE(MANTISSA_BITS, BIAS, OVERFLOW_CODE, NAN_CODE)                                                    \
    return code | (sign << (EXPONENT_BITS + MANTISSA_BITS));                                                          \
  }
/* "fnuz": no infinity, no negative zero; the code of -0 is the only NaN, which overflow also becomes */
#define HLOC_NARROW_FNUZ(T, EXPONENT_BITS, MANTISSA_BITS, BIAS)                                                       \
  HLOC_NARROW_TO_F32(T##_finite, EXPONENT_BITS, MANTISSA_BITS, BIAS, 0x7fu, 0u)                                       \
  HLOC_FN float hloc_##T##_of_bits(hloc_u32 x) { return x == 0x80u ? HLOC_NAN_F32 : hloc_##T##_finite_of_bits(x); }   \
  HLOC_FN hloc_u32 hloc_bits_of_##T(float x) {                                                                        \
    HLOC_NARROW_CODE(MANTISSA_BITS, BIAS, 0x80u, 0x80u)                                                               \
    return code == 0u || code == 0x80u ? code : code | (sign << 7);                                                   \
  }                                                                                                                   \
  HLOC_NARROW_ROUNDED(T)

#if !HLOC_CUDA || defined(HLOC_EMULATED)
HLOC_NARROW_SIGNED(f16, 5, 10, 15, 0x7bffu, 0x7c00u, 0x7e00u, 0x7c00u)
HLOC_NARROW_CONVERSIONS(f16)
#endif
HLOC_NARROW_SIGNED(f8e3m4, 3, 4, 3, 0x6fu, 0x70u, 0x78u, 0x70u)
HLOC_NARROW_ROUNDED(f8e3m4)
HLOC_NARROW_SIGNED(f8e4m3, 4, 3, 7, 0x77u, 0x78u, 0x7cu, 0x78u)
HLOC_NARROW_ROUNDED(f8e4m3)
HLOC_NARROW_SIGNED(f8e4m3fn, 4, 3, 7, 0x7eu, 0x7fu, 0x7fu, 0u)
HLOC_NARROW_ROUNDED(f8e4m3fn)
HLOC_NARROW_SIGNED(f8e5m2, 5, 2, 15, 0x7bu, 0x7cu, 0x7eu, 0x7cu)
HLOC_NARROW_ROUNDED(f8e5m2)
HLOC_NARROW_FNUZ(f8e4m3fnuz, 4, 3, 8)
HLOC_NARROW_FNUZ(f8e4m3b11fnuz, 4, 3, 11)
HLOC_NARROW_FNUZ(f8e5m2fnuz, 5, 2, 16)

#if !HLOC_CUDA || defined(HLOC_EMULATED)
/* Adding 1.5 * 2^13 times x's power of two, and taking it away again, leaves eleven bits of x, fewer where it is
 * subnormal; the two products overflow where f16 does. No narrow integers: half the vector instructions. */
HLOC_FN float hloc_round_f16_f32(float x) {
  hloc_u32 bits = hloc_bits_f32(x), power = bits & 0x7f800000u;
  power = power < 0x38800000u ? 0x38800000u : power; /* from 2^-14, the smallest normal number */
  power = power > 0x47800000u ? 0x47800000u : power; /* to 2^16, infinity */
  float magic = hloc_from_bits_f32(power + (13u << 23) + 0x400000u);
  float rounded = ((x + magic) - magic) * 5.192296858534828e33f * 1.925929944387236e-34f; /* 2^112, 2^-112 */
  return hloc_from_bits_f32(hloc_bits_f32(rounded) | (bits & 0x80000000u));
}
#endif

/* These have neither infinity nor NaN: overflow saturates, NaN becomes a zero of the opposite sign */
#define HLOC_NARROW_FINITE(T, EXPONENT_BITS, MANTISSA_BITS, BIAS, MAX_CODE)                                           \
  HLOC_NARROW_TO_F32(T, EXPONENT_BITS, MANTISSA_BITS, BIAS, MAX_CODE, 0u)                                             \
  HLOC_FN hloc_u32 hloc_bits_of_##T(float x) {                                                                        \
    HLOC_NARROW_CODE(MANTISSA_BITS, BIAS, MAX_CODE, 0u)                                                               \
    hloc_u32 is_nan = magnitude > 0x7f800000u;                                                                        \
    return (code & (is_nan - 1u)) | ((sign ^ is_nan) << (EXPONENT_BITS + MANTISSA_BITS));                             \
  }                                                                                                                   \
  HLOC_NARROW_ROUNDED(T)
HLOC_NARROW_FINITE(f6e2m3fn, 2, 3, 1u, 31u)
HLOC_NARROW_FINITE(f6e3m2fn, 3, 2, 3u, 31u)
HLOC_NARROW_FINITE(f4e2m1fn, 2, 1, 1u, 7u)

/* f8e8m0fnu is a bare exponent: 2^(code - 127), 255 is NaN; there is no sign and no zero */
HLOC_FN float hloc_f8e8m0fnu_of_bits(hloc_u32 x) {
  hloc_u32 bits = x == 0u ? 0x00400000u : x << 23;
  return hloc_from_bits_f32(x == 255u ? 0x7fc00000u : bits);
}
HLOC_FN hloc_u32 hloc_bits_of_f8e8m0fnu(float x) {
  hloc_u32 bits = hloc_bits_f32(x);
  hloc_u32 code = (bits + 0x400000u - (bits == 0x400000u)) >> 23; /* ties go up, but 2^-127 has a code */
  /* zero, every negative number (its sign bit makes it large), overflow and NaN */
  return bits == 0u || bits >= 0x80000000u || code > 254u ? 255u : code;
}
HLOC_NARROW_ROUNDED(f8e8m0fnu)
/* It is computed in f64: its smallest number is subnormal in f32, and zero to arithmetic. */
HLOC_FN double hloc_f8e8m0fnu_to_f64(hloc_f8e8m0fnu x) {
  return x == 255u ? HLOC_NAN_F64 : hloc_from_bits_f64(((unsigned long long)x + 896u) << 52);
}
HLOC_FN hloc_f8e8m0fnu hloc_f64_to_f8e8m0fnu(double x) {
  unsigned long long code = ((hloc_bits_f64(x) + (1ull << 51)) >> 52) - 896u;
  code = x < hloc_from_bits_f64(897ull << 52) ? x > hloc_from_bits_f64(896ull << 52) : code; /* 2^-126, 2^-127 */
  return (hloc_f8e8m0fnu)(x > 0.0 && code < 255u ? code : 255u);
}

/* Integers of fewer than eight bits. */
#define HLOC_NARROW_SIGNED_INT(T, BITS)                                                                               \
  HLOC_FN hloc_s8 hloc_##T##_to_s8(hloc_##T x) {                                                                      \
    return (hloc_s8)((int)((unsigned)x << (32 - BITS)) >> (32 - BITS));                                               \
  }                                                                                                                   \
  HLOC_FN hloc_##T hloc_s8_to_##T(hloc_s8 x) { return (hloc_##T)hloc_##T##_to_s8(x); }
#define HLOC_NARROW_UNSIGNED_INT(T, BITS)                                                                             \
  HLOC_FN hloc_u8 hloc_##T##_to_u8(hloc_##T x) { return (hloc_u8)(x & ((1u << BITS) - 1u)); }                         \
  HLOC_FN hloc_##T hloc_u8_to_##T(hloc_u8 x) { return (hloc_##T)hloc_##T##_to_u8(x); }
HLOC_NARROW_SIGNED_INT(s1, 1)
HLOC_NARROW_SIGNED_INT(s2, 2)
HLOC_NARROW_SIGNED_INT(s4, 4)
HLOC_NARROW_UNSIGNED_INT(u1, 1)
HLOC_NARROW_UNSIGNED_INT(u2, 2)
HLOC_NARROW_UNSIGNED_INT(u4, 4)

/* Truncates toward zero, then sets the last bit when anything was lost: a later rounding sees on which side x lay.
 * Conditions are of doubles alone: compilers find no vectors for those that are joined with others of integers. */
HLOC_FN float hloc_f64_to_f32_odd(double x) {
  const float nearest = (float)x;
  const unsigned long long size = 0x7fffffffffffffffull;
  const double found = hloc_from_bits_f64(hloc_bits_f64((double)nearest) & size);
  const double wanted = hloc_from_bits_f64(hloc_bits_f64(x) & size);
  const hloc_u32 past = (found > wanted) & (found < HLOC_INF_F64) ? 1u : 0u; /* rounded away from zero */
  const hloc_u32 lost = (found != wanted) & (found < HLOC_INF_F64) ? 1u : 0u;
  return hloc_from_bits_f32((hloc_bits_f32(nearest) - past) | lost);
}

#endif
