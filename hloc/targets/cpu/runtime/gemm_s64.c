/* gemm_s64.c: matmuls of s64, and of u64, whose sums have the same bits (see gemm.h). */
#include "gemm_common.h"

#define G(name) s64_##name
#define G_NAME s64
#define ELEMENT hloc_u64
#define VECTOR hloc_vu64
#define V(name) hloc_##name##_u64
#define LANES HLOC_LANES64
#include "gemm_unit.h"
