/* fft_f64.c: the transforms of fft.h for c128 and f64. */
#define F(name) hloc_##name##_f64
#define REAL double
#define POINT hloc_c128
#define TRANSPOSE hloc_transpose_64
#include "fft_lines.h"
