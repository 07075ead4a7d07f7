/* topk.h: the largest or smallest elements of rows, and their positions.
 *
 *   hloc_topk_<algorithm>_<type>(&args)      0 when done, 1 when memory is exhausted; algorithm: "rows" or "pieces"
 *                                            (sort.h), "network" (sort_network.h) or "select" (sort_select.h)
 *
 * buffers: [rows][n] elements, then [rows][kept] of them and [rows][kept] positions (s32), in total order; equals by
 * position. candidates, groups: see sort_select.h. The plan (hloc/targets/cpu/plans/sorts.py) chooses the algorithm.
 *
 * Example: the largest of 1, 3, 2 and its position: buffers {x, values, positions}, rows 1, n 3, kept 1, largest 1
 */
#ifndef HLOC_TOPK_H
#define HLOC_TOPK_H
#include "fits.h"

typedef struct { void* const* buffers; long rows, n, kept, candidates, groups; int largest; } hloc_topk_args;
#define HLOC_DECLARE_TOPK(kernel) int hloc_##kernel(const hloc_topk_args* args);
#endif
