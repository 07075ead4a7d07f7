/* pool.c: the threads behind pool.h.
 *
 * All ranges of a call are claimed by compare-and-swap on one word {generation, low, high}: the caller takes ranges
 * from the low end, the workers from the high end, so that from call to call a thread mostly has the same addresses. A
 * late worker finds no ranges and costs nothing: the caller waits for ranges, not for threads.
 */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

enum { MAX_THREADS = 256, MAX_RANGES = 65535, SCRATCH_SLOTS = 4, JOIN_SPINS = 4000, PAUSES = 64 };

static struct {
  _Alignas(64) _Atomic uint64_t ranges; /* generation << 32 | low << 16 | high */
  _Alignas(64) _Atomic uint32_t done;
  _Alignas(64) _Atomic uint32_t calls; /* the counter that sleeping workers watch */
  _Atomic uint32_t sleepers, taken, stopping;
  _Alignas(64) hloc_task task;
  void* const* args;
  long n, grain;
  const hloc_room* room; /* the caller's */
  hloc_watch* watch;     /* likewise */
  unsigned float_state;
  int most; /* threads of this call, the caller included */
  int threads, spin, lost; /* lost: the number of threads before a fork */
  pid_t owner;
  pthread_t workers[MAX_THREADS];
} pool = {.threads = 1};

static _Thread_local int inside_task, number; /* number: 0 except for workers */
static _Thread_local const hloc_room* room;
static _Thread_local hloc_watch* watch;

static inline void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");
#else
  sched_yield();
#endif
}

#if defined(__linux__)
static void sleep_until_call(uint32_t seen) {
  syscall(SYS_futex, &pool.calls, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}
static void wake_workers(void) { syscall(SYS_futex, &pool.calls, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0); }
#else
static pthread_mutex_t sleep_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t sleep_signal = PTHREAD_COND_INITIALIZER;
static void sleep_until_call(uint32_t seen) {
  pthread_mutex_lock(&sleep_lock);
  while (atomic_load(&pool.calls) == seen) pthread_cond_wait(&sleep_signal, &sleep_lock);
  pthread_mutex_unlock(&sleep_lock);
}
static void wake_workers(void) {
  pthread_mutex_lock(&sleep_lock); /* orders the wake-up after a worker's last look at `calls` */
  pthread_cond_broadcast(&sleep_signal);
  pthread_mutex_unlock(&sleep_lock);
}
#endif

/* Whether this thread's run is to stop; the thread that started the run calls `ask`. */
static int own_stopped(void) {
  hloc_watch* w = watch;
  if (!w) return 0;
  if (!w->stopped && !number && *w->signalled) w->stopped = w->ask(w);
  return w->stopped;
}

/* Runs ranges until none is left. The fields of a call are read before a range is claimed: the generation in the word
 * makes the claim fail if the call has ended meanwhile. */
static void run_ranges(int is_worker) {
  for (;;) {
    uint64_t word = atomic_load_explicit(&pool.ranges, memory_order_acquire);
    uint32_t low = (uint32_t)(word >> 16) & 0xffff, high = (uint32_t)word & 0xffff;
    if (low >= high || (is_worker && number >= pool.most)) return;
    hloc_task task = pool.task;
    void* const* args = pool.args;
    long n = pool.n, grain = pool.grain;
    unsigned float_state = pool.float_state;
    const hloc_room* callers = pool.room;
    hloc_watch* watched = pool.watch;
    uint64_t claimed = is_worker ? word - 1 : word + (1u << 16);
    if (!atomic_compare_exchange_weak_explicit(&pool.ranges, &word, claimed, memory_order_acq_rel,
                                               memory_order_relaxed))
      continue;
    if (is_worker) hloc_set_float_state(float_state), room = callers, watch = watched;
    long begin = (is_worker ? (long)high - 1 : (long)low) * grain;
    if (!own_stopped()) task(args, begin, begin + grain < n ? begin + grain : n);
    atomic_fetch_add_explicit(&pool.done, 1, memory_order_release);
  }
}

static long microseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000L + now.tv_nsec / 1000;
}

/* Looks for a call for pool.spin microseconds, by the clock: a pause takes from 5 to 60 nanoseconds. */
static int spin_until_call(uint32_t seen) {
  const long end = microseconds() + pool.spin;
  do {
    for (int i = 0; i < PAUSES; i++) {
      if (atomic_load_explicit(&pool.calls, memory_order_acquire) != seen) return 1;
      pause_briefly();
    }
  } while (microseconds() < end);
  return 0;
}

static void* worker(void* own_number) {
  inside_task = 1;
  number = (int)(intptr_t)own_number;
  uint32_t seen = 0;
  while (!atomic_load_explicit(&pool.stopping, memory_order_acquire)) {
    if (!spin_until_call(seen)) {
      atomic_fetch_add(&pool.sleepers, 1);
      while (atomic_load_explicit(&pool.calls, memory_order_acquire) == seen) sleep_until_call(seen);
      atomic_fetch_sub(&pool.sleepers, 1);
    }
    seen = atomic_load_explicit(&pool.calls, memory_order_acquire);
    run_ranges(1);
  }
  return NULL;
}

static void announce_call(void) {
  atomic_fetch_add_explicit(&pool.calls, 1, memory_order_seq_cst);
  if (atomic_load_explicit(&pool.sleepers, memory_order_seq_cst)) wake_workers();
}

static int own_threads(void) { return pool.threads; }
static int own_awake(void) {
  return pool.threads > 1 && !inside_task && !atomic_load_explicit(&pool.sleepers, memory_order_relaxed);
}
static void own_rouse(void) {
  if (pool.threads > 1 && !inside_task && atomic_load_explicit(&pool.sleepers, memory_order_relaxed)) announce_call();
}

static void own_start(int threads, int spin) {
  if (atomic_exchange(&pool.taken, 1)) return; /* in use, so already started */
  if (pool.owner != getpid()) pool.threads = 1; /* after a fork there are no workers */
  pool.owner = getpid();
  pool.spin = spin;
  if (threads > MAX_THREADS) threads = MAX_THREADS;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  const pthread_attr_t* form = pthread_attr_setstacksize(&attributes, HLOC_STACK_BYTES) ? NULL : &attributes;
  while (pool.threads < threads) {
    void* own_number = (void*)(intptr_t)pool.threads;
    if (pthread_create(&pool.workers[pool.threads], form, worker, own_number)) break; /* fewer threads also do */
    pool.threads++;
  }
  pthread_attr_destroy(&attributes);
  atomic_store(&pool.taken, 0);
}

/* A fork copies only the calling thread, and the pool in any state. */
static void own_after_fork(void) {
  if (pool.threads > 1) pool.lost = pool.threads;
  pool.threads = 1;
  atomic_store(&pool.ranges, atomic_load(&pool.ranges) >> 32 << 32);
  atomic_store(&pool.sleepers, 0);
  atomic_store(&pool.stopping, 0);
  if (!inside_task) atomic_store(&pool.taken, 0);
}

static void own_stop(void) {
  while (atomic_exchange(&pool.taken, 1)) sched_yield();
  if (pool.owner == getpid()) {
    atomic_store(&pool.stopping, 1);
    announce_call();
    for (int i = 1; i < pool.threads; i++) pthread_join(pool.workers[i], NULL);
    atomic_store(&pool.stopping, 0);
  }
  pool.threads = 1;
  atomic_store(&pool.taken, 0);
}

static void run_here(hloc_task task, void* const* args, long n, long grain) {
  for (long begin = 0; begin < n && !own_stopped(); begin += grain)
    task(args, begin, n - begin < grain ? n : begin + grain);
}

static void own_parallel(hloc_task task, void* const* args, long n, long grain, int most) {
  if (n <= 0) return;
  if (grain < 1) grain = 1;
  if (pool.lost) {
    const int threads = pool.lost;
    pool.lost = 0;
    own_start(threads, pool.spin);
  }
  if (n <= grain || pool.threads <= 1 || most <= 1 || inside_task || atomic_exchange(&pool.taken, 1)) {
    run_here(task, args, n, grain);
    return;
  }
  long count = (n + grain - 1) / grain;
  if (count > MAX_RANGES) {
    grain = (n + MAX_RANGES - 1) / MAX_RANGES;
    count = (n + grain - 1) / grain;
  }
  pool.task = task;
  pool.args = args;
  pool.n = n;
  pool.grain = grain;
  pool.most = most;
  pool.float_state = hloc_float_state();
  pool.room = room;
  pool.watch = watch;
  atomic_store_explicit(&pool.done, 0, memory_order_relaxed);
  uint64_t generation = (atomic_load_explicit(&pool.ranges, memory_order_relaxed) >> 32) + 1;
  atomic_store_explicit(&pool.ranges, generation << 32 | (uint64_t)count, memory_order_release);
  announce_call();
  inside_task = 1;
  run_ranges(0);
  inside_task = 0;
  for (int spins = 0; atomic_load_explicit(&pool.done, memory_order_acquire) != (uint32_t)count; spins++) {
    if (spins < JOIN_SPINS) pause_briefly();
    else sched_yield(), own_stopped();
  }
  atomic_store_explicit(&pool.taken, 0, memory_order_release);
}

/* Scratch without a room, or more than the room has: one growing block per thread and slot, freed when the thread
 * ends. */
typedef struct { void* block; size_t bytes; } scratch_slot;
static _Thread_local scratch_slot* scratch;
static pthread_key_t scratch_key;
static pthread_once_t scratch_once = PTHREAD_ONCE_INIT;
static _Atomic size_t unplanned;

static void free_scratch(void* slots) {
  for (int i = 0; i < SCRATCH_SLOTS; i++) free(((scratch_slot*)slots)[i].block);
  free(slots);
}
static void make_scratch_key(void) { pthread_key_create(&scratch_key, free_scratch); }

static void* grown(int slot, size_t bytes) {
  if (!scratch) {
    pthread_once(&scratch_once, make_scratch_key);
    scratch = calloc(SCRATCH_SLOTS, sizeof *scratch);
    if (!scratch) return NULL;
    pthread_setspecific(scratch_key, scratch);
  }
  scratch_slot* s = &scratch[slot];
  atomic_fetch_add_explicit(&unplanned, bytes, memory_order_relaxed);
  if (!bytes) bytes = 1; /* NULL would mean that memory is exhausted */
  if (s->bytes < bytes) {
    const size_t page = bytes > (1u << 20) ? 2u << 20 : 4096; /* large blocks on huge pages if the system has them */
    size_t rounded = (bytes + bytes / 8 + page - 1) / page * page;
    free(s->block);
    s->block = NULL;
    s->bytes = 0;
    if (posix_memalign(&s->block, page, rounded)) return NULL;
    s->bytes = rounded;
  }
  return s->block;
}

static void* own_scratch(int slot, size_t bytes) {
  const hloc_room* r = room;
  if (r && slot == HLOC_FIRST && bytes <= r->first) return r->at;
  if (r && slot == HLOC_SECOND && bytes <= r->second) return r->at + r->first;
  if (r && slot == HLOC_THIRD && bytes <= r->third) return r->at + r->first + r->second;
  if (r && slot == HLOC_OWN && bytes <= r->own && number < r->threads)
    return r->at + r->first + r->second + r->third + (size_t)number * r->own;
  return grown(slot, bytes);
}
static void own_give_room(const hloc_room* given) { room = given; }
static hloc_watch* own_set_watch(hloc_watch* given) {
  hloc_watch* before = watch;
  watch = given;
  return before;
}
static size_t own_unplanned(void) { return atomic_load(&unplanned); }

/* One pool per process: libraries that are loaded later use that of the first, whose code therefore stays loaded. */
struct hloc_pool {
  unsigned version;
  void (*start)(int, int);
  void (*stop)(void);
  int (*threads)(void);
  int (*awake)(void);
  void (*rouse)(void);
  void (*parallel)(hloc_task, void* const*, long, long, int);
  void* (*scratch)(int, size_t);
  void (*give_room)(const hloc_room*);
  size_t (*unplanned)(void);
  void (*after_fork)(void);
  hloc_watch* (*set_watch)(hloc_watch*);
  int (*stopped)(void);
};
static const struct hloc_pool own = {5, own_start, own_stop, own_threads, own_awake, own_rouse, own_parallel,
                                     own_scratch, own_give_room, own_unplanned, own_after_fork, own_set_watch,
                                     own_stopped};
static const struct hloc_pool* used = &own;
static int asked = MAX_THREADS; /* the number of threads of this library: the pool may have more, for others */

const struct hloc_pool* hloc_pool_used(void) { return used; }
void hloc_pool_share(const struct hloc_pool* other) {
  if (other->version == own.version) used = other;
}

void hloc_pool_start(int threads, int spin) {
  asked = threads;
  used->start(threads, spin);
}
void hloc_pool_stop(void) { used->stop(); }
int hloc_pool_threads(void) {
  const int there = used->threads();
  return there < asked ? there : asked;
}
int hloc_pool_awake(void) { return asked > 1 && used->awake(); }
void hloc_pool_rouse(void) {
  if (asked > 1) used->rouse();
}
/* A traced program has this function (trace.h), which records the work of each thread. */
__attribute__((weak, visibility("hidden"))) void hloc_traced_parallel(
    hloc_task task, void* const* args, long n, long grain,
    void (*parallel)(hloc_task, void* const*, long, long, int), int most);

void hloc_parallel(hloc_task task, void* const* args, long n, long grain) {
  if (hloc_traced_parallel) hloc_traced_parallel(task, args, n, grain, used->parallel, asked);
  else used->parallel(task, args, n, grain, asked);
}
void* hloc_scratch(int slot, size_t bytes) { return used->scratch(slot, bytes); }
void hloc_give_room(const hloc_room* given) { used->give_room(given); }
size_t hloc_unplanned_bytes(void) { return used->unplanned(); }
void hloc_after_fork(void) { used->after_fork(); }
hloc_watch* hloc_set_watch(hloc_watch* given) { return used->set_watch(given); }
int hloc_stopped(void) { return used->stopped(); }
volatile int hloc_signalled;
