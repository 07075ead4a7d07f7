/* transpose_8.c: hloc_transpose_8 of transpose.h. */
#define TRANSPOSE hloc_transpose_8
#define F(name) hloc_transpose_8_##name
#define ELEMENT unsigned char
#define PER_PIECE 16
#define LANES TRANSPOSE_LANES_8
#include "transpose_blocks.h"
