/* pack.cuh: V neighbours of type T as one value, read and written at once; its place is a multiple of its size. */
#ifndef HLOC_PACK_CUH
#define HLOC_PACK_CUH

template <class T, int V> struct __align__(sizeof(T) * V) hloc_pack {
  T at[V];
  __device__ __forceinline__ const T &operator[](int v) const { return at[v]; }
};

/* Store all at once: global memory. The compiler splits some assignments of structs into their elements. */
template <class T, int V> __device__ __forceinline__ void hloc_put(T *to, const hloc_pack<T, V> &pack) {
#ifndef HLOC_EMULATED
  constexpr int BYTES = sizeof(pack);
  unsigned words[BYTES / 4 + 1];
  memcpy(words, &pack, BYTES);
  const unsigned long long at = __cvta_generic_to_global(to);
  if constexpr (BYTES == 16)
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
                 : : "l"(at), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]) : "memory");
  else if constexpr (BYTES == 8)
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" : : "l"(at), "r"(words[0]), "r"(words[1]) : "memory");
  else if constexpr (BYTES == 4) asm volatile("st.global.b32 [%0], %1;" : : "l"(at), "r"(words[0]) : "memory");
  else *(hloc_pack<T, V> *)to = pack;
#else
  *(hloc_pack<T, V> *)to = pack;
#endif
}

#endif
