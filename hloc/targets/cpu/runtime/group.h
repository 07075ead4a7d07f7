/* group.h: what implementations of communicator.h share: groups, pairs, and combining arrays of any length. */
#pragma once
#include <stddef.h>
#include <string.h>
#include "communicator.h"

/* The members of this device's group, and their number; NULL: it is in none. own: its place among them. */
static inline const int32_t *hloc_members(const hloc_collective *what, int device, int *count, int *own) {
  const int32_t *at = what->groups + 1;
  for (int g = 0; g < what->groups[0]; g++, at += 1 + at[0])
    for (int m = 0; m < at[0]; m++)
      if (at[1 + m] == device) {
        *count = at[0];
        *own = m;
        return at + 1;
      }
  return NULL;
}

/* To which device this one sends, and from which it receives; -1: none. */
static inline int hloc_target_of(const hloc_collective *what, int device) {
  for (int p = 0; p < what->pairs[0]; p++)
    if (what->pairs[1 + 2 * p] == device) return what->pairs[2 + 2 * p];
  return -1;
}
static inline int hloc_source_of(const hloc_collective *what, int device) {
  for (int p = 0; p < what->pairs[0]; p++)
    if (what->pairs[2 + 2 * p] == device) return what->pairs[1 + 2 * p];
  return -1;
}

/* out = elements [first, first + n) of `count` arrays, combined in their order. The parts begin at their arrays'
 * starts, out at its own. */
static inline void hloc_combine(const hloc_block *block, int count, const void *const *parts, int64_t first, int64_t n,
                                void *out) {
  void *buffers[count + 2];
  int64_t some;
  for (int64_t done = 0; done < n; done += some) {
    const size_t at = (size_t)((first + done) * block->element);
    some = n - done < HLOC_COMBINED_AT_ONCE ? n - done : HLOC_COMBINED_AT_ONCE;
    for (int p = 0; p < count; p++) buffers[p] = (char *)parts[p] + at;
    buffers[count] = (char *)out + (size_t)(done * block->element);
    buffers[count + 1] = &some;
    block->combine(buffers, 0, 1);
  }
}

/* The share of member `own` of n elements: whole cache lines, but for the end. */
static inline int64_t hloc_share(int64_t n, int own, int count) {
  const int64_t at = n / count * own + n % count * own / count;
  return own == count ? n : at / 64 * 64;
}

static inline void hloc_copy_runs(char *to, int64_t to_stride, const char *from, int64_t from_stride, int64_t rows,
                                  int64_t run) {
  if (to_stride == run && from_stride == run) memcpy(to, from, (size_t)(rows * run));
  else for (int64_t r = 0; r < rows; r++) memcpy(to + r * to_stride, from + r * from_stride, (size_t)run);
}

/* Element i of a vector of integers. */
static inline int64_t hloc_integer(const hloc_block *block, const void *vector, int64_t i) {
  const int is_signed = block->type[0] == 's';
  switch (block->element) {
    case 1: return is_signed ? ((const int8_t *)vector)[i] : ((const uint8_t *)vector)[i];
    case 2: return is_signed ? ((const int16_t *)vector)[i] : ((const uint16_t *)vector)[i];
    case 4: return is_signed ? ((const int32_t *)vector)[i] : (int64_t)((const uint32_t *)vector)[i];
    default: return ((const int64_t *)vector)[i];
  }
}

/* Whether rows [start, start + count) are among `rows`. */
static inline int hloc_rows_fit(int64_t start, int64_t count, int64_t rows) {
  return start >= 0 && count >= 0 && count <= rows && start <= rows - count;
}
