/* checks.cpp: the checker of checks.h, compiled without instrumentation and linked to the kernels.
 *
 * Wrong are: an access that lies outside of the launch's arguments, or is not aligned for its type; a read of memory
 * that nothing has written; two accesses of one byte by different threads, at least one of them a write, that no barrier
 * of their block (or, in one warp, __syncwarp) parts. Threads of two blocks are parted by a counter: a barrier, a
 * __threadfence() and an atomic operation at the counter after the one access, and an atomic operation at it that comes
 * later, a __threadfence() and a barrier before the other. A counter that is not zero again at the end is wrong.
 */
#include "checks.h"
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <vector>

struct Access { unsigned launch = 0, block = 0, thread = 0, barriers = 0, warp_barriers = 0, when = 0; };
struct Arrival { unsigned block; EmulationMoment fence; };
struct Meeting { unsigned *counter; size_t arrivals; EmulationMoment fence; };   /* of a thread of the current block */
struct Shadow { Access write, read; bool written = false; };

extern "C" {
#define SHOWN __attribute__((visibility("default")))
EmulationThread *emulation_thread;
unsigned emulation_launch;
char *emulation_shared, *emulation_shared_end, *emulation_stacks, *emulation_stacks_end;
char *emulation_dynamic, *emulation_dynamic_end;
SHOWN char emulation_fault[512];
SHOWN EmulationPiece *emulation_pieces;
SHOWN int emulation_piece_count;
SHOWN EmulationSpan *emulation_spans;
SHOWN int emulation_span_count;
}

static const size_t MOST_DYNAMIC = 227 << 10;
static std::vector<Shadow> shared_shadow, dynamic_shadow;
static std::vector<std::vector<Shadow>> piece_shadow;

static std::map<unsigned *, std::vector<Arrival>> arrivals;    /* of this launch, at each counter */
static std::vector<Meeting> meetings;
static unsigned now;                                            /* fences and accesses so far */

static void fault(const char *what, const char *where, long offset, size_t size) {
  if (emulation_fault[0]) return;
  const EmulationThread &t = *emulation_thread;
  snprintf(emulation_fault, sizeof emulation_fault, "%s: thread %u of block %u, %zu bytes at byte %ld of %s", what,
           t.thread, t.block, size, offset, where);
}

extern "C" void emulation_tell(const char *what) { fault(what, "shared memory", 0, 0); }

extern "C" void emulation_new_block() {
  shared_shadow.assign(emulation_shared_end - emulation_shared, Shadow());
  dynamic_shadow.assign(emulation_dynamic_end - emulation_dynamic, Shadow());
  meetings.clear();
}

extern "C" void emulation_fence() {
  EmulationThread &t = *emulation_thread;
  t.fence = {t.thread, t.warp, t.barriers, t.warp_barriers, ++now};
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
  size_t kept = shared_shadow.capacity() + dynamic_shadow.capacity();
  for (const std::vector<Shadow> &shadow : piece_shadow) kept += shadow.capacity();
  if (kept < (1 << 15)) return;
  std::vector<Shadow>().swap(shared_shadow), std::vector<Shadow>().swap(dynamic_shadow);
  std::vector<std::vector<Shadow>>().swap(piece_shadow);
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
static bool handed_on(const Access &before) {
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

/* Whether nothing orders an earlier access before what the current thread does now. */
static bool races(const Access &before) {
  const EmulationThread &now = *emulation_thread;
  if (before.launch != emulation_launch || (before.block == now.block && before.thread == now.thread)) return false;
  if (before.block != now.block) return !handed_on(before);
  if (before.barriers < now.barriers) return false;
  return before.thread / 32 != now.warp || before.warp_barriers >= now.warp_barriers;
}

static void access(Shadow &shadow, bool write, const char *where, long offset, size_t size) {
  const EmulationThread &t = *emulation_thread;
  const Access now = {emulation_launch, t.block, t.thread, t.barriers, t.warp_barriers, ++::now};
  if (races(shadow.write)) fault(write ? "two threads write at once" : "read while another thread writes", where, offset, size);
  if (write && races(shadow.read)) fault("write while another thread reads", where, offset, size);
  if (write) shadow.write = now;
  else if (!races(shadow.read)) shadow.read = now; /* of readers at once the first one is kept */
}

static void check_shared(char *start, char *end, std::vector<Shadow> &shadows, char *at, size_t size, bool write) {
  const long offset = at - start;
  if (at + size > end) return fault("outside of memory", "shared memory", offset, size);
  for (size_t i = 0; i < size; i++) {
    Shadow &shadow = shadows[offset + i];
    if (!write && !shadow.written) fault("read of memory that nothing has written", "shared memory", offset, size);
    shadow.written |= write;
    access(shadow, write, "shared memory", offset, size);
  }
}

extern "C" void emulation_unwritten(char *at, size_t size) {
  const bool dynamic = at >= emulation_dynamic && at < emulation_dynamic_end;
  std::vector<Shadow> &shadows = dynamic ? dynamic_shadow : shared_shadow;
  char *start = dynamic ? emulation_dynamic : emulation_shared, *end = dynamic ? emulation_dynamic_end : emulation_shared_end;
  if (emulation_fault[0]) return;
  if (at < start || at + size > end) return fault("outside of memory", "shared memory", at - start, size);
  if ((at - start) % size) return fault("misaligned access", "shared memory", at - start, size);
  check_shared(start, end, shadows, at, size, true);
  for (size_t i = 0; i < size; i++) shadows[at - start + i].written = false;
}

extern "C" void emulation_leaves(char *at, size_t size) {
  for (size_t i = 0; i < size; i++) dynamic_shadow[at - emulation_dynamic + i] = Shadow();
}
extern "C" void emulation_arrived(char *at, size_t size) {
  for (size_t i = 0; i < size; i++) dynamic_shadow[at - emulation_dynamic + i].written = true;
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
  if (size_t(number) >= piece_shadow.size()) piece_shadow.resize(number + 1);
  std::vector<Shadow> &shadow = piece_shadow[number];
  if (shadow.size() < piece.size) shadow.resize(piece.size);
  for (size_t i = 0; i < size; i++) {
    if (write) piece.written[offset + i] = 1;
    else if (!piece.written[offset + i]) fault("read of memory that nothing has written", "device memory", offset, size);
    access(shadow[offset + i], write, "device memory", offset, size);
  }
}

static void check(uintptr_t address, size_t size, bool write) {
  char *at = reinterpret_cast<char *>(address);
  if (!emulation_thread || emulation_fault[0] || (at >= emulation_stacks && at < emulation_stacks_end)) return;
  if (at >= emulation_shared && at < emulation_shared_end)
    return check_shared(emulation_shared, emulation_shared_end, shared_shadow, at, size, write);
  if (at >= emulation_dynamic && at < emulation_dynamic + MOST_DYNAMIC)
    return check_shared(emulation_dynamic, emulation_dynamic_end, dynamic_shadow, at, size, write);
  for (int i = 0; i < emulation_piece_count; i++) {
    const EmulationPiece &piece = emulation_pieces[i];
    if (at >= piece.start - piece.guard && at < piece.start + piece.size + piece.guard)
      return check_piece(i, at, size, write);
  }
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

struct Mismatch { const char *file; uint32_t line, column; void *type; unsigned char log_alignment, kind; };
extern "C" void __ubsan_handle_type_mismatch_v1(Mismatch *data, uintptr_t at) {
  const size_t alignment = size_t(1) << data->log_alignment;
  if (emulation_thread && at % alignment) fault("misaligned access", "its alignment", at % alignment, alignment);
}
