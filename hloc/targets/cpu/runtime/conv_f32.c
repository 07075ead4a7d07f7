/* conv_f32.c: convolutions of f32 (see conv.h): those of conv.c, with gemm_f32.c for plain products. */
#include "conv_internal.h"

int hloc_conv_f32(const hloc_conv_args* args) { return hloc_convolve(args, HLOC_CONV_IS_F32, hloc_gemm_f32); }
