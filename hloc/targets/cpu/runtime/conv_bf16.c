/* conv_bf16.c: convolutions of bf16 (see conv.h): those of conv.c, with gemm_bf16.c for plain products. */
#include "conv_internal.h"

int hloc_conv_bf16(const hloc_conv_args* args) { return hloc_convolve(args, HLOC_CONV_IS_BF16, hloc_gemm_bf16); }
