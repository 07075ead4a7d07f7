/* transpose_blocks.h: transpose.h for one size (template; transpose_8.c ... transpose_64.c include it).
 *
 * In (macros): TRANSPOSE its name, F(name) those of its parts, ELEMENT of that size, PER_PIECE of them fill sixteen
 * bytes, LANES: TRANSPOSE_LANES_n of half as many. Pieces of sixteen bytes of PER_PIECE rows are transposed by perfect
 * shuffles, rounds that interleave row i with row i + PER_PIECE / 2. Registers of 32 bytes have a piece in each half,
 * of rows that are PER_PIECE apart, and transpose two such blocks at once.
 */
#include "transpose.h"
#include "vector.h"

#ifndef HLOC_TRANSPOSE_BLOCKS_H
#define HLOC_TRANSPOSE_BLOCKS_H
enum { TRANSPOSE_PAGE = 4096, TRANSPOSE_STREAMS = 16 };
enum { TRANSPOSE_PIECE = 16, TRANSPOSE_HALVES = HLOC_VECTOR_BYTES >= 32 ? 2 : 1 };
enum { TRANSPOSE_REGISTER = TRANSPOSE_PIECE * TRANSPOSE_HALVES };
typedef unsigned char transpose_piece __attribute__((vector_size(TRANSPOSE_PIECE), aligned(1), may_alias));

/* The indices of a shuffle of two registers of n lanes: lanes a, a + 1 ... of one interleaved with those of the
 * other. */
#define TRANSPOSE_LANES_1(a, n) (a), (a) + (n)
#define TRANSPOSE_LANES_2(a, n) TRANSPOSE_LANES_1(a, n), TRANSPOSE_LANES_1((a) + 1, n)
#define TRANSPOSE_LANES_4(a, n) TRANSPOSE_LANES_2(a, n), TRANSPOSE_LANES_2((a) + 2, n)
#define TRANSPOSE_LANES_8(a, n) TRANSPOSE_LANES_4(a, n), TRANSPOSE_LANES_4((a) + 4, n)
#if HLOC_VECTOR_BYTES >= 32
#define TRANSPOSE_IN_HALVES(lanes, a, n) lanes(a, n), lanes((a) + (n) / 2, n)
#else
#define TRANSPOSE_IN_HALVES(lanes, a, n) lanes(a, n)
#endif
#if defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 12)
#define TRANSPOSE_MIX(type, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define TRANSPOSE_MIX(type, a, b, ...) __builtin_shuffle(a, b, (type){__VA_ARGS__})
#endif

/* The pieces at two addresses, in a register. */
typedef unsigned char transpose_bytes __attribute__((vector_size(TRANSPOSE_REGISTER)));
HLOC_INLINE transpose_bytes transpose_loaded(const void* low, const void* high) {
#if HLOC_VECTOR_BYTES < 32
  (void)high;
  return *(const transpose_piece*)low;
#elif defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 12)
  return __builtin_shufflevector(*(const transpose_piece*)low, *(const transpose_piece*)high, 0, 1, 2, 3, 4, 5, 6, 7, 8,
                                 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30,
                                 31);
#else
  const union { transpose_piece half[2]; transpose_bytes all; } both =
    {{*(const transpose_piece*)low, *(const transpose_piece*)high}};
  return both.all;
#endif
}

/* Prefetches the lines of a row's next bytes, for the next tile. CPUs do that by themselves for few rows, or rows in
 * one page. With many rows in different pages, tiles from memory take 0.5 to 0.75 of the time (on a Zen 4). */
HLOC_INLINE void transpose_ahead(const void* next, long bytes) {
  for (long at = 0; at < bytes; at += 64) __builtin_prefetch((const char*)next + at, 0, 2);
}

/* Copies fewer than `most` bytes, a power of two. */
HLOC_INLINE void transpose_copy(char* to, const char* from, long bytes, long most) {
  HLOC_UNROLL for (long n = most / 2; n; n /= 2) {
    if (bytes & n) {
      __builtin_memcpy(to, from, n);
      to += n, from += n;
    }
  }
}
#endif

typedef ELEMENT F(lanes) __attribute__((vector_size(TRANSPOSE_REGISTER)));
typedef ELEMENT F(lanes_any) __attribute__((vector_size(TRANSPOSE_REGISTER), aligned(1), may_alias));
enum { F(COLUMNS) = PER_PIECE, F(ROWS) = PER_PIECE * TRANSPOSE_HALVES };     /* of a block */

HLOC_INLINE F(lanes) F(low)(F(lanes) a, F(lanes) b) {
  return TRANSPOSE_MIX(F(lanes), a, b, TRANSPOSE_IN_HALVES(LANES, 0, PER_PIECE * TRANSPOSE_HALVES));
}
HLOC_INLINE F(lanes) F(high)(F(lanes) a, F(lanes) b) {
  return TRANSPOSE_MIX(F(lanes), a, b, TRANSPOSE_IN_HALVES(LANES, PER_PIECE / 2, PER_PIECE * TRANSPOSE_HALVES));
}

/* The first COLUMNS elements of COLUMNS rows, in each half, as COLUMNS columns. */
HLOC_INLINE void F(transpose_lanes)(F(lanes)* row) {
  HLOC_UNROLL for (int round = 1; round < F(COLUMNS); round *= 2) {
    F(lanes) mixed[F(COLUMNS)];
    HLOC_UNROLL for (int i = 0; i < F(COLUMNS) / 2; i++) {
      mixed[2 * i] = F(low)(row[i], row[i + F(COLUMNS) / 2]);
      mixed[2 * i + 1] = F(high)(row[i], row[i + F(COLUMNS) / 2]);
    }
    HLOC_UNROLL for (int i = 0; i < F(COLUMNS); i++) row[i] = mixed[i];
  }
}

/* The pieces at ROWS addresses as COLUMNS columns. */
HLOC_INLINE void F(columns)(const ELEMENT* const* row, F(lanes)* column) {
  HLOC_UNROLL for (int i = 0; i < F(COLUMNS); i++)
    column[i] = (F(lanes))transpose_loaded(row[i], row[i + F(COLUMNS) * (TRANSPOSE_HALVES - 1)]);
  F(transpose_lanes)(column);
}

/* Few rows, of ROWS columns or more: registers hold COLUMNS of the rows, and columns that lie as far apart in either
 * half. writable: so many elements from `to` on may be written by whole pieces, since what lies behind a column is
 * written later. */
static void F(few)(const ELEMENT* from, long from_pitch, ELEMENT* to, long to_pitch, long rows, long columns,
                   long writable) {
  for (long c = 0; c < columns; c += F(ROWS)) {
    const long left = c + F(ROWS) <= columns ? c : columns - F(ROWS);
    for (long r = 0; r < rows; r += F(COLUMNS)) {
      const long top = r + F(COLUMNS) <= rows || rows < F(COLUMNS) ? r : rows - F(COLUMNS);
      F(lanes) column[F(COLUMNS)];
      HLOC_UNROLL for (int i = 0; i < F(COLUMNS); i++)
        column[i] = *(const F(lanes_any)*)(from + (top + i < rows ? top + i : rows - 1) * from_pitch + left);
      F(transpose_lanes)(column);
      HLOC_UNROLL for (int k = 0; k < F(ROWS); k++) {
        const char* piece = (const char*)(column + k % F(COLUMNS)) + k / F(COLUMNS) * TRANSPOSE_PIECE;
        const long at = (left + k) * to_pitch + top;
        if (rows >= F(COLUMNS) || at + F(COLUMNS) <= writable) __builtin_memcpy(to + at, piece, TRANSPOSE_PIECE);
        else transpose_copy((char*)(to + at), piece, rows * (long)sizeof(ELEMENT), TRANSPOSE_PIECE);
      }
    }
  }
}

/* A block of fewer rows or columns; `readable` elements from `from` on are there. */
static __attribute__((noinline)) void F(some)(const ELEMENT* from, long from_pitch, ELEMENT* to, long to_pitch,
                                              long rows, long columns, long readable) {
  const ELEMENT* row[F(ROWS)];
  char aside[F(ROWS)][TRANSPOSE_PIECE];
  F(lanes) column[F(COLUMNS)];
  HLOC_UNROLL for (long i = 0; i < F(ROWS); i++) {
    const long at = (i < rows ? i : rows - 1) * from_pitch;
    row[i] = from + at;
    if (columns >= F(COLUMNS) || at + F(COLUMNS) <= readable) continue;
    transpose_copy(aside[i], (const char*)row[i], columns * (long)sizeof(ELEMENT), TRANSPOSE_PIECE);
    row[i] = (const ELEMENT*)aside[i];
  }
  F(columns)(row, column);
  HLOC_UNROLL for (long c = 0; c < F(COLUMNS); c++) {
    if (c >= columns) break;
    ELEMENT* at = to + c * to_pitch;
    if (rows >= F(ROWS)) *(F(lanes_any)*)at = column[c];
    else transpose_copy((char*)at, (const char*)(column + c), rows * (long)sizeof(ELEMENT), TRANSPOSE_REGISTER);
  }
}

/* What is left of rows and of columns goes by whole blocks, too, which end where they end. */
void TRANSPOSE(const void* source, long from_pitch, void* target, long to_pitch, long rows, long columns) {
  if (rows < F(ROWS) && columns >= F(ROWS)) {
    F(few)(source, from_pitch, target, to_pitch, rows, columns, rows == to_pitch ? columns * to_pitch : 0);
    return;
  }
  if (rows >= TRANSPOSE_STREAMS && from_pitch * (long)sizeof(ELEMENT) >= TRANSPOSE_PAGE)
    for (long r = 0; r < rows; r++)
      transpose_ahead((const ELEMENT*)source + r * from_pitch + columns, columns * (long)sizeof(ELEMENT));
  for (long r = 0; r < rows; r += F(ROWS)) {
    const long top = r + F(ROWS) <= rows || rows < F(ROWS) ? r : rows - F(ROWS);
    for (long c = 0; c < columns; c += F(COLUMNS)) {
      const long left = c + F(COLUMNS) <= columns || columns < F(COLUMNS) ? c : columns - F(COLUMNS);
      const ELEMENT* from = (const ELEMENT*)source + top * from_pitch + left;
      ELEMENT* to = (ELEMENT*)target + left * to_pitch + top;
      if (rows < F(ROWS) || columns < F(COLUMNS)) {
        F(some)(from, from_pitch, to, to_pitch, rows, columns, (rows - top - 1) * from_pitch + columns - left);
        continue;
      }
      const ELEMENT* row[F(ROWS)];
      F(lanes) column[F(COLUMNS)];
      HLOC_UNROLL for (int i = 0; i < F(ROWS); i++) row[i] = from + i * from_pitch;
      F(columns)(row, column);
      HLOC_UNROLL for (int i = 0; i < F(COLUMNS); i++) *(F(lanes_any)*)(to + i * to_pitch) = column[i];
    }
  }
}
#undef TRANSPOSE
#undef F
#undef ELEMENT
#undef PER_PIECE
#undef LANES
