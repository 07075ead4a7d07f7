/* driver.h: the macros and functions of the generated driver function.
 *
 * A driver runs a whole program. Memory is addressed through `bases`: bases[0] is the arena, followed by the entry
 * parameters, the results, the constants and the arrays that the first run computes for later ones. A hloc_ref is a
 * base and an offset. Each launch has a row of them in one constant table, so that a program with ten thousand launches
 * compiles quickly.
 */
#pragma once
#include <stdint.h>
#include <string.h>
#include "pool.h"

typedef struct { int32_t base; int64_t offset; } hloc_ref;

/* Called for steps that Python runs; returns 0, or a code that ends the run. */
typedef int (*hloc_host_function)(int32_t call, void *const *pointers);

/* From now on the run checks for signals (call.c): it has taken, or will take, some time. */
__attribute__((weak, visibility("hidden"))) void hloc_watch_now(void);
#define HLOC_WATCH() (hloc_watch_now ? hloc_watch_now() : (void)0)

/* Memory that must not be accessed, for AddressSanitizer. */
#if defined(__SANITIZE_ADDRESS__)
void __asan_poison_memory_region(void const volatile *address, size_t size);
#define HLOC_POISON(address, size) __asan_poison_memory_region(address, size)
#else
#define HLOC_POISON(address, size) ((void)0)
#endif

typedef void (*hloc_kernel)(void *const *buffers, long begin, long end);

#ifndef HLOC_MOST_ARGUMENTS
#define HLOC_MOST_ARGUMENTS 512
#endif
enum { HLOC_COPY_PIECE = 1 << 18 };

#define HLOC_ALWAYS static inline __attribute__((always_inline))
HLOC_ALWAYS void *hloc_at(void *const *bases, hloc_ref ref) { return (char *)bases[ref.base] + ref.offset; }

HLOC_ALWAYS void hloc_resolve(void *const *bases, const hloc_ref *refs, int count, void **pointers) {
  for (int i = 0; i < count; i++) pointers[i] = hloc_at(bases, refs[i]);
}

/* Run one loop kernel over [0, extent), in pieces of `grain` on the pool, or on this thread if there is one piece. */
static inline void hloc_launch(hloc_kernel kernel, long extent, long grain, void *const *bases, const hloc_ref *refs,
                               int count) {
  void *pointers[HLOC_MOST_ARGUMENTS];
  hloc_resolve(bases, refs, count, pointers);
  if (grain >= extent) kernel(pointers, 0, extent);
  else hloc_parallel(kernel, pointers, extent, grain);
}

/* Run a kernel that is inlined here: [0, extent) on the buffers at these addresses. */
#define HLOC_RUN(kernel, extent, ...) kernel((void *const[]){__VA_ARGS__}, 0, extent)

/* Independent kernels, each on one thread, `grain` of them at a time. */
typedef struct { hloc_kernel kernel; long extent; const hloc_ref *refs; int count; } hloc_job;

static void hloc_run_jobs(void *const *arguments, long begin, long end) {
  const hloc_job *jobs = arguments[0];
  void *const *bases = arguments[1];
  for (const hloc_job *job = jobs + begin; job < jobs + end; job++)
    hloc_launch(job->kernel, job->extent, job->extent, bases, job->refs, job->count);
}

static inline void hloc_launch_concurrently(const hloc_job *jobs, long count, long grain, void *const *bases) {
  void *arguments[2] = {(void *)jobs, (void *)bases};
  hloc_parallel(hloc_run_jobs, arguments, count, grain);
}

typedef void (*hloc_tile)(void *const *buffers);

/* The scratch memory of a library kernel: sizes from the plan, and the address; NULL: none. */
static inline void hloc_give_room_at(hloc_room *room, const hloc_room *sizes, void *const *bases, hloc_ref ref) {
  *room = *sizes;
  room->at = hloc_at(bases, ref);
  hloc_give_room(room);
}

/* Run a tile; it splits its own work over the pool. Its scratch memory, if any, is the last of refs. */
static __attribute__((noinline, unused)) void hloc_launch_tile(hloc_tile tile, void *const *bases, const hloc_ref *refs,
                                                               int count, const hloc_room *sizes) {
  void *pointers[HLOC_MOST_ARGUMENTS];
  hloc_room room;
  hloc_resolve(bases, refs, count, pointers);
  if (sizes) hloc_give_room_at(&room, sizes, bases, refs[count]);
  tile(pointers);
  if (sizes) hloc_give_room(NULL);
}

static void hloc_copy_pieces(void *const *arguments, long begin, long end) {
  size_t size = *(const size_t *)arguments[2], start = (size_t)begin * HLOC_COPY_PIECE;
  size_t stop = (size_t)end * HLOC_COPY_PIECE < size ? (size_t)end * HLOC_COPY_PIECE : size;
  memcpy((char *)arguments[0] + start, (const char *)arguments[1] + start, stop - start);
}

/* Copy bytes between two ranges that do not overlap. */
static inline void hloc_copy(void *const *bases, const hloc_ref *refs, size_t size) {
  void *arguments[3] = {hloc_at(bases, refs[0]), hloc_at(bases, refs[1]), &size};
  if (size < 4 * HLOC_COPY_PIECE) memcpy(arguments[0], arguments[1], size);
  else hloc_parallel(hloc_copy_pieces, arguments, (long)((size + HLOC_COPY_PIECE - 1) / HLOC_COPY_PIECE), 1);
}

/* Call Python, with the caller's treatment of subnormal numbers. */
static inline int hloc_call_host(hloc_host_function host, int32_t call, void *const *bases, const hloc_ref *refs,
                                 int count, unsigned caller) {
  void *pointers[HLOC_MOST_ARGUMENTS];
  hloc_resolve(bases, refs, count, pointers);
  const unsigned state = hloc_float_state();
  hloc_set_float_state(caller);
  const int error = host(call, pointers);
  hloc_set_float_state(state);
  return error;
}
