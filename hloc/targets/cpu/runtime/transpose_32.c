/* transpose_32.c: hloc_transpose_32 of transpose.h. */
#define TRANSPOSE hloc_transpose_32
#define F(name) hloc_transpose_32_##name
#define ELEMENT unsigned
#define PER_PIECE 4
#define LANES TRANSPOSE_LANES_2
#include "transpose_blocks.h"
