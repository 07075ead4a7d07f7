/* half_rows.h: rows of f16 to f32 and back, by the CPU's instructions if it has them; compilers do not use these.
 *
 * hloc_widen_row_f16(from, to, n), hloc_narrow_row_f16(from, to, n): contiguous, any alignment and length; rounded and
 * special values as in narrow.h.
 * hloc_widen_f16(x), hloc_narrow_f32(x): a single number, outside of loops that become vectors.
 * Example: a row of one 1.0 becomes 0x3c00.
 */
#ifndef HLOC_HALF_ROWS_H
#define HLOC_HALF_ROWS_H
#include "narrow.h"
#include "vector.h"

/* Uses the compiler's builtins: parsing immintrin.h takes longer than all the rest. */
#if defined(__F16C__)
typedef short hloc_eight_halves __attribute__((vector_size(16)));
typedef short hloc_eight_halves_any __attribute__((vector_size(16), aligned(1), may_alias));
typedef float hloc_four_floats __attribute__((vector_size(16)));
typedef float hloc_eight_floats __attribute__((vector_size(32)));
typedef float hloc_eight_floats_any __attribute__((vector_size(32), aligned(1), may_alias));
#if !__has_builtin(__builtin_ia32_vcvtph2ps256) /* clang since version 22 */
typedef _Float16 hloc_eight_numbers __attribute__((vector_size(16)));
HLOC_INLINE hloc_eight_floats hloc_widen_eight(hloc_eight_halves halves) {
  return __builtin_convertvector((hloc_eight_numbers)halves, hloc_eight_floats);
}
HLOC_INLINE float hloc_widen_f16(hloc_f16 x) { return (float)((hloc_eight_numbers)(hloc_eight_halves){(short)x})[0]; }
#else
HLOC_INLINE hloc_eight_floats hloc_widen_eight(hloc_eight_halves halves) { return __builtin_ia32_vcvtph2ps256(halves); }
HLOC_INLINE float hloc_widen_f16(hloc_f16 x) {
  return __builtin_ia32_vcvtph2ps((hloc_eight_halves){(short)x})[0];
}
#endif
HLOC_INLINE hloc_f16 hloc_narrow_f32(float x) { /* 0: to nearest even */
  return (hloc_f16)__builtin_ia32_vcvtps2ph((hloc_four_floats){x}, 0)[0];
}
#else
HLOC_INLINE float hloc_widen_f16(hloc_f16 x) { return hloc_f16_to_f32(x); }
HLOC_INLINE hloc_f16 hloc_narrow_f32(float x) { return hloc_f32_to_f16(x); }
#endif
#if defined(__AVX512F__)
typedef short hloc_sixteen_halves __attribute__((vector_size(32)));
typedef short hloc_sixteen_halves_any __attribute__((vector_size(32), aligned(1), may_alias));
typedef float hloc_sixteen_floats __attribute__((vector_size(64)));
typedef float hloc_sixteen_floats_any __attribute__((vector_size(64), aligned(1), may_alias));
HLOC_INLINE hloc_sixteen_floats hloc_widen_sixteen(hloc_sixteen_halves halves) {
  return __builtin_ia32_vcvtph2ps512_mask(halves, (hloc_sixteen_floats){0}, (unsigned short)-1, 4);
}
HLOC_INLINE hloc_sixteen_halves hloc_narrow_sixteen(hloc_sixteen_floats floats) { /* 0: to nearest even */
  return __builtin_ia32_vcvtps2ph512_mask(floats, 0, (hloc_sixteen_halves){0}, (unsigned short)-1);
}
#endif

HLOC_INLINE void hloc_widen_here_f16(const hloc_f16* from, float* to, long n) {
  long i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= n; i += 16)
    *(hloc_sixteen_floats_any*)(to + i) = hloc_widen_sixteen(*(const hloc_sixteen_halves_any*)(from + i));
#endif
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8) {
    const hloc_eight_halves halves = *(const hloc_eight_halves_any*)(from + i);
    *(hloc_eight_floats_any*)(to + i) = hloc_widen_eight(halves);
  }
#endif
  for (; i < n; i++) to[i] = hloc_widen_f16(from[i]);
}
HLOC_INLINE void hloc_narrow_here_f16(const float* from, hloc_f16* to, long n) {
  long i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= n; i += 16)
    *(hloc_sixteen_halves_any*)(to + i) = hloc_narrow_sixteen(*(const hloc_sixteen_floats_any*)(from + i));
#endif
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8) {
    const hloc_eight_floats floats = *(const hloc_eight_floats_any*)(from + i);
    *(hloc_eight_halves_any*)(to + i) = __builtin_ia32_vcvtps2ph256(floats, 0); /* 0: to nearest even */
  }
#endif
  for (; i < n; i++) to[i] = hloc_narrow_f32(from[i]);
}

/* Inlined if the row is known to be short, else a call: a kernel may have a dozen of them, and compilers take some 15
 * milliseconds for each copy. */
#define HLOC_DEFINE_ROW(NAME, FROM, TO)                                                                               \
  static __attribute__((noinline, unused)) void hloc_##NAME##_long_f16(const FROM* from, TO* to, long n) {            \
    hloc_##NAME##_here_f16(from, to, n);                                                                              \
  }                                                                                                                   \
  HLOC_INLINE void hloc_##NAME##_row_f16(const FROM* from, TO* to, long n) {                                          \
    if (__builtin_constant_p(n) && n <= 64) hloc_##NAME##_here_f16(from, to, n);                                      \
    else hloc_##NAME##_long_f16(from, to, n);                                                                         \
  }
HLOC_DEFINE_ROW(widen, hloc_f16, float)
HLOC_DEFINE_ROW(narrow, float, hloc_f16)
#endif
