/* attention_gradient.cuh: products of what is made, place by place, of one or two products as large as the scores.
 *
 * In: attention.cuh; a struct S of constants:
 *   ROWS, COLUMNS, BATCHES   of the scores;  INNER, OUTER   how many products as large as they are, how many outputs
 *   BM, BN, FC               rows and columns of a tile, features of a block (those of a row may be several blocks'
 *                            work)
 * a struct P for each product: DEPTH; A_ROW, A_K, B_COLUMN, B_K strides in elements; A_VECTOR, B_VECTOR as in gemm.cuh;
 *   DP, DEPTH as a multiple of 16 (tensor cores)
 * a struct O for each output: FEATURES, X_COLUMN, X_FEATURE, X_VECTOR;  SHARED: the product whose B its X is, or -1;
 *   PARTS: bf16 numbers that weights are written as the sum of: 1: they are rounded, 3: they stay f32
 * and functions: a(batch), b(batch), x(batch): where a batch of an array starts;
 *   weigh(batch, row, column, first, second): the products become the weights of the outputs;
 *   finish(batch, row, feature, sums)       an hloc_wide; of one sum, by warpgroups of the output's STORED
 * Out: hloc_attention_gradient_mma (bf16, f16), hloc_attention_gradient_f32.
 * Where there is but one product or output, the first stands for the second as well and nothing is made of it. Each sum
 * is one thread's, in the order of the columns: results do not depend on what runs when.
 */
#ifndef HLOC_ATTENTION_GRADIENT_CUH
#define HLOC_ATTENTION_GRADIENT_CUH

/* Which batch, rows and features a block works on. */
template <class S, class O0, class O1> struct hloc_gradient_place {
  static constexpr long MOST = O0::FEATURES > O1::FEATURES ? O0::FEATURES : O1::FEATURES;
  static constexpr long BLOCKS = (S::ROWS + S::BM - 1) / S::BM, CHUNKS = (MOST + S::FC - 1) / S::FC;
  static constexpr long WORK = BLOCKS * CHUNKS * S::BATCHES;
  long batch, row, feature;
  HLOC_MEMBER explicit hloc_gradient_place(long work) {
    row = work % BLOCKS * S::BM;
    feature = work / BLOCKS % CHUNKS * S::FC;
    batch = work / (BLOCKS * CHUNKS);
  }
  template <class O, class Finish> HLOC_MEMBER void give(Finish finish, int r, int f, float sum) const {
    give<O>(finish, r, f, hloc_pack<float, 1>{{sum}});
  }
  template <class O, class Finish, int V>
  HLOC_MEMBER void give(Finish finish, int r, int f, const hloc_pack<float, V> &sums) const {
    if (row + r < S::ROWS && feature + f < O::FEATURES) finish.call(batch, row + r, feature + f, sums)();
  }
};

/* Sums of a warp's 16 rows and of 8 columns from `left` on become weights; nothing outside. */
template <class S, class Place, class Weigh>
HLOC_FN void hloc_gradient_weigh(const Place &at, long left, float (&first)[4], float (&second)[4], Weigh weigh) {
  const int top = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
#pragma unroll
  for (int n = 0; n < 4; n++) {
    const long row = at.row + top + n / 2 * 8, column = left + pair + n % 2;
    const bool is_row = S::ROWS % S::BM == 0 || row < S::ROWS;
    const bool is_column = S::COLUMNS % S::BN == 0 || column < S::COLUMNS;
    if constexpr (S::INNER == 1) second[n] = 0;
    weigh(at.batch, is_row ? row : S::ROWS - 1, is_column ? column : S::COLUMNS - 1, first[n], second[n]);
    if (!is_row || !is_column) first[n] = second[n] = 0; /* selects: a branch would take registers from sums */
  }
}

/* Tiles of columns in shared memory: of both products' B and, where an output's X is none of them, of that; twice. */
template <class S, class P0, class P1, class O0, class O1, class T, int THREADS> struct hloc_gradient_columns {
  typedef hloc_lines<T, S::BN, P0::DP, THREADS> B0;
  typedef hloc_lines<T, S::BN, P1::DP, THREADS> B1;
  typedef hloc_lines<T, S::BN, S::FC, THREADS> X;
  static constexpr int B1_AT = B0::BYTES, X0_AT = B1_AT + (S::INNER > 1 ? B1::BYTES : 0);
  static constexpr int X1_AT = X0_AT + (O0::SHARED < 0 ? X::BYTES : 0);
  static constexpr int BYTES = X1_AT + (S::OUTER > 1 && O1::SHARED < 0 ? X::BYTES : 0);
  template <class O> HLOC_MEMBER static constexpr int at(int own) {
    return O::SHARED < 0 ? own : O::SHARED == 0 ? 0 : B1_AT;
  }
  template <class O> HLOC_MEMBER static constexpr int pitch() {
    return O::SHARED < 0 ? X::PITCH : O::SHARED == 0 ? B0::PITCH : B1::PITCH;
  }
};

/* sums = A B^T for a warp's 16 rows and BN columns. */
template <class Numbers, int TILES, int STEPS, int A_PITCH, int B_PITCH>
HLOC_FN void hloc_gradient_product(float (&sums)[TILES][4], const unsigned char *rows, const unsigned char *columns) {
  const int lane = threadIdx.x % 32, matrix = lane / 8;
#pragma unroll
  for (int t = 0; t < TILES; t++)
#pragma unroll
    for (int n = 0; n < 4; n++) sums[t][n] = 0;
#pragma unroll
  for (int step = 0; step < STEPS; step++) {
    unsigned x[4], y[4];
    hloc_load_matrices(x, rows + (matrix % 2 * 8 + lane % 8) * A_PITCH + (step * 2 + matrix / 2) * 16);
#pragma unroll
    for (int t = 0; t < TILES; t += 2) {
      hloc_load_matrices(y, columns + (t * 8 + matrix / 2 * 8 + lane % 8) * B_PITCH + (step * 2 + matrix % 2) * 16);
      Numbers::multiply(sums[t], x, y);
      Numbers::multiply(sums[t + 1], x, y + 2);
    }
  }
}

/* What rounding to bf16 has left of a number; nothing, where that is no number. */
HLOC_FN float hloc_rest_of(float value, unsigned rounded) {
  const float rest = value - hloc_from_bits_f32(rounded);
  return rest - rest == 0 ? rest : 0;
}

/* out += weights X for a warp's 16 rows; the smaller parts of weights first. */
template <class Numbers, int TILES, int OUT, int PITCH, int PARTS, class Pair>
HLOC_FN void hloc_gradient_output(float (&out)[OUT][4], const float (&weights)[TILES][4], const unsigned char *values,
                                  Pair rounded_pair) {
  const int lane = threadIdx.x % 32, matrix = lane / 8;
#pragma unroll
  for (int step = 0; step < TILES / 2; step++) {
    unsigned x[PARTS][4], y[4];
#pragma unroll
    for (int n = 0; n < 4; n++) {
      float low = weights[step * 2 + n / 2][n % 2 * 2], high = weights[step * 2 + n / 2][n % 2 * 2 + 1];
#pragma unroll
      for (int part = 0; part < PARTS; part++) {
        const unsigned both = x[part][n] = rounded_pair(low, high);
        if (part + 1 < PARTS) low = hloc_rest_of(low, both << 16), high = hloc_rest_of(high, both & 0xffff0000u);
      }
    }
#pragma unroll
    for (int f = 0; f < OUT; f += 2) {
      hloc_load_transposed(y, values + (step * 16 + matrix % 2 * 8 + lane % 8) * PITCH + (f + matrix / 2) * 16);
#pragma unroll
      for (int part = PARTS - 1; part >= 0; part--) {
        Numbers::multiply(out[f], x[part], y);
        Numbers::multiply(out[f + 1], x[part], y + 2);
      }
    }
  }
}

/* On tensor cores: warps with 16 rows each; tiles of columns in two buffers, copied ahead. */
template <class S, class P0, class P1, class O0, class O1, class Numbers, class T, class A0, class A1, class B0,
          class B1, class X0, class X1, class Pair, class Weigh, class Finish0, class Finish1>
HLOC_FN void hloc_attention_gradient_mma(unsigned char *memory, A0 a0, A1 a1, B0 b0, B1 b1, X0 x0, X1 x1,
                                         Pair rounded_pair, Weigh weigh, Finish0 finish0, Finish1 finish1) {
  constexpr int THREADS = S::BM * 2, TILES = S::BN / 8, OUT = S::FC / 8, OUT1 = S::OUTER > 1 ? OUT : 2;
  typedef hloc_lines<T, S::BM, P0::DP, THREADS> Rows0;
  typedef hloc_lines<T, S::BM, P1::DP, THREADS> Rows1;
  typedef hloc_gradient_columns<S, P0, P1, O0, O1, T, THREADS> Columns;
  typedef hloc_gradient_place<S, O0, O1> Place;
  static_assert(S::BN % 16 == 0 && S::FC % 16 == 0, "pairs of tiles");
  unsigned char *rows0 = memory, *rows1 = rows0 + Rows0::BYTES, *tiles = rows1 + (S::INNER > 1 ? Rows1::BYTES : 0);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 4, pair = lane % 4 * 2;
  for (long work = blockIdx.x; work < Place::WORK; work += gridDim.x) {
    const Place at(work);
    const auto copy_columns = [&](int j) {
      unsigned char *tile = tiles + j / S::BN % 2 * Columns::BYTES;
      const long left = S::COLUMNS - j;
      if (left > 0) {
        Columns::B0::template copy<P0::B_VECTOR>(tile, b0(at.batch) + j * (long)P0::B_COLUMN, P0::B_COLUMN, P0::B_K,
                                                 left, P0::DEPTH);
        if constexpr (S::INNER > 1)
          Columns::B1::template copy<P1::B_VECTOR>(tile + Columns::B1_AT, b1(at.batch) + j * (long)P1::B_COLUMN,
                                                   P1::B_COLUMN, P1::B_K, left, P1::DEPTH);
        if constexpr (O0::SHARED < 0)
          Columns::X::template copy<O0::X_VECTOR>(
              tile + Columns::X0_AT, x0(at.batch) + j * (long)O0::X_COLUMN + at.feature * O0::X_FEATURE, O0::X_COLUMN,
              O0::X_FEATURE, left, O0::FEATURES - at.feature);
        if constexpr (S::OUTER > 1 && O1::SHARED < 0)
          Columns::X::template copy<O1::X_VECTOR>(
              tile + Columns::X1_AT, x1(at.batch) + j * (long)O1::X_COLUMN + at.feature * O1::X_FEATURE, O1::X_COLUMN,
              O1::X_FEATURE, left, O1::FEATURES - at.feature);
      }
      hloc_copy_commit();
    };
    __syncthreads(); /* all have done with the last rows */
    Rows0::template copy<P0::A_VECTOR>(rows0, a0(at.batch) + at.row * P0::A_ROW, P0::A_ROW, P0::A_K, S::ROWS - at.row,
                                       P0::DEPTH);
    if constexpr (S::INNER > 1)
      Rows1::template copy<P1::A_VECTOR>(rows1, a1(at.batch) + at.row * P1::A_ROW, P1::A_ROW, P1::A_K,
                                         S::ROWS - at.row, P1::DEPTH);
    copy_columns(0);
    float out0[OUT][4], out1[OUT1][4];
#pragma unroll
    for (int f = 0; f < OUT; f++)
#pragma unroll
      for (int n = 0; n < 4; n++) {
        out0[f][n] = 0;
        if (f < OUT1) out1[f][n] = 0;
      }
    for (int j = 0; j < S::COLUMNS; j += S::BN) {
      hloc_copy_wait<0>();
      __syncthreads(); /* these columns have arrived, all have done with the last ones */
      copy_columns(j + S::BN);
      const unsigned char *tile = tiles + j / S::BN % 2 * Columns::BYTES;
      float first[TILES][4], second[TILES][4];
      hloc_gradient_product<Numbers, TILES, P0::DP / 16, Rows0::PITCH, Columns::B0::PITCH>(
          first, rows0 + warp * 16 * Rows0::PITCH, tile);
      if constexpr (S::INNER > 1)
        hloc_gradient_product<Numbers, TILES, P1::DP / 16, Rows1::PITCH, Columns::B1::PITCH>(
            second, rows1 + warp * 16 * Rows1::PITCH, tile + Columns::B1_AT);
#pragma unroll
      for (int t = 0; t < TILES; t++) hloc_gradient_weigh<S>(at, j + t * 8, first[t], second[t], weigh);
      hloc_gradient_output<Numbers, TILES, OUT, Columns::template pitch<O0>(), O0::PARTS>(
          out0, first, tile + Columns::template at<O0>(Columns::X0_AT), rounded_pair);
      if constexpr (S::OUTER > 1)
        hloc_gradient_output<Numbers, TILES, OUT, Columns::template pitch<O1>(), O1::PARTS>(
            out1, second, tile + Columns::template at<O1>(Columns::X1_AT), rounded_pair);
    }
#pragma unroll
    for (int f = 0; f < OUT; f++)
#pragma unroll
      for (int n = 0; n < 4; n++) {
        const int r = warp * 16 + group + n / 2 * 8, feature = f * 8 + pair + n % 2;
        at.template give<O0>(finish0, r, feature, out0[f][n]);
        if constexpr (S::OUTER > 1) at.template give<O1>(finish1, r, feature, out1[f][n]);
      }
  }
}

/* z = A B^T for a tile, each thread TM x TN of it, a step of the depth at a time. */
template <class S, class P, int STEP, int TM, int TN, class A, class B, class FromA, class FromB>
HLOC_FN void hloc_gradient_sums(float (&z)[TM][TN], float *a_tile, float *b_tile, const A *a, const B *b, long rows,
                                long columns, FromA from_a, FromB from_b) {
  constexpr int A_PITCH = S::BM + 4, B_PITCH = S::BN + 4;
  typedef hloc_strided<A, P::A_ROW, P::A_K, P::A_VECTOR> Rows;
  typedef hloc_strided<B, P::B_COLUMN, P::B_K, P::B_VECTOR> Columns;
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  const Rows row_source = {a, rows, P::DEPTH};
  const Columns column_source = {b, columns, P::DEPTH};
  hloc_stage<A, Rows, S::BM, STEP, 256> a_stage(row_source);
  hloc_stage<B, Columns, S::BN, STEP, 256> b_stage(column_source);
#pragma unroll
  for (int i = 0; i < TM; i++)
#pragma unroll
    for (int j = 0; j < TN; j++) z[i][j] = 0;
  a_stage.fetch(0);
  b_stage.fetch(0);
  for (int d0 = 0; d0 < P::DEPTH; d0 += STEP) {
    __syncthreads(); /* all have read the last step */
    a_stage.template put<1, A_PITCH>(a_tile, d0, from_a);
    b_stage.template put<1, B_PITCH>(b_tile, d0, from_b);
    __syncthreads(); /* this step is there */
    if (d0 + STEP < P::DEPTH) {
      a_stage.fetch(d0 + STEP);
      b_stage.fetch(d0 + STEP);
    }
#pragma unroll
    for (int d = 0; d < STEP; d++) {
      const hloc_pack<float, TM> x = *(const hloc_pack<float, TM> *)&a_tile[d * A_PITCH + ty * TM];
      const hloc_pack<float, TN> y = *(const hloc_pack<float, TN> *)&b_tile[d * B_PITCH + tx * TN];
#pragma unroll
      for (int i = 0; i < TM; i++)
#pragma unroll
        for (int j = 0; j < TN; j++) z[i][j] += x.at[i] * y.at[j];
    }
  }
}

/* out += weights X for a tile, each thread TM x TF of it; the weights go through shared memory. */
template <class S, class O, int STEP, int TM, int TN, int TF, class X, class FromX>
HLOC_FN void hloc_gradient_add(float (&out)[TM][TF], const float (&z)[TM][TN], float *weights, float *x_tile,
                               const X *x, long columns, long features, FromX from_x) {
  constexpr int W_PITCH = S::BM + 4, X_PITCH = S::FC + 4, VF = TF < 4 ? TF : 4;
  typedef hloc_strided<X, O::X_FEATURE, O::X_COLUMN, O::X_VECTOR> Values;
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  const Values values = {x, features, columns};
  hloc_stage<X, Values, S::FC, STEP, 256> stage(values);
  __syncthreads(); /* all have read the last weights */
#pragma unroll
  for (int i = 0; i < TM; i++)
#pragma unroll
    for (int j = 0; j < TN; j++) weights[(tx * TN + j) * W_PITCH + ty * TM + i] = z[i][j];
  stage.fetch(0);
  for (int c0 = 0; c0 < S::BN; c0 += STEP) {
    if (c0 > 0) __syncthreads(); /* all have read the last values */
    stage.template put<1, X_PITCH>(x_tile, c0, from_x);
    __syncthreads(); /* and the weights are there */
    if (c0 + STEP < S::BN) stage.fetch(c0 + STEP);
#pragma unroll
    for (int c = 0; c < STEP; c++) {
      const hloc_pack<float, TM> w = *(const hloc_pack<float, TM> *)&weights[(c0 + c) * W_PITCH + ty * TM];
      hloc_pack<float, VF> y[TF / VF];
#pragma unroll
      for (int f = 0; f < TF / VF; f++)
        y[f] = *(const hloc_pack<float, VF> *)&x_tile[c * X_PITCH + f * 16 * VF + tx * VF];
#pragma unroll
      for (int i = 0; i < TM; i++)
#pragma unroll
        for (int f = 0; f < TF; f++) out[i][f] += w.at[i] * y[f / VF].at[f % VF];
    }
  }
}

/* In registers: 16 x 16 threads, each with BM / 16 rows and BN / 16 columns of the scores, and FC / 16 features. */
template <class S, class P0, class P1, class O0, class O1, class A0, class A1, class B0, class B1, class X0, class X1,
          class FromA0, class FromA1, class FromB0, class FromB1, class FromX0, class FromX1, class Weigh,
          class Finish0, class Finish1>
HLOC_FN void hloc_attention_gradient_f32(unsigned char *memory, A0 a0, A1 a1, B0 b0, B1 b1, X0 x0, X1 x1,
                                         FromA0 from_a0, FromA1 from_a1, FromB0 from_b0, FromB1 from_b1,
                                         FromX0 from_x0, FromX1 from_x1, Weigh weigh, Finish0 finish0,
                                         Finish1 finish1) {
  constexpr int STEP = 16, TM = S::BM / 16, TN = S::BN / 16, TF = S::FC / 16, VF = TF < 4 ? TF : 4;
  typedef hloc_gradient_place<S, O0, O1> Place;
  float *a_tile = (float *)memory, *b_tile = a_tile + STEP * (S::BM + 4); /* [depth][row], [depth][column] */
  float *x_tile = b_tile + STEP * (S::BN + 4), *weights = x_tile + STEP * (S::FC + 4); /* [column][feature], [.][row] */
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  for (long work = blockIdx.x; work < Place::WORK; work += gridDim.x) {
    const Place at(work);
    const long rows = S::ROWS - at.row;
    float out0[TM][TF], out1[TM][TF];
#pragma unroll
    for (int i = 0; i < TM; i++)
#pragma unroll
      for (int f = 0; f < TF; f++) out0[i][f] = out1[i][f] = 0;
    for (long j0 = 0; j0 < S::COLUMNS; j0 += S::BN) {
      const long columns = S::COLUMNS - j0;
      float first[TM][TN], second[TM][TN];
      hloc_gradient_sums<S, P0, STEP>(first, a_tile, b_tile, a0(at.batch) + at.row * P0::A_ROW,
                                      b0(at.batch) + j0 * P0::B_COLUMN, rows, columns, from_a0, from_b0);
      if constexpr (S::INNER > 1)
        hloc_gradient_sums<S, P1, STEP>(second, a_tile, b_tile, a1(at.batch) + at.row * P1::A_ROW,
                                        b1(at.batch) + j0 * P1::B_COLUMN, rows, columns, from_a1, from_b1);
#pragma unroll
      for (int i = 0; i < TM; i++)
#pragma unroll
        for (int j = 0; j < TN; j++) {
          const long row = at.row + ty * TM + i, column = j0 + tx * TN + j;
          if constexpr (S::INNER == 1) second[i][j] = 0;
          if (row < S::ROWS && column < S::COLUMNS) weigh(at.batch, row, column, first[i][j], second[i][j]);
          else first[i][j] = second[i][j] = 0;
        }
      hloc_gradient_add<S, O0, STEP>(out0, first, weights, x_tile,
                                     x0(at.batch) + j0 * O0::X_COLUMN + at.feature * O0::X_FEATURE, columns,
                                     O0::FEATURES - at.feature, from_x0);
      if constexpr (S::OUTER > 1)
        hloc_gradient_add<S, O1, STEP>(out1, second, weights, x_tile,
                                       x1(at.batch) + j0 * O1::X_COLUMN + at.feature * O1::X_FEATURE, columns,
                                       O1::FEATURES - at.feature, from_x1);
    }
#pragma unroll
    for (int i = 0; i < TM; i++)
#pragma unroll
      for (int f = 0; f < TF; f++) {
        const int r = ty * TM + i, feature = f / VF * 16 * VF + tx * VF + f % VF;
        at.template give<O0>(finish0, r, feature, out0[i][f]);
        if constexpr (S::OUTER > 1) at.template give<O1>(finish1, r, feature, out1[i][f]);
      }
  }
}

#endif
