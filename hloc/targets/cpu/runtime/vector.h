/* vector.h: vectors of the widest registers the compiler may use, in GNU vector extensions (gcc, clang, zig cc).
 *
 * In: the target macros that -march sets. Out:
 *   HLOC_VECTOR_BYTES      of vector_bytes.h
 *   hloc_vf32 hloc_vs32 hloc_vu32 (HLOC_LANES32 lanes), hloc_vf64 hloc_vu64 (HLOC_LANES64 lanes)
 *   hloc_load_<v>(pointer), hloc_store_<v>(pointer, v)       any alignment
 *   hloc_splat_f32(x), hloc_sum_f32(v), hloc_max_f32 ...
 *   hloc_fold_f32(v)       of HLOC_LANES32 vectors (which it changes): the sum of each one's lanes, as one vector
 *   hloc_low_32(a, b), hloc_high_32(a, b): the first, the last halves of a and b, lane by lane in turn; _64 likewise
 *   hloc_transpose_tile_32(source, source_stride, target, target_stride): HLOC_LANES32 x HLOC_LANES32 words; _64
 *   likewise
 *   hloc_swapped_<f32, f64>(v): neighbouring lanes exchanged
 *   HLOC_IN_REGISTER(v)    v, just loaded, is used several times: gcc would load it again in each instruction
 *   HLOC_UNROLL            before a loop whose body works on a register array
 *   HLOC_EACH_<n>(X)       X(0) X(1) ... X(n - 1), n 1, 3, 7 or even, up to 14: as written out; with register arrays
 *                          to take apart first, gcc makes the same code in half as long again
 *
 * Multiply-add is written a * b + c: compile with -ffp-contract=fast.
 * Example: hloc_store_f32(y, hloc_load_f32(x) * 2.0f)
 */
#ifndef HLOC_VECTOR_H
#define HLOC_VECTOR_H

#include "vector_bytes.h"

#define HLOC_LANES32 (HLOC_VECTOR_BYTES / 4)
#define HLOC_LANES64 (HLOC_VECTOR_BYTES / 8)

#if defined(__clang__)
#define HLOC_UNROLL _Pragma("clang loop unroll(full)")
#else
#define HLOC_UNROLL _Pragma("GCC unroll 32")
#endif
#define HLOC_EACH_1(X) X(0)
#define HLOC_EACH_2(X) X(0) X(1)
#define HLOC_EACH_3(X) HLOC_EACH_2(X) X(2)
#define HLOC_EACH_4(X) HLOC_EACH_2(X) X(2) X(3)
#define HLOC_EACH_6(X) HLOC_EACH_4(X) X(4) X(5)
#define HLOC_EACH_7(X) HLOC_EACH_6(X) X(6)
#define HLOC_EACH_8(X) HLOC_EACH_6(X) X(6) X(7)
#define HLOC_EACH_10(X) HLOC_EACH_8(X) X(8) X(9)
#define HLOC_EACH_12(X) HLOC_EACH_10(X) X(10) X(11)
#define HLOC_EACH_14(X) HLOC_EACH_12(X) X(12) X(13)
#define HLOC_INLINE static inline __attribute__((always_inline, unused))
#if defined(__x86_64__) && defined(__GNUC__)
#define HLOC_IN_REGISTER(v) __asm__("" : "+v"(v))
#else
#define HLOC_IN_REGISTER(v) ((void)(v))
#endif

#define HLOC_DEFINE_VECTOR(S, T)                                                                                      \
  typedef T hloc_v##S __attribute__((vector_size(HLOC_VECTOR_BYTES)));                                                \
  typedef T hloc_v##S##_any __attribute__((vector_size(HLOC_VECTOR_BYTES), aligned(1), may_alias));                   \
  HLOC_INLINE hloc_v##S hloc_load_##S(const void* p) { return *(const hloc_v##S##_any*)p; }                           \
  HLOC_INLINE void hloc_store_##S(void* p, hloc_v##S v) { *(hloc_v##S##_any*)p = v; }                                 \
  HLOC_INLINE hloc_v##S hloc_splat_##S(T x) { return x - (hloc_v##S){0}; }
HLOC_DEFINE_VECTOR(f32, float)
HLOC_DEFINE_VECTOR(f64, double)
HLOC_DEFINE_VECTOR(s32, int)
HLOC_DEFINE_VECTOR(u32, unsigned)
HLOC_DEFINE_VECTOR(u64, unsigned long long)

#if HLOC_VECTOR_BYTES == 64
typedef char hloc_vbytes __attribute__((vector_size(64)));
/* The bytes at p whose bits are set; others are 0, and not read. */
HLOC_INLINE hloc_vu32 hloc_some_bytes(const void* p, unsigned long long present) {
  return (hloc_vu32)__builtin_ia32_loaddquqi512_mask((void*)p, (hloc_vbytes){0}, present);
}
#endif

/* Sum and maximum of the lanes, by halves. */
#define HLOC_DEFINE_FOLD(S, T, LANES)                                                                                 \
  HLOC_INLINE T hloc_sum_##S(hloc_v##S v) {                                                                           \
    T lane[LANES];                                                                                                    \
    hloc_store_##S(lane, v);                                                                                          \
    for (int half = LANES / 2; half; half /= 2)                                                                       \
      for (int i = 0; i < half; i++) lane[i] += lane[i + half];                                                       \
    return lane[0];                                                                                                   \
  }                                                                                                                   \
  HLOC_INLINE T hloc_max_##S(hloc_v##S v) { /* NaN in any lane wins */                                                \
    T lane[LANES];                                                                                                    \
    hloc_store_##S(lane, v);                                                                                          \
    for (int half = LANES / 2; half; half /= 2)                                                                       \
      for (int i = 0; i < half; i++)                                                                                  \
        lane[i] = ((lane[i] > lane[i + half]) | (lane[i] != lane[i])) ? lane[i] : lane[i + half];                     \
    return lane[0];                                                                                                   \
  }
HLOC_DEFINE_FOLD(f32, float, HLOC_LANES32)
HLOC_DEFINE_FOLD(f64, double, HLOC_LANES64)
HLOC_DEFINE_FOLD(s32, int, HLOC_LANES32)
HLOC_DEFINE_FOLD(u32, unsigned, HLOC_LANES32)
HLOC_DEFINE_FOLD(u64, unsigned long long, HLOC_LANES64)

/* Transposition by perfect shuffles: log2(n) rounds of interleaving row i with row i + n/2 transpose n x n. */
#define HLOC_LOW2 0, 2
#define HLOC_HIGH2 1, 3
#define HLOC_LOW4 0, 4, 1, 5
#define HLOC_HIGH4 2, 6, 3, 7
#define HLOC_LOW8 0, 8, 1, 9, 2, 10, 3, 11
#define HLOC_HIGH8 4, 12, 5, 13, 6, 14, 7, 15
#define HLOC_LOW16 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HLOC_HIGH16 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#if defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 12)
#define HLOC_SHUFFLE __builtin_shufflevector /* the result may be longer */
#define HLOC_INTERLEAVE(S, a, b, ...) HLOC_SHUFFLE(a, b, __VA_ARGS__)
#else
#define HLOC_INTERLEAVE(S, a, b, ...) __builtin_shuffle(a, b, (hloc_v##S){__VA_ARGS__})
#endif
#define HLOC_SWAP2 1, 0
#define HLOC_SWAP4 HLOC_SWAP2, 3, 2
#define HLOC_SWAP8 HLOC_SWAP4, 5, 4, 7, 6
#define HLOC_SWAP16 HLOC_SWAP8, 9, 8, 11, 10, 13, 12, 15, 14
#define HLOC_DEFINE_SWAPPED(S, U, SWAP)                                                                               \
  HLOC_INLINE hloc_v##S hloc_swapped_##S(hloc_v##S v) { return HLOC_INTERLEAVE(U, v, v, SWAP); }
#define HLOC_DEFINE_TRANSPOSE(WIDTH, S, T, LANES, LOW, HIGH)                                                          \
  HLOC_INLINE hloc_v##S hloc_low_##WIDTH(hloc_v##S a, hloc_v##S b) { return HLOC_INTERLEAVE(S, a, b, LOW); }          \
  HLOC_INLINE hloc_v##S hloc_high_##WIDTH(hloc_v##S a, hloc_v##S b) { return HLOC_INTERLEAVE(S, a, b, HIGH); }        \
  static __attribute__((noinline, unused)) void hloc_transpose_tile_##WIDTH(const void* source, long source_stride,    \
                                                                       void* target, long target_stride) {            \
    const T* from = (const T*)source;                                                                                 \
    T* to = (T*)target;                                                                                               \
    hloc_v##S row[LANES], mixed[LANES];                                                                               \
    HLOC_UNROLL for (int i = 0; i < LANES; i++) row[i] = hloc_load_##S(from + i * source_stride);                     \
    HLOC_UNROLL for (int round = 1; round < LANES; round *= 2) {                                                      \
      HLOC_UNROLL for (int i = 0; i < LANES / 2; i++) {                                                               \
        mixed[2 * i] = hloc_low_##WIDTH(row[i], row[i + LANES / 2]);                                                  \
        mixed[2 * i + 1] = hloc_high_##WIDTH(row[i], row[i + LANES / 2]);                                             \
      }                                                                                                               \
      HLOC_UNROLL for (int i = 0; i < LANES; i++) row[i] = mixed[i];                                                  \
    }                                                                                                                 \
    HLOC_UNROLL for (int i = 0; i < LANES; i++) hloc_store_##S(to + i * target_stride, row[i]);                       \
  }
#if HLOC_VECTOR_BYTES == 64
HLOC_DEFINE_TRANSPOSE(32, u32, unsigned, 16, HLOC_LOW16, HLOC_HIGH16)
HLOC_DEFINE_TRANSPOSE(64, u64, unsigned long long, 8, HLOC_LOW8, HLOC_HIGH8)
HLOC_DEFINE_SWAPPED(f32, u32, HLOC_SWAP16)
HLOC_DEFINE_SWAPPED(f64, u64, HLOC_SWAP8)
#elif HLOC_VECTOR_BYTES == 32
HLOC_DEFINE_TRANSPOSE(32, u32, unsigned, 8, HLOC_LOW8, HLOC_HIGH8)
HLOC_DEFINE_TRANSPOSE(64, u64, unsigned long long, 4, HLOC_LOW4, HLOC_HIGH4)
HLOC_DEFINE_SWAPPED(f32, u32, HLOC_SWAP8)
HLOC_DEFINE_SWAPPED(f64, u64, HLOC_SWAP4)
#else
HLOC_DEFINE_TRANSPOSE(32, u32, unsigned, 4, HLOC_LOW4, HLOC_HIGH4)
HLOC_DEFINE_TRANSPOSE(64, u64, unsigned long long, 2, HLOC_LOW2, HLOC_HIGH2)
HLOC_DEFINE_SWAPPED(f32, u32, HLOC_SWAP4)
HLOC_DEFINE_SWAPPED(f64, u64, HLOC_SWAP2)
#endif

/* Partial sums of two vectors are interleaved into one, until one vector remains. */
HLOC_INLINE hloc_vf32 hloc_fold_f32(hloc_vf32* v) {
  HLOC_UNROLL for (int half = HLOC_LANES32 / 2; half; half /= 2) {
    HLOC_UNROLL for (int i = 0; i < half; i++) {
      const hloc_vu32 a = (hloc_vu32)v[i], b = (hloc_vu32)v[i + half];
      v[i] = (hloc_vf32)hloc_low_32(a, b) + (hloc_vf32)hloc_high_32(a, b);
    }
  }
  return v[0];
}

#endif
