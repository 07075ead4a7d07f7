/* gemm.cuh: C[b] = A[b] B[b] by blocks of threads, through shared memory, each sum in a fixed order.
 *
 * In: scalar.h, pack.cuh, mma.cuh; a struct S of constants, which says what is computed and in which tiles:
 *   M, N, K, BATCHES, INNER                                          batch b = outer * INNER + inner
 *   A_OUTER, A_INNER, A_ROW, A_K   B_OUTER, B_INNER, B_K, B_COLUMN   strides in elements
 *   A_VECTOR, B_VECTOR   elements side by side that may be read at once: all sizes and strides are multiples of it
 *   BM, BN, BK     a block's tile of C, and the depth of one step
 *   TM, TN         a thread's part of it (hloc_tile);  WM, WN  warps down and across (hloc_tile_mma)
 *   SPLITS, PART   where few tiles sum many products: pieces that K is cut into, and their length (a multiple of BK)
 * Out: hloc_gemm       walks over the tiles of C
 *      hloc_tile       a tile of any type: multiply_add(sum, a, b) gives the new sum
 *      hloc_tile_mma   a tile on tensor cores: of bf16 or f16 with sums in f32, of s8 with sums in s32
 *      hloc_gemm_thin  few rows: a block of columns reads B once, its threads share K
 *      hloc_gemm_join  adds up the pieces of K
 * finish is called once for every element of C (in pieces: with the number of the piece and a place in its part of the
 * scratch memory). `memory` is shared and 16-byte aligned; hloc/targets/cuda/products.py
 * knows how much is needed. A and B are read through sources: hloc_strided, and conv.cuh's.
 */
#ifndef HLOC_GEMM_CUH
#define HLOC_GEMM_CUH

#define HLOC_MEMBER __device__ __forceinline__

/* Where tile number `work` lies. */
template <class S> struct hloc_gemm_place {
  long batch, row, column;
  HLOC_MEMBER explicit hloc_gemm_place(long work) {
    const long columns = (S::N + S::BN - 1) / S::BN, rows = (S::M + S::BM - 1) / S::BM;
    column = work % columns * S::BN;
    row = work / columns % rows * S::BM;
    batch = work / columns / rows;
  }
  HLOC_MEMBER long a() const { return batch / S::INNER * S::A_OUTER + batch % S::INNER * S::A_INNER; }
  HLOC_MEMBER long b() const { return batch / S::INNER * S::B_OUTER + batch % S::INNER * S::B_INNER; }
};
template <class S> HLOC_FN long hloc_gemm_tiles() {
  return (S::N + S::BN - 1) / S::BN * ((S::M + S::BM - 1) / S::BM) * S::BATCHES;
}

/* One operand of a strided product, as rows x K (for B: columns x K). WIDTH elements side by side are read at once. */
template <class T, long ROW, long DEPTH, int WIDTH> struct hloc_strided {
  static constexpr bool K_FIRST = DEPTH == 1;
  static constexpr int VECTOR = WIDTH;
  const T *from;
  long rows, depth;
  template <int COUNT> struct places {};
  template <int COUNT> HLOC_MEMBER void place(places<COUNT> &, int, int) const {}
  template <int COUNT> HLOC_MEMBER hloc_pack<T, WIDTH> read(const places<COUNT> &, int, int row, long k) const {
    return row < rows && k < depth ? *(const hloc_pack<T, WIDTH> *)&from[row * ROW + k * DEPTH]
                                   : hloc_pack<T, WIDTH>();
  }
};

/* A tile of ROWS x DEPTH elements on its way through registers: fetched while the last one is used. Neighbouring
 * threads read neighbouring elements of whichever dimension lies together in memory, each thread as many as the source
 * reads at once. What a source needs to know about the rows that a thread reads is computed once (place). */
template <class T, class Source, int ROWS, int DEPTH, int THREADS> struct hloc_stage {
  static constexpr int V = Source::VECTOR, PACKS = ROWS * DEPTH / V, COUNT = (PACKS + THREADS - 1) / THREADS;
  static constexpr int LINE = Source::K_FIRST ? DEPTH / V : ROWS / V; /* packs side by side */
  const Source &source;
  typename Source::template places<COUNT> where;
  hloc_pack<T, V> held[COUNT];

  HLOC_MEMBER static int row_of(int e) { return Source::K_FIRST ? e / LINE : e % LINE * V; }
  HLOC_MEMBER static int depth_of(int e) { return Source::K_FIRST ? e % LINE * V : e / LINE; }

  HLOC_MEMBER explicit hloc_stage(const Source &source) : source(source) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) source.place(where, i, row_of(threadIdx.x + i * THREADS));
  }
  HLOC_MEMBER void fetch(long k0) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      const int e = threadIdx.x + i * THREADS;
      held[i] = e < PACKS ? source.read(where, i, row_of(e), k0 + depth_of(e)) : hloc_pack<T, V>();
    }
  }
  template <int ROW_STRIDE, int K_STRIDE> HLOC_MEMBER void put(T *tile) const {
    constexpr int STRIDE = Source::K_FIRST ? K_STRIDE : ROW_STRIDE, LINES = Source::K_FIRST ? ROW_STRIDE : K_STRIDE;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      const int e = threadIdx.x + i * THREADS;
      T *at = tile + row_of(e) * ROW_STRIDE + depth_of(e) * K_STRIDE;
      if (e >= PACKS) continue;
      if constexpr (STRIDE == 1 && LINES % V == 0) *(hloc_pack<T, V> *)at = held[i];
      else {
#pragma unroll
        for (int v = 0; v < V; v++) at[v * STRIDE] = held[i].at[v];
      }
    }
  }
};

/* One BM x BN tile of sums over k, a TM x TN part of it by each thread; finish(row, column, sum) within the tile. */
template <class S, class Sum, class T, class A, class B, class MultiplyAdd, class Finish>
HLOC_FN void hloc_tile(const A &a, const B &b, long depth, unsigned char *memory, MultiplyAdd multiply_add,
                       Finish finish) {
  constexpr int ACROSS = S::BN / S::TN, DOWN = S::BM / S::TM, THREADS = ACROSS * DOWN;
  constexpr int V = sizeof(T) * 4 <= 16 ? 4 : 16 / sizeof(T), VM = S::TM < V ? S::TM : V, VN = S::TN < V ? S::TN : V;
  constexpr int A_PITCH = S::BM + V, B_PITCH = S::BN + V;
  T *a_tile = (T *)memory, *b_tile = a_tile + S::BK * A_PITCH; /* [k][row], [k][column] */
  const int tx = threadIdx.x % ACROSS, ty = threadIdx.x / ACROSS;
  hloc_stage<T, A, S::BM, S::BK, THREADS> a_stage(a);
  hloc_stage<T, B, S::BN, S::BK, THREADS> b_stage(b);
  Sum sums[S::TM][S::TN];
#pragma unroll
  for (int i = 0; i < S::TM; i++)
#pragma unroll
    for (int j = 0; j < S::TN; j++) sums[i][j] = Sum();

  a_stage.fetch(0);
  b_stage.fetch(0);
  for (long k0 = 0; k0 < depth; k0 += S::BK) {
    __syncthreads(); /* all have read the last tile */
    a_stage.template put<1, A_PITCH>(a_tile);
    b_stage.template put<1, B_PITCH>(b_tile);
    __syncthreads();
    if (k0 + S::BK < depth) {
      a_stage.fetch(k0 + S::BK);
      b_stage.fetch(k0 + S::BK);
    }
#pragma unroll
    for (int k = 0; k < S::BK; k++) {
      hloc_pack<T, VM> x[S::TM / VM];
      hloc_pack<T, VN> y[S::TN / VN];
#pragma unroll
      for (int i = 0; i < S::TM / VM; i++)
        x[i] = *(const hloc_pack<T, VM> *)&a_tile[k * A_PITCH + i * DOWN * VM + ty * VM];
#pragma unroll
      for (int j = 0; j < S::TN / VN; j++)
        y[j] = *(const hloc_pack<T, VN> *)&b_tile[k * B_PITCH + j * ACROSS * VN + tx * VN];
#pragma unroll
      for (int i = 0; i < S::TM; i++)
#pragma unroll
        for (int j = 0; j < S::TN; j++)
          sums[i][j] = multiply_add(sums[i][j], x[i / VM].at[i % VM], y[j / VN].at[j % VN]);
    }
  }
#pragma unroll
  for (int i = 0; i < S::TM; i++)
#pragma unroll
    for (int j = 0; j < S::TN; j++)
      finish(i / VM * DOWN * VM + ty * VM + i % VM, j / VN * ACROSS * VN + tx * VN + j % VN, sums[i][j]);
}

/* The same on tensor cores: warps in a grid of WM x WN, each with a (BM / WM) x (BN / WN) part made of products of 16 x 8
 * elements over 32 bytes of k. T: bits of an element, WORD of them fill a register. */
template <class S, class Sum, class T, class A, class B, class Multiply, class Finish>
HLOC_FN void hloc_tile_mma(const A &a, const B &b, long depth, unsigned char *memory, Multiply multiply,
                           Finish finish) {
  constexpr int WORD = 4 / sizeof(T), STEP = 8 * WORD;
  constexpr int PITCH = S::BK + 4 * WORD, ROWS = S::BM / S::WM / 16, COLUMNS = S::BN / S::WN / 8;
  T *a_tile = (T *)memory, *b_tile = a_tile + S::BM * PITCH; /* [row][k], [column][k] */
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 4, pair = lane % 4 * 2;
  const int word = lane % 4 * WORD;
  const int top = warp % S::WM * (S::BM / S::WM), left = warp / S::WM * (S::BN / S::WN);
  hloc_stage<T, A, S::BM, S::BK, S::WM * S::WN * 32> a_stage(a);
  hloc_stage<T, B, S::BN, S::BK, S::WM * S::WN * 32> b_stage(b);
  Sum sums[ROWS][COLUMNS][4];
#pragma unroll
  for (int i = 0; i < ROWS; i++)
#pragma unroll
    for (int j = 0; j < COLUMNS; j++)
#pragma unroll
      for (int q = 0; q < 4; q++) sums[i][j][q] = 0;

  a_stage.fetch(0);
  b_stage.fetch(0);
  for (long k0 = 0; k0 < depth; k0 += S::BK) {
    __syncthreads(); /* all have read the last tile */
    a_stage.template put<PITCH, 1>(a_tile);
    b_stage.template put<PITCH, 1>(b_tile);
    __syncthreads();
    if (k0 + S::BK < depth) {
      a_stage.fetch(k0 + S::BK);
      b_stage.fetch(k0 + S::BK);
    }
#pragma unroll
    for (int k = 0; k < S::BK; k += STEP) {
      unsigned x[ROWS][4], y[COLUMNS][2];
#pragma unroll
      for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int q = 0; q < 4; q++)
          x[i][q] = *(const unsigned *)&a_tile[(top + i * 16 + group + q % 2 * 8) * PITCH + k + word + q / 2 * 4 * WORD];
#pragma unroll
      for (int j = 0; j < COLUMNS; j++)
#pragma unroll
        for (int q = 0; q < 2; q++)
          y[j][q] = *(const unsigned *)&b_tile[(left + j * 8 + group) * PITCH + k + word + q * 4 * WORD];
#pragma unroll
      for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) multiply(sums[i][j], x[i], y[j]);
    }
  }
#pragma unroll
  for (int i = 0; i < ROWS; i++)
#pragma unroll
    for (int j = 0; j < COLUMNS; j++)
#pragma unroll
      for (int q = 0; q < 4; q++)
        finish(top + i * 16 + group + q / 2 * 8, left + j * 8 + pair + q % 2, sums[i][j][q]);
}

/* A source from some k on. */
template <class Source> struct hloc_from {
  static constexpr bool K_FIRST = Source::K_FIRST;
  static constexpr int VECTOR = Source::VECTOR;
  Source source;
  long first;
  template <int COUNT> using places = typename Source::template places<COUNT>;
  template <class Places> HLOC_MEMBER void place(Places &where, int i, int row) const { source.place(where, i, row); }
  template <class Places> HLOC_MEMBER auto read(const Places &where, int i, int row, long k) const {
    return source.read(where, i, row, first + k);
  }
};
/* Products of one piece. */
template <class S> HLOC_FN long hloc_depth(long piece) {
  return S::K - piece * S::PART < S::PART ? S::K - piece * S::PART : S::PART;
}

/* All tiles of a strided product; tile(a, b, depth, finish) computes one. */
template <class S, class T, class Tile, class Finish>
HLOC_FN void hloc_gemm(const T *lhs, const T *rhs, Tile tile, Finish finish) {
  typedef hloc_strided<T, S::A_ROW, S::A_K, S::A_VECTOR> A;
  typedef hloc_strided<T, S::B_COLUMN, S::B_K, S::B_VECTOR> B;
  for (long work = blockIdx.x; work < hloc_gemm_tiles<S>() * S::SPLITS; work += gridDim.x) {
    const hloc_gemm_place<S> at(work / S::SPLITS);
    const long piece = work % S::SPLITS, first = piece * S::PART;
    const hloc_from<A> a = {A{lhs + at.a() + at.row * S::A_ROW, S::M - at.row, S::K}, first};
    const hloc_from<B> b = {B{rhs + at.b() + at.column * S::B_COLUMN, S::N - at.column, S::K}, first};
    tile(a, b, hloc_depth<S>(piece), [&](int i, int j, auto sum) {
      const long row = at.row + i, column = at.column + j;
      if (row >= S::M || column >= S::N) return;
      if constexpr (S::SPLITS > 1) finish(piece, (at.batch * S::M + row) * S::N + column, sum);
      else finish(at.batch, row, column, sum);
    });
  }
}

template <class S, class Sum, class Add, class Finish>
HLOC_FN void hloc_gemm_join(const Sum *parts, Add add, Finish finish) {
  const long total = (long)S::BATCHES * S::M * S::N, step = (long)gridDim.x * blockDim.x;
  for (long n = blockIdx.x * (long)blockDim.x + threadIdx.x; n < total; n += step) {
    Sum sum = parts[n];
    for (long piece = 1; piece < S::SPLITS; piece++) sum = add(sum, parts[piece * total + n]);
    finish(n / S::N / S::M, n / S::N % S::M, n % S::N, sum);
  }
}

/* BM = M rows at once (few), BN = 32 columns, BK = slices of K: thread (slice, column) sums every BK-th product. Where
 * the columns of B lie together neighbouring threads are neighbouring columns, else neighbouring slices. */
template <class S, class Sum, class T, class MultiplyAdd, class Add, class Finish>
HLOC_FN void hloc_gemm_thin(const T *lhs, const T *rhs, unsigned char *memory, MultiplyAdd multiply_add, Add add,
                            Finish finish) {
  constexpr bool K_FIRST = S::B_K == 1 && S::B_COLUMN != 1;
  Sum *parts = (Sum *)memory; /* [slice][column] */
  const int t = threadIdx.x, slice = K_FIRST ? t % S::BK : t / S::BN, j = K_FIRST ? t / S::BK : t % S::BN;
  for (long work = blockIdx.x; work < hloc_gemm_tiles<S>(); work += gridDim.x) {
    const hloc_gemm_place<S> place(work);
    const T *a = lhs + place.a() + place.row * S::A_ROW, *b = rhs + place.b() + (place.column + j) * S::B_COLUMN;
    Sum sums[S::BM];
#pragma unroll
    for (int i = 0; i < S::BM; i++) sums[i] = Sum();
    if (place.column + j < S::N) {
#pragma unroll 4
      for (long k = slice; k < S::K; k += S::BK) {
        const T y = b[k * S::B_K];
#pragma unroll
        for (int i = 0; i < S::BM; i++)
          if (place.row + i < S::M) sums[i] = multiply_add(sums[i], a[i * S::A_ROW + k * S::A_K], y);
      }
    }
#pragma unroll
    for (int i = 0; i < S::BM; i++) {
      __syncthreads(); /* the last row's parts have been read */
      parts[slice * S::BN + j] = sums[i];
      __syncthreads();
      if (t < S::BN && place.row + i < S::M && place.column + t < S::N) {
        Sum sum = parts[t];
        for (int part = 1; part < S::BK; part++) sum = add(sum, parts[part * S::BN + t]);
        finish(place.batch, place.row + i, place.column + t, sum);
      }
    }
  }
}

#endif
