/* pixels.h: pixels of a few bytes that are reversed, padded, repeated or joined, by shuffles of a register.
 *
 * hloc_move_pixels(x, x_step, x_width, constants, to, step, n, per, mix)
 * hloc_join_pixels(x, x_step, x_width, y, y_step, y_width, to, step, n, per, mix)
 *   `per` pixels at a time of n: 16 bytes of each source go through `mix` (bytes 0 to 15 are of x, 16 to 31 of y, or of
 *   the constants) to `to`. Pixels lie x_step bytes apart, downward where that is negative, and are x_width wide; those
 *   of the result fill it, step bytes each. Returns how many are done: the rest, which no 16 bytes cover that all
 *   belong to these pixels, is the caller's. With clang none is done, as it has no shuffles but by literal numbers.
 * Example: images of three bytes, mirrored: x is the last pixel, x_step -3, x_width 3, step 3, per 5,
 *   mix {13, 14, 15, 10, 11, 12, 7, 8, 9, 4, 5, 6, 1, 2, 3, 15}: of the 16 bytes that end where that pixel does.
 */
#ifndef HLOC_PIXELS_H
#define HLOC_PIXELS_H
#include "base.h"

typedef hloc_u8 hloc_pixels __attribute__((vector_size(16)));
#define HLOC_PIXEL_FN static inline __attribute__((always_inline, unused))

/* The last pixel at which a whole register is within n pixels. */
HLOC_PIXEL_FN long hloc_last_pixel(long step, long width, long n) {
  const long apart = step < 0 ? -step : step;
  return apart ? n - 1 - (16 - width + apart - 1) / apart : n;
}
HLOC_PIXEL_FN long hloc_lower(long a, long b) { return a < b ? a : b; }
HLOC_PIXEL_FN const hloc_u8* hloc_first_pixels(const void* x, long step, long width) {
  return (const hloc_u8*)x + (step < 0 ? width - 16 : 0);
}
HLOC_PIXEL_FN hloc_pixels hloc_load_pixels(const hloc_u8* from) {
  hloc_pixels v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}
HLOC_PIXEL_FN void hloc_store_pixels(void* to, hloc_pixels v) { __builtin_memcpy(to, &v, sizeof v); }

HLOC_PIXEL_FN long hloc_move_pixels(const void* x, long x_step, long x_width, hloc_pixels constants, void* to,
                                    long step, long n, long per, hloc_pixels mix) {
  long done = 0;
#if !defined(__clang__)
  const hloc_u8* from = hloc_first_pixels(x, x_step, x_width);
  const long last = hloc_lower(hloc_last_pixel(x_step, x_width, n), hloc_last_pixel(step, step, n));
  for (; done <= last; done += per)
    hloc_store_pixels((hloc_u8*)to + done * step,
                      __builtin_shuffle(hloc_load_pixels(from + done * x_step), constants, mix));
#endif
  return done;
}

HLOC_PIXEL_FN long hloc_join_pixels(const void* x, long x_step, long x_width, const void* y, long y_step, long y_width,
                                    void* to, long step, long n, long per, hloc_pixels mix) {
  long done = 0;
#if !defined(__clang__)
  const hloc_u8 *from = hloc_first_pixels(x, x_step, x_width), *other = hloc_first_pixels(y, y_step, y_width);
  const long both = hloc_lower(hloc_last_pixel(x_step, x_width, n), hloc_last_pixel(y_step, y_width, n));
  const long last = hloc_lower(both, hloc_last_pixel(step, step, n));
  for (; done <= last; done += per)
    hloc_store_pixels((hloc_u8*)to + done * step,
                      __builtin_shuffle(hloc_load_pixels(from + done * x_step),
                                        hloc_load_pixels(other + done * y_step), mix));
#endif
  return done;
}
#endif
