/* scalar.h: the scalar meaning of HLO's elementwise operations, as C11 (gcc, clang) and as CUDA C++ (nvcc, NVRTC).
 *
 * Names: hloc_<op>_<type> with op = the HLO opcode with '_' for '-', and type in
 *   pred s8 s16 s32 s64 u8 u16 u32 u64 f32 f64 c64 c128      (computation types; C names hloc_<type>).
 *   compare: hloc_compare_{eq,ne,lt,le,gt,ge}_<type>, for floats also hloc_compare_{..}_total_<type>; give hloc_pred
 *   convert: hloc_convert_<from>_<to>; narrow types: hloc_<t>_to_f32, hloc_f32_to_<t>, hloc_s4_to_s8, hloc_u8_to_u4 ..
 *   clamp(low, x, high); select(pred, on_true, on_false); complex: hloc_complex_f32(re, im), hloc_complex_f64(re, im)
 *   reduce_precision(x, exponent_bits, mantissa_bits); stochastic_convert: hloc_stochastic_convert_<from>_<to>(x, bits)
 *   bitcast: hloc_bits_f32(x), hloc_from_bits_f32(u32), and the same for f64
 *   random: hloc_threefry2x32, hloc_philox4x32
 * f16, bf16, f8*, f4 are computed in f32; s1 s2 s4 in s8, u1 u2 u4 in u8; the caller converts.
 *
 * The file includes its sections by name from its own folder. For good code compile with
 *   -O2 -ftree-vectorize -march=native -fno-math-errno -fno-trapping-math -ffp-contract=fast     (never -ffast-math)
 * Example: hloc_f32_to_bf16(hloc_tanh_f32(hloc_bf16_to_f32(x)))
 */
#ifndef HLOC_SCALAR_H
#define HLOC_SCALAR_H
#include "base.h"
#if HLOC_READS(narrow)
#include "narrow.h"
#endif
#if HLOC_READS(integers)
#include "integer.h"
#endif
#if HLOC_READS(f32)
#include "float32.h"
#endif
#if HLOC_READS(f64)
#include "float64.h"
#endif
#if HLOC_READS(floats)
#include "floats.h"
#endif
#if HLOC_READS(complex)
#include "complex.h"
#endif
#if HLOC_READS(near)
#include "complex_near.h"
#endif
#if HLOC_READS(inverse)
#include "complex_inverse.h"
#endif
#if HLOC_READS(convert)
#include "convert.h"
#endif
#if HLOC_READS(random)
#include "random.h"
#endif
#endif
