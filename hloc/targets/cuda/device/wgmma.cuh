/* wgmma.cuh: the tensor core instructions of sm_90a that read operands from shared memory, by four warps together.
 *
 * Out: hloc_describe(place, leading, stride)   where an operand lies, in lines of 128 bytes whose chunks have changed
 *                                              places (hloc_chunk of pipeline.cuh): along k, `stride` bytes from 8 rows
 *                                              to the next 8; across, 8 k each, `leading` from 64 rows to the next 64
 *      hloc_wgmma_<T><N, ADD, ACROSS_A, ACROSS_B>(d, a, b)   D (64 x N, f32) = ADD D + A (64 x 16) B (16 x N) of bf16
 *                                              or f16, begun; N is 64, 128 or 256; d[j * 4 + q] as mma.cuh's, of
 *                                              columns 8 j on, warps 16 rows apart
 *      hloc_wgmma_<T>_words<N, ACROSS_B>(d, a, b)   the same with A in four registers, as mma.cuh's; N is 64 or 128
 *      hloc_wgmma_s8<N>(d, a, b), hloc_wgmma_<A>_<B>, hloc_wgmma_tf32   the same of 64 x 32 and 32 x N bytes, both
 *                                              along k: s8 with D in s32, which wraps around; A, B of f8e4m3fn, f8e5m2,
 *                                              and f32 whose last 13 bits are not looked at, with D in f32
 *      hloc_wgmma_tf32_words<N>(d, a, b)       the same with A in four registers, as mma.cuh's
 *      hloc_wgmma_begin()                      before the first one, and after sums have been touched
 *      hloc_wgmma_commit()                     what was begun since the last time is a group
 *      hloc_wgmma_wait<N>()                    all groups but the last N are done: sums and operands may be touched
 *      hloc_fence_async()                      what this thread has put into shared memory may be read by them
 *      hloc_group_any(yes)                     whether a thread of these four warps says so; waits for all of them
 *      hloc_named_wait<THREADS>(n), hloc_named_arrive<THREADS>(n)   barrier n of so many threads of the block, 1 to 15:
 *                                              waits until all have come; comes without waiting
 *      hloc_more_registers<N>(), hloc_fewer_registers<N>()   for each thread of these four warps from here on
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

#define HLOC_32_REGISTERS                                                                                             \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "                   \
  "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define HLOC_64_REGISTERS                                                                                             \
  HLOC_32_REGISTERS ", "                                                                                              \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, "                   \
  "%51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define HLOC_128_REGISTERS                                                                                            \
  HLOC_64_REGISTERS ", "                                                                                              \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, "                   \
  "%83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, "                       \
  "%101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, "                  \
  "%117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define HLOC_4_SUMS(c, d, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define HLOC_16_SUMS(c, d, i)                                                                                         \
  HLOC_4_SUMS(c, d, i), HLOC_4_SUMS(c, d, i + 4), HLOC_4_SUMS(c, d, i + 8), HLOC_4_SUMS(c, d, i + 12)
#define HLOC_32_SUMS(c, d) HLOC_16_SUMS(c, d, 0), HLOC_16_SUMS(c, d, 16)
#define HLOC_64_SUMS(c, d) HLOC_32_SUMS(c, d), HLOC_16_SUMS(c, d, 32), HLOC_16_SUMS(c, d, 48)
#define HLOC_128_SUMS(c, d)                                                                                           \
  HLOC_64_SUMS(c, d), HLOC_16_SUMS(c, d, 64), HLOC_16_SUMS(c, d, 80), HLOC_16_SUMS(c, d, 96), HLOC_16_SUMS(c, d, 112)
/* COUNT registers of sums come first; what follows them has the numbers that are given. */
#define HLOC_WGMMA_16(T, N, COUNT, A, B, C, D, E)                                                                     \
  if constexpr (COLUMNS == N)                                                                                         \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." #T "." #T " {" HLOC_##COUNT##_REGISTERS "}, "      \
                 "%" #A ", %" #B ", %" #C ", 1, 1, %" #D ", %" #E ";" : HLOC_##COUNT##_SUMS("+f", d)                  \
                 : "l"(a), "l"(b), "n"(ADD), "n"(ACROSS_A), "n"(ACROSS_B));
#define HLOC_WGMMA_WORDS(T, N, COUNT, A, B, C, D, E, F)                                                               \
  if constexpr (COLUMNS == N)                                                                                         \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." #T "." #T " {" HLOC_##COUNT##_REGISTERS "}, "      \
                 "{%" #A ", %" #B ", %" #C ", %" #D "}, %" #E ", 1, 1, 1, %" #F ";" : HLOC_##COUNT##_SUMS("+f", d)    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ACROSS_B));
#define HLOC_DEFINE_WGMMA(T)                                                                                          \
  template <int COLUMNS, int ADD, int ACROSS_A, int ACROSS_B>                                                         \
  HLOC_FN void hloc_wgmma_##T(float *d, unsigned long long a, unsigned long long b) {                                 \
    HLOC_WGMMA_16(T, 64, 32, 32, 33, 34, 35, 36)                                                                      \
    HLOC_WGMMA_16(T, 128, 64, 64, 65, 66, 67, 68)                                                                     \
    HLOC_WGMMA_16(T, 256, 128, 128, 129, 130, 131, 132)                                                               \
  }                                                                                                                   \
  template <int COLUMNS, int ACROSS_B>                                                                                \
  HLOC_FN void hloc_wgmma_##T##_words(float *d, const unsigned *a, unsigned long long b) {                            \
    HLOC_WGMMA_WORDS(T, 64, 32, 32, 33, 34, 35, 36, 37)                                                               \
    HLOC_WGMMA_WORDS(T, 128, 64, 64, 65, 66, 67, 68, 69)                                                              \
  }
HLOC_DEFINE_WGMMA(bf16)
HLOC_DEFINE_WGMMA(f16)
#define HLOC_WGMMA_BYTES(N, COUNT, A, B, K, LETTER, TYPES, SCALES)                                                    \
  if constexpr (COLUMNS == N)                                                                                         \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N K "." TYPES " {" HLOC_##COUNT##_REGISTERS "}, %" #A ", %" #B  \
                 ", 1" SCALES ";" : HLOC_##COUNT##_SUMS(LETTER, d) : "l"(a), "l"(b));
#define HLOC_DEFINE_WGMMA_BYTES(NAME, K, SUM, LETTER, TYPES, SCALES)                                                  \
  template <int COLUMNS> HLOC_FN void hloc_wgmma_##NAME(SUM *d, unsigned long long a, unsigned long long b) {         \
    HLOC_WGMMA_BYTES(64, 32, 32, 33, K, LETTER, TYPES, SCALES)                                                        \
    HLOC_WGMMA_BYTES(128, 64, 64, 65, K, LETTER, TYPES, SCALES)                                                       \
    HLOC_WGMMA_BYTES(256, 128, 128, 129, K, LETTER, TYPES, SCALES)                                                    \
  }
HLOC_DEFINE_WGMMA_BYTES(s8, "k32", int, "+r", "s32.s8.s8", "")
HLOC_DEFINE_WGMMA_BYTES(tf32, "k8", float, "+f", "f32.tf32.tf32", ", 1, 1")
#define HLOC_WGMMA_TF32_WORDS(N, COUNT, A, B, C, D, E)                                                                \
  if constexpr (COLUMNS == N)                                                                                         \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32 {" HLOC_##COUNT##_REGISTERS "}, "           \
                 "{%" #A ", %" #B ", %" #C ", %" #D "}, %" #E ", 1, 1, 1;" : HLOC_##COUNT##_SUMS("+f", d)             \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
template <int COLUMNS> HLOC_FN void hloc_wgmma_tf32_words(float *d, const unsigned *a, unsigned long long b) {
  HLOC_WGMMA_TF32_WORDS(64, 32, 32, 33, 34, 35, 36)
  HLOC_WGMMA_TF32_WORDS(128, 64, 64, 65, 66, 67, 68)
  HLOC_WGMMA_TF32_WORDS(256, 128, 128, 129, 130, 131, 132)
}
HLOC_DEFINE_WGMMA_BYTES(f8e4m3fn_f8e4m3fn, "k32", float, "+f", "f32.e4m3.e4m3", ", 1, 1")
HLOC_DEFINE_WGMMA_BYTES(f8e4m3fn_f8e5m2, "k32", float, "+f", "f32.e4m3.e5m2", ", 1, 1")
HLOC_DEFINE_WGMMA_BYTES(f8e5m2_f8e4m3fn, "k32", float, "+f", "f32.e5m2.e4m3", ", 1, 1")
HLOC_DEFINE_WGMMA_BYTES(f8e5m2_f8e5m2, "k32", float, "+f", "f32.e5m2.e5m2", ", 1, 1")

HLOC_FN void hloc_wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" : : : "memory"); }
HLOC_FN void hloc_wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory"); }
template <int N> HLOC_FN void hloc_wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(N) : "memory");
}
HLOC_FN bool hloc_group_any(bool yes) {
  unsigned any;
  asm volatile("{ .reg .pred own, all; setp.ne.u32 own, %1, 0; barrier.cta.red.or.pred all, %2, 128, own; "
               "selp.u32 %0, 1, 0, all; }" : "=r"(any) : "r"((unsigned)yes), "r"(1 + threadIdx.x / 128) : "memory");
  return __shfl_sync(0xffffffffu, any, 0); /* so that the compiler knows that all have the same */
}
template <int THREADS> HLOC_FN void hloc_named_wait(int n) {
  asm volatile("bar.sync %0, %1;" : : "r"(n), "n"(THREADS) : "memory");
}
template <int THREADS> HLOC_FN void hloc_named_arrive(int n) {
  asm volatile("bar.arrive %0, %1;" : : "r"(n), "n"(THREADS) : "memory");
}
template <int N> HLOC_FN void hloc_more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(N)); }
template <int N> HLOC_FN void hloc_fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(N)); }
HLOC_FN void hloc_fence_async() { asm volatile("fence.proxy.async.shared::cta;" : : : "memory"); }

#endif
#endif
