/* gemm_bf16.c: matmuls of bf16, sums in f32: pairs for AMX or vdpbf16ps if the CPU has them, else converted to f32
 * while packing */
#include "pairs.h"
#if defined(HLOC_AMX)
#define HLOC_TILE_ROWS 16
#define G_AMX_MULTIPLY "tdpbf16ps"
#endif
#include "gemm_common.h"
#include "narrow.h"

#define G(name) bf16_##name
#define G_NAME bf16
#define ELEMENT hloc_bf16
#define SUM float
#define VECTOR hloc_vf32
#define V(name) hloc_##name##_f32
#define LANES HLOC_LANES32
#define NARROW hloc_bf16
#define TO_NARROW hloc_f32_to_bf16
HLOC_INLINE hloc_vf32 bf16_widen(const hloc_bf16* p) { return (hloc_vf32)(hloc_widen_u16(p) << 16); }
#define bf16_widen_one hloc_bf16_to_f32
#if HLOC_HAS_PAIRS
#define GROUP 2
#define bf16_multiply_add(sum, a, b) ((hloc_vf32)HLOC_MULTIPLY_PAIRS(sum, a, b))
#endif
#include "gemm_units.h"
