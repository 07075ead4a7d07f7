/* base.h: element type names, function qualifiers and bit casts shared by the C and the CUDA target.
 *
 * In: nothing (no libc header is needed, so the file also compiles under NVRTC).
 * Out: HLOC_FN         qualifier of every scalar function
 *      HLOC_CALLED     qualifier of functions that are never inlined
 *      HLOC_WIDE       qualifier of kernels that profit from the widest vectors
 *      hloc_pred, hloc_s8 .. hloc_u64, hloc_f32, hloc_f64, hloc_c64, hloc_c128   computation types
 *      hloc_f16, hloc_bf16, hloc_f8*, hloc_f6*, hloc_f4e2m1fn, hloc_s4, hloc_u4, ...       storage types
 *      hloc_bits_f32/hloc_from_bits_f32 (and _f64)                               bit casts
 *      hloc_any_f32/_f64                        for reads of anything in memory as a float of its size, by a pointer
 *      hloc_fma_f32/_f64                        multiply-add if it is one instruction, and HLOC_FMA, whether it is
 *      HLOC_READS(what)         for #if: whether a unit reads the functions of a type, or a chapter of scalar.h. It
 *                               reads all, which takes as long as compiling a small kernel, unless it says before:
 *                               #define HLOC_ALL 0, and #define HLOC_WITH_<what> 1 for some
 *
 * Example: hloc_from_bits_f32(0x3f800000u) == 1.0f
 */
#ifndef HLOC_BASE_H
#define HLOC_BASE_H

#ifndef HLOC_ALL
#define HLOC_ALL 1
#endif
#define HLOC_READS(what) (HLOC_ALL | HLOC_WITH_##what)

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define HLOC_CUDA 1
#define HLOC_FN static __device__ __forceinline__
#define HLOC_CALLED static __device__ __noinline__
#else
#define HLOC_CUDA 0
#define HLOC_FN static inline __attribute__((always_inline, unused))
#define HLOC_CALLED static __attribute__((noinline, unused))
#endif

#if defined(__GNUC__) && !HLOC_CUDA
#pragma GCC diagnostic ignored "-Wpsabi" /* vectors are arguments of inlined functions only */
#endif
#ifdef __has_builtin
#define HLOC_BUILTIN(builtin) __has_builtin(builtin)
#else
#define HLOC_BUILTIN(builtin) 0
#endif
/* Lanes of vectors picked by one shuffle, where the compiler has it for vectors of two lengths. */
#if defined(__clang__) || __GNUC__ >= 12
#define HLOC_PICK_LANES(shuffle, lanes) shuffle
#else
#define HLOC_PICK_LANES(shuffle, lanes) lanes
#endif

/* Before a kernel of many instructions per element: 512-bit vectors; gcc would prefer 256-bit ones. */
#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)
#define HLOC_WIDE __attribute__((target("prefer-vector-width=512")))
#else
#define HLOC_WIDE
#endif

typedef unsigned char hloc_pred; /* 0 or 1 */
typedef signed char hloc_s8;
typedef short hloc_s16;
typedef int hloc_s32;
typedef long long hloc_s64;
typedef unsigned char hloc_u8;
typedef unsigned short hloc_u16;
typedef unsigned int hloc_u32;
typedef unsigned long long hloc_u64;
typedef float hloc_f32;
typedef double hloc_f64;
typedef struct { float re, im; } hloc_c64;
typedef struct { double re, im; } hloc_c128;

/* Storage types: one element per array slot, converted to a computation type before arithmetic (narrow.h). */
typedef unsigned short hloc_f16;
typedef unsigned short hloc_bf16;
typedef unsigned char hloc_f8e3m4;
typedef unsigned char hloc_f8e4m3;
typedef unsigned char hloc_f8e4m3fn;
typedef unsigned char hloc_f8e4m3fnuz;
typedef unsigned char hloc_f8e4m3b11fnuz;
typedef unsigned char hloc_f8e5m2;
typedef unsigned char hloc_f8e5m2fnuz;
typedef unsigned char hloc_f8e8m0fnu;
typedef unsigned char hloc_f6e2m3fn;
typedef unsigned char hloc_f6e3m2fn;
typedef unsigned char hloc_f4e2m1fn;
typedef signed char hloc_s1;
typedef signed char hloc_s2;
typedef signed char hloc_s4;
typedef unsigned char hloc_u1;
typedef unsigned char hloc_u2;
typedef unsigned char hloc_u4;

#if HLOC_CUDA
HLOC_FN hloc_u32 hloc_bits_f32(float x) { return __float_as_uint(x); }
HLOC_FN float hloc_from_bits_f32(hloc_u32 bits) { return __uint_as_float(bits); }
HLOC_FN hloc_u64 hloc_bits_f64(double x) { return (hloc_u64)__double_as_longlong(x); }
HLOC_FN double hloc_from_bits_f64(hloc_u64 bits) { return __longlong_as_double((long long)bits); }
HLOC_FN float hloc_fma_f32(float a, float b, float c) { return fmaf(a, b, c); }
HLOC_FN double hloc_fma_f64(double a, double b, double c) { return fma(a, b, c); }
#define HLOC_FMA 1
#define HLOC_MATH_F32(name) name##f
#define HLOC_MATH_F64(name) name
#else
HLOC_FN hloc_u32 hloc_bits_f32(float x) { hloc_u32 bits; __builtin_memcpy(&bits, &x, 4); return bits; }
HLOC_FN float hloc_from_bits_f32(hloc_u32 bits) { float x; __builtin_memcpy(&x, &bits, 4); return x; }
HLOC_FN hloc_u64 hloc_bits_f64(double x) { hloc_u64 bits; __builtin_memcpy(&bits, &x, 8); return bits; }
HLOC_FN double hloc_from_bits_f64(hloc_u64 bits) { double x; __builtin_memcpy(&x, &bits, 8); return x; }
typedef float hloc_any_f32 __attribute__((may_alias)); /* the bits of any 4 (8) bytes in memory */
typedef double hloc_any_f64 __attribute__((may_alias));
#if defined(__FMA__) || defined(__aarch64__) || defined(__ARM_FEATURE_FMA) || defined(__riscv_flen)
HLOC_FN float hloc_fma_f32(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
HLOC_FN double hloc_fma_f64(double a, double b, double c) { return __builtin_fma(a, b, c); }
#define HLOC_FMA 1
#else /* a call into libm would be a hundred times slower than the rounding it saves */
HLOC_FN float hloc_fma_f32(float a, float b, float c) { return a * b + c; }
HLOC_FN double hloc_fma_f64(double a, double b, double c) { return a * b + c; }
#define HLOC_FMA 0
#endif
#define HLOC_MATH_F32(name) __builtin_##name##f
#define HLOC_MATH_F64(name) __builtin_##name
#endif

#define HLOC_INF_F32 hloc_from_bits_f32(0x7f800000u)
#define HLOC_NAN_F32 hloc_from_bits_f32(0x7fc00000u)
#define HLOC_INF_F64 hloc_from_bits_f64(0x7ff0000000000000ull)
#define HLOC_NAN_F64 hloc_from_bits_f64(0x7ff8000000000000ull)

HLOC_FN float hloc_copysign_f32(float magnitude, float sign) {
  return hloc_from_bits_f32((hloc_bits_f32(magnitude) & 0x7fffffffu) | (hloc_bits_f32(sign) & 0x80000000u));
}
HLOC_FN double hloc_copysign_f64(double magnitude, double sign) {
  return hloc_from_bits_f64((hloc_bits_f64(magnitude) & 0x7fffffffffffffffull) |
                            (hloc_bits_f64(sign) & 0x8000000000000000ull));
}
HLOC_FN hloc_c64 hloc_complex_f32(float re, float im) { hloc_c64 z; z.re = re; z.im = im; return z; }
HLOC_FN hloc_c128 hloc_complex_f64(double re, double im) { hloc_c128 z; z.re = re; z.im = im; return z; }

/* x, hidden from the compiler's analysis: gcc 12 loads wrong elements if it vectorizes a[x] and knows that x can only
 * be 0 or 1. */
HLOC_FN long hloc_opaque_index(long x) {
#if !HLOC_CUDA && defined(__GNUC__) && !defined(__clang__)
  __asm__("" : "+r"(x));
#endif
  return x;
}

#endif
