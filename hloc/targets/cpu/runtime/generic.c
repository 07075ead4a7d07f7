/* generic.c: matmuls and convolutions of the types without a fast path: matmuls are plain loops over any strides,
 * convolutions are matmuls (generic_conv.h).
 *
 * Out: hloc_gemm_<t> and hloc_conv_<t> for the types listed in gemm.h and conv.h; matmuls of complex numbers have their
 * own files. Sums have the result's type; integers wrap. Work is split over rows of C, or output positions.
 *
 * In: HLOC_GENERIC_GEMM or HLOC_GENERIC_CONV, one of those types, and HLOC_OPERAND, HLOC_TOTAL, HLOC_PRODUCT (see
 * generic_conv.h). Only that function is defined, and these macros are undefined again: the file may be included more
 * than once.
 */
#ifndef HLOC_GENERIC_C
#define HLOC_GENERIC_C
#include "complex.h"
#include "conv.h"
#include "gemm.h"
#include "integer.h"
#include "pool.h"

enum { GENERIC_COLUMNS = 32, GENERIC_FEW = 8 };

static inline long fewer(long a, long b) { return a < b ? a : b; }

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

/* A row of A by GENERIC_COLUMNS columns of B at a time, or GENERIC_FEW, or one; the sums are in registers. */
#define HLOC_DEFINE_GENERIC_GEMM(S, T)                                                                                \
  static inline __attribute__((always_inline)) long gemm_sums_##S(const int columns, const T* a, long a_step,         \
                                                                  const T* b, long b_row, long b_column, long k,      \
                                                                  T* out) {                                           \
    T sums[GENERIC_COLUMNS];                                                                                          \
    for (int j = 0; j < columns; j++) sums[j] = (T){0};                                                               \
    for (long p = 0; p < k; p++, b += b_row) {                                                                        \
      const T left = a[p * a_step];                                                                                   \
      for (int j = 0; j < columns; j++) sums[j] = hloc_add_##S(sums[j], hloc_multiply_##S(left, b[j * b_column]));    \
    }                                                                                                                 \
    for (int j = 0; j < columns; j++) out[j] = sums[j];                                                               \
    return columns;                                                                                                   \
  }                                                                                                                   \
  static void gemm_rows_##S(void* const* args, long begin, long end) {                                                \
    const hloc_gemm_args* g = (const hloc_gemm_args*)args;                                                            \
    for (long item = begin; item < end; item++) {                                                                     \
      long i = item % g->m, batch = item / g->m;                                                                      \
      long outer = batch / g->inner_batches, inner = batch % g->inner_batches;                                        \
      const T* a = (const T*)g->a + outer * g->a_outer + inner * g->a_inner + i * g->a_row;                           \
      const long a_step = g->a_column, b_row = g->b_row, b_column = g->b_column;                                      \
      for (long column = 0; column < g->n; column += GENERIC_COLUMNS) {                                               \
        long columns = fewer(GENERIC_COLUMNS, g->n - column);                                                         \
        const T* b = (const T*)g->b + outer * g->b_outer + inner * g->b_inner + column * b_column;                    \
        T sums[GENERIC_COLUMNS];                                                                                      \
        const int side_by_side = b_column == 1;                                                                       \
        long j = 0;                                                                                                   \
        if (side_by_side && columns == GENERIC_COLUMNS)                                                               \
          j = gemm_sums_##S(GENERIC_COLUMNS, a, a_step, b, b_row, 1, g->k, sums);                                     \
        for (; side_by_side && j + GENERIC_FEW <= columns; j += GENERIC_FEW)                                          \
          gemm_sums_##S(GENERIC_FEW, a, a_step, b + j, b_row, 1, g->k, sums + j);                                     \
        for (; j < columns; j++) gemm_sums_##S(1, a, a_step, b + j * b_column, b_row, b_column, g->k, sums + j);      \
        if (g->epilogue) {                                                                                            \
          g->epilogue(g->epilogue_args, batch, i, column, 1, columns, sums, GENERIC_COLUMNS);                         \
          continue;                                                                                                   \
        }                                                                                                             \
        T* c = (T*)g->c + outer * g->c_outer + inner * g->c_inner + i * g->c_row + column * g->c_column;              \
        for (long j = 0; j < columns; j++) c[j * g->c_column] = sums[j];                                              \
      }                                                                                                               \
    }                                                                                                                 \
  }                                                                                                                   \
  int hloc_gemm_##S(const hloc_gemm_args* args) {                                                                     \
    hloc_parallel(gemm_rows_##S, (void* const*)args, args->batches * args->m, 32768 / (args->n * args->k + 1) + 1);   \
    return 0;                                                                                                         \
  }
#define HLOC_GENERIC_NAME_(a, b, c) a##b##c
#define HLOC_GENERIC_NAME(a, b, c) HLOC_GENERIC_NAME_(a, b, c)
#define HLOC_GENERIC_(DEFINE, ...) DEFINE(__VA_ARGS__)
#endif

#if defined(HLOC_GENERIC_GEMM)
HLOC_GENERIC_(HLOC_DEFINE_GENERIC_GEMM, HLOC_GENERIC_GEMM, HLOC_GENERIC_NAME(hloc_, HLOC_GENERIC_GEMM, ))
#undef HLOC_GENERIC_GEMM
#undef HLOC_OPERAND
#undef HLOC_TOTAL
#undef HLOC_PRODUCT
#elif defined(HLOC_GENERIC_CONV)
#include "generic_conv.h"
#endif
