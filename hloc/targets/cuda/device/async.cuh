/* async.cuh: copies from device to shared memory that go on while threads compute, and loads of whole fragments.
 *
 * In: nothing. Out, from sm_80 on:
 *   hloc_dynamic_shared()              the launch's dynamic shared memory; its address is a multiple of 1024
 *   hloc_copy_16(to, from, inside)     16 bytes, aligned; zeros where not inside: then nothing is read
 *   hloc_copy_commit()                 commits the copies of this thread since the last commit as a group
 *   hloc_copy_wait<N>()                all groups of this thread but its last N have arrived
 *   hloc_load_matrices(words, row)     four matrices of 8 rows x 16 bytes: lane l gives the place of row l % 8 of
 *                                      matrix l / 8, and gets word l % 4 of row l / 4 of each
 *   hloc_load_transposed(words, row)   the same, where each is 8 x 8 elements of 16 bits: gets elements 2 (l % 4) and
 *                                      the next one of column l / 4
 *   hloc_exp2_fast(x)                  2^x with about 2^-22 of relative error, 0 for what is too small
 *   hloc_reciprocal_fast(x)            1 / x with about 2^-23 of relative error, for x from 2^-126 to 2^126
 * HLOC_EMULATED: an emulation gives its own bodies.
 */
#ifndef HLOC_ASYNC_CUH
#define HLOC_ASYNC_CUH
#ifndef HLOC_EMULATED

HLOC_FN unsigned char *hloc_dynamic_shared() {
  extern __shared__ __align__(1024) unsigned char hloc_dynamic_memory[];
  return hloc_dynamic_memory;
}
HLOC_FN unsigned hloc_shared_address(const void *place) { return (unsigned)__cvta_generic_to_shared(place); }

HLOC_FN void hloc_copy_16(void *to, const void *from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               : : "r"(hloc_shared_address(to)), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
HLOC_FN void hloc_copy_commit() { asm volatile("cp.async.commit_group;" : : : "memory"); }
template <int N> HLOC_FN void hloc_copy_wait() { asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory"); }

HLOC_FN void hloc_load_matrices(unsigned *words, const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(hloc_shared_address(row)) : "memory");
}
HLOC_FN void hloc_load_transposed(unsigned *words, const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(hloc_shared_address(row)) : "memory");
}

HLOC_FN float hloc_exp2_fast(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}
HLOC_FN float hloc_reciprocal_fast(float x) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
  return inverse;
}

#endif
#endif
