/* gemm_complex.h: matmuls of complex numbers by those of real ones (template; complex_c64.c and complex_c128.c).
 *
 * In (macros): Z(name) the instance's prefix; COMPLEX, REAL; ENTRY and REAL_ENTRY, as in gemm.h; VECTOR, LANES,
 * Z(load), Z(store) and Z(swapped) of vector.h.
 * Out: ENTRY.
 *
 * One operand is kept: read in place, every number as two contiguous real ones. As a rule it is the larger one, if one
 * of its strides is 1. The other operand is copied:
 *   along    the kept operand is contiguous along k: it has 2 k real columns. c + d i of the other operand becomes two
 *            rows (c d) and (-d c), of twice its columns. The sums are complex numbers.
 *   across   the kept operand is contiguous along its rows or columns. The other operand is split: a row of real parts,
 *            a row of imaginary ones. Sums of two rows and two columns are the four partial products of a complex one.
 * If neither has a stride of 1, the larger operand is copied first. The tiles of real sums are combined in finish(),
 * and transposed if the operands were exchanged.
 *
 * hloc/targets/cpu/plans/complex_matmul.py decides which operand is kept and how, and which real product this is.
 */
#include "base.h"
#include "gemm.h"
#include "pool.h"
#include "vector.h"

enum { Z(PIECE) = 32, Z(GRAIN) = 16384 };

/* An operand: `count` rows, or columns, of k numbers; strides along either, and of batches. */
typedef struct { const COMPLEX* at; long count, k, outer, inner, free, depth; } Z(operand);
typedef struct {
  hloc_gemm_args g;
  Z(operand) kept, other;
  const hloc_gemm_plan* plan;
  long inner_batches, pieces; /* of a row that is copied: a task each */
  REAL* copy;
  COMPLEX* ordered;
} Z(product);

static const COMPLEX* Z(row)(const Z(product)* p, const Z(operand)* o, long row) {
  const long batch = row / o->count;
  return o->at + batch / p->inner_batches * o->outer + batch % p->inner_batches * o->inner + row % o->count * o->free;
}

/* The numbers of a row that a task copies. */
typedef struct { long row, begin, end; } Z(span);
static Z(span) Z(span_of)(const Z(product)* p, long task, long k) {
  const long begin = task % p->pieces * Z(GRAIN);
  return (Z(span)){task / p->pieces, begin, begin + Z(GRAIN) < k ? begin + Z(GRAIN) : k};
}

/* A row of the other operand, for a kept one that is contiguous along k. */
static void Z(copy_along)(void* const* args, long begin, long end) {
  const Z(product)* p = (const Z(product)*)args;
  const long n = p->other.count, k = p->other.k, step = p->other.depth;
  for (long task = begin; task < end; task++) {
    const Z(span) s = Z(span_of)(p, task, k);
    const COMPLEX* from = Z(row)(p, &p->other, s.row);
    REAL* to = p->copy + 4 * (s.row / n * n * k + (p->plan->transposed ? s.row % n * k : 0));
    if (p->plan->transposed)
      for (long i = s.begin; i < s.end; i++) {
        to[2 * i] = from[i].re, to[2 * i + 1] = -from[i].im;
        to[2 * k + 2 * i] = from[i].im, to[2 * k + 2 * i + 1] = from[i].re;
      }
    else
      for (long i = s.begin; i < s.end; i++) {
        const COMPLEX z = from[i * step];
        REAL* at = to + 4 * n * i + 2 * (s.row % n);
        at[0] = z.re, at[1] = z.im, at[2 * n] = -z.im, at[2 * n + 1] = z.re;
      }
  }
}
/* The same if rows are interleaved in memory: by k. */
static void Z(copy_columns)(void* const* args, long begin, long end) {
  const Z(product)* p = (const Z(product)*)args;
  const long n = p->other.count, k = p->other.k;
  for (long row = begin; row < end; row++) {
    const COMPLEX* from = Z(row)(p, &p->other, row / k * n) + row % k * p->other.depth;
    REAL* to = p->copy + 4 * row * n;
    for (long j = 0; j < n; j++) {
      to[2 * j] = from[j].re, to[2 * j + 1] = from[j].im;
      to[2 * n + 2 * j] = -from[j].im, to[2 * n + 2 * j + 1] = from[j].re;
    }
  }
}
static void Z(copy_parts)(void* const* args, long begin, long end) {
  const Z(product)* p = (const Z(product)*)args;
  const long k = p->other.k, step = p->other.depth;
  for (long task = begin; task < end; task++) {
    const Z(span) s = Z(span_of)(p, task, k);
    const COMPLEX* from = Z(row)(p, &p->other, s.row);
    REAL* to = p->copy + 2 * s.row * k;
    if (step == 1) for (long i = s.begin; i < s.end; i++) to[i] = from[i].re, to[k + i] = from[i].im;
    else for (long i = s.begin; i < s.end; i++) to[i] = from[i * step].re, to[k + i] = from[i * step].im;
  }
}
static void Z(put_in_order)(void* const* args, long begin, long end) {
  const Z(product)* p = (const Z(product)*)args;
  const long k = p->kept.k;
  for (long task = begin; task < end; task++) {
    const Z(span) s = Z(span_of)(p, task, k);
    const COMPLEX* from = Z(row)(p, &p->kept, s.row);
    for (long i = s.begin; i < s.end; i++) p->ordered[s.row * k + i] = from[i * p->kept.depth];
  }
}

static COMPLEX* Z(result)(const Z(product)* p, long batch) {
  const hloc_gemm_args* g = &p->g;
  return (COMPLEX*)g->c + batch / g->inner_batches * g->c_outer + batch % g->inner_batches * g->c_inner;
}
/* Stores rows x columns numbers of C from `piece`, which has as many in a row. */
static void Z(put)(const Z(product)* p, long batch, long row, long column, long rows, long columns,
                   const COMPLEX* piece, long stride) {
  const hloc_gemm_args* g = &p->g;
  if (g->epilogue) {
    g->epilogue(g->epilogue_args, batch, row, column, rows, columns, piece, stride);
    return;
  }
  for (long i = 0; i < rows; i++) {
    COMPLEX* to = Z(result)(p, batch) + (row + i) * g->c_row + column * g->c_column;
    if (g->c_column == 1) for (long j = 0; j < columns; j++) to[j] = piece[i * stride + j];
    else for (long j = 0; j < columns; j++) to[j * g->c_column] = piece[i * stride + j];
  }
}

/* The numbers whose partial products are two rows of sums. */
static void Z(join)(const REAL* sums, long stride, long count, COMPLEX* out) {
  static const REAL signs[16] = {-1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1};
  const REAL* next = sums + stride;
  const VECTOR sign = Z(load)(signs);
  long j = 0;
  for (; j + LANES / 2 <= count; j += LANES / 2)
    Z(store)(out + j, Z(load)(sums + 2 * j) + sign * Z(swapped)(Z(load)(next + 2 * j)));
  for (; j < count; j++) out[j] = (COMPLEX){sums[2 * j] - next[2 * j + 1], sums[2 * j + 1] + next[2 * j]};
}
/* The number whose partial products begin at `sums`. */
static inline COMPLEX Z(joined)(const REAL* sums, long stride, int along) {
  if (along) return (COMPLEX){sums[0], sums[1]};
  return (COMPLEX){sums[0] - sums[stride + 1], sums[1] + sums[stride]};
}

/* A tile of real sums: its rows and columns are those of C, or of its transpose. */
static void Z(finish)(void* const* args, long batch, long row, long column, long rows, long columns, const void* tile,
                      long stride) {
  const Z(product)* p = (const Z(product)*)args;
  const int along = p->plan->along, each = along ? 1 : 2; /* rows of a number */
  const int transposed = along == p->plan->keeps_b;
  COMPLEX piece[Z(PIECE) * Z(PIECE)];
  row /= each, rows /= each, column /= 2, columns /= 2;
  if (along && !transposed) {
    Z(put)(p, batch, row, column, rows, columns, tile, stride / 2);
    return;
  }
  if (!transposed && !p->g.epilogue && p->g.c_column == 1) {
    COMPLEX* c = Z(result)(p, batch) + row * p->g.c_row + column;
    for (long i = 0; i < rows; i++) Z(join)((const REAL*)tile + 2 * i * stride, stride, columns, c + i * p->g.c_row);
    return;
  }
  for (long i0 = 0; i0 < rows; i0 += Z(PIECE))
    for (long j0 = 0; j0 < columns; j0 += Z(PIECE)) {
      const long high = rows - i0 < Z(PIECE) ? rows - i0 : Z(PIECE);
      const long wide = columns - j0 < Z(PIECE) ? columns - j0 : Z(PIECE);
      const REAL* sums = (const REAL*)tile + i0 * each * stride + 2 * j0;
      if (!transposed) {
        for (long i = 0; i < high; i++) Z(join)(sums + 2 * i * stride, stride, wide, piece + i * wide);
        Z(put)(p, batch, row + i0, column + j0, high, wide, piece, wide);
      } else {
        for (long j = 0; j < wide; j++)
          for (long i = 0; i < high; i++)
            piece[j * high + i] = Z(joined)(sums + each * i * stride + 2 * j, stride, along);
        Z(put)(p, batch, column + j0, row + i0, wide, high, piece, high);
      }
    }
}

int ENTRY(const hloc_gemm_args* args) {
  const long batches = args->batches, k = args->k;
  const hloc_gemm_plan* plan = args->plan;
  if (batches <= 0 || args->m <= 0 || args->n <= 0) return 0;
  const Z(operand) a = {args->a, args->m, k, args->a_outer, args->a_inner, args->m > 1 ? args->a_row : 1,
                        k > 1 ? args->a_column : 1};
  const Z(operand) b = {args->b, args->n, k, args->b_outer, args->b_inner, args->n > 1 ? args->b_column : 1,
                        k > 1 ? args->b_row : 1};
  Z(product) p = {.g = *args, .plan = plan, .inner_batches = args->inner_batches, .kept = plan->keeps_b ? b : a,
                  .other = plan->keeps_b ? a : b};
  Z(operand)*kept = &p.kept, *other = &p.other;
  const long copied = other->outer || other->inner ? batches : 1;
  const long ordered = plan->orders ? batches * kept->count * k : 0;
  char* memory = hloc_scratch(HLOC_THIRD, plan->third);
  if (!memory) return 1;
  p.ordered = (COMPLEX*)memory, p.copy = (REAL*)((COMPLEX*)memory + ordered);
  const long grain = 1 + Z(GRAIN) / (k + 1);
  p.pieces = (k + Z(GRAIN) - 1) / Z(GRAIN);
  if (plan->orders) {
    hloc_parallel(Z(put_in_order), (void* const*)&p, batches * kept->count * p.pieces, grain);
    *kept = (Z(operand)){p.ordered, kept->count, k, args->inner_batches * kept->count * k, kept->count * k, k, 1};
  }
  if (plan->copies && plan->along && other->free == 1 && other->count > 1)
    hloc_parallel(Z(copy_columns), (void* const*)&p, copied * k, 1 + Z(GRAIN) / other->count);
  else if (plan->copies)
    hloc_parallel(plan->along ? Z(copy_along) : Z(copy_parts), (void* const*)&p, copied * other->count * p.pieces,
                  grain);
  const long of_one = copied > 1 ? other->count * k * (plan->along ? 4 : 2) : 0;
  hloc_gemm_args real = {.batches = batches, .inner_batches = args->inner_batches, .epilogue = Z(finish),
                         .epilogue_args = (void* const*)&p, .plan = plan};
  if (plan->along) {
    real.m = kept->count, real.n = 2 * other->count, real.k = 2 * k;
    real.a = kept->at, real.a_outer = 2 * kept->outer, real.a_inner = 2 * kept->inner;
    real.a_row = 2 * kept->free, real.a_column = 1;
    real.b = p.copy, real.b_outer = args->inner_batches * of_one, real.b_inner = of_one;
    real.b_row = plan->transposed ? 1 : real.n, real.b_column = plan->transposed ? 2 * k : 1;
    if (!plan->finishes) {
      real.epilogue = NULL, real.c = args->c, real.c_outer = 2 * args->c_outer, real.c_inner = 2 * args->c_inner;
      real.c_row = 2 * args->c_row, real.c_column = 1;
    }
  } else {
    real.m = 2 * other->count, real.n = 2 * kept->count, real.k = k;
    real.b = kept->at, real.b_outer = 2 * kept->outer, real.b_inner = 2 * kept->inner;
    real.b_row = 2 * kept->depth, real.b_column = 1;
    real.a = plan->copies ? p.copy : (const REAL*)other->at;
    real.a_outer = plan->copies ? args->inner_batches * of_one : 2 * other->outer;
    real.a_inner = plan->copies ? of_one : 2 * other->inner;
    real.a_row = plan->copies ? k : 1, real.a_column = plan->copies ? 1 : 2 * other->depth;
  }
  return REAL_ENTRY(&real);
}
