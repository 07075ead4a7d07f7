/* team.cuh: sums over the lanes of a warp or of a block, in an order that is always the same.
 *
 * In: scalar.h. Out: hloc_warp_total(value, join)                  the join of all 32 lanes' values, on every lane
 *                    hloc_block_total<WARPS>(value, join, scratch)  of all threads of a block; scratch: WARPS x 8 bytes
 * join is commutative: float add, maximum ...
 */
#ifndef HLOC_TEAM_CUH
#define HLOC_TEAM_CUH

template <class T, class Join> HLOC_FN T hloc_warp_total(T value, Join join) {
  for (int distance = 16; distance > 0; distance /= 2) {
    T other = (T)__shfl_xor_sync(0xffffffffu, value, distance);
    value = join(value, other);
  }
  return value;
}

template <int WARPS, class T, class Join>
HLOC_FN T hloc_block_total(T value, Join join, unsigned long long *scratch) {
  T *totals = (T *)scratch;
  value = hloc_warp_total(value, join);
  __syncthreads(); /* the last total has been read */
  if (threadIdx.x % 32 == 0) totals[threadIdx.x / 32] = value;
  __syncthreads();
  value = totals[0];
  for (int warp = 1; warp < WARPS; warp++) value = join(value, totals[warp]);
  return value;
}

#endif
