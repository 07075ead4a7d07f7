/* conv_internal.h: shared by the files conv*.c: a convolution in f32 with operands in the order of the tiles.
 *
 * Each algorithm is a function of a plan, in its own file. A program contains the algorithms that its
 * convolutions use (algorithm_of in targets/cpu/plans/convolution_algorithms.py). conv.c and conv_rows.c compute
 * tiles (conv_tiles.c) of output positions x features from row pointers; conv_pairs.c uses them for pairs of bf16.
 * conv_winograd.c computes windows of 3x3, conv_depthwise.c depthwise convolutions, conv_transposed.c base dilation.
 * Convolutions that are matmuls are calls of gemm.h. Operands are rearranged if needed (conv_memory.c).
 */
#ifndef HLOC_CONV_INTERNAL_H
#define HLOC_CONV_INTERNAL_H
#include <stddef.h>

#include "conv.h"
#include "pool.h"
#include "vector.h"

enum { HLOC_CONV_COLUMNS = 2 * HLOC_LANES32 };
#if HLOC_VECTOR_BYTES == 64
#define HLOC_CONV_ROWS 14
#define HLOC_EACH_CONV_ROW HLOC_EACH_14
#define HLOC_EACH_SHORT_CONV_ROW HLOC_EACH_7
#elif defined(__aarch64__)
#define HLOC_CONV_ROWS 12
#define HLOC_EACH_CONV_ROW HLOC_EACH_12
#define HLOC_EACH_SHORT_CONV_ROW HLOC_EACH_6
#else
#define HLOC_CONV_ROWS 6
#define HLOC_EACH_CONV_ROW HLOC_EACH_6
#define HLOC_EACH_SHORT_CONV_ROW HLOC_EACH_3
#endif

enum { ROWS = HLOC_CONV_ROWS, COLUMNS = HLOC_CONV_COLUMNS }; /* of a register tile */

typedef enum {
  HLOC_CONV_IS_F32, HLOC_CONV_IS_BF16, HLOC_CONV_IS_F16,
  HLOC_CONV_IS_PAIRS /* of bf16: a form of arranged operands, not the type of a convolution */
} hloc_conv_type;

typedef struct {
  hloc_conv_args c;          /* x and w point to f32 in the order of the library kernel */
  hloc_conv_type y_type;     /* what y holds without an epilogue */
  long column_offset;        /* of the batch group's first output feature, for the epilogue */
  int of_pairs;              /* conv_pairs.c: x and w have pairs of bf16 instead of floats */
  int* failed;
} hloc_conv_plan;

static inline long hloc_min(long a, long b) { return a < b ? a : b; }
static inline long hloc_max(long a, long b) { return a > b ? a : b; }

/* Whether sums are stored feature by feature, many positions at a time. */
static inline int goes_along_positions(const hloc_conv_args* c) {
  return c->epilogue ? c->epilogue_is_transposed : c->y_c != 1 && c->y_s[2] == 1 && c->y_size[2] > 1;
}
/* Stores one row of sums or passes it to the epilogue; position: linear, as in conv.h. */
void hloc_conv_finish(const hloc_conv_plan* plan, long position, long column, long rows, long columns,
                      const float* tile, long stride);
long hloc_conv_y_offset(const hloc_conv_args* c, long position);

int hloc_conv_rows(hloc_conv_plan* plan, float* scratch);     /* for panels */
/* conv_tiles.c: tile[i][j] (+)= sum over taps t, features k < depth of
 *   rows[t * HLOC_CONV_ROWS + i][first + k] * panel[tap_index[t]][k][j]
 * half and quarter: only for the first vector of columns, for half of it. For every tap and k one line at `ahead`,
 * which advances by ahead_step bytes, is prefetched: it is used next. */
typedef void hloc_conv_tile_of(long taps, const long* tap_index, const float* const* rows, long first, long depth,
                               const float* panel, float* tile, long stride, int accumulate, const char* ahead,
                               long ahead_step);
typedef void hloc_conv_half_tile_of(long taps, const long* tap_index, const float* const* rows, long depth,
                                    const float* panel, float* tile);
hloc_conv_tile_of hloc_conv_tile, hloc_conv_tile_of_pairs;
hloc_conv_half_tile_of hloc_conv_half_tile, hloc_conv_quarter_tile, hloc_conv_half_tile_of_pairs;
#pragma weak hloc_conv_tile_of_pairs /* a program without pairs needs none */
#pragma weak hloc_conv_half_tile_of_pairs
/* The same for one tap and half as many rows. */
void hloc_conv_short_tile(const float* const* rows, long depth, const float* panel, float* tile, int accumulate);
/* sums[i * count + j] of HLOC_CONV_ROWS positions and count <= HLOC_CONV_DOTS features (conv_dots.c) */
enum { HLOC_CONV_DOTS = 4 };
#pragma weak hloc_conv_dots /* a program without few features needs none */
void hloc_conv_dots(long count, long taps, const long* tap_index, const float* const* rows, long depth,
                    const float* weights, float* sums);
/* Algorithms: return 0 when done, 1 if memory is exhausted. */
typedef int (*hloc_conv_algorithm)(hloc_conv_plan* plan, hloc_conv_type type);
int hloc_conv_by_rows(hloc_conv_plan* plan, hloc_conv_type type);
int hloc_conv_by_pairs(hloc_conv_plan* plan, hloc_conv_type type);
int hloc_conv_by_depthwise(hloc_conv_plan* plan, hloc_conv_type type);
int hloc_conv_by_winograd(hloc_conv_plan* plan, hloc_conv_type type);
int hloc_conv_by_spread(hloc_conv_plan* plan, hloc_conv_type type);

#endif
