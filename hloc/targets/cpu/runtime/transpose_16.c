/* transpose_16.c: hloc_transpose_16 of transpose.h. */
#define TRANSPOSE hloc_transpose_16
#define F(name) hloc_transpose_16_##name
#define ELEMENT unsigned short
#define PER_PIECE 8
#define LANES TRANSPOSE_LANES_4
#include "transpose_blocks.h"
