/* fft_f32.c: the transforms of fft.h for c64 and f32. */
#define F(name) hloc_##name##_f32
#define F_KERNEL fft_f32
#define REAL float
#define POINT hloc_c64
#define WORDS(name) hloc_##name##_32
#define BITS hloc_vu32
#include "fft_lines.h"
