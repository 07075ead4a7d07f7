/* conv_bulk.cuh: convolutions whose operands the bulk copy engine of sm_90a copies.
 *
 * In: conv.cuh, warpgroup.cuh; conv.cuh's struct S with one group, no base dilation, two spatial dimensions, and
 * PATCH_ACROSS x PATCH_DOWN positions of PATCH_IMAGES images. Kernels of f32 have been packed as lines along the depth
 * (PACKED_B, lines.cuh). Patches are either the rows of a tile, the depth of a tap is DEEP channels, a multiple of BK,
 * of which those behind CHANNELS are zeros, and K = taps * DEEP:
 *   hloc_patch_rest<S>(memory)         once, before there are barriers: rows of tiles that no copy fills are zeros
 *   hloc_conv(maps, tile, finish)      all tiles; maps: of the image (channel, across, down, image), and of the filter
 *                                      (along memory, line, tap across, tap down)
 * or one step of the depth, which runs over the window: patches divide WINDOW and CHANNELS, K = patches * BK, and
 * PANELS lines of 128 bytes hold all IMAGES of one position:
 *   hloc_positions_rest<S>(memory)     the same for steps
 *   hloc_conv(hloc_positions{maps}, tile, finish)   maps: of the input (image, across, down, channel), and of the
 *                                      kernel (feature, across, down, channel)
 */
#ifndef HLOC_CONV_BULK_CUH
#define HLOC_CONV_BULK_CUH

/* The left operand: what one tap reads for a patch. */
template <class S> struct hloc_bulk_patch {
  static constexpr bool ALONG = true;
  static constexpr int ROWS = S::PATCH_ACROSS * S::PATCH_DOWN * S::PATCH_IMAGES;
  static constexpr int LINES = S::BM, BYTES = S::BM * 128, COPIED = ROWS * 128;
  const unsigned char *map;
  int across, down, image, first; /* where the patch's first window starts */
  HLOC_MEMBER void copy(unsigned char *tile, int k0, unsigned long long *arrived) const {
    constexpr int DEEP = S::DEEP;
    const hloc_tap<S> tap((first + k0) / DEEP);
    hloc_bulk_copy(tile, map, (first + k0) % DEEP, across + tap.at[2] * S::DILATION2,
                   down + tap.at[1] * S::DILATION1, image, arrived);
  }
};

/* The right operand: a tap's part of the filter, channels x features. */
template <class S> struct hloc_bulk_filter {
  static constexpr bool ALONG = S::W_I == 1;
  static constexpr int LINES = ALONG ? S::BN : S::BK, BYTES = S::BN * 128, COPIED = BYTES, ACROSS = 128 / S::BULK;
  const unsigned char *map;
  int column, first;
  HLOC_MEMBER void copy(unsigned char *tile, int k0, unsigned long long *arrived) const {
    constexpr int DEEP = S::DEEP;
    const hloc_tap<S> tap((first + k0) / DEEP);
    const int channel = (first + k0) % DEEP;
    const int across = S::REVERSAL2 ? S::WINDOW2 - 1 - tap.at[2] : tap.at[2];
    const int down = S::REVERSAL1 ? S::WINDOW1 - 1 - tap.at[1] : tap.at[1];
    if constexpr (ALONG) hloc_bulk_copy(tile, map, channel, column, across, down, arrived);
    else
      for (int panel = 0; panel < S::BN / ACROSS; panel++)
        hloc_bulk_copy(tile + panel * LINES * 128, map, column + panel * ACROSS, channel, across, down, arrived);
  }
};

/* What is to the right of a tile's rows: the kernel, or what it was packed into. */
template <class S> HLOC_FN auto hloc_bulk_right(const unsigned char *map, int column, int first) {
  if constexpr (S::PACKED_B) return hloc_bulk_operand<true, S::BN, S::BK, S::BULK>{map, column, first, 0, 0};
  else return hloc_bulk_filter<S>{map, column, first};
}

/* The kernel as a matrix of features x K: what is packed (lines.cuh). */
template <class S, class T> struct hloc_patch_columns {
  static constexpr bool K_FIRST = S::W_I == 1 && S::CHANNELS > 1;
  static constexpr int VECTOR = S::W_VECTOR;
  template <int COUNT> struct places {};
  const T *w;
  template <int COUNT> HLOC_MEMBER hloc_pack<T, VECTOR> read(const places<COUNT> &, int, int feature, long k) const {
    constexpr int DEEP = S::DEEP;
    const long channel = k % DEEP;
    if (channel >= S::CHANNELS || k >= S::K) return hloc_pack<T, VECTOR>();
    const hloc_tap<S> tap((int)k / DEEP);
    return *(const hloc_pack<T, VECTOR> *)&w[tap.in_kernel() + channel * S::W_I + feature * S::W_O];
  }
};

template <class S> HLOC_FN void hloc_patch_rest(unsigned char *memory) {
  constexpr int ROWS = hloc_bulk_patch<S>::ROWS, REST = S::BM - ROWS, STAGE = (S::BM + S::BN) * 128;
  static_assert(REST >= 0, "a patch fits into a tile");
  if constexpr (REST > 0)
    for (int n = threadIdx.x; n < S::STAGES * REST * 8; n += blockDim.x)
      *(hloc_pack<unsigned, 4> *)&memory[n / (REST * 8) * STAGE + ROWS * 128 + n % (REST * 8) * 16] =
          hloc_pack<unsigned, 4>();
}

template <class S, class Tile, class Finish>
HLOC_FN void hloc_conv(const unsigned char *maps, Tile tile, Finish finish) {
  constexpr int ACROSS = S::PATCH_ACROSS, DOWN = S::PATCH_DOWN;
  constexpr long COLUMNS = (S::N + S::BN - 1) / S::BN, ROW = (S::OUT2 + ACROSS - 1) / ACROSS;
  constexpr long COLUMN = (S::OUT1 + DOWN - 1) / DOWN, SETS = (S::IMAGES + S::PATCH_IMAGES - 1) / S::PATCH_IMAGES;
  if (threadIdx.x == S::WM * 32) {
    hloc_bulk_known(maps);
    hloc_bulk_known(maps + 128);
  }
  for (long work = blockIdx.x; work < COLUMNS * ROW * COLUMN * SETS * S::SPLITS; work += gridDim.x) {
    const long piece = work % S::SPLITS, at = work / S::SPLITS, patch = at / COLUMNS, left = S::K - piece * S::PART;
    const int column = at % COLUMNS * S::BN, first = piece * S::PART;
    const int x = patch % ROW * ACROSS, y = patch / ROW % COLUMN * DOWN;
    const int image = patch / (ROW * COLUMN) * S::PATCH_IMAGES;
    const hloc_bulk_patch<S> a = {maps, (int)(x * S::STRIDE2 - S::LOW2), (int)(y * S::STRIDE1 - S::LOW1), image, first};
    const auto b = hloc_bulk_right<S>(maps + 128, column, first);
    tile(a, b, left < S::PART ? left : S::PART, hloc_finish_of(
        finish,
        [&](int i, int j) {
          const long own_x = x + i % ACROSS, own_y = y + i / ACROSS % DOWN, own_image = image + i / (ACROSS * DOWN);
          const bool inside = i < hloc_bulk_patch<S>::ROWS && own_x < S::OUT2 && own_y < S::OUT1 &&
                              own_image < S::IMAGES && column + j < S::N;
          return hloc_spot{hloc_conv_row<S>(own_image, 0, (int)own_y, (int)own_x), column + j, inside};
        },
        [&](const hloc_spot &spot, const auto &sums) {
          if constexpr (S::SPLITS > 1) return finish.call(piece, spot.row * S::N + spot.column, sums);
          else return finish.call(spot.row, spot.column, sums);
        }));
  }
}

struct hloc_positions { const unsigned char *maps; };

/* The positions of the n-th step. */
template <class S> struct hloc_position_step {
  static constexpr int COUNT = S::PATCH_ACROSS * S::PATCH_DOWN * S::PATCH_IMAGES;
  static_assert(COUNT <= S::BK && S::BK * S::BULK == 128, "a step holds a patch");
  int across, down, channel;
  HLOC_MEMBER explicit hloc_position_step(int n) {
    constexpr int ROW = S::WINDOW2 / S::PATCH_ACROSS, COLUMN = S::WINDOW1 / S::PATCH_DOWN;
    across = n % ROW * S::PATCH_ACROSS, down = n / ROW % COLUMN * S::PATCH_DOWN;
    channel = n / (ROW * COLUMN) * S::PATCH_IMAGES;
  }
};

/* A row of a tile: those of a line of 128 bytes are a panel, as many images of one output position. */
template <class S> struct hloc_position_row {
  static constexpr int LINE = 128 / S::BULK;
  int point, image;
  HLOC_MEMBER hloc_position_row(int panel, int i) {
    const int at = panel + i / LINE;
    point = at / S::PANELS, image = at % S::PANELS * LINE + i % LINE;
  }
  HLOC_MEMBER bool inside() const { return point < S::POINTS && image < S::IMAGES; }
};

/* The left operand: what output positions read. Nobody reads the sums of panels behind the last one. */
template <class S> struct hloc_bulk_positions_input {
  static constexpr bool ALONG = false;
  static constexpr int LINES = S::BK, BYTES = S::BM * 128, COPIED = S::BM * S::BULK * hloc_position_step<S>::COUNT;
  const unsigned char *map;
  int panel, first;
  HLOC_MEMBER void copy(unsigned char *tile, int k0, unsigned long long *arrived) const {
    const hloc_position_step<S> step((first + k0) / S::BK);
    for (int i = 0; i < S::BM; i += hloc_position_row<S>::LINE) {
      const hloc_position_row<S> row(panel, i);
      hloc_bulk_copy(tile + i * 128, map, row.image,
                     row.point % S::OUT2 * S::STRIDE2 - S::LOW2 + step.across * S::DILATION2,
                     row.point / S::OUT2 * S::STRIDE1 - S::LOW1 + step.down * S::DILATION1, step.channel, arrived);
    }
  }
};

/* The right operand: the kernel at these positions. */
template <class S> struct hloc_bulk_positions_kernel {
  static constexpr bool ALONG = false;
  static constexpr int LINES = S::BK, BYTES = S::BN * 128, COPIED = S::BN * 2 * hloc_position_step<S>::COUNT;
  const unsigned char *map;
  int column, first;
  HLOC_MEMBER void copy(unsigned char *tile, int k0, unsigned long long *arrived) const {
    const hloc_position_step<S> step((first + k0) / S::BK);
    for (int j = 0; j < S::BN; j += 64)
      hloc_bulk_copy(tile + j * 128, map, column + j, step.across, step.down, step.channel, arrived);
  }
};

template <class S> HLOC_FN auto hloc_bulk_positions_right(const unsigned char *map, int column, int first) {
  if constexpr (S::PACKED_B) return hloc_bulk_operand<true, S::BN, S::BK, S::BULK>{map, column, first, 0, 0};
  else return hloc_bulk_positions_kernel<S>{map, column, first};
}

template <class S> HLOC_FN void hloc_positions_rest(unsigned char *memory) {
  constexpr int COUNT = hloc_position_step<S>::COUNT, REST = (S::BK - COUNT) * 8, STAGE = (S::BM + S::BN) * 128;
  constexpr int PANELS = (S::PACKED_B ? S::BM : S::BM + S::BN) * S::BULK / 128;
  if constexpr (REST > 0)
    for (int n = threadIdx.x; n < S::STAGES * PANELS * REST; n += blockDim.x)
      *(hloc_pack<unsigned, 4> *)&memory[n / (PANELS * REST) * STAGE + n / REST % PANELS * (S::BK * 128) + COUNT * 128 +
                                         n % REST * 16] = hloc_pack<unsigned, 4>();
}

/* The kernel as a matrix of features x positions, steps padded with zeros: what is packed (lines.cuh). VECTOR features
 * are read at once. */
template <class S, class T> struct hloc_position_columns {
  static constexpr bool K_FIRST = false;
  static constexpr int VECTOR = S::W_VECTOR;
  template <int COUNT> struct places {};
  const T *w;
  template <int COUNT> HLOC_MEMBER hloc_pack<T, VECTOR> read(const places<COUNT> &, int, int feature, long k) const {
    const hloc_position_step<S> step(k / S::BK);
    const int at = k % S::BK, across = at % S::PATCH_ACROSS, down = at / S::PATCH_ACROSS % S::PATCH_DOWN;
    const long image = step.channel + at / (S::PATCH_ACROSS * S::PATCH_DOWN);
    if (at >= hloc_position_step<S>::COUNT || k >= S::K) return hloc_pack<T, VECTOR>();
    return *(const hloc_pack<T, VECTOR> *)&w[feature * S::W_O + image * S::W_I + (step.down + down) * S::W_1 +
                                             (step.across + across) * S::W_2];
  }
};

/* Tiles of one piece of the depth run at once: they read the same positions. */
template <class S, class Tile, class Finish>
HLOC_FN void hloc_conv(hloc_positions from, Tile tile, Finish finish) {
  constexpr int LINE = hloc_position_row<S>::LINE, COLUMNS = (S::N + S::BN - 1) / S::BN;
  constexpr int ROWS = (S::PANELS * S::POINTS * LINE + S::BM - 1) / S::BM;
  if (threadIdx.x == S::WM * 32) {
    hloc_bulk_known(from.maps);
    hloc_bulk_known(from.maps + 128);
  }
  for (int work = blockIdx.x; work < COLUMNS * ROWS * S::SPLITS; work += gridDim.x) {
    const int piece = work / (COLUMNS * ROWS), first = piece * S::PART, column = work % COLUMNS * S::BN;
    const int panel = work / COLUMNS % ROWS * (S::BM / LINE);
    const hloc_bulk_positions_input<S> a = {from.maps, panel, first};
    const auto b = hloc_bulk_positions_right<S>(from.maps + 128, column, first);
    const long left = S::K - first;
    tile(a, b, left < S::PART ? left : S::PART, hloc_finish_of(
        finish,
        [&](int i, int j) {
          const hloc_position_row<S> at(panel, i);
          const long row = hloc_conv_row<S>(at.image, 0, (int)(at.point / S::OUT2), (int)(at.point % S::OUT2));
          return hloc_spot{row, column + j, at.inside() && column + j < S::N};
        },
        [&](const hloc_spot &spot, const auto &sums) {
          if constexpr (S::SPLITS > 1) return finish.call(piece, spot.row * S::N + spot.column, sums);
          else return finish.call(spot.row, spot.column, sums);
        }));
  }
}

#endif
