/* lines.cuh: an operand as lines along the depth, which a kernel packs before the matrix product, in scratch memory.
 *
 * The instructions of sm_90a read bytes and f32 only along the depth, and f32 without rounding. In: gemm.cuh's sources;
 * a struct P of constants:
 *   ROWS, DEPTH, BATCHES   of the operand;  LINE   elements from one row to the next: a multiple of 16 bytes
 *   PAIRS                  of 8 elements of the depth, those at even places come first (hloc_paired)
 * Out: hloc_pack_lines<P>(source, to), source(batch): as gemm.cuh says. f32 are rounded to TF32.
 */
#ifndef HLOC_LINES_CUH
#define HLOC_LINES_CUH

/* Which element of the depth lies at the k-th place of a line: warpgroup.cuh reads the other operand across its lines,
 * and four of these, two lines apart, have places in different banks. */
HLOC_FN long hloc_paired(long k) { return k / 8 * 8 + (k % 8 < 4 ? k % 8 * 2 : k % 8 * 2 - 7); }

template <class P, class T, class Make> HLOC_FN void hloc_pack_lines(Make source_of, T *to) {
  typedef decltype(source_of(0)) Source;
  constexpr int V = 16 / sizeof(T), WIDE = Source::K_FIRST ? 1 : Source::VECTOR;
  constexpr int DEEP = Source::K_FIRST ? Source::VECTOR : 1;
  /* Eight lanes have pieces of a line one after the other, of 128 bytes, and the next lanes other rows: a warp reads
   * and writes whole sectors whichever way the operand lies. */
  constexpr int BESIDE = Source::K_FIRST ? 1 : 8;
  constexpr long ACROSS = (P::ROWS + WIDE - 1) / WIDE, PIECES = P::LINE / V;
  constexpr long EACH = ACROSS * ((PIECES + BESIDE - 1) / BESIDE * BESIDE);
  static_assert(P::LINE % V == 0 && (!P::PAIRS || DEEP == 1 || V % 8 == 0), "pieces of 16 bytes");
  typename Source::template places<1> nothing;
  for (long n = blockIdx.x * (long)blockDim.x + threadIdx.x; n < EACH * P::BATCHES; n += (long)gridDim.x * blockDim.x) {
    const long batch = n / EACH, one = n % EACH;
    const long piece = Source::K_FIRST ? one % PIECES : one / BESIDE / ACROSS * BESIDE + one % BESIDE;
    const long row = (Source::K_FIRST ? one / PIECES : one / BESIDE % ACROSS) * WIDE, k0 = piece * V;
    if (piece >= PIECES) continue;
    const Source source = source_of(batch);
    T found[WIDE][V];
#pragma unroll
    for (int v = 0; v < V; v += DEEP) {
      const auto held = source.read(nothing, 0, row, P::PAIRS ? hloc_paired(k0 + v) : k0 + v);
#pragma unroll
      for (int e = 0; e < WIDE * DEEP; e++) found[e / DEEP][v + e % DEEP] = held.at[e];
    }
#pragma unroll
    for (int w = 0; w < WIDE; w++) {
      hloc_pack<T, V> line;
#pragma unroll
      for (int v = 0; v < V; v++) {
        if constexpr (sizeof(T) == 4) line.at[v] = hloc_from_bits_f32(hloc_f32_to_tf32(found[w][v]));
        else line.at[v] = found[w][v];
      }
      hloc_put(&to[(batch * P::ROWS + row + w) * P::LINE + k0], line);
    }
  }
}

#endif
