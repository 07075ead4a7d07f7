/* stream_rows.h: copies rows of a tile in cache to their positions in an array larger than the caches.
 *
 * hloc_stream_rows(from, from_pitch, to, to_pitch, rows, bytes): so many bytes of every r < rows
 *   to[r * to_pitch] ... = from[r * from_pitch] ...      pitches are in bytes, too
 * Rows of whole cache lines use non-temporal stores: else the CPU would first read the overwritten lines, and evict
 * lines that are read next (transposes of 25 MB take half of the time on a Zen 4). Such stores are weakly ordered after
 * others of the same thread. Other threads see them when they see that its task is done, which an atomic addition
 * signals (pool.c): on x86 that orders them.
 * Example: a tile of 32 rows of 128 bytes, 128 apart, to an array with rows of 6144 bytes.
 */
#ifndef HLOC_STREAM_ROWS_H
#define HLOC_STREAM_ROWS_H
#include "vector.h"

#if defined(__clang__)
#define HLOC_STORE_FAR(to, v) __builtin_nontemporal_store(v, (hloc_vf32*)(to))
#elif defined(__x86_64__) && HLOC_VECTOR_BYTES == 64
#define HLOC_STORE_FAR(to, v) __builtin_ia32_movntps512((float*)(to), v)
#elif defined(__x86_64__) && HLOC_VECTOR_BYTES == 32
#define HLOC_STORE_FAR(to, v) __builtin_ia32_movntps256((float*)(to), v)
#elif defined(__x86_64__)
#define HLOC_STORE_FAR(to, v) __builtin_ia32_movntps((float*)(to), v)
#else
#define HLOC_STORE_FAR(to, v) hloc_store_f32(to, v)
#endif

static inline void hloc_stream_rows(const void* from, long from_pitch, void* to, long to_pitch, long rows, long bytes) {
  enum { LINE = 64 };
  const char* source = from;
  char* target = to;
  const int whole = ((unsigned long)target | (unsigned long)to_pitch | (unsigned long)bytes) % LINE == 0;
  for (long r = 0; r < rows; r++, source += from_pitch, target += to_pitch) {
    if (!whole) __builtin_memcpy(target, source, bytes);
    else for (long at = 0; at < bytes; at += HLOC_VECTOR_BYTES) HLOC_STORE_FAR(target + at, hloc_load_f32(source + at));
  }
}
#endif
