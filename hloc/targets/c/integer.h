/* integer.h: HLO's elementwise operations on pred and integers.
 *
 * In: base.h. Out, for T in s8 s16 s32 s64 u8 u16 u32 u64: hloc_<op>_<T> for
 *   abs negate sign not popcnt count_leading_zeros                                   (one operand)
 *   add subtract multiply divide remainder power maximum minimum and or xor
 *   shift_left shift_right_arithmetic shift_right_logical                            (two operands)
 *   clamp(low, x, high)  select(pred, on_true, on_false)  compare_{eq,ne,lt,le,gt,ge} (give hloc_pred)
 * and the same for pred where HLO has it (add and maximum are "or", multiply and minimum are "and").
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
    T quotient = (T)(a / divisor);                                                                                    \
    return b == 0 ? (T)-1 : b == -1 ? hloc_negate_##S(a) : quotient;                                                  \
  }                                                                                                                   \
  HLOC_FN T hloc_remainder_##S(T a, T b) {                                                                            \
    T divisor = ((b == 0) | (b == -1)) ? (T)1 : b;                                                                    \
    T rest = (T)(a % divisor); /* 0 for the replaced divisors */                                                      \
    return b == 0 ? a : rest;                                                                                         \
  }

#define HLOC_DEFINE_UNSIGNED(S, T, SIGNED, BITS)                                                                      \
  HLOC_FN int hloc_is_negative_##S(T x) { (void)x; return 0; }                                                        \
  HLOC_DEFINE_INTEGER(S, T, T, BITS)                                                                                  \
  HLOC_FN T hloc_abs_##S(T x) { return x; }                                                                           \
  HLOC_FN T hloc_sign_##S(T x) { return (T)(x != 0); }                                                                \
  HLOC_FN T hloc_shift_right_arithmetic_##S(T x, T by) { return (T)((SIGNED)x >> (by < BITS ? by : BITS - 1)); }      \
  HLOC_FN T hloc_divide_##S(T a, T b) { return b == 0 ? (T)~(T)0 : (T)(a / (b == 0 ? (T)1 : b)); }                    \
  HLOC_FN T hloc_remainder_##S(T a, T b) { return b == 0 ? a : (T)(a % (b == 0 ? (T)1 : b)); }

HLOC_DEFINE_SIGNED(s8, hloc_s8, hloc_u8, 8u)
HLOC_DEFINE_SIGNED(s16, hloc_s16, hloc_u16, 16u)
HLOC_DEFINE_SIGNED(s32, hloc_s32, hloc_u32, 32u)
HLOC_DEFINE_SIGNED(s64, hloc_s64, hloc_u64, 64u)
HLOC_DEFINE_UNSIGNED(u8, hloc_u8, hloc_s8, 8u)
HLOC_DEFINE_UNSIGNED(u16, hloc_u16, hloc_s16, 16u)
HLOC_DEFINE_UNSIGNED(u32, hloc_u32, hloc_s32, 32u)
HLOC_DEFINE_UNSIGNED(u64, hloc_u64, hloc_s64, 64u)

#if HLOC_CUDA
HLOC_FN int hloc_popcount_bits(hloc_u64 bits) { return __popcll((long long)bits); }
HLOC_FN int hloc_leading_zeros_bits(hloc_u64 bits) { return __clzll((long long)bits); }
#else
HLOC_FN int hloc_popcount_bits(hloc_u64 bits) { return __builtin_popcountll(bits); }
HLOC_FN int hloc_leading_zeros_bits(hloc_u64 bits) { return bits ? __builtin_clzll(bits) : 64; }
#endif
#define HLOC_DEFINE_BIT_COUNTS(S, T, U, BITS)                                                                         \
  HLOC_FN T hloc_popcnt_##S(T x) { return (T)hloc_popcount_bits((U)x); }                                              \
  HLOC_FN T hloc_count_leading_zeros_##S(T x) { return (T)(hloc_leading_zeros_bits((U)x) - (64 - BITS)); }
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
