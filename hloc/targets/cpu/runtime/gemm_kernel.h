/* gemm_kernel.h: the register tile of a matmul, and packing of panels (template; gemm_tile.h includes it).
 *
 * In (macros): G(name) the instance's prefix; ELEMENT the operands' type in memory; UNIT the operand of one lane: one
 * element, or GROUP consecutive k packed in 32 bits (two bf16, four s8); SUM, VECTOR, LANES the sums' type and vector;
 * G(load) loads a vector of units, G(splat) spreads one unit, G(multiply_add)(sum, a, b); G(unit)(p, stride, count)
 * makes a unit from `count` <= GROUP elements, and where GROUP > 1 G(interleaved)(p, stride) LANES whole ones;
 * UNIT_IS_MEMORY: the bytes of GROUP consecutive elements are the unit.
 * Out: tables of kernels, by rows / 2 - 1: G(kernels), for packed A and B; G(kernels_a), for A in place; where
 * HLOC_READS_B (units are elements in memory) G(kernels_b) and G(kernels_ab), for B and for both in place,
 * G(kernels_half) and G(kernels_half_a), which read the first vector of each b_k units of B, packed or not; G(pack).
 *
 * Packed A: for each k-unit `rows` units (up to one vector may be written beyond the end). Packed B: for each k-unit
 * TILE_COLUMNS units. Both are padded with zeros.
 */
#if UNIT_IS_MEMORY && !defined(G_OFFSETS_A)
#define HLOC_READS_A 1
#else /* A is always packed */
#define HLOC_READS_A 0
#endif
#define HLOC_READS_B (UNIT_IS_MEMORY && GROUP == 1)
enum { G(TILE_COLUMNS) = 2 * LANES, G(ROWS_AHEAD) = 8, G(LONG_REST) = 4 };

#if !defined(G_AMX_MULTIPLY) /* gemm_amx.h has no tables */
/* sums[i][j] (+)= sum over k of a[i][k] b[k][j]; `start` (or NULL) is a row added to every row of the tile. For every
 * k a kernel with packed B prefetches two lines at `ahead`, which advances by ahead_step bytes: they are packed
 * next. */
/* a_row: row stride of A in place; else the stride along k, of packed A or of one in place across k. */
typedef void (*G(kernel))(long k, const UNIT* a, long a_row, const UNIT* b, long b_k, const SUM* start, SUM* sums,
                          long stride, int accumulate, const char* ahead, long ahead_step);

#define HLOC_BEGIN_ROW(i) VECTOR left##i = left, right##i = right;
#define HLOC_LOAD_ROW(i)                                                                                              \
  left##i += G(load_sum)(sums + (i) * stride), right##i += G(load_sum)(sums + (i) * stride + LANES);
#define HLOC_ADD_ROW(i)                                                                                               \
  {                                                                                                                   \
    const G(vector_unit) ai = G(splat)(a[(i) * row]);                                                                 \
    left##i = G(multiply_add)(left##i, ai, b0), right##i = G(multiply_add)(right##i, ai, b1);                         \
  }
#define HLOC_STORE_ROW(i)                                                                                             \
  G(store_sum)(sums + (i) * stride, left##i), G(store_sum)(sums + (i) * stride + LANES, right##i);
#define HLOC_KERNEL_OF(NAME)                                                                                          \
  static __attribute__((noinline)) void NAME(long k, const UNIT* restrict a, long a_row, const UNIT* restrict b,      \
                                             long b_k, const SUM* restrict start, SUM* restrict sums, long stride,    \
                                             int accumulate, const char* ahead, long ahead_step)
#define HLOC_DEFINE_KERNEL(ROWS, NAME, A_ROW, A_K, B_K, PREFETCH)                                                     \
  HLOC_KERNEL_OF(NAME) {                                                                                              \
    const long row = (A_ROW);                                                                                         \
    VECTOR left = {0}, right = {0};                                                                                   \
    (void)a_row, (void)b_k, (void)ahead, (void)ahead_step, (void)start;                                               \
    if (G_CORRECTS && start) left = G(load_sum)(start), right = G(load_sum)(start + LANES);                           \
    HLOC_EACH_##ROWS(HLOC_BEGIN_ROW)                                                                                  \
    if (accumulate) { HLOC_EACH_##ROWS(HLOC_LOAD_ROW) }                                                               \
    for (long p = 0; p < k; p++, a += (A_K), b += (B_K)) {                                                            \
      G(vector_unit) b0 = G(load)(b), b1 = G(load)(b + LANES);                                                        \
      HLOC_IN_REGISTER(b0);                                                                                           \
      HLOC_IN_REGISTER(b1);                                                                                           \
      PREFETCH                                                                                                        \
      HLOC_EACH_##ROWS(HLOC_ADD_ROW)                                                                                  \
    }                                                                                                                 \
    HLOC_EACH_##ROWS(HLOC_STORE_ROW)                                                                                  \
  }

/* A tile whose columns fill half of it, or less. */
#define HLOC_BEGIN_HALF(i) VECTOR left##i = {0};
#define HLOC_LOAD_HALF(i) left##i = G(load_sum)(sums + (i) * stride);
#define HLOC_ADD_HALF(i) left##i = G(multiply_add)(left##i, G(splat)(a[(i) * row]), bp);
#define HLOC_STORE_HALF(i) G(store_sum)(sums + (i) * stride, left##i);
#define HLOC_DEFINE_HALF(ROWS, NAME, A_ROW, A_K)                                                                      \
  HLOC_KERNEL_OF(NAME) {                                                                                              \
    const long row = (A_ROW);                                                                                         \
    (void)a_row, (void)start, (void)ahead, (void)ahead_step;                                                          \
    HLOC_EACH_##ROWS(HLOC_BEGIN_HALF)                                                                                 \
    if (accumulate) { HLOC_EACH_##ROWS(HLOC_LOAD_HALF) }                                                              \
    for (long p = 0; p < k; p++, a += (A_K), b += b_k) {                                                              \
      G(vector_unit) bp = G(load)(b);                                                                                 \
      HLOC_IN_REGISTER(bp);                                                                                           \
      HLOC_EACH_##ROWS(HLOC_ADD_HALF)                                                                                 \
    }                                                                                                                 \
    HLOC_EACH_##ROWS(HLOC_STORE_HALF)                                                                                 \
  }

/* Prefetches of B in place: lines of later rows, and, if vectors are whole lines, those of the next panel. */
#if HLOC_VECTOR_BYTES == 64
#define NEXT_PANEL __builtin_prefetch(b + 2 * LANES, 0, 2); __builtin_prefetch(b + 3 * LANES, 0, 2);
#else
#define NEXT_PANEL
#endif
#define LATER_ROWS __builtin_prefetch(b + G(ROWS_AHEAD) * b_k); __builtin_prefetch(b + G(ROWS_AHEAD) * b_k + LANES);
#define ROWS_ON LATER_ROWS NEXT_PANEL
#define AHEAD __builtin_prefetch(ahead, 0, 2); __builtin_prefetch(ahead + 64, 0, 2); ahead += ahead_step;
/* packed: A and B packed; strided_a: A in place, B packed; strided_b: A packed, B in place; strided: both in place */
#define HLOC_PACKED(ROWS) HLOC_DEFINE_KERNEL(ROWS, G(packed_##ROWS), 1, a_row, 2 * LANES, AHEAD)
#define HLOC_STRIDED_A(ROWS) HLOC_DEFINE_KERNEL(ROWS, G(strided_a_##ROWS), a_row, 1, 2 * LANES, AHEAD)
#define HLOC_STRIDED_B(ROWS) HLOC_DEFINE_KERNEL(ROWS, G(strided_b_##ROWS), 1, a_row, b_k, ROWS_ON)
#define HLOC_STRIDED(ROWS) HLOC_DEFINE_KERNEL(ROWS, G(strided_##ROWS), a_row, 1, b_k, ROWS_ON)
#define HLOC_HALF(ROWS) HLOC_DEFINE_HALF(ROWS, G(half_##ROWS), 1, a_row)
#define HLOC_HALF_STRIDED(ROWS) HLOC_DEFINE_HALF(ROWS, G(half_strided_##ROWS), a_row, 1)
#define HLOC_PACKED_NAME(ROWS) G(packed_##ROWS),
#define HLOC_STRIDED_A_NAME(ROWS) G(strided_a_##ROWS),
#define HLOC_STRIDED_B_NAME(ROWS) G(strided_b_##ROWS),
#define HLOC_STRIDED_NAME(ROWS) G(strided_##ROWS),
#define HLOC_HALF_NAME(ROWS) G(half_##ROWS),
#define HLOC_HALF_STRIDED_NAME(ROWS) G(half_strided_##ROWS),
#if HLOC_TILE_ROWS == 14
#define HLOC_ALL_ROWS(X) X(2) X(4) X(6) X(8) X(10) X(12) X(14)
#elif HLOC_TILE_ROWS == 12
#define HLOC_ALL_ROWS(X) X(2) X(4) X(6) X(8) X(10) X(12)
#else
#define HLOC_ALL_ROWS(X) X(2) X(4) X(6)
#endif

typedef G(kernel) G(kernel_table)[HLOC_TILE_ROWS / 2];
HLOC_ALL_ROWS(HLOC_PACKED)
static const G(kernel_table) G(kernels) = {HLOC_ALL_ROWS(HLOC_PACKED_NAME)};
#if HLOC_READS_A
HLOC_ALL_ROWS(HLOC_STRIDED_A)
static const G(kernel_table) G(kernels_a) = {HLOC_ALL_ROWS(HLOC_STRIDED_A_NAME)};
#endif
#if HLOC_READS_B
HLOC_ALL_ROWS(HLOC_STRIDED_B)
static const G(kernel_table) G(kernels_b) = {HLOC_ALL_ROWS(HLOC_STRIDED_B_NAME)};
HLOC_ALL_ROWS(HLOC_STRIDED)
static const G(kernel_table) G(kernels_ab) = {HLOC_ALL_ROWS(HLOC_STRIDED_NAME)};
HLOC_ALL_ROWS(HLOC_HALF)
static const G(kernel_table) G(kernels_half) = {HLOC_ALL_ROWS(HLOC_HALF_NAME)};
HLOC_ALL_ROWS(HLOC_HALF_STRIDED)
static const G(kernel_table) G(kernels_half_a) = {HLOC_ALL_ROWS(HLOC_HALF_STRIDED_NAME)};
#endif
#undef HLOC_BEGIN_ROW
#undef HLOC_LOAD_ROW
#undef HLOC_ADD_ROW
#undef HLOC_STORE_ROW
#undef HLOC_KERNEL_OF
#undef HLOC_BEGIN_HALF
#undef HLOC_LOAD_HALF
#undef HLOC_ADD_HALF
#undef HLOC_STORE_HALF
#undef HLOC_DEFINE_KERNEL
#undef HLOC_DEFINE_HALF
#undef HLOC_HALF
#undef HLOC_HALF_STRIDED
#undef HLOC_PACKED
#undef HLOC_STRIDED_A
#undef HLOC_STRIDED_B
#undef HLOC_STRIDED
#undef HLOC_PACKED_NAME
#undef HLOC_STRIDED_A_NAME
#undef HLOC_STRIDED_B_NAME
#undef HLOC_STRIDED_NAME
#undef HLOC_HALF_NAME
#undef HLOC_HALF_STRIDED_NAME
#undef HLOC_ALL_ROWS
#undef ROWS_ON
#undef LATER_ROWS
#undef NEXT_PANEL
#undef AHEAD
#endif

static inline __attribute__((unused)) void G(pack)(const ELEMENT* source, long line_stride, long k_stride, long lines,
                                                   long k, long width, UNIT* target);

/* LANES contiguous units, as 32-bit words; their GROUP elements are k_stride apart. */
HLOC_INLINE hloc_vu32 G(units_of_row)(const ELEMENT* from, long k_stride) {
#if GROUP == 1
  (void)k_stride;
  return (hloc_vu32)G(widen)(from);
#else
  return G(interleaved)(from, k_stride);
#endif
}

#define SQUARE (HLOC_VECTOR_BYTES / (int)sizeof(UNIT)) /* side of the blocks that vector registers transpose */
HLOC_INLINE void G(transpose)(const UNIT* source, long source_stride, UNIT* target, long target_stride) {
  if (sizeof(UNIT) == 8) hloc_transpose_tile_64(source, source_stride, target, target_stride);
  else hloc_transpose_tile_32(source, source_stride, target, target_stride);
}

/* A strip of `lines` lines along k, interleaved: target[p * width + line]. Missing lines are zero. */
static void G(pack_lines)(const ELEMENT* source, long line_stride, long k_stride, long lines, long k, long width,
                          UNIT* target) {
  const long units = (k + GROUP - 1) / GROUP, whole = k / GROUP / SQUARE * SQUARE;
  UNIT block[SQUARE * SQUARE] __attribute__((aligned(64))), transposed[SQUARE * SQUARE] __attribute__((aligned(64)));
  for (long line0 = 0; line0 < width; line0 += SQUARE) {
    long width0 = width - line0 < SQUARE ? width - line0 : SQUARE;
    long lines0 = lines - line0 < width0 ? lines - line0 : width0;
    if (lines0 <= 0 && HLOC_READS_B) return; /* only the first half of such a panel is read */
    if (lines0 < 0) lines0 = 0;
    for (long i = lines0; i < SQUARE; i++)
      for (long p = 0; p < SQUARE; p++) block[i * SQUARE + p] = (UNIT){0};
    for (long p0 = 0; p0 < whole; p0 += SQUARE) {
      const ELEMENT* from = source + line0 * line_stride + p0 * GROUP * k_stride;
      UNIT* to = target + p0 * width + line0;
      int in_place = UNIT_IS_MEMORY && k_stride == 1 && lines0 == SQUARE && line_stride % GROUP == 0;
      if (in_place && width0 == SQUARE) {
        G(transpose)((const UNIT*)(const void*)from, line_stride / GROUP, to, width);
        continue;
      }
      for (long i = 0; i < lines0; i++) {
        const ELEMENT* line = from + i * line_stride;
        UNIT* row = block + i * SQUARE;
        if (k_stride == 1 && UNIT_IS_MEMORY) __builtin_memcpy(row, line, SQUARE * sizeof(UNIT));
        else if (k_stride == 1) hloc_store_u32(row, G(units_of_row)(line, 1)); /* GROUP is 1 */
        else for (long p = 0; p < SQUARE; p++) row[p] = G(unit)(line + p * GROUP * k_stride, k_stride, GROUP);
      }
      if (width0 == SQUARE || width < SQUARE) { /* a narrow strip's rows spill into the next row, written later */
        G(transpose)(block, SQUARE, to, width);
        continue;
      }
      G(transpose)(block, SQUARE, transposed, SQUARE);
      for (long p = 0; p < SQUARE; p++)
        __builtin_memcpy(to + p * width, transposed + p * SQUARE, width0 * sizeof(UNIT));
    }
#if HLOC_VECTOR_BYTES == 64
    if (UNIT_IS_MEMORY && k_stride == 1 && k - whole * GROUP >= G(LONG_REST)) {
      const unsigned long long present = (1ull << (k - whole * GROUP) * sizeof(ELEMENT)) - 1;
      const ELEMENT* from = source + line0 * line_stride + whole * GROUP;
      for (long i = 0; i < lines0; i++)
        hloc_store_u32(block + i * SQUARE, hloc_some_bytes(from + i * line_stride, present));
      G(transpose)(block, SQUARE, transposed, SQUARE);
      for (long p = whole; p < units; p++) {
        const UNIT* row = transposed + (p - whole) * SQUARE;
        if (width0 == SQUARE || width < SQUARE) hloc_store_u32(target + p * width + line0, hloc_load_u32(row));
        else __builtin_memcpy(target + p * width + line0, row, width0 * sizeof(UNIT));
      }
      continue;
    }
#endif
    for (long p = whole; p < units; p++)
      for (long i = 0; i < width0; i++) {
        long count = k - p * GROUP < GROUP ? k - p * GROUP : GROUP;
        const ELEMENT* from = source + (line0 + i) * line_stride + p * GROUP * k_stride;
        target[p * width + line0 + i] = i < lines0 ? G(unit)(from, k_stride, count) : (UNIT){0};
      }
  }
}
#undef SQUARE

/* Copies rows along the lines by vectors that may read some of the next row; returns the number of copied rows: the
 * last ones remain. Elements written beyond a row are overwritten by the next one, or are in the half of a panel
 * that is not read. */
static long G(pack_vectors)(const ELEMENT* source, long k_stride, long lines, long k, long width, UNIT* target) {
  static const unsigned char kept[2 * HLOC_VECTOR_BYTES] = {[0 ... HLOC_VECTOR_BYTES - 1] = 255};
  const long last = (lines - 1) / LANES * LANES, left = last + LANES - lines;
  if (k_stride < 1) return 0;
  const long whole = (k - (left + k_stride - 1) / k_stride) / GROUP * GROUP;
  const hloc_vu32 mask = hloc_load_u32(kept + left * sizeof(UNIT));
  for (long p = 0; p < whole; p += GROUP, source += GROUP * k_stride, target += width) {
    const ELEMENT* later = source + G(ROWS_AHEAD) * GROUP * k_stride;
    HLOC_UNROLL for (int q = 0; q < GROUP; q++, later += k_stride)
      __builtin_prefetch(later), __builtin_prefetch(later + 64 / sizeof(ELEMENT));
    if (last) hloc_store_u32(target, G(units_of_row)(source, k_stride));
    else if (!HLOC_READS_B && width == 2 * LANES) hloc_store_u32(target + LANES, (hloc_vu32){0});
    hloc_store_u32(target + last, G(units_of_row)(source + last, k_stride) & mask);
  }
  return whole < 0 ? 0 : whole;
}
static void G(pack_rows)(const ELEMENT* source, long k_stride, long lines, long k, long width, UNIT* target) {
  const long first = G(pack_vectors)(source, k_stride, lines, k, width, target);
  source += first * k_stride, target += first / GROUP * width;
  for (long p = first; p < k; p += GROUP, source += GROUP * k_stride, target += width) {
    const long count = k - p < GROUP ? k - p : GROUP;
    for (long i = 0; i < lines; i++) target[i] = G(unit)(source + i, k_stride, count);
    for (long i = lines; i < width; i++) target[i] = (UNIT){0};
  }
}

static inline void G(pack)(const ELEMENT* source, long line_stride, long k_stride, long lines, long k, long width,
                           UNIT* target) {
  if (line_stride == 1 && k_stride != 1) G(pack_rows)(source, k_stride, lines, k, width, target);
  else G(pack_lines)(source, line_stride, k_stride, lines, k, width, target);
}
