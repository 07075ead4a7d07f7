/* attention_pairs_kernels.c: the register tiles of attention_pairs.c: those of attention_kernels.c, of pairs */
#include "pairs.h"
#if HLOC_HAS_PAIRS
#define HLOC_PAIRS
#include "attention_pairs_names.h"
#include "attention_kernels.c"
#endif
