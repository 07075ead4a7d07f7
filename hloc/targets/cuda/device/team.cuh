/* team.cuh: sums over the lanes of a warp or of a block, in an order that is always the same.
 *
 * In: scalar.h. Out: hloc_warp_total(value, join)                  the join of all 32 lanes' values, on every lane
 *                    hloc_block_total<WARPS>(value, join, scratch)  of all threads of a block; scratch: WARPS x 8 bytes
 *                    hloc_last_warp(arrived, count)   whether this is the last of `count` warps to get here: it sees
 *                    hloc_last_block(arrived, count)  what the others have stored before. The counter starts at zero,
 *                                                     and the last one leaves it at zero for the next launch.
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

/* All stores of a team lie before its barrier. The fences of one lane hand them on, as in a barrier of a whole grid. */
HLOC_FN unsigned hloc_arrive(unsigned *arrived, unsigned count) {
  __threadfence();
  const unsigned before = atomicInc(arrived, count - 1);
  __threadfence();
  return before;
}

HLOC_FN bool hloc_last_warp(unsigned *arrived, unsigned count) {
  unsigned before = 0;
  __syncwarp();
  if (threadIdx.x % 32 == 0) before = hloc_arrive(arrived, count);
  before = __shfl_sync(0xffffffffu, before, 0);
  __syncwarp();
  return before == count - 1;
}

/* Whether this is the last block to arrive: the same for all threads of a block, so that they do not diverge. */
HLOC_FN bool hloc_last_block(unsigned *arrived, unsigned count) {
  __syncthreads();
  return __syncthreads_or(threadIdx.x == 0 && hloc_arrive(arrived, count) == count - 1);
}

#endif
