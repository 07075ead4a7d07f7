/* pool.h: one set of threads for all parallel work of a module, and the scratch memory of those threads.
 *
 * In: a function of [begin, end) and the number of pieces. Out: the function is called once for every piece, on several
 * threads at once; hloc_parallel returns when all are done.
 *
 *   void hloc_pool_start(int threads, int spin);   threads: the caller included, the others with HLOC_STACK_BYTES of
 *                                                  stack each; spin: microseconds until a worker sleeps.
 *                                                  May be called again, by any library that shares them: more are
 *                                                  added, never fewer, but each library has as many work for it as
 *                                                  it asked for, those that its plan has scratch for.
 *   void hloc_pool_stop(void);                     joins the workers (a library calls it before it is unloaded)
 *   int  hloc_pool_threads(void);                  the number of threads of this library
 *   int  hloc_pool_awake(void);                    whether workers are there and none of them sleeps: then a call costs
 *                                                  well under a microsecond, and small work is worth dividing
 *   void hloc_pool_rouse(void);                    wakes them, as a loop of many small steps does before it starts
 *   const struct hloc_pool* hloc_pool_used(void);   the pool that this library uses, to be handed to
 *   void hloc_pool_share(const struct hloc_pool*);  another one, before that starts its own; the first must stay
 *                                                   loaded. One of another version of hloc keeps its own.
 *   void hloc_parallel(hloc_task task, void* const* args, long n, long grain);
 *       task(args, begin, end) for consecutive ranges of `grain` (the last may be shorter) that cover [0, n).
 *       Runs on the calling thread when one range is enough, inside another task, or when another thread has the pool.
 *   void* hloc_scratch(int slot, size_t bytes);    memory for a library kernel, 64-byte aligned, valid until the next
 *   call
 *       with the same slot on the same thread. HLOC_OWN is for tasks, one piece per thread; the others are for the
 *       thread that calls hloc_parallel: HLOC_THIRD for library kernels whose work others do that take the first two.
 *       NULL
 *       when memory is exhausted.
 *   void hloc_give_room(const hloc_room*);         sets the scratch memory of this thread and of its tasks: the driver
 *       passes each step what the plan reserves for it (hloc/targets/cpu/plans/steps.py); NULL: none.
 *   size_t hloc_unplanned_bytes(void);             total bytes ever requested without a room, or with too small a room:
 *       plans cover every library kernel, so a program that runs on as many threads as it was compiled for adds nothing
 *   void hloc_after_fork(void);                    in the child of a fork, which has no workers: new ones start with
 *       the next call
 *   hloc_watch* hloc_set_watch(hloc_watch*);       how the run on this thread is told to stop; returns what was
 *       there. hloc_parallel leaves out ranges of a run that has been told; loops and the driver ask HLOC_STOPS() and
 *       leave. What a stopped run has computed is not to be used.
 *   unsigned hloc_float_state(void); void hloc_set_float_state(unsigned);   rounding and subnormal control;
 *       hloc_flush_subnormals(state) is `state` with flushing on. Workers take over the caller's state for every call.
 *
 * Example: hloc_parallel(add_rows, args, rows, 1 + 16384 / columns)
 */
#ifndef HLOC_POOL_H
#define HLOC_POOL_H
#include <stddef.h>

typedef void (*hloc_task)(void* const* args, long begin, long end);

enum { HLOC_OWN, HLOC_FIRST, HLOC_SECOND, HLOC_THIRD, HLOC_STACK_BYTES = 1 << 20 };
/* At `at` are `first`, `second` and `third` bytes for those slots, then `own` bytes for each of `threads` threads. */
typedef struct { char* at; size_t first, second, third, own; int threads; } hloc_room;

/* signalled: not 0 when `ask` is to be called, on the thread that runs, which returns whether to stop. */
typedef struct hloc_watch {
  volatile int* signalled;
  int (*ask)(struct hloc_watch* self);
  volatile int stopped;
} hloc_watch;

void hloc_pool_start(int threads, int spin);
void hloc_pool_stop(void);
int hloc_pool_threads(void);
int hloc_pool_awake(void);
void hloc_pool_rouse(void);
struct hloc_pool;
const struct hloc_pool* hloc_pool_used(void);
void hloc_pool_share(const struct hloc_pool* other);
void hloc_parallel(hloc_task task, void* const* args, long n, long grain);
void* hloc_scratch(int slot, size_t bytes);
void hloc_give_room(const hloc_room* room);
size_t hloc_unplanned_bytes(void);
void hloc_after_fork(void);
hloc_watch* hloc_set_watch(hloc_watch* watch);
int hloc_stopped(void);
extern volatile int hloc_signalled; /* of runs of this library */
/* HLOC_OWN, or NULL: then *failed is 1. */
static inline void* hloc_own_scratch(size_t bytes, int* failed) {
  void* memory = hloc_scratch(HLOC_OWN, bytes);
  if (!memory) __atomic_store_n(failed, 1, __ATOMIC_RELAXED);
  return memory;
}
#define HLOC_STOPS() (__builtin_expect(hloc_signalled, 0) && hloc_stopped())

#if defined(__x86_64__) || defined(__i386__)
static inline unsigned hloc_float_state(void) { return __builtin_ia32_stmxcsr(); }
static inline void hloc_set_float_state(unsigned state) { __builtin_ia32_ldmxcsr(state); }
static inline unsigned hloc_flush_subnormals(unsigned state) { return state | 0x8040u; }
#elif defined(__aarch64__)
static inline unsigned hloc_float_state(void) {
  unsigned long long state;
  __asm__ volatile("mrs %0, fpcr" : "=r"(state));
  return (unsigned)state;
}
static inline void hloc_set_float_state(unsigned state) {
  unsigned long long wide = state;
  __asm__ volatile("msr fpcr, %0" : : "r"(wide));
}
static inline unsigned hloc_flush_subnormals(unsigned state) { return state | (1u << 24); }
#else
static inline unsigned hloc_float_state(void) { return 0; }
static inline void hloc_set_float_state(unsigned state) { (void)state; }
static inline unsigned hloc_flush_subnormals(unsigned state) { return state; }
#endif

#endif
