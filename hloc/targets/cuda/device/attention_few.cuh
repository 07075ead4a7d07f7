/* attention_few.cuh: attention of a few queries, such as a decoder's: keys are shared out among the lanes of a block.
 *
 * In: attention.cuh's sources and its struct S; there BM = TM queries, all features (FC), and
 *   LANES      that read one key and its value together, side by side: a power of two
 *   AT_ONCE    keys whose loads each of these groups begins together
 *   DEEP, WIDE elements of a key and of a value that a lane has
 * K_K = V_FEATURE = 1: keys and values lie along their elements. Out: hloc_attention_few, of any types, sums in f32.
 *
 * Every group of lanes has its own largest score, total and sums; the block joins them in shared memory, in order.
 */
#ifndef HLOC_ATTENTION_FEW_CUH
#define HLOC_ATTENTION_FEW_CUH

/* A lane's COUNT elements of a line of LENGTH, STEP elements apart: V side by side, and LANES times V from there the
 * next; zeros behind its end. WHOLE: V are read at once. */
template <int COUNT, int V, int LANES, long LENGTH, long STEP, bool WHOLE, class T, class From>
HLOC_FN void hloc_lane_read(float (&to)[COUNT], const T *line, int lane, bool inside, From from) {
#pragma unroll
  for (int c = 0; c < COUNT / V; c++) {
    const long place = (long)(c * LANES + lane) * V;
    hloc_pack<T, V> pack = {};
    if (inside && place < LENGTH) {
      if constexpr (WHOLE) pack = *(const hloc_pack<T, V> *)&line[place];
      else
#pragma unroll
        for (int v = 0; v < V; v++) pack.at[v] = line[(place + v) * STEP];
    }
#pragma unroll
    for (int v = 0; v < V; v++) to[c * V + v] = from(pack.at[v]);
  }
}

template <class S, class Q, class At, class Line, class Line2, class FromQ, class FromK, class FromV, class Score,
          class Keep, class KeepState, class Finish>
HLOC_FN void hloc_attention_few(const Q *query, unsigned char *memory, At query_at, Line key_line, Line2 value_line,
                                FromQ from_q, FromK from_k, FromV from_v, Score score, Keep keep,
                                KeepState keep_state, Finish finish) {
  constexpr int GROUPS = 256 / S::LANES, TOGETHER = GROUPS * S::AT_ONCE, LINE = S::FC + 2;
  const int lane = threadIdx.x % S::LANES, group = threadIdx.x / S::LANES;
  float *joined = (float *)memory; /* [group][query]: the features' sums, the largest score, the total */
  for (long work = blockIdx.x; work < hloc_attention_place<S>::WORK; work += gridDim.x) {
    const hloc_attention_place<S> at(work);
    const Q *q = query + query_at(at.batch) + at.row * S::Q_ROW;
    float queries[S::TM][S::DEEP], out[S::TM][S::WIDE], largest[S::TM], total[S::TM], scale[S::TM];
#pragma unroll
    for (int i = 0; i < S::TM; i++) {
      hloc_lane_read<S::DEEP, S::K_VECTOR, S::LANES, S::DEPTH, S::Q_K, S::Q_VECTOR == S::K_VECTOR>(
          queries[i], q + i * S::Q_ROW, lane, at.row + i < S::ROWS, from_q);
      largest[i] = hloc_lowest(), total[i] = 0;
#pragma unroll
      for (int f = 0; f < S::WIDE; f++) out[i][f] = 0;
    }
    for (int j0 = 0; j0 < at.keys; j0 += TOGETHER) {
      float keys[S::AT_ONCE][S::DEEP], values[S::AT_ONCE][S::WIDE], z[S::TM][S::AT_ONCE];
#pragma unroll
      for (int u = 0; u < S::AT_ONCE; u++) {
        const int column = j0 + u * GROUPS + group;
        const bool inside = column < at.keys;
        hloc_lane_read<S::DEEP, S::K_VECTOR, S::LANES, S::DEPTH, 1, true>(
            keys[u], key_line(at.batch, at.first + column), lane, inside, from_k);
        hloc_lane_read<S::WIDE, S::V_VECTOR, S::LANES, S::FEATURES, 1, true>(
            values[u], value_line(at.batch, at.first + column), lane, inside, from_v);
      }
#pragma unroll
      for (int u = 0; u < S::AT_ONCE; u++)
#pragma unroll
        for (int i = 0; i < S::TM; i++) {
          const int column = j0 + u * GROUPS + group;
          float sum = 0;
#pragma unroll
          for (int d = 0; d < S::DEEP; d++) sum += queries[i][d] * keys[u][d];
          sum = hloc_sum_of_lanes<S::LANES>(sum);
          z[i][u] = at.row + i < S::ROWS && column < at.keys ? score(at.batch, at.row + i, at.first + column, sum)
                                                             : hloc_lowest();
        }
      hloc_soften<1, hloc_exp_of_difference>(z, largest, total, scale);
#pragma unroll
      for (int i = 0; i < S::TM; i++)
#pragma unroll
        for (int f = 0; f < S::WIDE; f++) {
          out[i][f] *= scale[i];
#pragma unroll
          for (int u = 0; u < S::AT_ONCE; u++) out[i][f] += z[i][u] * values[u][f];
        }
    }
    __syncthreads(); /* the last rows have been given */
#pragma unroll
    for (int i = 0; i < S::TM; i++) {
      float *own = joined + (group * S::TM + i) * LINE;
#pragma unroll
      for (int f = 0; f < S::WIDE; f++) {
        const int feature = (f / S::V_VECTOR * S::LANES + lane) * S::V_VECTOR + f % S::V_VECTOR;
        if (feature < S::FEATURES) own[feature] = out[i][f];
      }
      if (lane == 0) own[S::FC] = largest[i], own[S::FC + 1] = total[i];
    }
    __syncthreads();
    for (int e = threadIdx.x; e < S::TM * S::FEATURES; e += 256) {
      const int i = e / S::FEATURES, feature = e % S::FEATURES;
      const float *own = joined + i * LINE;
      float top = hloc_lowest(), all = 0, sum = 0;
      for (int g = 0; g < GROUPS; g++) top = fmaxf(own[g * S::TM * LINE + S::FC], top);
      const float shift = hloc_shift_of(top);
      for (int g = 0; g < GROUPS; g++) {
        const float weight = hloc_exp_f32(own[g * S::TM * LINE + S::FC] - shift);
        all += weight * own[g * S::TM * LINE + S::FC + 1];
        sum += weight * own[g * S::TM * LINE + feature];
      }
      if constexpr (S::STATES)
        if (feature == 0 && at.row + i < S::ROWS) keep_state(at.piece, at.batch, at.row + i, top, all);
      at.give(keep, finish, i, feature, sum, all);
    }
  }
}

#endif
