/* mma.cuh: one tensor core instruction, D = A B + D with D 16 x 8, by a whole warp.
 *
 * In: each lane's part as the PTX manual lays out mma.m16n8k16 (two 16-bit elements in each word of a and b) and
 * m16n8k32 (four bytes in each word).
 * Out: hloc_mma_bf16(d, a, b), hloc_mma_f16(d, a, b): A 16 x 16, B 16 x 8, D in f32
 *      hloc_mma_s8(d, a, b): A 16 x 32, B 32 x 8, D in s32, which wraps around
 * HLOC_EMULATED: an emulation gives its own body.
 */
#ifndef HLOC_MMA_CUH
#define HLOC_MMA_CUH
#ifndef HLOC_EMULATED

#define HLOC_DEFINE_MMA(T)                                                                                            \
  HLOC_FN void hloc_mma_##T(float *d, const unsigned *a, const unsigned *b) {                                         \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." #T "." #T ".f32 "                                           \
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                              \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                                 \
  }
HLOC_DEFINE_MMA(bf16)
HLOC_DEFINE_MMA(f16)

HLOC_FN void hloc_mma_s8(int *d, const unsigned *a, const unsigned *b) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#endif
#endif
