/* bulk.cuh: copies of whole boxes of an array into shared memory by the bulk copy engine of sm_90a, and the barriers
 * that signal their completion.
 *
 * Out: hloc_barrier_make(barrier, count)    8 bytes of shared memory; count: arrivals that end a phase
 *      hloc_barrier_arrive(barrier)
 *      hloc_barrier_expect(barrier, bytes)  arrives, and the phase ends not before so many bytes have been copied
 *      hloc_barrier_wait(barrier, parity)   until the phase of that parity (0, 1, 0 ...) has ended
 *      hloc_bulk_copy(to, map, along, line, inner, outer, barrier)   the box of a tensor map that starts there, zeros
 *                                           outside of the array; `to` is a multiple of 1024, chunks of 16 bytes change
 *                                           places in lines of 128 (hloc_chunk of pipeline.cuh)
 *      hloc_bulk_known(map)                 once per thread that copies: the host has written the map
 *      hloc_bulk_operand, hloc_bulk_ring    a product's operand; the steps in shared memory and their barriers
 * Tensor maps have 128 bytes each and lie in device memory (tiles/tensor_maps.py).
 * HLOC_EMULATED: an emulation gives its own bodies.
 */
#ifndef HLOC_BULK_CUH
#define HLOC_BULK_CUH
#ifndef HLOC_EMULATED

HLOC_FN void hloc_barrier_make(unsigned long long *barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(hloc_shared_address(barrier)), "r"(count) : "memory");
}
HLOC_FN void hloc_barrier_arrive(unsigned long long *barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(hloc_shared_address(barrier)) : "memory");
}
HLOC_FN void hloc_barrier_expect(unsigned long long *barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               : : "r"(hloc_shared_address(barrier)), "r"(bytes) : "memory");
}
HLOC_FN void hloc_barrier_wait(unsigned long long *barrier, int parity) {
  unsigned done = 0;
  while (!done)
    asm volatile("{ .reg .pred done; mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2; "
                 "selp.u32 %0, 1, 0, done; }"
                 : "=r"(done) : "r"(hloc_shared_address(barrier)), "r"(parity) : "memory");
}
HLOC_FN void hloc_bulk_copy(void *to, const void *map, int along, int line, int inner, int outer,
                            unsigned long long *barrier) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%2, %3, %4, %5}], [%6];"
               : : "r"(hloc_shared_address(to)), "l"(map), "r"(along), "r"(line), "r"(inner), "r"(outer),
                   "r"(hloc_shared_address(barrier)) : "memory");
}
HLOC_FN void hloc_bulk_known(const void *map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" : : "l"(map) : "memory");
}

#endif

/* One operand, ROWS x DEPTH elements of WIDTH bytes: its lines of 128 bytes run along k (ALONG_K), else along rows. */
template <bool ALONG_K, int ROWS, int DEPTH, int WIDTH> struct hloc_bulk_operand {
  static constexpr bool ALONG = ALONG_K;
  static constexpr int LINES = ALONG ? ROWS : DEPTH, BYTES = ROWS * DEPTH * WIDTH, COPIED = BYTES;
  static constexpr int ACROSS = 128 / WIDTH;
  static_assert(!ALONG || DEPTH * WIDTH == 128, "a line");
  const unsigned char *map;
  int row, first, inner, outer;
  HLOC_MEMBER void copy(unsigned char *tile, int k0, unsigned long long *arrived) const {
    if constexpr (ALONG) hloc_bulk_copy(tile, map, first + k0, row, inner, outer, arrived);
    else
      for (int panel = 0; panel < ROWS / ACROSS; panel++)
        hloc_bulk_copy(tile + panel * LINES * 128, map, row + panel * ACROSS, first + k0, inner, outer, arrived);
  }
  /* So many steps along k, one behind the other. */
  template <int PANELS> HLOC_MEMBER void copy_panels(unsigned char *tile, unsigned long long *arrived) const {
    for (int panel = 0; panel < PANELS; panel++) copy(tile + panel * BYTES, panel * DEPTH, arrived);
  }
};

/* A ring of STAGES buffers in shared memory for the steps of all tiles that a block computes: step n is in stage
 * n % STAGES. Barrier `arrived` signals that a step has been copied, `read` that all WARPS have multiplied it. Created
 * by all threads of the block; the 2 * STAGES barriers follow the buffers, or are given. */
template <int STAGES, int BYTES, int WARPS> struct hloc_bulk_ring {
  unsigned char *memory;
  unsigned long long *barriers;
  unsigned n;
  HLOC_MEMBER explicit hloc_bulk_ring(unsigned char *memory)
      : hloc_bulk_ring(memory, (unsigned long long *)(memory + STAGES * BYTES)) {}
  HLOC_MEMBER hloc_bulk_ring(unsigned char *memory, unsigned long long *barriers)
      : memory(memory), barriers(barriers), n(0) {
    if (threadIdx.x == 0)
      for (int stage = 0; stage < STAGES; stage++) {
        hloc_barrier_make(barriers + stage, 1);
        hloc_barrier_make(barriers + STAGES + stage, WARPS);
      }
    hloc_fence_async();
    __syncthreads(); /* all know the barriers */
  }
  HLOC_MEMBER unsigned char *tile(int ago = 0) const { return memory + (n - ago) % STAGES * BYTES; }
  HLOC_MEMBER unsigned long long *arrived() const { return barriers + n % STAGES; }
  /* By the thread that copies: the n-th step may be copied, so many bytes. */
  HLOC_MEMBER void begin(int bytes = BYTES) const {
    if (n >= STAGES) hloc_barrier_wait(barriers + STAGES + n % STAGES, (n / STAGES - 1) & 1);
    hloc_barrier_expect(arrived(), bytes);
  }
  /* By a warp that multiplies: the n-th step is here; what came `ago` steps before has been read. */
  HLOC_MEMBER void wait() const { hloc_barrier_wait(arrived(), n / STAGES & 1); }
  HLOC_MEMBER void done(int ago) const {
    if (threadIdx.x % 32 == 0) hloc_barrier_arrive(barriers + STAGES + (n - ago) % STAGES);
  }
};
template <class S> using hloc_bulk_steps = hloc_bulk_ring<S::STAGES, (S::BM + S::BN) * 128, S::WM>;

#endif
