/* attention.cuh: softmax(score(Q K^T)) V in one pass over the keys, the scores never in memory.
 *
 * In: gemm.cuh, async.cuh, numbers.cuh; a struct S of constants:
 *   ROWS, COLUMNS, DEPTH, FEATURES, BATCHES        queries, keys, length of both, length of a value
 *   Q_ROW, Q_K, K_COLUMN, K_K, V_COLUMN, V_FEATURE strides in elements;  Q_VECTOR, K_VECTOR, V_VECTOR as in gemm.cuh
 *   BM, BN, FC       queries and keys of a tile, features of a block (those of a row may be several blocks' work)
 *   NEW_LINES        whether lines of keys and values may lie elsewhere than a stride from the one before
 *   SPLITS, PART     pieces that the keys are cut into, and their length (a multiple of BN)
 *   DP, TM           DEPTH as a multiple of 16, and how often 16 queries a warp has (tensor cores); queries of a thread
 *                    (registers)
 * and functions: query_at(batch), key_at(batch), value_at(batch): where a batch starts;
 *   key_line(batch, column), value_line(batch, column): the first element of a key and of a value;
 *   rounded_pair(low, high): two weights in a word, of the values' type;
 *   live(batch, row, column), where a mask lets scores through, and `masked` what it puts in their place (MASKED: the
 *   bits of an element's exponent; 0 where there is no mask);
 *   score(batch, row, column, sum): what the softmax is taken of; on tensor cores SCALE times that
 *   finish(batch, row, feature, values)     an hloc_wide; of one value, by warpgroups of STORED
 *   keep(piece, batch, row, feature, sum) where keys are cut; keep_state(piece, batch, row, largest, total) there, and
 *   where a backward pass reads that (STATES)
 * Out: hloc_attention_mma (bf16, f16: weights are rounded to that type), hloc_attention_f32 (any types, at full
 *      precision), hloc_attention_join.
 * On tensor cores tiles of which the mask lets nothing through are passed over by warps whose largest scores make their
 * weights zero, and where all values are finite.
 * Scores that are -infinity weigh nothing; a row of nothing else is NaN, as is one with NaN or infinity.
 */
#ifndef HLOC_ATTENTION_CUH
#define HLOC_ATTENTION_CUH

HLOC_FN float hloc_lowest() { return -HLOC_INF_F32; }
#define HLOC_NO_WEIGHT -104.0f /* exp of less is 0 in f32 */
HLOC_FN float hloc_shift_of(float largest) { return largest == hloc_lowest() ? 0.0f : largest; }

/* exp(x - shift). */
struct hloc_exp_of_difference {
  float shift;
  HLOC_MEMBER explicit hloc_exp_of_difference(float shift) : shift(shift) {}
  HLOC_MEMBER float operator()(float x) const { return hloc_exp_f32(x - shift); }
  HLOC_MEMBER float of(const hloc_exp_of_difference &earlier) const { return (*this)(earlier.shift); }
};
/* exp(S::SCALE * (x - largest)) for weights that are rounded to 16 bits: a power of two of a product. FUSED: of one
 * multiplication and subtraction. Its shift is rounded, so that the largest score weighs 2^-8 to 2^8, and all others in
 * proportion. Larger numbers are equal or so far apart that only the largest one weighs: there a power of two as factor
 * makes all exact. */
HLOC_FN constexpr float hloc_power_of_two(float most) {
  float power = 1;
  while (power > most) power /= 2;
  return power;
}
template <class S, bool FUSED> struct hloc_exp_of_scores {
  static constexpr float FACTOR = S::SCALE * 1.4426950408889634f, EXACT = hloc_power_of_two(FACTOR);
  float largest, factor, shift;
  HLOC_MEMBER explicit hloc_exp_of_scores(float x)
      : largest(x), factor(fabsf(x) < 0x1p28f / FACTOR ? FACTOR : EXACT), shift(x * factor) {}
  HLOC_MEMBER float operator()(float x) const {
    return hloc_exp2_fast(FUSED ? fmaf(x, factor, -shift) : (x - largest) * FACTOR);
  }
  HLOC_MEMBER float of(const hloc_exp_of_scores &earlier) const {
    return hloc_exp2_fast(FUSED && factor == earlier.factor ? earlier.shift - shift
                                                            : (earlier.largest - largest) * FACTOR);
  }
};

/* x, computed after y. The compiler would begin both rows' maxima at once, and exponentials would wait for the last. Of
 * more rows that would take too many registers. */
HLOC_FN float hloc_after(float x, float y) {
  const unsigned zero = threadIdx.y; /* blocks are lines */
  return __uint_as_float(__float_as_uint(x) | (__float_as_uint(y) & zero));
}
/* How many comparisons or additions of C numbers do not wait for each other. */
template <int C> constexpr int hloc_chains = C % 4 == 0 ? 4 : 1;
/* The largest of a thread's scores of R rows so far; LANES neighbours share a row. scale: what earlier sums are to be
 * multiplied by. */
template <int LANES, class Exp, int R, int C>
HLOC_FN void hloc_raise(const float (&z)[R][C], float (&largest)[R], float (&scale)[R]) {
  constexpr int CHAINS = hloc_chains<C>;
  float before = 0;
#pragma unroll
  for (int r = 0; r < R; r++) {
    float top[CHAINS];
#pragma unroll
    for (int n = 0; n < CHAINS; n++) top[n] = r == 0 || R > 2 ? largest[r] : hloc_after(largest[r], before);
#pragma unroll
    for (int c = 0; c < C; c++) top[c % CHAINS] = fmaxf(z[r][c], top[c % CHAINS]); /* passes over NaN, sums show it */
#pragma unroll
    for (int n = 1; n < CHAINS; n++) top[0] = fmaxf(top[0], top[n]);
    before = top[0];
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2)
      top[0] = fmaxf(__shfl_xor_sync(0xffffffffu, top[0], distance), top[0]);
    scale[r] = Exp(hloc_shift_of(top[0])).of(Exp(largest[r]));
    largest[r] = top[0];
  }
}
/* A thread's scores of a row become weights relative to the largest one so far. total: this thread's part of the sum of
 * weights. */
template <class Exp, int C> HLOC_FN void hloc_weigh(float (&z)[C], float largest, float scale, float &total) {
  constexpr int CHAINS = hloc_chains<C>;
  const Exp weight(hloc_shift_of(largest));
  float sum[CHAINS];
#pragma unroll
  for (int n = 0; n < CHAINS; n++) sum[n] = 0;
#pragma unroll
  for (int c = 0; c < C; c++) {
    z[c] = weight(z[c]);
    sum[c % CHAINS] += z[c];
  }
#pragma unroll
  for (int n = 1; n < CHAINS; n++) sum[0] += sum[n];
  total = total * scale + sum[0];
}
template <int LANES, class Exp, int R, int C>
HLOC_FN void hloc_soften(float (&z)[R][C], float (&largest)[R], float (&total)[R], float (&scale)[R]) {
  hloc_raise<LANES, Exp>(z, largest, scale);
#pragma unroll
  for (int r = 0; r < R; r++) hloc_weigh<Exp>(z[r], largest[r], scale[r], total[r]);
}
template <int LANES> HLOC_FN float hloc_sum_of_lanes(float value) {
#pragma unroll
  for (int distance = LANES / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

/* Which batch, queries, features and keys a block works on. */
template <class S> struct hloc_attention_place {
  static constexpr long BLOCKS = (S::ROWS + S::BM - 1) / S::BM, CHUNKS = (S::FEATURES + S::FC - 1) / S::FC;
  static constexpr long WORK = BLOCKS * CHUNKS * S::SPLITS * S::BATCHES;
  long batch, row, feature, piece, first;
  int keys;
  HLOC_MEMBER explicit hloc_attention_place(long work) {
    row = work % BLOCKS * S::BM;
    feature = work / BLOCKS % CHUNKS * S::FC;
    piece = work / (BLOCKS * CHUNKS) % S::SPLITS;
    batch = work / (BLOCKS * CHUNKS * S::SPLITS);
    first = piece * S::PART;
    keys = S::COLUMNS - first < S::PART ? S::COLUMNS - first : S::PART;
  }
  /* A query and a key of a piece's tiles are there. */
  HLOC_MEMBER bool inside(long line, int column) const {
    return (S::ROWS % S::BM == 0 || line < S::ROWS) && (S::COLUMNS % S::BN == 0 || column < keys);
  }
  template <class Keep, class Finish>
  HLOC_MEMBER void give(Keep keep, Finish finish, int r, int f, float sum, float total) const {
    if (row + r >= S::ROWS || feature + f >= S::FEATURES) return;
    if constexpr (S::SPLITS > 1) keep(piece, batch, row + r, feature + f, sum);
    else hloc_finish_one(finish, sum / total, batch, row + r, feature + f);
  }
  /* The same of V values that have been divided. */
  template <int V, class Keep, class Finish>
  HLOC_MEMBER void give(Keep keep, Finish finish, int r, int f, const hloc_pack<float, V> &values) const {
    if (row + r >= S::ROWS || feature + f >= S::FEATURES) return;
    if constexpr (S::SPLITS > 1)
#pragma unroll
      for (int v = 0; v < V; v++) keep(piece, batch, row + r, feature + f + v, values[v]);
    else finish.call(batch, row + r, feature + f, values)();
  }
};

/* The pieces of each row as one. */
template <class S, class Finish, class StoreState>
HLOC_FN void hloc_attention_join(const float *sums, const float *state, Finish finish, StoreState store_state) {
  constexpr long ROWS = (long)S::BATCHES * S::ROWS, TOTAL = ROWS * S::FEATURES;
  for (long n = blockIdx.x * (long)blockDim.x + threadIdx.x; n < TOTAL; n += (long)gridDim.x * blockDim.x) {
    const long row = n / S::FEATURES;
    float largest = hloc_lowest(), total = 0, sum = 0;
    for (long piece = 0; piece < S::SPLITS; piece++) {
      const float own = state[(piece * ROWS + row) * 2];
      largest = own > largest ? own : largest;
    }
    const float shift = hloc_shift_of(largest);
    for (long piece = 0; piece < S::SPLITS; piece++) {
      const float scale = hloc_exp_f32(state[(piece * ROWS + row) * 2] - shift);
      total += scale * state[(piece * ROWS + row) * 2 + 1];
      sum += scale * sums[piece * TOTAL + n];
    }
    hloc_finish_one(finish, sum / total, row / S::ROWS, row % S::ROWS, n % S::FEATURES);
    if (n % S::FEATURES == 0) store_state(row / S::ROWS, row % S::ROWS, largest, total);
  }
}

/* COUNT lines of WIDTH elements, V at once, for each of BATCHES, stored where keys or values are to be from now on.
 * from_at(batch, line, element), to_at(...): where an element is. Nobody reads them there before the kernel ends. */
template <int V, long COUNT, long WIDTH, long BATCHES, class T, class From, class To>
HLOC_FN void hloc_store_lines(const T *from, T *to, From from_at, To to_at) {
  constexpr long PACKS = WIDTH / V;
  static_assert(WIDTH % V == 0, "whole packs");
  for (long n = blockIdx.x * (long)blockDim.x + threadIdx.x; n < BATCHES * COUNT * PACKS;
       n += (long)gridDim.x * blockDim.x) {
    const long element = n % PACKS * V, line = n / PACKS % COUNT, batch = n / (PACKS * COUNT);
    *(hloc_pack<T, V> *)&to[to_at(batch, line, element)] =
        *(const hloc_pack<T, V> *)&from[from_at(batch, line, element)];
  }
}

/* Lines of an array in shared memory, in chunks of 16 bytes; the pitch is an odd number of them, so that neighbouring
 * lines lie in different banks. LINES x WIDTH elements, of which `lines` x `width` are there; zeros else. */
template <class T, int LINES, int WIDTH, int THREADS> struct hloc_lines {
  static constexpr int V = 16 / sizeof(T), CHUNKS = WIDTH / V, PITCH = (CHUNKS | 1) * 16, BYTES = LINES * PITCH;
  template <int VECTOR> HLOC_MEMBER static void copy(unsigned char *tile, const T *from, long stride, long step,
                                                     long lines, long width) {
    copy_lines<VECTOR>(tile, [=](long line) { return from + line * stride; }, step, lines, width);
  }
  /* The same; line_at(line): where a line starts. */
  template <int VECTOR, class Line> HLOC_MEMBER static void copy_lines(unsigned char *tile, Line line_at, long step,
                                                                       long lines, long width) {
    for (int e = threadIdx.x; e < LINES * CHUNKS; e += THREADS) {
      const int line = e / CHUNKS, chunk = e % CHUNKS;
      unsigned char *to = tile + line * PITCH + chunk * 16;
      if constexpr (VECTOR == V) {
        const bool inside = line < lines && chunk * V < width;
        hloc_copy_16(to, inside ? line_at(line) + chunk * V : line_at(0), inside);
      } else {
        hloc_pack<T, V> pack;
#pragma unroll
        for (int v = 0; v < V; v++)
          pack.at[v] = line < lines && chunk * V + v < width ? line_at(line)[(chunk * V + v) * step] : T();
        *(hloc_pack<T, V> *)to = pack;
      }
    }
  }
};

/* Whether all numbers of a tile in shared memory are finite: their exponents are not all ones. Asked by whole warps. */
template <int LINES, int WIDTH, int PITCH> HLOC_FN bool hloc_all_finite(const unsigned char *tile, unsigned exponent) {
  bool found = false;
  for (int e = threadIdx.x % 32; e < LINES * (WIDTH / 2); e += 32) {
    const unsigned word = *(const unsigned *)(tile + e / (WIDTH / 2) * PITCH + e % (WIDTH / 2) * 4);
    if ((word & exponent) == exponent || (word >> 16 & exponent) == exponent) found = true;
  }
  return !(hloc_sum_of_lanes<32>(found ? 1.0f : 0.0f) > 0);
}

/* On tensor cores: warps with TM x 16 queries each; keys and values in two buffers each, copied ahead. */
template <class S, class Numbers, class T, class At, class Line, class Line2, class Pair, class Live, class Score,
          class Keep, class KeepState, class Finish>
HLOC_FN void hloc_attention_mma(const T *query, unsigned char *memory, At query_at, Line key_line, Line2 value_line,
                                Pair rounded_pair, Live live, float masked, Score score, Keep keep,
                                KeepState keep_state, Finish finish) {
  constexpr int MINE = S::TM * 16, WARPS = S::BM / MINE, THREADS = WARPS * 32, TILES = S::BN / 8;
  constexpr int STEPS = S::DP / 16, OUT = S::FC / 8;
  typedef hloc_lines<T, S::BM, S::DP, THREADS> Queries;
  typedef hloc_lines<T, S::BN, S::DP, THREADS> Keys;
  typedef hloc_lines<T, S::BN, S::FC, THREADS> Values;
  static_assert(S::BN % 16 == 0 && S::FC % 16 == 0, "pairs of tiles");
  unsigned char *queries = memory, *key_tiles = queries + Queries::BYTES, *value_tiles = key_tiles + 2 * Keys::BYTES;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 4, pair = lane % 4 * 2, matrix = lane / 8;
  for (long work = blockIdx.x; work < hloc_attention_place<S>::WORK; work += gridDim.x) {
    const hloc_attention_place<S> at(work);
    const T *q = query + query_at(at.batch) + at.row * S::Q_ROW;
    const auto copy_keys = [&](int j) {
      unsigned char *tile = key_tiles + j / S::BN % 2 * Keys::BYTES;
      if (j < at.keys) {
        if constexpr (S::NEW_LINES)
          Keys::template copy_lines<S::K_VECTOR>(
              tile, [&](long line) { return key_line(at.batch, at.first + j + line); }, S::K_K, at.keys - j, S::DEPTH);
        else
          Keys::template copy<S::K_VECTOR>(tile, key_line(at.batch, at.first) + j * S::K_COLUMN, S::K_COLUMN, S::K_K,
                                           at.keys - j, S::DEPTH);
      }
      hloc_copy_commit();
    };
    const auto copy_values = [&](int j) {
      unsigned char *tile = value_tiles + j / S::BN % 2 * Values::BYTES;
      const long feature = at.feature * S::V_FEATURE, width = S::FEATURES - at.feature;
      if (j < at.keys) {
        if constexpr (S::NEW_LINES)
          Values::template copy_lines<S::V_VECTOR>(
              tile, [&](long line) { return value_line(at.batch, at.first + j + line) + feature; }, S::V_FEATURE,
              at.keys - j, width);
        else
          Values::template copy<S::V_VECTOR>(tile, value_line(at.batch, at.first) + j * S::V_COLUMN + feature,
                                             S::V_COLUMN, S::V_FEATURE, at.keys - j, width);
      }
      hloc_copy_commit();
    };
    __syncthreads(); /* all have done with the last queries */
    Queries::template copy<S::Q_VECTOR>(queries, q, S::Q_ROW, S::Q_K, S::ROWS - at.row, S::DEPTH);
    copy_keys(0);
    copy_values(0);
    float largest[2 * S::TM], total[2 * S::TM], scale[2 * S::TM]; /* of rows group and group + 8 of each 16 */
    float out[S::TM][OUT][4];
#pragma unroll
    for (int m = 0; m < S::TM; m++) {
      largest[2 * m] = largest[2 * m + 1] = hloc_lowest(), total[2 * m] = total[2 * m + 1] = 0;
#pragma unroll
      for (int f = 0; f < OUT; f++)
#pragma unroll
        for (int n = 0; n < 4; n++) out[m][f][n] = 0;
    }
    for (int j = 0; j < at.keys; j += S::BN) {
      hloc_copy_wait<1>();
      __syncthreads(); /* these keys have arrived, all have done with the last ones */
      copy_keys(j + S::BN);
      const unsigned char *tile = key_tiles + j / S::BN % 2 * Keys::BYTES;
      float z[2 * S::TM][TILES * 2];
      bool any = true; /* of the warp's weights may be something */
      if constexpr (S::MASKED) {
        bool mine = false;
#pragma unroll
        for (int r = 0; r < 2 * S::TM; r++) {
          const long row = at.row + warp * MINE + r / 2 * 16 + group + r % 2 * 8;
          if (row >= S::ROWS) continue;
          if (!(masked == hloc_lowest() || masked - largest[r] < HLOC_NO_WEIGHT)) mine = true;
#pragma unroll
          for (int c = 0; c < TILES * 2; c++) {
            const int column = j + c / 2 * 8 + pair + c % 2;
            if (column < at.keys && live(at.batch, row, at.first + column)) mine = true;
          }
        }
        any = hloc_sum_of_lanes<32>(mine ? 1.0f : 0.0f) > 0;
      }
      if (any) {
        float sums[S::TM][TILES][4];
#pragma unroll
        for (int m = 0; m < S::TM; m++)
#pragma unroll
          for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int n = 0; n < 4; n++) sums[m][t][n] = 0;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
          unsigned x[S::TM][4], y[4];
#pragma unroll
          for (int m = 0; m < S::TM; m++)
            hloc_load_matrices(x[m], queries + (warp * MINE + m * 16 + matrix % 2 * 8 + lane % 8) * Queries::PITCH +
                                         (step * 2 + matrix / 2) * 16);
#pragma unroll
          for (int t = 0; t < TILES; t += 2) {
            hloc_load_matrices(
                y, tile + (t * 8 + matrix / 2 * 8 + lane % 8) * Keys::PITCH + (step * 2 + matrix % 2) * 16);
#pragma unroll
            for (int m = 0; m < S::TM; m++) {
              Numbers::multiply(sums[m][t], x[m], y);
              Numbers::multiply(sums[m][t + 1], x[m], y + 2);
            }
          }
        }
#pragma unroll
        for (int m = 0; m < S::TM; m++)
#pragma unroll
          for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int n = 0; n < 4; n++) {
              const long row = at.row + warp * MINE + m * 16 + group + n / 2 * 8;
              const int column = j + t * 8 + pair + n % 2;
              z[2 * m + n / 2][t * 2 + n % 2] = row < S::ROWS && column < at.keys
                                                    ? score(at.batch, row, at.first + column, sums[m][t][n])
                                                    : hloc_lowest();
            }
        hloc_soften<4, hloc_exp_of_scores<S, false>>(z, largest, total, scale);
#pragma unroll
        for (int m = 0; m < S::TM; m++)
#pragma unroll
          for (int f = 0; f < OUT; f++)
#pragma unroll
            for (int n = 0; n < 4; n++) out[m][f][n] *= scale[2 * m + n / 2];
      } else {
#pragma unroll
        for (int r = 0; r < 2 * S::TM; r++)
#pragma unroll
          for (int c = 0; c < TILES * 2; c++) z[r][c] = 0;
      }
      hloc_copy_wait<1>();
      __syncthreads(); /* these values have arrived, all have done with the last ones */
      copy_values(j + S::BN);
      const unsigned char *values = value_tiles + j / S::BN % 2 * Values::BYTES;
      if (!any && hloc_all_finite<S::BN, S::FC, Values::PITCH>(values, S::MASKED)) continue;
#pragma unroll
      for (int step = 0; step < S::BN / 16; step++) {
        unsigned x[S::TM][4], y[4];
#pragma unroll
        for (int m = 0; m < S::TM; m++)
#pragma unroll
          for (int n = 0; n < 4; n++) {
            const int c = step * 4 + n / 2 * 2;
            x[m][n] = rounded_pair(z[2 * m + n % 2][c], z[2 * m + n % 2][c + 1]);
          }
#pragma unroll
        for (int f = 0; f < OUT; f += 2) {
          hloc_load_transposed(y, values + (step * 16 + matrix % 2 * 8 + lane % 8) * Values::PITCH +
                                      (f + matrix / 2) * 16);
#pragma unroll
          for (int m = 0; m < S::TM; m++) {
            Numbers::multiply(out[m][f], x[m], y);
            Numbers::multiply(out[m][f + 1], x[m], y + 2);
          }
        }
      }
    }
    hloc_copy_wait<0>();
    __syncthreads(); /* all have read the last values */
    float *slab = (float *)memory + warp * (16 * (S::FC + 8)), *totals = (float *)memory + WARPS * 16 * (S::FC + 8);
#pragma unroll
    for (int m = 0; m < S::TM; m++) {
      const int first = warp * MINE + m * 16;
      __syncwarp(); /* the last rows have been given */
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int r = group + half * 8;
        const float all = hloc_sum_of_lanes<4>(total[2 * m + half]);
#pragma unroll
        for (int f = 0; f < OUT; f++) {
          const hloc_pack<float, 2> both = {out[m][f][half * 2], out[m][f][half * 2 + 1]};
          *(hloc_pack<float, 2> *)&slab[r * (S::FC + 8) + f * 8 + pair] = both;
        }
        if (lane % 4 == 0) {
          totals[warp * 16 + r] = all;
          if constexpr (S::STATES)
            if (at.feature == 0 && at.row + first + r < S::ROWS)
              keep_state(at.piece, at.batch, at.row + first + r, largest[2 * m + half] * S::SCALE, all);
        }
      }
      __syncwarp();
      for (int r = 0; r < 16; r++)
        for (int f = lane; f < S::FC; f += 32)
          at.give(keep, finish, first + r, f, slab[r * (S::FC + 8) + f], totals[warp * 16 + r]);
    }
  }
}

/* In registers: 16 x 16 threads, each with TM queries and BN / 16 keys of the scores, and FC / 16 features. */
template <class S, class Q, class K, class V, class At, class At2, class At3, class FromQ, class FromK, class FromV,
          class Score, class Keep, class KeepState, class Finish>
HLOC_FN void hloc_attention_f32(const Q *query, const K *key, const V *value, unsigned char *memory, At query_at,
                                At2 key_at, At3 value_at, FromQ from_q, FromK from_k, FromV from_v, Score score,
                                Keep keep, KeepState keep_state, Finish finish) {
  constexpr int STEP = 16, TN = S::BN / 16, TF = S::FC / 16, VF = TF < 4 ? TF : 4;
  constexpr int Q_PITCH = S::BM + 4, K_PITCH = S::BN + 4, V_PITCH = S::FC + 4;
  typedef hloc_strided<Q, S::Q_ROW, S::Q_K, S::Q_VECTOR> Queries;
  typedef hloc_strided<K, S::K_COLUMN, S::K_K, S::K_VECTOR> Keys;
  typedef hloc_strided<V, S::V_FEATURE, S::V_COLUMN, S::V_VECTOR> Values;
  float *q_tile = (float *)memory, *k_tile = q_tile + STEP * Q_PITCH; /* [depth][row], [depth][column] */
  float *v_tile = k_tile + STEP * K_PITCH, *weights = v_tile + STEP * V_PITCH; /* [column][feature], [column][row] */
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  for (long work = blockIdx.x; work < hloc_attention_place<S>::WORK; work += gridDim.x) {
    const hloc_attention_place<S> at(work);
    const Queries queries = {query + query_at(at.batch) + at.row * S::Q_ROW, S::ROWS - at.row, S::DEPTH};
    float largest[S::TM], total[S::TM], scale[S::TM], out[S::TM][TF];
#pragma unroll
    for (int i = 0; i < S::TM; i++) {
      largest[i] = hloc_lowest(), total[i] = 0;
#pragma unroll
      for (int f = 0; f < TF; f++) out[i][f] = 0;
    }
    for (int j0 = 0; j0 < at.keys; j0 += S::BN) {
      const long first = at.first + j0;
      const Keys keys = {key + key_at(at.batch) + first * S::K_COLUMN, S::COLUMNS - first, S::DEPTH};
      const Values values = {value + value_at(at.batch) + first * S::V_COLUMN + at.feature * S::V_FEATURE,
                             S::FEATURES - at.feature, S::COLUMNS - first};
      hloc_stage<Q, Queries, S::BM, STEP, 256> q_stage(queries);
      hloc_stage<K, Keys, S::BN, STEP, 256> k_stage(keys);
      hloc_stage<V, Values, S::FC, STEP, 256> v_stage(values);
      float z[S::TM][TN];
#pragma unroll
      for (int i = 0; i < S::TM; i++)
#pragma unroll
        for (int j = 0; j < TN; j++) z[i][j] = 0;
      q_stage.fetch(0);
      k_stage.fetch(0);
      for (int d0 = 0; d0 < S::DEPTH; d0 += STEP) {
        __syncthreads(); /* all have read the last step */
        q_stage.template put<1, Q_PITCH>(q_tile, d0, from_q);
        k_stage.template put<1, K_PITCH>(k_tile, d0, from_k);
        __syncthreads();
        if (d0 + STEP < S::DEPTH) {
          q_stage.fetch(d0 + STEP);
          k_stage.fetch(d0 + STEP);
        }
#pragma unroll
        for (int d = 0; d < STEP; d++) {
          const hloc_pack<float, S::TM> x = *(const hloc_pack<float, S::TM> *)&q_tile[d * Q_PITCH + ty * S::TM];
          const hloc_pack<float, TN> y = *(const hloc_pack<float, TN> *)&k_tile[d * K_PITCH + tx * TN];
#pragma unroll
          for (int i = 0; i < S::TM; i++)
#pragma unroll
            for (int j = 0; j < TN; j++) z[i][j] += x.at[i] * y.at[j];
        }
      }
#pragma unroll
      for (int i = 0; i < S::TM; i++)
#pragma unroll
        for (int j = 0; j < TN; j++) {
          const long row = at.row + ty * S::TM + i;
          const int column = j0 + tx * TN + j;
          z[i][j] = row < S::ROWS && column < at.keys ? score(at.batch, row, at.first + column, z[i][j])
                                                      : hloc_lowest();
        }
      hloc_soften<16, hloc_exp_of_difference>(z, largest, total, scale);
#pragma unroll
      for (int i = 0; i < S::TM; i++) {
#pragma unroll
        for (int f = 0; f < TF; f++) out[i][f] *= scale[i];
#pragma unroll
        for (int j = 0; j < TN; j++) weights[(tx * TN + j) * Q_PITCH + ty * S::TM + i] = z[i][j];
      }
      v_stage.fetch(0);
      for (int c0 = 0; c0 < S::BN; c0 += STEP) {
        __syncthreads(); /* all have read the last values */
        v_stage.template put<1, V_PITCH>(v_tile, c0, from_v);
        __syncthreads(); /* and the weights are there */
        if (c0 + STEP < S::BN) v_stage.fetch(c0 + STEP);
#pragma unroll
        for (int c = 0; c < STEP; c++) {
          const hloc_pack<float, S::TM> x = *(const hloc_pack<float, S::TM> *)&weights[(c0 + c) * Q_PITCH + ty * S::TM];
          hloc_pack<float, VF> y[TF / VF];
#pragma unroll
          for (int f = 0; f < TF / VF; f++)
            y[f] = *(const hloc_pack<float, VF> *)&v_tile[c * V_PITCH + f * 16 * VF + tx * VF];
#pragma unroll
          for (int i = 0; i < S::TM; i++)
#pragma unroll
            for (int f = 0; f < TF; f++) out[i][f] += x.at[i] * y[f / VF].at[f % VF];
        }
      }
    }
#pragma unroll
    for (int i = 0; i < S::TM; i++) {
      const float all = hloc_sum_of_lanes<16>(total[i]);
      const int r = ty * S::TM + i;
      if constexpr (S::STATES)
        if (tx == 0 && at.feature == 0 && at.row + r < S::ROWS)
          keep_state(at.piece, at.batch, at.row + r, largest[i], all);
#pragma unroll
      for (int f = 0; f < TF; f++) at.give(keep, finish, r, f / VF * 16 * VF + tx * VF + f % VF, out[i][f], all);
    }
  }
}

#endif
