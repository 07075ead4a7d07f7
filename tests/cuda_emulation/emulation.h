/* emulation.h: lets a C++ compiler compile the CUDA C that hloc emits, unchanged, to be run on the CPU.
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
 *
 * What does not depend on the kernel stands in machine.cpp (threads, barriers, launches) and engines.cpp (copies, wgmma),
 * which are compiled once for all images.
 */
#pragma once
#ifdef EMULATION_CHECKED
#include "checks.h"
#endif
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

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

namespace emulation {

constexpr size_t SLOT = 64;                      // bytes that one lane may show the others

struct Warp {
  alignas(16) unsigned char slots[2][32][SLOT];  // two, so that one barrier per exchange is enough
  unsigned alive, arrived;
};

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
constexpr size_t MOST_DYNAMIC = 227 << 10;
extern unsigned char dynamic_shared[MOST_DYNAMIC];
extern unsigned dynamic_bytes;

/* What CUDA C asks of the thread that runs; machine.h has the rest. */
struct Running {
  uint3 index;
  unsigned lane, turn;
  Warp *warp;
};
extern Running *current;
extern uint3 block_index, block_size, grid_size;

void warp_barrier();
void block_barrier();
int launch(void (*kernel)(void *const *), void *const *arguments, const unsigned *grid, const unsigned *size, unsigned shared);

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

template <class... Pointers, size_t... N>
static void call(void (*kernel)(Pointers...), void *const *arguments, std::index_sequence<N...>) {
  kernel(static_cast<Pointers>(arguments[N])...);
}
template <auto KERNEL> struct Caller;
template <class... Pointers, void (*KERNEL)(Pointers...)> struct Caller<KERNEL> {
  static constexpr int COUNT = sizeof...(Pointers);
  static void run(void *const *arguments) { call(KERNEL, arguments, std::index_sequence_for<Pointers...>()); }
};

}  // namespace emulation

#define HLOC_LAUNCHER(kernel)                                                                                         \
  extern "C" __attribute__((visibility("default")))                                                                   \
  int launch_##kernel(void *const *arguments, const unsigned *grid, const unsigned *size, unsigned shared) {          \
    return emulation::launch(emulation::Caller<kernel>::run, arguments, grid, size, shared);                          \
  }                                                                                                                   \
  extern "C" __attribute__((visibility("default"))) int arguments_##kernel = emulation::Caller<kernel>::COUNT;

#define threadIdx (emulation::current->index)
#define blockIdx emulation::block_index
#define blockDim emulation::block_size
#define gridDim emulation::grid_size
#define __syncthreads emulation::block_barrier
int __syncthreads_or(int yes);                   /* a barrier that tells whether any thread says yes */
void __syncwarp(unsigned = ~0u);

template <class T> static inline T __shfl_xor_sync(unsigned, T value, int mask) {
  return emulation::shown_by<T>(emulation::exchange(value), emulation::current->lane ^ mask);
}
template <class T> static inline T __shfl_sync(unsigned, T value, int lane) {
  return emulation::shown_by<T>(emulation::exchange(value), lane & 31);
}
unsigned __ballot_sync(unsigned, bool yes);
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

/* early.cuh */
static inline void hloc_let_next_start() {}
#ifdef EMULATION_CHECKED
static inline void hloc_await_previous() { emulation_await(); }
static inline void hloc_prefetch_line(const char *line) { emulation_look(line, 1); }
#else
static inline void hloc_await_previous() {}
static inline void hloc_prefetch_line(const char *) {}
#endif

/* async.cuh */
static inline unsigned char *hloc_dynamic_shared() { return emulation::dynamic_shared; }
void hloc_copy_16(void *to, const void *from, bool inside);
void hloc_copy_commit();
namespace emulation { void wait_copies(size_t most); }
template <int N> static inline void hloc_copy_wait() { emulation::wait_copies(N); }
static inline float hloc_exp2_fast(float x) { return std::exp2(x); }
static inline float hloc_reciprocal_fast(float x) { return 1.0f / x; }
void hloc_load_matrices(unsigned *words, const void *row);
void hloc_load_transposed(unsigned *words, const void *row);

/* wgmma.cuh */
static inline unsigned hloc_shared_address(const void *place) {
  return unsigned(static_cast<const unsigned char *>(place) - emulation::dynamic_shared);
}
namespace emulation {
void begin_group(const GroupProduct &product);
void wait_products(size_t most);
static inline float wide_bf16(unsigned bits) { return __uint_as_float(bits << 16); }
static inline float wide_f16(unsigned bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023, whole = exponent ? mantissa | 1024 : mantissa;
  const float size = exponent == 31 ? (mantissa ? NAN : INFINITY) : std::ldexp(float(whole), (exponent ? exponent : 1) - 25);
  return bits >> 15 ? -size : size;
}
/* A product whose words of a are in registers: lane 4 g + t shows words t, t + 4 of rows g, g + 8. */
static void begin_words(void *d, const unsigned *a, unsigned long long b, unsigned columns, bool across,
                        void (*add)(void *, unsigned, unsigned)) {
  struct Words { unsigned at[4]; } mine;
  std::memcpy(mine.at, a, sizeof mine);
  const unsigned char *slots = exchange(mine);
  GroupProduct p = {d, 0, b, columns, true, false, across, add, true, {}};
  for (unsigned half = 0; half < 2; half++)
    for (unsigned k = 0; k < 8; k++)
      p.words[half][k] = shown_by<Words>(slots, current->lane / 4 * 4 + k % 4).at[k / 4 * 2 + half];
  begin_group(p);
}
template <float (*WIDE)(unsigned)> struct Group {
  static void add(void *sum, unsigned x, unsigned y) {
    *static_cast<float *>(sum) += WIDE(x & 0xffff) * WIDE(y & 0xffff) + WIDE(x >> 16) * WIDE(y >> 16);
  }
  template <int N, int ADD, int A, int B> static void begin(float *d, unsigned long long a, unsigned long long b) {
    begin_group({d, a, b, N, ADD, A, B, add, false, {}});
  }
  template <int N, int B> static void begin_words(float *d, const unsigned *a, unsigned long long b) {
    emulation::begin_words(d, a, b, N, B, add);
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
template <int N> static void hloc_wgmma_tf32_words(float *d, const unsigned *a, unsigned long long b) {
  emulation::begin_words(d, a, b, N, false, [](void *sum, unsigned x, unsigned y) {
    *static_cast<float *>(sum) = emulation::dot_tf32(*static_cast<float *>(sum), x, y);
  });
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
void hloc_fence_async();
static inline void hloc_wgmma_begin() { emulation::warp_barrier(); }
void hloc_wgmma_commit();
template <int N> static inline void hloc_wgmma_wait() { emulation::wait_products(N); }
namespace emulation {
void named_barrier(int n, unsigned threads, bool waits);
}
template <int THREADS> void hloc_named_wait(int n) { emulation::named_barrier(n, THREADS, true); }
template <int THREADS> void hloc_named_arrive(int n) { emulation::named_barrier(n, THREADS, false); }
bool hloc_group_any(bool yes);                   /* a barrier of 128 threads, which tells whether one of them says yes */
template <int N> static inline void hloc_more_registers() {}
template <int N> static inline void hloc_fewer_registers() {}

/* bulk.cuh */
void hloc_barrier_make(unsigned long long *place, int count);
void hloc_barrier_arrive(unsigned long long *place);
void hloc_barrier_expect(unsigned long long *place, int bytes);
void hloc_barrier_wait(unsigned long long *place, int parity);
void hloc_bulk_copy(void *to, const void *map, int along, int line, int inner, int outer, unsigned long long *barrier);
void hloc_bulk_known(const void *map);

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
