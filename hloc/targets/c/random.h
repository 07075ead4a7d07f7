/* random.h: the two counter-based generators of HLO's rng-bit-generator, one block at a time.
 *
 * In: base.h. Out: hloc_threefry2x32(key, counter, out): 20 rounds, two words;
 *                  hloc_philox4x32(key, counter, out): 10 rounds, four words.
 * Example: key (0,0), counter (0,0): threefry gives 0x6b200159 0x99ba4efe, philox 0x6627e8d5 0xe169c58d ...
 */
#ifndef HLOC_RANDOM_H
#define HLOC_RANDOM_H
#include "base.h"

HLOC_FN hloc_u32 hloc_rotate_left_u32(hloc_u32 x, hloc_u32 by) { return (x << by) | (x >> (32u - by)); }

#define HLOC_THREEFRY_ROUND(by) x0 += x1; x1 = hloc_rotate_left_u32(x1, by) ^ x0;
#define HLOC_THREEFRY_FOUR(a, b, c, d)                                                                                \
  HLOC_THREEFRY_ROUND(a) HLOC_THREEFRY_ROUND(b) HLOC_THREEFRY_ROUND(c) HLOC_THREEFRY_ROUND(d)
HLOC_FN void hloc_threefry2x32(hloc_u32 key0, hloc_u32 key1, hloc_u32 counter0, hloc_u32 counter1, hloc_u32* out) {
  hloc_u32 key2 = key0 ^ key1 ^ 0x1bd11bdau;
  hloc_u32 x0 = counter0 + key0, x1 = counter1 + key1;
  HLOC_THREEFRY_FOUR(13u, 15u, 26u, 6u) x0 += key1; x1 += key2 + 1u;
  HLOC_THREEFRY_FOUR(17u, 29u, 16u, 24u) x0 += key2; x1 += key0 + 2u;
  HLOC_THREEFRY_FOUR(13u, 15u, 26u, 6u) x0 += key0; x1 += key1 + 3u;
  HLOC_THREEFRY_FOUR(17u, 29u, 16u, 24u) x0 += key1; x1 += key2 + 4u;
  HLOC_THREEFRY_FOUR(13u, 15u, 26u, 6u) x0 += key2; x1 += key0 + 5u;
  out[0] = x0;
  out[1] = x1;
}

HLOC_FN void hloc_philox4x32(hloc_u32 key0, hloc_u32 key1, hloc_u32 c0, hloc_u32 c1, hloc_u32 c2, hloc_u32 c3,
                             hloc_u32* out) {
  for (int round = 0; round < 10; round++) {
    hloc_u64 first = (hloc_u64)0xd2511f53u * c0, second = (hloc_u64)0xcd9e8d57u * c2;
    c0 = (hloc_u32)(second >> 32) ^ c1 ^ key0;
    c1 = (hloc_u32)second;
    c2 = (hloc_u32)(first >> 32) ^ c3 ^ key1;
    c3 = (hloc_u32)first;
    key0 += 0x9e3779b9u;
    key1 += 0xbb67ae85u;
  }
  out[0] = c0; out[1] = c1; out[2] = c2; out[3] = c3;
}

#endif
