/* pack.cuh: V neighbours of type T as one value, read and written at once; its place is a multiple of its size. */
#ifndef HLOC_PACK_CUH
#define HLOC_PACK_CUH

template <class T, int V> struct __align__(sizeof(T) * V) hloc_pack { T at[V]; };

#endif
