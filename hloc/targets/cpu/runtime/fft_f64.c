/* fft_f64.c: the transforms of fft.h for c128 and f64. */
#define F(name) hloc_##name##_f64
#define F_KERNEL fft_f64
#define REAL double
#define POINT hloc_c128
#define WORDS(name) hloc_##name##_64
#define BITS hloc_vu64
#include "fft_lines.h"
