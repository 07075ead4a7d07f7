/* attention_gradient_group.cuh: attention's gradients by the instructions of sm_90a that read operands from shared
 * memory.
 *
 * In: attention_gradient.cuh, warpgroup.cuh; structs as attention_gradient.cuh says, with
 *   S: BM, BN, FC    64 rows for each group of four warps, 64 or 128 columns, 64 or 128 features;  STAGES: tiles of
 *                    columns that lie in shared memory at once
 *      HEADS         batch b = outer * HEADS + inner
 *   P: DP, a multiple of 64;  MAP: the tensor map of its A, B's is the next one
 *   O: MAP, of its X, where that is no product's B;  PARTS is 1;  STORED: features that a lane stores at once
 *   A_INNER, A_OUTER, B_INNER, B_OUTER, X_INNER, X_OUTER: 0 where an array does not have that dimension of the batch
 * Out: hloc_attention_gradient_group, which does what hloc_attention_gradient_mma does, in the same order of columns.
 *
 * One tile serves as the B of a product, along its lines, and as the X of an output, across them. Behind the outputs of
 * a tile, the tensor cores go on with the next tile's products; while a group computes weights, with the other's: a
 * turn is the outputs of a tile and the next tile's products.
 * Products are begun when words of weights are free again: all at once would take more than 240 registers.
 */
#ifndef HLOC_ATTENTION_GRADIENT_GROUP_CUH
#define HLOC_ATTENTION_GRADIENT_GROUP_CUH

/* exp and quotients of weights that are rounded to 16 bits; divisors from 2^-126 to 2^126. */
HLOC_FN float hloc_exp_fast_f32(float x) { return hloc_exp2_fast(x * 1.4426950408889634f); }
HLOC_FN float hloc_divide_fast_f32(float x, float y) { return x * hloc_reciprocal_fast(y); }

/* A block's rows and tiles of columns in shared memory. */
template <class S, class P0, class P1, class O0, class O1> struct hloc_gradient_tiles {
  static constexpr int WARPS = S::BM / 16;
  typedef hloc_bulk_operand<true, S::BM, 64, 2> Rows; /* 64 elements of the depth */
  typedef hloc_bulk_operand<true, S::BN, 64, 2> Columns;
  typedef hloc_bulk_operand<false, S::FC, S::BN, 2> Values;
  typedef hloc_gradient_place<S, O0, O1> Place;
  static constexpr bool TWO = S::INNER > 1, OWN0 = O0::SHARED < 0, OWN1 = S::OUTER > 1 && O1::SHARED < 0;
  static constexpr int A1_AT = P0::DP / 64 * Rows::BYTES, ROW_BYTES = A1_AT + (TWO ? P1::DP / 64 * Rows::BYTES : 0);
  static constexpr int B1_AT = P0::DP / 64 * Columns::BYTES, X0_AT = B1_AT + (TWO ? P1::DP / 64 * Columns::BYTES : 0);
  static constexpr int X1_AT = X0_AT + (OWN0 ? Values::BYTES : 0), STAGE = X1_AT + (OWN1 ? Values::BYTES : 0);
  hloc_bulk_ring<1, ROW_BYTES, WARPS> rows;
  hloc_bulk_ring<S::STAGES, STAGE, WARPS> steps;
  HLOC_MEMBER explicit hloc_gradient_tiles(unsigned char *memory)
      : rows(memory, barriers(memory)), steps(memory + ROW_BYTES, barriers(memory) + 2) {}
  HLOC_MEMBER static unsigned long long *barriers(unsigned char *memory) {
    return (unsigned long long *)(memory + ROW_BYTES + S::STAGES * STAGE);
  }
  HLOC_MEMBER static float *slabs(unsigned char *memory) { return (float *)(barriers(memory) + 2 + 2 * S::STAGES); }
  /* Where an output's X lies in a tile. */
  template <class O> HLOC_MEMBER static constexpr int at(int own) {
    return O::SHARED < 0 ? own : O::SHARED == 0 ? 0 : B1_AT;
  }

  template <class P> HLOC_MEMBER void copy_rows(const unsigned char *maps, unsigned char *to, const Place &at) {
    const int inner = (int)at.batch % S::HEADS, outer = (int)at.batch / S::HEADS;
    const Rows a = {maps + P::MAP * 128, (int)at.row, 0, P::A_INNER ? inner : 0, P::A_OUTER ? outer : 0};
    a.template copy_panels<P::DP / 64>(to, rows.arrived());
  }
  template <class P>
  HLOC_MEMBER void copy_columns(const unsigned char *maps, unsigned char *to, const Place &at, int j) {
    const int inner = (int)at.batch % S::HEADS, outer = (int)at.batch / S::HEADS;
    const Columns b = {maps + P::MAP * 128 + 128, j, 0, P::B_INNER ? inner : 0, P::B_OUTER ? outer : 0};
    b.template copy_panels<P::DP / 64>(to, steps.arrived());
  }
  template <class O>
  HLOC_MEMBER void copy_values(const unsigned char *maps, unsigned char *to, const Place &at, int j) {
    const int inner = (int)at.batch % S::HEADS, outer = (int)at.batch / S::HEADS;
    const Values x = {maps + O::MAP * 128, (int)at.feature, 0, O::X_INNER ? inner : 0, O::X_OUTER ? outer : 0};
    x.copy(to, j, steps.arrived());
  }
  /* By one thread: all that a block's next piece of work reads. */
  HLOC_MEMBER void copy(const unsigned char *maps, const Place &at) {
    rows.begin();
    copy_rows<P0>(maps, rows.tile(), at);
    if constexpr (TWO) copy_rows<P1>(maps, rows.tile() + A1_AT, at);
    rows.n++;
    for (int j = 0; j < S::COLUMNS; j += S::BN, steps.n++) {
      steps.begin();
      copy_columns<P0>(maps, steps.tile(), at, j);
      if constexpr (TWO) copy_columns<P1>(maps, steps.tile() + B1_AT, at, j);
      if constexpr (OWN0) copy_values<O0>(maps, steps.tile() + X0_AT, at, j);
      if constexpr (OWN1) copy_values<O1>(maps, steps.tile() + X1_AT, at, j);
    }
  }
};

/* 16 rows and columns of weights as the words that a product of 64 rows takes. */
template <class Pair> HLOC_FN void hloc_gradient_words(unsigned *words, const float (*weights)[4], Pair rounded_pair) {
#pragma unroll
  for (int n = 0; n < 4; n++)
    words[n] = rounded_pair(weights[n / 2][n % 2 * 2], weights[n / 2][n % 2 * 2 + 1]);
}

template <class S, class P0, class P1, class O0, class O1, class Group, class Pair, class Weigh, class Finish0,
          class Finish1>
HLOC_FN void hloc_attention_gradient_group(const unsigned char *maps, unsigned char *memory, Pair rounded_pair,
                                           Weigh weigh, Finish0 finish0, Finish1 finish1) {
  typedef hloc_gradient_tiles<S, P0, P1, O0, O1> Tiles;
  typedef typename Tiles::Place Place;
  typedef hloc_turns<Tiles::WARPS / 4> Turns;
  constexpr int TILES = S::BN / 8, PARTS = S::FC / 32, PARTS1 = S::OUTER > 1 ? PARTS : 1;
  constexpr int MAPS = 2 * S::INNER + Tiles::OWN0 + Tiles::OWN1;
  static_assert(S::BM % 64 == 0 && P0::DP % 64 == 0 && P1::DP % 64 == 0 && S::BN % 64 == 0 && S::FC % 64 == 0,
                "a tile's shape");
  static_assert(O0::PARTS == 1 && O1::PARTS == 1 && S::STAGES >= 2, "rounded weights; two tiles are used at once");
  Tiles tiles(memory);
  if (threadIdx.x == Tiles::WARPS * 32)
    for (int n = 0; n < MAPS; n++) hloc_bulk_known(maps + n * 128);
  const auto copy = [&](long work) { tiles.copy(maps, Place(work)); };
  const auto compute = [&](long work) {
    const Place at(work);
    const int warp = threadIdx.x / 32, top = warp / 4 * 64;
    float out0[PARTS][1][4][4], out1[PARTS1][1][4][4], first[TILES][4], second[TILES][4];
    unsigned words0[TILES / 2][4], words1[TILES / 2][4];
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
      hloc_clear(out0[part]);
      if (part < PARTS1) hloc_clear(out1[part]);
    }
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
      for (int n = 0; n < 4; n++) first[t][n] = second[t][n] = 0;
    tiles.rows.wait();
    Turns::wait();
    for (long j = 0; j < S::COLUMNS; j += S::BN) {
      tiles.steps.wait();
      const unsigned char *rows = tiles.rows.tile(), *tile = tiles.steps.tile();
      hloc_wgmma_wait<1>(); /* the last tile's second output is made: its words are free */
      hloc_wgmma_begin();
      hloc_begin_panels<S::BN, P0::DP / 64, Group, typename Tiles::Rows, typename Tiles::Columns>(&first[0][0], rows,
                                                                                                  tile, top);
      hloc_wgmma_commit();
      hloc_wgmma_wait<1>(); /* and the first one */
      if (j > 0) tiles.steps.done(1);
      if constexpr (S::INNER > 1) {
        hloc_wgmma_begin();
        hloc_begin_panels<S::BN, P1::DP / 64, Group, typename Tiles::Rows, typename Tiles::Columns>(
            &second[0][0], rows + Tiles::A1_AT, tile + Tiles::B1_AT, top);
        hloc_wgmma_commit();
      }
      Turns::pass();
      hloc_wgmma_wait<0>();
#pragma unroll
      for (int k = 0; k < TILES / 2; k++) {
#pragma unroll
        for (int t = 2 * k; t < 2 * k + 2; t++) hloc_gradient_weigh<S>(at, j + t * 8, first[t], second[t], weigh);
        hloc_gradient_words(words0[k], first + 2 * k, rounded_pair);
        if constexpr (S::OUTER > 1) hloc_gradient_words(words1[k], second + 2 * k, rounded_pair);
      }
      Turns::wait();
      hloc_wgmma_begin();
      if constexpr (S::OUTER > 1) {
        hloc_begin_weighted<S::FC, Group, typename Tiles::Values>(&out1[0][0][0][0], words1,
                                                                  tile + Tiles::template at<O1>(Tiles::X1_AT));
        hloc_wgmma_commit();
      }
      hloc_begin_weighted<S::FC, Group, typename Tiles::Values>(&out0[0][0][0][0], words0,
                                                                tile + Tiles::template at<O0>(Tiles::X0_AT));
      hloc_wgmma_commit();
      tiles.steps.n++;
    }
    Turns::pass();
    tiles.rows.done(0);
    tiles.rows.n++;
    hloc_wgmma_wait<0>();
    tiles.steps.done(1);
    float *slab = Tiles::slabs(memory) + warp * hloc_slab<32>::SIZE;
    hloc_give_parts<O0::STORED>(out0, slab, warp * 16,
                                [&](int r, int f, const auto &sums) { at.template give<O0>(finish0, r, f, sums); });
    if constexpr (S::OUTER > 1)
      hloc_give_parts<O1::STORED>(out1, slab, warp * 16,
                                  [&](int r, int f, const auto &sums) { at.template give<O1>(finish1, r, f, sums); });
  };
  hloc_bulk_walk<Tiles::WARPS>(Place::WORK, copy, compute);
}

#endif
