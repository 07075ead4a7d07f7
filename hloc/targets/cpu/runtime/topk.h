/* topk.h: the k largest values of f32 rows with their indices, in decreasing order, the earlier of equals first.
 *
 * int hloc_topk_f32(const float* x, float* values, int* places, long rows, long n, long k, long row_stride,
 *                   long groups):
 * 0 when done, 1 when memory is exhausted. NaN counts as larger than everything (total order). A row is read once:
 * only values above the k-th so far go into the heap. groups (0: none): the largest values of so many groups of a row
 * bound the k-th first (hloc/targets/cpu/plans/sorts.py). Example: k = 2 of {3, 9, 9, 1}: values {9, 9}, places {1, 2}.
 */
#ifndef HLOC_TOPK_H
#define HLOC_TOPK_H
int hloc_topk_f32(const float* x, float* values, int* places, long rows, long n, long k, long row_stride,
                  long groups);
#endif
