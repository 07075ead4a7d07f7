/* turn_64.c: hloc_turn_64 of turn.h. */
#define TURN hloc_turn_64
#define F(name) hloc_turn_64_##name
#define ELEMENT unsigned long long
#define PER_PIECE 2
#define LANES TURN_LANES_1
#include "turn_blocks.h"
