/* few_rows.cuh: a product of a few rows on tensor cores; the right operand goes from memory into registers, once.
 *
 * In: gemm.cuh, numbers.cuh; a struct S of gemm.cuh's constants, there
 *   BM, BN   rows (a multiple of 8, at least M) and columns of a block (a multiple of 16)
 *   BK       warps, which have the same columns and share the depth
 *   AHEAD    steps of a warp's columns that are on their way at once
 * Both operands lie along the depth, and B's VECTOR is a multiple of two words of Numbers. Numbers of one part.
 *
 * Columns are the left side of an instruction (16), rows its right one (8). A lane reads VECTOR neighbours of a column
 * and of a row. They are its words of VECTOR / (2 WORD) instructions: which products an instruction adds does not
 * matter, if both sides agree. Behind the last column and row a lane reads that one again, as loads in branches and
 * zeros in their stead take more instructions than the product: these sums are not stored. Behind the depth's end,
 * words of both sides are zero.
 */
#ifndef HLOC_FEW_ROWS_CUH
#define HLOC_FEW_ROWS_CUH

template <class S, class Numbers, class Sum, class Lhs, class Rhs, class Add, class Finish>
HLOC_FN void hloc_gemm_few(Lhs lhs, Rhs rhs, unsigned char *memory, Add add, Finish finish) {
  typedef decltype(hloc_rows<S>(lhs, hloc_gemm_place<S>(0))) A;
  typedef decltype(hloc_columns<S>(rhs, hloc_gemm_place<S>(0))) B;
  typedef typename Numbers::Stored Stored;
  constexpr int DEEP = B::VECTOR, WORD = Numbers::WORD, STEPS = DEEP / (2 * WORD), TILES = S::BN / 16, ROWS = S::BM / 8;
  constexpr long CHUNK = 4 * DEEP, STEP = S::BK * CHUNK, ROUND = S::AHEAD * STEP;
  constexpr bool WHOLE = S::K % CHUNK == 0; /* no lane reads behind the depth's end */
  static_assert(Numbers::PARTS == 1 && DEEP % (2 * WORD) == 0 && DEEP % A::VECTOR == 0, "whole words");
  Sum *parts = (Sum *)memory; /* [warp][row][column] */
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 4;
  for (long work = blockIdx.x; work < hloc_gemm_tiles<S>(); work += gridDim.x) {
    const hloc_gemm_place<S> at(work);
    const A a = hloc_rows<S>(lhs, at);
    const B b = hloc_columns<S>(rhs, at);
    int columns[TILES][2], rows[ROWS];
#pragma unroll
    for (int t = 0; t < TILES * 2; t++) {
      const int column = t * 8 + group;
      columns[t / 2][t % 2] = S::N % S::BN == 0 || at.column + column < S::N ? column : S::N - 1 - at.column;
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) rows[r] = r * 8 + group < S::M ? r * 8 + group : S::M - 1;
    Sum sums[TILES][ROWS][4];
    hloc_clear(sums);
    const auto inside = [](long k) { return WHOLE || k < S::K ? k : S::K - DEEP; };
    const auto read = [&](typename B::Held (&held)[TILES][2], long k) {
#pragma unroll
      for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int half = 0; half < 2; half++) held[t][half] = b.at(columns[t][half], inside(k));
    };
    const auto multiply = [&](const typename B::Held (&held)[TILES][2], long k) {
      const auto word = [&](const hloc_pack<Stored, DEEP> &line, int s) {
        return WHOLE || k < S::K ? *(const unsigned *)&line.at[s * WORD] : 0;
      };
      unsigned y[ROWS][STEPS][2];
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        hloc_pack<Stored, DEEP> line;
#pragma unroll
        for (int d = 0; d < DEEP; d += A::VECTOR) {
          const long place = inside(k) + d;
          const auto made = a.make(a.at(rows[r], place), rows[r], place);
#pragma unroll
          for (int v = 0; v < A::VECTOR; v++) line.at[d + v] = Numbers::lhs(made.at[v]);
        }
#pragma unroll
        for (int s = 0; s < STEPS * 2; s++) y[r][s / 2][s % 2] = word(line, s);
      }
#pragma unroll
      for (int t = 0; t < TILES; t++) {
        unsigned x[STEPS][4];
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const auto made = b.make(held[t][half], columns[t][half], inside(k));
          hloc_pack<Stored, DEEP> line;
#pragma unroll
          for (int d = 0; d < DEEP; d++) line.at[d] = Numbers::rhs(made.at[d]);
#pragma unroll
          for (int s = 0; s < STEPS * 2; s++) x[s / 2][s % 2 * 2 + half] = word(line, s);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
          for (int s = 0; s < STEPS; s++) Numbers::multiply(sums[t][r], x[s], y[r][s]);
      }
    };
    /* Of the warp, and the same for its lanes, which multiply together: */
    const long first = warp * CHUNK;
    const int own = lane % 4 * DEEP;
    typename B::Held held[S::AHEAD][TILES][2] = {};
#pragma unroll
    for (int n = 0; n < S::AHEAD; n++)
      if (first + n * STEP < S::K) read(held[n], first + n * STEP + own);
#pragma unroll 1
    for (long k = first; k < S::K; k += ROUND)
#pragma unroll
      for (int n = 0; n < S::AHEAD; n++) {
        const long now = k + n * STEP;
        if (S::K % ROUND == 0 || now < S::K) multiply(held[n], now + own);
        if (now + ROUND < S::K) read(held[n], now + ROUND + own);
      }
    __syncthreads(); /* the last columns' sums have been read */
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
      for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int q = 0; q < 4; q++)
          parts[(warp * S::BM + r * 8 + lane % 4 * 2 + q % 2) * S::BN + t * 16 + q / 2 * 8 + group] = sums[t][r][q];
    __syncthreads();
    for (int n = threadIdx.x; n < S::M * S::BN; n += blockDim.x) {
      if (at.column + n % S::BN >= S::N) continue;
      Sum sum = parts[n];
      for (int w = 1; w < S::BK; w++) sum = add(sum, parts[w * S::BM * S::BN + n]);
      hloc_finish_one(finish, sum, at.batch, at.row + n / S::BN, at.column + n % S::BN);
    }
  }
}

#endif
