/* attention_pairs.c: attention.c for queries, keys and values of bf16, on CPUs that multiply pairs of them.
 *
 * A pair replaces a float. It consists of neighbouring elements in the depth of a query or key, which are contiguous
 * in memory, or of one feature of the values of two neighbouring keys, which are interleaved, as are their two weights.
 * So weights are rounded to bf16; HLO requires that where this is called.
 */
#include "pairs.h"
#if HLOC_HAS_PAIRS
#define HLOC_PAIRS
#define hloc_attention hloc_attention_pairs
#include "attention.c"
#endif
