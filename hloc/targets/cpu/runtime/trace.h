/* trace.h: a driver that records when each of its steps ran, and on which thread, for `hloc run --trace`.
 *
 * Define HLOC_STEPS and HLOC_TRACED_ITERATIONS before including it. Each thread has its own list of events. The first
 * HLOC_TRACED_ITERATIONS iterations of a loop are recorded one by one; the times of the others are summed for each
 * step. Times are nanoseconds of CLOCK_MONOTONIC. Events of a thread nest, and are in the order in which they end:
 *
 *   HLOC_CALL     the whole run
 *   HLOC_STEP     number: of the step
 *   HLOC_LOOP     number: of the loop; count: its iterations, with the last one, which is the condition alone
 *   HLOC_ITERATION  number: of the loop; count: of the iteration, from 0
 *   HLOC_FOLDED   number: of the loop; count: the number of these iterations
 *   HLOC_SUM      of the HLOC_FOLDED before it: number: of a step; count: its runs; begin: 0; end: nanoseconds
 *   HLOC_PIECE    number: of the step; count: the number of consecutive ranges of a parallel loop on this thread
 *   HLOC_WAIT     number: of the step: its thread waits for the others
 */
#pragma once
#include <stdlib.h>
#include "profile.h"

enum { HLOC_CALL, HLOC_STEP, HLOC_LOOP, HLOC_ITERATION, HLOC_FOLDED, HLOC_SUM, HLOC_PIECE, HLOC_WAIT };
enum { HLOC_MOST_TRACKS = 512, HLOC_MOST_EVENTS = 1 << 20, HLOC_LEAST_WAIT = 500 };

typedef struct { int64_t what, number, count, begin, end; } hloc_event;
typedef struct { hloc_event *events; int64_t count, room, lost, call; } hloc_track;

static hloc_track hloc_tracks[HLOC_MOST_TRACKS];
static int hloc_track_count, hloc_folds, hloc_step_now;      /* hloc_folds: folded loops around this step */
static int64_t hloc_parallel_calls, hloc_sum_nanoseconds[HLOC_STEPS], hloc_sum_runs[HLOC_STEPS];
static _Thread_local int hloc_own_track, hloc_is_inside;      /* hloc_own_track: from 1; hloc_is_inside: of a piece */

static hloc_track *hloc_track_here(void) {
  if (!hloc_own_track) hloc_own_track = 1 + __atomic_fetch_add(&hloc_track_count, 1, __ATOMIC_RELAXED);
  return hloc_own_track <= HLOC_MOST_TRACKS ? &hloc_tracks[hloc_own_track - 1] : NULL;
}

static hloc_event *hloc_note(int64_t what, int64_t number, int64_t count, int64_t begin, int64_t end) {
  hloc_track *track = hloc_track_here();
  if (!track) return NULL;
  if (track->count == track->room) {
    const int64_t room = track->room ? 2 * track->room : 1024;
    hloc_event *more = room <= HLOC_MOST_EVENTS ? realloc(track->events, (size_t)room * sizeof *more) : NULL;
    if (!more) {
      track->lost++;
      return NULL;
    }
    track->events = more;
    track->room = room;
  }
  hloc_event *event = &track->events[track->count++];
  *event = (hloc_event){what, number, count, begin, end};
  return event;
}

#undef HLOC_TIMED
#define HLOC_TIMED(step, ...) do { \
    hloc_step_now = step; \
    const int64_t hloc_start = hloc_now(); \
    __VA_ARGS__; \
    hloc_step_done(step, hloc_start, hloc_now()); \
  } while (0)

static void hloc_step_done(int step, int64_t begin, int64_t end) {
  hloc_step_nanoseconds[step] += end - begin;
  hloc_step_runs[step]++;
  if (!hloc_folds) {
    hloc_note(HLOC_STEP, step, 0, begin, end);
    return;
  }
  hloc_sum_nanoseconds[step] += end - begin;
  hloc_sum_runs[step]++;
}

/* -- loops -------------------------------------------------------------------------------------------------------- */

typedef struct { int64_t begin, begun, iterations; int folded; } hloc_loop;

/* An iteration begins. */
static __attribute__((unused)) void hloc_trace_iteration(hloc_loop *loop, int number) {
  const int64_t now = hloc_now();
  if (loop->iterations && !loop->folded && !hloc_folds)
    hloc_note(HLOC_ITERATION, number, loop->iterations - 1, loop->begun, now);
  if (!loop->folded) loop->begun = now;
  if (loop->iterations++ == HLOC_TRACED_ITERATIONS) {
    loop->folded = 1;
    if (!hloc_folds++)
      for (int i = 0; i < HLOC_STEPS; i++) hloc_sum_nanoseconds[i] = hloc_sum_runs[i] = 0;
  }
}

static __attribute__((unused)) void hloc_loop_done(hloc_loop *loop, int number) {
  const int64_t now = hloc_now();
  if (loop->folded && !--hloc_folds) {
    hloc_note(HLOC_FOLDED, number, loop->iterations - HLOC_TRACED_ITERATIONS, loop->begun, now);
    for (int i = 0; i < HLOC_STEPS; i++)
      if (hloc_sum_runs[i]) hloc_note(HLOC_SUM, i, hloc_sum_runs[i], 0, hloc_sum_nanoseconds[i]);
  }
  if (hloc_folds) return;
  if (!loop->folded) hloc_note(HLOC_ITERATION, number, loop->iterations - 1, loop->begun, now);
  hloc_note(HLOC_LOOP, number, loop->iterations, loop->begin, now);
}

/* -- threads ------------------------------------------------------------------------------------------------------ */

typedef struct { hloc_task task; void *const *args; int64_t call; int step; } hloc_traced_call;

static void hloc_traced_piece(void *const *args, long begin, long end) {
  const hloc_traced_call *call = (const void *)args;
  const int64_t start = hloc_now();
  hloc_is_inside++;
  call->task(call->args, begin, end);
  hloc_is_inside--;
  const int64_t now = hloc_now();
  hloc_track *track = hloc_track_here();
  if (track && track->count && track->call == call->call && track->events[track->count - 1].what == HLOC_PIECE) {
    track->events[track->count - 1].end = now;
    track->events[track->count - 1].count++;
  } else if (hloc_note(HLOC_PIECE, call->step, 1, start, now)) {
    track->call = call->call;
  }
}

/* The part of hloc_parallel (pool.c) for traced programs. */
__attribute__((visibility("hidden")))
void hloc_traced_parallel(hloc_task task, void *const *args, long n, long grain,
                          void (*parallel)(hloc_task, void *const *, long, long, int), int most) {
  if (hloc_is_inside || hloc_folds || n <= grain || most <= 1) {
    parallel(task, args, n, grain, most);
    return;
  }
  const hloc_traced_call call = {task, args, ++hloc_parallel_calls, hloc_step_now};
  const int64_t start = hloc_now();
  parallel(hloc_traced_piece, (void *const *)&call, n, grain, most);
  const hloc_track *track = hloc_track_here();
  const int has_worked = track && track->count && track->call == call.call;
  const int64_t begin = has_worked ? track->events[track->count - 1].end : start, now = hloc_now();
  if (now - begin >= HLOC_LEAST_WAIT) hloc_note(HLOC_WAIT, call.step, 0, begin, now);
}

/* -- runs --------------------------------------------------------------------------------------------------------- */

static int64_t hloc_trace_begin(void) {
  hloc_folds = 0;
  return hloc_now();
}
static void hloc_trace_end(int64_t begin) { hloc_note(HLOC_CALL, 0, 0, begin, hloc_now()); }

/* The events of a thread, from 0, which are valid until the next run, and the number of lost ones; then its list is
 * empty. Returns the number of events, or -1 for a thread that does not exist. */
__attribute__((visibility("default"))) int64_t hloc_take_events(int number, hloc_event **events, int64_t *lost) {
  if (number >= hloc_track_count || number >= HLOC_MOST_TRACKS) return -1;
  hloc_track *track = &hloc_tracks[number];
  const int64_t count = track->count;
  *events = track->events;
  *lost = track->lost;
  track->count = track->lost = 0;
  track->call = 0;
  return count;
}
