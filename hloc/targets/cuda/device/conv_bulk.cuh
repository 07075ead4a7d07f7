/* conv_bulk.cuh: convolutions whose operands the bulk copy engine of sm_90a copies.
 *
 * In: conv.cuh, warpgroup.cuh; conv.cuh's struct S with one group, no base dilation, two spatial dimensions, CHANNELS a
 * multiple of BK, and PATCH_ACROSS x PATCH_DOWN positions of PATCH_IMAGES images, which are the rows of a tile. Out:
 *   hloc_patch_rest<S>(memory)         once, before there are barriers: rows of tiles that no copy fills are zeros
 *   hloc_conv(maps, tile, finish)      all tiles; maps: of the image (channel, across, down, image), and of the filter
 *                                      (along memory, line, tap across, tap down)
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
    constexpr int CHANNELS = S::CHANNELS;
    const hloc_tap<S> tap((first + k0) / CHANNELS);
    hloc_bulk_copy(tile, map, (first + k0) % CHANNELS, across + tap.at[2] * S::DILATION2,
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
    constexpr int CHANNELS = S::CHANNELS;
    const hloc_tap<S> tap((first + k0) / CHANNELS);
    const int channel = (first + k0) % CHANNELS;
    const int across = S::REVERSAL2 ? S::WINDOW2 - 1 - tap.at[2] : tap.at[2];
    const int down = S::REVERSAL1 ? S::WINDOW1 - 1 - tap.at[1] : tap.at[1];
    if constexpr (ALONG) hloc_bulk_copy(tile, map, channel, column, across, down, arrived);
    else
      for (int panel = 0; panel < S::BN / ACROSS; panel++)
        hloc_bulk_copy(tile + panel * LINES * 128, map, column + panel * ACROSS, channel, across, down, arrived);
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
    const hloc_bulk_filter<S> b = {maps + 128, column, first};
    tile(a, b, left < S::PART ? left : S::PART, [&](int i, int j, auto sum) {
      const long own_x = x + i % ACROSS, own_y = y + i / ACROSS % DOWN, own_image = image + i / (ACROSS * DOWN);
      if (i >= hloc_bulk_patch<S>::ROWS || own_x >= S::OUT2 || own_y >= S::OUT1 || own_image >= S::IMAGES ||
          column + j >= S::N)
        return;
      const long row = (own_image * S::OUT1 + own_y) * S::OUT2 + own_x;
      if constexpr (S::SPLITS > 1) finish(piece, row * S::N + column + j, sum);
      else finish(row, column + j, sum);
    });
  }
}

#endif
