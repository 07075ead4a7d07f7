/* sort_keys.h: numbers as unsigned keys in the same order, for the sorts of sort.h and sort_network.h.
 *
 * hloc_sort_key_{s8,s16,s32,s64,f32,f64}(x): signed numbers, and floats by their total order
 * (-NaN < -inf < .. < -0 < +0 < .. < NaN). Example: hloc_sort_key_s8(-128) == 0.
 */
#ifndef HLOC_SORT_KEYS_H
#define HLOC_SORT_KEYS_H
#include "base.h"

/* For the names of a sort's own functions. */
#define HLOC_SORT_PASTE_(a, b) a##b
#define HLOC_SORT_PASTE(a, b) HLOC_SORT_PASTE_(a, b)

static inline hloc_u64 hloc_sort_key_s8(hloc_s8 x) { return (hloc_u8)x ^ 0x80u; }
static inline hloc_u64 hloc_sort_key_s16(hloc_s16 x) { return (hloc_u16)x ^ 0x8000u; }
static inline hloc_u64 hloc_sort_key_s32(hloc_s32 x) { return (hloc_u32)x ^ 0x80000000u; }
static inline hloc_u64 hloc_sort_key_s64(hloc_s64 x) { return (hloc_u64)x ^ 0x8000000000000000ull; }
static inline hloc_u64 hloc_sort_key_f32(float x) {
  hloc_u32 bits = hloc_bits_f32(x);
  return bits ^ ((bits >> 31) ? 0xffffffffu : 0x80000000u);
}
static inline hloc_u64 hloc_sort_key_f64(double x) {
  hloc_u64 bits = hloc_bits_f64(x);
  return bits ^ ((bits >> 63) ? ~0ull : 0x8000000000000000ull);
}
#endif
