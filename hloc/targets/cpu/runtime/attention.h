/* attention.h: two batched products with a softmax between them, in one pass over the keys.
 *
 *   int hloc_attention(const hloc_attention_args*)         attention.c
 *   int hloc_attention_pairs(const hloc_attention_args*)   attention_pairs.c: of bf16, where the CPU multiplies pairs;
 *       an even depth, along which queries and keys lie in memory, their rows an even number of elements apart
 * For every batch b, row i (query) and feature f, in f32:
 *   z[j] = score(sum over d of Q[b, i, d] K[b, j, d])      for every column j (key)
 *   out[b, i, f] = sum over j of exp(z[j] - max z) V[b, j, f] / sum over j of exp(z[j] - max z)
 * so that rows whose scores contain NaN or +infinity, or are all -infinity, are NaN.
 *
 * Arrays are read through strides (in elements, any): X[b, i, c] = x.at[sum of b's digits times x.batch + i * x.row +
 * c * x.column], where b counts through `dims` dimensions of sizes `batch`, the last fastest. Rows are queries in q and
 * out, keys in k and v; columns are the depth in q and k, features in v and out. `out` overlaps nothing.
 *
 * score (or NULL: the sums themselves) changes a tile of sums in place, on any thread:
 *   score(score_args, b, row, column, rows, columns, tile, stride)
 * where tile[i + j * stride] belongs to (row + i, column + j); where score_by_columns, tile[i * stride + j]. live (or
 * NULL), with score_args and the same tile, tells whether a score may differ from `masked`. Tiles without such scores
 * are skipped if their weights are 0 and their values finite.
 * Called on the driver thread; the work is split over the pool. Returns 0, or 1 if there is no scratch memory.
 */
#ifndef HLOC_ATTENTION_H
#define HLOC_ATTENTION_H
#include "fits.h"

enum { HLOC_ATTENTION_F32, HLOC_ATTENTION_BF16, HLOC_ATTENTION_F16 };

typedef void (*hloc_attention_score)(void* const* args, long batch, long row, long column, long rows, long columns,
                                     float* tile, long stride);

typedef struct {
  void* at;
  int type;
  long row, column;
  const long* batch;
} hloc_attention_array;

/* How it is computed: decided by hloc/targets/cpu/plans/attention.py, which says what each field means. */
typedef struct {
  int k_in_place, v_in_place;
  long block, k_stride, v_stride, panels, grain;
  long own, at_tile, at_transposed, at_k, at_v, at_room;
} hloc_attention_choices;

typedef struct {
  long dims;
  const long* batch;
  long rows, columns, depth, features;
  hloc_attention_array q, k, v, out;
  hloc_attention_score score;
  void* const* score_args;
  int score_by_columns;
  int (*live)(void* const* args, long batch, long row, long column, long rows, long columns);
  float masked;
  hloc_attention_choices choices;
} hloc_attention_args;

int hloc_attention(const hloc_attention_args* args);
int hloc_attention_pairs(const hloc_attention_args* args);

#endif
