/* wgmma.cuh: the tensor core instructions of sm_90a that read operands from shared memory, by four warps together.
 *
 * Out: hloc_describe(place, leading, stride)   where an operand lies, in lines of 128 bytes whose chunks have changed
 *                                              places (hloc_chunk of pipeline.cuh): along k, `stride` bytes from 8 rows
 *                                              to the next 8; across, 8 k each, `leading` from 64 rows to the next 64
 *      hloc_wgmma_<T><ACROSS_A, ACROSS_B>(d, a, b)   D (64 x 256, f32) += A (64 x 16) B (16 x 256) of bf16 or f16, begun;
 *                                              d[j * 4 + q] as mma.cuh's, of columns 8 j on, warps 16 rows apart
 *      hloc_wgmma_s8(d, a, b), hloc_wgmma_<A>_<B>(d, a, b)   the same of 64 x 32 and 32 x 256 bytes, both along k: s8 with
 *                                              D in s32, which wraps around; A, B of f8e4m3fn, f8e5m2 with D in f32
 *      hloc_wgmma_begin()                      before the first one, and after sums have been touched
 *      hloc_wgmma_commit()                     what was begun since the last time is a group
 *      hloc_wgmma_wait<N>()                    all groups but the last N are done: sums and operands may be touched
 *      hloc_fence_async()                      what this thread has put into shared memory may be read by them
 * HLOC_EMULATED: an emulation gives its own bodies.
 */
#ifndef HLOC_WGMMA_CUH
#define HLOC_WGMMA_CUH

/* Addresses and distances count 16 bytes; swizzle of 128 bytes. */
HLOC_FN unsigned long long hloc_describe(const void *place, unsigned leading, unsigned stride) {
  const unsigned long long at = (hloc_shared_address(place) & 0x3ffff) >> 4, far = leading >> 4, step = stride >> 4;
  return at | far << 16 | step << 32 | 1ull << 62;
}

#ifndef HLOC_EMULATED

#define HLOC_128_REGISTERS                                                                                            \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20,"                    \
  "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39,"                    \
  "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58,"                    \
  "%59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77,"                    \
  "%78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96,"                    \
  "%97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112,"                      \
  "%113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define HLOC_4_SUMS(c, d, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define HLOC_16_SUMS(c, d, i)                                                                                         \
  HLOC_4_SUMS(c, d, i), HLOC_4_SUMS(c, d, i + 4), HLOC_4_SUMS(c, d, i + 8), HLOC_4_SUMS(c, d, i + 12)
#define HLOC_64_SUMS(c, d, i)                                                                                         \
  HLOC_16_SUMS(c, d, i), HLOC_16_SUMS(c, d, i + 16), HLOC_16_SUMS(c, d, i + 32), HLOC_16_SUMS(c, d, i + 48)
#define HLOC_DEFINE_WGMMA(T)                                                                                          \
  template <int ACROSS_A, int ACROSS_B>                                                                               \
  HLOC_FN void hloc_wgmma_##T(float *d, unsigned long long a, unsigned long long b) {                                 \
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32." #T "." #T " {" HLOC_128_REGISTERS "}, "               \
                 "%128, %129, 1, 1, 1, %130, %131;"                                                                   \
                 : HLOC_64_SUMS("+f", d, 0), HLOC_64_SUMS("+f", d, 64)                                                \
                 : "l"(a), "l"(b), "n"(ACROSS_A), "n"(ACROSS_B));                                                     \
  }
HLOC_DEFINE_WGMMA(bf16)
HLOC_DEFINE_WGMMA(f16)
#define HLOC_DEFINE_WGMMA_BYTES(NAME, SUM, LETTER, TYPES, SCALES)                                                     \
  HLOC_FN void hloc_wgmma_##NAME(SUM *d, unsigned long long a, unsigned long long b) {                                \
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k32." TYPES " {" HLOC_128_REGISTERS "}, %128, %129, 1" SCALES ";" \
                 : HLOC_64_SUMS(LETTER, d, 0), HLOC_64_SUMS(LETTER, d, 64) : "l"(a), "l"(b));                         \
  }
HLOC_DEFINE_WGMMA_BYTES(s8, int, "+r", "s32.s8.s8", "")
HLOC_DEFINE_WGMMA_BYTES(f8e4m3fn_f8e4m3fn, float, "+f", "f32.e4m3.e4m3", ", 1, 1")
HLOC_DEFINE_WGMMA_BYTES(f8e4m3fn_f8e5m2, float, "+f", "f32.e4m3.e5m2", ", 1, 1")
HLOC_DEFINE_WGMMA_BYTES(f8e5m2_f8e4m3fn, float, "+f", "f32.e5m2.e4m3", ", 1, 1")
HLOC_DEFINE_WGMMA_BYTES(f8e5m2_f8e5m2, float, "+f", "f32.e5m2.e5m2", ", 1, 1")

HLOC_FN void hloc_wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" : : : "memory"); }
HLOC_FN void hloc_wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory"); }
template <int N> HLOC_FN void hloc_wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(N) : "memory");
}
HLOC_FN void hloc_fence_async() { asm volatile("fence.proxy.async.shared::cta;" : : : "memory"); }

#endif
#endif
