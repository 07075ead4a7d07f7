/* gemm_s8.c: matmuls of s8, with AMX if the CPU has it. VNNI multiplies unsigned by signed bytes, so 128 is added to A
 * (its sign bit is flipped), and 128 times the sum of its column of B is subtracted from every sum. Without VNNI units
 * are s32. */
#include "vector.h"
#if defined(__AVX512VNNI__) && HLOC_VECTOR_BYTES == 64
#if defined(__has_builtin)
#if __has_builtin(__builtin_ia32_vpdpbusd_v16si)
#define HLOC_MULTIPLY_BYTES(sum, a, b) __builtin_ia32_vpdpbusd_v16si(sum, a, b)
#endif
#endif
#if !defined(HLOC_MULTIPLY_BYTES) /* a long header, included only if needed */
#include <immintrin.h>
#define HLOC_MULTIPLY_BYTES(sum, a, b) _mm512_dpbusd_epi32((__m512i)(sum), (__m512i)(a), (__m512i)(b))
#endif
#endif
#if defined(HLOC_AMX)
#define HLOC_TILE_ROWS 16
#define G_AMX_MULTIPLY "tdpbssd"
#endif
#include "gemm_common.h"

/* One vector of sums from narrow elements: by the CPU's instruction, else through 16 bits, as compilers do not
 * vectorize a conversion to four times the size. */
typedef signed char hloc_bytes __attribute__((vector_size(HLOC_VECTOR_BYTES / 4), aligned(1), may_alias));
typedef char hloc_16_bytes __attribute__((vector_size(16), aligned(1), may_alias));
typedef short hloc_two_bytes_each __attribute__((vector_size(HLOC_VECTOR_BYTES / 2)));
#if defined(__has_builtin) && HLOC_VECTOR_BYTES == 64
#if __has_builtin(__builtin_ia32_pmovsxbd512_mask)
#define HLOC_WIDEN_BYTES(p) (hloc_vs32) __builtin_ia32_pmovsxbd512_mask(*(const hloc_16_bytes*)(p), (hloc_vs32){0}, -1)
#endif
#endif
#if !defined(HLOC_WIDEN_BYTES)
#define HLOC_WIDEN_BYTES(p)                                                                                           \
  __builtin_convertvector(__builtin_convertvector(*(const hloc_bytes*)(p), hloc_two_bytes_each), hloc_vs32)
#endif
HLOC_INLINE hloc_vs32 s8_widen(const hloc_s8* p) { return HLOC_WIDEN_BYTES(p); }

#define G(name) s8_##name
#define G_NAME s8
#define ELEMENT hloc_s8
#define SUM int
#define G_WIDEN_ONE (int)
#define VECTOR hloc_vs32
#define V(name) hloc_##name##_s32
#define LANES HLOC_LANES32
#if defined(__AVX512VNNI__) && HLOC_VECTOR_BYTES == 64
#define UNIT hloc_unit32
#define GROUP 4
#define UNIT_IS_MEMORY 1
#define s8_vector_unit hloc_vu32
#define s8_load hloc_load_u32
#define s8_splat hloc_splat_u32
#define s8_add_bytes(sum, a, b) ((hloc_vs32)HLOC_MULTIPLY_BYTES((hloc_vs32)(sum), (hloc_vs32)(a), (hloc_vs32)(b)))
#if defined(G_AMX_MULTIPLY) /* which multiplies signed bytes; if it may not be used, sums are corrected at once */
#define s8_multiply_add(sum, a, b)                                                                                    \
  (s8_add_bytes(sum, (a) ^ hloc_splat_u32(0x80808080u), b) -                                                          \
   s8_add_bytes((hloc_vs32){0}, hloc_splat_u32(0x80808080u), b))
#else
#define G_CORRECTS 1
#define G_OFFSETS_A 1
#define s8_multiply_add s8_add_bytes
#endif
static inline unsigned s8_unit(const hloc_s8* p, long stride, long count) {
  unsigned word = (hloc_u8)p[0];
  if (count > 1) word |= (unsigned)(hloc_u8)p[stride] << 8;
  if (count > 2) word |= (unsigned)(hloc_u8)p[2 * stride] << 16;
  if (count > 3) word |= (unsigned)(hloc_u8)p[3 * stride] << 24;
  return word;
}
/* A lane for each of sixteen columns of four rows: interleaves quarters of rows, then the bytes of each quarter. */
HLOC_INLINE hloc_vu32 s8_interleaved(const hloc_s8* p, long stride) {
#if defined(HLOC_SHUFFLE)
  typedef unsigned hloc_words __attribute__((vector_size(16), aligned(1), may_alias));
  const hloc_words r0 = *(const hloc_words*)p, r1 = *(const hloc_words*)(p + stride);
  const hloc_words r2 = *(const hloc_words*)(p + 2 * stride), r3 = *(const hloc_words*)(p + 3 * stride);
  typedef unsigned hloc_rows __attribute__((vector_size(32)));
  const hloc_rows low = HLOC_SHUFFLE(r0, r1, 0, 1, 2, 3, 4, 5, 6, 7);
  const hloc_rows high = HLOC_SHUFFLE(r2, r3, 0, 1, 2, 3, 4, 5, 6, 7);
  const hloc_vu32 rows = HLOC_SHUFFLE(low, high, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const hloc_vbytes bytes = (hloc_vbytes)rows;
#define S8_COLUMN(i) i, i + 4, i + 8, i + 12
#define S8_QUARTER(i) S8_COLUMN(i), S8_COLUMN(i + 1), S8_COLUMN(i + 2), S8_COLUMN(i + 3)
  return (hloc_vu32)HLOC_SHUFFLE(bytes, bytes, S8_QUARTER(0), S8_QUARTER(16), S8_QUARTER(32), S8_QUARTER(48));
#else
  hloc_vu32 units = {0};
  HLOC_UNROLL for (int q = 0; q < 4; q++) units |= ((hloc_vu32)s8_widen(p + q * stride) & 255u) << (8 * q);
  return units;
#endif
}
/* Dot products along k (gemm_thin.h), 64 elements at once. Here 128 is added to B, and 128 times the sum of A's row,
 * which is the same for all columns, is subtracted. */
#define G_DOTS
HLOC_INLINE void s8_thin_lanes(const int rows, const int count, const hloc_s8* a, const hloc_s8* b, long b_column,
                               long k, hloc_vs32* lanes, const int stride) {
  enum { MOST = 4 };
  const hloc_vu32 plus_128 = hloc_splat_u32(0x80808080u);
  hloc_vs32 sum[MOST * MOST], over[MOST];
  HLOC_UNROLL for (int i = 0; i < rows * count; i++) sum[i] = (hloc_vs32){0};
  HLOC_UNROLL for (int i = 0; i < rows; i++) over[i] = (hloc_vs32){0};
  for (long p = 0; p < k; p += 64) {
    const unsigned long long present = k - p < 64 ? (1ull << (k - p)) - 1 : ~0ull;
    hloc_vu32 ai[MOST];
    HLOC_UNROLL for (int i = 0; i < rows; i++) {
      ai[i] = hloc_some_bytes(a + i * k + p, present);
      over[i] = s8_add_bytes(over[i], plus_128, ai[i]);
    }
    HLOC_UNROLL for (int j = 0; j < count; j++) {
      __builtin_prefetch(b + (j + count) * b_column + p);
      const hloc_vu32 bj = hloc_some_bytes(b + j * b_column + p, present) ^ plus_128;
      HLOC_UNROLL for (int i = 0; i < rows; i++) sum[i * count + j] = s8_add_bytes(sum[i * count + j], bj, ai[i]);
    }
  }
  HLOC_UNROLL for (int i = 0; i < rows; i++)
    HLOC_UNROLL for (int j = 0; j < count; j++) lanes[i * stride + j] = sum[i * count + j] - over[i];
}
#if defined(G_OFFSETS_A)
static void s8_offset(hloc_unit32* units, long count) {
  for (long i = 0; i < count; i++) units[i] ^= 0x80808080u;
}
static void s8_column_correction(const hloc_unit32* panel, long units, int* correction) {
  hloc_vs32 left = {0}, right = {0};
  const hloc_vu32 minus_128 = hloc_splat_u32(0x80808080u); /* as unsigned bytes: 128 */
  for (long p = 0; p < units; p++, panel += 2 * LANES) {
    left = s8_add_bytes(left, minus_128, hloc_load_u32(panel));
    right = s8_add_bytes(right, minus_128, hloc_load_u32(panel + LANES));
  }
  hloc_store_s32(correction, -left);
  hloc_store_s32(correction + LANES, -right);
}
#endif
#endif
#include "gemm_unit.h"
