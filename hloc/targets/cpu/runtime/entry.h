/* entry.h: the functions of a compiled program that C and C++ call, as its own header describes them.
 *
 * In (from hloc/targets/cpu/program/export.py): HLOC_PARAMETERS, HLOC_RESULTS, HLOC_CONSTANTS, how many;
 * HLOC_ARENA_BYTES; HLOC_NAME, the program's; hloc_constants, and hloc_constant_offsets, their offsets in it;
 * HLOC_DEVICES, of a program that takes a communicator: how many it is for.
 * Out: hloc_run, hloc_start, hloc_stop, hloc_error, under the program's names for them.
 *
 * Code here must not use optional instructions before the CPU has been checked: as a separate unit this file is
 * compiled for any x86-64; in one file with the program its functions are HLOC_ANY_CPU.
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include "cpu_needs.h"
#include "pool.h"

HLOC_HIDDEN int hloc_execute(void *const *bases, int (*host)(int, void *const *));

#if defined(__x86_64__) && !defined(HLOC_ENTRY_UNIT)
#define HLOC_ANY_CPU \
  __attribute__((target("no-sse3,no-avx,no-bmi,no-bmi2,no-lzcnt,no-popcnt,no-movbe,no-tbm"), noinline))
#else
#define HLOC_ANY_CPU __attribute__((noinline))
#endif
#define HLOC_PUBLIC __attribute__((visibility("default")))

#if defined(HLOC_DEVICES)
#include "communicator.h"
#define HLOC_FIRST_BYTES HLOC_ALIGNMENT
#else
#define HLOC_FIRST_BYTES HLOC_ARENA_BYTES
#endif

enum { HLOC_NO_MEMORY = 1, HLOC_OTHER_CPU = 2, HLOC_COLLECTIVE_FAILED = 3, HLOC_OTHER_DEVICES = 4, HLOC_ALIGNMENT = 64,
       HLOC_SPIN = 100, HLOC_OUT_OF_MEMORY = 12 /* of hloc_execute */ };

static pthread_mutex_t hloc_run_lock = PTHREAD_MUTEX_INITIALIZER;
static void *hloc_arena; /* set: the program has started */

/* The name of the first instruction set that the program needs and this CPU, or the system, lacks; else NULL. */
HLOC_HIDDEN HLOC_ANY_CPU const char *hloc_cpu_lacks(void) {
#if defined(__x86_64__)
  unsigned a, b, c, d, state = 0;
  __cpuid(1, a, b, c, d);
  if (c >> 27 & 1) {
    unsigned high;
    __asm__ volatile("xgetbv" : "=a"(state), "=d"(high) : "c"(0));
  }
  for (const hloc_cpu_need *need = hloc_cpu_needs; need->name; need++) {
    unsigned word[4];
    __cpuid(need->leaf & 0x80000000u, a, b, c, d);
    if (a < need->leaf) return need->name; /* an older CPU */
    __cpuid_count(need->leaf, need->subleaf, word[0], word[1], word[2], word[3]);
    if (!(word[need->word] >> need->bit & 1) || (state & need->state) != need->state) return need->name;
  }
#endif
  return NULL;
}

/* CPUs that this process may use. */
HLOC_ANY_CPU static int hloc_cpus(void) {
  cpu_set_t set;
  const int count = sched_getaffinity(0, sizeof set, &set) ? 0 : CPU_COUNT(&set);
  return count > 0 ? count : (int)sysconf(_SC_NPROCESSORS_ONLN);
}

/* In the child of a fork other threads do not exist, nor does the lock that one of them may have held. */
HLOC_ANY_CPU static void hloc_in_child(void) {
  pthread_mutex_init(&hloc_run_lock, NULL);
  hloc_after_fork();
}

/* Allocates memory and starts threads if needed; the caller has the lock. */
HLOC_ANY_CPU static int hloc_begin(int threads) {
  static int knows_of_forks;
  void *memory;
  if (hloc_arena) return 0;
  if (hloc_cpu_lacks()) return HLOC_OTHER_CPU;
  if (posix_memalign(&memory, HLOC_ALIGNMENT, HLOC_FIRST_BYTES)) return HLOC_NO_MEMORY;
  if (!knows_of_forks) knows_of_forks = !pthread_atfork(NULL, NULL, hloc_in_child);
  hloc_pool_start(threads > 0 ? threads : hloc_cpus(), HLOC_SPIN);
  hloc_arena = memory;
  return 0;
}

HLOC_PUBLIC HLOC_ANY_CPU int hloc_start(int threads) {
  pthread_mutex_lock(&hloc_run_lock);
  const int error = hloc_begin(threads);
  pthread_mutex_unlock(&hloc_run_lock);
  return error;
}

#if defined(HLOC_DEVICES)
/* Devices that are threads run at the same time, each in an arena of its own. The first eight bytes of an idle one are
 * the address of the next. */
static void **hloc_idle_arenas;

HLOC_ANY_CPU static void *hloc_take_arena(int *error) {
  void *arena;
  pthread_mutex_lock(&hloc_run_lock);
  *error = hloc_begin(0);
  arena = hloc_idle_arenas;
  if (arena) hloc_idle_arenas = *(void ***)arena;
  pthread_mutex_unlock(&hloc_run_lock);
  if (!arena && !*error && posix_memalign(&arena, HLOC_ALIGNMENT, HLOC_ARENA_BYTES)) *error = HLOC_NO_MEMORY;
  return *error ? NULL : arena;
}

HLOC_ANY_CPU static void hloc_give_arena(void *arena) {
  pthread_mutex_lock(&hloc_run_lock);
  *(void ***)arena = hloc_idle_arenas;
  hloc_idle_arenas = arena;
  pthread_mutex_unlock(&hloc_run_lock);
}

HLOC_PUBLIC HLOC_ANY_CPU int hloc_run(struct hloc_communicator *communicator, const void *const *inputs,
                                      void *const *results) {
  void *bases[2 + HLOC_PARAMETERS + HLOC_RESULTS + HLOC_CONSTANTS], **base = bases;
  int error;
  if (communicator->version != HLOC_COMMUNICATOR_VERSION || communicator->devices != HLOC_DEVICES)
    return HLOC_OTHER_DEVICES;
  void *arena = hloc_take_arena(&error);
  if (error) {
    communicator->failed(communicator);
    return error;
  }
  *base++ = arena;
  for (int i = 0; i < HLOC_PARAMETERS; i++) *base++ = (void *)inputs[i];
  for (int i = 0; i < HLOC_RESULTS; i++) *base++ = results[i];
  for (int i = 0; i < HLOC_CONSTANTS; i++) *base++ = (void *)(hloc_constants + hloc_constant_offsets[i]);
  *base = communicator;
  error = hloc_execute(bases, NULL);
  hloc_give_arena(arena);
  return error == HLOC_OUT_OF_MEMORY ? HLOC_NO_MEMORY : error ? HLOC_COLLECTIVE_FAILED : 0;
}
#else
HLOC_PUBLIC HLOC_ANY_CPU int hloc_run(const void *const *inputs, void *const *results) {
  void *bases[1 + HLOC_PARAMETERS + HLOC_RESULTS + HLOC_CONSTANTS], **base = bases;
  pthread_mutex_lock(&hloc_run_lock);
  int error = hloc_begin(0);
  if (!error) {
    *base++ = hloc_arena;
    for (int i = 0; i < HLOC_PARAMETERS; i++) *base++ = (void *)inputs[i];
    for (int i = 0; i < HLOC_RESULTS; i++) *base++ = results[i];
    for (int i = 0; i < HLOC_CONSTANTS; i++) *base++ = (void *)(hloc_constants + hloc_constant_offsets[i]);
    error = hloc_execute(bases, NULL) ? HLOC_NO_MEMORY : 0;
  }
  pthread_mutex_unlock(&hloc_run_lock);
  return error;
}
#endif

/* The caller has the lock. */
HLOC_ANY_CPU static void hloc_end(void) {
#if defined(HLOC_DEVICES)
  while (hloc_idle_arenas) {
    void **arena = hloc_idle_arenas;
    hloc_idle_arenas = *arena;
    free(arena);
  }
#endif
  if (hloc_arena) hloc_pool_stop();
  free(hloc_arena);
  hloc_arena = NULL;
  pthread_mutex_unlock(&hloc_run_lock);
}

HLOC_PUBLIC HLOC_ANY_CPU void hloc_stop(void) {
  pthread_mutex_lock(&hloc_run_lock);
  hloc_end();
}

/* When the library is unloaded: threads must not outlive their code. At the end of a process that still runs the
 * program in another thread, there is no wait for it. */
HLOC_ANY_CPU __attribute__((destructor)) static void hloc_unload(void) {
  if (!pthread_mutex_trylock(&hloc_run_lock)) hloc_end();
}

HLOC_PUBLIC HLOC_ANY_CPU const char *hloc_error(int code) {
  static char text[160];
  const char *lacks = code == HLOC_OTHER_CPU ? hloc_cpu_lacks() : NULL;
  if (code == 0) return "no error";
  if (code == HLOC_NO_MEMORY) return "out of memory";
  if (code == HLOC_COLLECTIVE_FAILED) return "devices could not exchange arrays: the communicator's message says why";
  if (code == HLOC_OTHER_DEVICES) return "the communicator is of another version, or for another number of devices";
  if (!lacks) return "unknown error";
  snprintf(text, sizeof text, "this CPU, or its system, has no %s, which " HLOC_NAME " was compiled for", lacks);
  return text;
}
