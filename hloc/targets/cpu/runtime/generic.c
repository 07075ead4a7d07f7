/* generic.c: a convolution of types without an algorithm of their own, by matmuls (generic_conv.h).
 *
 * In: HLOC_GENERIC_CONV, the types as conv.h writes them, and HLOC_OPERAND, HLOC_TOTAL, HLOC_PRODUCT. Out: that
 * function alone; these macros are undefined again: the file may be included more than once.
 */
#ifndef HLOC_GENERIC_C
#define HLOC_GENERIC_C
#include "complex.h"
#include "conv.h"
#include "gemm.h"
#include "integer.h"
#include "pool.h"

/* Short runs, for which a call would take longer than the copy; the last part overlaps the previous one. */
#define HLOC_COPY_BY(SIZE)                                                                                            \
  if (bytes >= SIZE) {                                                                                                \
    for (long at = 0; at < bytes - SIZE; at += SIZE) __builtin_memcpy(to + at, from + at, SIZE);                      \
    __builtin_memcpy(to + bytes - SIZE, from + bytes - SIZE, SIZE);                                                   \
    return;                                                                                                           \
  }
static inline __attribute__((unused)) void copy_run(char* restrict to, const char* restrict from, long bytes) {
  HLOC_COPY_BY(64)
  HLOC_COPY_BY(16)
  HLOC_COPY_BY(4)
  if (bytes > 0) to[0] = from[0], to[bytes / 2] = from[bytes / 2], to[bytes - 1] = from[bytes - 1];
}
#undef HLOC_COPY_BY

#define HLOC_GENERIC_NAME_(a, b, c) a##b##c
#define HLOC_GENERIC_NAME(a, b, c) HLOC_GENERIC_NAME_(a, b, c)
#endif

#include "generic_conv.h"
