/* engines.cpp: what moves and multiplies beside the threads: copies of 16 bytes (async.cuh), products of a warpgroup
 * (wgmma.cuh), barriers in shared memory (mbarrier) and bulk copies (bulk.cuh).
 *
 * A copy arrives when somebody waits for it or for its barrier. Wrong are: a bulk copy over what a product still reads, or
 * that begins before fence.proxy.async has shown this thread's writes; a barrier that is used before all know of it, or
 * that more threads arrive at than it counts; data used by a thread that has not waited for it; a map that no fence has
 * made known.
 */
#include "machine.h"
#include "tensor_map.h"

/* async.cuh */
void hloc_copy_16(void *to, const void *from, bool inside) {
  using namespace emulation;
  static const Sixteen zeros = {};
  if (running().copies.empty()) running().copies.emplace_back();
#ifdef EMULATION_CHECKED
  emulation_unwritten(static_cast<char *>(to), 16);
#else
  std::memset(to, 0xff, 16);
#endif
  running().copies.back().push_back({static_cast<Sixteen *>(to), inside ? static_cast<const Sixteen *>(from) : &zeros});
}
void hloc_copy_commit() {
  auto &copies = emulation::running().copies;
  if (copies.empty()) copies.emplace_back();
  copies.emplace_back();
}
void emulation::wait_copies(size_t most) {
  auto &copies = running().copies;
  while (copies.size() > most + 1) {
    for (const AsyncCopy &copy : copies.front()) *copy.to = *copy.from, running().unfenced = true;
    copies.pop_front();
  }
}
/* ldmatrix: what lane 8 m + r points to is row r of matrix m. */
void hloc_load_matrices(unsigned *words, const void *row) {
  const unsigned lane = emulation::current->lane;
  const unsigned char *slots = emulation::exchange(row);
  for (unsigned m = 0; m < 4; m++)
    words[m] = static_cast<const unsigned *>(emulation::shown_by<const void *>(slots, 8 * m + lane / 4))[lane % 4];
}
void hloc_load_transposed(unsigned *words, const void *row) {
  const unsigned lane = emulation::current->lane;
  const unsigned char *slots = emulation::exchange(row);
  for (unsigned m = 0; m < 4; m++) {
    words[m] = 0;
    for (unsigned n = 0; n < 2; n++)
      words[m] |= unsigned(static_cast<const unsigned short *>(
          emulation::shown_by<const void *>(slots, 8 * m + lane % 4 * 2 + n))[lane / 4]) << 16 * n;
  }
}

/* wgmma.cuh. What a descriptor points to is decoded as the PTX manual says: start, leading and stride offsets in units of
 * 16 bytes, swizzle 1: bits 4-6 of an address are changed by its bits 7-9. Elements are read when a product begins (for
 * the checker) and when somebody waits for it. */
namespace emulation {
static void wrong(const char *what) {
#ifdef EMULATION_CHECKED
  emulation_tell(what);
#else
  std::fprintf(stderr, "%s\n", what), std::abort();
#endif
}
/* Where an element of 16 bits lies, of row `row` (for B: column). */
static unsigned short *described(unsigned long long descriptor, int across, unsigned row, unsigned k) {
  const unsigned start = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4;
  const unsigned stride = (descriptor >> 32 & 0x3fff) << 4;
  unsigned at = across ? start + row / 64 * leading + row % 64 * 2 + k / 8 * stride + k % 8 * 128
                       : start + row / 8 * stride + row % 8 * 128 + k * 2;
  at ^= (at >> 7 & 7) << 4;
  if (at + 2 <= dynamic_bytes) return reinterpret_cast<unsigned short *>(dynamic_shared + at);
  wrong("wgmma reads outside of shared memory");
  return reinterpret_cast<unsigned short *>(dynamic_shared);
}
static void look_at_copied(const void *at);
/* Each element is read by one thread of the group, for the checker. */
static void look_at_group(const GroupProduct &p) {
#ifdef EMULATION_CHECKED
  const unsigned thread = current->index.x % 128;
  volatile unsigned short seen;
  for (unsigned k = 0; k < 16; k++) {
    if (!p.held) look_at_copied(described(p.a, p.across_a, thread / 2, k));
    if (!p.held) seen = *described(p.a, p.across_a, thread / 2, k);
    for (unsigned column = thread; column < p.columns; column += 128) {
      look_at_copied(described(p.b, p.across_b, column, k));
      seen = *described(p.b, p.across_b, column, k);
    }
  }
#else
  (void)p;
#endif
}
UNCHECKED static void multiply_group(const GroupProduct &p) {
  const unsigned group = current->lane / 4, pair = current->lane % 4 * 2, warp = current->index.x / 32 % 4;
  if (!p.adds) std::memset(p.d, 0, p.columns / 2 * 4);
  for (unsigned k = 0; k < 16; k += 2) {
    unsigned x[2];
    for (unsigned half = 0; half < 2; half++) {
      const unsigned row = warp * 16 + group + half * 8;
      x[half] = p.held ? p.words[half][k / 2]
                       : *described(p.a, p.across_a, row, k) | unsigned(*described(p.a, p.across_a, row, k + 1)) << 16;
    }
    for (unsigned n = 0; n < p.columns / 4; n++) {
      const unsigned column = n / 2 * 8 + pair + n % 2;
      const unsigned high = *described(p.b, p.across_b, column, k + 1);
      const unsigned y = *described(p.b, p.across_b, column, k) | high << 16;
      for (unsigned half = 0; half < 2; half++) {
        p.add(static_cast<unsigned *>(p.d) + n / 2 * 4 + half * 2 + n % 2, x[half], y);
      }
    }
  }
}
void begin_group(const GroupProduct &p) {
  for (const Thread &thread : block.threads)
    if (thread.unfenced) return wrong("wgmma reads what no fence.proxy.async has shown to it");
  if ((!p.held && (p.a >> 62 != 1 || (p.a >> 49 & 7))) || p.b >> 62 != 1 || (p.b >> 49 & 7)) return wrong("wgmma with another swizzle");
  if (running().products.empty()) running().products.emplace_back();
  look_at_group(p);
  running().products.back().push_back(p);
}
}  // namespace emulation
void hloc_fence_async() { emulation::running().unfenced = false; }
void hloc_wgmma_commit() {
  auto &products = emulation::running().products;
  if (products.empty()) products.emplace_back();
  products.emplace_back();
}
void emulation::wait_products(size_t most) {
  auto &products = running().products;
  while (products.size() > most + 1) {
    for (const GroupProduct &product : products.front()) look_at_group(product), multiply_group(product);
    products.pop_front();
  }
  warp_barrier();
}
/* Who knows of a named barrier agrees on its threads; 0 is __syncthreads(). */
static bool is_named(int n, unsigned threads) {
  using namespace emulation;
  if (n < 1 || n > 15 || threads % 32) return wrong("no named barrier (bar.sync)"), false;
  if (!block.named[n].threads) block.named[n].threads = threads;
  if (block.named[n].threads != threads) return wrong("a named barrier (bar.sync) of another number of threads"), false;
  return true;
}
void emulation::named_barrier(int n, unsigned threads, bool waits) {
  if (!is_named(n, threads)) return;
  Named &barrier = block.named[n];
  if (++barrier.arrived == threads) {
    if (barrier.waiting.empty() && !waits) return wrong("a named barrier (bar.arrive) that nobody waits for");
    barrier.arrived = 0;
    for (Thread *thread : barrier.waiting) release(*thread);
    barrier.waiting.clear();
  } else if (waits) {
    running().state = AT_BARRIER;
    barrier.waiting.push_back(&running());
    leave();
  }
}
bool emulation::is_left() {
  return std::any_of(block.named, block.named + 16, [](const Named &barrier) { return barrier.arrived > 0; });
}
/* A barrier of 128 threads, which tells whether one of them says yes. */
bool hloc_group_any(bool yes) {
  using namespace emulation;
  if (!is_named(1 + current->index.x / 128, 128)) return yes;
  Group128 &group = block.groups[current->index.x / 128];
  const unsigned turn = group.turn;
  group.any[turn] |= yes;
#ifdef EMULATION_CHECKED
  running().checked.warp_barriers++;
#endif
  if (++group.arrived < 128) {
    running().state = AT_BARRIER;
    group.waiting.push_back(&running());
    leave();
  } else {
    group.arrived = 0, group.turn ^= 1, group.any[group.turn] = false;
    for (Thread *thread : group.waiting) release(*thread);
    group.waiting.clear();
  }
  return group.any[turn];
}
/* bulk.cuh */
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

void forget_barriers() {
  barriers.clear();
  arrivals.assign(MOST_DYNAMIC / 16, Arrival());
}
void share_seen() {
  std::vector<unsigned> all(barriers.size());
  for (const Thread &thread : block.threads)
    for (size_t i = 0; i < thread.seen.size(); i++) all[i] = std::max(all[i], thread.seen[i]);
  for (Thread &thread : block.threads) thread.seen = all;
}
static Barrier *barrier_at(const void *place) {
  for (Barrier &barrier : barriers)
    if (barrier.place == place) {
#ifdef EMULATION_CHECKED
      if (barrier.maker != current->index.x && barrier.made >= running().checked.barriers)
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
  if (running().seen.size() <= arrival.barrier || running().seen[arrival.barrier] <= arrival.phase)
    wrong("use of a bulk copy that this thread has not waited for");
}
/* Lines of a box, of which each has a place in the three other dimensions: every so manieth, as the map's steps say. */
static unsigned count_of(const EmulatedMap &map, int d) { return (map.box[d] + map.steps[d] - 1) / map.steps[d]; }
static unsigned lines_of(const EmulatedMap &map) { return count_of(map, 1) * count_of(map, 2) * count_of(map, 3); }
/* One line of a box: elements along memory, zeros outside; chunks of 16 bytes change places with the line's number. */
UNCHECKED static void land_line(const BulkCopy &copy, unsigned number, const Arrival &arrival) {
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
UNCHECKED static void land(Barrier &barrier) {
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
UNCHECKED static void begin_bulk(unsigned char *to, const void *map, const long (&at)[4], const void *place) {
  Barrier *barrier = barrier_at(place);
  if (!barrier) return;
  BulkCopy copy;
  copy.to = to;
  std::memcpy(&copy.map, map, sizeof copy.map), std::memcpy(copy.at, at, sizeof at);
  bool known = false;
  for (const void *one : running().known_maps) known |= one == map;
  if (!known) return wrong("a tensor map that no fence.proxy.tensormap has made known");
  if (copy.map.magic != EMULATED_MAP || copy.map.swizzle != 3) return wrong("no tensor map, or another swizzle");
  const size_t size = size_t(lines_of(copy.map)) * 128;
  if ((to - dynamic_shared) % 1024 || to + size > dynamic_shared + dynamic_bytes) return wrong("a bulk copy to the wrong place");
  for (const Thread &thread : block.threads) {
    if (thread.unfenced) return wrong("a bulk copy, and writes that no fence.proxy.async has shown to it");
    if (thread.index.x % 32) continue;                        /* all threads of a warp have the same products */
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

void hloc_barrier_make(unsigned long long *place, int count) {
  using namespace emulation;
  for (const Barrier &barrier : barriers)
    if (barrier.place == place) return wrong("a barrier (mbarrier) made twice");
  barriers.push_back({place, unsigned(count), unsigned(count), 0, 0, current->index.x, 0, {}, {}});
#ifdef EMULATION_CHECKED
  barriers.back().made = running().checked.barriers;
#endif
  running().unfenced = true;
  *place = count;
}
void hloc_barrier_arrive(unsigned long long *place) { emulation::arrive(place, 0); }
void hloc_barrier_expect(unsigned long long *place, int bytes) { emulation::arrive(place, bytes); }
void hloc_barrier_wait(unsigned long long *place, int parity) {
  using namespace emulation;
  while (Barrier *barrier = barrier_at(place)) {
    land(*barrier);
    end_phase(*barrier);
    if (int(barrier->phase & 1) != parity) {
      const size_t number = barrier - barriers.data();
      if (running().seen.size() <= number) running().seen.resize(number + 1);
      running().seen[number] = barrier->phase;
      return;
    }
    running().state = AT_BARRIER;
    barrier->waiting.push_back(&running());
    leave();
  }
}
void hloc_bulk_copy(void *to, const void *map, int along, int line, int inner, int outer,
                                  unsigned long long *barrier) {
  emulation::begin_bulk(static_cast<unsigned char *>(to), map, {along, line, inner, outer}, barrier);
}
void hloc_bulk_known(const void *map) { emulation::running().known_maps.push_back(map); }
