/* early.cuh: kernels of a CUDA graph that start before the kernel before them has ended, from sm_90 on.
 *
 * In: nothing. Out (on other GPUs no instructions):
 *   hloc_let_next_start()              the next kernel may start as soon as all blocks of this one have called it
 *   hloc_prefetch(from, bytes)         loads memory that no kernel writes into L2; the grid shares the lines
 *   hloc_await_previous()              returns when the kernel before this one has ended and its stores are visible
 * Where no other kernel runs at the same time they return at once. HLOC_EMULATED: an emulation gives its own bodies.
 */
#ifndef HLOC_EARLY_CUH
#define HLOC_EARLY_CUH
#ifndef HLOC_EMULATED

#if __CUDA_ARCH__ >= 900
HLOC_FN void hloc_let_next_start() { asm volatile("griddepcontrol.launch_dependents;"); }
HLOC_FN void hloc_await_previous() { asm volatile("griddepcontrol.wait;" : : : "memory"); }
#else
HLOC_FN void hloc_let_next_start() {}
HLOC_FN void hloc_await_previous() {}
#endif
HLOC_FN void hloc_prefetch_line(const char *line) {
  asm volatile("prefetch.global.L2 [%0];" : : "l"(__cvta_generic_to_global(line)));
}

#endif

HLOC_FN void hloc_prefetch(const void *from, long bytes) {
  const long line = 128, threads = (long)gridDim.x * blockDim.x;
  for (long at = ((long)blockIdx.x * blockDim.x + threadIdx.x) * line; at < bytes; at += threads * line)
    hloc_prefetch_line((const char *)from + at);
}

#endif
