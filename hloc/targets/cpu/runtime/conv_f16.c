/* conv_f16.c: convolutions of f16 (see conv.h): those of conv.c, with gemm_f16.c for plain products. */
#include "conv_internal.h"

int hloc_conv_f16(const hloc_conv_args* args) { return hloc_convolve(args, HLOC_CONV_IS_F16, hloc_gemm_f16); }
