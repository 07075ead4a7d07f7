/* checks.cpp: the checker of checks.h, compiled without instrumentation and linked to the kernels.
 *
 * Wrong are: an access that lies outside of the launch's arguments, or is not aligned for its type; a read of memory
 * that nothing has written; two accesses of one byte by different threads, at least one of them a write, that no barrier
 * of their block (or, in one warp, __syncwarp) parts. Threads of two blocks are parted by a counter: a barrier, a
 * __threadfence() and an atomic operation at the counter after the one access, and an atomic operation at it that comes
 * later, a __threadfence() and a barrier before the other. A counter that is not zero again at the end is wrong.
 * Of a launch that starts early: a write before its wait, a read before it of what kernels write, no wait at all.
 */
#include "checks.h"
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

/* What a thread does between two of its barriers or fences: its accesses have one number, so that each byte's shadow
 * holds two numbers. Numbers rise; those below `first_epoch` are of launches that have ended. 0: no access. */
struct Epoch { unsigned block, thread, barriers, warp_barriers, when; };
struct Arrival { unsigned block; EmulationMoment fence; };
struct Meeting { unsigned *counter; size_t arrivals; EmulationMoment fence; };   /* of a thread of the current block */
struct Shadow { unsigned write, read; };

/* The shadows of some bytes, zero at first. calloc: pages that no access touches cost nothing. */
struct Table {
  Shadow *shadows = nullptr;
  size_t size = 0;
  void grow(size_t wanted) {
    if (size >= wanted) return;
    free(shadows);                                              /* grows before its launch has touched it */
    shadows = static_cast<Shadow *>(calloc(wanted, sizeof(Shadow))), size = wanted;
    if (!shadows) abort();
  }
  void clear() { free(shadows), shadows = nullptr, size = 0; }
};
/* Shared memory, new in each block: also which of its bytes have a value. */
struct Shared {
  std::vector<Shadow> shadows;
  std::vector<char> written;
  void clear(size_t size) { shadows.assign(size, Shadow()), written.assign(size, 0); }
};

extern "C" {
void *__real_memcpy(void *, const void *, size_t), *__real_memmove(void *, const void *, size_t);
void *__real_memset(void *, int, size_t);                       /* those of the C library */
#define SHOWN __attribute__((visibility("default")))
EmulationThread *emulation_thread;
char *emulation_shared, *emulation_shared_end, *emulation_stacks, *emulation_stacks_end;
char *emulation_dynamic, *emulation_dynamic_end;
SHOWN char emulation_fault[512];
SHOWN EmulationPiece *emulation_pieces;
SHOWN int emulation_piece_count;
SHOWN EmulationSpan *emulation_spans;
SHOWN int emulation_span_count;
SHOWN int emulation_early;
}

static const size_t MOST_DYNAMIC = 227 << 10;
static const unsigned char BY_KERNELS = 2;
static Shared fixed_shared, dynamic_shared;
static std::vector<Table> piece_tables;
static char *pieces_start, *pieces_end;                        /* of all of them, with their guards */
static std::vector<Epoch> epochs;                              /* of this launch; the first has the number first_epoch */
static unsigned first_epoch = 1;

static std::map<unsigned *, std::vector<Arrival>> arrivals;    /* of this launch, at each counter */
static std::vector<Meeting> meetings;
static unsigned now;                                            /* fences and epochs so far */

static void fault(const char *what, const char *where, long offset, size_t size) {
  if (emulation_fault[0]) return;
  const EmulationThread &t = *emulation_thread;
  snprintf(emulation_fault, sizeof emulation_fault, "%s: thread %u of block %u, %zu bytes at byte %ld of %s", what,
           t.thread, t.block, size, offset, where);
}

extern "C" void emulation_tell(const char *what) { fault(what, "shared memory", 0, 0); }

extern "C" void emulation_new_block() {
  fixed_shared.clear(emulation_shared_end - emulation_shared);
  dynamic_shared.clear(emulation_dynamic_end - emulation_dynamic);
  meetings.clear();
  pieces_start = reinterpret_cast<char *>(~uintptr_t(0)), pieces_end = nullptr;
  for (const EmulationPiece *p = emulation_pieces; p < emulation_pieces + emulation_piece_count; p++) {
    pieces_start = std::min(pieces_start, p->start - p->guard);
    pieces_end = std::max(pieces_end, p->start + p->size + p->guard);
  }
}

extern "C" void emulation_fence() {
  EmulationThread &t = *emulation_thread;
  t.fence = {t.thread, t.warp, t.barriers, t.warp_barriers, ++now};
  t.epoch = 0;
  if (t.counter) meetings.push_back({t.counter, t.arrivals, t.fence});
  t.counter = nullptr;
}
extern "C" void emulation_arrive(unsigned *counter) {
  EmulationThread &t = *emulation_thread;
  t.counter = counter, t.arrivals = arrivals[counter].size();
  arrivals[counter].push_back({t.block, t.fence});
}
/* Accesses of a launch that has ended race with none. Images stay loaded, hundreds in a process: small tables are kept
 * for the next launch, large ones would add up to gigabytes. */
static void forget() {
  size_t kept = 0;
  for (const Table &table : piece_tables) kept += table.size;
  if (kept >= (1 << 17))
    for (Table &table : piece_tables) table.clear();
  first_epoch += epochs.size();
  if (epochs.size() < (1 << 14)) epochs.clear();
  else std::vector<Epoch>().swap(epochs);
  if (dynamic_shared.written.size() >= (1 << 15)) dynamic_shared = Shared();
}
extern "C" void emulation_end_launch() {
  forget();
  for (const auto &[counter, unused] : arrivals)
    if (*counter && !emulation_fault[0])
      snprintf(emulation_fault, sizeof emulation_fault, "a counter is %u at the end of the launch, not zero", *counter);
  arrivals.clear();
}

/* Whether a barrier lies between two moments of threads of one block, or one thread has both. */
static bool parted(unsigned thread, unsigned barriers, unsigned warp_barriers, unsigned later_thread, unsigned later,
                   unsigned later_of_warp) {
  return thread == later_thread || barriers < later || (thread / 32 == later_thread / 32 && warp_barriers < later_of_warp);
}
/* Whether the block of an earlier access has handed it on to the current thread at a counter. */
static bool handed_on(const Epoch &before) {
  const EmulationThread &t = *emulation_thread;
  for (const Meeting &m : meetings) {
    if (!parted(m.fence.thread, m.fence.barriers, m.fence.warp_barriers, t.thread, t.barriers, t.warp_barriers)) continue;
    const std::vector<Arrival> &all = arrivals[m.counter];
    for (size_t i = 0; i < m.arrivals; i++) {
      const EmulationMoment &f = all[i].fence;
      if (all[i].block == before.block && before.when < f.when &&
          parted(before.thread, before.barriers, before.warp_barriers, f.thread, f.barriers, f.warp_barriers))
        return true;
    }
  }
  return false;
}

/* Whether nothing orders the accesses of an epoch before what the current thread does now. */
static bool races(unsigned epoch) {
  if (epoch < first_epoch) return false;
  const Epoch &before = epochs[epoch - first_epoch];
  const EmulationThread &now = *emulation_thread;
  if (before.block == now.block && before.thread == now.thread) return false;
  if (before.block != now.block) return !handed_on(before);
  if (before.barriers < now.barriers) return false;
  return before.thread / 32 != now.warp || before.warp_barriers >= now.warp_barriers;
}

/* The number of what the current thread does now. */
static unsigned current_epoch() {
  EmulationThread &t = *emulation_thread;
  if (t.epoch) {
    const Epoch &last = epochs[t.epoch - first_epoch];
    if (last.barriers == t.barriers && last.warp_barriers == t.warp_barriers) return t.epoch;
  }
  epochs.push_back({t.block, t.thread, t.barriers, t.warp_barriers, ++now});
  return t.epoch = first_epoch + epochs.size() - 1;
}

/* Neighbouring bytes mostly have the same epochs: each is judged once in a row. */
static void access(Shadow *shadows, bool write, const char *where, long offset, size_t size) {
  const unsigned self = current_epoch();
  unsigned writer = self, reader = self;
  bool reads_race = false;
  for (Shadow *shadow = shadows; shadow < shadows + size; shadow++) {
    if (shadow->write != writer && races(writer = shadow->write))
      fault(write ? "two threads write at once" : "read while another thread writes", where, offset, size);
    if (shadow->read != reader) reads_race = races(reader = shadow->read);
    if (write && reads_race) fault("write while another thread reads", where, offset, size);
    if (write) shadow->write = self;
    else if (!reads_race) shadow->read = self;                  /* of readers at once the first one is kept */
  }
}

static void check_shared(char *start, char *end, Shared &shared, char *at, size_t size, bool write) {
  const long offset = at - start;
  if (at + size > end) return fault("outside of memory", "shared memory", offset, size);
  char *written = &shared.written[offset];
  if (write) __real_memset(written, 1, size);
  else if (memchr(written, 0, size)) fault("read of memory that nothing has written", "shared memory", offset, size);
  access(&shared.shadows[offset], write, "shared memory", offset, size);
}

extern "C" void emulation_unwritten(char *at, size_t size) {
  const bool dynamic = at >= emulation_dynamic && at < emulation_dynamic_end;
  Shared &shared = dynamic ? dynamic_shared : fixed_shared;
  char *start = dynamic ? emulation_dynamic : emulation_shared, *end = dynamic ? emulation_dynamic_end : emulation_shared_end;
  if (emulation_fault[0]) return;
  if (at < start || at + size > end) return fault("outside of memory", "shared memory", at - start, size);
  if ((at - start) % size) return fault("misaligned access", "shared memory", at - start, size);
  check_shared(start, end, shared, at, size, true);
  __real_memset(&shared.written[at - start], 0, size);
}

extern "C" void emulation_leaves(char *at, size_t size) {
  const size_t offset = at - emulation_dynamic;
  __real_memset(&dynamic_shared.shadows[offset], 0, size * sizeof(Shadow)), __real_memset(&dynamic_shared.written[offset], 0, size);
}
extern "C" void emulation_arrived(char *at, size_t size) {
  __real_memset(&dynamic_shared.written[at - emulation_dynamic], 1, size);
}

/* The argument that an address outside of all is nearest to, by its start. */
static void outside(char *at, size_t size, bool write) {
  char where[64] = "device memory";
  long offset = at - emulation_pieces[0].start;
  int nearest = -1;
  for (int i = 0; i < emulation_span_count; i++)
    if (emulation_spans[i].start <= at && (nearest < 0 || emulation_spans[i].start > emulation_spans[nearest].start)) nearest = i;
  if (nearest >= 0) {
    offset = at - emulation_spans[nearest].start;
    snprintf(where, sizeof where, "argument %d, which has %zu", nearest, emulation_spans[nearest].size);
  }
  fault(write ? "write outside of memory" : "read outside of memory", where, offset, size);
}

/* What a kernel does while the one before it may still run. */
static void check_early(const unsigned char *written, long offset, size_t size, bool write) {
  if (write) fault("write before the wait for the kernel before it", "device memory", offset, size);
  else if (memchr(written, BY_KERNELS, size))
    fault("read of what kernels write, before the wait for the kernel before it", "device memory", offset, size);
}
extern "C" void emulation_await() { emulation_thread->waited = true; }
extern "C" void emulation_end_thread() {
  if (emulation_early && !emulation_thread->waited) fault("no wait for the kernel before it", "its end", 0, 0);
}

static void check_piece(int number, char *at, size_t size, bool write) {
  const EmulationPiece &piece = emulation_pieces[number];
  const long offset = at - piece.start;
  bool inside = offset >= 0 && offset + size <= piece.size;
  if (inside && emulation_span_count) {
    inside = false;
    for (int i = 0; i < emulation_span_count && !inside; i++)
      inside = at >= emulation_spans[i].start && at + size <= emulation_spans[i].start + emulation_spans[i].size;
  }
  if (!inside) return outside(at, size, write);
  if (size_t(number) >= piece_tables.size()) piece_tables.resize(number + 1);
  piece_tables[number].grow(piece.size);
  if (emulation_early && !emulation_thread->waited) check_early(piece.written + offset, offset, size, write);
  if (write) __real_memset(piece.written + offset, BY_KERNELS, size);
  else if (memchr(piece.written + offset, 0, size))
    fault("read of memory that nothing has written", "device memory", offset, size);
  access(piece_tables[number].shadows + offset, write, "device memory", offset, size);
}

static void check_memory(char *at, size_t size, bool write) {
  if (!emulation_thread || emulation_fault[0]) return;
  if (at >= emulation_shared && at < emulation_shared_end)
    return check_shared(emulation_shared, emulation_shared_end, fixed_shared, at, size, write);
  if (at >= emulation_dynamic && at < emulation_dynamic + MOST_DYNAMIC)
    return check_shared(emulation_dynamic, emulation_dynamic_end, dynamic_shared, at, size, write);
  if (at < pieces_start || at >= pieces_end) return;
  for (int i = 0; i < emulation_piece_count; i++) {
    const EmulationPiece &piece = emulation_pieces[i];
    if (at >= piece.start - piece.guard && at < piece.start + piece.size + piece.guard)
      return check_piece(i, at, size, write);
  }
}

/* Most accesses are to a thread's own stack: nothing to see there. */
static inline void check(uintptr_t at, size_t size, bool write) {
  if (at - uintptr_t(emulation_stacks) >= uintptr_t(emulation_stacks_end) - uintptr_t(emulation_stacks))
    check_memory(reinterpret_cast<char *>(at), size, write);
}

extern "C" void emulation_look(const void *at, size_t size) { check(uintptr_t(at), size, false); }

#define ACCESS(size)                                                                                                  \
  extern "C" void __tsan_read##size(uintptr_t at) { check(at, size, false); }                                         \
  extern "C" void __tsan_write##size(uintptr_t at) { check(at, size, true); }                                         \
  extern "C" void __tsan_unaligned_read##size(uintptr_t at) { check(at, size, false); }                               \
  extern "C" void __tsan_unaligned_write##size(uintptr_t at) { check(at, size, true); }
ACCESS(1) ACCESS(2) ACCESS(4) ACCESS(8) ACCESS(16)
extern "C" void __tsan_read_range(uintptr_t at, size_t size) { check(at, size, false); }
extern "C" void __tsan_write_range(uintptr_t at, size_t size) { check(at, size, true); }
extern "C" void __tsan_vptr_update(void *, void *) {}
extern "C" void __tsan_func_entry(void *) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_init() {}

/* Compilers copy and clear structures by calls; the linker leads them here (--wrap). */
extern "C" void *__wrap_memcpy(void *to, const void *from, size_t size) {
  check(uintptr_t(from), size, false), check(uintptr_t(to), size, true);
  return __real_memcpy(to, from, size);
}
extern "C" void *__wrap_memmove(void *to, const void *from, size_t size) {
  check(uintptr_t(from), size, false), check(uintptr_t(to), size, true);
  return __real_memmove(to, from, size);
}
extern "C" void *__wrap_memset(void *to, int byte, size_t size) {
  check(uintptr_t(to), size, true);
  return __real_memset(to, byte, size);
}

struct Mismatch { const char *file; uint32_t line, column; void *type; unsigned char log_alignment, kind; };
extern "C" void __ubsan_handle_type_mismatch_v1(Mismatch *data, uintptr_t at) {
  const size_t alignment = size_t(1) << data->log_alignment;
  if (emulation_thread && at % alignment) fault("misaligned access", "its alignment", at % alignment, alignment);
}
