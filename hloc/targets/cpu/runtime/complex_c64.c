/* complex_c64.c: matmuls of c64 (see gemm.h). */
#define Z(name) c64_##name
#define COMPLEX hloc_c64
#define REAL float
#define ENTRY hloc_gemm_c64
#define REAL_ENTRY hloc_gemm_f32
#define VECTOR hloc_vf32
#define LANES HLOC_LANES32
#define c64_load hloc_load_f32
#define c64_store hloc_store_f32
#define c64_swapped hloc_swapped_f32
#include "gemm_complex.h"
