/* turn.h: transposes, by shuffles of registers.
 *
 * hloc_turn_<8, 16, 32, 64>(from, from_pitch, to, to_pitch, rows, columns): of elements of so many bits
 *   to[c * to_pitch + r] = from[r * from_pitch + c]      for every r < rows, c < columns
 * Pitches are in elements; any alignment. Elements between rows are neither read nor written.
 * Example: two rows {1, 2, 3}, {4, 5, 6} become {1, 4}, {2, 5}, {3, 6}.
 */
#ifndef HLOC_TURN_H
#define HLOC_TURN_H
void hloc_turn_8(const void* from, long from_pitch, void* to, long to_pitch, long rows, long columns);
void hloc_turn_16(const void* from, long from_pitch, void* to, long to_pitch, long rows, long columns);
void hloc_turn_32(const void* from, long from_pitch, void* to, long to_pitch, long rows, long columns);
void hloc_turn_64(const void* from, long from_pitch, void* to, long to_pitch, long rows, long columns);
#endif
