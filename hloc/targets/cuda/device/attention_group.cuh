/* attention_group.cuh: attention by the instructions of sm_90a that read operands from shared memory.
 *
 * In: attention.cuh, warpgroup.cuh; a struct S as attention.cuh says, with
 *   BM, BN, FC       64 queries for each group of four warps, 64 or 128 keys, 64 or 128 features;  DP: a multiple of 64
 *   STORED           features that a lane stores at once
 *   STAGES           tiles of keys or values that lie in shared memory at once
 *   INNER            batch b = outer * INNER + inner;  Q_INNER, Q_OUTER, K_INNER ...: 0 where an array does not have it
 * and three tensor maps: of queries, keys and values. Out: hloc_attention_group, which does what
 * hloc_attention_mma does.
 *
 * Four more warps keep the bulk copy engine busy (one thread does), into the block's next queries too; of three groups
 * these give their registers to the others. While the tensor cores multiply the
 * next tile's scores and the last tile's weights with its values, a group softens the scores of the tile between.
 * Groups begin these products in turn.
 */
#ifndef HLOC_ATTENTION_GROUP_CUH
#define HLOC_ATTENTION_GROUP_CUH

template <class S> struct hloc_attention_tiles {
  static constexpr int WARPS = S::BM / 16, PANELS = S::DP / 64;
  static constexpr int QUERY_BYTES = S::BM * S::DP * 2, KEY_BYTES = S::BN * S::DP * 2, VALUE_BYTES = S::BN * S::FC * 2;
  static constexpr int STAGE = KEY_BYTES > VALUE_BYTES ? KEY_BYTES : VALUE_BYTES;
  typedef hloc_bulk_operand<true, S::BM, 64, 2> Queries;
  typedef hloc_bulk_operand<true, S::BN, 64, 2> Keys;
  typedef hloc_bulk_operand<false, S::FC, S::BN, 2> Values;
  hloc_bulk_ring<1, QUERY_BYTES, WARPS> queries;
  hloc_bulk_ring<S::STAGES, STAGE, WARPS> steps; /* keys and values in the order of their use */
  HLOC_MEMBER explicit hloc_attention_tiles(unsigned char *memory)
      : queries(memory, barriers(memory)), steps(memory + QUERY_BYTES, barriers(memory) + 2) {}
  HLOC_MEMBER static unsigned long long *barriers(unsigned char *memory) {
    return (unsigned long long *)(memory + QUERY_BYTES + S::STAGES * STAGE);
  }
  HLOC_MEMBER static float *slabs(unsigned char *memory) { return (float *)(barriers(memory) + 2 + 2 * S::STAGES); }

  /* By one thread: all that a block's next piece of work reads. */
  HLOC_MEMBER void copy(const unsigned char *maps, const hloc_attention_place<S> &at) {
    const int inner = (int)at.batch % S::INNER, outer = (int)at.batch / S::INNER, count = (at.keys + S::BN - 1) / S::BN;
    const Queries q = {maps, (int)at.row, 0, S::Q_INNER ? inner : 0, S::Q_OUTER ? outer : 0};
    const Values v = {maps + 256, (int)at.feature, (int)at.first, S::V_INNER ? inner : 0, S::V_OUTER ? outer : 0};
    queries.begin();
    q.template copy_panels<PANELS>(queries.tile(), queries.arrived());
    for (int tile = 0; tile <= count; tile++) {
      if (tile < count) {
        const int line = at.first + tile * S::BN;
        const Keys k = {maps + 128, line, 0, S::K_INNER ? inner : 0, S::K_OUTER ? outer : 0};
        steps.begin(KEY_BYTES);
        k.template copy_panels<PANELS>(steps.tile(), steps.arrived());
        steps.n++;
      }
      if (tile == 0) continue;
      steps.begin(VALUE_BYTES);
      v.copy(steps.tile(), (tile - 1) * S::BN, steps.arrived());
      steps.n++;
    }
  }
};

/* What a thread holds of 64 queries: rows `row` and row + 8. */
template <class S, class Group> struct hloc_attention_rows {
  typedef hloc_attention_tiles<S> Tiles;
  static constexpr int AT_ONCE = 32; /* features that a warp gives at a time */
  float out[S::FC / AT_ONCE][1][AT_ONCE / 8][4], sums[S::BN / 8][4], z[2][S::BN / 4];
  float largest[2], total[2], scale[2];
  unsigned weights[S::BN / 16][4];
  const hloc_attention_place<S> &at;
  const int top, row, pair;

  HLOC_MEMBER explicit hloc_attention_rows(const hloc_attention_place<S> &at)
      : at(at),
        top(threadIdx.x / 128 * 64),
        row(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4),
        pair(threadIdx.x % 4 * 2) {
#pragma unroll
    for (int part = 0; part < S::FC / AT_ONCE; part++) hloc_clear(out[part]);
#pragma unroll
    for (int t = 0; t < S::BN / 8; t++)
#pragma unroll
      for (int n = 0; n < 4; n++) sums[t][n] = 0;
    largest[0] = largest[1] = hloc_lowest(), total[0] = total[1] = 0;
  }
  /* Begin the products of queries and keys. */
  HLOC_MEMBER void begin_scores(const unsigned char *queries, const unsigned char *keys) {
    hloc_wgmma_begin();
    hloc_begin_panels<S::BN, Tiles::PANELS, Group, typename Tiles::Queries, typename Tiles::Keys>(&sums[0][0], queries,
                                                                                                  keys, top);
  }
  /* Begin the products of weights and values. */
  HLOC_MEMBER void begin_values(const unsigned char *values) {
    hloc_wgmma_begin();
    hloc_begin_weighted<S::FC, Group, typename Tiles::Values>(&out[0][0][0][0], weights, values);
  }
  /* Whether a tile may weigh something for the group: a mask lets something through, or rows have seen nothing yet that
   * makes the weight of what the mask puts there nothing. */
  template <class Live> HLOC_MEMBER bool sees(int j, Live live, float masked) const {
    bool mine = false;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const long line = at.row + row + r * 8;
      if (line >= S::ROWS) continue;
      if (!(masked == hloc_lowest() || masked - largest[r] < HLOC_NO_WEIGHT)) mine = true;
#pragma unroll
      for (int c = 0; c < S::BN / 4; c++) {
        const int column = j + c / 2 * 8 + pair + c % 2;
        if (column < at.keys && live(at.batch, line, at.first + column)) mine = true;
      }
    }
    return hloc_group_any(mine);
  }
  HLOC_MEMBER static bool all_finite(const unsigned char *values) {
    bool found = false;
    for (int e = threadIdx.x % 128; e < Tiles::VALUE_BYTES / 4; e += 128) {
      const unsigned word = *(const unsigned *)(values + e * 4);
      if ((word & S::MASKED) == S::MASKED || (word >> 16 & S::MASKED) == S::MASKED) found = true;
    }
    return !hloc_group_any(found);
  }
  /* Sums of products become scores. */
  template <class Score> HLOC_MEMBER void raise(int j, Score score) {
#pragma unroll
    for (int t = 0; t < S::BN / 8; t++)
#pragma unroll
      for (int n = 0; n < 4; n++) {
        const long line = at.row + row + n / 2 * 8;
        const int column = j + t * 8 + pair + n % 2;
        z[n / 2][t * 2 + n % 2] =
            at.inside(line, column) ? score(at.batch, line, at.first + column, sums[t][n]) : hloc_lowest();
      }
    hloc_raise<4, hloc_exp_of_scores<S, true>>(z, largest, scale);
  }
  HLOC_MEMBER void weigh() {
#pragma unroll
    for (int r = 0; r < 2; r++) hloc_weigh<hloc_exp_of_scores<S, true>>(z[r], largest[r], scale[r], total[r]);
  }
  HLOC_MEMBER void clear_weights() {
#pragma unroll
    for (int c = 0; c < S::BN / 4; c++) z[0][c] = z[1][c] = 0;
  }
  /* Sums of values fit the largest score so far. */
  HLOC_MEMBER void rescale() {
#pragma unroll
    for (int part = 0; part < S::FC / AT_ONCE; part++)
#pragma unroll
      for (int f = 0; f < AT_ONCE / 8; f++)
#pragma unroll
        for (int n = 0; n < 4; n++) out[part][0][f][n] *= scale[n / 2];
  }
  template <class Pair> HLOC_MEMBER void take_weights(Pair rounded_pair) {
#pragma unroll
    for (int k = 0; k < S::BN / 16; k++)
#pragma unroll
      for (int n = 0; n < 4; n++) {
        const int c = k * 4 + n / 2 * 2;
        weights[k][n] = rounded_pair(z[n % 2][c], z[n % 2][c + 1]);
      }
  }
  template <class Keep, class KeepState, class Finish>
  HLOC_MEMBER void give(float *slab, Keep keep, KeepState keep_state, Finish finish) {
    float all[2], share[2]; /* what sums are multiplied by: a division of each would take as long as a tile of keys */
#pragma unroll
    for (int r = 0; r < 2; r++) {
      all[r] = hloc_sum_of_lanes<4>(total[r]);
      if constexpr (S::STATES)
        if (pair == 0 && at.feature == 0 && at.row + row + r * 8 < S::ROWS)
          keep_state(at.piece, at.batch, at.row + row + r * 8, largest[r] * S::SCALE, all[r]);
      share[r] = S::SPLITS > 1 ? 1.0f : 1.0f / all[r]; /* pieces are divided where they are joined */
    }
#pragma unroll
    for (int part = 0; part < S::FC / AT_ONCE; part++)
#pragma unroll
      for (int f = 0; f < AT_ONCE / 8; f++)
#pragma unroll
        for (int n = 0; n < 4; n++) out[part][0][f][n] *= share[n / 2];
    hloc_give_parts<S::STORED>(out, slab, row / 16 * 16,
                               [&](int r, int f, const auto &values) { at.give(keep, finish, r, f, values); });
  }
};

/* The scores of a tile, and the weights of the one before with its values, which are begun together. */
template <bool FIRST, class S, class Tiles, class Rows, class Pair, class Live, class Score>
HLOC_FN bool hloc_attention_round(Tiles &tiles, Rows &rows, int j, bool before, Pair rounded_pair, Live live,
                                  float masked, Score score) {
  bool any = true;
  if constexpr (S::MASKED) any = rows.sees(j, live, masked);
  tiles.steps.wait();
  hloc_turns<Tiles::WARPS / 4>::wait();
  if (!S::MASKED || any) rows.begin_scores(tiles.queries.tile(), tiles.steps.tile());
  hloc_wgmma_commit();
  tiles.steps.n++;
  if constexpr (!FIRST) {
    tiles.steps.wait();
    bool used = true;
    if constexpr (S::MASKED) used = before || !rows.all_finite(tiles.steps.tile());
    if (!S::MASKED || used) rows.begin_values(tiles.steps.tile());
    hloc_wgmma_commit();
    tiles.steps.n++;
  }
  hloc_turns<Tiles::WARPS / 4>::pass();
  hloc_wgmma_wait<FIRST ? 0 : 1>();
  tiles.steps.done(FIRST ? 1 : 2);
  const auto wait_for_values = [&] {
    if constexpr (FIRST) return;
    hloc_wgmma_wait<0>();
    tiles.steps.done(1);
  };
  if (!S::MASKED || any) {
    rows.raise(j, score);
    wait_for_values();
    rows.rescale();
    rows.weigh();
  } else {
    wait_for_values();
    rows.clear_weights();
  }
  rows.take_weights(rounded_pair);
  return any;
}

template <class S, class Group, class Pair, class Live, class Score, class Keep, class KeepState, class Finish>
HLOC_FN void hloc_attention_group(const unsigned char *maps, unsigned char *memory, Pair rounded_pair, Live live,
                                  float masked, Score score, Keep keep, KeepState keep_state, Finish finish) {
  typedef hloc_attention_tiles<S> Tiles;
  static_assert(S::BM % 64 == 0 && S::DP % 64 == 0 && S::BN % 64 == 0 && S::FC % 64 == 0, "a tile's shape");
  Tiles tiles(memory);
  typedef hloc_attention_place<S> Place;
  if (threadIdx.x == Tiles::WARPS * 32)
    for (int n = 0; n < 3; n++) hloc_bulk_known(maps + n * 128);
  const auto copy = [&](long work) {
    tiles.copy(maps, Place(work));
    tiles.queries.n++;
  };
  const auto compute = [&](long work) {
    const Place at(work);
    hloc_attention_rows<S, Group> rows(at);
    tiles.queries.wait();
    bool any = hloc_attention_round<true, S>(tiles, rows, 0, false, rounded_pair, live, masked, score);
    for (int j = S::BN; j < at.keys; j += S::BN)
      any = hloc_attention_round<false, S>(tiles, rows, j, any, rounded_pair, live, masked, score);
    tiles.queries.done(0);
    tiles.steps.wait();
    if constexpr (S::MASKED) any = any || !rows.all_finite(tiles.steps.tile());
    hloc_turns<Tiles::WARPS / 4>::wait();
    if (!S::MASKED || any) rows.begin_values(tiles.steps.tile());
    hloc_wgmma_commit();
    hloc_turns<Tiles::WARPS / 4>::pass();
    hloc_wgmma_wait<0>();
    tiles.steps.n++;
    tiles.steps.done(1);
    rows.give(Tiles::slabs(memory) + threadIdx.x / 32 * hloc_slab<32>::SIZE, keep, keep_state, finish);
    tiles.queries.n++;
  };
  hloc_bulk_walk<Tiles::WARPS>(Place::WORK, copy, compute);
}

#endif
