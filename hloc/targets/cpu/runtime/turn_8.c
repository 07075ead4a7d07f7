/* turn_8.c: hloc_turn_8 of turn.h. */
#define TURN hloc_turn_8
#define F(name) hloc_turn_8_##name
#define ELEMENT unsigned char
#define PER_PIECE 16
#define LANES TURN_LANES_8
#include "turn_blocks.h"
