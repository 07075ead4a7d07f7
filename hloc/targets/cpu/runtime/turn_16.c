/* turn_16.c: hloc_turn_16 of turn.h. */
#define TURN hloc_turn_16
#define F(name) hloc_turn_16_##name
#define ELEMENT unsigned short
#define PER_PIECE 8
#define LANES TURN_LANES_4
#include "turn_blocks.h"
