/* profile.h: a driver that measures its steps, for `hloc run --profile`. Define HLOC_STEPS before including it.
 *
 * Each step counts its runs and its wall-clock time on the calling thread: a step that runs on the pool counts from its
 * start to the end of its last piece.
 */
#pragma once
#include <stdint.h>
#include <time.h>

static int64_t hloc_step_nanoseconds[HLOC_STEPS], hloc_step_runs[HLOC_STEPS];

static inline int64_t hloc_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#define HLOC_TIMED(step, ...) do { \
    int64_t hloc_start = hloc_now(); \
    __VA_ARGS__; \
    hloc_step_nanoseconds[step] += hloc_now() - hloc_start; \
    hloc_step_runs[step]++; \
  } while (0)

/* Copy the times of the steps since the last call of this function, and reset them. */
__attribute__((visibility("default"))) void hloc_step_times(int64_t *nanoseconds, int64_t *runs) {
  for (int i = 0; i < HLOC_STEPS; i++) {
    nanoseconds[i] = hloc_step_nanoseconds[i];
    runs[i] = hloc_step_runs[i];
    hloc_step_nanoseconds[i] = hloc_step_runs[i] = 0;
  }
}
