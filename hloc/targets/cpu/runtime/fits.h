/* fits.h: a plan fits the compiled library kernel that it was made for, or the program does not link.
 *
 * A library kernel defines a symbol whose name holds the sizes that it was compiled with; a function that is printed
 * with a plan refers to the name with the sizes that the plan assumes (library_calls.py has them). The message of the
 * linker or loader, "undefined symbol: hloc_gemm_f32_compiled_for_16_64_1_1", says which kernel, and for what.
 *
 *   HLOC_COMPILED_FOR(gemm_f32, 14, 64, 1, 1)      in the library kernel: numbers, or macros of numbers
 *   HLOC_PLANNED_FOR(gemm_f32, 14, 64, 1, 1)       in a function with a plan
 */
#ifndef HLOC_FITS_H
#define HLOC_FITS_H
#define HLOC_SIZES_NAME(kernel, a, b, c, d) hloc_##kernel##_compiled_for_##a##_##b##_##c##_##d
#define HLOC_COMPILED_FOR(kernel, a, b, c, d) extern const char HLOC_SIZES_NAME(kernel, a, b, c, d); \
  const char HLOC_SIZES_NAME(kernel, a, b, c, d) = 1;
#define HLOC_PLANNED_FOR(kernel, a, b, c, d) \
  extern const char HLOC_SIZES_NAME(kernel, a, b, c, d); \
  static const char* const fits_##kernel __attribute__((used)) = &HLOC_SIZES_NAME(kernel, a, b, c, d);
#endif
