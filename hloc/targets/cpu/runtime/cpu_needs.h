/* cpu_needs.h: the instruction sets of x86-64 that a program may use; entry.h compares them with the CPU.
 *
 * hloc_cpu_needs (cpu_needs.c) ends with a row without a name. word: of the result of CPUID; state: bits of XCR0, the
 * registers that the system saves.
 */
#ifndef HLOC_CPU_NEEDS_H
#define HLOC_CPU_NEEDS_H
#define HLOC_HIDDEN __attribute__((visibility("hidden")))

typedef struct { const char *name; unsigned leaf, subleaf, word, bit, state; } hloc_cpu_need;
extern HLOC_HIDDEN const hloc_cpu_need hloc_cpu_needs[];
#endif
