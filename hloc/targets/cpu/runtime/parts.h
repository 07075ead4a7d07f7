/* parts.h: library kernels that compile in parts, in parallel; a program contains the parts that it needs.
 *
 * In: HLOC_PART, the part that is compiled; all of them if it is not defined. Out:
 *   HLOC_OF_PARTS        before a definition that other parts use
 *   HLOC_IS_HERE(part)   for #if
 *   HLOC_MAY_BE_MISSING  before a declaration that a program may lack; HLOC_HAS(name): whether it has it
 * Example: #if HLOC_IS_HERE(HLOC_PACKING)
 */
#ifndef HLOC_PARTS_H
#define HLOC_PARTS_H
#if !defined(HLOC_PART)
#define HLOC_OF_PARTS static
#define HLOC_IS_HERE(part) 1
#define HLOC_HAS(name) 1
#else
#define HLOC_OF_PARTS
#define HLOC_IS_HERE(part) (HLOC_PART == part)
#define HLOC_HAS(name) (&(name) != 0)
#endif
#define HLOC_MAY_BE_MISSING __attribute__((weak))
#endif
