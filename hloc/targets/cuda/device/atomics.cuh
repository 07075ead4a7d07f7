/* atomics.cuh: x = op(x, value) in memory, indivisibly: integers of 32 and 64 bits and, largest and smallest, f32.
 *
 * In: scalar.h. Out: hloc_atomic_add(place, value), hloc_atomic_and, _or, _xor, _minimum, _maximum.
 * The order in which threads do it does not matter for any of these: results are always the same.
 */
#ifndef HLOC_ATOMICS_CUH
#define HLOC_ATOMICS_CUH

#define HLOC_DEFINE_ATOMIC(NAME, FUNCTION)                                                                            \
  template <class T> HLOC_FN void hloc_atomic_##NAME(T *at, T value) {                                                \
    if constexpr (sizeof(T) == 4) FUNCTION((unsigned *)at, (unsigned)value);                                          \
    else FUNCTION((unsigned long long *)at, (unsigned long long)value);                                               \
  }
HLOC_DEFINE_ATOMIC(add, atomicAdd)
HLOC_DEFINE_ATOMIC(and, atomicAnd)
HLOC_DEFINE_ATOMIC(or, atomicOr)
HLOC_DEFINE_ATOMIC(xor, atomicXor)

/* f32 by exchange: NaN stays NaN. */
#define HLOC_DEFINE_ATOMIC_EXTREMUM(NAME, FUNCTION)                                                                   \
  HLOC_FN void hloc_atomic_##NAME(float *at, float value) {                                                           \
    unsigned seen = *(volatile unsigned *)at, before;                                                                 \
    do {                                                                                                              \
      before = seen;                                                                                                  \
      const unsigned next = hloc_bits_f32(hloc_##NAME##_f32(hloc_from_bits_f32(before), value));                      \
      if (next == before) return;                                                                                     \
      seen = atomicCAS((unsigned *)at, before, next);                                                                 \
    } while (seen != before);                                                                                         \
  }                                                                                                                   \
  template <class T> HLOC_FN void hloc_atomic_##NAME(T *at, T value) { FUNCTION(at, value); }
HLOC_DEFINE_ATOMIC_EXTREMUM(minimum, atomicMin)
HLOC_DEFINE_ATOMIC_EXTREMUM(maximum, atomicMax)

#endif
