/* gemm_f32.c: matmuls of f32 (see gemm.h). */
#include "gemm_common.h"

#define G(name) f32_##name
#define G_NAME f32
#define ELEMENT float
#define VECTOR hloc_vf32
#define V(name) hloc_##name##_f32
#define LANES HLOC_LANES32
#include "gemm_unit.h"
