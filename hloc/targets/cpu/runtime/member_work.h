/* member_work.h: what a member of a group does in a collective when the arrays of all are there, for threads.c.
 *
 * held[m]: the operands of member m, and where its results go. own: this member.
 */
#pragma once
#include "group.h"
#include "stream_rows.h"

enum { HLOC_FAR_BYTES = 12 << 20 }; /* results of all members together: they do not stay in caches */

static int64_t whole(const hloc_block *block) { return block->rows * block->run; }

static void copy(const char *from, char *to, int64_t bytes, int is_far) {
  if (is_far && bytes % 64 == 0 && (uintptr_t)to % 64 == 0) hloc_stream_rows(from, bytes, to, bytes, 1, bytes);
  else memcpy(to, from, (size_t)bytes);
}

/* Combines this member's share of every array, and writes it to the results of all. The members' results of an array
 * are written past the caches where they would not all stay there. */
static void reduce_share(const hloc_collective *what, const void ***held, int count, int own) {
  const void *parts[count];
  for (int a = 0; a < what->count; a++) {
    const hloc_block *block = &what->blocks[a];
    const int64_t n = whole(block) / block->element, end = hloc_share(n, own + 1, count);
    const int is_far = whole(block) * count >= HLOC_FAR_BYTES;
    for (int m = 0; m < count; m++) parts[m] = held[m][a];
    for (int64_t at = hloc_share(n, own, count), some; at < end; at += some) {
      some = end - at < HLOC_COMBINED_AT_ONCE ? end - at : HLOC_COMBINED_AT_ONCE;
      const size_t start = (size_t)(at * block->element);
      char *first = (char *)held[own][what->count + a] + start;
      hloc_combine(block, count, parts, at, some, first);
      for (int m = 0; m < count; m++)
        if (m != own) copy(first, (char *)held[m][what->count + a] + start, some * block->element, is_far);
    }
  }
}

static void reduce_all(const hloc_collective *what, const void ***held, int count, int own) {
  const void *parts[count];
  for (int a = 0; a < what->count; a++) {
    for (int m = 0; m < count; m++) parts[m] = held[m][a];
    hloc_combine(&what->blocks[a], count, parts, 0, whole(&what->blocks[a]) / what->blocks[a].element,
                 (void *)held[own][what->count + a]);
  }
}

static void reduce_blocks(const hloc_collective *what, const void ***held, int count, int own) {
  const void *parts[count];
  for (int a = 0; a < what->count; a++) {
    const hloc_block *block = &what->blocks[a];
    for (int64_t r = 0; r < block->rows; r++) {
      for (int m = 0; m < count; m++) parts[m] = (const char *)held[m][a] + r * block->stride + own * block->run;
      hloc_combine(block, count, parts, 0, block->run / block->element,
                   (char *)held[own][what->count + a] + r * block->run);
    }
  }
}

static void gather_blocks(const hloc_collective *what, const void ***held, int count, int own) {
  for (int a = 0; a < what->count; a++) {
    const hloc_block *block = &what->blocks[a];
    for (int m = 0; m < count; m++)
      hloc_copy_runs((char *)held[own][what->count + a] + m * block->run, block->stride, held[m][a], block->run,
                     block->rows, block->run);
  }
}

static void exchange_blocks(const hloc_collective *what, const void ***held, int count, int own) {
  const hloc_block *block = what->blocks;
  for (int m = 0; m < count; m++)
    hloc_copy_runs((char *)held[own][count + m], block->stride, held[m][own], block->stride, block->rows, block->run);
}

static void take_first(const hloc_collective *what, const void ***held, int count, int own) {
  (void)count;
  for (int a = 0; a < what->count; a++)
    memcpy((void *)held[own][what->count + a], held[0][a], (size_t)whole(&what->blocks[a]));
}
