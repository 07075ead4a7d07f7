/* gemm_amx.h: the register tile of a matmul with AMX, whose registers are tiles: 16 rows of 64 bytes each (template;
 * gemm_tile.h includes it if the CPU has AMX and the system lets programs use it: HLOC_AMX).
 *
 * In (macros): those of gemm_kernel.h; G_AMX_MULTIPLY, the instruction that adds the products of two tiles of units.
 * Out: G(amx_tile), instead of tables of kernels; G(pack_rows_of_a), and G(row_units), the row stride of its result in
 * units; hloc_ask_for_amx(), hloc_shape_amx(rows), hloc_release_amx().
 *
 * A is stored by rows: in place, or packed, with each row padded with zeros to a multiple of DEEP units. B is packed as
 * for other kernels: the two halves of its rows are tiles. If k is not a multiple, the rests of both are copied and
 * padded with zeros. An instruction multiplies 16 x 16 x 16 units; a vector instruction, 16.
 */
#if !defined(HLOC_GEMM_AMX_H)
#define HLOC_GEMM_AMX_H
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#if !defined(HLOC_XTILEDATA)
#define HLOC_XTILEDATA 18 /* Linux's number of the CPU feature */
#endif
enum { HLOC_DEEP = 16 }; /* units of a tile's row; rows of a tile */

/* The system saves threads' tiles, 8 KiB each, only for processes that have requested it. Returns whether it does for
 * this one. */
HLOC_INLINE int hloc_ask_for_amx(void) {
  enum { UNKNOWN, GRANTED, DENIED, ARCH_REQ_XCOMP_PERM = 0x1023 };
  static int answer; /* other threads would get the same */
  int known = __atomic_load_n(&answer, __ATOMIC_RELAXED);
  if (known == UNKNOWN) {
    known = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, HLOC_XTILEDATA) ? DENIED : GRANTED;
    __atomic_store_n(&answer, known, __ATOMIC_RELAXED);
  }
  return known == GRANTED;
}

/* Tiles 0 and 1: sums; 2: A, both of so many rows; 3 and 4: B. */
HLOC_INLINE void hloc_shape_amx(long rows) {
  struct {
    unsigned char palette, start, unused[14];
    unsigned short bytes[16];
    unsigned char rows[16];
  } shapes = {.palette = 1};
  for (int tile = 0; tile < 5; tile++) shapes.bytes[tile] = 64, shapes.rows[tile] = tile < 3 ? rows : HLOC_DEEP;
  __asm__ volatile("ldtilecfg %0" : : "m"(shapes));
}
HLOC_INLINE void hloc_release_amx(void) { __asm__ volatile("tilerelease"); }

#define HLOC_LOAD_TILE(TILE, FROM, BYTES)                                                                             \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #TILE : : "r"(FROM), "r"((long)(BYTES)) : "memory")
#define HLOC_STORE_TILE(TILE, TO, BYTES)                                                                              \
  __asm__ volatile("tilestored %%tmm" #TILE ", (%0,%1,1)" : : "r"(TO), "r"((long)(BYTES)) : "memory")
#define HLOC_CLEAR_TILE(TILE) __asm__ volatile("tilezero %%tmm" #TILE : :)
#define HLOC_MULTIPLY_TILES(HOW, SUM, A, B) __asm__ volatile(HOW " %%tmm" #B ", %%tmm" #A ", %%tmm" #SUM : :)
#endif

static long G(row_units)(long k) { return (G(units)(k) + HLOC_DEEP - 1) / HLOC_DEEP * HLOC_DEEP; }

/* Rows of A whose elements with the same k are contiguous. */
static void G(pack_across)(const ELEMENT* source, long k_stride, long k, UNIT* target) {
  UNIT block[HLOC_DEEP * HLOC_DEEP] __attribute__((aligned(64)));
  const long stride = G(row_units)(k);
  for (long p0 = 0; p0 < stride; p0 += HLOC_DEEP) {
    for (long p = 0; p < HLOC_DEEP; p++) {
      const long left = k - (p0 + p) * GROUP;
      const ELEMENT* from = source + (p0 + p) * GROUP * k_stride;
      UNIT* to = block + p * HLOC_DEEP;
      if (left >= GROUP) hloc_store_u32(to, G(units_of_row)(from, k_stride));
      else for (long i = 0; i < HLOC_DEEP; i++) to[i] = left > 0 ? G(unit)(from + i, k_stride, left) : 0;
    }
    hloc_transpose_tile_32(block, HLOC_DEEP, target + p0, stride);
  }
}
static void G(pack_rows_of_a)(const ELEMENT* source, long row_stride, long k_stride, long rows, long k,
                              UNIT* target) {
  if (row_stride == 1 && k_stride != 1 && rows == HLOC_DEEP) {
    G(pack_across)(source, k_stride, k, target);
    return;
  }
  for (long i = 0; i < rows; i++, source += row_stride, target += G(row_units)(k)) {
    memset(target + k / GROUP, 0, (G(row_units)(k) - k / GROUP) * sizeof(UNIT));
    if (k_stride == 1) memcpy(target, source, k * sizeof(ELEMENT));
    else
      for (long p = 0; p < k; p += GROUP)
        target[p / GROUP] = G(unit)(source + p * k_stride, k_stride, k - p < GROUP ? k - p : GROUP);
  }
}

HLOC_INLINE void G(amx_step)(const void* a, long a_bytes, const UNIT* b) {
  HLOC_LOAD_TILE(2, a, a_bytes);
  HLOC_LOAD_TILE(3, b, 2 * LANES * sizeof(UNIT));
  HLOC_LOAD_TILE(4, b + LANES, 2 * LANES * sizeof(UNIT));
  HLOC_MULTIPLY_TILES(G_AMX_MULTIPLY, 0, 2, 3);
  HLOC_MULTIPLY_TILES(G_AMX_MULTIPLY, 1, 2, 4);
}
/* sums[i][j] (+)= sum over k units of a[i][k] b[k][j], for the number of rows set by hloc_shape_amx. */
static void G(amx_tile)(long rows, long k, const UNIT* a, long a_row, const UNIT* b, SUM* sums, long stride,
                        int accumulate, const char* ahead, long ahead_step) {
  if (accumulate) {
    HLOC_LOAD_TILE(0, sums, stride * sizeof(SUM));
    HLOC_LOAD_TILE(1, sums + LANES, stride * sizeof(SUM));
  } else {
    HLOC_CLEAR_TILE(0);
    HLOC_CLEAR_TILE(1);
  }
  long p = 0;
  for (; p + HLOC_DEEP <= k; p += HLOC_DEEP) {
    G(amx_step)(a + p, a_row * sizeof(UNIT), b + p * 2 * LANES);
    for (int q = 0; ahead_step && q < HLOC_DEEP; q++, ahead += ahead_step)
      __builtin_prefetch(ahead, 0, 2), __builtin_prefetch(ahead + 64, 0, 2);
  }
  if (p < k) {
    UNIT last_a[HLOC_DEEP * HLOC_DEEP] __attribute__((aligned(64))) = {0};
    UNIT last_b[HLOC_DEEP * 2 * LANES] __attribute__((aligned(64))) = {0};
    for (long i = 0; i < rows; i++) memcpy(last_a + i * HLOC_DEEP, a + i * a_row + p, (k - p) * sizeof(UNIT));
    memcpy(last_b, b + p * 2 * LANES, (k - p) * 2 * LANES * sizeof(UNIT));
    G(amx_step)(last_a, HLOC_DEEP * sizeof(UNIT), last_b);
  }
  HLOC_STORE_TILE(0, sums, stride * sizeof(SUM));
  HLOC_STORE_TILE(1, sums + LANES, stride * sizeof(SUM));
}
/* The same if the system refuses at run time: for a program that was compiled on another machine. */
static void G(tile_without_amx)(long rows, long k, const UNIT* a, long a_row, const UNIT* b, SUM* sums, long stride,
                                int accumulate) {
  for (long i = 0; i < rows; i++) {
    SUM* out = sums + i * stride;
    VECTOR left = {0}, right = {0};
    if (accumulate) left = G(load_sum)(out), right = G(load_sum)(out + LANES);
    for (long p = 0; p < k; p++) {
      const G(vector_unit) ai = G(splat)(a[i * a_row + p]);
      left = G(multiply_add)(left, ai, G(load)(b + p * 2 * LANES));
      right = G(multiply_add)(right, ai, G(load)(b + p * 2 * LANES + LANES));
    }
    G(store_sum)(out, left);
    G(store_sum)(out + LANES, right);
  }
}
