/* warpgroup.cuh: a tile of a matrix product by the instructions of sm_90a that read operands from shared memory.
 *
 * In: pipeline.cuh, wgmma.cuh, bulk.cuh; a struct S as pipeline.cuh says, with WM = BM / 16 warps, WN = 1, BN = 64, 128
 * or 256, lines of 128 bytes of k. Four warps multiply 64 rows. Group: hloc_group_<numbers>. Out:
 *   hloc_tile_warpgroup   what hloc_tile_pipeline does, operands copied by all threads: STAGES - 2 steps ahead, since
 *                         the products of one step may go on while the next one's begin
 *   hloc_tile_bulk        operands copied by the bulk copy engine, which one more warp keeps busy, into the next tile
 *                         of the block too; BULK: bytes of an element. hloc_gemm(maps, tile, finish) walks over such
 *                         tiles. f32: the left operand is rounded to TF32 in registers, the right one has been before
 *                         (lines.cuh). PACKED_A, PACKED_B: the operand was packed as lines along k
 *   hloc_begin_panels, hloc_begin_weighted, hloc_give_parts, hloc_turns, hloc_bulk_walk   of attention, its gradients
 */
#ifndef HLOC_WARPGROUP_CUH
#define HLOC_WARPGROUP_CUH

#define HLOC_GROUP_OF(T)                                                                                              \
  struct hloc_group_##T {                                                                                             \
    static constexpr bool ROUNDS = false, SHORT = false;                                                              \
    template <int COLUMNS, int ACROSS_A, int ACROSS_B, int ADD = 1>                                                   \
    HLOC_NUMBERS_FN void multiply(float *d, unsigned long long a, unsigned long long b) {                             \
      hloc_wgmma_##T<COLUMNS, ADD, ACROSS_A, ACROSS_B>(d, a, b);                                                      \
    }                                                                                                                 \
    template <int COLUMNS, int ACROSS_B>                                                                              \
    HLOC_NUMBERS_FN void multiply_words(float *d, const unsigned *a, unsigned long long b) {                          \
      hloc_wgmma_##T##_words<COLUMNS, ACROSS_B>(d, a, b);                                                             \
    }                                                                                                                 \
  };
HLOC_GROUP_OF(bf16)
HLOC_GROUP_OF(f16)
/* FEW_BITS: sums have 14 bits or so. Those of each step are added up in f32. */
#define HLOC_GROUP_OF_BYTES(T, SUM, FEW_BITS)                                                                         \
  struct hloc_group_##T {                                                                                             \
    static constexpr bool ROUNDS = false, SHORT = FEW_BITS;                                                           \
    template <int COLUMNS, int ACROSS_A, int ACROSS_B>                                                                \
    HLOC_NUMBERS_FN void multiply(SUM *d, unsigned long long a, unsigned long long b) {                               \
      static_assert(!ACROSS_A && !ACROSS_B, "bytes are read along k");                                                \
      hloc_wgmma_##T<COLUMNS>(d, a, b);                                                                               \
    }                                                                                                                 \
  };
HLOC_GROUP_OF_BYTES(s8, int, false)
HLOC_GROUP_OF_BYTES(f8e4m3fn_f8e4m3fn, float, true)
HLOC_GROUP_OF_BYTES(f8e4m3fn_f8e5m2, float, true)
HLOC_GROUP_OF_BYTES(f8e5m2_f8e4m3fn, float, true)
HLOC_GROUP_OF_BYTES(f8e5m2_f8e5m2, float, true)
/* Operands are rounded before, since the instruction does not look at the last bits. */
struct hloc_group_tf32 {
  static constexpr bool ROUNDS = true, SHORT = false;
  template <int COLUMNS, int ACROSS_A, int ACROSS_B>
  HLOC_NUMBERS_FN void multiply(float *d, unsigned long long a, unsigned long long b) {
    static_assert(!ACROSS_A && !ACROSS_B, "f32 are read along k");
    hloc_wgmma_tf32<COLUMNS>(d, a, b);
  }
  template <int COLUMNS> HLOC_NUMBERS_FN void multiply_words(float *d, const unsigned *a, unsigned long long b) {
    hloc_wgmma_tf32_words<COLUMNS>(d, a, b);
  }
};

/* A descriptor of rows from the row-th on, and of the k-th 32 bytes of k. */
template <class Operand> HLOC_FN unsigned long long hloc_described(const unsigned char *tile, int row, int k) {
  if constexpr (Operand::ALONG) return hloc_describe(tile + row * 128 + k * 32, 16, 1024);
  else return hloc_describe(tile + row / 64 * Operand::LINES * 128 + k * 2048, Operand::LINES * 128, 1024);
}

/* Begin the products of one step, 64 rows from `top` on. */
template <int COLUMNS, class Group, class Left, class Right, class Sum>
HLOC_FN void hloc_multiply_step(Sum *sums, const unsigned char *tile, int top) {
  hloc_wgmma_begin();
#pragma unroll
  for (int k = 0; k < 4; k++)
    Group::template multiply<COLUMNS, !Left::ALONG, !Right::ALONG>(
        sums, hloc_described<Left>(tile, top, k), hloc_described<Right>(tile + Left::BYTES, 0, k));
  hloc_wgmma_commit();
}

/* All products of one step, added to sums that have more bits than the instruction's. Another group of warps may
 * multiply meanwhile. */
template <int COLUMNS, class Group, class Left, class Right, class Sum>
HLOC_FN void hloc_multiply_promoted(Sum *sums, const unsigned char *tile, int top) {
  Sum step[1][COLUMNS / 8][4];
  hloc_clear(step);
  hloc_multiply_step<COLUMNS, Group, Left, Right>(&step[0][0][0], tile, top);
  hloc_wgmma_wait<0>();
#pragma unroll
  for (int n = 0; n < COLUMNS / 2; n++) sums[n] += step[0][n / 4][n % 4];
}

/* This warp's words of the k-th 8 elements of k of a tile of f32, rounded to TF32, as the instruction takes them: 16
 * rows from `row` on. Across lines, the order of k is that of hloc_paired (lines.cuh). */
template <class Operand> HLOC_FN void hloc_round_words(unsigned *words, const unsigned char *tile, int row, int k) {
  const int lane = threadIdx.x % 32;
  if constexpr (Operand::ALONG) {
    const int line = row + lane / 8 % 2 * 8 + lane % 8;
    hloc_load_matrices(words, tile + line * 128 + ((k * 2 + lane / 16) ^ line % 8) * 16);
  } else
#pragma unroll
    for (int q = 0; q < 4; q++) {
      const int r = row + q % 2 * 8 + lane / 4, line = k * 8 + lane % 4 * 2 + q / 2;
      words[q] = *(const unsigned *)(tile + (r / 32 * Operand::LINES + line) * 128 + (r % 32 / 4 ^ line % 8) * 16 +
                                     r % 4 * 4);
    }
#pragma unroll
  for (int q = 0; q < 4; q++) words[q] = hloc_f32_to_tf32(hloc_from_bits_f32(words[q]));
}
/* The products of one step, 64 rows from `top` on: words are loaded while those before them are multiplied. The last
 * products go on. */
template <int COLUMNS, class Group, class Left, class Right, class Sum>
HLOC_FN void hloc_multiply_rounded(Sum *sums, const unsigned char *tile, int top) {
  unsigned words[2][4];
#pragma unroll
  for (int k = 0; k < 4; k++) {
    hloc_round_words<Left>(words[k % 2], tile, top + threadIdx.x / 32 % 4 * 16, k);
    hloc_wgmma_begin();
    Group::template multiply_words<COLUMNS>(sums, words[k % 2], hloc_described<Right>(tile + Left::BYTES, 0, k));
    hloc_wgmma_commit();
    hloc_wgmma_wait<1>();
  }
}

template <class S, class Sum, class T, class Group, class A, class B, class Finish>
HLOC_FN void hloc_tile_warpgroup(const A &a, const B &b, long depth, unsigned char *memory, Finish finish) {
  typedef hloc_steps<S, T, A, B, S::WM * 32> Steps;
  constexpr int AHEAD = S::STAGES - 2;
  static_assert(S::BN % 64 == 0 && S::BM == S::WM * 16 && S::BM % 64 == 0 && S::BK * sizeof(T) == 128,
                "a tile's shape");
  static_assert(AHEAD >= 1, "three steps in shared memory at least");
  const int warp = threadIdx.x / 32;
  Sum sums[1][S::BN / 8][4];
  hloc_clear(sums);
  Steps steps(a, b, depth, memory);
  steps.template begin<AHEAD>();
  for (int step = 0; step < steps.count; step++) {
    hloc_copy_wait<AHEAD - 1>();
    if constexpr (Group::ROUNDS) steps.round(step);
    hloc_fence_async();
    __syncthreads(); /* this step has arrived, and all have multiplied the last but one */
    steps.copy(step + AHEAD);
    typedef typename Steps::Left Left;
    typedef typename Steps::Right Right;
    if constexpr (Group::SHORT)
      hloc_multiply_promoted<S::BN, Group, Left, Right>(&sums[0][0][0], steps.tile(step), warp / 4 * 64);
    else hloc_multiply_step<S::BN, Group, Left, Right>(&sums[0][0][0], steps.tile(step), warp / 4 * 64);
    hloc_wgmma_wait<1>();
  }
  hloc_wgmma_wait<0>();
  hloc_copy_wait<0>();
  __syncthreads(); /* all have multiplied the last step */
  hloc_finish_tile<S::BN, S::BATCHED>(sums, (Sum *)memory + warp * hloc_slab<S::BN>::SIZE, warp * 16, 0, finish);
}

template <class S, class Sum, class Group, class Ring, class A, class B, class Finish>
HLOC_FN void hloc_tile_bulk(Ring &ring, const A &a, const B &b, long depth, Finish finish) {
  static_assert(S::BN % 64 == 0 && S::BM == S::WM * 16 && S::BM % 64 == 0 && S::BK * S::BULK == 128, "a tile's shape");
  constexpr int AT_ONCE = 32; /* columns: those of all would take the memory of a step */
  const int warp = threadIdx.x / 32, steps = (depth + S::BK - 1) / S::BK;
  if (warp == S::WM) {
    if (threadIdx.x % 32 == 0)
      for (int step = 0; step < steps; step++, ring.n++) {
        ring.begin(A::COPIED + B::COPIED);
        a.copy(ring.tile(), step * S::BK, ring.arrived());
        b.copy(ring.tile() + A::BYTES, step * S::BK, ring.arrived());
      }
    return;
  }
  Sum sums[S::BN / AT_ONCE][1][AT_ONCE / 8][4];
#pragma unroll
  for (int part = 0; part < S::BN / AT_ONCE; part++) hloc_clear(sums[part]);
  for (int step = 0; step < steps; step++, ring.n++) {
    ring.wait();
    const int top = warp / 4 * 64;
    if constexpr (Group::ROUNDS) hloc_multiply_rounded<S::BN, Group, A, B>(&sums[0][0][0][0], ring.tile(), top);
    else if constexpr (Group::SHORT) hloc_multiply_promoted<S::BN, Group, A, B>(&sums[0][0][0][0], ring.tile(), top);
    else hloc_multiply_step<S::BN, Group, A, B>(&sums[0][0][0][0], ring.tile(), top);
    hloc_wgmma_wait<1>();
    if (step > 0) ring.done(1);
  }
  hloc_wgmma_wait<0>();
  if (steps > 0) ring.done(1);
  Sum *slab = (Sum *)(ring.barriers + 2 * S::STAGES) + warp * hloc_slab<AT_ONCE>::SIZE;
#pragma unroll
  for (int part = 0; part < S::BN / AT_ONCE; part++)
    hloc_finish_tile<AT_ONCE, S::BATCHED>(sums[part], slab, warp * 16, part * AT_ONCE, finish);
}

/* Begin the products of 64 rows from `top` on and COLUMNS columns, both along k, in panels of 64 elements of it. */
template <int COLUMNS, int PANELS, class Group, class Left, class Right>
HLOC_FN void hloc_begin_panels(float *sums, const unsigned char *left, const unsigned char *right, int top) {
#pragma unroll
  for (int panel = 0; panel < PANELS; panel++)
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const auto a = hloc_described<Left>(left + panel * Left::BYTES, top, k);
      const auto b = hloc_described<Right>(right + panel * Right::BYTES, 0, k);
      if (panel + k == 0) Group::template multiply<COLUMNS, 0, 0, 0>(sums, a, b);
      else Group::template multiply<COLUMNS, 0, 0>(sums, a, b);
    }
}
/* Begin the products of weights in words and a tile of values, added to sums of COLUMNS features. */
template <int COLUMNS, class Group, class Values, int STEPS>
HLOC_FN void hloc_begin_weighted(float *sums, const unsigned (&weights)[STEPS][4], const unsigned char *values) {
#pragma unroll
  for (int k = 0; k < STEPS; k++)
    Group::template multiply_words<COLUMNS, 1>(sums, weights[k], hloc_described<Values>(values, 0, k));
}
/* give(row, column, sums) of a warp's 16 rows from `row` on, V adjacent columns at once. */
template <int V, int PARTS, class Give>
HLOC_FN void hloc_give_parts(const float (&sums)[PARTS][1][4][4], float *slab, int row, Give give) {
  constexpr int PITCH = 40, AT_ONCE = V < 4 ? V : 4;
#pragma unroll
  for (int part = 0; part < PARTS; part++) {
    hloc_fill_slab<PITCH>(slab, sums[part][0]);
#pragma unroll 4
    for (int n = 0; n < 16 / V; n++) {
      const int e = (n * 32 + threadIdx.x % 32) * V, r = e / 32, f = e % 32;
      hloc_pack<float, V> pack;
#pragma unroll
      for (int v = 0; v < V; v += AT_ONCE) {
        const auto some = *(const hloc_pack<float, AT_ONCE> *)&slab[r * PITCH + f + v];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) pack.at[v + u] = some[u];
      }
      give(row + r, part * 32 + f, pack);
    }
    __syncwarp(); /* the last rows have been read */
  }
}
/* Groups of four warps that begin their products in turn: meanwhile the others compute what is between products.
 * Without turns all would multiply at once, and then all compute. Barrier FIRST + n ends when the group before the n-th
 * has begun its products. */
template <int GROUPS> struct hloc_turns {
  static constexpr int FIRST = 8, THREADS = 256;
  HLOC_MEMBER static int own() { return threadIdx.x / 128; }
  HLOC_MEMBER static void wait() {
    if constexpr (GROUPS > 1) hloc_named_wait<THREADS>(FIRST + own());
  }
  HLOC_MEMBER static void pass() {
    if constexpr (GROUPS > 1) hloc_named_arrive<THREADS>(FIRST + (own() + 1) % GROUPS);
  }
  HLOC_MEMBER static void begin() {
    if (own() == GROUPS - 1) pass();
  }
  /* The turn that the last group has passed on. */
  HLOC_MEMBER static void end() {
    if (own() == 0) wait();
  }
};
/* A block's pieces of work: one thread of four more warps copies (copy(work)), the others compute (compute(work)); of
 * three groups these four warps give their registers to the others. In each piece the groups take as many turns. */
template <int WARPS, class Copy, class Compute> HLOC_FN void hloc_bulk_walk(long count, Copy copy, Compute compute) {
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0); /* the compiler knows that a warp's threads agree */
  if (warp >= WARPS) {
    if (WARPS > 4) hloc_fewer_registers<24>();
    if (threadIdx.x == WARPS * 32)
      for (long work = blockIdx.x; work < count; work += gridDim.x) copy(work);
    return;
  }
  if (WARPS > 4) hloc_more_registers<240>();
  hloc_turns<WARPS / 4>::begin();
  for (long work = blockIdx.x; work < count; work += gridDim.x) compute(work);
  hloc_turns<WARPS / 4>::end();
}

/* What computes one tile of a strided product whose operands have tensor maps: the left one's, then the right one's. */
template <class S, class Tile> struct hloc_bulk_each {
  const unsigned char *maps;
  Tile tile;
  HLOC_MEMBER hloc_bulk_each(const unsigned char *maps, Tile tile) : maps(maps), tile(tile) {
    if (threadIdx.x == S::WM * 32) {
      hloc_bulk_known(maps);
      hloc_bulk_known(maps + 128);
    }
  }
  template <class Place, class Store> HLOC_MEMBER void operator()(const Place &at, long piece, Store store) const {
    const int first = piece * S::PART, inner = at.batch % S::INNER, outer = at.batch / S::INNER;
    const hloc_bulk_operand<S::PACKED_A || S::A_K == 1, S::BM, S::BK, S::BULK> a = {
        maps, (int)at.row, first, S::A_INNER ? inner : 0, S::A_OUTER ? outer : 0};
    const hloc_bulk_operand<S::PACKED_B || S::B_K == 1, S::BN, S::BK, S::BULK> b = {
        maps + 128, (int)at.column, first, S::B_INNER ? inner : 0, S::B_OUTER ? outer : 0};
    tile(a, b, at.depth(piece), store);
  }
};
template <class S, class Tile, class Finish>
HLOC_FN void hloc_gemm(const unsigned char *maps, Tile tile, Finish finish) {
  hloc_gemm_walk<S>(hloc_bulk_each<S, Tile>(maps, tile), finish);
}
template <class S, class Size, class Tile, class Finish>
HLOC_FN void hloc_ragged(const unsigned char *maps, const Size *sizes, Tile tile, Finish finish) {
  hloc_ragged_walk<S>(sizes, hloc_bulk_each<S, Tile>(maps, tile), finish);
}

#endif
