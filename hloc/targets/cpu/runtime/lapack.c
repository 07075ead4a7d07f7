/* lapack.c: see lapack.h. LAPACK is column-major: matrices are transposed into scratch memory, and back. Small ones are
 * split over the pool; for large ones LAPACK has its own threads. */
#include <math.h>
#include <stdint.h>
#include <string.h>
#include "lapack.h"
#include "pool.h"
#include "vector.h"

__attribute__((visibility("default"))) void *hloc_lapack_table[HLOC_LAPACK_FUNCTIONS];

enum { BLOCK = 4 };                                /* a square of wide elements */
typedef struct { uint64_t low, high; } wide;

#define TRANSPOSE(TYPE, SIDE, WHOLE)                                                     \
  for (long r0 = 0; r0 < rows; r0 += SIDE)                                               \
    for (long c0 = 0; c0 < columns; c0 += SIDE) {                                        \
      const TYPE *from0 = (const TYPE *)from + r0 * columns + c0;                        \
      TYPE *to0 = (TYPE *)to + c0 * rows + r0;                                           \
      const long height = rows - r0 < SIDE ? rows - r0 : SIDE;                           \
      const long width = columns - c0 < SIDE ? columns - c0 : SIDE;                      \
      if (height == SIDE && width == SIDE) {                                             \
        WHOLE;                                                                           \
        continue;                                                                        \
      }                                                                                  \
      for (long c = 0; c < width; c++)                                                   \
        for (long r = 0; r < height; r++) to0[c * rows + r] = from0[r * columns + c];    \
    }
#define TRANSPOSE_WIDE                                                                   \
  for (long c = 0; c < BLOCK; c++)                                                       \
    for (long r = 0; r < BLOCK; r++) to0[c * rows + r] = from0[r * columns + c]

static void transpose(void *to, const void *from, long rows, long columns, long element) {
  if (element == 4) {
    TRANSPOSE(uint32_t, HLOC_LANES32, hloc_transpose_tile_32(from0, columns, to0, rows))
  } else if (element == 8) {
    TRANSPOSE(uint64_t, HLOC_LANES64, hloc_transpose_tile_64(from0, columns, to0, rows))
  } else {
    TRANSPOSE(wide, BLOCK, TRANSPOSE_WIDE)
  }
}

/* element: of a real matrix. */
#define JOIN_PAIRS(TYPE)                                                                                          \
  for (long c = 0; c < size; c++) {                                                                               \
    const int is_pair = ((const TYPE *)imaginary)[c] != 0;                                                        \
    for (long r = 0; r < size; r++) {                                                                             \
      const TYPE re = ((const TYPE *)from)[c * size + r];                                                         \
      const TYPE im = is_pair ? ((const TYPE *)from)[(c + 1) * size + r] : 0;                                     \
      TYPE *first = (TYPE *)to + 2 * (r * size + c);                                                              \
      first[0] = re, first[1] = im;                                                                               \
      if (is_pair) first[2] = re, first[3] = -im;                                                                 \
    }                                                                                                             \
    c += is_pair;                                                                                                 \
  }
static void join_pairs(void *to, const void *from, const void *imaginary, long size, long element) {
  if (element == 4) { JOIN_PAIRS(float) }
  else { JOIN_PAIRS(double) }
}

/* A batch on one thread. */
typedef struct { void *const *at; char *scratch; long n; } place;

static char *find(const place *p, hloc_lapack_place of) {
  return of.array < 0 ? p->scratch + of.bytes : (char *)p->at[of.array] + p->n * of.bytes;
}

static void move(const place *p, const hloc_lapack_move *m) {
  const long rows = m->rows, columns = m->columns, element = m->element, bytes = rows * columns * element;
  char *to = find(p, m->to);
  switch (m->what) {
    case HLOC_MOVE_TRANSPOSE: transpose(to, find(p, m->from), rows, columns, element); break;
    case HLOC_MOVE_COPY: memcpy(to, find(p, m->from), bytes); break;
    case HLOC_MOVE_ZERO: memset(to, 0, bytes); break;
    case HLOC_MOVE_NAN:
      for (long i = 0; i < rows * columns; i++)
        if (element == 4) ((float *)to)[i] = NAN;
        else ((double *)to)[i] = NAN;
      break;
    case HLOC_MOVE_LOWER:
      for (long c = 1; c < columns; c++) memset(to + c * rows * element, 0, (c < rows ? c : rows) * element);
      break;
    case HLOC_MOVE_UPPER:
      for (long c = 0; c + 1 < rows; c++) memset(to + (c * rows + c + 1) * element, 0, (rows - c - 1) * element);
      break;
    case HLOC_MOVE_PAIRS: join_pairs(to, find(p, m->from), find(p, m->beside), rows, element); break;
  }
}

typedef void *P;                                   /* letters, numbers and arrays: Fortran takes addresses of all */

static void run(void *const *arguments, long begin, long end) {
  const hloc_lapack_call *call = arguments[0];
  place p = {arguments[1], hloc_own_scratch(call->own, arguments[2]), 0};
  void (*const function)(P, P, P, P, P, P, P, P, P, P, P, P, P, P, P) = hloc_lapack_table[call->function];
  P a[HLOC_LAPACK_ARGUMENTS];
  if (!p.scratch) return;
  for (p.n = begin; p.n < end; p.n++) {
    if (HLOC_STOPS()) return; /* one matrix may take seconds */
    for (const hloc_lapack_move *m = call->before; m->what; m++) move(&p, m);
    int *info = (int *)p.scratch;
    *info = 0;
    for (int i = 0; i < HLOC_LAPACK_ARGUMENTS; i++) {
      const hloc_lapack_argument *of = call->arguments + i;
      a[i] = of->array == HLOC_NUMBER ? (P)&of->of : find(&p, (hloc_lapack_place){of->array, of->of.bytes});
    }
    /* A function that has fewer arguments does not see the others. */
    function(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13], a[14]);
    for (const hloc_lapack_move *m = call->after; m->what; m++)
      if (!m->if_failed || *info) move(&p, m);
  }
}

int hloc_lapack(const hloc_lapack_call *call, void *const *pointers) {
  int failed = 0;
  void *arguments[3] = {(void *)call, (void *)pointers, &failed};
  if (call->batch > 0) hloc_parallel(run, arguments, call->batch, call->grain);
  return failed;
}
