/* triangular_f32.c: the library kernels of triangular.h for f32. */
#define F(name) hloc_##name##_f32
#define F_KERNEL(name) name##_f32
#define REAL float
#define VECTOR hloc_vf32
#define TRANSPOSE hloc_transpose_tile_32
#define SQRT __builtin_sqrtf
#include "triangular_rows.h"
