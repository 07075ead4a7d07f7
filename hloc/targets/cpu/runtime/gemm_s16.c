/* gemm_s16.c: matmuls of s16, sums in s32, which wrap: their low 16 bits are right for u16, too. Uses pairs if the CPU
 * multiplies those, else operands are converted to s32 while packing. */
#include "vector.h"
#if (defined(__AVX512BW__) && HLOC_VECTOR_BYTES == 64) || (defined(__AVX2__) && HLOC_VECTOR_BYTES == 32)
#define HLOC_HAS_SHORT_PAIRS
#if defined(__has_builtin)
#if HLOC_VECTOR_BYTES == 64 && defined(__AVX512VNNI__)
#if __has_builtin(__builtin_ia32_vpdpwssd_v16si)
#define HLOC_MULTIPLY_SHORTS(sum, a, b) __builtin_ia32_vpdpwssd_v16si(sum, a, b)
#endif
#elif HLOC_VECTOR_BYTES == 32
#if __has_builtin(__builtin_ia32_pmaddwd256)
typedef short hloc_short_pairs __attribute__((vector_size(32)));
#define HLOC_MULTIPLY_SHORTS(sum, a, b)                                                                               \
  ((sum) + (hloc_vs32)__builtin_ia32_pmaddwd256((hloc_short_pairs)(a), (hloc_short_pairs)(b)))
#endif
#endif
#endif
#if !defined(HLOC_MULTIPLY_SHORTS) /* a long header, included only if needed */
#include <immintrin.h>
#if HLOC_VECTOR_BYTES == 64 && defined(__AVX512VNNI__)
#define HLOC_MULTIPLY_SHORTS(sum, a, b) _mm512_dpwssd_epi32((__m512i)(sum), (__m512i)(a), (__m512i)(b))
#elif HLOC_VECTOR_BYTES == 64
#define HLOC_MULTIPLY_SHORTS(sum, a, b) ((sum) + (hloc_vs32)_mm512_madd_epi16((__m512i)(a), (__m512i)(b)))
#else
#define HLOC_MULTIPLY_SHORTS(sum, a, b) ((sum) + (hloc_vs32)_mm256_madd_epi16((__m256i)(a), (__m256i)(b)))
#endif
#endif
#endif
#include "gemm_common.h"

/* One vector of sums from narrow elements. */
typedef short hloc_shorts __attribute__((vector_size(HLOC_VECTOR_BYTES / 2), aligned(1), may_alias));
HLOC_INLINE hloc_vu32 s16_widen(const hloc_s16* p) {
  return (hloc_vu32)__builtin_convertvector(*(const hloc_shorts*)p, hloc_vs32);
}

#define G(name) s16_##name
#define G_NAME s16
#define ELEMENT hloc_s16
#define SUM hloc_u32
#define G_WIDEN_ONE (hloc_u32)
#define VECTOR hloc_vu32
#define V(name) hloc_##name##_u32
#define LANES HLOC_LANES32
#if defined(HLOC_HAS_SHORT_PAIRS)
#define UNIT hloc_unit32
#define GROUP 2
#define UNIT_IS_MEMORY 1
#define s16_vector_unit hloc_vu32
#define s16_load hloc_load_u32
#define s16_splat hloc_splat_u32
#define s16_multiply_add(sum, a, b) ((hloc_vu32)HLOC_MULTIPLY_SHORTS((hloc_vs32)(sum), (hloc_vs32)(a), (hloc_vs32)(b)))
#define s16_interleaved(p, stride) ((s16_widen(p) & 0xffffu) | s16_widen((p) + (stride)) << 16)
#define s16_unit(p, stride, count)                                                                                    \
  ((unsigned)(hloc_u16)(p)[0] | ((count) > 1 ? (unsigned)(hloc_u16)(p)[(stride)] << 16 : 0u))
#endif
#include "gemm_unit.h"
