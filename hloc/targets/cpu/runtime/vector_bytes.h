/* vector_bytes.h: the width of the widest registers that the compiler may use.
 *
 * In: the target macros that -march sets. Out: HLOC_VECTOR_BYTES: 64 (AVX-512), 32 (AVX2), else 16 (SSE2, NEON,
 * anything: the compiler splits them). Example: a vector of f32 has HLOC_VECTOR_BYTES / 4 lanes.
 */
#ifndef HLOC_VECTOR_BYTES
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define HLOC_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define HLOC_VECTOR_BYTES 32
#else
#define HLOC_VECTOR_BYTES 16
#endif
#endif
