/* words.cuh: elements of one and two bytes in words, as registers hold them.
 *
 * In: scalar.h, pack.cuh. Out:
 *   hloc_rounded_pair_bf16(low, high), _f16     two numbers, rounded, in a word
 *   hloc_rounded_all_bf16(x), _f16              an even number of numbers, rounded
 *   hloc_taken_out<hloc_pack<T, V>>(words)      the elements that words hold
 *   hloc_widened<T>(words)                      the same of bytes, s8 or u8, as f32
 * Single bytes are converted, and single numbers rounded, by instructions of a quarter of the rate, and more of them
 * put words together.
 */
#ifndef HLOC_WORDS_CUH
#define HLOC_WORDS_CUH

/* hloc_byte_under: byte n of a word as the lowest one of another, whose lowest is zero. */
#ifdef HLOC_EMULATED /* else scalar.h has the pairs */
HLOC_FN unsigned hloc_byte_under(unsigned word, int n, unsigned top) { return top | (word >> 8 * n & 0xffu); }
HLOC_FN unsigned hloc_rounded_pair_bf16(float low, float high) {
  return hloc_f32_to_bf16(low) | (unsigned)hloc_f32_to_bf16(high) << 16;
}
HLOC_FN unsigned hloc_rounded_pair_f16(float low, float high) {
  return hloc_f32_to_f16(low) | (unsigned)hloc_f32_to_f16(high) << 16;
}
#else
HLOC_FN unsigned hloc_byte_under(unsigned word, int n, unsigned top) { return __byte_perm(word, top, 0x7650 | n); }
#endif

#define HLOC_ROUNDED(T)                                                                                               \
  template <int V> HLOC_FN hloc_pack<hloc_##T, V> hloc_rounded_all_##T(const float (&x)[V]) {                         \
    hloc_pack<hloc_##T, V> made;                                                                                      \
    _Pragma("unroll") for (int v = 0; v < V; v += 2)                                                                  \
        *(unsigned *)&made.at[v] = hloc_rounded_pair_##T(x[v], x[v + 1]);                                             \
    return made;                                                                                                      \
  }
HLOC_ROUNDED(bf16)
HLOC_ROUNDED(f16)

template <class Pack, int W> HLOC_FN Pack hloc_taken_out(const hloc_pack<unsigned, W> &words) {
  static_assert(sizeof(Pack) == sizeof(words), "all of them");
  Pack made;
  memcpy(&made, &words, sizeof(made));
  return made;
}

/* A byte below the exponent of 2^23 is a number that is 2^23 larger. */
template <class Byte, int W> HLOC_FN hloc_pack<float, 4 * W> hloc_widened(const hloc_pack<unsigned, W> &words) {
  constexpr unsigned MORE = Byte(-1) < Byte(0) ? 0x80 : 0; /* signed ones are 128 larger, too, by their sign */
  hloc_pack<float, 4 * W> made;
#pragma unroll
  for (int v = 0; v < 4 * W; v++)
    made.at[v] = hloc_from_bits_f32(hloc_byte_under(words.at[v / 4] ^ MORE * 0x01010101u, v % 4, 0x4b000000u)) -
                 (8388608.0f + MORE);
  return made;
}

#endif
