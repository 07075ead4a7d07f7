/* gemm_common.h: shared by the files gemm_<type>.c. Each defines the matmuls of one set of element types by including
 * gemm_tile.h once; a program is linked with those that it uses, so that its first build compiles little.
 *
 * A register tile has HLOC_TILE_ROWS rows and two vectors of columns: 28 of AVX-512's 32 registers, 12 of AVX2's 16.
 */
#ifndef HLOC_GEMM_COMMON_H
#define HLOC_GEMM_COMMON_H
#include "gemm.h"

#include <stddef.h>

#include "base.h"
#include "pool.h"
#include "vector.h"

#if !defined(HLOC_TILE_ROWS)
#if HLOC_VECTOR_BYTES == 64
#define HLOC_TILE_ROWS 14
#elif defined(__aarch64__)
#define HLOC_TILE_ROWS 12
#else
#define HLOC_TILE_ROWS 6
#endif
#endif
/* several narrow elements as one unit, at any alignment */
typedef unsigned hloc_unit32 __attribute__((may_alias, aligned(1)));
#define HLOC_JOIN_(a, b, c) a##b##c
#define HLOC_JOIN(a, b, c) HLOC_JOIN_(a, b, c)

/* Tasks that a thread takes at once: all, or many, if workers sleep: waking them takes some 10 microseconds. */
HLOC_INLINE long hloc_gemm_grain(const hloc_gemm_plan* p) { return hloc_pool_awake() ? p->grain : p->grain_asleep; }

/* Stores for tiles of float sums: plain, or rounded to the narrow type NARROW. */
#define HLOC_DEFINE_STORE(NAME, SUM, NARROW, TO_NARROW)                                                               \
  static void NAME(const hloc_gemm_args* g, long at, long rows, long columns, const SUM* tile, long stride) {         \
    for (long i = 0; i < rows; i++) {                                                                                 \
      const SUM* from = tile + i * stride;                                                                            \
      NARROW* narrow = (NARROW*)g->c + at + i * g->c_row;                                                             \
      SUM* wide = (SUM*)g->c + at + i * g->c_row;                                                                     \
      if (g->c_is_narrow && g->c_column == 1) for (long j = 0; j < columns; j++) narrow[j] = TO_NARROW(from[j]);      \
      else if (g->c_is_narrow) for (long j = 0; j < columns; j++) narrow[j * g->c_column] = TO_NARROW(from[j]);       \
      else if (g->c_column == 1) for (long j = 0; j < columns; j++) wide[j] = from[j];                                \
      else for (long j = 0; j < columns; j++) wide[j * g->c_column] = from[j];                                        \
    }                                                                                                                 \
  }
#define HLOC_SAME(x) (x)
#endif
