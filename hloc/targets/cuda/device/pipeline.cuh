/* pipeline.cuh: a tile of a matrix product on tensor cores, whose operands are copied several steps ahead.
 *
 * In: gemm.cuh, async.cuh, numbers.cuh; a struct S as gemm.cuh says, and STAGES: steps that lie in shared memory at
 * once; BATCHED: sums of a lane that are finished as one batch.
 * Out: hloc_tile_pipeline, which does what hloc_tile_mma does, for elements that are multiplied as they lie in memory,
 * from sources that read 16 bytes at once (address(row, k), or null where there is nothing), or compute as many.
 *
 * In shared memory a line of an operand is what lies together in device memory, in chunks of 16 bytes; chunks change
 * places within a line (hloc_chunk), so that neither copies nor loads of a fragment meet in one bank. Lines of more
 * than 128 bytes are cut into panels of that width: the form in which warpgroup.cuh's instructions read them.
 */
#ifndef HLOC_PIPELINE_CUH
#define HLOC_PIPELINE_CUH

/* One operand, ROWS x DEPTH elements. ALONG: its lines run along k; else along rows. */
template <class T, class Source, int ROWS, int DEPTH, int THREADS> struct hloc_operand {
  static constexpr bool ALONG = Source::K_FIRST;
  static constexpr int V = 16 / sizeof(T), LINES = ALONG ? ROWS : DEPTH, CHUNKS = (ALONG ? DEPTH : ROWS) / V;
  static constexpr int COUNT = LINES * CHUNKS / THREADS, BYTES = ROWS * DEPTH * sizeof(T);
  static_assert(Source::VECTOR == V && THREADS % CHUNKS == 0 && LINES * CHUNKS % THREADS == 0, "chunks of 16 bytes");
  const Source &source;
  typename Source::template places<COUNT> where;
  typename Source::Held held[Source::COMPUTED ? COUNT : 1];

  HLOC_MEMBER static int line_of(int i) { return threadIdx.x / CHUNKS + i * (THREADS / CHUNKS); }
  HLOC_MEMBER static int row_of(int i) { return ALONG ? line_of(i) : threadIdx.x % CHUNKS * V; }
  HLOC_MEMBER static int depth_of(int i) { return ALONG ? threadIdx.x % CHUNKS * V : line_of(i); }

  /* Where a chunk lies. Words of four bytes are read across lines, one by one: these need other banks. */
  HLOC_MEMBER static int hloc_chunk(int line, int chunk) {
    constexpr int WIDTH = CHUNKS < 8 ? CHUNKS : 8, SHARE = 8 / WIDTH, STEP = !ALONG && sizeof(T) == 4 ? 2 : 1;
    return ((chunk / WIDTH * LINES + line) * WIDTH + (chunk % WIDTH ^ line / SHARE * STEP % WIDTH)) * 16;
  }

  HLOC_MEMBER explicit hloc_operand(const Source &source) : source(source) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) source.place(where, i, row_of(i));
  }
  HLOC_MEMBER static int place_of(int i) { return hloc_chunk(line_of(i), threadIdx.x % CHUNKS); }
  /* What a source computes is read first, and made when its place in shared memory is free. */
  HLOC_MEMBER void fetch(long k0) {
    if constexpr (Source::COMPUTED) {
#pragma unroll
      for (int i = 0; i < COUNT; i++) held[i] = source.read(where, i, row_of(i), k0 + depth_of(i));
    }
  }
  HLOC_MEMBER void copy(unsigned char *tile, long k0) const {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      if constexpr (Source::COMPUTED) {
        *(hloc_pack<T, V> *)(tile + place_of(i)) = source.made(held[i], row_of(i), k0 + depth_of(i));
      } else {
        const T *from = source.address(where, i, row_of(i), k0 + depth_of(i));
        hloc_copy_16(tile + place_of(i), from ? from : source.anything(), from != nullptr);
      }
    }
  }

  /* Round to TF32 what this thread has copied, and waited for. */
  HLOC_MEMBER static void round(unsigned char *tile) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      auto *at = (hloc_pack<unsigned, 4> *)(tile + place_of(i));
      hloc_pack<unsigned, 4> words = *at;
#pragma unroll
      for (int v = 0; v < 4; v++) words.at[v] = hloc_f32_to_tf32(hloc_from_bits_f32(words.at[v]));
      *at = words;
    }
  }

  /* Words of fragments of 16 rows x 32 bytes of k, from `row` and the k-th 32 bytes on: (rows 0-7, first 16 bytes),
   * (rows 8-15, first), (rows 0-7, last), (rows 8-15, last). */
  HLOC_MEMBER static void load(unsigned *words, const unsigned char *tile, int row, int k) {
    const int lane = threadIdx.x % 32, matrix = lane / 8;
    if constexpr (ALONG)
      hloc_load_matrices(words, tile + hloc_chunk(row + matrix % 2 * 8 + lane % 8, k * 2 + matrix / 2));
    else if constexpr (sizeof(T) == 2)
      hloc_load_transposed(words, tile + hloc_chunk(k * 16 + matrix / 2 * 8 + lane % 8, row / V + matrix % 2));
    else {
      static_assert(sizeof(T) == 4, "bytes are read along k");
#pragma unroll
      for (int q = 0; q < 4; q++) {
        const int r = row + q % 2 * 8 + lane / 4;
        words[q] = *(const unsigned *)(tile + hloc_chunk(k * 8 + q / 2 * 4 + lane % 4, r / V) + r % V * 4);
      }
    }
  }
};

/* The steps of both operands in shared memory, copied by all threads: the n-th lies in stage n % STAGES. Steps are
 * copied in order, and what the next one is computed from is read before this one is used. */
template <class S, class T, class A, class B, int THREADS> struct hloc_steps {
  typedef hloc_operand<T, A, S::BM, S::BK, THREADS> Left;
  typedef hloc_operand<T, B, S::BN, S::BK, THREADS> Right;
  static constexpr int STAGE = Left::BYTES + Right::BYTES;
  Left a;
  Right b;
  unsigned char *const memory;
  const int count;

  HLOC_MEMBER hloc_steps(const A &a, const B &b, long depth, unsigned char *memory)
      : a(a), b(b), memory(memory), count((depth + S::BK - 1) / S::BK) {}
  HLOC_MEMBER unsigned char *tile(int step) const { return memory + step % S::STAGES * STAGE; }
  HLOC_MEMBER void copy(int step) {
    if (step < count) {
      a.copy(tile(step), (long)step * S::BK);
      b.copy(tile(step) + Left::BYTES, (long)step * S::BK);
    }
    hloc_copy_commit();
    fetch(step + 1);
  }
  HLOC_MEMBER void round(int step) const {
    Left::round(tile(step));
    Right::round(tile(step) + Left::BYTES);
  }
  HLOC_MEMBER void fetch(int step) {
    if (step >= count) return;
    a.fetch((long)step * S::BK);
    b.fetch((long)step * S::BK);
  }
  template <int AHEAD> HLOC_MEMBER void begin() {
    __syncthreads(); /* all have done with the last tile */
    fetch(0);
#pragma unroll
    for (int step = 0; step < AHEAD; step++) copy(step);
  }
};

template <class S, class Sum, class T, class Numbers, class A, class B, class Finish>
HLOC_FN void hloc_tile_pipeline(const A &a, const B &b, long depth, unsigned char *memory, Finish finish) {
  constexpr int ROWS = S::BM / S::WM / 16, COLUMNS = S::BN / S::WN / 8, K = S::BK * sizeof(T) / 32;
  typedef hloc_steps<S, T, A, B, S::WM * S::WN * 32> Steps;
  static_assert(COLUMNS % 2 == 0 && S::STAGES >= 2, "pairs of columns, at least two steps");
  const int warp = threadIdx.x / 32, top = warp % S::WM * (S::BM / S::WM), left = warp / S::WM * (S::BN / S::WN);
  Sum sums[ROWS][COLUMNS][4];
  hloc_clear(sums);
  Steps steps(a, b, depth, memory);
  steps.template begin<S::STAGES - 1>();
  constexpr int AHEAD = Numbers::PARTS > 1 ? 0 : 1; /* fragments loaded while others are multiplied */
  hloc_fragments<Numbers, ROWS, 4> x[AHEAD + 1];
  hloc_fragments<Numbers, COLUMNS, 2> y[AHEAD + 1];
  for (int step = 0; step < steps.count; step++) {
    hloc_copy_wait<S::STAGES - 2>();
    __syncthreads(); /* this step has arrived, and all have read the last one */
    steps.copy(step + S::STAGES - 1);
    const unsigned char *tile = steps.tile(step);
    const auto load = [&](int k) {
#pragma unroll
      for (int i = 0; i < ROWS; i++) {
        unsigned words[4];
        Steps::Left::load(words, tile, top + i * 16, k);
#pragma unroll
        for (int q = 0; q < 4; q++) x[k % (AHEAD + 1)].set_word(i, q, words[q]);
      }
#pragma unroll
      for (int j = 0; j < COLUMNS; j += 2) {
        unsigned words[4];
        Steps::Right::load(words, tile + Steps::Left::BYTES, left + j * 8, k);
#pragma unroll
        for (int q = 0; q < 4; q++) y[k % (AHEAD + 1)].set_word(j + q % 2, q / 2, words[q]);
      }
    };
    if (AHEAD) load(0);
#pragma unroll
    for (int k = 0; k < K; k++) {
      if (k + AHEAD < K) load(k + AHEAD);
      hloc_multiply<Numbers>(sums, x[k % (AHEAD + 1)], y[k % (AHEAD + 1)]);
    }
  }
  hloc_copy_wait<0>();
  __syncthreads(); /* all have read the last step */
  hloc_finish_tile<S::BN / S::WN, S::BATCHED>(sums, (Sum *)memory + warp * hloc_slab<S::BN / S::WN>::SIZE, top, left,
                                               finish);
}

#endif
