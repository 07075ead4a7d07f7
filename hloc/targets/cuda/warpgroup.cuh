/* warpgroup.cuh: a tile of a matrix product by the instructions of sm_90a that read operands from shared memory.
 *
 * In: pipeline.cuh, wgmma.cuh; a struct S as pipeline.cuh says, with WM = BM / 16 warps, WN = 1, BN = 256, lines of 128
 * bytes of k. Out: hloc_tile_warpgroup, which does what hloc_tile_pipeline does, of bf16 or f16 (Group: hloc_group_<T>).
 * Four warps multiply 64 rows; steps are copied STAGES - 2 ahead, since the products of one step may go on while the
 * next one's begin.
 */
#ifndef HLOC_WARPGROUP_CUH
#define HLOC_WARPGROUP_CUH

#define HLOC_GROUP_OF(T)                                                                                              \
  struct hloc_group_##T {                                                                                             \
    template <int ACROSS_A, int ACROSS_B>                                                                             \
    HLOC_NUMBERS_FN void multiply(float *d, unsigned long long a, unsigned long long b) {                             \
      hloc_wgmma_##T<ACROSS_A, ACROSS_B>(d, a, b);                                                                    \
    }                                                                                                                 \
  };
HLOC_GROUP_OF(bf16)
HLOC_GROUP_OF(f16)

/* A descriptor of rows from the row-th on, and of the k-th 16 of k. */
template <class Operand> HLOC_FN unsigned long long hloc_described(const unsigned char *tile, int row, int k) {
  if constexpr (Operand::ALONG) return hloc_describe(tile + row * 128 + k * 32, 16, 1024);
  else return hloc_describe(tile + row / 64 * Operand::LINES * 128 + k * 2048, Operand::LINES * 128, 1024);
}

template <class S, class Sum, class T, class Group, class A, class B, class Finish>
HLOC_FN void hloc_tile_warpgroup(const A &a, const B &b, long depth, unsigned char *memory, Finish finish) {
  constexpr int THREADS = S::WM * 32;
  typedef hloc_operand<T, A, S::BM, S::BK, THREADS> Left;
  typedef hloc_operand<T, B, S::BN, S::BK, THREADS> Right;
  constexpr int STAGE = Left::BYTES + Right::BYTES, AHEAD = S::STAGES - 2;
  static_assert(S::BN == 256 && S::BM == S::WM * 16 && S::BM % 64 == 0 && S::BK * sizeof(T) == 128, "a tile's shape");
  static_assert(AHEAD >= 1, "three steps in shared memory at least");
  const int warp = threadIdx.x / 32, top = warp / 4 * 64;
  const Left a_operand(a);
  const Right b_operand(b);
  Sum sums[1][S::BN / 8][4];
  hloc_clear(sums);

  const int steps = (depth + S::BK - 1) / S::BK;
  const auto copy = [&](int step) {
    unsigned char *tile = memory + step % S::STAGES * STAGE;
    if (step < steps) {
      a_operand.copy(tile, (long)step * S::BK);
      b_operand.copy(tile + Left::BYTES, (long)step * S::BK);
    }
    hloc_copy_commit();
  };
  __syncthreads(); /* all have done with the last tile */
#pragma unroll
  for (int step = 0; step < AHEAD; step++) copy(step);
  for (int step = 0; step < steps; step++) {
    hloc_copy_wait<AHEAD - 1>();
    hloc_fence_async();
    __syncthreads(); /* this step has arrived, and all have multiplied the last but one */
    copy(step + AHEAD);
    const unsigned char *tile = memory + step % S::STAGES * STAGE;
    hloc_wgmma_begin();
#pragma unroll
    for (int k = 0; k < S::BK / 16; k++)
      Group::template multiply<!Left::ALONG, !Right::ALONG>(
          &sums[0][0][0], hloc_described<Left>(tile, top, k), hloc_described<Right>(tile + Left::BYTES, 0, k));
    hloc_wgmma_commit();
    hloc_wgmma_wait<1>();
  }
  hloc_wgmma_wait<0>();
  hloc_copy_wait<0>();
  __syncthreads(); /* all have multiplied the last step */
  hloc_finish_rows<S::BN>(sums, (Sum *)memory + warp * hloc_slab<S::BN>::SIZE, warp * 16, 0, finish);
}

#endif
