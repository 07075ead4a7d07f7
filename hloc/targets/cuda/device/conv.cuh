/* conv.cuh: convolutions, as products of gathered rows with the kernel, or one output at a time.
 *
 * In: gemm.cuh; a struct S of constants:
 *   POINTS, IMAGES            output positions of one image, images of one batch group
 *   CHANNELS, FEATURES        input channels, output features of one group;  GROUPS, BATCH_GROUPS (one of them is 1)
 *   M = IMAGES * POINTS, N = FEATURES, K = taps * CHANNELS (k = tap * CHANNELS + channel)
 *   for d = 0, 1, 2: SIZEd (input), WINDOWd, OUTd, STRIDEd, LOWd (padding), BASEd, DILATIONd, REVERSALd
 *   WHOLEd, STEPd, FIRSTd     position n is STEP * n + FIRST of WHOLE (phases; otherwise n of OUT)
 *   X_N, X_C, X_0, X_1, X_2   W_I, W_O, W_0, W_1, W_2    strides in elements
 *   ADJACENT                  so many output positions side by side are part of an image (window_rows.py); 1: none
 *   IMAGES_FIRST              rows of a tile run over images first, since these lie together in memory
 *   X_VECTOR, W_VECTOR        elements side by side that may be read at once: channels, or images (IMAGES_FIRST); of
 *                             the kernel, features too
 *   SPLITS, PART              as in gemm.cuh
 * and operands: addresses, or what computes them (hloc_computed of gemm.cuh says how; outer and inner are 0). Strides
 * of what is computed are those of [image, positions, channel] and [feature, taps, channel] in order.
 * Out: hloc_conv walks over tiles as hloc_gemm does, hloc_conv_join adds up the pieces; hloc_conv_direct<S, LANES>
 * computes an output with LANES (1, 32) threads; hloc_conv_pack, hloc_conv_unpack: filters in the order of a library.
 * finish(row, column, sum): row = image * POINTS + position, column = output feature.
 */
#ifndef HLOC_CONV_CUH
#define HLOC_CONV_CUH

template <class S> struct hloc_tap {
  int at[3];
  HLOC_MEMBER explicit hloc_tap(int tap) {
    constexpr int W1 = S::WINDOW1, W2 = S::WINDOW2;
    at[0] = tap / (W1 * W2), at[1] = tap / W2 % W1, at[2] = tap % W2;
  }
  HLOC_MEMBER long in_kernel() const {
    return (S::REVERSAL0 ? S::WINDOW0 - 1 - at[0] : at[0]) * S::W_0 +
           (S::REVERSAL1 ? S::WINDOW1 - 1 - at[1] : at[1]) * S::W_1 +
           (S::REVERSAL2 ? S::WINDOW2 - 1 - at[2] : at[2]) * S::W_2;
  }
};

/* The row of the whole result: of a phase, each position is one of every STEP. */
template <class S> HLOC_FN long hloc_conv_row(long image, int p0, int p1, int p2) {
  constexpr int OWN = S::IMAGES / S::ADJACENT;
  const long first = (S::ADJACENT > 1 ? image % OWN : image) * S::WHOLE0 + p0 * S::STEP0 + S::FIRST0;
  const long row = (first * S::WHOLE1 + p1 * S::STEP1 + S::FIRST1) * S::WHOLE2 + p2 * S::STEP2 + S::FIRST2;
  return S::ADJACENT > 1 ? row * S::ADJACENT + image / OWN : row;
}

/* An output row: where its image starts, and where its window starts in each spatial dimension. */
template <class S> struct hloc_window {
  long row, base;
  int start[3];
  HLOC_MEMBER void place(long r, int group) {
    const long image = S::IMAGES_FIRST ? r % S::IMAGES : r / S::POINTS;
    const int point = S::IMAGES_FIRST ? r / S::IMAGES : r % S::POINTS;
    row = hloc_conv_row<S>(image, point / (S::OUT1 * S::OUT2), point / S::OUT2 % S::OUT1, point % S::OUT2);
    base = (S::BATCH_GROUPS > 1 ? group * S::IMAGES + image : image) * S::X_N;
    if (S::GROUPS > 1) base += (long)group * S::CHANNELS * S::X_C;
    start[0] = point / (S::OUT1 * S::OUT2) * S::STRIDE0 - S::LOW0;
    start[1] = point / S::OUT2 % S::OUT1 * S::STRIDE1 - S::LOW1;
    start[2] = point % S::OUT2 * S::STRIDE2 - S::LOW2;
  }
  /* One spatial dimension: the input position, where there is one. */
  HLOC_MEMBER static bool locate(int position, int base, int size, int &found) {
    if (base > 1 && (position < 0 || position % base != 0)) return false;
    found = base > 1 ? position / base : position;
    return found >= 0 && found < size;
  }
  /* Where the k-th product finds its element, if that is no padding. */
  HLOC_MEMBER bool find(int k, long &at) const {
    constexpr int CHANNELS = S::CHANNELS;
    const hloc_tap<S> tap(k / CHANNELS);
    int p0 = 0, p1 = 0, p2 = 0;
    if (!locate(start[0] + tap.at[0] * S::DILATION0, S::BASE0, S::SIZE0, p0) ||
        !locate(start[1] + tap.at[1] * S::DILATION1, S::BASE1, S::SIZE1, p1) ||
        !locate(start[2] + tap.at[2] * S::DILATION2, S::BASE2, S::SIZE2, p2))
      return false;
    at = base + k % CHANNELS * S::X_C + p0 * S::X_0 + p1 * S::X_1 + p2 * S::X_2;
    return true;
  }
  template <class T> HLOC_MEMBER const T *find(const T *x, int k) const {
    long at = 0;
    return find(k, at) ? &x[at] : nullptr;
  }
  /* The element itself. */
  template <class T> HLOC_MEMBER T read(const T *x, int k) const {
    const T *from = find(x, k);
    return from ? *from : T();
  }
  template <class P> HLOC_MEMBER typename P::Element read(const P &made, int k) const {
    constexpr long DEPTH = (long)S::CHANNELS * S::GROUPS;
    long at = 0;
    if (!find(k, at)) return typename P::Element();
    return made.make(made.read(0, 0, at / DEPTH, at % DEPTH), 0, 0, at / DEPTH, at % DEPTH).at[0];
  }
};

template <class S> HLOC_FN long hloc_kernel_position(int k, long column) {
  constexpr int CHANNELS = S::CHANNELS;
  return hloc_tap<S>(k / CHANNELS).in_kernel() + k % CHANNELS * S::W_I + column * S::W_O;
}

template <class T, int V> HLOC_FN hloc_pack<T, V> hloc_read(const T *from) {
  return from ? *(const hloc_pack<T, V> *)from : hloc_pack<T, V>();
}

/* The input as a matrix of rows x K. */
template <class S, class T> struct hloc_conv_rows {
  static constexpr bool K_FIRST = S::X_C == 1 && S::CHANNELS > 1, AHEAD = true, COMPUTED = false;
  static constexpr int VECTOR = S::X_VECTOR;
  typedef hloc_pack<T, VECTOR> Held;
  const T *x;
  long row;
  int group;
  template <int COUNT> struct places { hloc_window<S> windows[COUNT]; };
  template <int COUNT> HLOC_MEMBER void place(places<COUNT> &where, int i, int r) const {
    where.windows[i].place(row + r, group);
  }
  template <int COUNT> HLOC_MEMBER const T *address(const places<COUNT> &where, int i, int r, long k) const {
    return row + r < S::M && k < S::K ? where.windows[i].find(x, (int)k) : nullptr;
  }
  template <int COUNT>
  HLOC_MEMBER hloc_pack<T, VECTOR> read(const places<COUNT> &where, int i, int r, long k) const {
    return hloc_read<T, VECTOR>(address(where, i, r, k));
  }
  HLOC_MEMBER const Held &made(const Held &held, int, long) const { return held; }
  HLOC_MEMBER const T *anything() const { return x; }
};

/* The kernel as a matrix of columns x K. */
template <class S, class T> struct hloc_conv_columns {
  static constexpr bool K_FIRST = S::W_I == 1 && S::CHANNELS > 1, AHEAD = true, COMPUTED = false;
  static constexpr int VECTOR = S::W_VECTOR;
  typedef hloc_pack<T, VECTOR> Held;
  const T *w;
  long column, first;
  template <int COUNT> struct places {};
  template <int COUNT> HLOC_MEMBER void place(places<COUNT> &, int, int) const {}
  template <int COUNT> HLOC_MEMBER const T *address(const places<COUNT> &, int, int j, long k) const {
    return column + j < S::N && k < S::K ? &w[hloc_kernel_position<S>((int)k, first + column + j)] : nullptr;
  }
  template <int COUNT>
  HLOC_MEMBER hloc_pack<T, VECTOR> read(const places<COUNT> &where, int i, int j, long k) const {
    return hloc_read<T, VECTOR>(address(where, i, j, k));
  }
  HLOC_MEMBER const Held &made(const Held &held, int, long) const { return held; }
  HLOC_MEMBER const T *anything() const { return w; }
};

/* The same rows, computed while they are loaded. Elements of the padding are zeros, and are not computed. */
template <class S, class P> struct hloc_conv_made_rows {
  static constexpr bool K_FIRST = P::ALONG, AHEAD = P::VECTOR * sizeof(typename P::Element) >= 4, COMPUTED = true;
  static constexpr int VECTOR = P::VECTOR;
  static constexpr long DEPTH = (long)S::CHANNELS * S::GROUPS;
  struct Held {
    typename P::Read from;
    long at = -1; /* of an element; negative: padding */
  };
  const P prologue;
  long row;
  int group;
  template <int COUNT> struct places { hloc_window<S> windows[COUNT]; };
  template <int COUNT> HLOC_MEMBER void place(places<COUNT> &where, int i, int r) const {
    where.windows[i].place(row + r, group);
  }
  template <int COUNT> HLOC_MEMBER Held read(const places<COUNT> &where, int i, int r, long k) const {
    Held held = Held();
    if (row + r < S::M && k < S::K && where.windows[i].find((int)k, held.at))
      held.from = prologue.read(0, 0, held.at / DEPTH, held.at % DEPTH);
    return held;
  }
  HLOC_MEMBER hloc_pack<typename P::Element, VECTOR> made(const Held &held, int, long) const {
    return held.at < 0 ? hloc_pack<typename P::Element, VECTOR>()
                       : prologue.make(held.from, 0, 0, held.at / DEPTH, held.at % DEPTH);
  }
};
template <class S, class P> struct hloc_conv_made_columns {
  static constexpr bool K_FIRST = P::ALONG, AHEAD = P::VECTOR * sizeof(typename P::Element) >= 4, COMPUTED = true;
  static constexpr int VECTOR = P::VECTOR;
  typedef typename P::Read Held;
  const P prologue;
  long column, first;
  template <int COUNT> struct places {};
  template <int COUNT> HLOC_MEMBER void place(places<COUNT> &, int, int) const {}
  HLOC_MEMBER bool inside(int j, long k) const { return column + j < S::N && k < S::K; }
  template <int COUNT> HLOC_MEMBER Held read(const places<COUNT> &, int, int j, long k) const {
    return inside(j, k) ? prologue.read(0, 0, first + column + j, hloc_kernel_position<S>((int)k, 0)) : Held();
  }
  HLOC_MEMBER hloc_pack<typename P::Element, VECTOR> made(const Held &held, int j, long k) const {
    return inside(j, k) ? prologue.make(held, 0, 0, first + column + j, hloc_kernel_position<S>((int)k, 0))
                        : hloc_pack<typename P::Element, VECTOR>();
  }
};

/* The operands of a tile as sources: arrays, or what computes them. */
template <class S, class T> HLOC_FN hloc_conv_rows<S, T> hloc_conv_input(const T *x, long row, int group) {
  return {x, row, group};
}
template <class S, class P> HLOC_FN hloc_conv_made_rows<S, P> hloc_conv_input(const P &x, long row, int group) {
  return {x, row, group};
}
template <class S, class T> HLOC_FN hloc_conv_columns<S, T> hloc_conv_filter(const T *w, long column, long first) {
  return {w, column, first};
}
template <class S, class P> HLOC_FN hloc_conv_made_columns<S, P> hloc_conv_filter(const P &w, long column, long first) {
  return {w, column, first};
}

template <class S, class X, class W, class Tile, class Finish>
HLOC_FN void hloc_conv(X x, W w, Tile tile, Finish finish) {
  typedef decltype(hloc_conv_input<S>(x, 0, 0)) A;
  typedef decltype(hloc_conv_filter<S>(w, 0, 0)) B;
  const long columns = (S::N + S::BN - 1) / S::BN, rows = (S::M + S::BM - 1) / S::BM;
  constexpr long GROUPS = (long)S::GROUPS * S::BATCH_GROUPS;
  for (long work = blockIdx.x; work < columns * rows * GROUPS * S::SPLITS; work += gridDim.x) {
    const long piece = work % S::SPLITS, at = work / S::SPLITS, first = piece * S::PART;
    const long column = at % columns * S::BN, row = at / columns % rows * S::BM;
    const int group = at / columns / rows;
    const hloc_from<A> a = {hloc_conv_input<S>(x, row, group), first};
    const hloc_from<B> b = {hloc_conv_filter<S>(w, column, group * S::FEATURES), first};
    const long left = S::K - first;
    tile(a, b, left < S::PART ? left : S::PART, hloc_finish_of(
        finish,
        [&](int i, int j) {
          hloc_window<S> window;
          window.place(row + i, group);
          return hloc_spot{window.row, group * S::FEATURES + column + j, row + i < S::M && column + j < S::N};
        },
        [&](const hloc_spot &spot, const auto &sums) {
          if constexpr (S::SPLITS > 1) return finish.call(piece, spot.row * (S::FEATURES * GROUPS) + spot.column, sums);
          else return finish.call(spot.row, spot.column, sums);
        }));
  }
}

template <class S, class Sum, class Add, class Finish>
HLOC_FN void hloc_conv_join(const Sum *parts, Add add, Finish finish) {
  constexpr long ALL = (long)S::FEATURES * S::GROUPS * S::BATCH_GROUPS;
  hloc_join_pieces<Finish::WIDE, S::SPLITS, S::M * ALL>(parts, add, [&](long n, const auto &sums) {
    finish.call(n / ALL, n % ALL, sums)();
  });
}

/* LANES threads per output share its taps; FEATURES_FIRST: neighbours are neighbouring features. */
template <class S, int LANES, class Sum, class X, class T, class MultiplyAdd, class Add, class Finish>
HLOC_FN void hloc_conv_direct(X x, const T *w, MultiplyAdd multiply_add, Add add, Finish finish) {
  const long all = S::FEATURES * S::GROUPS * S::BATCH_GROUPS, total = S::M * all;
  const long step = (long)gridDim.x * blockDim.x / LANES, lane = threadIdx.x % LANES;
  for (long n = (blockIdx.x * (long)blockDim.x + threadIdx.x) / LANES; n < total; n += step) {
    const long column = S::FEATURES_FIRST ? n % all : n / S::M, row = S::FEATURES_FIRST ? n / all : n % S::M;
    hloc_window<S> window;
    window.place(row, column / S::FEATURES);
    Sum sum = Sum();
    for (long k = lane; k < S::K; k += LANES)
      sum = multiply_add(sum, window.read(x, (int)k), w[hloc_kernel_position<S>((int)k, column)]);
    if constexpr (LANES > 1) sum = hloc_warp_total(sum, add);
    if (lane == 0) hloc_finish_one(finish, sum, window.row, column);
  }
}

/* Packs a filter in the layout that a library reads, FILTERS x (TAPS x CHANNELS, or CHANNELS x TAPS). FILTER_STRIDE and
 * CHANNEL_STRIDE are W_O and W_I, swapped for a filter whose input and output features are swapped. */
template <class S, class T> HLOC_FN void hloc_conv_pack(const T *w, T *packed) {
  constexpr long TAPS = (long)S::WINDOW0 * S::WINDOW1 * S::WINDOW2, TOTAL = S::FILTERS * S::FILTER_CHANNELS * TAPS;
  for (long n = blockIdx.x * (long)blockDim.x + threadIdx.x; n < TOTAL; n += (long)gridDim.x * blockDim.x) {
    const long filter = n / (TAPS * S::FILTER_CHANNELS), rest = n % (TAPS * S::FILTER_CHANNELS);
    const long tap = S::CHANNELS_LAST ? rest / S::FILTER_CHANNELS : rest % TAPS;
    const long channel = S::CHANNELS_LAST ? rest % S::FILTER_CHANNELS : rest / TAPS;
    packed[n] = w[hloc_tap<S>((int)tap).in_kernel() + filter * S::FILTER_STRIDE + channel * S::CHANNEL_STRIDE];
  }
}
/* The same back, where a convolution has computed a filter: finish(row, column, value) for each element. */
template <class S, class T, class Wide, class Finish>
HLOC_FN void hloc_conv_unpack(const T *packed, Wide wide, Finish finish) {
  constexpr long TAPS = S::POINTS, TOTAL = S::M * S::N;
  for (long n = blockIdx.x * (long)blockDim.x + threadIdx.x; n < TOTAL; n += (long)gridDim.x * blockDim.x) {
    const long row = n / S::N, column = n % S::N, channel = row / TAPS, tap = row % TAPS;
    const long from = S::CHANNELS_LAST ? (column * TAPS + tap) * S::IMAGES + channel
                                       : (column * S::IMAGES + channel) * TAPS + tap;
    hloc_finish_one(finish, wide(packed[from]), row, column);
  }
}

#endif
