/* complex_c128.c: matmuls of c128 (see gemm.h). */
#define Z(name) c128_##name
#define COMPLEX hloc_c128
#define REAL double
#define ENTRY hloc_gemm_c128
#define REAL_ENTRY hloc_gemm_f64
#define VECTOR hloc_vf64
#define LANES HLOC_LANES64
#define c128_load hloc_load_f64
#define c128_store hloc_store_f64
#define c128_swapped hloc_swapped_f64
#include "gemm_complex.h"
