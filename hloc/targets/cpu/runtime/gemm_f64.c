/* gemm_f64.c: matmuls of f64 (see gemm.h). */
#include "gemm_common.h"

#define G(name) f64_##name
#define G_NAME f64
#define ELEMENT double
#define VECTOR hloc_vf64
#define V(name) hloc_##name##_f64
#define LANES HLOC_LANES64
#include "gemm_unit.h"
