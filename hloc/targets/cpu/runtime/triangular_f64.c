/* triangular_f64.c: the library kernels of triangular.h for f64. */
#define F(name) hloc_##name##_f64
#define F_KERNEL(name) name##_f64
#define REAL double
#define VECTOR hloc_vf64
#define TRANSPOSE hloc_transpose_tile_64
#define SQRT __builtin_sqrt
#include "triangular_rows.h"
