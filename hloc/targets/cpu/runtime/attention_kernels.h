/* attention_kernels.h: the register tiles of attention.c: rows of keys or values by a panel of queries.
 *
 * Out: attend_along, whose rows are contiguous along k (keys), and attend_across, whose rows are interleaved (values)
 * and are added to the sums; names that end in _one are for a panel of one vector. [rows / 2]
 */
typedef void (*attend_kernel)(long k, const float* a, long stride, const float* b, float* sums);
typedef attend_kernel attend_kernels[HLOC_ATTENTION_TILE / 2 + 1];

#if defined(HLOC_PAIRS)
#define HLOC_MORE(sum, a, b) ((hloc_vf32)HLOC_MULTIPLY_PAIRS(sum, a, b))
#else
#define HLOC_MORE(sum, a, b) ((sum) + (a) * (b))
#endif

/* sums[i][q] (+)= sum over p < k of a[i * row + p * step] b[p][q], for some i and a panel of two vectors, or of one */
#define HLOC_BEGIN_TWO(i)                                                                                             \
  hloc_vf32 left##i = adds ? hloc_load_f32(sums + 2 * (i) * HLOC_LANES32) : (hloc_vf32){0};                           \
  hloc_vf32 right##i = adds ? hloc_load_f32(sums + (2 * (i) + 1) * HLOC_LANES32) : (hloc_vf32){0};
#define HLOC_ADD_TWO(i)                                                                                               \
  {                                                                                                                   \
    const hloc_vf32 ai = hloc_splat_f32(a[(i) * row]);                                                                \
    left##i = HLOC_MORE(left##i, ai, b0), right##i = HLOC_MORE(right##i, ai, b1);                                     \
  }
#define HLOC_STORE_TWO(i)                                                                                             \
  hloc_store_f32(sums + 2 * (i) * HLOC_LANES32, left##i), hloc_store_f32(sums + (2 * (i) + 1) * HLOC_LANES32, right##i);
#define HLOC_DEFINE_TWO(NAME, ROWS, ROW, STEP, ADDS)                                                                  \
  static __attribute__((noinline)) void NAME(long k, const float* restrict a, long stride, const float* restrict b,   \
                                             float* restrict sums) {                                                  \
    const long row = (ROW), step = (STEP);                                                                            \
    const int adds = (ADDS);                                                                                          \
    HLOC_EACH_##ROWS(HLOC_BEGIN_TWO)                                                                                  \
    for (long p = 0; p < k; p++, a += step, b += 2 * HLOC_LANES32) {                                                  \
      hloc_vf32 b0 = hloc_load_f32(b), b1 = hloc_load_f32(b + HLOC_LANES32);                                          \
      HLOC_IN_REGISTER(b0);                                                                                           \
      HLOC_IN_REGISTER(b1);                                                                                           \
      HLOC_EACH_##ROWS(HLOC_ADD_TWO)                                                                                  \
    }                                                                                                                 \
    HLOC_EACH_##ROWS(HLOC_STORE_TWO)                                                                                  \
  }
#define HLOC_BEGIN_ONE(i) hloc_vf32 sum##i = adds ? hloc_load_f32(sums + (i) * HLOC_LANES32) : (hloc_vf32){0};
#define HLOC_ADD_ONE(i) sum##i = HLOC_MORE(sum##i, hloc_splat_f32(a[(i) * row]), b0);
#define HLOC_STORE_ONE(i) hloc_store_f32(sums + (i) * HLOC_LANES32, sum##i);
#define HLOC_DEFINE_ONE(NAME, ROWS, ROW, STEP, ADDS)                                                                  \
  static __attribute__((noinline)) void NAME(long k, const float* restrict a, long stride, const float* restrict b,   \
                                             float* restrict sums) {                                                  \
    const long row = (ROW), step = (STEP);                                                                            \
    const int adds = (ADDS);                                                                                          \
    HLOC_EACH_##ROWS(HLOC_BEGIN_ONE)                                                                                  \
    for (long p = 0; p < k; p++, a += step, b += HLOC_LANES32) {                                                      \
      hloc_vf32 b0 = hloc_load_f32(b);                                                                                \
      HLOC_IN_REGISTER(b0);                                                                                           \
      HLOC_EACH_##ROWS(HLOC_ADD_ONE)                                                                                  \
    }                                                                                                                 \
    HLOC_EACH_##ROWS(HLOC_STORE_ONE)                                                                                  \
  }
#define HLOC_DEFINE_ALONG(ROWS) HLOC_DEFINE_TWO(attend_along_##ROWS, ROWS, stride, 1, 0)
#define HLOC_DEFINE_ACROSS(ROWS) HLOC_DEFINE_TWO(attend_across_##ROWS, ROWS, 1, stride, 1)
#define HLOC_DEFINE_ALONG_ONE(ROWS) HLOC_DEFINE_ONE(attend_along_one_##ROWS, ROWS, stride, 1, 0)
#define HLOC_DEFINE_ACROSS_ONE(ROWS) HLOC_DEFINE_ONE(attend_across_one_##ROWS, ROWS, 1, stride, 1)
/* one row, and even numbers of them */
#if HLOC_VECTOR_BYTES == 64
#define HLOC_ATTEND_ROWS(X) X(1) X(2) X(4) X(6) X(8) X(10) X(12) X(14)
#elif defined(__aarch64__)
#define HLOC_ATTEND_ROWS(X) X(1) X(2) X(4) X(6) X(8) X(10) X(12)
#else
#define HLOC_ATTEND_ROWS(X) X(1) X(2) X(4) X(6)
#endif
#define HLOC_ALONG_NAME(ROWS) attend_along_##ROWS,
#define HLOC_ACROSS_NAME(ROWS) attend_across_##ROWS,
#define HLOC_ALONG_ONE_NAME(ROWS) attend_along_one_##ROWS,
#define HLOC_ACROSS_ONE_NAME(ROWS) attend_across_one_##ROWS,
HLOC_ATTEND_ROWS(HLOC_DEFINE_ALONG)
HLOC_ATTEND_ROWS(HLOC_DEFINE_ACROSS)
HLOC_ATTEND_ROWS(HLOC_DEFINE_ALONG_ONE)
HLOC_ATTEND_ROWS(HLOC_DEFINE_ACROSS_ONE)
static const attend_kernels attend_along = {HLOC_ATTEND_ROWS(HLOC_ALONG_NAME)};
static const attend_kernels attend_across = {HLOC_ATTEND_ROWS(HLOC_ACROSS_NAME)};
static const attend_kernels attend_along_one = {HLOC_ATTEND_ROWS(HLOC_ALONG_ONE_NAME)};
static const attend_kernels attend_across_one = {HLOC_ATTEND_ROWS(HLOC_ACROSS_ONE_NAME)};
