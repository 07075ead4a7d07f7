/* runtime.h: everything that generated C for CPUs may call: the scalar functions and the library kernels of this
 * folder.
 *
 * The library kernels are compiled once per machine and flags (every .c file here; a second or two each) and linked
 * into each module; they depend on nothing but libc, libm and threads. Flags: -O2 -ftree-vectorize -march=native
 * -fno-math-errno -fno-trapping-math -ffp-contract=fast, include paths: this folder and the neighbouring targets/c.
 * sort.h is a template and is included where a sort is generated.
 */
#ifndef HLOC_RUNTIME_H
#define HLOC_RUNTIME_H
#include "conv.h"
#include "fft.h"
#include "gemm.h"
#include "pool.h"
#include "scalar.h"
#include "vector.h"
#endif
