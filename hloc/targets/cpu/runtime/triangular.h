/* triangular.h: Cholesky factorizations and triangular solves of batches of row-major matrices.
 *
 * int hloc_cholesky_f32(const hloc_cholesky_plan*, const float* a, float* factor)
 *   a, factor: [batch][n][n]. lower: the lower triangle of `a` is read and the factor is lower; else both are upper.
 *   The other triangle of the factor is zero. All of a factor is NaN whose matrix is not positive definite.
 * int hloc_trisolve_f32(const hloc_system_plan*, const float* a, const float* b, float* x)
 *   op(a) x = b, or x op(a) = b from the right; a: [batch][n][n], of which one triangle is read; b and x:
 *   [batch][n][m], from the right [batch][m][n]. x must not overlap a or b.
 * The same with f64 for doubles. Return 0 when done, 1 when memory is exhausted.
 *
 * Both process a few rows x[r..] at a time, which are in registers, a strip of columns wide: they subtract all rows
 * above, each times a factor, and then solve the small triangle on the diagonal. A Cholesky factor is its own x.
 * Matrices, or the strips of right-hand sides, are distributed over threads. One or two right-hand sides are
 * solved one by one, by rows of the matrix in memory. hloc/targets/cpu/plans/triangular.py decides, and says what the
 * fields mean.
 */
#ifndef HLOC_TRIANGULAR_H
#define HLOC_TRIANGULAR_H
#include <stddef.h>

#include "fits.h"
#include "vector_bytes.h"

#define HLOC_CHOLESKY_PANEL 64 /* rows of a factor that one thread finishes before all continue */
#if HLOC_VECTOR_BYTES == 64
#define HLOC_TRIANGULAR_ROWS 8 /* of a tile */
#else
#define HLOC_TRIANGULAR_ROWS 4
#endif
typedef struct { long n, batch, stride, grain, panel_work; size_t own; int lower; } hloc_cholesky_plan;
typedef struct {
  long n, m, batch, a_row, a_column, packed, grain;
  size_t own;
  int from_left, reversed, unit, by_lines;
} hloc_system_plan;
int hloc_cholesky_f32(const hloc_cholesky_plan* plan, const float* a, float* factor);
int hloc_cholesky_f64(const hloc_cholesky_plan* plan, const double* a, double* factor);
int hloc_trisolve_f32(const hloc_system_plan* plan, const float* a, const float* b, float* x);
int hloc_trisolve_f64(const hloc_system_plan* plan, const double* a, const double* b, double* x);
#endif
