/* pairs.h: sums of products of pairs of bf16, by the CPU's instruction (AVX-512).
 *
 *   HLOC_HAS_PAIRS                       1 if it exists and is faster than f32's (HLOC_SLOW_PAIRS: it is not)
 *   HLOC_MULTIPLY_PAIRS(sum, a, b)       sum + a's first numbers times b's + the second ones; a, b: vectors of 32 bits
 */
#ifndef HLOC_PAIRS_H
#define HLOC_PAIRS_H
#include "vector.h"
#if defined(__AVX512BF16__) && HLOC_VECTOR_BYTES == 64 && !defined(HLOC_SLOW_PAIRS)
#define HLOC_HAS_PAIRS 1
#if defined(__GNUC__) && !defined(__clang__) /* by the compiler's own name: immintrin.h takes longer to read than a part
                                                to compile */
#if __GNUC__ >= 13
typedef __bf16 hloc_pairs __attribute__((vector_size(64)));
#else
typedef short hloc_pairs __attribute__((vector_size(64)));
#endif
#define HLOC_MULTIPLY_PAIRS(sum, a, b) __builtin_ia32_dpbf16ps_v16sf(sum, (hloc_pairs)(a), (hloc_pairs)(b))
#else
#include <immintrin.h>
#define HLOC_MULTIPLY_PAIRS(sum, a, b) _mm512_dpbf16_ps((__m512)(sum), (__m512bh)(a), (__m512bh)(b))
#endif
#else
#define HLOC_HAS_PAIRS 0
#endif
#endif
