/* numbers.cuh: how the elements of a matrix product become words of tensor core instructions.
 *
 * In: mma.cuh, pack.cuh, words.cuh. Out: structs, each with
 *   Stored                   what lies in shared memory for an element;  lhs(x), rhs(x): an element as that
 *   Word                     what a lane reads of it for one register of a fragment: WORD elements side by side
 *   PARTS, LAST              a word is split into that many parts, the largest first; products of parts i and j are
 *                            summed up where i + j <= LAST
 *   part(rest)               the largest part of a word, taken away from it
 *   multiply(d, a, b)        one instruction
 * hloc_numbers_bf16, f16, s8: elements as they are;  hloc_numbers_<A>_<B> of f8e4m3fn, f8e5m2: too, from sm_89 on
 * hloc_numbers_f32_as<hloc_rounded_bf16 or _f16>: f32, rounded
 * hloc_numbers_tf32<PARTS, LAST>, hloc_numbers_split<PARTS, LAST>: f32 as sums of tf32 or of bf16
 * hloc_numbers_f8_as_f16<TO_A, TO_B>: f8 before sm_89, exactly
 */
#ifndef HLOC_NUMBERS_CUH
#define HLOC_NUMBERS_CUH

#define HLOC_NUMBERS_FN static __device__ __forceinline__

/* What is common where a word is one part. */
template <class StoredType> struct hloc_numbers_whole {
  typedef StoredType Stored;
  typedef unsigned Word;
  static constexpr int WORD = 4 / sizeof(Stored), PARTS = 1, LAST = 0;
  HLOC_NUMBERS_FN unsigned part(Word &rest) { return rest; }
};
#define HLOC_NUMBERS_AS_THEY_ARE(T, STORED, SUM)                                                                      \
  struct hloc_numbers_##T : hloc_numbers_whole<STORED> {                                                              \
    HLOC_NUMBERS_FN STORED lhs(STORED x) { return x; }                                                                \
    HLOC_NUMBERS_FN STORED rhs(STORED x) { return x; }                                                                \
    HLOC_NUMBERS_FN void multiply(SUM *d, const unsigned *a, const unsigned *b) { hloc_mma_##T(d, a, b); }            \
  };
HLOC_NUMBERS_AS_THEY_ARE(bf16, unsigned short, float)
HLOC_NUMBERS_AS_THEY_ARE(f16, unsigned short, float)
HLOC_NUMBERS_AS_THEY_ARE(s8, signed char, int)
HLOC_NUMBERS_AS_THEY_ARE(f8e4m3fn_f8e4m3fn, unsigned char, float)
HLOC_NUMBERS_AS_THEY_ARE(f8e4m3fn_f8e5m2, unsigned char, float)
HLOC_NUMBERS_AS_THEY_ARE(f8e5m2_f8e4m3fn, unsigned char, float)
HLOC_NUMBERS_AS_THEY_ARE(f8e5m2_f8e5m2, unsigned char, float)

/* Both kinds of f8 are numbers of f16 too. */
template <float (*TO_A)(unsigned char), float (*TO_B)(unsigned char)>
struct hloc_numbers_f8_as_f16 : hloc_numbers_whole<unsigned short> {
  HLOC_NUMBERS_FN unsigned short lhs(unsigned char x) { return hloc_f32_to_f16(TO_A(x)); }
  HLOC_NUMBERS_FN unsigned short rhs(unsigned char x) { return hloc_f32_to_f16(TO_B(x)); }
  HLOC_NUMBERS_FN void multiply(float *d, const unsigned *a, const unsigned *b) { hloc_mma_f16(d, a, b); }
};

struct hloc_rounded_bf16 {
  HLOC_NUMBERS_FN unsigned short round(float x) { return hloc_f32_to_bf16(x); }
  HLOC_NUMBERS_FN void multiply(float *d, const unsigned *a, const unsigned *b) { hloc_mma_bf16(d, a, b); }
};
struct hloc_rounded_f16 {
  HLOC_NUMBERS_FN unsigned short round(float x) { return hloc_f32_to_f16(x); }
  HLOC_NUMBERS_FN void multiply(float *d, const unsigned *a, const unsigned *b) { hloc_mma_f16(d, a, b); }
};
template <class To> struct hloc_numbers_f32_as : hloc_numbers_whole<unsigned short> {
  HLOC_NUMBERS_FN unsigned short lhs(float x) { return To::round(x); }
  HLOC_NUMBERS_FN unsigned short rhs(float x) { return To::round(x); }
  HLOC_NUMBERS_FN void multiply(float *d, const unsigned *a, const unsigned *b) { To::multiply(d, a, b); }
};

/* What is left of x: nothing where that would be no number, so that infinities stay infinities. */
HLOC_FN float hloc_left_of(float x, float taken) {
  return (hloc_bits_f32(taken) & 0x7f800000u) == 0x7f800000u ? 0.0f : x - taken;
}
/* To nearest, ties away from zero. The instruction may leave anything in the last 13 bits. */
HLOC_FN unsigned hloc_f32_to_tf32(float x) {
#ifdef HLOC_EMULATED
  const unsigned bits = hloc_bits_f32(x);
  return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & 0xffffe000u;
#else
  unsigned bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
#endif
}

template <int COUNT, int LAST_TERM> struct hloc_numbers_tf32 {
  typedef float Stored;
  typedef float Word;
  static constexpr int WORD = 1, PARTS = COUNT, LAST = LAST_TERM;
  HLOC_NUMBERS_FN float lhs(float x) { return x; }
  HLOC_NUMBERS_FN float rhs(float x) { return x; }
  HLOC_NUMBERS_FN unsigned part(Word &rest) {
    const unsigned taken = hloc_f32_to_tf32(rest);
    if constexpr (COUNT > 1) rest = hloc_left_of(rest, hloc_from_bits_f32(taken & 0xffffe000u));
    return taken;
  }
  HLOC_NUMBERS_FN void multiply(float *d, const unsigned *a, const unsigned *b) { hloc_mma_tf32(d, a, b); }
};
template <int COUNT, int LAST_TERM> struct hloc_numbers_split {
  typedef float Stored;
  typedef hloc_pack<float, 2> Word;
  static constexpr int WORD = 2, PARTS = COUNT, LAST = LAST_TERM;
  HLOC_NUMBERS_FN float lhs(float x) { return x; }
  HLOC_NUMBERS_FN float rhs(float x) { return x; }
  HLOC_NUMBERS_FN unsigned part(Word &rest) {
    const unsigned low = hloc_f32_to_bf16(rest.at[0]), high = hloc_f32_to_bf16(rest.at[1]);
    rest.at[0] = hloc_left_of(rest.at[0], hloc_bf16_to_f32(low));
    rest.at[1] = hloc_left_of(rest.at[1], hloc_bf16_to_f32(high));
    return low | high << 16;
  }
  HLOC_NUMBERS_FN void multiply(float *d, const unsigned *a, const unsigned *b) { hloc_mma_bf16(d, a, b); }
};

#endif
