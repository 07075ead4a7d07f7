/* gemm_bf16.c: matmuls of bf16, sums in f32: pairs for AMX or vdpbf16ps if the CPU has them, else converted to f32
 * while packing */
#include "pairs.h"
#if defined(HLOC_AMX)
#define HLOC_TILE_ROWS 16
#define G_AMX_MULTIPLY "tdpbf16ps"
#endif
#include "gemm_common.h"
#include "narrow.h"

/* One vector of sums from narrow elements. */
typedef unsigned short hloc_halves __attribute__((vector_size(HLOC_VECTOR_BYTES / 2), aligned(1), may_alias));
HLOC_INLINE hloc_vu32 widen_bits(const hloc_bf16* p) {
  return __builtin_convertvector(*(const hloc_halves*)p, hloc_vu32);
}
HLOC_INLINE hloc_vf32 bf16_widen(const hloc_bf16* p) { return (hloc_vf32)(widen_bits(p) << 16); }

#define G(name) bf16_##name
#define G_NAME bf16
#define ELEMENT hloc_bf16
#define SUM float
#define G_WIDEN_ONE hloc_bf16_to_f32
#define G_TO_NARROW hloc_f32_to_bf16
#define VECTOR hloc_vf32
#define V(name) hloc_##name##_f32
#define LANES HLOC_LANES32
#if HLOC_HAS_PAIRS
#define UNIT hloc_unit32
#define GROUP 2
#define UNIT_IS_MEMORY 1
#define bf16_vector_unit hloc_vu32
#define bf16_load hloc_load_u32
#define bf16_splat hloc_splat_u32
#define bf16_multiply_add(sum, a, b) ((hloc_vf32)HLOC_MULTIPLY_PAIRS(sum, a, b))
#define bf16_interleaved(p, stride) (widen_bits(p) | widen_bits((p) + (stride)) << 16)
#define bf16_unit(p, stride, count) ((unsigned)(p)[0] | ((count) > 1 ? (unsigned)(p)[(stride)] << 16 : 0u))
#endif
#include "gemm_unit.h"
