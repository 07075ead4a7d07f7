/* half_rows.h: rows of f16 to f32 and back, by the CPU's own instructions where it has them: compilers do not find them.
 *
 * hloc_widen_row_f16(from, to, n), hloc_narrow_row_f16(from, to, n): contiguous, any alignment and length; rounded and
 * special values as in narrow.h. Example: a row of one 1.0 becomes 0x3c00.
 */
#ifndef HLOC_HALF_ROWS_H
#define HLOC_HALF_ROWS_H
#include "narrow.h"
#include "vector.h"
#if defined(__F16C__) && HLOC_VECTOR_BYTES >= 32
#include <immintrin.h>
#endif

HLOC_INLINE void hloc_widen_row_f16(const hloc_f16* from, float* to, long n) {
  long i = 0;
#if defined(__F16C__) && HLOC_VECTOR_BYTES >= 32
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(from + i))));
#endif
  for (; i < n; i++) to[i] = hloc_f16_to_f32(from[i]);
}
HLOC_INLINE void hloc_narrow_row_f16(const float* from, hloc_f16* to, long n) {
  long i = 0;
#if defined(__F16C__) && HLOC_VECTOR_BYTES >= 32
  for (; i + 8 <= n; i += 8) _mm_storeu_si128((__m128i*)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), 0));
#endif
  for (; i < n; i++) to[i] = hloc_f32_to_f16(from[i]);
}
#endif
