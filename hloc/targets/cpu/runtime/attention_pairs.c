/* attention_pairs.c: attention.c for queries, keys and values of bf16, on CPUs that multiply pairs of them.
 *
 * A pair takes the place of a float: of neighbouring elements of a query's or a key's depth, which lie side by side in
 * memory, or of one feature of two neighbouring keys' values, which are brought together, as are their two weights. So
 * weights are rounded to bf16, which HLO asks for where this is called.
 */
#include "pairs.h"
#if HLOC_HAS_PAIRS
#define HLOC_PAIRS
#include "attention_pairs_names.h"
#include "attention.c"
#endif
