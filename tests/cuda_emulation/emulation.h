/* emulation.h: lets g++ compile the CUDA C that hloc emits, unchanged, and runs it on the CPU.
 *
 * In: CUDA C included after this file. Out: HLOC_LAUNCHER(kernel) defines
 *   extern "C" int launch_<kernel>(void *const *arguments, const unsigned grid[3], const unsigned block[3])
 * which runs all blocks, one after the other, and gives 0, or 1 where threads wait at a barrier that others never reach.
 *
 * Every CUDA thread is a fiber with a stack of its own. It runs until it meets a barrier or a warp collective, so that
 * a missing barrier shows as wrong numbers, all the more since emulation_backwards lets the last thread start first.
 * Shared memory is poisoned before each block. With EMULATION_CHECKED every access is looked at (checks.h).
 * Asynchronous copies arrive when somebody waits for them, not before; bulk copies when somebody waits for their barrier.
 * Not seen: the order of accesses that the hardware may change.
 */
#pragma once
#ifdef EMULATION_CHECKED
#include "checks.h"
#endif
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <sys/mman.h>
#include <utility>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#define __CUDACC__ 1
#define __CUDA_ARCH__ 900
#define HLOC_EMULATED 1
#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static __attribute__((section("hloc_shared")))

struct uint3 { unsigned x, y, z; };
struct uint2 { unsigned x, y; };
struct float2 { float x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };

extern "C" __attribute__((weak)) char __start_hloc_shared[], __stop_hloc_shared[];
extern "C" { __attribute__((visibility("default"))) int emulation_backwards = 0; }

namespace emulation {

constexpr size_t STACK = 256 << 10;
constexpr size_t SLOT = 64;                      // bytes that one lane may show the others

enum State { READY, AT_WARP_BARRIER, AT_BLOCK_BARRIER, AT_BARRIER, FINISHED };

struct Warp {
  alignas(16) unsigned char slots[2][32][SLOT];  // two, so that one barrier per exchange is enough
  unsigned alive, arrived;
};

/* A copy of 16 bytes on its way (cp.async): nothing has arrived before somebody waits for it. */
struct alignas(16) Sixteen { unsigned char bytes[16]; };
struct AsyncCopy { Sixteen *to; const Sixteen *from; };
/* A product of a warpgroup that has begun (wgmma): d += a b is done when somebody waits for it. add: to a sum, the
 * products of the elements in two words. words: of this thread's rows of a, where registers hold them. */
struct GroupProduct {
  void *d;
  unsigned long long a, b;
  unsigned columns;
  bool adds, across_a, across_b;
  void (*add)(void *, unsigned, unsigned);
  bool held;
  unsigned words[2][8];
};
struct Barrier;
constexpr size_t MOST_DYNAMIC = 227 << 10;
alignas(1024) static unsigned char dynamic_shared[MOST_DYNAMIC];
static unsigned dynamic_bytes;

struct Thread {
  std::deque<std::vector<AsyncCopy>> copies;      // groups; the last one is still open
  std::deque<std::vector<GroupProduct>> products; // likewise
  bool unfenced;                                  // has written to shared memory what wgmma and bulk copies may not see yet
  std::vector<unsigned> seen;                     // of each barrier (mbarrier): phases whose end this thread knows of
  std::vector<const void *> known_maps;           // tensor maps that it has made known to itself
  void *stack_pointer;
  uint3 index;
  unsigned lane, turn, any_turn;
  Warp *warp;
  State state;
#ifdef EMULATION_CHECKED
  EmulationThread checked;
#endif
#if !defined(__x86_64__)
  ucontext_t context;
#endif
};

struct Group128 {
  unsigned arrived, turn;
  bool any[2];
  std::vector<Thread *> waiting;
};

struct Block {
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  Group128 groups[8];
  std::deque<Thread *> ready;
  unsigned alive, arrived;
  bool any[3];
  void (*kernel)(void *const *);
  void *const *arguments;
  void *scheduler;
#if !defined(__x86_64__)
  ucontext_t scheduler_context;
#endif
};

static Block block;
static Thread *current;
static uint3 block_index, block_size, grid_size;

#if defined(__x86_64__)
/* Save what a call preserves, exchange stacks, restore. */
extern "C" void emulation_switch(void **save, void *other);
asm(".text\n.local emulation_switch\n.type emulation_switch,@function\nemulation_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n");
static __attribute__((noinline)) void leave() { emulation_switch(&current->stack_pointer, block.scheduler); }
static void enter(Thread &thread) { emulation_switch(&block.scheduler, thread.stack_pointer); }
#else
static __attribute__((noinline)) void leave() { swapcontext(&current->context, &block.scheduler_context); }
static void enter(Thread &thread) { swapcontext(&block.scheduler_context, &thread.context); }
#endif

/* What the checker needs to know: who runs, and how many barriers lie behind. */
static void show_checker(Thread *thread) {
#ifdef EMULATION_CHECKED
  emulation_thread = thread ? &thread->checked : nullptr;
#else
  (void)thread;
#endif
}

static void run_thread() {
  block.kernel(block.arguments);
  current->state = FINISHED;
  leave();
}

static void prepare_stack(Thread &thread, char *stack) {
#if defined(__x86_64__)
  void **top = reinterpret_cast<void **>(stack + STACK - 64);
  *--top = nullptr;
  *--top = reinterpret_cast<void *>(run_thread);
  thread.stack_pointer = top - 6;
#else
  getcontext(&thread.context);
  thread.context.uc_stack.ss_sp = stack;
  thread.context.uc_stack.ss_size = STACK;
  makecontext(&thread.context, run_thread, 0);
#endif
}

static void release(Thread &thread) {
  thread.state = READY;
  block.ready.push_back(&thread);
}

static void release_warp(Warp &warp) {
  if (warp.arrived < warp.alive || warp.arrived == 0) return;
  warp.arrived = 0;
  size_t first = 32 * (&warp - block.warps.data());
  for (size_t i = first; i < first + 32 && i < block.threads.size(); i++)
    if (block.threads[i].state == AT_WARP_BARRIER) release(block.threads[i]);
}

static void share_seen();
static void release_block() {
  if (block.arrived < block.alive || block.arrived == 0) return;
  block.arrived = 0;
  share_seen();
  for (Thread &thread : block.threads)
    if (thread.state == AT_BLOCK_BARRIER) release(thread);
}

static void warp_barrier() {
  current->state = AT_WARP_BARRIER;
  current->warp->arrived++;
  release_warp(*current->warp);
  leave();
}

static void block_barrier() {
#ifdef EMULATION_CHECKED
  current->checked.barriers++;
#endif
  current->state = AT_BLOCK_BARRIER;
  block.arrived++;
  release_block();
  leave();
}

/* Show `mine` to the warp; what lane n shows is at the returned address + n * SLOT until the next exchange but one. */
template <class T> static unsigned char *exchange(const T &mine) {
  static_assert(sizeof(T) <= SLOT, "a slot is too small");
  unsigned turn = current->turn ^= 1;
  std::memcpy(current->warp->slots[turn][current->lane], &mine, sizeof mine);
  warp_barrier();                                /* no order of memory: a shuffle gives none */
  return current->warp->slots[turn][0];
}

template <class T> static T shown_by(const unsigned char *slots, unsigned lane) {
  T value;
  std::memcpy(&value, slots + lane * SLOT, sizeof value);
  return value;
}

static void forget_barriers();
static bool run_block(char *stacks) {
  size_t count = block.threads.size();
  std::memset(__start_hloc_shared, 0xff, __stop_hloc_shared - __start_hloc_shared);
  std::memset(dynamic_shared, 0xff, dynamic_bytes);
  forget_barriers();
  std::memset(block.warps.data(), 0xff, block.warps.size() * sizeof(Warp));
  for (Warp &warp : block.warps) warp.alive = warp.arrived = 0;
  for (Group128 &group : block.groups) group = Group128();
  block.alive = count, block.arrived = 0;
  block.any[0] = block.any[1] = block.any[2] = false;
  block.ready.clear();
  for (size_t i = 0; i < count; i++) {
    Thread &thread = block.threads[i];
    unsigned x = i % block_size.x, y = i / block_size.x % block_size.y, z = i / block_size.x / block_size.y;
    thread = Thread();
    thread.index = {x, y, z}, thread.lane = i % 32, thread.warp = &block.warps[i / 32];
    thread.warp->alive++;
    prepare_stack(thread, stacks + i * STACK);
#ifdef EMULATION_CHECKED
    const unsigned number = (block_index.z * grid_size.y + block_index.y) * grid_size.x + block_index.x;
    thread.checked = {number, unsigned(i), unsigned(i / 32), 0, 0, {}, nullptr, 0};
#endif
  }
#ifdef EMULATION_CHECKED
  emulation_shared = __start_hloc_shared, emulation_shared_end = __stop_hloc_shared;
  emulation_dynamic = (char *)dynamic_shared, emulation_dynamic_end = emulation_dynamic + dynamic_bytes;
  emulation_stacks = stacks, emulation_stacks_end = stacks + 1024 * STACK;
  emulation_new_block();
#endif
  for (size_t i = 0; i < count; i++) release(block.threads[emulation_backwards ? count - 1 - i : i]);
  while (!block.ready.empty()) {
    current = block.ready.front();
    block.ready.pop_front();
    show_checker(current);
    enter(*current);
    show_checker(nullptr);
    if (current->state != FINISHED) continue;
    block.alive--;
    current->warp->alive--;
    release_warp(*current->warp);
    release_block();
  }
  return block.alive == 0;
}

static int launch(void (*kernel)(void *const *), void *const *arguments, const unsigned *grid, const unsigned *size,
                  unsigned shared) {
  static char *stacks = static_cast<char *>(mmap(nullptr, 1024 * STACK, PROT_READ | PROT_WRITE,
                                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  size_t count = size_t(size[0]) * size[1] * size[2];
  if (count == 0 || count > 1024 || shared > MOST_DYNAMIC) return 2;
  dynamic_bytes = shared;
#ifdef EMULATION_CHECKED
  emulation_launch++;
#endif
  block.kernel = kernel, block.arguments = arguments;
  block_size = {size[0], size[1], size[2]}, grid_size = {grid[0], grid[1], grid[2]};
  block.threads.resize(count), block.warps.resize((count + 31) / 32);
  for (unsigned z = 0; z < grid[2]; z++)
    for (unsigned y = 0; y < grid[1]; y++)
      for (unsigned x = 0; x < grid[0]; x++) {
        block_index = {x, y, z};
        if (!run_block(stacks)) return 1;
      }
#ifdef EMULATION_CHECKED
  emulation_end_launch();
#endif
  return 0;
}

template <class... Pointers, size_t... N>
static void call(void (*kernel)(Pointers...), void *const *arguments, std::index_sequence<N...>) {
  kernel(static_cast<Pointers>(arguments[N])...);
}
template <auto KERNEL> struct Caller;
template <class... Pointers, void (*KERNEL)(Pointers...)> struct Caller<KERNEL> {
  static void run(void *const *arguments) { call(KERNEL, arguments, std::index_sequence_for<Pointers...>()); }
};

}  // namespace emulation

#define HLOC_LAUNCHER(kernel)                                                                                         \
  extern "C" __attribute__((visibility("default")))                                                                   \
  int launch_##kernel(void *const *arguments, const unsigned *grid, const unsigned *size, unsigned shared) {          \
    return emulation::launch(emulation::Caller<kernel>::run, arguments, grid, size, shared);                          \
  }

#define threadIdx (emulation::current->index)
#define blockIdx emulation::block_index
#define blockDim emulation::block_size
#define gridDim emulation::grid_size
#define __syncthreads emulation::block_barrier
/* A barrier that tells whether any thread says yes. Flags take turns: a thread that is early sets the next one. */
static inline int __syncthreads_or(int yes) {
  using namespace emulation;
  const unsigned turn = current->any_turn++ % 3;
  block.any[turn] |= yes != 0;
  block_barrier();
  block.any[(turn + 2) % 3] = false;
  return block.any[turn];
}
static inline void __syncwarp(unsigned = ~0u) {
#ifdef EMULATION_CHECKED
  emulation::current->checked.warp_barriers++;
#endif
  emulation::warp_barrier();
}

template <class T> static inline T __shfl_xor_sync(unsigned, T value, int mask) {
  return emulation::shown_by<T>(emulation::exchange(value), emulation::current->lane ^ mask);
}
template <class T> static inline T __shfl_sync(unsigned, T value, int lane) {
  return emulation::shown_by<T>(emulation::exchange(value), lane & 31);
}
static inline unsigned __ballot_sync(unsigned, bool yes) {
  const unsigned char *slots = emulation::exchange(unsigned(yes));
  unsigned all = 0;
  for (unsigned lane = 0; lane < emulation::current->warp->alive; lane++) all |= emulation::shown_by<unsigned>(slots, lane) << lane;
  return all;
}
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
/* Atomics: the checker sees a read, which races with ordinary writes and not with other atomics. */
template <class T> static void emulation_atomic_look(T *at) {
#ifdef EMULATION_CHECKED
  emulation_look(at, sizeof(T));
#endif
}
#define EMULATED_ATOMIC(NAME, VALUE)                                                                                  \
  template <class T> __attribute__((no_sanitize("thread", "alignment"))) static T atomic##NAME(T *at, T value) {      \
    emulation_atomic_look(at);                                                                                        \
    const T old = *at;                                                                                                \
    *at = VALUE;                                                                                                      \
    return old;                                                                                                       \
  }
EMULATED_ATOMIC(Add, old + value)
EMULATED_ATOMIC(And, old & value)
EMULATED_ATOMIC(Or, old | value)
EMULATED_ATOMIC(Xor, old ^ value)
EMULATED_ATOMIC(Min, value < old ? value : old)
EMULATED_ATOMIC(Max, value > old ? value : old)
template <class T> __attribute__((no_sanitize("thread", "alignment"))) static T atomicCAS(T *at, T before, T next) {
  emulation_atomic_look(at);
  const T old = *at;
  if (old == before) *at = next;
  return old;
}
/* Where blocks meet. Counters are variables of the module, which the checker does not look at as memory. */
static inline void __threadfence() {
#ifdef EMULATION_CHECKED
  emulation_fence();
#endif
}
__attribute__((no_sanitize("thread", "alignment"))) static inline unsigned atomicInc(unsigned *at, unsigned most) {
#ifdef EMULATION_CHECKED
  emulation_arrive(at);
#endif
  const unsigned old = *at;
  *at = old >= most ? 0 : old + 1;
  return old;
}
static inline unsigned __float_as_uint(float x) { unsigned bits; std::memcpy(&bits, &x, 4); return bits; }
static inline float __uint_as_float(unsigned bits) { float x; std::memcpy(&x, &bits, 4); return x; }
static inline long long __double_as_longlong(double x) { long long bits; std::memcpy(&bits, &x, 8); return bits; }
static inline double __longlong_as_double(long long bits) { double x; std::memcpy(&x, &bits, 8); return x; }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline void sincospif(float x, float *sine, float *cosine) {
  double angle = std::remainder(double(x), 2.0) * 3.14159265358979323846;
  *sine = float(std::sin(angle)), *cosine = float(std::cos(angle));
}
static inline void sincospi(double x, double *sine, double *cosine) {
  double angle = std::remainder(x, 2.0) * 3.14159265358979323846;
  *sine = std::sin(angle), *cosine = std::cos(angle);
}

/* async.cuh */
static inline unsigned char *hloc_dynamic_shared() { return emulation::dynamic_shared; }
static inline void hloc_copy_16(void *to, const void *from, bool inside) {
  using namespace emulation;
  static const Sixteen zeros = {};
  if (current->copies.empty()) current->copies.emplace_back();
#ifdef EMULATION_CHECKED
  emulation_unwritten(static_cast<char *>(to), 16);
#else
  std::memset(to, 0xff, 16);
#endif
  current->copies.back().push_back({static_cast<Sixteen *>(to), inside ? static_cast<const Sixteen *>(from) : &zeros});
}
static inline void hloc_copy_commit() {
  auto &copies = emulation::current->copies;
  if (copies.empty()) copies.emplace_back();
  copies.emplace_back();
}
template <int N> static inline void hloc_copy_wait() {
  auto &copies = emulation::current->copies;
  while (copies.size() > N + 1) {
    for (const emulation::AsyncCopy &copy : copies.front()) *copy.to = *copy.from, emulation::current->unfenced = true;
    copies.pop_front();
  }
}
static inline float hloc_exp_fast(float x) { return std::exp2(x * 1.4426950408889634f); }
/* ldmatrix: what lane 8 m + r points to is row r of matrix m. */
static inline void hloc_load_matrices(unsigned *words, const void *row) {
  const unsigned lane = emulation::current->lane;
  const unsigned char *slots = emulation::exchange(row);
  for (unsigned m = 0; m < 4; m++)
    words[m] = static_cast<const unsigned *>(emulation::shown_by<const void *>(slots, 8 * m + lane / 4))[lane % 4];
}
static inline void hloc_load_transposed(unsigned *words, const void *row) {
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
static inline unsigned hloc_shared_address(const void *place) {
  return unsigned(static_cast<const unsigned char *>(place) - emulation::dynamic_shared);
}
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
__attribute__((no_sanitize("thread", "alignment"))) static void multiply_group(const GroupProduct &p) {
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
static void begin_group(const GroupProduct &p) {
  for (const Thread &thread : block.threads)
    if (thread.unfenced) return wrong("wgmma reads what no fence.proxy.async has shown to it");
  if ((!p.held && (p.a >> 62 != 1 || (p.a >> 49 & 7))) || p.b >> 62 != 1 || (p.b >> 49 & 7)) return wrong("wgmma with another swizzle");
  if (current->products.empty()) current->products.emplace_back();
  look_at_group(p);
  current->products.back().push_back(p);
}
}  // namespace emulation
namespace emulation {
static inline float wide_bf16(unsigned bits) { return __uint_as_float(bits << 16); }
static inline float wide_f16(unsigned bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023, whole = exponent ? mantissa | 1024 : mantissa;
  const float size = exponent == 31 ? (mantissa ? NAN : INFINITY) : std::ldexp(float(whole), (exponent ? exponent : 1) - 25);
  return bits >> 15 ? -size : size;
}
template <float (*WIDE)(unsigned)> struct Group {
  static void add(void *sum, unsigned x, unsigned y) {
    *static_cast<float *>(sum) += WIDE(x & 0xffff) * WIDE(y & 0xffff) + WIDE(x >> 16) * WIDE(y >> 16);
  }
  template <int N, int ADD, int A, int B> static void begin(float *d, unsigned long long a, unsigned long long b) {
    begin_group({d, a, b, N, ADD, A, B, add, false, {}});
  }
  /* Lane 4 g + t shows words t, t + 4 of rows g, g + 8. */
  template <int N, int B> static void begin_words(float *d, const unsigned *a, unsigned long long b) {
    struct Words { unsigned at[4]; } mine;
    std::memcpy(mine.at, a, sizeof mine);
    const unsigned char *slots = exchange(mine);
    GroupProduct p = {d, 0, b, N, true, false, B, add, true, {}};
    for (unsigned half = 0; half < 2; half++)
      for (unsigned k = 0; k < 8; k++)
        p.words[half][k] = shown_by<Words>(slots, current->lane / 4 * 4 + k % 4).at[k / 4 * 2 + half];
    begin_group(p);
  }
};
}  // namespace emulation
#define hloc_wgmma_bf16 emulation::Group<emulation::wide_bf16>::begin
#define hloc_wgmma_f16 emulation::Group<emulation::wide_f16>::begin
#define hloc_wgmma_bf16_words emulation::Group<emulation::wide_bf16>::begin_words
#define hloc_wgmma_f16_words emulation::Group<emulation::wide_f16>::begin_words
/* Of bytes: 32 of them along k where the others have 16 elements. What adds them is defined below. */
namespace emulation {
template <class Byte> static int dot_bytes(int sum, unsigned x, unsigned y);
static float dot_tf32(float sum, unsigned x, unsigned y);
template <class SUM, SUM DOT(SUM, unsigned, unsigned), int N>
static void begin_bytes(SUM *d, unsigned long long a, unsigned long long b) {
  begin_group({d, a, b, N, true, false, false, [](void *sum, unsigned x, unsigned y) {
    *static_cast<SUM *>(sum) = DOT(*static_cast<SUM *>(sum), x, y);
  }, false, {}});
}
}  // namespace emulation
template <int N> static void hloc_wgmma_s8(int *d, unsigned long long a, unsigned long long b) {
  emulation::begin_bytes<int, emulation::dot_bytes<signed char>, N>(d, a, b);
}
template <int N> static void hloc_wgmma_tf32(float *d, unsigned long long a, unsigned long long b) {
  emulation::begin_bytes<float, emulation::dot_tf32, N>(d, a, b);
}
static float hloc_f8e4m3fn_to_f32(unsigned char), hloc_f8e5m2_to_f32(unsigned char);
#define EMULATION_GROUP_OF_F8(A, B)                                                                                   \
  template <int N> static void hloc_wgmma_##A##_##B(float *d, unsigned long long a, unsigned long long b) {           \
    emulation::begin_group({d, a, b, N, true, false, false, [](void *sum, unsigned x, unsigned y) {                   \
      for (int n = 0; n < 32; n += 8)                                                                                 \
        *static_cast<float *>(sum) += hloc_##A##_to_f32(x >> n & 0xff) * hloc_##B##_to_f32(y >> n & 0xff);            \
    }, false, {}});                                                                                                   \
  }
EMULATION_GROUP_OF_F8(f8e4m3fn, f8e4m3fn)
EMULATION_GROUP_OF_F8(f8e4m3fn, f8e5m2)
EMULATION_GROUP_OF_F8(f8e5m2, f8e4m3fn)
EMULATION_GROUP_OF_F8(f8e5m2, f8e5m2)
static inline void hloc_fence_async() { emulation::current->unfenced = false; }
static inline void hloc_wgmma_begin() { emulation::warp_barrier(); }
static inline void hloc_wgmma_commit() {
  auto &products = emulation::current->products;
  if (products.empty()) products.emplace_back();
  products.emplace_back();
}
template <int N> static inline void hloc_wgmma_wait() {
  auto &products = emulation::current->products;
  while (products.size() > N + 1) {
    for (const emulation::GroupProduct &product : products.front())
      emulation::look_at_group(product), emulation::multiply_group(product);
    products.pop_front();
  }
  emulation::warp_barrier();
}
/* A barrier of 128 threads, which tells whether one of them says yes. */
static inline bool hloc_group_any(bool yes) {
  using namespace emulation;
  Group128 &group = block.groups[current->index.x / 128];
  const unsigned turn = group.turn;
  group.any[turn] |= yes;
#ifdef EMULATION_CHECKED
  current->checked.warp_barriers++;
#endif
  if (++group.arrived < 128) {
    current->state = AT_BARRIER;
    group.waiting.push_back(current);
    leave();
  } else {
    group.arrived = 0, group.turn ^= 1, group.any[group.turn] = false;
    for (Thread *thread : group.waiting) release(*thread);
    group.waiting.clear();
  }
  return group.any[turn];
}
template <int N> static inline void hloc_more_registers() {}
template <int N> static inline void hloc_fewer_registers() {}
#include "bulk.h"

/* mma.m16n8k16, m16n8k32, m16n8k8: lane 4 g + t holds word t (and t + 4) of A's rows g, g + 8 and of B's column g; D's
 * rows g, g + 8 and columns 2 t, 2 t + 1. dot: of the elements in two words. */
namespace emulation {
struct MmaPart { unsigned a[4], b[2]; };
template <class Sum, class Dot> static void mma(Sum *d, const unsigned *a, const unsigned *b, Dot dot) {
  MmaPart mine;
  std::memcpy(mine.a, a, 16), std::memcpy(mine.b, b, 8);
  const unsigned char *slots = exchange(mine);
  const unsigned group = current->lane / 4, pair = current->lane % 4;
  for (int q = 0; q < 4; q++)
    for (unsigned word = 0; word < 8; word++) {
      const unsigned row = group + q / 2 * 8, column = 2 * pair + q % 2;
      const unsigned x = shown_by<MmaPart>(slots, row % 8 * 4 + word % 4).a[row / 8 + word / 4 * 2];
      const unsigned y = shown_by<MmaPart>(slots, column * 4 + word % 4).b[word / 4];
      d[q] = dot(d[q], x, y);
    }
}
template <class Byte> static int dot_bytes(int sum, unsigned x, unsigned y) {
  for (int n = 0; n < 32; n += 8) sum = int(unsigned(sum) + unsigned(Byte(x >> n) * Byte(y >> n)));
  return sum;
}
static inline float dot_tf32(float sum, unsigned x, unsigned y) {   // the hardware does not look at the last 13 bits
  x &= 0xffffe000u, y &= 0xffffe000u;
  float a, b;
  std::memcpy(&a, &x, 4), std::memcpy(&b, &y, 4);
  return sum + a * b;
}
}  // namespace emulation
/* Macros, since scalar.h, which converts the elements, comes later. */
#define EMULATION_DOT_HALF(to_float)                                                                                  \
  [](float sum, unsigned x, unsigned y) {                                                                             \
    return sum + to_float(x & 0xffff) * to_float(y & 0xffff) + to_float(x >> 16) * to_float(y >> 16);                 \
  }
#define hloc_mma_bf16(d, a, b) emulation::mma(d, a, b, EMULATION_DOT_HALF(hloc_bf16_to_f32))
#define hloc_mma_f16(d, a, b) emulation::mma(d, a, b, EMULATION_DOT_HALF(hloc_f16_to_f32))
#define hloc_mma_s8(d, a, b) emulation::mma(d, a, b, emulation::dot_bytes<signed char>)
#define hloc_mma_tf32(d, a, b) emulation::mma(d, a, b, emulation::dot_tf32)
#define EMULATION_DOT_F8(A, B)                                                                                        \
  [](float sum, unsigned x, unsigned y) {                                                                             \
    for (int n = 0; n < 32; n += 8) sum += hloc_##A##_to_f32(x >> n & 0xff) * hloc_##B##_to_f32(y >> n & 0xff);       \
    return sum;                                                                                                       \
  }
#define hloc_mma_f8e4m3fn_f8e4m3fn(d, a, b) emulation::mma(d, a, b, EMULATION_DOT_F8(f8e4m3fn, f8e4m3fn))
#define hloc_mma_f8e4m3fn_f8e5m2(d, a, b) emulation::mma(d, a, b, EMULATION_DOT_F8(f8e4m3fn, f8e5m2))
#define hloc_mma_f8e5m2_f8e4m3fn(d, a, b) emulation::mma(d, a, b, EMULATION_DOT_F8(f8e5m2, f8e4m3fn))
#define hloc_mma_f8e5m2_f8e5m2(d, a, b) emulation::mma(d, a, b, EMULATION_DOT_F8(f8e5m2, f8e5m2))
