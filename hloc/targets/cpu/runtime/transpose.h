/* transpose.h: transposes, by shuffles of registers.
 *
 * hloc_transpose_<8, 16, 32, 64>(from, from_pitch, to, to_pitch, rows, columns): of elements of so many bits
 *   to[c * to_pitch + r] = from[r * from_pitch + c]      for every r < rows, c < columns
 * Pitches are in elements; any alignment. Elements between rows are neither read nor written.
 * Example: two rows {1, 2, 3}, {4, 5, 6} become {1, 4}, {2, 5}, {3, 6}.
 */
#ifndef HLOC_TRANSPOSE_H
#define HLOC_TRANSPOSE_H
void hloc_transpose_8(const void* from, long from_pitch, void* to, long to_pitch, long rows, long columns);
void hloc_transpose_16(const void* from, long from_pitch, void* to, long to_pitch, long rows, long columns);
void hloc_transpose_32(const void* from, long from_pitch, void* to, long to_pitch, long rows, long columns);
void hloc_transpose_64(const void* from, long from_pitch, void* to, long to_pitch, long rows, long columns);
#endif
