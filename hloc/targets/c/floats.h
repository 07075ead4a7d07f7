/* floats.h: the common functions of f32 and f64: arithmetic, comparison, clamping, rounding to fewer bits, stochastic
 * rounding.
 *
 * In: integer.h, float32.h, float64.h. Out, for T in f32 f64: hloc_<op>_<T> for
 *   abs negate sign is_finite add subtract multiply divide maximum minimum clamp select real imag complex
 *   compare_{eq,ne,lt,le,gt,ge} and compare_{..}_total_<T> in the total order -NaN < -inf < -0 < +0 < inf < NaN
 *   reduce_precision(x, exponent_bits, mantissa_bits)
 *   hloc_stochastic_convert_<T>_<integer>(x, random bits of x's width)
 *
 * maximum, minimum and clamp give NaN when an operand is NaN; of two zeros either may be returned.
 * Example: hloc_reduce_precision_f32(1.2f, 5, 2) == 1.25f; hloc_compare_lt_total_f32(-0.0f, 0.0f) == 1
 */
#ifndef HLOC_FLOATS_H
#define HLOC_FLOATS_H
#include "integer.h"
#if HLOC_READS(f32)
#include "float32.h"
#endif
#if HLOC_READS(f64)
#include "float64.h"
#endif

#define HLOC_DEFINE_EXTREMA(T, R)                                                                                     \
  HLOC_FN R hloc_maximum_##T(R a, R b) { R m = b > a ? b : a; return b != b ? b : m; }                                \
  HLOC_FN R hloc_minimum_##T(R a, R b) { R m = b < a ? b : a; return b != b ? b : m; }
#if HLOC_CUDA && !defined(HLOC_EMULATED) /* one instruction of three */
HLOC_FN float hloc_maximum_f32(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}
HLOC_FN float hloc_minimum_f32(float a, float b) {
  float smaller;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(a), "f"(b));
  return smaller;
}
HLOC_FN float hloc_quotient_f32(float a, float b) { /* 2 units in the last place */
  float quotient;
  asm("div.full.f32 %0, %1, %2;" : "=f"(quotient) : "f"(a), "f"(b));
  return quotient;
}
#else
HLOC_DEFINE_EXTREMA(f32, float)
HLOC_FN float hloc_quotient_f32(float a, float b) { return a / b; }
#endif
HLOC_DEFINE_EXTREMA(f64, double)

/* T: suffix; R: type; U, S: integers of its width; Z: its complex suffix; EXP, MAN: field widths */
#define HLOC_DEFINE_FLOAT(T, R, U, S, Z, EXP, MAN)                                                                    \
  HLOC_DEFINE_ORDERED(T, R)                                                                                           \
  HLOC_FN R hloc_abs_##T(R x) { return hloc_from_bits_##T(hloc_bits_##T(x) & (~(U)0 >> 1)); }                         \
  HLOC_FN R hloc_negate_##T(R x) { return -x; }                                                                       \
  HLOC_FN R hloc_sign_##T(R x) { R y = hloc_copysign_##T(x == 0 ? 0 : 1, x); return x != x ? x : y; }                 \
  HLOC_FN hloc_pred hloc_is_finite_##T(R x) {                                                                         \
    return (hloc_bits_##T(x) & (~(U)0 >> 1)) < (((U)1 << EXP) - 1) << MAN;                                            \
  }                                                                                                                   \
  HLOC_FN R hloc_add_##T(R a, R b) { return a + b; }                                                                  \
  HLOC_FN R hloc_subtract_##T(R a, R b) { return a - b; }                                                             \
  HLOC_FN R hloc_multiply_##T(R a, R b) { return a * b; }                                                             \
  HLOC_FN R hloc_divide_##T(R a, R b) { return a / b; }                                                               \
  HLOC_FN R hloc_clamp_##T(R low, R x, R high) { return hloc_minimum_##T(hloc_maximum_##T(x, low), high); }           \
  HLOC_FN R hloc_real_##T(R x) { return x; }                                                                          \
  HLOC_FN R hloc_imag_##T(R x) { (void)x; return 0; }                                                                 \
  HLOC_FN hloc_##Z hloc_complex_##T##_pair(R re, R im) { return hloc_complex_##T(re, im); }                           \
  HLOC_FN S hloc_total_order_##T(R x) { /* integers compare as the total order does */                                \
    S bits = (S)hloc_bits_##T(x);                                                                                     \
    return bits < 0 ? (S)(bits ^ (S)(~(U)0 >> 1)) : bits;                                                             \
  }                                                                                                                   \
  HLOC_DEFINE_TOTAL(T, R, eq, ==)                                                                                     \
  HLOC_DEFINE_TOTAL(T, R, ne, !=)                                                                                     \
  HLOC_DEFINE_TOTAL(T, R, lt, <)                                                                                      \
  HLOC_DEFINE_TOTAL(T, R, le, <=)                                                                                     \
  HLOC_DEFINE_TOTAL(T, R, gt, >)                                                                                      \
  HLOC_DEFINE_TOTAL(T, R, ge, >=)                                                                                     \
  HLOC_FN R hloc_reduce_precision_##T(R x, int exponent_bits, int mantissa_bits) {                                    \
    U bits = hloc_bits_##T(x), sign = bits & ((U)1 << (EXP + MAN));                                                   \
    if (mantissa_bits < MAN) {                                                                                        \
      int drop = MAN - mantissa_bits;                                                                                 \
      bits += (((U)1 << (drop - 1)) - 1) + ((bits >> drop) & 1);                                                      \
      bits &= ~(((U)1 << drop) - 1);                                                                                  \
    }                                                                                                                 \
    if (exponent_bits < EXP) {                                                                                        \
      U bias = ((U)1 << (EXP - 1)) - 1, narrow_bias = ((U)1 << (exponent_bits - 1)) - 1;                              \
      U exponent = (bits >> MAN) & (((U)1 << EXP) - 1);                                                               \
      bits = exponent > bias + narrow_bias ? sign | ((((U)1 << EXP) - 1) << MAN) : bits;                              \
      bits = exponent <= bias - narrow_bias ? sign : bits;                                                            \
    }                                                                                                                 \
    return x != x ? x : hloc_from_bits_##T(bits);                                                                     \
  }
#define HLOC_DEFINE_TOTAL(T, R, name, op)                                                                             \
  HLOC_FN hloc_pred hloc_compare_##name##_total_##T(R a, R b) {                                                       \
    return hloc_total_order_##T(a) op hloc_total_order_##T(b);                                                        \
  }

#if HLOC_READS(f32)
HLOC_DEFINE_FLOAT(f32, float, hloc_u32, hloc_s32, c64, 8, 23)
#endif
#if HLOC_READS(f64)
HLOC_DEFINE_FLOAT(f64, double, hloc_u64, hloc_s64, c128, 11, 52)
#endif

#if HLOC_READS(stochastic)
/* Rounds |x| up with the probability of its fraction. LOW and HIGH are the integer type's limits. */
#define HLOC_DEFINE_STOCHASTIC(T, R, U, BITS, I, LOW, HIGH)                                                           \
  HLOC_FN hloc_##I hloc_stochastic_convert_##T##_##I(R x, U random) {                                                 \
    R a = hloc_abs_##T(x), limit = x < 0 ? -(R)(LOW) : (R)(HIGH), whole = hloc_floor_##T(a);                          \
    hloc_pred negative = x < 0;                                                                                       \
    if (x != x) return 0;                                                                                             \
    if (a >= limit) return negative ? (hloc_##I)(LOW) : (hloc_##I)(HIGH);                                             \
    U threshold = (U)((a - whole) * ((R)((U)1 << (BITS - 1)) * 2));                                                   \
    hloc_u64 rounded = (hloc_u64)whole + (random < threshold ? 1u : 0u);                                              \
    return negative ? (hloc_##I)(0u - rounded) : (hloc_##I)rounded;                                                   \
  }
#define HLOC_DEFINE_STOCHASTIC_ALL(T, R, U, BITS)                                                                     \
  HLOC_DEFINE_STOCHASTIC(T, R, U, BITS, s8, -128, 127)                                                                \
  HLOC_DEFINE_STOCHASTIC(T, R, U, BITS, s16, -32768, 32767)                                                           \
  HLOC_DEFINE_STOCHASTIC(T, R, U, BITS, s32, -2147483648LL, 2147483647)                                               \
  HLOC_DEFINE_STOCHASTIC(T, R, U, BITS, s64, (-9223372036854775807LL - 1), 9223372036854775807LL)                     \
  HLOC_DEFINE_STOCHASTIC(T, R, U, BITS, u8, 0, 255)                                                                   \
  HLOC_DEFINE_STOCHASTIC(T, R, U, BITS, u16, 0, 65535)                                                                \
  HLOC_DEFINE_STOCHASTIC(T, R, U, BITS, u32, 0, 4294967295U)                                                          \
  HLOC_DEFINE_STOCHASTIC(T, R, U, BITS, u64, 0, 18446744073709551615ULL)
HLOC_DEFINE_STOCHASTIC_ALL(f32, float, hloc_u32, 32)
HLOC_DEFINE_STOCHASTIC_ALL(f64, double, hloc_u64, 64)
#endif

#endif
