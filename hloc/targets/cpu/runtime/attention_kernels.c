/* attention_kernels.c: the register tiles of attention.c: rows of keys or values by a panel of queries.
 *
 * Out: hloc_attention_along, whose rows are lines along k (keys), and hloc_attention_across, whose rows lie side by
 * side (values) and are added to the sums; those that end in _one are for a panel of one vector. Each is a part
 * (parts.h).
 */
#include "attention_internal.h"

#define HLOC_ALONG 1
#define HLOC_ACROSS 2
#define HLOC_ALONG_ONE 3
#define HLOC_ACROSS_ONE 4

/* sums[i][q] (+)= sum over p < k of a[i * a_row + p * a_k] b[p][q], for `rows` i and a panel of `vectors` (1 or 2) */
HLOC_INLINE void attend_multiply(const int rows, const int vectors, long k, const float* restrict a, long a_row,
                                 long a_k, const float* restrict b, float* restrict sums, int accumulate) {
  const int lanes = vectors * HLOC_LANES32;
  hloc_vf32 sum[2 * HLOC_ATTENTION_TILE];
  HLOC_UNROLL for (int i = 0; i < rows * vectors; i++)
    sum[i] = accumulate ? hloc_load_f32(sums + i * HLOC_LANES32) : (hloc_vf32){0};
  for (long p = 0; p < k; p++, a += a_k, b += lanes) {
    hloc_vf32 bp[2];
    HLOC_UNROLL for (int h = 0; h < vectors; h++) bp[h] = hloc_load_f32(b + h * HLOC_LANES32);
    HLOC_UNROLL for (int i = 0; i < rows; i++) {
      const hloc_vf32 ai = hloc_splat_f32(a[i * a_row]);
      HLOC_UNROLL for (int h = 0; h < vectors; h++) sum[i * vectors + h] += ai * bp[h];
    }
  }
  HLOC_UNROLL for (int i = 0; i < rows * vectors; i++) hloc_store_f32(sums + i * HLOC_LANES32, sum[i]);
}

#define HLOC_DEFINE_ALONG(ROWS) HLOC_DEFINE_KERNEL(attend_along_##ROWS, ROWS, 2, stride, 1, 0)
#define HLOC_DEFINE_ACROSS(ROWS) HLOC_DEFINE_KERNEL(attend_across_##ROWS, ROWS, 2, 1, stride, 1)
#define HLOC_DEFINE_ALONG_ONE(ROWS) HLOC_DEFINE_KERNEL(attend_along_one_##ROWS, ROWS, 1, stride, 1, 0)
#define HLOC_DEFINE_ACROSS_ONE(ROWS) HLOC_DEFINE_KERNEL(attend_across_one_##ROWS, ROWS, 1, 1, stride, 1)
#define HLOC_DEFINE_KERNEL(NAME, ROWS, VECTORS, A_ROW, A_K, ACCUMULATE)                                               \
  static __attribute__((noinline)) void NAME(long k, const float* a, long stride, const float* b, float* sums) {     \
    attend_multiply(ROWS, VECTORS, k, a, A_ROW, A_K, b, sums, ACCUMULATE);                                            \
  }
/* one row, and even numbers of them */
#if HLOC_VECTOR_BYTES == 64
#define HLOC_ALL_ROWS(X) X(1) X(2) X(4) X(6) X(8) X(10) X(12) X(14)
#elif defined(__aarch64__)
#define HLOC_ALL_ROWS(X) X(1) X(2) X(4) X(6) X(8) X(10) X(12)
#else
#define HLOC_ALL_ROWS(X) X(1) X(2) X(4) X(6)
#endif
#define HLOC_ALONG_NAME(ROWS) attend_along_##ROWS,
#define HLOC_ACROSS_NAME(ROWS) attend_across_##ROWS,
#define HLOC_ALONG_ONE_NAME(ROWS) attend_along_one_##ROWS,
#define HLOC_ACROSS_ONE_NAME(ROWS) attend_across_one_##ROWS,
#if HLOC_IS_HERE(HLOC_ALONG)
HLOC_ALL_ROWS(HLOC_DEFINE_ALONG)
const hloc_attention_kernels hloc_attention_along = {HLOC_ALL_ROWS(HLOC_ALONG_NAME)};
#endif
#if HLOC_IS_HERE(HLOC_ACROSS)
HLOC_ALL_ROWS(HLOC_DEFINE_ACROSS)
const hloc_attention_kernels hloc_attention_across = {HLOC_ALL_ROWS(HLOC_ACROSS_NAME)};
#endif
#if HLOC_IS_HERE(HLOC_ALONG_ONE)
HLOC_ALL_ROWS(HLOC_DEFINE_ALONG_ONE)
const hloc_attention_kernels hloc_attention_along_one = {HLOC_ALL_ROWS(HLOC_ALONG_ONE_NAME)};
#endif
#if HLOC_IS_HERE(HLOC_ACROSS_ONE)
HLOC_ALL_ROWS(HLOC_DEFINE_ACROSS_ONE)
const hloc_attention_kernels hloc_attention_across_one = {HLOC_ALL_ROWS(HLOC_ACROSS_ONE_NAME)};
#endif
#undef HLOC_DEFINE_ALONG
#undef HLOC_DEFINE_ACROSS
#undef HLOC_DEFINE_ALONG_ONE
#undef HLOC_DEFINE_ACROSS_ONE
#undef HLOC_DEFINE_KERNEL
#undef HLOC_ALL_ROWS
#undef HLOC_ALONG_NAME
#undef HLOC_ACROSS_NAME
#undef HLOC_ALONG_ONE_NAME
#undef HLOC_ACROSS_ONE_NAME
