/* gemm.cuh: C[b] = A[b] B[b] by blocks of threads, through shared memory, each sum in a fixed order.
 *
 * In: scalar.h, pack.cuh, mma.cuh, numbers.cuh; a struct S of constants, which says what is computed and in which
 * tiles:
 *   M, N, K, BATCHES, INNER                                          batch b = outer * INNER + inner
 *   A_OUTER, A_INNER, A_ROW, A_K   B_OUTER, B_INNER, B_K, B_COLUMN   strides in elements
 *   A_VECTOR, B_VECTOR   elements side by side that may be read at once: all sizes and strides are multiples of it
 *   BM, BN, BK     a block's tile of C, and the depth of one step
 *   TM, TN         a thread's part of it (hloc_tile);  WM, WN  warps down and across (hloc_tile_mma)
 *   SPLITS, PART   where few tiles sum many products: pieces that K is cut into, and their length (a multiple of BK)
 * Out: hloc_gemm       walks over the tiles of C;  hloc_ragged  of one whose rows fall into GROUPS
 *      hloc_tile       a tile of any type: multiply_add(sum, a, b) gives the new sum
 *      hloc_tile_mma   a tile on tensor cores, of any numbers that numbers.cuh knows
 *      hloc_gemm_thin  few rows: a block of columns reads B once, its threads share K
 *      hloc_gemm_join  adds up the pieces of K
 * finish (tiles/finish.py) is called with every place of C (in pieces: the number of the piece and a place in its part
 * of the scratch memory) and the sums of WIDE columns from there on, an array. It reads what it needs, and returns a
 * function that computes and stores. `memory` is shared and 16-byte aligned; tiles/products.py knows how much is
 * needed. A and B are read through sources: hloc_strided, hloc_computed, and conv.cuh's.
 */
#ifndef HLOC_GEMM_CUH
#define HLOC_GEMM_CUH

#define HLOC_MEMBER __device__ __forceinline__

/* A function of the sums of WIDE columns. */
template <int V, class F> struct hloc_wide_function {
  static constexpr int WIDE = V;
  F call;
};
template <int V, class F> HLOC_FN hloc_wide_function<V, F> hloc_wide(F f) { return {f}; }

/* What becomes of one sum. */
template <class Finish, class Sum, class... Place>
HLOC_FN void hloc_finish_one(const Finish &finish, Sum sum, Place... place) {
  static_assert(Finish::WIDE == 1, "one sum");
  const hloc_pack<Sum, 1> sums = {{sum}};
  finish.call(place..., sums)();
}

/* What becomes of a tile's sums: where(row, column) says which place of C that is, store(spot, sums) calls finish. */
struct hloc_spot {
  long row, column;
  bool inside;
};
template <int V, class Where, class Store> struct hloc_tile_finish {
  static constexpr int WIDE = V;
  const Where where;
  const Store store;
  template <class Sum> HLOC_MEMBER void operator()(int i, int j, Sum sum) const {
    static_assert(WIDE == 1, "one sum");
    const hloc_spot spot = where(i, j);
    const hloc_pack<Sum, 1> sums = {{sum}};
    if (spot.inside) store(spot, sums)();
  }
};
template <class Finish, class Where, class Store>
HLOC_FN hloc_tile_finish<Finish::WIDE, Where, Store> hloc_finish_of(const Finish &, Where where, Store store) {
  return {where, store};
}

/* Where tile number `work` lies. Tiles that run at once are near each other in both directions, so that the second
 * level cache holds what they read. */
template <class S> struct hloc_gemm_place {
  long batch, row, column;
  HLOC_MEMBER explicit hloc_gemm_place(long work) {
    constexpr long COLUMNS = (S::N + S::BN - 1) / S::BN, ROWS = (S::M + S::BM - 1) / S::BM, TOGETHER = 8;
    const long one = work % (ROWS * COLUMNS), first = one / (TOGETHER * COLUMNS) * TOGETHER;
    const long together = ROWS - first < TOGETHER ? ROWS - first : TOGETHER, place = one - first * COLUMNS;
    row = (first + place % together) * S::BM;
    column = place / together * S::BN;
    batch = work / (ROWS * COLUMNS);
  }
  HLOC_MEMBER long a() const { return batch / S::INNER * S::A_OUTER + batch % S::INNER * S::A_INNER; }
  HLOC_MEMBER long b() const { return batch / S::INNER * S::B_OUTER + batch % S::INNER * S::B_INNER; }
  HLOC_MEMBER long rows() const { return S::M - row; }
  HLOC_MEMBER long depth(long piece) const {
    return S::K - piece * S::PART < S::PART ? S::K - piece * S::PART : S::PART;
  }
};
template <class S> HLOC_FN long hloc_gemm_tiles() {
  return (S::N + S::BN - 1) / S::BN * ((S::M + S::BM - 1) / S::BM) * S::BATCHES;
}

/* One operand of a strided product, as rows x K (for B: columns x K). WIDTH elements side by side are read at once. */
template <class T, long ROW, long DEPTH, int WIDTH> struct hloc_strided {
  static constexpr bool K_FIRST = DEPTH == 1, AHEAD = WIDTH * sizeof(T) >= 4;
  static constexpr bool COMPUTED = false;
  static constexpr int VECTOR = WIDTH;
  typedef hloc_pack<T, WIDTH> Held;
  const T *from;
  long rows, depth;
  template <int COUNT> struct places {};
  template <int COUNT> HLOC_MEMBER void place(places<COUNT> &, int, int) const {}
  /* At a place inside. */
  HLOC_MEMBER hloc_pack<T, WIDTH> at(int row, long k) const {
    return *(const hloc_pack<T, WIDTH> *)&from[row * ROW + k * DEPTH];
  }
  template <int COUNT> HLOC_MEMBER hloc_pack<T, WIDTH> read(const places<COUNT> &, int, int row, long k) const {
    return row < rows && k < depth ? at(row, k) : hloc_pack<T, WIDTH>();
  }
  template <int COUNT> HLOC_MEMBER const T *address(const places<COUNT> &, int, int row, long k) const {
    return row < rows && k < depth ? &from[row * ROW + k * DEPTH] : nullptr;
  }
  HLOC_MEMBER const Held &made(const Held &held, int, long) const { return held; }
  HLOC_MEMBER const Held &make(const Held &held, int, long) const { return held; }
  HLOC_MEMBER const T *anything() const { return from; }
};

/* An operand that is computed while it is loaded (prologues.py). P: a struct with
 *   ALONG, VECTOR                            whether vectors run along k or along rows; elements of a vector
 *   Read, read(outer, inner, row, k)         the source elements of a vector, as stored in memory
 *   make(read, outer, inner, row, k)         the computed vector, of type Element */
template <class P> struct hloc_computed {
  static constexpr bool K_FIRST = P::ALONG, AHEAD = P::VECTOR * sizeof(typename P::Element) >= 4, COMPUTED = true;
  static constexpr int VECTOR = P::VECTOR;
  typedef typename P::Read Held;
  const P prologue;
  const long outer, inner, first, rows, depth; /* rows from `first` on */
  template <int COUNT> struct places {};
  template <int COUNT> HLOC_MEMBER void place(places<COUNT> &, int, int) const {}
  HLOC_MEMBER bool inside(int row, long k) const { return row < rows && k < depth; }
  HLOC_MEMBER Held at(int row, long k) const { return prologue.read(outer, inner, first + row, k); }
  HLOC_MEMBER hloc_pack<typename P::Element, VECTOR> make(const Held &held, int row, long k) const {
    return prologue.make(held, outer, inner, first + row, k);
  }
  template <int COUNT> HLOC_MEMBER Held read(const places<COUNT> &, int, int row, long k) const {
    return inside(row, k) ? at(row, k) : Held();
  }
  HLOC_MEMBER hloc_pack<typename P::Element, VECTOR> made(const Held &held, int row, long k) const {
    return inside(row, k) ? make(held, row, k) : hloc_pack<typename P::Element, VECTOR>();
  }
};

/* A tile of ROWS x DEPTH elements that is copied to shared memory through registers. It is prefetched while the tile
 * before it is multiplied (AHEAD); a tile of many small elements, each of which would take a register, is loaded when
 * it is needed. Adjacent threads read adjacent elements of the dimension that is contiguous in memory, each thread as
 * many as the source reads at once. What depends only on the rows that a thread reads is computed once (place). */
template <class T, class Source, int ROWS, int DEPTH, int THREADS> struct hloc_stage {
  static constexpr int V = Source::VECTOR, PACKS = ROWS * DEPTH / V, COUNT = (PACKS + THREADS - 1) / THREADS;
  static constexpr int LINE = Source::K_FIRST ? DEPTH / V : ROWS / V; /* packs side by side */
  const Source &source;
  typename Source::template places<COUNT> where;
  typename Source::Held held[Source::AHEAD ? COUNT : 1];

  HLOC_MEMBER static int row_of(int e) { return Source::K_FIRST ? e / LINE : e % LINE * V; }
  HLOC_MEMBER static int depth_of(int e) { return Source::K_FIRST ? e % LINE * V : e / LINE; }

  HLOC_MEMBER explicit hloc_stage(const Source &source) : source(source) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) source.place(where, i, row_of(threadIdx.x + i * THREADS));
#pragma unroll
    for (int i = 0; i < (Source::AHEAD ? COUNT : 1); i++) held[i] = typename Source::Held();
  }
  HLOC_MEMBER typename Source::Held read(int i, long k0) const {
    const int e = threadIdx.x + i * THREADS;
    return e < PACKS ? source.read(where, i, row_of(e), k0 + depth_of(e)) : typename Source::Held();
  }
  HLOC_MEMBER void fetch(long k0) {
    if constexpr (Source::AHEAD) {
#pragma unroll
      for (int i = 0; i < COUNT; i++) held[i] = read(i, k0);
    }
  }
  /* k0: what was last fetched; stored(x): an element as it lies in the tile. */
  template <int ROW_STRIDE, int K_STRIDE, class Stored, class Convert>
  HLOC_MEMBER void put(Stored *tile, long k0, Convert stored) const {
    if constexpr (Source::AHEAD) {
#pragma unroll
      for (int i = 0; i < COUNT; i++) put_pack<ROW_STRIDE, K_STRIDE>(tile, i, k0, held[i], stored);
    } else {
#pragma unroll 8
      for (int i = 0; i < COUNT; i++) put_pack<ROW_STRIDE, K_STRIDE>(tile, i, k0, read(i, k0), stored);
    }
  }
  template <int ROW_STRIDE, int K_STRIDE, class Stored, class Convert>
  HLOC_MEMBER void put_pack(Stored *tile, int i, long k0, const typename Source::Held &held, Convert stored) const {
    constexpr int STRIDE = Source::K_FIRST ? K_STRIDE : ROW_STRIDE, LINES = Source::K_FIRST ? ROW_STRIDE : K_STRIDE;
    constexpr int W = V * sizeof(Stored) <= 16 ? V : 16 / sizeof(Stored); /* stored at once */
    const int e = threadIdx.x + i * THREADS;
    if (e >= PACKS) return;
    const hloc_pack<T, V> from = source.made(held, row_of(e), k0 + depth_of(e));
    Stored *at = tile + row_of(e) * ROW_STRIDE + depth_of(e) * K_STRIDE;
    hloc_pack<Stored, W> pack;
#pragma unroll
    for (int v = 0; v < V; v++) {
      if constexpr (STRIDE == 1 && LINES % W == 0) {
        pack.at[v % W] = stored(from.at[v]);
        if (v % W == W - 1) *(hloc_pack<Stored, W> *)(at + (v - v % W)) = pack;
      } else at[v * STRIDE] = stored(from.at[v]);
    }
  }
};
template <class T> struct hloc_same { HLOC_MEMBER T operator()(T x) const { return x; } };

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

#pragma unroll 1 /* the first step only fetches: the code that does stands once, which saves a third of compiling */
  for (long k0 = -S::BK; k0 < depth; k0 += S::BK) {
    if (k0 >= 0) {
      __syncthreads(); /* all have read the last tile */
      a_stage.template put<1, A_PITCH>(a_tile, k0, hloc_same<T>());
      b_stage.template put<1, B_PITCH>(b_tile, k0, hloc_same<T>());
      __syncthreads();
    }
    if (k0 + S::BK < depth) {
      a_stage.fetch(k0 + S::BK);
      b_stage.fetch(k0 + S::BK);
    }
    if (k0 < 0) continue;
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

template <int ROWS, int COLUMNS, class Sum> HLOC_FN void hloc_clear(Sum (&sums)[ROWS][COLUMNS][4]) {
#pragma unroll
  for (int i = 0; i < ROWS; i++)
#pragma unroll
    for (int j = 0; j < COLUMNS; j++)
#pragma unroll
      for (int q = 0; q < 4; q++) sums[i][j][q] = 0;
}

/* The parts of ROWS fragments of COUNT words each: [part][fragment][word]. */
template <class Numbers, int ROWS, int COUNT> struct hloc_fragments {
  unsigned at[Numbers::PARTS][ROWS][COUNT];
  HLOC_MEMBER void set(int row, int q, const typename Numbers::Stored *from) {
    split(row, q, *(const typename Numbers::Word *)from);
  }
  HLOC_MEMBER void set_word(int row, int q, unsigned word) {
    if constexpr (sizeof(typename Numbers::Stored) == 4) split(row, q, hloc_from_bits_f32(word));
    else split(row, q, word);
  }
  HLOC_MEMBER void split(int row, int q, typename Numbers::Word rest) {
#pragma unroll
    for (int part = 0; part < Numbers::PARTS; part++) at[part][row][q] = Numbers::part(rest);
  }
};
/* sums += x y. The products of smaller parts are added up first; where these are no number (infinity times what is left
 * over, nothing) they count as none. */
template <class Numbers, int ROWS, int COLUMNS, class Sum>
HLOC_FN void hloc_multiply(Sum (&sums)[ROWS][COLUMNS][4], const hloc_fragments<Numbers, ROWS, 4> &x,
                           const hloc_fragments<Numbers, COLUMNS, 2> &y) {
#pragma unroll
  for (int i = 0; i < ROWS; i++)
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
      if constexpr (Numbers::PARTS > 1) {
        Sum small[4] = {0, 0, 0, 0};
#pragma unroll
        for (int both = Numbers::LAST; both > 0; both--)
#pragma unroll
          for (int p = 0; p < Numbers::PARTS; p++)
            if (both - p >= 0 && both - p < Numbers::PARTS) Numbers::multiply(small, x.at[p][i], y.at[both - p][j]);
#pragma unroll
        for (int q = 0; q < 4; q++) sums[i][j][q] += small[q] == small[q] ? small[q] : 0;
      }
      Numbers::multiply(sums[i][j], x.at[0][i], y.at[0][j]);
    }
}

/* A warp's sums, 16 rows at a time, through its own piece of shared memory, so that lanes finish
 * neighbouring columns. */
template <int COLUMNS> struct hloc_slab { static constexpr int SIZE = 16 * (COLUMNS + 8); };
template <int PITCH, int COLUMNS, class Sum>
HLOC_FN void hloc_fill_slab(Sum *slab, const Sum (&sums)[COLUMNS][4]) {
  const int lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < COLUMNS; j++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const hloc_pack<Sum, 2> both = {sums[j][2 * half], sums[j][2 * half + 1]};
      *(hloc_pack<Sum, 2> *)&slab[(group + half * 8) * PITCH + j * 8 + pair] = both;
    }
  __syncwarp();
}
/* begin(N) ... begin(COUNT - 1), then what they return: all loads come before all stores. */
template <int N, int COUNT, class Begin> HLOC_FN void hloc_finish_batch(const Begin &begin) {
  const auto store = begin(N);
  if constexpr (N + 1 < COUNT) hloc_finish_batch<N + 1, COUNT>(begin);
  store();
}
/* The same of a product's tile, WIDE columns of a lane at once, MOST sums of it together. A lane that has places
 * outside of C reads one of its own places inside in their stead. */
template <int WIDTH, int MOST, int ROWS, int COLUMNS, class Sum, class Finish>
HLOC_FN void hloc_finish_tile(const Sum (&sums)[ROWS][COLUMNS][4], Sum *slab, int top, int left, const Finish &finish) {
  static_assert(WIDTH == COLUMNS * 8 && WIDTH % 32 == 0, "a warp's columns");
  constexpr int PITCH = WIDTH + 8, V = Finish::WIDE, PACKS = 16 * WIDTH / (32 * V), TOGETHER = MOST / V;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
    hloc_fill_slab<PITCH>(slab, sums[i]);
#pragma unroll 1
    for (int n = 0; n < PACKS; n += TOGETHER) {
      hloc_spot spots[TOGETHER], own; /* `own` begins with a spot, so that the compiler sees which have one column */
#pragma unroll
      for (int u = 0; u < TOGETHER; u++) {
        const int e = (n + u) * 32 + lane;
        spots[u] = finish.where(top + i * 16 + e / (WIDTH / V), left + e % (WIDTH / V) * V);
        if (u == 0 || spots[u].inside) own = spots[u];
      }
      if (!own.inside) continue;
      hloc_finish_batch<0, TOGETHER>([&](int u) {
        const int e = (n + u) * 32 + lane;
        const Sum *const own_sums = &slab[e / (WIDTH / V) * PITCH + e % (WIDTH / V) * V];
        const bool inside = spots[u].inside;
        const auto store = finish.store(inside ? spots[u] : own, own_sums);
        return [=] {
          if (inside) store();
        };
      });
    }
    __syncwarp(); /* the last rows have been read */
  }
}

/* The same on tensor cores: warps in a grid of WM x WN, each with a (BM / WM) x (BN / WN) part made of products of
 * 16 x 8 elements over eight words of k. T: an element in memory; Numbers: what becomes of it (numbers.cuh). */
template <class S, class Sum, class T, class Numbers, class A, class B, class Finish>
HLOC_FN void hloc_tile_mma(const A &a, const B &b, long depth, unsigned char *memory, Finish finish) {
  typedef typename Numbers::Stored Stored;
  constexpr int WORD = Numbers::WORD, STEP = 8 * WORD;
  constexpr int PITCH = S::BK + 4 * WORD, ROWS = S::BM / S::WM / 16, COLUMNS = S::BN / S::WN / 8;
  Stored *a_tile = (Stored *)memory, *b_tile = a_tile + S::BM * PITCH; /* [row][k], [column][k] */
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 4, pair = lane % 4 * 2;
  const int word = lane % 4 * WORD;
  const int top = warp % S::WM * (S::BM / S::WM), left = warp / S::WM * (S::BN / S::WN);
  hloc_stage<T, A, S::BM, S::BK, S::WM * S::WN * 32> a_stage(a);
  hloc_stage<T, B, S::BN, S::BK, S::WM * S::WN * 32> b_stage(b);
  Sum sums[ROWS][COLUMNS][4];
  hloc_clear(sums);

#pragma unroll 1 /* as in hloc_tile */
  for (long k0 = -S::BK; k0 < depth; k0 += S::BK) {
    if (k0 >= 0) {
      __syncthreads(); /* all have read the last tile */
      a_stage.template put<PITCH, 1>(a_tile, k0, [](T x) { return Numbers::lhs(x); });
      b_stage.template put<PITCH, 1>(b_tile, k0, [](T x) { return Numbers::rhs(x); });
      __syncthreads();
    }
    if (k0 + S::BK < depth) {
      a_stage.fetch(k0 + S::BK);
      b_stage.fetch(k0 + S::BK);
    }
    if (k0 < 0) continue;
#pragma unroll
    for (int k = 0; k < S::BK; k += STEP) {
      hloc_fragments<Numbers, ROWS, 4> x;
      hloc_fragments<Numbers, COLUMNS, 2> y;
#pragma unroll
      for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int q = 0; q < 4; q++)
          x.set(i, q, &a_tile[(top + i * 16 + group + q % 2 * 8) * PITCH + k + word + q / 2 * 4 * WORD]);
#pragma unroll
      for (int j = 0; j < COLUMNS; j++)
#pragma unroll
        for (int q = 0; q < 2; q++)
          y.set(j, q, &b_tile[(left + j * 8 + group) * PITCH + k + word + q * 4 * WORD]);
      hloc_multiply<Numbers>(sums, x, y);
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
  static constexpr bool K_FIRST = Source::K_FIRST, AHEAD = Source::AHEAD, COMPUTED = Source::COMPUTED;
  static constexpr int VECTOR = Source::VECTOR;
  typedef typename Source::Held Held;
  Source source;
  long first;
  template <int COUNT> using places = typename Source::template places<COUNT>;
  template <class Places> HLOC_MEMBER void place(Places &where, int i, int row) const { source.place(where, i, row); }
  template <class Places> HLOC_MEMBER auto read(const Places &where, int i, int row, long k) const {
    return source.read(where, i, row, first + k);
  }
  template <class Places> HLOC_MEMBER auto address(const Places &where, int i, int row, long k) const {
    return source.address(where, i, row, first + k);
  }
  HLOC_MEMBER auto made(const Held &held, int row, long k) const { return source.made(held, row, first + k); }
  HLOC_MEMBER auto anything() const { return source.anything(); }
};
/* All tiles of a product and all pieces of its depth: each(place, piece, store) computes one. */
template <class S, class Each, class Finish> HLOC_FN void hloc_gemm_walk(Each each, Finish finish) {
  for (long work = blockIdx.x; work < hloc_gemm_tiles<S>() * S::SPLITS; work += gridDim.x) {
    const hloc_gemm_place<S> at(work / S::SPLITS);
    const long piece = work % S::SPLITS;
    each(at, piece, hloc_finish_of(
        finish,
        [&](int i, int j) {
          const long row = at.row + i, column = at.column + j;
          return hloc_spot{row, column, row < S::M && column < S::N};
        },
        [&](const hloc_spot &spot, const auto &sums) {
          if constexpr (S::SPLITS > 1)
            return finish.call(piece, (at.batch * S::M + spot.row) * S::N + spot.column, sums);
          else return finish.call(at.batch, spot.row, spot.column, sums);
        }));
  }
}

/* Rows that fall into GROUPS, each of which meets its own right operand (INNER = GROUPS, A_INNER = 0): a tile of the
 * rows of one group. Those behind the last group are one more, whose sums have no products. */
template <class S> struct hloc_ragged_place {
  static constexpr long COLUMNS = (S::N + S::BN - 1) / S::BN, MOST = (S::M + S::BM - 1) / S::BM + S::GROUPS + 1;
  long batch, row, column, end; /* batch: the group */
  bool found;
  template <class Size> HLOC_MEMBER hloc_ragged_place(long work, const Size *sizes)
      : row(0), column(0), end(0), found(false) {
    long before = 0, start = 0;
    for (batch = 0; batch <= S::GROUPS; batch++, start = end) {
      const long left = S::M - start, given = batch < S::GROUPS ? (long)sizes[batch] : left;
      const long size = given < 0 ? 0 : given < left ? given : left;
      end = start + size;
      const long tiles = (size + S::BM - 1) / S::BM, strip = work / COLUMNS - before;
      if (strip < tiles) {
        row = start + strip * S::BM, column = work % COLUMNS * S::BN, found = true;
        return;
      }
      before += tiles;
    }
  }
  HLOC_MEMBER long a() const { return 0; }
  HLOC_MEMBER long b() const { return batch < S::GROUPS ? batch * S::B_INNER : 0; }
  HLOC_MEMBER long rows() const { return end - row; }
  HLOC_MEMBER long depth(long) const { return batch < S::GROUPS ? S::K : 0; }
};
template <class S, class Size, class Each, class Finish>
HLOC_FN void hloc_ragged_walk(const Size *sizes, Each each, Finish finish) {
  for (long work = blockIdx.x; work < hloc_ragged_place<S>::MOST * hloc_ragged_place<S>::COLUMNS; work += gridDim.x) {
    const hloc_ragged_place<S> at(work, sizes);
    if (!at.found) return;
    each(at, 0, hloc_finish_of(
        finish,
        [&](int i, int j) { return hloc_spot{at.row + i, at.column + j, i < at.rows() && at.column + j < S::N}; },
        [&](const hloc_spot &spot, const auto &sums) { return finish.call(0, spot.row, spot.column, sums); }));
  }
}

/* The operands of a tile as sources: arrays, or what computes them. */
template <class S, class T, class Place>
HLOC_FN hloc_strided<T, S::A_ROW, S::A_K, S::A_VECTOR> hloc_rows(const T *lhs, const Place &at) {
  return {lhs + at.a() + at.row * S::A_ROW, at.rows(), S::K};
}
template <class S, class P, class Place> HLOC_FN hloc_computed<P> hloc_rows(const P &lhs, const Place &at) {
  return {lhs, at.batch / S::INNER, at.batch % S::INNER, at.row, at.rows(), S::K};
}
template <class S, class T, class Place>
HLOC_FN hloc_strided<T, S::B_COLUMN, S::B_K, S::B_VECTOR> hloc_columns(const T *rhs, const Place &at) {
  return {rhs + at.b() + at.column * S::B_COLUMN, S::N - at.column, S::K};
}
template <class S, class P, class Place> HLOC_FN hloc_computed<P> hloc_columns(const P &rhs, const Place &at) {
  return {rhs, at.batch / S::INNER, at.batch % S::INNER, at.column, S::N - at.column, S::K};
}
/* What computes one tile of a product: tile(a, b, depth, finish). */
template <class S, class Lhs, class Rhs, class Tile> struct hloc_gemm_each {
  const Lhs lhs;
  const Rhs rhs;
  Tile tile;
  template <class Place, class Store> HLOC_MEMBER void operator()(const Place &at, long piece, Store store) const {
    typedef decltype(hloc_rows<S>(lhs, at)) A;
    typedef decltype(hloc_columns<S>(rhs, at)) B;
    const hloc_from<A> a = {hloc_rows<S>(lhs, at), piece * S::PART};
    const hloc_from<B> b = {hloc_columns<S>(rhs, at), piece * S::PART};
    tile(a, b, at.depth(piece), store);
  }
};
/* All tiles of a product; of one whose rows fall into groups. */
template <class S, class Lhs, class Rhs, class Tile, class Finish>
HLOC_FN void hloc_gemm(Lhs lhs, Rhs rhs, Tile tile, Finish finish) {
  hloc_gemm_walk<S>(hloc_gemm_each<S, Lhs, Rhs, Tile>{lhs, rhs, tile}, finish);
}
template <class S, class Lhs, class Rhs, class Size, class Tile, class Finish>
HLOC_FN void hloc_ragged(Lhs lhs, Rhs rhs, const Size *sizes, Tile tile, Finish finish) {
  hloc_ragged_walk<S>(sizes, hloc_gemm_each<S, Lhs, Rhs, Tile>{lhs, rhs, tile}, finish);
}

/* The sums of TOTAL places in all pieces, in order: each(place, sums) gets WIDE of them. */
template <int WIDE, int SPLITS, long TOTAL, class Sum, class Add, class Each>
HLOC_FN void hloc_join_pieces(const Sum *parts, Add add, Each each) {
  typedef hloc_pack<Sum, WIDE> Pack;
  const long step = (long)gridDim.x * blockDim.x * WIDE;
  for (long n = (blockIdx.x * (long)blockDim.x + threadIdx.x) * WIDE; n < TOTAL; n += step) {
    Pack sums = *(const Pack *)&parts[n];
#pragma unroll 8
    for (int piece = 1; piece < SPLITS; piece++) {
      const Pack more = *(const Pack *)&parts[piece * TOTAL + n];
#pragma unroll
      for (int v = 0; v < WIDE; v++) sums.at[v] = add(sums.at[v], more.at[v]);
    }
    each(n, sums);
  }
}
template <class S, class Sum, class Add, class Finish>
HLOC_FN void hloc_gemm_join(const Sum *parts, Add add, Finish finish) {
  constexpr long TOTAL = (long)S::BATCHES * S::M * S::N;
  hloc_join_pieces<Finish::WIDE, S::SPLITS, TOTAL>(parts, add, [&](long n, const auto &sums) {
    finish.call(n / S::N / S::M, n / S::N % S::M, n % S::N, sums)();
  });
}

/* Few rows, BM >= M: a block reads BN columns of B once, its threads share K in BK slices. A thread reads neighbours of
 * B at once, along k (neighbouring threads are neighbouring slices) or of one row of B (they are neighbouring columns).
 * A is read again by every block: its VECTOR must divide what a thread takes of k at once. */
template <class S, class Sum, class Lhs, class Rhs, class MultiplyAdd, class Add, class Finish>
HLOC_FN void hloc_gemm_thin(Lhs lhs, Rhs rhs, unsigned char *memory, MultiplyAdd multiply_add, Add add, Finish finish) {
  typedef decltype(hloc_rows<S>(lhs, hloc_gemm_place<S>(0))) A;
  typedef decltype(hloc_columns<S>(rhs, hloc_gemm_place<S>(0))) B;
  constexpr int DEEP = B::K_FIRST ? B::VECTOR : 1, WIDE = B::K_FIRST ? 1 : B::VECTOR, ACROSS = S::BN / WIDE;
  constexpr int AHEAD = S::AHEAD; /* vectors of B that are read before the first one is used; all of A is in cache */
  constexpr long STEP = S::BK * DEEP;
  static_assert(DEEP % A::VECTOR == 0 && S::K % DEEP == 0, "packs of A lie in those of B, and these in rows");
  Sum *parts = (Sum *)memory;
  const int t = threadIdx.x, slice = B::K_FIRST ? t % S::BK : t / ACROSS;
  const int j = B::K_FIRST ? t / S::BK : t % ACROSS * WIDE;
  for (long work = blockIdx.x; work < hloc_gemm_tiles<S>(); work += gridDim.x) {
    const hloc_gemm_place<S> at(work);
    const A a = hloc_rows<S>(lhs, at);
    const B b = hloc_columns<S>(rhs, at);
    Sum sums[S::BM][WIDE];
#pragma unroll
    for (int i = 0; i < S::BM; i++)
#pragma unroll
      for (int w = 0; w < WIDE; w++) sums[i][w] = Sum();
    if (at.column + j < S::N) {
      const auto multiply = [&](const typename B::Held &held, long k) {
        const auto y = b.make(held, j, k);
#pragma unroll
        for (int i = 0; i < S::M; i++)
#pragma unroll
          for (int d = 0; d < DEEP; d += A::VECTOR) {
            const auto x = a.make(a.at(i, k + d), i, k + d);
#pragma unroll
            for (int v = 0; v < A::VECTOR; v++)
#pragma unroll
              for (int w = 0; w < WIDE; w++)
                sums[i][w] = multiply_add(sums[i][w], x.at[v], y.at[DEEP > 1 ? d + v : w]);
          }
      };
      long k = slice * DEEP;
#pragma unroll 1
      for (; k + (AHEAD - 1) * STEP < S::K; k += AHEAD * STEP) {
        typename B::Held held[AHEAD];
#pragma unroll
        for (int n = 0; n < AHEAD; n++) held[n] = b.at(j, k + n * STEP);
#pragma unroll
        for (int n = 0; n < AHEAD; n++) multiply(held[n], k + n * STEP);
      }
#pragma unroll 1
      for (; k < S::K; k += STEP) multiply(b.at(j, k), k);
    }
    /* [row][slice][column], of some rows at once: first each of GROUPS threads adds up some slices of a sum, in the
     * place of the first of them, then one adds up what these found. */
    constexpr int ROWS = S::ROWS_AT_ONCE, GROUPS = S::BK > 16 ? 16 : S::BK;
#pragma unroll
    for (int first = 0; first < S::M; first += ROWS) {
      __syncthreads(); /* the sums of the last rows have been read */
#pragma unroll
      for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int w = 0; w < WIDE; w++) parts[(i * S::BK + slice) * S::BN + j + w] = sums[first + i][w];
      __syncthreads();
      for (int n = t; n < ROWS * GROUPS * S::BN; n += blockDim.x) {
        Sum *own = &parts[(n / (GROUPS * S::BN) * S::BK + n / S::BN % GROUPS) * S::BN + n % S::BN];
        Sum sum = own[0];
#pragma unroll
        for (int k = GROUPS; k < S::BK; k += GROUPS) sum = add(sum, own[k * S::BN]);
        own[0] = sum;
      }
      __syncthreads();
      for (int n = t; n < ROWS * S::BN; n += blockDim.x) {
        const int row = n / S::BN, column = n % S::BN;
        const Sum *own = &parts[row * S::BK * S::BN + column];
        Sum sum = own[0];
#pragma unroll
        for (int g = 1; g < GROUPS; g++) sum = add(sum, own[g * S::BN]);
        if (first + row < S::M && at.column + column < S::N)
          hloc_finish_one(finish, sum, at.batch, at.row + first + row, at.column + column);
      }
    }
  }
}

#endif
