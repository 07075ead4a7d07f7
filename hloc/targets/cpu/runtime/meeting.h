/* meeting.h: the driver's side of communicator.h. */
#pragma once
#include "communicator.h"
#include "driver.h"

/* Start a collective: its operands, then its results, are at `refs`. */
static inline int hloc_meet(hloc_communicator *communicator, hloc_start_collective start, const hloc_collective *what,
                            void *const *bases, const hloc_ref *refs, int given, int made) {
  void *pointers[HLOC_MOST_ARGUMENTS];
  hloc_resolve(bases, refs, given + made, pointers);
  return start(communicator, what, (const void *const *)pointers, pointers + given);
}

static inline void hloc_tell_device(const hloc_communicator *communicator, void *const *bases, hloc_ref ref,
                                    int32_t divisor, int32_t modulus) {
  *(uint32_t *)hloc_at(bases, ref) = (uint32_t)(communicator->device / divisor % modulus);
}
