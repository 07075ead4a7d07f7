/* conv_internal.h: what the files behind conv.h share: a convolution in f32 in the order that the tiles like.
 *
 * conv.c and conv_ways.c choose, and rearrange where needed (conv_memory.c); conv_rows.c computes tiles of output
 * positions x features from row pointers; conv_outer.c does filter gradients; conv_depthwise.c channels on their own;
 * conv_transposed.c base dilation.
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
#elif defined(__aarch64__)
#define HLOC_CONV_ROWS 12
#else
#define HLOC_CONV_ROWS 6
#endif

typedef enum { HLOC_CONV_IS_F32, HLOC_CONV_IS_BF16, HLOC_CONV_IS_F16 } hloc_conv_type;

typedef struct {
  hloc_conv_args c;          /* x and w point to f32 in the order that the routine wants */
  hloc_conv_type y_type;     /* what y holds without an epilogue */
  long column_offset;        /* of the batch group's first output feature, for the epilogue */
  int merged;                /* conv_outer.c: x is padded, o2 and the batch make rows together */
  int* failed;
} hloc_conv_plan;

typedef int (*hloc_product)(const hloc_gemm_args*);

/* A convolution of one of the fast types; `product` does the ones that are plain matrix products. NULL: by rows. */
int hloc_convolve(const hloc_conv_args* args, hloc_conv_type type, hloc_product product);

static inline long hloc_min(long a, long b) { return a < b ? a : b; }
static inline long hloc_max(long a, long b) { return a > b ? a : b; }

/* Stores one row of sums or hands it to the epilogue; position: linear, as conv.h counts. */
void hloc_conv_finish(const hloc_conv_plan* plan, long position, long column, long rows, long columns,
                      const float* tile, long stride);
long hloc_conv_y_offset(const hloc_conv_args* c, long position);

int hloc_conv_rows(hloc_conv_plan* plan, float* panels);      /* panels: so many floats of scratch: */
long hloc_conv_panel_floats(const hloc_conv_args* c);
/* sums[i * count + j] of HLOC_CONV_ROWS positions and count <= HLOC_CONV_DOTS features (conv_dots.c) */
enum { HLOC_CONV_DOTS = 4 };
#pragma weak hloc_conv_dots /* a program without few features needs none */
void hloc_conv_dots(long count, long taps, const long* tap_index, const float* const* rows, long depth,
                    const float* weights, float* sums);
/* Ways of conv_ways.c: 0, 1 where memory is exhausted, or HLOC_CONV_BY_ROWS where none of them is to be taken. */
enum { HLOC_CONV_BY_ROWS = 2 };
int hloc_conv_other_way(hloc_conv_plan* plan, hloc_conv_type type, hloc_product product);
int hloc_conv_by_channel_gradient(hloc_conv_plan* plan, hloc_conv_type type);
int hloc_conv_outer(hloc_conv_plan* plan);
int hloc_conv_depthwise(hloc_conv_plan* plan);
int hloc_conv_channel_gradient(const hloc_conv_plan* plan);
int hloc_conv_transposed(hloc_conv_plan* plan, hloc_product product, float* spread); /* spread: so many floats: */
long hloc_conv_spread_floats(const hloc_conv_args* c);

#endif
