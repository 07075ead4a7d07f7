/* turn_32.c: hloc_turn_32 of turn.h. */
#define TURN hloc_turn_32
#define F(name) hloc_turn_32_##name
#define ELEMENT unsigned
#define PER_PIECE 4
#define LANES TURN_LANES_2
#include "turn_blocks.h"
