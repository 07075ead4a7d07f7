/* gemm_s32.c: matmuls of s32, and of u32, whose sums have the same bits (see gemm.h). */
#include "gemm_common.h"

#define G(name) s32_##name
#define G_NAME s32
#define ELEMENT unsigned
#define VECTOR hloc_vu32
#define V(name) hloc_##name##_u32
#define LANES HLOC_LANES32
#include "gemm_unit.h"
