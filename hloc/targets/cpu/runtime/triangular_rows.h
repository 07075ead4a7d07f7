/* triangular_rows.h: triangular.h for one type (template; triangular_f32.c and triangular_f64.c include it).
 *
 * In (macros): F(name) the instance's name, F_KERNEL(name) without prefix, REAL, VECTOR of vector.h, TRANSPOSE its
 * square transpose, SQRT.
 */
#include <string.h>

#include "pool.h"
#include "triangular.h"
#include "vector.h"

enum { F(LANES) = HLOC_VECTOR_BYTES / sizeof(REAL), F(ROWS) = HLOC_TRIANGULAR_ROWS, F(VECTORS) = 2,
       F(WIDTH) = F(LANES) * F(VECTORS), F(PANEL) = HLOC_CHOLESKY_PANEL };
typedef struct { VECTOR v[F(ROWS)][F(VECTORS)]; } F(tile);

static inline long F(up)(long n, long unit) { return (n + unit - 1) / unit * unit; }

/* -- the rows ------------------------------------------------------------------------------------------------------ */

/* x[r + i] minus the sum over k < r of factors[k][i] x[k]. step, stride: row strides of factors and x. */
static inline F(tile) F(subtracted)(const REAL* factors, long step, const REAL* x, long stride, long r) {
  F(tile) t;
  HLOC_UNROLL for (int i = 0; i < F(ROWS); i++)
    HLOC_UNROLL for (int v = 0; v < F(VECTORS); v++) t.v[i][v] = F(load)(x + (r + i) * stride + v * F(LANES));
  for (long k = 0; k < r; k++, factors += step, x += stride) {
    VECTOR row[F(VECTORS)];
    HLOC_UNROLL for (int v = 0; v < F(VECTORS); v++) row[v] = F(load)(x + v * F(LANES));
    HLOC_UNROLL for (int i = 0; i < F(ROWS); i++)
      HLOC_UNROLL for (int v = 0; v < F(VECTORS); v++) t.v[i][v] -= factors[i] * row[v];
  }
  return t;
}

static inline void F(put)(const F(tile)* t, REAL* x, long stride) {
  HLOC_UNROLL for (int i = 0; i < F(ROWS); i++)
    HLOC_UNROLL for (int v = 0; v < F(VECTORS); v++) F(store)(x + i * stride + v * F(LANES), t->v[i][v]);
}

/* Solve the triangle on the diagonal, triangle[k][i] for k < i, with the inverses of its diagonal. */
static inline void F(substitute)(F(tile) t, const REAL* triangle, long step, const REAL* inverse, REAL* x,
                                 long stride) {
  HLOC_UNROLL for (int k = 0; k < F(ROWS); k++) {
    HLOC_UNROLL for (int v = 0; v < F(VECTORS); v++) t.v[k][v] *= inverse[k];
    HLOC_UNROLL for (int i = k + 1; i < F(ROWS); i++)
      HLOC_UNROLL for (int v = 0; v < F(VECTORS); v++) t.v[i][v] -= triangle[k * step + i] * t.v[k][v];
  }
  F(put)(&t, x, stride);
}

static __attribute__((noinline)) void F(rows)(const REAL* factors, long step, const REAL* inverse, REAL* x,
                                              long stride, long r) {
  F(substitute)(F(subtracted)(factors, step, x, stride, r), factors + r * step, step, inverse, x + r * stride, stride);
}

/* to[column][row] = from[row][column] */
static void F(transpose_block)(const REAL* from, long from_stride, REAL* to, long to_stride, long rows, long columns) {
  for (long r = 0; r < rows; r += F(LANES))
    for (long c = 0; c < columns; c += F(LANES)) {
      const long height = rows - r < F(LANES) ? rows - r : F(LANES);
      const long width = columns - c < F(LANES) ? columns - c : F(LANES);
      const REAL* source = from + r * from_stride + c;
      REAL* target = to + c * to_stride + r;
      if (height == F(LANES) && width == F(LANES)) TRANSPOSE(source, from_stride, target, to_stride);
      else
        for (long j = 0; j < width; j++)
          for (long i = 0; i < height; i++) target[j * to_stride + i] = source[i * from_stride + j];
    }
}

/* -- Cholesky ------------------------------------------------------------------------------------------------------ */

/* The partial upper factor: rows and columns are padded with those of the identity matrix. Elements below the diagonal
 * are read only by lanes that write there. Row r + i times inverse[i] for the rows of this panel. */
typedef struct { REAL* u; long n, stride, panel_work, panel, first_strip; REAL inverse[F(PANEL)]; } F(factor);

/* The upper factor of a small matrix, of which the upper triangle is read; 0 if it has none. */
static int F(small_factor)(const REAL* a, long stride, REAL* t, REAL* inverse) {
  for (int i = 0; i < F(ROWS); i++)
    for (int j = 0; j < F(ROWS); j++) t[i * F(ROWS) + j] = a[i * stride + j];
  for (int k = 0; k < F(ROWS); k++) {
    REAL* row = t + k * F(ROWS);
    if (!(row[k] > 0)) return 0;
    row[k] = SQRT(row[k]);
    inverse[k] = 1 / row[k];
    for (int j = k + 1; j < F(ROWS); j++) row[j] *= inverse[k];
    for (int i = k + 1; i < F(ROWS); i++)
      HLOC_UNROLL for (int j = 0; j < F(ROWS); j++) t[i * F(ROWS) + j] -= row[i] * row[j]; /* whole rows: vectors */
  }
  return 1;
}

/* The rows of a panel in its own columns; 0 if the matrix is not positive definite. */
static int F(diagonal)(F(factor)* f, long end) {
  const long stride = f->stride;
  for (long r = f->panel; r < end; r += F(ROWS)) {
    const long first = r / F(WIDTH) * F(WIDTH);
    REAL triangle[F(ROWS) * F(ROWS)], *inverse = f->inverse + (r - f->panel), *corner = f->u + r * stride + r;
    F(tile) t = F(subtracted)(f->u + r, stride, f->u + first, stride, r);
    F(put)(&t, f->u + r * stride + first, stride);
    if (!F(small_factor)(corner, stride, triangle, inverse)) return 0;
    F(substitute)(t, triangle, F(ROWS), inverse, f->u + r * stride + first, stride);
    for (int i = 0; i < F(ROWS); i++)
      memcpy(corner + i * stride + i, triangle + i * F(ROWS) + i, (F(ROWS) - i) * sizeof(REAL));
    for (long c = first + F(WIDTH); c < end; c += F(WIDTH)) F(rows)(f->u + r, stride, inverse, f->u + c, stride, r);
  }
  return 1;
}

static void F(panel_strips)(void* const* args, long begin, long end) {
  const F(factor)* f = (const F(factor)*)args;
  for (long strip = f->first_strip + begin; strip < f->first_strip + end; strip++)
    for (long r = f->panel; r < f->panel + F(PANEL); r += F(ROWS))
      F(rows)(f->u + r, f->stride, f->inverse + (r - f->panel), f->u + strip * F(WIDTH), f->stride, r);
}

static int F(factorize)(F(factor)* f) {
  const long rows = F(up)(f->n, F(ROWS)), strips = F(up)(f->n, F(WIDTH)) / F(WIDTH);
  for (f->panel = 0; f->panel < rows; f->panel += F(PANEL)) {
    const long end = rows - f->panel < F(PANEL) ? rows : f->panel + F(PANEL);
    if (!F(diagonal)(f, end)) return 0;
    f->first_strip = end / F(WIDTH);
    if (end < rows)
      hloc_parallel(F(panel_strips), (void* const*)f, strips - f->first_strip,
                    1 + f->panel_work / end);
  }
  return 1;
}

/* The triangle of `a` as an upper one, and back. A lower one is transposed, LANES rows at a time. */
static void F(load_factor)(const F(factor)* f, const REAL* a, int lower) {
  const long n = f->n, stride = f->stride, rows = F(up)(n, F(ROWS)), columns = F(up)(n, F(WIDTH));
  for (long r = 0; lower && r < n; r += F(LANES)) {
    const long height = n - r < F(LANES) ? n - r : F(LANES);
    F(transpose_block)(a + r * n, n, f->u + r, stride, height, r + height);
  }
  for (long r = 0; !lower && r < n; r++) memcpy(f->u + r * stride + r, a + r * n + r, (n - r) * sizeof(REAL));
  for (long r = 0; columns > n && r < rows; r++) memset(f->u + r * stride + n, 0, (columns - n) * sizeof(REAL));
  for (long r = n; r < rows; r++) f->u[r * stride + r] = 1;
}

static void F(store_factor)(const F(factor)* f, REAL* out, int lower) {
  static const REAL numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const long n = f->n;
  const VECTOR lane = F(load)(numbers);
  for (long r = 0; r < n; r++) {
    const long first = r / F(LANES) * F(LANES);
    REAL* row = f->u + r * f->stride;
    const __typeof__(lane < lane) is_above = lane >= F(splat)((REAL)(r - first));
    F(store)(row + first, (VECTOR)((__typeof__(is_above))F(load)(row + first) & is_above));
    if (lower) continue;
    memset(out + r * n, 0, first * sizeof(REAL));
    memcpy(out + r * n + first, row + first, (n - first) * sizeof(REAL));
  }
  for (long r = 0; lower && r < n; r += F(LANES)) {
    const long height = n - r < F(LANES) ? n - r : F(LANES);
    F(transpose_block)(f->u + r, f->stride, out + r * n, n, r + height, height);
    for (long i = r; i < r + height; i++) memset(out + i * n + r + height, 0, (n - r - height) * sizeof(REAL));
  }
}

typedef struct { const hloc_cholesky_plan* plan; const REAL* a; REAL* out; int failed; } F(cholesky_work);

static void F(some_factors)(void* const* args, long begin, long end) {
  F(cholesky_work)* w = (F(cholesky_work)*)args;
  const hloc_cholesky_plan* p = w->plan;
  const long n = p->n;
  F(factor) f = {hloc_own_scratch(p->own, &w->failed), n, p->stride, p->panel_work, 0, 0, {0}};
  if (!f.u) return;
  for (long b = begin; b < end; b++) {
    REAL* out = w->out + b * n * n;
    F(load_factor)(&f, w->a + b * n * n, p->lower);
    if (F(factorize)(&f)) F(store_factor)(&f, out, p->lower);
    else
      for (long i = 0; i < n * n; i++) out[i] = __builtin_nanf("");
  }
}

HLOC_COMPILED_FOR(F_KERNEL(cholesky), HLOC_VECTOR_BYTES, HLOC_TRIANGULAR_ROWS, HLOC_CHOLESKY_PANEL, 0)
int F(cholesky)(const hloc_cholesky_plan* plan, const REAL* a, REAL* factor) {
  F(cholesky_work) w = {plan, a, factor, 0};
  hloc_parallel(F(some_factors), (void* const*)&w, plan->batch, plan->grain);
  return w.failed;
}

/* -- triangular solves --------------------------------------------------------------------------------------------- */

/* All forms as a solve with a lower triangle from the left: row and column strides of the matrix and of b and x. An
 * upper triangle is a lower one read from its end; reversed: so are b and x. */
typedef struct {
  const hloc_system_plan* plan;
  const REAL *a, *b;
  REAL* x;
  int failed;
} F(system);

/* Groups of ROWS interleaved rows of the matrix, up to the diagonal; then the inverses of the diagonal. The last group
 * is padded with rows of the identity matrix. */
static REAL* F(group)(REAL* packed, long r) { return packed + r * (r + F(ROWS)) / 2; }

/* 0 if a number on the diagonal is so large that its inverse is subnormal, which is flushed to zero. */
static int F(pack)(const F(system)* s, const REAL* a, REAL* packed) {
  int inverses = 1;
  const long n = s->plan->n, rows = F(up)(n, F(ROWS)), across = s->plan->a_row, along = s->plan->a_column;
  REAL* inverse = F(group)(packed, rows);
  if (s->plan->reversed) a += (n - 1) * (n + 1);
  for (long r = 0; r < rows; r += F(ROWS)) {
    REAL* to = F(group)(packed, r);
    const REAL* from = a + r * across;
    if (r + F(ROWS) <= n)
      for (long k = 0; k < r; k++)
        HLOC_UNROLL for (int i = 0; i < F(ROWS); i++) to[k * F(ROWS) + i] = from[i * across + k * along];
    for (long k = r + F(ROWS) <= n ? r : 0; k < r + F(ROWS); k++)
      for (int i = 0; i < F(ROWS); i++)
        to[k * F(ROWS) + i] = r + i < n && k < r + i ? from[i * across + k * along] : 0;
    for (int i = 0; i < F(ROWS); i++) {
      const REAL diagonal = r + i < n && !s->plan->unit ? from[i * across + (r + i) * along] : 1;
      inverse[r + i] = 1 / diagonal;
      inverses &= inverse[r + i] != 0 || diagonal - diagonal != 0;
    }
  }
  return inverses;
}

/* A strip of right-hand sides: copied to scratch memory, solved there, and copied back. */
static void F(solve_strip)(const F(system)* s, REAL* packed, REAL* strip, const REAL* b, REAL* x, long column) {
  const long n = s->plan->n, m = s->plan->m, rows = F(up)(n, F(ROWS));
  const long width = m - column < F(WIDTH) ? m - column : F(WIDTH);
  REAL* inside = strip + (s->plan->reversed ? (rows - n) * F(WIDTH) : 0);
  REAL* first = strip + (s->plan->reversed ? (rows - 1) * F(WIDTH) : 0);
  const long stride = s->plan->reversed ? -F(WIDTH) : F(WIDTH);
  if (width < F(WIDTH) || rows > n) memset(strip, 0, rows * F(WIDTH) * sizeof(REAL));
  if (s->plan->from_left)
    for (long r = 0; r < n; r++) memcpy(inside + r * F(WIDTH), b + r * m + column, width * sizeof(REAL));
  else F(transpose_block)(b + column * n, n, inside, F(WIDTH), width, n);
  for (long r = 0; r < rows; r += F(ROWS))
    F(rows)(F(group)(packed, r), F(ROWS), F(group)(packed, rows) + r, first, stride, r);
  if (s->plan->from_left)
    for (long r = 0; r < n; r++) memcpy(x + r * m + column, inside + r * F(WIDTH), width * sizeof(REAL));
  else F(transpose_block)(inside, F(WIDTH), x + column * n, n, n, width);
}

static REAL F(dot)(const REAL* a, const REAL* x, long n) {
  VECTOR sum[2] = {{0}, {0}};
  long i = 0;
  for (; i + F(WIDTH) <= n; i += F(WIDTH))
    HLOC_UNROLL for (int v = 0; v < 2; v++) sum[v] += F(load)(a + i + v * F(LANES)) * F(load)(x + i + v * F(LANES));
  for (; i + F(LANES) <= n; i += F(LANES)) sum[0] += F(load)(a + i) * F(load)(x + i);
  REAL total = F(sum)(sum[0] + sum[1]);
  for (; i < n; i++) total += a[i] * x[i];
  return total;
}

/* One right-hand side, x, with contiguous elements: along the contiguous lines of the matrix in memory. These are its
 * rows, each a dot product with the solved elements, or its columns, each subtracted from the unsolved ones. */
static void F(solve_line)(const F(system)* s, const REAL* a, REAL* x) {
  const long n = s->plan->n, by_columns = s->plan->a_column != 1 && s->plan->a_column != -1;
  for (long k = 0; k < n; k++) {
    const long i = s->plan->reversed ? n - 1 - k : k, left = s->plan->reversed == by_columns ? 0 : i + 1;
    const long count = left ? n - left : i;
    const REAL* row = a + i * n;
    if (!by_columns) x[i] -= F(dot)(row + left, x + left, count);
    if (!s->plan->unit) x[i] /= row[i];
    if (!by_columns) continue;
    long j = left;
    for (; j + F(LANES) <= left + count; j += F(LANES)) F(store)(x + j, F(load)(x + j) - F(load)(row + j) * x[i]);
    for (; j < left + count; j++) x[j] -= row[j] * x[i];
  }
}
/* The right-hand sides from <= c < to of matrix i, one after the other. */
static void F(solve_lines)(const F(system)* s, long i, long from, long to, REAL* line) {
  const long n = s->plan->n, m = s->plan->m, step = s->plan->from_left ? m : 1, side = s->plan->from_left ? 1 : n;
  for (long c = from; c < to; c++) {
    const REAL* b = s->b + i * n * m + c * side;
    REAL* x = s->x + i * n * m + c * side;
    for (long r = 0; r < n; r++) line[r] = b[r * step];
    F(solve_line)(s, s->a + i * n * n, line);
    for (long r = 0; r < n; r++) x[r * step] = line[r];
  }
}
/* Strips of right-hand sides; a thread packs the matrix of those that it solves. */
static void F(some_strips)(void* const* args, long begin, long end) {
  F(system)* s = (F(system)*)args;
  const hloc_system_plan* p = s->plan;
  const long n = p->n, m = p->m, width = p->by_lines ? m : F(WIDTH), strips = (m + width - 1) / width;
  REAL* packed = hloc_own_scratch(p->own, &s->failed);
  if (!packed) return;
  for (long t = begin, is_packed = 0; t < end; t++) {
    const long i = t / strips, c = t % strips * width;
    if (!p->by_lines && (t == begin || c == 0)) is_packed = F(pack)(s, s->a + i * n * n, packed);
    if (is_packed) F(solve_strip)(s, packed, packed + p->packed, s->b + i * n * m, s->x + i * n * m, c);
    else F(solve_lines)(s, i, c, c + width < m ? c + width : m, packed);
  }
}

HLOC_COMPILED_FOR(F_KERNEL(trisolve), HLOC_VECTOR_BYTES, HLOC_TRIANGULAR_ROWS, HLOC_CHOLESKY_PANEL, 0)
int F(trisolve)(const hloc_system_plan* p, const REAL* a, const REAL* b, REAL* x) {
  const long strips = p->by_lines ? 1 : (p->m + F(WIDTH) - 1) / F(WIDTH);
  F(system) s = {p, a, b, x, 0};
  hloc_parallel(F(some_strips), (void* const*)&s, p->batch * strips, p->grain);
  return s.failed;
}
