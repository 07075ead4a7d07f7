/* transpose_64.c: hloc_transpose_64 of transpose.h. */
#define TRANSPOSE hloc_transpose_64
#define F(name) hloc_transpose_64_##name
#define ELEMENT unsigned long long
#define PER_PIECE 2
#define LANES TRANSPOSE_LANES_1
#include "transpose_blocks.h"
