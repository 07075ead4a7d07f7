/* lapack.c: see lapack.h. Each matrix is transposed into scratch memory, since LAPACK is column-major, and back. Small
 * ones are split over the pool; for large ones LAPACK has its own threads. */
#include <math.h>
#include <stdint.h>
#include <string.h>
#include "lapack.h"
#include "pool.h"
#include "vector.h"

__attribute__((visibility("default"))) void *hloc_lapack_table[HLOC_LAPACK_ROUTINES][4];

enum { LARGE = 192, PIECE = 40000, BLOCK = 4 };    /* rows; multiply-adds of a piece; a square of wide elements */

/* A batch: element, real: bytes; a, b, c: bytes of the matrices in scratch; lwork, lrwork, liwork: elements. */
typedef struct {
  const hloc_lapack_call *call;
  void *const *at;
  size_t element, real, a, b, c;
  int lwork, lrwork, liwork, failed;
} batch;

/* One thread's scratch memory. */
typedef struct { char *a, *b, *c, *work, *rwork; int *iwork; } place;

static int least(int x, int y) { return x < y ? x : y; }
static int most(int x, int y) { return x > y ? x : y; }
static size_t padded(size_t bytes) { return (bytes + 63) / 64 * 64; }

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

typedef struct { uint64_t low, high; } wide;

/* Row-major rows x columns -> its columns, one after the other; and back, with the sizes exchanged. */
static void transpose(void *to, const void *from, long rows, long columns, size_t element) {
  if (element == 4) {
    TRANSPOSE(uint32_t, HLOC_LANES32, hloc_transpose_tile_32(from0, columns, to0, rows))
  } else if (element == 8) {
    TRANSPOSE(uint64_t, HLOC_LANES64, hloc_transpose_tile_64(from0, columns, to0, rows))
  } else {
    TRANSPOSE(wide, BLOCK, TRANSPOSE_WIDE)
  }
}

/* The n-th matrix (or vector) of an operand or result, each of `elements` elements. */
static void *nth(const batch *b, int pointer, long n, long elements, size_t bytes) {
  return (char *)b->at[pointer] + (size_t)n * elements * bytes;
}
static void load(const batch *b, void *to, int pointer, long n, long rows, long columns) {
  transpose(to, nth(b, pointer, n, rows * columns, b->element), rows, columns, b->element);
}
static void store(const batch *b, int pointer, long n, const void *from, long rows, long columns) {
  transpose(nth(b, pointer, n, rows * columns, b->element), from, columns, rows, b->element);
}

static void fill_nan(const batch *b, char *a, size_t bytes) {
  for (size_t at = 0; at < bytes; at += b->real) {
    if (b->real == 4) *(float *)(a + at) = NAN;
    else *(double *)(a + at) = NAN;
  }
}

/* A triangular factor: zeros in the other triangle; all NaN if there is no factor. */
static void clean_factor(const batch *b, char *a, int n, int is_lower, int failed) {
  if (failed) {
    fill_nan(b, a, (size_t)n * n * b->element);
    return;
  }
  for (long c = 0; c < n; c++)
    for (long r = 0; r < n; r++)
      if (is_lower ? r < c : r > c) memset(a + (c * n + r) * b->element, 0, b->element);
}

/* -- one function per routine, for matrix n of the batch; with lwork -1 it only asks how much work it wants ------- */

#define LAPACK(...) ((void (*)(__VA_ARGS__))hloc_lapack_table[call->routine][call->type])
typedef void *P;                                   /* letters, numbers and arrays: Fortran takes addresses of all */

static int potrf(const batch *b, const hloc_lapack_call *call, place *p, long n) {
  int size = call->rows, info = 0;
  char uplo = call->options[0];
  load(b, p->a, 0, n, size, size);
  LAPACK(P, P, P, P, P)(&uplo, &size, p->a, &size, &info);
  clean_factor(b, p->a, size, uplo == 'L', info != 0);
  store(b, 1, n, p->a, size, size);
  return info;
}

static int getrf(const batch *b, const hloc_lapack_call *call, place *p, long n) {
  int rows = call->rows, columns = call->columns, info = 0;
  load(b, p->a, 0, n, rows, columns);
  LAPACK(P, P, P, P, P, P)(&rows, &columns, p->a, &rows, nth(b, 2, n, least(rows, columns), 4), &info);
  store(b, 1, n, p->a, rows, columns);
  return info;
}

static int geqrf(const batch *b, const hloc_lapack_call *call, place *p, long n, int lwork) {
  int rows = call->rows, columns = call->columns, info = 0;
  if (lwork > 0) load(b, p->a, 0, n, rows, columns);
  LAPACK(P, P, P, P, P, P, P, P)(&rows, &columns, p->a, &rows, nth(b, 2, n, least(rows, columns), b->element),
                                   p->work, &lwork, &info);
  if (lwork > 0) store(b, 1, n, p->a, rows, columns);
  return info;
}

static int orgqr(const batch *b, const hloc_lapack_call *call, place *p, long n, int lwork) {
  int rows = call->rows, columns = call->columns, count = call->other, info = 0;
  if (lwork > 0) load(b, p->a, 0, n, rows, columns);
  LAPACK(P, P, P, P, P, P, P, P, P)(&rows, &columns, &count, p->a, &rows, nth(b, 1, n, count, b->element), p->work,
                                      &lwork, &info);
  if (lwork > 0) store(b, 2, n, p->a, rows, columns);
  return info;
}

static int syevd(const batch *b, const hloc_lapack_call *call, place *p, long n, int lwork, int lrwork, int liwork) {
  int size = call->rows, info = 0;
  char job = call->options[0], uplo = call->options[1];
  P values = nth(b, 2, n, size, b->real);
  if (lwork > 0) load(b, p->a, 0, n, size, size);
  if (call->type < 2)
    LAPACK(P, P, P, P, P, P, P, P, P, P, P)(&job, &uplo, &size, p->a, &size, values, p->work, &lwork, p->iwork,
                                              &liwork, &info);
  else
    LAPACK(P, P, P, P, P, P, P, P, P, P, P, P, P)(&job, &uplo, &size, p->a, &size, values, p->work, &lwork, p->rwork,
                                                    &lrwork, p->iwork, &liwork, &info);
  if (lwork > 0) store(b, 1, n, p->a, size, size);
  return info;
}

/* gesdd and gesvd. */
static int singular_values(const batch *b, const hloc_lapack_call *call, place *p, long n, int lwork) {
  int rows = call->rows, columns = call->columns, small = least(rows, columns), info = 0;
  char job = call->options[0];
  int left = job == 'S' ? small : rows, right = job == 'S' ? small : columns;
  const size_t bytes = (size_t)rows * columns * b->element;
  P values = nth(b, 2, n, small, b->real);
  if (lwork > 0) load(b, p->a, 0, n, rows, columns);
  if (call->routine == HLOC_GESVD && call->type < 2)
    LAPACK(P, P, P, P, P, P, P, P, P, P, P, P, P, P)(&job, &job, &rows, &columns, p->a, &rows, values, p->b, &rows,
                                                       p->c, &right, p->work, &lwork, &info);
  else if (call->routine == HLOC_GESVD)
    LAPACK(P, P, P, P, P, P, P, P, P, P, P, P, P, P, P)(&job, &job, &rows, &columns, p->a, &rows, values, p->b, &rows,
                                                          p->c, &right, p->work, &lwork, p->rwork, &info);
  else if (call->type < 2)
    LAPACK(P, P, P, P, P, P, P, P, P, P, P, P, P, P)(&job, &rows, &columns, p->a, &rows, values, p->b, &rows, p->c,
                                                       &right, p->work, &lwork, p->iwork, &info);
  else
    LAPACK(P, P, P, P, P, P, P, P, P, P, P, P, P, P, P)(&job, &rows, &columns, p->a, &rows, values, p->b, &rows, p->c,
                                                          &right, p->work, &lwork, p->rwork, p->iwork, &info);
  if (lwork < 0) return info;
  memcpy((char *)b->at[1] + n * bytes, (char *)b->at[0] + n * bytes, bytes);
  if (job == 'N') memset(p->b, 0, b->b), memset(p->c, 0, b->c);
  store(b, 3, n, p->b, rows, left);
  store(b, 4, n, p->c, right, columns);
  return info;
}

static int trsm(const batch *b, const hloc_lapack_call *call, place *p, long n) {
  char side = call->options[0], uplo = call->options[1], trans = call->options[2], diagonal = call->options[3];
  int size = call->rows, rows = side == 'L' ? size : call->other, columns = side == 'L' ? call->other : size;
  const double one_f64[2] = {1, 0};
  const float one_f32[2] = {1, 0};
  load(b, p->a, 0, n, size, size);
  load(b, p->b, 1, n, rows, columns);
  LAPACK(P, P, P, P, P, P, P, P, P, P, P)(&side, &uplo, &trans, &diagonal, &rows, &columns,
                                            b->real == 4 ? (P)one_f32 : (P)one_f64, p->a, &size, p->b, &rows);
  store(b, 2, n, p->b, rows, columns);
  return 0;
}

/* The diagonals are results, too, as they were given; LAPACK overwrites copies of them. */
static int gtsv(const batch *b, const hloc_lapack_call *call, place *p, long n) {
  int size = call->rows, sides = call->other, info = 0;
  const size_t bytes = size * b->element;
  for (int i = 0; i < 3; i++) {
    const void *given = nth(b, i, n, size, b->element);
    memcpy(p->a + i * bytes, given, bytes);
    memcpy(nth(b, 4 + i, n, size, b->element), given, bytes);
  }
  load(b, p->b, 3, n, size, sides);
  LAPACK(P, P, P, P, P, P, P, P)(&size, &sides, p->a + b->element, p->a + bytes, p->a + 2 * bytes, p->b, &size, &info);
  if (info) fill_nan(b, p->b, b->b);
  store(b, 7, n, p->b, size, sides);
  return info;
}

static int gehrd(const batch *b, const hloc_lapack_call *call, place *p, long n, int lwork) {
  int size = call->rows, low = 1, info = 0;
  if (lwork > 0) load(b, p->a, 0, n, size, size);
  LAPACK(P, P, P, P, P, P, P, P, P)(&size, &low, &size, p->a, &size, nth(b, 2, n, size - 1, b->element), p->work,
                                      &lwork, &info);
  if (lwork > 0) store(b, 1, n, p->a, size, size);
  return info;
}

static int sytrd(const batch *b, const hloc_lapack_call *call, place *p, long n, int lwork) {
  int size = call->rows, info = 0;
  char uplo = call->options[0];
  if (lwork > 0) load(b, p->a, 0, n, size, size);
  LAPACK(P, P, P, P, P, P, P, P, P, P)(&uplo, &size, p->a, &size, nth(b, 2, n, size, b->real),
                                         nth(b, 3, n, size - 1, b->real), nth(b, 4, n, size - 1, b->element), p->work,
                                         &lwork, &info);
  if (lwork > 0) store(b, 1, n, p->a, size, size);
  return info;
}

/* Nothing is selected: eigenvalues are not reordered. */
static int gees(const batch *b, const hloc_lapack_call *call, place *p, long n, int lwork) {
  int size = call->rows, selected = 0, info = 0;
  char job = call->options[0], sort = 'N';
  P values = nth(b, 3, n, size, b->element);
  if (lwork > 0) load(b, p->a, 0, n, size, size);
  if (call->type < 2)
    LAPACK(P, P, P, P, P, P, P, P, P, P, P, P, P, P, P)(&job, &sort, NULL, &size, p->a, &size, &selected, values,
                                                          nth(b, 4, n, size, b->element), p->b, &size, p->work, &lwork,
                                                          NULL, &info);
  else
    LAPACK(P, P, P, P, P, P, P, P, P, P, P, P, P, P, P)(&job, &sort, NULL, &size, p->a, &size, &selected, values, p->b,
                                                          &size, p->work, &lwork, p->rwork, NULL, &info);
  if (lwork < 0) return info;
  store(b, 1, n, p->a, size, size);
  store(b, 2, n, p->b, size, size);
  *(int *)nth(b, call->type < 2 ? 5 : 4, n, 1, sizeof(int)) = selected;
  return info;
}

/* Eigenvectors as complex numbers, row by row. LAPACK gives those of a real matrix as columns of real numbers: a pair
 * of conjugates is its real part, then its imaginary part. */
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
static void store_vectors(const batch *b, int pointer, long n, const void *from, const void *imaginary, int wanted) {
  const long size = b->call->rows, bytes = b->call->type < 2 ? 2 * b->element : b->element;
  void *to = nth(b, pointer, n, size * size, bytes);
  if (!wanted) memset(to, 0, size * size * bytes);
  else if (b->call->type >= 2) store(b, pointer, n, from, size, size);
  else if (b->real == 4) { JOIN_PAIRS(float) }
  else { JOIN_PAIRS(double) }
}

static int geev(const batch *b, const hloc_lapack_call *call, place *p, long n, int lwork) {
  int size = call->rows, info = 0;
  char left = call->options[0], right = call->options[1];
  const int is_real = call->type < 2;
  P values = nth(b, 1, n, size, b->element), imaginary = nth(b, 2, n, size, b->element);
  if (lwork > 0) load(b, p->a, 0, n, size, size);
  if (is_real)
    LAPACK(P, P, P, P, P, P, P, P, P, P, P, P, P, P)(&left, &right, &size, p->a, &size, values, imaginary, p->b, &size,
                                                       p->c, &size, p->work, &lwork, &info);
  else
    LAPACK(P, P, P, P, P, P, P, P, P, P, P, P, P, P)(&left, &right, &size, p->a, &size, values, p->b, &size, p->c,
                                                       &size, p->work, &lwork, p->rwork, &info);
  if (lwork < 0) return info;
  if (info) {
    fill_nan(b, values, size * b->element), fill_nan(b, p->b, b->b), fill_nan(b, p->c, b->c);
    if (is_real) memset(imaginary, 0, size * b->element);
  }
  store_vectors(b, 2 + is_real, n, p->b, imaginary, left == 'V');
  store_vectors(b, 3 + is_real, n, p->c, imaginary, right == 'V');
  return info;
}

static int one(const batch *b, place *p, long n, int lwork, int lrwork, int liwork) {
  switch (b->call->routine) {
    case HLOC_POTRF: return potrf(b, b->call, p, n);
    case HLOC_GETRF: return getrf(b, b->call, p, n);
    case HLOC_GEQRF: return geqrf(b, b->call, p, n, lwork);
    case HLOC_ORGQR: return orgqr(b, b->call, p, n, lwork);
    case HLOC_SYEVD: return syevd(b, b->call, p, n, lwork, lrwork, liwork);
    case HLOC_GESDD:
    case HLOC_GESVD: return singular_values(b, b->call, p, n, lwork);
    case HLOC_GTSV: return gtsv(b, b->call, p, n);
    case HLOC_GEHRD: return gehrd(b, b->call, p, n, lwork);
    case HLOC_SYTRD: return sytrd(b, b->call, p, n, lwork);
    case HLOC_GEES: return gees(b, b->call, p, n, lwork);
    case HLOC_GEEV: return geev(b, b->call, p, n, lwork);
    default: return trsm(b, b->call, p, n);
  }
}

/* -- the batch ---------------------------------------------------------------------------------------------------- */

/* Memory of this thread, or 0. Slot 0: LAPACK calls no other routine of this folder. */
static int get_place(batch *b, place *p) {
  const size_t sizes[6] = {b->a, b->b, b->c, b->lwork * b->element, b->lrwork * b->real, b->liwork * sizeof(int)};
  size_t total = 0;
  for (int i = 0; i < 6; i++) total += padded(sizes[i]);
  char *memory = hloc_own_scratch(total + 64, &b->failed);
  char **parts[6] = {&p->a, &p->b, &p->c, &p->work, &p->rwork, (char **)&p->iwork};
  for (int i = 0; memory && i < 6; i++) *parts[i] = memory, memory += padded(sizes[i]);
  return memory != NULL;
}

static void run(void *const *arguments, long begin, long end) {
  batch *b = arguments[0];
  const hloc_lapack_call *call = b->call;
  place p;
  if (!get_place(b, &p)) return;
  for (long n = begin; n < end; n++) {
    if (HLOC_STOPS()) return; /* one matrix may take seconds */
    const int info = one(b, &p, n, b->lwork, b->lrwork, b->liwork);
    if (call->info >= 0) ((int *)b->at[call->info])[n] = info;
  }
}

/* A size of work, which LAPACK returns as a number of the matrix's type. */
static int said(const batch *b, const double *work) {
  float narrow;
  memcpy(&narrow, work, sizeof narrow);
  return (int)(b->real == 4 ? narrow : *work);
}

/* The work sizes of functions with a workspace query. */
static void ask(batch *b) {
  const hloc_lapack_call *call = b->call;
  const int small = least(call->rows, call->columns), large = most(call->rows, call->columns);
  double work[2] = {0, 0}, rwork[2] = {0, 0};
  int iwork[1] = {0};
  char nothing[64];
  place p = {nothing, nothing, nothing, (char *)work, (char *)rwork, iwork};
  const int asks = call->routine != HLOC_POTRF && call->routine != HLOC_GETRF && call->routine != HLOC_TRSM;
  if (!asks || call->routine == HLOC_GTSV) return;
  one(b, &p, 0, -1, -1, -1);
  b->lwork = most(1, said(b, work));
  b->lrwork = said(b, rwork);
  b->liwork = iwork[0];
  if (call->routine == HLOC_GEES) b->lrwork = call->type < 2 ? 0 : call->rows;
  if (call->routine == HLOC_GEEV) b->lrwork = call->type < 2 ? 0 : 2 * call->rows;
  if (call->routine == HLOC_GESVD) b->lrwork = call->type < 2 ? 0 : 5 * small;
  if (call->routine == HLOC_GESDD) {
    b->liwork = 8 * small;
    b->lrwork = call->type < 2 ? 0 : small * most(5 * small + 7, 2 * large + 2 * small + 1);
  }
}

int hloc_lapack(const hloc_lapack_call *call, void *const *pointers) {
  static const size_t elements[4] = {4, 8, 8, 16};
  batch b = {call, pointers, elements[call->type], call->type % 2 ? 8 : 4, 0, 0, 0, 0, 0, 0, 0};
  const long rows = call->rows, columns = call->columns, other = call->other;
  b.a = rows * columns * b.element;
  if (call->routine == HLOC_TRSM || call->routine == HLOC_GTSV) b.b = rows * other * b.element;
  if (call->routine == HLOC_GEES) b.b = b.a;
  if (call->routine == HLOC_GEEV || call->routine == HLOC_GESDD || call->routine == HLOC_GESVD)
    b.b = rows * rows * b.element, b.c = columns * columns * b.element;
  ask(&b);
  void *arguments[1] = {&b};
  const double work = (double)rows * columns * most(least(rows, columns), (int)other);
  const int has_threads = call->routine != HLOC_GTSV && most(rows, columns) > LARGE;
  long grain = has_threads ? call->batch : 1 + (long)(PIECE / (work + 1));
  if (call->batch > 0) hloc_parallel(run, arguments, call->batch, grain);
  return b.failed;
}
