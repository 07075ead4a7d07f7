/* call.c: NumPy arrays -> the base addresses of a run, without Python's headers.
 *
 * In: Python tuples of arrays (the unchecked arguments, and the result arrays) and the expected types and shapes.
 * Out: hloc_call runs the program and returns the code of hloc_execute. It returns HLOC_NOT_AS_EXPECTED, and runs
 * nothing, if an argument is not a plain contiguous array of exactly the type and shape: Python then reports the error
 * or converts it. The layout of the objects is that of CPython and NumPy's public struct PyArrayObject_fields;
 * hloc/targets/cpu/execution/calls.py tests hloc_match on known arrays before it relies on this.
 *
 * hloc_quick is a Python function (METH_O) from a tuple of arguments to a tuple of results. It costs 0.1 us; a call by
 * ctypes costs 0.5. It takes the first idle tuple of result arrays of earlier calls: only the list that keeps it
 * references it, only the tuple references its arrays, and no array has been changed. If there is none, if an argument
 * is not as expected, if another thread runs the program or if hloc_execute fails (its code is then below HLOC_FAILED),
 * it returns the result of Python's `otherwise(arguments, code)`. It calls functions of Python's stable ABI, by
 * address. It holds the GIL except while the program runs, which has its own lock.
 *
 * Signals: Python's own handler only records a signal; Python's functions for it run after C returns. So starting at a
 * run's first HLOC_WATCH, on the main thread, on which Python handles signals, a handler of this file precedes
 * Python's. It sets hloc_signalled, and the run calls Python's functions at the next step or piece. If one of them
 * raises, as that of Ctrl-C does, the run stops, its results are dropped and the exception propagates to the caller;
 * else the run continues. Runs of other threads, and signals for which Python has no function, are not affected.
 *
 * facts: header (bytes of an object before its own fields), items (bytes of a tuple before its items), the address of
 * numpy.ndarray, the number of arguments and of results, then for each argument, and after them for each result:
 * address of its dtype, rank, dimensions.
 */
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include "driver.h"

int hloc_execute(void *const *bases, hloc_host_function host);

enum { HLOC_NOT_AS_EXPECTED = -1, HLOC_NOT_IDLE = -2, HLOC_BUSY = -3, HLOC_REENTERED = -4, HLOC_RAISED = -5,
       HLOC_FAILED = -16, HLOC_KEPT = 2 };
enum { HLOC_HEADER = 2 * sizeof(void *) };      /* of an object; calls.py checks it */
enum { HLOC_C_CONTIGUOUS = 0x1, HLOC_ALIGNED = 0x100, HLOC_WRITEABLE = 0x400 };

typedef struct {
  char *data;
  int rank;
  const intptr_t *dimensions, *strides;
  const void *base, *type;
  int flags;
  const void *weak_references;
} hloc_array;

/* Whether the array is plain, has the type and shape of `want`, and these flags. */
static int hloc_is_as_expected(const char *object, const intptr_t *facts, const intptr_t *want, int flags) {
  const intptr_t header = facts[0], array_type = facts[2];
  if (*(const intptr_t *)(object + header - sizeof(intptr_t)) != array_type) return 0;
  const hloc_array *array = (const hloc_array *)(object + header);
  if ((intptr_t)array->type != want[0] || array->rank != want[1] || (array->flags & flags) != flags) return 0;
  for (int d = 0; d < array->rank; d++)
    if (array->dimensions[d] != want[2 + d]) return 0;
  return 1;
}

/* bases[0 ...] = addresses of the arguments, then of the results. Returns 0 or HLOC_NOT_AS_EXPECTED. */
__attribute__((visibility("default")))
int hloc_match(void **bases, const char *arguments, const char *results, const intptr_t *facts) {
  const intptr_t header = facts[0], items = facts[1], count = facts[3], made = facts[4];
  const char *const *given = (const char *const *)(arguments + items);
  const intptr_t *want = facts + 5;
  if (*(const intptr_t *)(arguments + items - sizeof(intptr_t)) != count) return HLOC_NOT_AS_EXPECTED;
  for (intptr_t i = 0; i < count; i++, want += 2 + want[1]) {
    if (!hloc_is_as_expected(given[i], facts, want, HLOC_C_CONTIGUOUS | HLOC_ALIGNED)) return HLOC_NOT_AS_EXPECTED;
    bases[i] = ((const hloc_array *)(given[i] + header))->data;
  }
  given = (const char *const *)(results + items);
  for (intptr_t i = 0; i < made; i++) bases[count + i] = ((const hloc_array *)(given[i] + header))->data;
  return 0;
}

/* Whether the object has one reference: the count is 32 bits at its start. */
static int hloc_is_held_once(const char *object) { return *(const uint32_t *)object == 1; }

/* Whether the results, and each of them, have no other references, and have not been changed. */
__attribute__((visibility("default")))
int hloc_are_idle(const char *results, const intptr_t *facts) {
  const intptr_t header = facts[0], items = facts[1];
  const char *const *given = (const char *const *)(results + items);
  const intptr_t *want = facts + 5;
  if (!hloc_is_held_once(results)) return 0;
  for (intptr_t i = 0; i < facts[3]; i++) want += 2 + want[1];
  for (intptr_t i = 0; i < facts[4]; i++, want += 2 + want[1]) {
    const int flags = HLOC_C_CONTIGUOUS | HLOC_ALIGNED | HLOC_WRITEABLE;
    if (!hloc_is_held_once(given[i]) || ((const hloc_array *)(given[i] + header))->weak_references ||
        !hloc_is_as_expected(given[i], facts, want, flags))
      return 0;
  }
  return 1;
}

/* The common state of calls of one program, made by hloc/targets/cpu/execution/calls.py. */
typedef struct {
  int taken;                              /* the thread that has set it may write the bases and the arena */
  unsigned long owner, main_thread;       /* threads */
  void **bases;
  const intptr_t *facts;
  void *host;                             /* a function of Python: number of the call, address of the pointers */
  void *(*save_thread)(void);             /* PyEval_SaveThread, and so on */
  void (*restore_thread)(void *);
  void (*take_reference)(void *), (*drop_reference)(void *);
  void *(*integer)(long);
  void *(*call)(void *, ...);
  int (*check_signals)(void);
  void *(*raised)(void);
  void *otherwise;
  intptr_t count;
  char *kept[HLOC_KEPT];
} hloc_caller;

/* One run. before: the previous signal actions; holds: whether this run has replaced each. */
enum { HLOC_SIGNALS = 3, HLOC_WAIT_MILLISECONDS = 50, HLOC_NAP_NANOSECONDS = 50000 };
typedef struct hloc_run {
  hloc_watch watch;
  hloc_caller *caller;
  void *thread;
  struct hloc_run *outer, *handling;           /* handling: the run whose handlers were installed before */
  hloc_watch *watch_before;
  unsigned float_state;
  int watches;
  struct sigaction before[HLOC_SIGNALS];
  int holds[HLOC_SIGNALS];
} hloc_run;
static const int hloc_signals[HLOC_SIGNALS] = {SIGINT, SIGTERM, SIGHUP};
static _Thread_local hloc_run *hloc_current;
static hloc_run *volatile hloc_handling;       /* the innermost run with installed handlers */

static void hloc_on_signal(int number, siginfo_t *info, void *context) {
  const hloc_run *run = hloc_handling;
  hloc_signalled = 1;
  for (int i = 0; run && i < HLOC_SIGNALS; i++) {
    const struct sigaction *before = &run->before[i];
    if (hloc_signals[i] != number) continue;
    if (before->sa_flags & SA_SIGINFO) before->sa_sigaction(number, info, context);
    else before->sa_handler(number);
  }
}

/* Only signals that a function handles: ignored and default actions are kept. */
static void hloc_hold_signals(hloc_run *run) {
  for (int i = 0; i < HLOC_SIGNALS; i++) {
    struct sigaction *before = &run->before[i], own;
    run->holds[i] = 0;
    if (sigaction(hloc_signals[i], NULL, before)) continue;
    const int is_function = before->sa_flags & SA_SIGINFO
                                ? before->sa_sigaction != hloc_on_signal
                                : before->sa_handler != SIG_DFL && before->sa_handler != SIG_IGN;
    if (!is_function) continue;
    own = *before;
    own.sa_flags |= SA_SIGINFO;
    own.sa_sigaction = hloc_on_signal;
    hloc_handling = run;                       /* before its first handler is installed */
    run->holds[i] = sigaction(hloc_signals[i], &own, NULL) == 0;
  }
}

static void hloc_free_signals(hloc_run *run) {
  for (int i = 0; i < HLOC_SIGNALS; i++) {
    struct sigaction now;
    if (!run->holds[i] || sigaction(hloc_signals[i], NULL, &now)) continue;
    if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == hloc_on_signal)   /* else Python has set another since */
      sigaction(hloc_signals[i], &run->before[i], NULL);
  }
}

void hloc_watch_now(void) {
  hloc_run *run = hloc_current;
  if (!run || run->watches || run->caller->main_thread != (unsigned long)pthread_self()) return;
  run->watches = 1;
  run->handling = hloc_handling;
  hloc_signalled = 0;
  run->watch_before = hloc_set_watch(&run->watch);
  hloc_hold_signals(run);
}
static void hloc_watch_no_more(hloc_run *run) {
  hloc_free_signals(run);
  hloc_handling = run->handling;
  hloc_set_watch(run->watch_before);
  hloc_signalled = run->watch_before != NULL;  /* the outer run checks for itself */
}

/* Runs Python's functions for signals; returns whether one has raised. */
static int hloc_ask_python(hloc_watch *watch) {
  hloc_run *run = (hloc_run *)watch;
  const unsigned state = hloc_float_state();
  *watch->signalled = 0;                       /* before Python checks: later signals are checked later */
  hloc_set_float_state(run->float_state);
  run->caller->restore_thread(run->thread);
  const int stops = run->caller->check_signals() != 0;
  run->thread = run->caller->save_thread();
  hloc_set_float_state(state);
  if (stops) *watch->signalled = 1;            /* tell workers */
  return stops;
}

static int hloc_call_python(int32_t number, void *const *pointers) {
  hloc_run *run = hloc_current;
  hloc_caller *caller = run->caller;
  caller->restore_thread(run->thread);
  void *which = caller->integer(number), *where = caller->integer((long)(intptr_t)pointers), *answer = NULL;
  if (which && where) answer = caller->call(caller->host, which, where, NULL);
  if (which) caller->drop_reference(which);
  if (where) caller->drop_reference(where);
  if (answer) caller->drop_reference(answer);
  run->thread = caller->save_thread();
  return !answer;
}

/* Runs the program. The caller has `taken` and the GIL, which is released meanwhile. HLOC_RAISED: Python's error
 * indicator is set. */
static int hloc_execute_for(hloc_caller *caller, void *const *bases) {
  hloc_run run = {.watch = {&hloc_signalled, hloc_ask_python, 0}, .caller = caller, .outer = hloc_current,
                  .float_state = hloc_float_state()};
  hloc_current = &run;
  run.thread = caller->save_thread();
  const int error = hloc_execute(bases, hloc_call_python);
  if (run.watches) hloc_watch_no_more(&run);
  caller->restore_thread(run.thread);
  hloc_current = run.outer;
  return caller->raised() ? HLOC_RAISED : error;
}

static int hloc_take(hloc_caller *caller) {
  int free = 0;
  if (!__atomic_compare_exchange_n(&caller->taken, &free, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return 0;
  __atomic_store_n(&caller->owner, (unsigned long)pthread_self(), __ATOMIC_RELAXED);
  return 1;
}
static void hloc_give(hloc_caller *caller) {
  __atomic_store_n(&caller->owner, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&caller->taken, 0, __ATOMIC_RELEASE);
}
static int hloc_is_own(const hloc_caller *caller) {
  return __atomic_load_n(&caller->owner, __ATOMIC_RELAXED) == (unsigned long)pthread_self();
}

/* Waits for `taken`, for a limited time. Returns 0, HLOC_BUSY if Python should handle signals and then retry, or
 * HLOC_REENTERED if it would wait forever. */
static int hloc_wait(hloc_caller *caller) {
  if (hloc_take(caller)) return 0;
  if (hloc_is_own(caller)) return HLOC_REENTERED;
  void *thread = caller->save_thread();
  int got = 0;
  for (int nap = 0; !got && nap < HLOC_WAIT_MILLISECONDS * 1000000 / HLOC_NAP_NANOSECONDS; nap++) {
    nanosleep(&(struct timespec){0, HLOC_NAP_NANOSECONDS}, NULL);
    got = hloc_take(caller);
  }
  caller->restore_thread(thread);
  return got ? 0 : HLOC_BUSY;
}

/* Runs on the caller's own bases, when no other thread runs. */
__attribute__((visibility("default")))
int hloc_run_alone(hloc_caller *caller, void *const *bases) {
  int error = hloc_wait(caller);
  if (error) return error;
  error = hloc_execute_for(caller, bases);
  hloc_give(caller);
  return error;
}

__attribute__((visibility("default")))
int hloc_call(hloc_caller *caller, const char *arguments, const char *results) {
  int error = hloc_wait(caller);
  if (error) return error;
  error = hloc_match(caller->bases + 1, arguments, results, caller->facts);
  if (!error) error = hloc_execute_for(caller, caller->bases);
  hloc_give(caller);
  return error;
}

/* Runs with idle results: *results, whose reference the caller owns. Returns 0, or a code. */
static int hloc_call_kept(hloc_caller *caller, const char *arguments, void **results) {
  for (int i = 0; i < caller->count; i++) {
    if (!hloc_are_idle(caller->kept[i], caller->facts)) continue;
    int error = hloc_match(caller->bases + 1, arguments, caller->kept[i], caller->facts);
    if (error) return error;
    *results = caller->kept[i];
    caller->take_reference(*results);                   /* before other Python threads may continue */
    error = hloc_execute_for(caller, caller->bases);
    if (error) caller->drop_reference(*results);
    return error <= 0 ? error : HLOC_FAILED - error;
  }
  return HLOC_NOT_IDLE;
}

/* self: an array whose memory is a hloc_caller. */
__attribute__((visibility("default")))
void *hloc_quick(const char *self, const char *arguments) {
  hloc_caller *caller = *(hloc_caller *const *)(self + HLOC_HEADER);
  void *results = NULL;
  int code = HLOC_NOT_IDLE;
  if (hloc_take(caller)) {
    code = hloc_call_kept(caller, arguments, &results);
    hloc_give(caller);
  } else if (hloc_is_own(caller)) {
    code = HLOC_REENTERED;
  }
  if (code == 0) return results;
  if (code == HLOC_RAISED) return NULL;
  void *why = caller->integer(code), *answer = caller->call(caller->otherwise, arguments, why, NULL);
  caller->drop_reference(why);
  return answer;
}
