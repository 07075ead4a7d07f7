/* fft_f32.c: the transforms of fft.h for c64 and f32. */
#define F(name) hloc_##name##_f32
#define REAL float
#define POINT hloc_c64
#define TRANSPOSE hloc_transpose_32
#include "fft_lines.h"
