/* cpu_needs.c: see cpu_needs.h. Compiled with the flags of the program: it uses the macros that -march sets.
 *
 * It lists only instruction sets that compilers use by themselves, or that this folder uses. */
#include "cpu_needs.h"

enum { HLOC_EAX, HLOC_EBX, HLOC_ECX, HLOC_EDX, HLOC_YMM = 0x6, HLOC_ZMM = 0xe6, HLOC_TILES = 0x60000 };
const hloc_cpu_need hloc_cpu_needs[] = {
#ifdef __SSE3__
    {"sse3", 1, 0, HLOC_ECX, 0, 0},
#endif
#ifdef __SSSE3__
    {"ssse3", 1, 0, HLOC_ECX, 9, 0},
#endif
#ifdef __SSE4_1__
    {"sse4.1", 1, 0, HLOC_ECX, 19, 0},
#endif
#ifdef __SSE4_2__
    {"sse4.2", 1, 0, HLOC_ECX, 20, 0},
#endif
#ifdef __MOVBE__
    {"movbe", 1, 0, HLOC_ECX, 22, 0},
#endif
#ifdef __POPCNT__
    {"popcnt", 1, 0, HLOC_ECX, 23, 0},
#endif
#ifdef __LZCNT__
    {"lzcnt", 0x80000001, 0, HLOC_ECX, 5, 0},
#endif
#ifdef __BMI__
    {"bmi", 7, 0, HLOC_EBX, 3, 0},
#endif
#ifdef __BMI2__
    {"bmi2", 7, 0, HLOC_EBX, 8, 0},
#endif
#ifdef __TBM__
    {"tbm", 0x80000001, 0, HLOC_ECX, 21, 0},
#endif
#ifdef __AVX__
    {"avx", 1, 0, HLOC_ECX, 28, HLOC_YMM},
#endif
#ifdef __XOP__
    {"xop", 0x80000001, 0, HLOC_ECX, 11, HLOC_YMM},
#endif
#ifdef __FMA4__
    {"fma4", 0x80000001, 0, HLOC_ECX, 16, HLOC_YMM},
#endif
#ifdef __F16C__
    {"f16c", 1, 0, HLOC_ECX, 29, HLOC_YMM},
#endif
#ifdef __FMA__
    {"fma", 1, 0, HLOC_ECX, 12, HLOC_YMM},
#endif
#ifdef __AVX2__
    {"avx2", 7, 0, HLOC_EBX, 5, HLOC_YMM},
#endif
#ifdef __GFNI__
    {"gfni", 7, 0, HLOC_ECX, 8, 0},
#endif
#ifdef __AVXVNNI__
    {"avx_vnni", 7, 1, HLOC_EAX, 4, HLOC_YMM},
#endif
#ifdef __AVXIFMA__
    {"avx_ifma", 7, 1, HLOC_EAX, 23, HLOC_YMM},
#endif
#ifdef __AVXVNNIINT8__
    {"avx_vnni_int8", 7, 1, HLOC_EDX, 4, HLOC_YMM},
#endif
#ifdef __AVXNECONVERT__
    {"avx_ne_convert", 7, 1, HLOC_EDX, 5, HLOC_YMM},
#endif
#ifdef __AVX512F__
    {"avx512f", 7, 0, HLOC_EBX, 16, HLOC_ZMM},
#endif
#ifdef __AVX512DQ__
    {"avx512dq", 7, 0, HLOC_EBX, 17, HLOC_ZMM},
#endif
#ifdef __AVX512IFMA__
    {"avx512ifma", 7, 0, HLOC_EBX, 21, HLOC_ZMM},
#endif
#ifdef __AVX512CD__
    {"avx512cd", 7, 0, HLOC_EBX, 28, HLOC_ZMM},
#endif
#ifdef __AVX512BW__
    {"avx512bw", 7, 0, HLOC_EBX, 30, HLOC_ZMM},
#endif
#ifdef __AVX512VL__
    {"avx512vl", 7, 0, HLOC_EBX, 31, HLOC_ZMM},
#endif
#ifdef __AVX512VBMI__
    {"avx512vbmi", 7, 0, HLOC_ECX, 1, HLOC_ZMM},
#endif
#ifdef __AVX512VBMI2__
    {"avx512_vbmi2", 7, 0, HLOC_ECX, 6, HLOC_ZMM},
#endif
#ifdef __AVX512VNNI__
    {"avx512_vnni", 7, 0, HLOC_ECX, 11, HLOC_ZMM},
#endif
#ifdef __AVX512BITALG__
    {"avx512_bitalg", 7, 0, HLOC_ECX, 12, HLOC_ZMM},
#endif
#ifdef __AVX512VPOPCNTDQ__
    {"avx512_vpopcntdq", 7, 0, HLOC_ECX, 14, HLOC_ZMM},
#endif
#ifdef __AVX512FP16__
    {"avx512_fp16", 7, 0, HLOC_EDX, 23, HLOC_ZMM},
#endif
#ifdef __AVX512BF16__
    {"avx512_bf16", 7, 1, HLOC_EAX, 5, HLOC_ZMM},
#endif
#ifdef HLOC_AMX /* its registers are requested where they are used (gemm_amx.h) */
    {"amx_bf16", 7, 0, HLOC_EDX, 22, HLOC_TILES},
    {"amx_tile", 7, 0, HLOC_EDX, 24, HLOC_TILES},
    {"amx_int8", 7, 0, HLOC_EDX, 25, HLOC_TILES},
#endif
    {0, 0, 0, 0, 0, 0}};
