/* bulk.h: bodies for bulk.cuh, part of emulation.h: barriers in shared memory (mbarrier) and bulk copies.
 *
 * A copy arrives when somebody waits for its barrier. Wrong are: a copy over what a product still reads, or that begins
 * before fence.proxy.async has shown this thread's writes; a barrier that is used before all know of it, or that more
 * threads arrive at than it counts; data used by a thread that has not waited for it; a map that no fence has made known.
 */
#pragma once
#include "tensor_map.h"

namespace emulation {
struct BulkCopy { unsigned char *to; EmulatedMap map; long at[4]; };
struct Barrier {
  const void *place;
  unsigned count, pending, phase, made, maker;   /* made: the block's barriers that its maker had behind it */
  long bytes;                                    /* yet to arrive in this phase */
  std::vector<BulkCopy> copies;
  std::vector<Thread *> waiting;
};
struct Arrival { unsigned barrier = ~0u, phase = 0; };
static std::vector<Barrier> barriers;
static std::vector<Arrival> arrivals;            /* of each chunk of dynamic shared memory: by which bulk copy it came */

static void forget_barriers() {
  barriers.clear();
  arrivals.assign(MOST_DYNAMIC / 16, Arrival());
}
static void share_seen() {
  std::vector<unsigned> all(barriers.size());
  for (const Thread &thread : block.threads)
    for (size_t i = 0; i < thread.seen.size(); i++) all[i] = std::max(all[i], thread.seen[i]);
  for (Thread &thread : block.threads) thread.seen = all;
}
static Barrier *barrier_at(const void *place) {
  for (Barrier &barrier : barriers)
    if (barrier.place == place) {
#ifdef EMULATION_CHECKED
      if (barrier.maker != current->index.x && barrier.made >= current->checked.barriers)
        wrong("a barrier (mbarrier) that others may not know yet");
#endif
      return &barrier;
    }
  wrong("no barrier (mbarrier) there");
  return nullptr;
}
static void look_at_copied(const void *at) {
  const Arrival &arrival = arrivals[(static_cast<const unsigned char *>(at) - dynamic_shared) / 16];
  if (arrival.barrier == ~0u) return;
  if (current->seen.size() <= arrival.barrier || current->seen[arrival.barrier] <= arrival.phase)
    wrong("use of a bulk copy that this thread has not waited for");
}
/* Lines of a box, of which each has a place in the three other dimensions: every so manieth, as the map's steps say. */
static unsigned count_of(const EmulatedMap &map, int d) { return (map.box[d] + map.steps[d] - 1) / map.steps[d]; }
static unsigned lines_of(const EmulatedMap &map) { return count_of(map, 1) * count_of(map, 2) * count_of(map, 3); }
/* One line of a box: elements along memory, zeros outside; chunks of 16 bytes change places with the line's number. */
__attribute__((no_sanitize("thread", "alignment")))
static void land_line(const BulkCopy &copy, unsigned number, const Arrival &arrival) {
  const EmulatedMap &map = copy.map;
  const long size = map.box[0] * map.width;
  long at[4] = {copy.at[0]}, rest = number;
  for (int d = 1; d < 4; d++) at[d] = copy.at[d] + rest % count_of(map, d) * map.steps[d], rest /= count_of(map, d);
  unsigned char data[128] = {};
  bool inside = at[0] >= 0;
  for (int d = 1; d < 4; d++) inside = inside && at[d] >= 0 && at[d] < long(map.sizes[d]);
  const long left = inside ? (long(map.sizes[0]) - at[0]) * map.width : 0, count = left < size ? left : size;
  if (count > 0) {
    const unsigned char *from = reinterpret_cast<const unsigned char *>(map.address) + at[0] * map.width +
                                at[1] * map.strides[0] + at[2] * map.strides[1] + at[3] * map.strides[2];
#ifdef EMULATION_CHECKED
    emulation_look(from, count);
#endif
    std::memcpy(data, from, count);
  }
  for (unsigned chunk = 0; chunk < 8; chunk++) {
    unsigned char *to = copy.to + number * 128 + (chunk ^ number % 8) * 16;
#ifdef EMULATION_CHECKED
    emulation_arrived(reinterpret_cast<char *>(to), 16);
#endif
    std::memcpy(to, data + chunk * 16, 16);
    arrivals[(to - dynamic_shared) / 16] = arrival;
  }
}
__attribute__((no_sanitize("thread", "alignment"))) static void land(Barrier &barrier) {
  const Arrival arrival = {unsigned(&barrier - barriers.data()), barrier.phase};
  for (const BulkCopy &copy : barrier.copies) {
    for (unsigned line = 0; line < lines_of(copy.map); line++) land_line(copy, line, arrival);
    barrier.bytes -= long(lines_of(copy.map)) * 128;
  }
  barrier.copies.clear();
}
static void wake(Barrier &barrier) {
  for (Thread *thread : barrier.waiting) release(*thread);
  barrier.waiting.clear();
}
static void end_phase(Barrier &barrier) {
  if (barrier.pending || barrier.bytes) return;
  barrier.phase++, barrier.pending = barrier.count;
  wake(barrier);
}
static void arrive(const void *place, long bytes) {
  Barrier *barrier = barrier_at(place);
  if (!barrier) return;
  if (barrier->pending == 0) return wrong("more arrivals at a barrier (mbarrier) than it counts");
  barrier->pending--, barrier->bytes += bytes;
  end_phase(*barrier);
}
/* Whether the bytes that a product reads, all between the first and the last of its lines, meet a copy's. */
static bool meets(unsigned long long descriptor, int across, unsigned rows, const unsigned char *from, size_t size) {
  for (unsigned row = 0; row < rows; row += across ? 64 : 1)
    for (unsigned k = 0; k < 16; k++) {
      const auto *at = reinterpret_cast<const unsigned char *>(described(descriptor, across, row, k));
      if (at >= from && at < from + size) return true;
    }
  return false;
}
__attribute__((no_sanitize("thread", "alignment")))
static void begin_bulk(unsigned char *to, const void *map, const long (&at)[4], const void *place) {
  Barrier *barrier = barrier_at(place);
  if (!barrier) return;
  BulkCopy copy;
  copy.to = to;
  std::memcpy(&copy.map, map, sizeof copy.map), std::memcpy(copy.at, at, sizeof at);
  bool known = false;
  for (const void *one : current->known_maps) known |= one == map;
  if (!known) return wrong("a tensor map that no fence.proxy.tensormap has made known");
  if (copy.map.magic != EMULATED_MAP || copy.map.swizzle != 3) return wrong("no tensor map, or another swizzle");
  const size_t size = size_t(lines_of(copy.map)) * 128;
  if ((to - dynamic_shared) % 1024 || to + size > dynamic_shared + dynamic_bytes) return wrong("a bulk copy to the wrong place");
  for (const Thread &thread : block.threads) {
    if (thread.unfenced) return wrong("a bulk copy, and writes that no fence.proxy.async has shown to it");
    if (thread.index.x % 128) continue;                       /* all threads of a group have the same products */
    for (const auto &group : thread.products)
      for (const GroupProduct &p : group)
        if ((!p.held && meets(p.a, p.across_a, 64, to, size)) || meets(p.b, p.across_b, p.columns, to, size))
          return wrong("a bulk copy over what a product still reads");
  }
#ifdef EMULATION_CHECKED
  emulation_leaves(reinterpret_cast<char *>(to), size);
#else
  std::memset(to, 0xff, size);
#endif
  barrier->copies.push_back(copy);
  wake(*barrier);                                             /* who waits has it arrive */
}
}  // namespace emulation

static inline void hloc_barrier_make(unsigned long long *place, int count) {
  using namespace emulation;
  for (const Barrier &barrier : barriers)
    if (barrier.place == place) return wrong("a barrier (mbarrier) made twice");
  barriers.push_back({place, unsigned(count), unsigned(count), 0, 0, current->index.x, 0, {}, {}});
#ifdef EMULATION_CHECKED
  barriers.back().made = current->checked.barriers;
#endif
  current->unfenced = true;
  *place = count;
}
static inline void hloc_barrier_arrive(unsigned long long *place) { emulation::arrive(place, 0); }
static inline void hloc_barrier_expect(unsigned long long *place, int bytes) { emulation::arrive(place, bytes); }
static inline void hloc_barrier_wait(unsigned long long *place, int parity) {
  using namespace emulation;
  while (Barrier *barrier = barrier_at(place)) {
    land(*barrier);
    end_phase(*barrier);
    if (int(barrier->phase & 1) != parity) {
      const size_t number = barrier - barriers.data();
      if (current->seen.size() <= number) current->seen.resize(number + 1);
      current->seen[number] = barrier->phase;
      return;
    }
    current->state = AT_BARRIER;
    barrier->waiting.push_back(current);
    leave();
  }
}
static inline void hloc_bulk_copy(void *to, const void *map, int along, int line, int inner, int outer,
                                  unsigned long long *barrier) {
  emulation::begin_bulk(static_cast<unsigned char *>(to), map, {along, line, inner, outer}, barrier);
}
static inline void hloc_bulk_known(const void *map) { emulation::current->known_maps.push_back(map); }
