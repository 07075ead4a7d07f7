/* convert.h: hloc_convert_<from>_<to> between all computation types
 * (pred s8 s16 s32 s64 u8 u16 u32 u64 f32 f64 c64 c128).
 *
 * In: base.h. Integers wrap; floats to integers saturate and truncate, NaN gives 0; a pred is true for any number but
 * zero; complex to a real type takes the real part. Narrow types are converted by narrow.h before and after.
 * Example: hloc_convert_f32_s8(-1e9f) == -128; hloc_convert_c64_f32((1, 2)) == 1
 */
#ifndef HLOC_CONVERT_H
#define HLOC_CONVERT_H
#include "base.h"

/* F is the source's suffix. */
#define HLOC_CONVERT_PLAIN(F, TO) HLOC_FN hloc_##TO hloc_convert_##F##_##TO(hloc_##F x) { return (hloc_##TO)x; }

/* Floats from and to 64-bit integers. CPUs before AVX-512 convert one at a time; as two halves of 32 bits, which floats
 * near 2^52 hold in the low bits of their patterns, several are converted at once, two to five times as fast. */
#if defined(__AVX2__) && !defined(__AVX512DQ__)
#define HLOC_BITS_2_52 0x4330000000000000ull
HLOC_FN hloc_u64 hloc_by_halves(double x) { /* truncated, modulo 2^64; for |x| below 2^64 */
  double t = __builtin_trunc(x), high = __builtin_floor(t * 0x1p-32), low = hloc_fma_f64(high, -0x1p32, t);
  return hloc_bits_f64(high + 0x1.8p52) << 32 | (hloc_bits_f64(low + 0x1p52) ^ HLOC_BITS_2_52);
}
#define HLOC_CAST_s64(x) ((hloc_s64)hloc_by_halves(x))
#define HLOC_CAST_u64(x) hloc_by_halves(x)
HLOC_FN double hloc_low_half(hloc_u64 x) {
  return hloc_from_bits_f64(HLOC_BITS_2_52 | (x & 0xffffffffu)) - 0x1p52;
}
HLOC_FN double hloc_convert_u64_f64(hloc_u64 x) {
  return hloc_fma_f64(hloc_low_half(x >> 32), 0x1p32, hloc_low_half(x));
}
HLOC_FN double hloc_convert_s64_f64(hloc_s64 x) { /* the high half as a number from 0 on: 2^31 more than it is */
  double high = hloc_low_half((hloc_u64)x >> 32 ^ 0x80000000u) - 0x1p31;
  return hloc_fma_f64(high, 0x1p32, hloc_low_half((hloc_u64)x));
}
/* 53 bits; the last is one if any lower bit of x is (sticky bit): rounding these to f32 rounds x */
HLOC_FN hloc_u64 hloc_rounded_to_odd(hloc_u64 x) { return (x | ((x & 0x7ff) + 0x7ff)) & ~0x7ffull; }
HLOC_FN float hloc_convert_u64_f32(hloc_u64 x) {
  hloc_u64 is_long = -(hloc_u64)(x > 1ull << 53);
  return (float)hloc_convert_u64_f64((x & ~is_long) | (hloc_rounded_to_odd(x) & is_long));
}
HLOC_FN float hloc_convert_s64_f32(hloc_s64 x) {
  hloc_s64 is_long = -(hloc_s64)(x > 1LL << 53) | -(hloc_s64)(x < -(1LL << 53));
  return (float)hloc_convert_s64_f64((x & ~is_long) | ((hloc_s64)hloc_rounded_to_odd((hloc_u64)x) & is_long));
}
#else
#define HLOC_CAST_s64(x) ((hloc_s64)(x))
#define HLOC_CAST_u64(x) ((hloc_u64)(x))
HLOC_CONVERT_PLAIN(s64, f32)
HLOC_CONVERT_PLAIN(s64, f64)
HLOC_CONVERT_PLAIN(u64, f32)
HLOC_CONVERT_PLAIN(u64, f64)
#endif
#define HLOC_CAST_s32(x) ((hloc_s32)(x))
#define HLOC_CAST_u32(x) ((hloc_u32)(x))

/* From pred and integers, but for 64-bit integers to floats. */
#define HLOC_CONVERT_FROM_WHOLE(F)                                                                                    \
  HLOC_FN hloc_pred hloc_convert_##F##_pred(hloc_##F x) { return x != 0; }                                            \
  HLOC_CONVERT_PLAIN(F, s8)                                                                                           \
  HLOC_CONVERT_PLAIN(F, s16)                                                                                          \
  HLOC_CONVERT_PLAIN(F, s32)                                                                                          \
  HLOC_CONVERT_PLAIN(F, s64)                                                                                          \
  HLOC_CONVERT_PLAIN(F, u8)                                                                                           \
  HLOC_CONVERT_PLAIN(F, u16)                                                                                          \
  HLOC_CONVERT_PLAIN(F, u32)                                                                                          \
  HLOC_CONVERT_PLAIN(F, u64)
#define HLOC_CONVERT_FROM_LONG(F)                                                                                     \
  HLOC_CONVERT_FROM_WHOLE(F)                                                                                          \
  HLOC_FN hloc_c64 hloc_convert_##F##_c64(hloc_##F x) { return hloc_complex_f32((float)x, 0.0f); }                    \
  HLOC_FN hloc_c128 hloc_convert_##F##_c128(hloc_##F x) { return hloc_complex_f64((double)x, 0.0); }
#define HLOC_CONVERT_FROM_INTEGER(F)                                                                                  \
  HLOC_CONVERT_FROM_LONG(F)                                                                                           \
  HLOC_CONVERT_PLAIN(F, f32)                                                                                          \
  HLOC_CONVERT_PLAIN(F, f64)
HLOC_CONVERT_FROM_WHOLE(pred)
HLOC_CONVERT_PLAIN(pred, f32)
HLOC_CONVERT_PLAIN(pred, f64)
/* Selects: compilers do not vectorize pairs whose halves come from integers. */
HLOC_FN hloc_c64 hloc_convert_pred_c64(hloc_pred x) { return hloc_complex_f32(x ? 1.0f : 0.0f, 0.0f); }
HLOC_FN hloc_c128 hloc_convert_pred_c128(hloc_pred x) { return hloc_complex_f64(x ? 1.0 : 0.0, 0.0); }
#if HLOC_READS(s8)
HLOC_CONVERT_FROM_INTEGER(s8)
#endif
#if HLOC_READS(s16)
HLOC_CONVERT_FROM_INTEGER(s16)
#endif
#if HLOC_READS(s32)
HLOC_CONVERT_FROM_INTEGER(s32)
#endif
#if HLOC_READS(s64)
HLOC_CONVERT_FROM_LONG(s64)
#endif
#if HLOC_READS(u8)
HLOC_CONVERT_FROM_INTEGER(u8)
#endif
#if HLOC_READS(u16)
HLOC_CONVERT_FROM_INTEGER(u16)
#endif
#if HLOC_READS(u32)
HLOC_CONVERT_FROM_INTEGER(u32)
#endif
#if HLOC_READS(u64)
HLOC_CONVERT_FROM_LONG(u64)
#endif

/* ABOVE: the first number beyond the range. The cast's result outside of it is masked out: with branches, or
 * conditional values, gcc 12 would not vectorize the code that follows. */
#define HLOC_CONVERT_SIGNED(F, TO, ABOVE, HIGHEST)                                                                    \
  HLOC_FN hloc_##TO hloc_convert_##F##_##TO(hloc_##F x) {                                                             \
    hloc_##TO above = -(hloc_##TO)(x >= (hloc_##F)(ABOVE)), below = -(hloc_##TO)(x < -(hloc_##F)(ABOVE));             \
    hloc_##TO inside = HLOC_CAST_##TO(x) & ~(above | below) & -(hloc_##TO)(x == x);                                   \
    return inside | (above & HIGHEST) | (below & ~HIGHEST);                                                           \
  }
#define HLOC_CONVERT_UNSIGNED(F, TO, ABOVE)                                                                           \
  HLOC_FN hloc_##TO hloc_convert_##F##_##TO(hloc_##F x) {                                                             \
    return (HLOC_CAST_##TO(x) | -(hloc_##TO)(x >= (hloc_##F)(ABOVE))) & -(hloc_##TO)(x > 0);                          \
  }
#define HLOC_CONVERT_CLAMPED(F, TO, LOWEST, HIGHEST)                                                                  \
  HLOC_FN hloc_##TO hloc_convert_##F##_##TO(hloc_##F x) {                                                             \
    hloc_##F y = x > (hloc_##F)(LOWEST) ? x : (hloc_##F)(LOWEST); /* NaN too */                                       \
    hloc_s32 inside = (hloc_s32)(y < (hloc_##F)(HIGHEST) ? y : (hloc_##F)(HIGHEST));                                  \
    return (hloc_##TO)(LOWEST == 0 ? inside : inside & -(hloc_s32)(x == x));                                          \
  }
#define HLOC_CONVERT_FROM_FLOAT(F)                                                                                    \
  HLOC_FN hloc_pred hloc_convert_##F##_pred(hloc_##F x) { return x != 0; }                                            \
  HLOC_CONVERT_SIGNED(F, s32, 2147483648.0, 2147483647)                                                               \
  HLOC_CONVERT_SIGNED(F, s64, 9223372036854775808.0, 9223372036854775807LL)                                           \
  HLOC_CONVERT_UNSIGNED(F, u32, 4294967296.0)                                                                         \
  HLOC_CONVERT_UNSIGNED(F, u64, 18446744073709551616.0)                                                               \
  HLOC_CONVERT_CLAMPED(F, s8, -128, 127)                                                                              \
  HLOC_CONVERT_CLAMPED(F, s16, -32768, 32767)                                                                         \
  HLOC_CONVERT_CLAMPED(F, u8, 0, 255)                                                                                 \
  HLOC_CONVERT_CLAMPED(F, u16, 0, 65535)                                                                              \
  HLOC_CONVERT_PLAIN(F, f32)                                                                                          \
  HLOC_CONVERT_PLAIN(F, f64)                                                                                          \
  HLOC_FN hloc_c64 hloc_convert_##F##_c64(hloc_##F x) { return hloc_complex_f32((float)x, 0.0f); }                    \
  HLOC_FN hloc_c128 hloc_convert_##F##_c128(hloc_##F x) { return hloc_complex_f64((double)x, 0.0); }
#if HLOC_READS(f32)
HLOC_CONVERT_FROM_FLOAT(f32)
#endif
#if HLOC_READS(f64)
HLOC_CONVERT_FROM_FLOAT(f64)
#endif

#define HLOC_CONVERT_REAL_PART(F, REAL, TO)                                                                           \
  HLOC_FN hloc_##TO hloc_convert_##F##_##TO(hloc_##F z) { return hloc_convert_##REAL##_##TO(z.re); }
#define HLOC_CONVERT_FROM_COMPLEX(F, REAL)                                                                            \
  HLOC_FN hloc_pred hloc_convert_##F##_pred(hloc_##F z) { return (z.re != 0) | (z.im != 0); }                         \
  HLOC_CONVERT_REAL_PART(F, REAL, s8)                                                                                 \
  HLOC_CONVERT_REAL_PART(F, REAL, s16)                                                                                \
  HLOC_CONVERT_REAL_PART(F, REAL, s32)                                                                                \
  HLOC_CONVERT_REAL_PART(F, REAL, s64)                                                                                \
  HLOC_CONVERT_REAL_PART(F, REAL, u8)                                                                                 \
  HLOC_CONVERT_REAL_PART(F, REAL, u16)                                                                                \
  HLOC_CONVERT_REAL_PART(F, REAL, u32)                                                                                \
  HLOC_CONVERT_REAL_PART(F, REAL, u64)                                                                                \
  HLOC_CONVERT_REAL_PART(F, REAL, f32)                                                                                \
  HLOC_CONVERT_REAL_PART(F, REAL, f64)                                                                                \
  HLOC_FN hloc_c64 hloc_convert_##F##_c64(hloc_##F z) { return hloc_complex_f32((float)z.re, (float)z.im); }          \
  HLOC_FN hloc_c128 hloc_convert_##F##_c128(hloc_##F z) { return hloc_complex_f64((double)z.re, (double)z.im); }
#if HLOC_READS(complex)
HLOC_CONVERT_FROM_COMPLEX(c64, f32)
HLOC_CONVERT_FROM_COMPLEX(c128, f64)
#endif

#endif
