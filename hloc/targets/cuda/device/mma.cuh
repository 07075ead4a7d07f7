/* mma.cuh: one tensor core instruction, D = A B + D with D 16 x 8, by a whole warp.
 *
 * In: each lane's part as the PTX manual lays out mma.m16n8k16 (two 16-bit elements in each word of a and b), m16n8k32
 * (four bytes in each word) and m16n8k8 (one f32 in each word).
 * Out: hloc_mma_bf16(d, a, b), hloc_mma_f16(d, a, b): A 16 x 16, B 16 x 8, D in f32
 *      hloc_mma_s8(d, a, b): A 16 x 32, B 32 x 8, D in s32, which wraps around
 *      hloc_mma_tf32(d, a, b): A 16 x 8, B 8 x 8, of f32 words whose last 13 bits are not looked at, D in f32
 *      hloc_mma_<A>_<B>(d, a, b) for A, B of f8e4m3fn, f8e5m2: A 16 x 32, B 32 x 8, D in f32; only from sm_89 on
 * HLOC_EMULATED: an emulation gives its own body.
 */
#ifndef HLOC_MMA_CUH
#define HLOC_MMA_CUH
#ifndef HLOC_EMULATED

#define HLOC_DEFINE_MMA_AS(NAME, SHAPE, SUM, LETTER, A, B)                                                            \
  HLOC_FN void hloc_mma_##NAME(SUM *d, const unsigned *a, const unsigned *b) {                                        \
    asm volatile("mma.sync.aligned." SHAPE ".row.col." A "." B " "                                                    \
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                              \
                 : "+" LETTER(d[0]), "+" LETTER(d[1]), "+" LETTER(d[2]), "+" LETTER(d[3])                             \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                                 \
  }
HLOC_DEFINE_MMA_AS(bf16, "m16n8k16", float, "f", "f32.bf16", "bf16.f32")
HLOC_DEFINE_MMA_AS(f16, "m16n8k16", float, "f", "f32.f16", "f16.f32")
HLOC_DEFINE_MMA_AS(tf32, "m16n8k8", float, "f", "f32.tf32", "tf32.f32")
HLOC_DEFINE_MMA_AS(s8, "m16n8k32", int, "r", "s32.s8", "s8.s32")
HLOC_DEFINE_MMA_AS(f8e4m3fn_f8e4m3fn, "m16n8k32", float, "f", "f32.e4m3", "e4m3.f32")
HLOC_DEFINE_MMA_AS(f8e4m3fn_f8e5m2, "m16n8k32", float, "f", "f32.e4m3", "e5m2.f32")
HLOC_DEFINE_MMA_AS(f8e5m2_f8e4m3fn, "m16n8k32", float, "f", "f32.e5m2", "e4m3.f32")
HLOC_DEFINE_MMA_AS(f8e5m2_f8e5m2, "m16n8k32", float, "f", "f32.e5m2", "e5m2.f32")

#endif
#endif
