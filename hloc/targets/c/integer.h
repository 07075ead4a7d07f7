/* integer.h: HLO's elementwise operations on pred and integers.
 *
 * In: base.h. Out, for T in s8 s16 s32 s64 u8 u16 u32 u64: hloc_<op>_<T> for
 *   abs negate sign not popcnt count_leading_zeros                                   (one operand)
 *   add subtract multiply divide remainder power maximum minimum and or xor
 *   shift_left shift_right_arithmetic shift_right_logical                            (two operands)
 *   clamp(low, x, high)  select(pred, on_true, on_false)  compare_{eq,ne,lt,le,gt,ge} (give hloc_pred)
 * and the same for pred if HLO has it (add and maximum are "or", multiply and minimum are "and").
 *
 * Arithmetic wraps. Division by zero gives all ones, the remainder of it the dividend; the smallest number divided by
 * -1 is itself, remainder 0. A shift by the width or more gives 0 (arithmetic: the sign in every bit). A negative
 * exponent gives 1 for base 1, +-1 for base -1, else 0.
 * Example: hloc_divide_s32(7, 0) == -1; hloc_shift_left_u8(1, 9) == 0
 */
#ifndef HLOC_INTEGER_H
#define HLOC_INTEGER_H
#include "base.h"

/* What pred, integers and floats share. */
#define HLOC_DEFINE_ORDERED(S, T)                                                                                     \
  HLOC_FN T hloc_select_##S(hloc_pred which, T on_true, T on_false) { return which ? on_true : on_false; }            \
  HLOC_FN hloc_pred hloc_compare_eq_##S(T a, T b) { return a == b; }                                                  \
  HLOC_FN hloc_pred hloc_compare_ne_##S(T a, T b) { return a != b; }                                                  \
  HLOC_FN hloc_pred hloc_compare_lt_##S(T a, T b) { return a < b; }                                                   \
  HLOC_FN hloc_pred hloc_compare_le_##S(T a, T b) { return a <= b; }                                                  \
  HLOC_FN hloc_pred hloc_compare_gt_##S(T a, T b) { return a > b; }                                                   \
  HLOC_FN hloc_pred hloc_compare_ge_##S(T a, T b) { return a >= b; }

HLOC_DEFINE_ORDERED(pred, hloc_pred)
HLOC_FN hloc_pred hloc_not_pred(hloc_pred x) { return x ^ 1u; }
HLOC_FN hloc_pred hloc_and_pred(hloc_pred a, hloc_pred b) { return a & b; }
HLOC_FN hloc_pred hloc_or_pred(hloc_pred a, hloc_pred b) { return a | b; }
HLOC_FN hloc_pred hloc_xor_pred(hloc_pred a, hloc_pred b) { return a ^ b; }
HLOC_FN hloc_pred hloc_add_pred(hloc_pred a, hloc_pred b) { return a | b; }
HLOC_FN hloc_pred hloc_multiply_pred(hloc_pred a, hloc_pred b) { return a & b; }
HLOC_FN hloc_pred hloc_maximum_pred(hloc_pred a, hloc_pred b) { return a | b; }
HLOC_FN hloc_pred hloc_minimum_pred(hloc_pred a, hloc_pred b) { return a & b; }
HLOC_FN hloc_pred hloc_clamp_pred(hloc_pred low, hloc_pred x, hloc_pred high) { return (x | low) & high; }

/* a / b, b neither 0 nor -1. CPUs have vectors of quotients for floats only. Floats of more bits give the same ones: a
 * quotient that is not whole is further from the next whole number than it is rounded. Compilers make multiplications
 * of divisions by constants (gcc 12 leaves loops with signed ones by powers of two scalar), and numbers of 64 bits that
 * fit into 32 are divided there, in half the time. */
#if HLOC_CUDA
#define HLOC_DEFINE_QUOTIENT(S, T, BY) HLOC_FN T hloc_quotient_##S(T a, T b) { return (T)(a / b); }
#define HLOC_DEFINE_LONG_QUOTIENT HLOC_DEFINE_QUOTIENT
#else
#define HLOC_IS_HALVING(T, b) (__builtin_constant_p(b) && (T)~(T)0 < 1 && b > 0 && (b & (b - 1)) == 0)
#define HLOC_HALVED(T, a, b) ((T)((a + (a >> (8 * sizeof(T) - 1) & (b - 1))) >> __builtin_ctzll((hloc_u64)b)))
#define HLOC_DEFINE_QUOTIENT(S, T, BY)                                                                                \
  HLOC_FN T hloc_quotient_##S(T a, T b) {                                                                             \
    if (HLOC_IS_HALVING(T, b)) return HLOC_HALVED(T, a, b);                                                           \
    return sizeof(T) == 4 && __builtin_constant_p(b) ? (T)(a / b) : (T)((BY)a / (BY)b);                               \
  }
#define HLOC_DEFINE_LONG_QUOTIENT(S, T, BY)                                                                           \
  HLOC_FN T hloc_quotient_##S(T a, T b) {                                                                             \
    if (HLOC_IS_HALVING(T, b)) return HLOC_HALVED(T, a, b);                                                           \
    return !__builtin_constant_p(b) && (BY)a == a && (BY)b == b ? (T)((BY)a / (BY)b) : (T)(a / b);                    \
  }
#endif
HLOC_DEFINE_QUOTIENT(s8, hloc_s8, hloc_f32)
HLOC_DEFINE_QUOTIENT(u8, hloc_u8, hloc_f32)
HLOC_DEFINE_QUOTIENT(s16, hloc_s16, hloc_f32)
HLOC_DEFINE_QUOTIENT(u16, hloc_u16, hloc_f32)
HLOC_DEFINE_QUOTIENT(s32, hloc_s32, hloc_f64)
HLOC_DEFINE_QUOTIENT(u32, hloc_u32, hloc_f64)
HLOC_DEFINE_LONG_QUOTIENT(s64, hloc_s64, hloc_s32)
HLOC_DEFINE_LONG_QUOTIENT(u64, hloc_u64, hloc_u32)

/* U: the unsigned type of the same width, in which arithmetic wraps without being undefined. */
#define HLOC_DEFINE_INTEGER(S, T, U, BITS)                                                                            \
  HLOC_DEFINE_ORDERED(S, T)                                                                                           \
  HLOC_FN T hloc_not_##S(T x) { return (T)~x; }                                                                       \
  HLOC_FN T hloc_and_##S(T a, T b) { return (T)(a & b); }                                                             \
  HLOC_FN T hloc_or_##S(T a, T b) { return (T)(a | b); }                                                              \
  HLOC_FN T hloc_xor_##S(T a, T b) { return (T)(a ^ b); }                                                             \
  HLOC_FN T hloc_negate_##S(T x) { return (T)(U)(0u - (U)x); }                                                        \
  HLOC_FN T hloc_add_##S(T a, T b) { return (T)(U)((U)a + (U)b); }                                                    \
  HLOC_FN T hloc_subtract_##S(T a, T b) { return (T)(U)((U)a - (U)b); }                                               \
  HLOC_FN T hloc_multiply_##S(T a, T b) { return (T)(U)(1u * (U)a * (U)b); }                                          \
  HLOC_FN T hloc_maximum_##S(T a, T b) { return a > b ? a : b; }                                                      \
  HLOC_FN T hloc_minimum_##S(T a, T b) { return a < b ? a : b; }                                                      \
  HLOC_FN T hloc_clamp_##S(T low, T x, T high) { T t = x < low ? low : x; return t > high ? high : t; }               \
  HLOC_FN T hloc_shift_left_##S(T x, T by) { return (U)by < BITS ? (T)(U)((U)x << ((U)by & (BITS - 1))) : (T)0; }     \
  HLOC_FN T hloc_shift_right_logical_##S(T x, T by) {                                                                 \
    return (U)by < BITS ? (T)(U)((U)x >> ((U)by & (BITS - 1))) : (T)0;                                                \
  }                                                                                                                   \
  HLOC_FN T hloc_power_##S(T base, T exponent) {                                                                      \
    U result = 1, square = (U)base, left = (U)exponent;                                                               \
    T odd = (T)(exponent & 1);                                                                                        \
    for (; left; left = (U)(left >> 1)) {                                                                             \
      if (left & 1u) result = (U)(1u * result * square);                                                              \
      square = (U)(1u * square * square);                                                                             \
      if (hloc_is_negative_##S(exponent)) break;                                                                      \
    }                                                                                                                 \
    T inverse = base == (T)1 ? (T)1 : base == (T)~(T)0 ? (odd ? base : (T)1) : (T)0;                                  \
    return hloc_is_negative_##S(exponent) ? inverse : (T)result;                                                      \
  }

#define HLOC_DEFINE_SIGNED(S, T, U, BITS)                                                                             \
  HLOC_FN int hloc_is_negative_##S(T x) { return x < 0; }                                                             \
  HLOC_DEFINE_INTEGER(S, T, U, BITS)                                                                                  \
  HLOC_FN T hloc_abs_##S(T x) { return x < 0 ? hloc_negate_##S(x) : x; }                                              \
  HLOC_FN T hloc_sign_##S(T x) { return (T)((x > 0) - (x < 0)); }                                                     \
  HLOC_FN T hloc_shift_right_arithmetic_##S(T x, T by) { return (T)(x >> ((U)by < BITS ? (U)by : BITS - 1)); }        \
  HLOC_FN T hloc_divide_##S(T a, T b) {                                                                               \
    T divisor = ((b == 0) | (b == -1)) ? (T)1 : b;                                                                    \
    T quotient = hloc_quotient_##S(a, divisor);                                                                       \
    return b == 0 ? (T)-1 : b == -1 ? hloc_negate_##S(a) : quotient;                                                  \
  }                                                                                                                   \
  HLOC_FN T hloc_remainder_##S(T a, T b) {                                                                            \
    T divisor = ((b == 0) | (b == -1)) ? (T)1 : b;                                                                    \
    T rest = (T)(a - hloc_quotient_##S(a, divisor) * divisor); /* 0 for the replaced divisors */                      \
    return b == 0 ? a : rest;                                                                                         \
  }

#define HLOC_DEFINE_UNSIGNED(S, T, SIGNED, BITS)                                                                      \
  HLOC_FN int hloc_is_negative_##S(T x) { (void)x; return 0; }                                                        \
  HLOC_DEFINE_INTEGER(S, T, T, BITS)                                                                                  \
  HLOC_FN T hloc_abs_##S(T x) { return x; }                                                                           \
  HLOC_FN T hloc_sign_##S(T x) { return (T)(x != 0); }                                                                \
  HLOC_FN T hloc_shift_right_arithmetic_##S(T x, T by) { return (T)((SIGNED)x >> (by < BITS ? by : BITS - 1)); }      \
  HLOC_FN T hloc_divide_##S(T a, T b) {                                                                               \
    return b == 0 ? (T)~(T)0 : hloc_quotient_##S(a, b == 0 ? (T)1 : b);                                               \
  }                                                                                                                   \
  HLOC_FN T hloc_remainder_##S(T a, T b) {                                                                            \
    T divisor = b == 0 ? (T)1 : b;                                                                                    \
    return b == 0 ? a : (T)(a - hloc_quotient_##S(a, divisor) * divisor);                                             \
  }

#if HLOC_READS(s8)
HLOC_DEFINE_SIGNED(s8, hloc_s8, hloc_u8, 8u)
#endif
#if HLOC_READS(s16)
HLOC_DEFINE_SIGNED(s16, hloc_s16, hloc_u16, 16u)
#endif
#if HLOC_READS(s32)
HLOC_DEFINE_SIGNED(s32, hloc_s32, hloc_u32, 32u)
#endif
#if HLOC_READS(s64)
HLOC_DEFINE_SIGNED(s64, hloc_s64, hloc_u64, 64u)
#endif
#if HLOC_READS(u8)
HLOC_DEFINE_UNSIGNED(u8, hloc_u8, hloc_s8, 8u)
#endif
#if HLOC_READS(u16)
HLOC_DEFINE_UNSIGNED(u16, hloc_u16, hloc_s16, 16u)
#endif
#if HLOC_READS(u32)
HLOC_DEFINE_UNSIGNED(u32, hloc_u32, hloc_s32, 32u)
#endif
#if HLOC_READS(u64)
HLOC_DEFINE_UNSIGNED(u64, hloc_u64, hloc_s64, 64u)
#endif

#if HLOC_READS(bits) /* popcnt, count_leading_zeros, products' upper halves */
#if HLOC_CUDA
#define HLOC_DEFINE_BITS(U, BITS)                                                                                     \
  HLOC_FN U hloc_popcount_##BITS(U x) { return (U)__popcll((long long)x); }                                           \
  HLOC_FN U hloc_leading_zeros_##BITS(U x) { return (U)(__clzll((long long)x) - (64 - BITS)); }
#else
/* In operations that vectors of every width have: bits are counted in fields of two, four, eight ...; zeros above the
 * highest bit are what is still zero when it has been copied to all places below. */
#define HLOC_BYTES(U, BYTE) ((U)((U)~(U)0 / 255u * BYTE))
#define HLOC_DEFINE_BITS(U, BITS)                                                                                     \
  HLOC_FN U hloc_popcount_##BITS(U x) {                                                                               \
    x = (U)(x - (x >> 1 & HLOC_BYTES(U, 0x55u)));                                                                     \
    x = (U)((x & HLOC_BYTES(U, 0x33u)) + (x >> 2 & HLOC_BYTES(U, 0x33u)));                                            \
    x = (U)((x + (x >> 4)) & HLOC_BYTES(U, 0x0fu));                                                                   \
    if (BITS > 8) x = (U)(x + (x >> 8 % BITS));                                                                       \
    if (BITS > 16) x = (U)(x + (x >> 16 % BITS));                                                                     \
    if (BITS > 32) x = (U)(x + (x >> 32 % BITS));                                                                     \
    return (U)(x & 0x7fu);                                                                                            \
  }                                                                                                                   \
  HLOC_FN U hloc_leading_zeros_##BITS(U x) {                                                                          \
    if (HLOC_SEARCHED(BITS)) return x ? (U)(BITS > 32 ? __builtin_clzll(x) : __builtin_clz((hloc_u32)x)) : (U)BITS;   \
    x = (U)(x | x >> 1);                                                                                              \
    x = (U)(x | x >> 2);                                                                                              \
    x = (U)(x | x >> 4);                                                                                              \
    if (BITS > 8) x = (U)(x | x >> 8 % BITS);                                                                         \
    if (BITS > 16) x = (U)(x | x >> 16 % BITS);                                                                       \
    if (BITS > 32) x = (U)(x | x >> 32 % BITS);                                                                       \
    return hloc_popcount_##BITS((U)~x);                                                                               \
  }
#ifdef __AVX512CD__
#define HLOC_SEARCHED(BITS) (BITS >= 32) /* vectors have an instruction for it */
#else
#define HLOC_SEARCHED(BITS) 0
#endif
#endif
HLOC_DEFINE_BITS(hloc_u8, 8)
HLOC_DEFINE_BITS(hloc_u16, 16)
HLOC_DEFINE_BITS(hloc_u32, 32)
HLOC_DEFINE_BITS(hloc_u64, 64)
#define HLOC_DEFINE_BIT_COUNTS(S, T, U, BITS)                                                                         \
  HLOC_FN T hloc_popcnt_##S(T x) { return (T)hloc_popcount_##BITS((U)x); }                                            \
  HLOC_FN T hloc_count_leading_zeros_##S(T x) { return (T)hloc_leading_zeros_##BITS((U)x); }
HLOC_DEFINE_BIT_COUNTS(s8, hloc_s8, hloc_u8, 8)
HLOC_DEFINE_BIT_COUNTS(s16, hloc_s16, hloc_u16, 16)
HLOC_DEFINE_BIT_COUNTS(s32, hloc_s32, hloc_u32, 32)
HLOC_DEFINE_BIT_COUNTS(s64, hloc_s64, hloc_u64, 64)
HLOC_DEFINE_BIT_COUNTS(u8, hloc_u8, hloc_u8, 8)
HLOC_DEFINE_BIT_COUNTS(u16, hloc_u16, hloc_u16, 16)
HLOC_DEFINE_BIT_COUNTS(u32, hloc_u32, hloc_u32, 32)
HLOC_DEFINE_BIT_COUNTS(u64, hloc_u64, hloc_u64, 64)

/* The upper half of a product of 128 bits, from four products of 32-bit halves. */
HLOC_FN hloc_u64 hloc_mulhi_u64(hloc_u64 a, hloc_u64 b) {
  hloc_u64 low_a = a & 0xffffffffu, high_a = a >> 32, low_b = b & 0xffffffffu, high_b = b >> 32;
  hloc_u64 first = high_a * low_b + (low_a * low_b >> 32);
  hloc_u64 second = low_a * high_b + (first & 0xffffffffu);
  return high_a * high_b + (first >> 32) + (second >> 32);
}
HLOC_FN hloc_s64 hloc_mulhi_s64(hloc_s64 a, hloc_s64 b) { /* a negative factor counts 2^64 too much in the other */
  hloc_u64 x = (hloc_u64)a, y = (hloc_u64)b;
  return (hloc_s64)(hloc_mulhi_u64(x, y) - (a < 0 ? y : 0) - (b < 0 ? x : 0));
}
#endif

#endif
