/* generic.c: matrix products and convolutions of the types that have no fast path: plain loops over any strides.
 *
 * Out: hloc_gemm_<t> and hloc_conv_<t> for the types that gemm.h and conv.h list. Sums are kept in the result's type,
 * wrapping for integers. Work is split over rows of C, or output positions.
 *
 * With HLOC_GENERIC_GEMM or HLOC_GENERIC_CONV defined as one of those types (and HLOC_OPERAND, HLOC_TOTAL as the types of
 * operands and sums) only that function is made: a program seldom needs more.
 */
#include "complex.h"
#include "conv.h"
#include "gemm.h"
#include "integer.h"
#include "pool.h"

enum { GENERIC_COLUMNS = HLOC_GEMM_TILE_COLUMNS };

static long fewer(long a, long b) { return a < b ? a : b; }

/* A row of A against GENERIC_COLUMNS columns of B at a time. */
#define HLOC_DEFINE_GENERIC_GEMM(S, T)                                                                                \
  static void gemm_rows_##S(void* const* args, long begin, long end) {                                                \
    const hloc_gemm_args* g = (const hloc_gemm_args*)args;                                                            \
    T* rows = g->load_a || g->load_b ? hloc_scratch(0, (1 + GENERIC_COLUMNS) * g->k * sizeof(T)) : NULL;              \
    for (long item = begin; item < end; item++) {                                                                     \
      long i = item % g->m, batch = item / g->m;                                                                      \
      long outer = batch / g->inner_batches, inner = batch % g->inner_batches;                                        \
      const T* a = (const T*)g->a + outer * g->a_outer + inner * g->a_inner + i * g->a_row;                           \
      long a_step = g->a_column, b_row = g->b_row, b_column = g->b_column;                                            \
      if (g->load_a) g->load_a(g->load_a_args, batch, i, 1, 0, g->k, rows), a = rows, a_step = 1;                     \
      for (long column = 0; column < g->n; column += GENERIC_COLUMNS) {                                               \
        long columns = fewer(GENERIC_COLUMNS, g->n - column);                                                         \
        const T* b = (const T*)g->b + outer * g->b_outer + inner * g->b_inner + column * b_column;                    \
        if (g->load_b) {                                                                                              \
          g->load_b(g->load_b_args, batch, 0, g->k, column, columns, rows + g->k);                                    \
          b = rows + g->k, b_row = columns, b_column = 1;                                                             \
        }                                                                                                             \
        T sums[GENERIC_COLUMNS];                                                                                      \
        for (long j = 0; j < GENERIC_COLUMNS; j++) sums[j] = (T){0};                                                  \
        for (long p = 0; p < g->k; p++) {                                                                             \
          const T left = a[p * a_step], *right = b + p * b_row;                                                       \
          if (b_column == 1 && columns == GENERIC_COLUMNS) /* vectors */                                              \
            for (long j = 0; j < GENERIC_COLUMNS; j++)                                                                \
              sums[j] = hloc_add_##S(sums[j], hloc_multiply_##S(left, right[j]));                                     \
          else                                                                                                        \
            for (long j = 0; j < columns; j++)                                                                        \
              sums[j] = hloc_add_##S(sums[j], hloc_multiply_##S(left, right[j * b_column]));                          \
        }                                                                                                             \
        if (g->epilogue) {                                                                                            \
          g->epilogue(g->epilogue_args, batch, i, column, 1, columns, sums, GENERIC_COLUMNS);                         \
          continue;                                                                                                   \
        }                                                                                                             \
        T* c = (T*)g->c + outer * g->c_outer + inner * g->c_inner + i * g->c_row + column * g->c_column;              \
        for (long j = 0; j < columns; j++) c[j * g->c_column] = sums[j];                                              \
      }                                                                                                               \
    }                                                                                                                 \
  }                                                                                                                   \
  int hloc_gemm_##S(const hloc_gemm_args* args) {                                                                     \
    if ((args->load_a || args->load_b) && !hloc_scratch(0, (1 + GENERIC_COLUMNS) * args->k * sizeof(T))) return 1;    \
    hloc_parallel(gemm_rows_##S, (void* const*)args, args->batches * args->m, 32768 / (args->n * args->k + 1) + 1);   \
    return 0;                                                                                                         \
  }
#define HLOC_GENERIC_TYPE_(T) hloc_##T
#define HLOC_GENERIC_TYPE(T) HLOC_GENERIC_TYPE_(T)
#define HLOC_GENERIC_(DEFINE, ...) DEFINE(__VA_ARGS__)
#if defined(HLOC_GENERIC_GEMM)
HLOC_GENERIC_(HLOC_DEFINE_GENERIC_GEMM, HLOC_GENERIC_GEMM, HLOC_GENERIC_TYPE(HLOC_GENERIC_GEMM))
#elif !defined(HLOC_GENERIC_CONV)
HLOC_DEFINE_GENERIC_GEMM(pred, hloc_pred)
HLOC_DEFINE_GENERIC_GEMM(s16, hloc_s16)
HLOC_DEFINE_GENERIC_GEMM(s32, hloc_s32)
HLOC_DEFINE_GENERIC_GEMM(s64, hloc_s64)
HLOC_DEFINE_GENERIC_GEMM(u8, hloc_u8)
HLOC_DEFINE_GENERIC_GEMM(u16, hloc_u16)
HLOC_DEFINE_GENERIC_GEMM(u32, hloc_u32)
HLOC_DEFINE_GENERIC_GEMM(u64, hloc_u64)
HLOC_DEFINE_GENERIC_GEMM(c64, hloc_c64)
HLOC_DEFINE_GENERIC_GEMM(c128, hloc_c128)
#endif

/* Where window position k reads x for output position o of dimension d; -1 outside. */
static long generic_read_at(const hloc_conv_args* c, int d, long o, long k) {
  long at = o * c->stride[d] - c->pad_low[d] + (c->reversed[d] ? c->window[d] - 1 - k : k) * c->window_dilation[d];
  if (at < 0 || at % c->base_dilation[d]) return -1;
  at /= c->base_dilation[d];
  return at < c->x_size[d] ? at : -1;
}

/* One output position (within a batch group) for all output features. T: operands, S: suffix and type of the sums. */
#define HLOC_DEFINE_GENERIC_CONV(NAME, T, S, R)                                                                       \
  static void conv_position_##NAME(const hloc_conv_args* c, long batch, const long* o, long position) {               \
    long depth = c->x_features / c->feature_groups, group_features = c->y_features / c->feature_groups;               \
    long part = c->batch / c->batch_groups, part_features = c->y_features / c->batch_groups;                          \
    for (long column = 0; column < c->y_features; column++) {                                                         \
      long first = column / group_features * depth, n = batch + column / part_features * part;                        \
      R sum = (R){0};                                                                                                 \
      for (long k0 = 0; k0 < c->window[0]; k0++)                                                                      \
        for (long k1 = 0; k1 < c->window[1]; k1++)                                                                    \
          for (long k2 = 0; k2 < c->window[2]; k2++) {                                                                \
            long p0 = generic_read_at(c, 0, o[0], k0), p1 = generic_read_at(c, 1, o[1], k1);                          \
            long p2 = generic_read_at(c, 2, o[2], k2);                                                                \
            if (p0 < 0 || p1 < 0 || p2 < 0) continue;                                                                 \
            const T* x = (const T*)c->x + n * c->x_n + first * c->x_c + p0 * c->x_s[0] + p1 * c->x_s[1] +             \
                         p2 * c->x_s[2];                                                                              \
            const T* w = (const T*)c->w + column * c->w_o + k0 * c->w_s[0] + k1 * c->w_s[1] + k2 * c->w_s[2];         \
            for (long i = 0; i < depth; i++) {                                                                        \
              R left = x[i * c->x_c], right = w[i * c->w_i];                                                          \
              sum = hloc_add_##S(sum, hloc_multiply_##S(left, right));                                                \
            }                                                                                                         \
          }                                                                                                           \
      if (c->epilogue) {                                                                                              \
        c->epilogue(c->epilogue_args, 0, position, column, 1, 1, &sum, 1);                                            \
        continue;                                                                                                     \
      }                                                                                                               \
      ((R*)c->y)[batch * c->y_n + column * c->y_c + o[0] * c->y_s[0] + o[1] * c->y_s[1] + o[2] * c->y_s[2]] = sum;    \
    }                                                                                                                 \
  }                                                                                                                   \
  static void conv_positions_##NAME(void* const* args, long begin, long end) {                                        \
    const hloc_conv_args* c = (const hloc_conv_args*)args;                                                            \
    for (long position = begin; position < end; position++) {                                                         \
      long rest = position, o[3];                                                                                     \
      for (int d = 2; d >= 0; d--) o[d] = rest % c->y_size[d], rest /= c->y_size[d];                                  \
      conv_position_##NAME(c, rest, o, position);                                                                     \
    }                                                                                                                 \
  }                                                                                                                   \
  int hloc_conv_##NAME(const hloc_conv_args* c) {                                                                     \
    long positions = c->batch / c->batch_groups * c->y_size[0] * c->y_size[1] * c->y_size[2];                         \
    long work = c->y_features * (c->x_features / c->feature_groups) * c->window[0] * c->window[1] * c->window[2];     \
    hloc_parallel(conv_positions_##NAME, (void* const*)c, positions, 16384 / (work + 1) + 1);                         \
    return 0;                                                                                                         \
  }
#if defined(HLOC_GENERIC_CONV)
HLOC_GENERIC_(HLOC_DEFINE_GENERIC_CONV, HLOC_GENERIC_CONV, HLOC_GENERIC_TYPE(HLOC_OPERAND), HLOC_TOTAL,
              HLOC_GENERIC_TYPE(HLOC_TOTAL))
#elif !defined(HLOC_GENERIC_GEMM)
HLOC_DEFINE_GENERIC_CONV(pred, hloc_pred, pred, hloc_pred)
HLOC_DEFINE_GENERIC_CONV(s8, hloc_s8, s8, hloc_s8)
HLOC_DEFINE_GENERIC_CONV(s16, hloc_s16, s16, hloc_s16)
HLOC_DEFINE_GENERIC_CONV(s32, hloc_s32, s32, hloc_s32)
HLOC_DEFINE_GENERIC_CONV(s64, hloc_s64, s64, hloc_s64)
HLOC_DEFINE_GENERIC_CONV(u8, hloc_u8, u8, hloc_u8)
HLOC_DEFINE_GENERIC_CONV(u16, hloc_u16, u16, hloc_u16)
HLOC_DEFINE_GENERIC_CONV(u32, hloc_u32, u32, hloc_u32)
HLOC_DEFINE_GENERIC_CONV(u64, hloc_u64, u64, hloc_u64)
HLOC_DEFINE_GENERIC_CONV(f64, hloc_f64, f64, hloc_f64)
HLOC_DEFINE_GENERIC_CONV(c64, hloc_c64, c64, hloc_c64)
HLOC_DEFINE_GENERIC_CONV(c128, hloc_c128, c128, hloc_c128)
HLOC_DEFINE_GENERIC_CONV(s8_s32, hloc_s8, s32, hloc_s32)
HLOC_DEFINE_GENERIC_CONV(u8_s32, hloc_u8, s32, hloc_s32)
#endif
