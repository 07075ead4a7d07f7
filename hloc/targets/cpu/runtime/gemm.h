/* gemm.h: batched matmuls C[b] = A[b] B[b] with fused epilogues.
 *
 * Entry points (gemm_<t>.c make one per set of element types; sizes and strides are arguments, so a
 * module with fifty products shares them):
 *   int hloc_gemm_f32 (const hloc_gemm_args*)   f32 x f32, sums in f32
 *   int hloc_gemm_f64 (const hloc_gemm_args*)   f64 x f64, sums in f64
 *   int hloc_gemm_bf16(const hloc_gemm_args*)   bf16 x bf16, sums in f32 (vdpbf16ps if the CPU has it)
 *   int hloc_gemm_f16 (const hloc_gemm_args*)   f16 x f16, sums in f32
 *   int hloc_gemm_s8  (const hloc_gemm_args*)   s8 x s8, sums in s32 (VNNI if the CPU has it)
 *   int hloc_gemm_s16 (const hloc_gemm_args*)   s16 x s16, sums in s32, which wrap (likewise)
 *   int hloc_gemm_s32 (const hloc_gemm_args*)   s32 x s32, sums in s32, which wrap: for u32, too
 *   int hloc_gemm_s64 (const hloc_gemm_args*)   s64 x s64, likewise: for u64, too
 *   int hloc_gemm_c64, _c128                    by the products of f32, f64
 * They are called on the driver thread, split the work over the pool themselves and return when C is complete.
 *
 * Operands are read through strides (in elements; any may be 0 or negative), so that transposed operands, slices and
 * batch dimensions in any order need no copy:
 *   A[b, i, k] = a[outer * a_outer + inner * a_inner + i * a_row + k * a_column]      b = outer * inner_batches + inner
 * and the same for B[b, k, j] (b_row goes with k, b_column with j) and C[b, i, j]. Fast when one of the strides of
 * each operand is 1. C must not overlap A or B.
 *
 * Epilogue (optional): instead of being stored to C, every finished tile of sums is passed to
 *     epilogue(epilogue_args, b, row, column, rows, columns, tile, tile_stride)
 * on the thread that computed it; the sum of C[b, row + i, column + j] is tile[i * tile_stride + j], of the type
 * of the sums. A tile is a register tile, or a part of one, or a whole block. The epilogue stores anywhere; each
 * element is passed once.
 * b_packed: panels of B as written by a call with pack_to, for a B that many calls share; else NULL. A call with
 * pack_to has the same arguments and computes no sums; A, C and the epilogue's arguments are not used. With few columns
 * A is packed instead: C^T = B^T A^T is computed. hloc/targets/cpu/plans/packing.py decides which products are
 * packed, and has the numbers of bytes. Results are the same, bit for bit.
 * plan: how it is computed; NULL if there are no elements of A.
 * c_is_narrow: C holds bf16 (hloc_gemm_bf16) or f16 (hloc_gemm_f16) instead of f32; ignored with an epilogue.
 *
 * All entry points return 0 when done and 1 if there is no scratch memory (C is then incomplete).
 *
 * Example: y = relu(x w + bias), x f32[m,k], w f32[k,n]:
 *   static const hloc_gemm_plan plan = {...};
 *   hloc_gemm_args args = {.batches = 1, .inner_batches = 1, .m = m, .n = n, .k = k, .a = x, .a_row = k, .a_column = 1,
 *       .b = w, .b_row = n, .b_column = 1, .epilogue = bias_relu, .epilogue_args = (void*[]){y, bias}, .plan = &plan};
 *   hloc_gemm_f32(&args);
 */
#ifndef HLOC_GEMM_H
#define HLOC_GEMM_H

#include <stddef.h>

#include "fits.h"

typedef void (*hloc_gemm_epilogue)(void* const* args, long batch, long row, long column, long rows, long columns,
                                   const void* tile, long tile_stride);

/* How a matmul is computed: decided at compile time by hloc/targets/cpu/plans/matmul.py, which says what each field
 * means. Results do not depend on the number of threads. */
typedef struct {
  long batches, m;
  int is_thin, exchanged;
  long rows, m_block, n_block, k_block, k_part, group;
  int a_in_place, a_across, b_in_place, shares_a, shares_b, sums_in_c, sweeps, is_held, fetches;
  long grain, grain_asleep;
  long first, third, own, a_panel_units, at_b, at_sums, at_tile, at_correction;
  int keeps_b, along, transposed, orders, copies, finishes;
} hloc_gemm_plan;

typedef struct {
  long batches, inner_batches, m, n, k;
  const void* a;
  long a_outer, a_inner, a_row, a_column;
  const void* b;
  long b_outer, b_inner, b_row, b_column;
  void* c;
  long c_outer, c_inner, c_row, c_column;
  int c_is_narrow;
  hloc_gemm_epilogue epilogue;
  void* const* epilogue_args;
  const void* b_packed;
  void* pack_to;
  const hloc_gemm_plan* plan;
} hloc_gemm_args;

/* The plan of so many batches and rows; NULL: there is none. plans: the last one has no rows. */
static inline const hloc_gemm_plan* hloc_gemm_plan_for(const hloc_gemm_plan* plans, long batches, long m) {
  for (; plans->m; plans++) if (plans->batches == batches && plans->m == m) return plans;
  return NULL;
}

#define HLOC_DECLARE_GEMM(T) int hloc_gemm_##T(const hloc_gemm_args* args);
HLOC_DECLARE_GEMM(f32)
HLOC_DECLARE_GEMM(f64)
HLOC_DECLARE_GEMM(bf16)
HLOC_DECLARE_GEMM(f16)
HLOC_DECLARE_GEMM(s8)
HLOC_DECLARE_GEMM(s16)
HLOC_DECLARE_GEMM(s32)
HLOC_DECLARE_GEMM(s64)
HLOC_DECLARE_GEMM(c64)
HLOC_DECLARE_GEMM(c128)

#endif
