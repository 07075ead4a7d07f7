/* sort.cuh: stable sorts of rows by any comparator, through the positions of their elements.
 *
 * In: team.cuh; a struct S of constants: ROWS, LENGTH, KEEP (elements of a sorted row that are wanted); CHUNK, a power
 *     of two.
 *     before(row, i, j): element i of the row goes before element j;  move(row, from, to): place it in the result.
 * Out: hloc_sort_short<S>          rows of at most CHUNK elements, sorted by blocks in shared memory (CHUNK x 4 bytes)
 *      hloc_sort_few<S>            longer rows of which CHUNK elements or fewer decide, in one kernel
 *      hloc_pick_few<S>            the same where KEEP is so small that a thread holds so many positions in registers
 *      hloc_sort_chunks<S>         longer rows: sorts each CHUNK of positions into places[row * LENGTH ...]
 *      hloc_sort_merge<S, WIDTH>   merges neighbouring runs of WIDTH from `from` to `to`
 *      hloc_sort_move<S>           moves the elements to where the sorted positions say
 * Equal elements keep their order, since ties go to the lower position; so bitonic networks will do.
 */
#ifndef HLOC_SORT_CUH
#define HLOC_SORT_CUH

/* A bitonic sort of the positions in `memory`, SEGMENT (a power of two) by SEGMENT; first(a, b): a comes before b. */
template <int COUNT, int SEGMENT, class First> HLOC_FN void hloc_sort_segments(int *memory, First first) {
  for (int size = 2; size <= SEGMENT; size *= 2)
    for (int distance = size / 2; distance > 0; distance /= 2) {
      __syncthreads();
      for (int t = threadIdx.x; t < COUNT / 2; t += blockDim.x) {
        const int i = 2 * t - (t & (distance - 1)), j = i + distance;
        const bool upward = (i % SEGMENT & size) == 0;
        const int a = memory[i], b = memory[j];
        if (first(i / SEGMENT, b, a) == upward) memory[i] = b, memory[j] = a;
      }
    }
  __syncthreads();
}

/* Positions from LENGTH on stand for nothing and go last. */
template <class S, class Before> HLOC_FN bool hloc_sort_first(Before before, long row, int a, int b) {
  if (a >= S::LENGTH || b >= S::LENGTH || row >= S::ROWS) return a < b;
  if (before(row, a, b)) return true;
  return !before(row, b, a) && a < b;
}

template <class S, class Before, class Move> HLOC_FN void hloc_sort_short(int *memory, Before before, Move move) {
  constexpr int TOGETHER = S::CHUNK / S::SEGMENT; /* rows of one block */
  for (long top = blockIdx.x * (long)TOGETHER; top < S::ROWS; top += gridDim.x * (long)TOGETHER) {
    __syncthreads();
    for (int t = threadIdx.x; t < S::CHUNK; t += blockDim.x) memory[t] = t % S::SEGMENT;
    hloc_sort_segments<S::CHUNK, S::SEGMENT>(
        memory, [&](int row, int a, int b) { return hloc_sort_first<S>(before, top + row, a, b); });
    for (int t = threadIdx.x; t < S::CHUNK; t += blockDim.x)
      if (t % S::SEGMENT < S::KEEP && top + t / S::SEGMENT < S::ROWS)
        move(top + t / S::SEGMENT, memory[t], t % S::SEGMENT);
  }
}

template <class S, class Before> HLOC_FN void hloc_sort_chunks(int *memory, int *places, Before before) {
  constexpr long CHUNKS = (S::LENGTH + S::CHUNK - 1) / S::CHUNK;
  for (long work = blockIdx.x; work < S::ROWS * CHUNKS; work += gridDim.x) {
    const long row = work / CHUNKS, start = work % CHUNKS * S::CHUNK;
    __syncthreads();
    for (int t = threadIdx.x; t < S::CHUNK; t += blockDim.x) memory[t] = start + t;
    hloc_sort_segments<S::CHUNK, S::CHUNK>(
        memory, [&](int, int a, int b) { return hloc_sort_first<S>(before, row, a, b); });
    for (int t = threadIdx.x; t < S::CHUNK; t += blockDim.x)
      if (start + t < S::LENGTH) places[row * S::LENGTH + start + t] = memory[t];
  }
}

/* Each thread finds where its PER results start in both runs (the merge path), then merges them. */
template <class S, long WIDTH, class Before> HLOC_FN void hloc_sort_merge(const int *from, int *to, Before before) {
  constexpr int PER = 8;
  constexpr long PARTS = (S::LENGTH + PER - 1) / PER;
  const long step = (long)gridDim.x * blockDim.x;
  for (long work = blockIdx.x * (long)blockDim.x + threadIdx.x; work < S::ROWS * PARTS; work += step) {
    const long row = work / PARTS, place = work % PARTS * PER, start = place / (2 * WIDTH) * (2 * WIDTH);
    const long middle = start + WIDTH < S::LENGTH ? start + WIDTH : S::LENGTH;
    const long end = middle + WIDTH < S::LENGTH ? middle + WIDTH : S::LENGTH;
    const int *a = from + row * S::LENGTH + start, *b = from + row * S::LENGTH + middle;
    const long count_a = middle - start, count_b = end - middle, before_us = place - start;
    long low = before_us > count_b ? before_us - count_b : 0, high = before_us < count_a ? before_us : count_a;
    while (low < high) {
      const long taken = (low + high) / 2;
      if (before(row, b[before_us - 1 - taken], a[taken])) high = taken;
      else low = taken + 1;
    }
    long i = low, j = before_us - low;
    for (int n = 0; n < PER && i + j < count_a + count_b; n++) {
      const bool take_b = i >= count_a || (j < count_b && before(row, b[j], a[i]));
      to[row * S::LENGTH + place + n] = take_b ? b[j++] : a[i++];
    }
  }
}

template <class S, class Move> HLOC_FN void hloc_sort_move(const int *places, Move move) {
  const long step = (long)gridDim.x * blockDim.x;
  for (long n = blockIdx.x * (long)blockDim.x + threadIdx.x; n < S::ROWS * S::KEEP; n += step)
    move(n / S::KEEP, places[n / S::KEEP * S::LENGTH + n % S::KEEP], n % S::KEEP);
}

/* Longer rows of which few elements are wanted: each block sorts a chunk and keeps its first KEEP positions in
 * `places`. The last block of a row sorts those of all chunks, which are CHUNK at most. */
template <class S, class Before, class Move>
HLOC_FN void hloc_sort_few(int *memory, int *places, unsigned *arrived, Before before, Move move) {
  constexpr int CHUNKS = (S::LENGTH + S::CHUNK - 1) / S::CHUNK, FOUND = CHUNKS * S::KEEP;
  for (long work = blockIdx.x; work < S::ROWS * (long)CHUNKS; work += gridDim.x) {
    const long row = work / CHUNKS;
    auto sort = [&]() {
      hloc_sort_segments<S::CHUNK, S::CHUNK>(
          memory, [&](int, int a, int b) { return hloc_sort_first<S>(before, row, a, b); });
    };
    __syncthreads();
    for (int t = threadIdx.x; t < S::CHUNK; t += blockDim.x) memory[t] = work % CHUNKS * S::CHUNK + t;
    sort();
    for (int t = threadIdx.x; t < S::KEEP; t += blockDim.x) places[work * S::KEEP + t] = memory[t];
    if (!hloc_last_block(&arrived[row], CHUNKS)) continue;
    for (int t = threadIdx.x; t < S::CHUNK; t += blockDim.x)
      memory[t] = t < FOUND ? places[row * FOUND + t] : S::CHUNK * CHUNKS + t;
    sort();
    for (int t = threadIdx.x; t < S::KEEP; t += blockDim.x) move(row, memory[t], t);
  }
}

/* The first KEEP of the positions that were added, in order; S::LENGTH and above stand for nothing. */
template <class S> struct hloc_few { int at[S::KEEP]; };
template <class S> HLOC_FN void hloc_clear_few(hloc_few<S> &few) {
  for (int n = 0; n < S::KEEP; n++) few.at[n] = S::LENGTH + n;
}
/* Whether the position is one of the first. */
template <class S, class First> HLOC_FN bool hloc_add_few(hloc_few<S> &few, int position, First first) {
  if (!first(position, few.at[S::KEEP - 1])) return false;
#pragma unroll
  for (int n = S::KEEP - 1; n > 0; n--) {
    const bool before = first(position, few.at[n - 1]);
    few.at[n] = before ? few.at[n - 1] : position;
    if (!before) return true;
  }
  few.at[0] = position;
  return true;
}

/* Joins the lists of all threads of a block; `memory`, THREADS x KEEP positions, begins with the result. */
template <class S, class First> HLOC_FN void hloc_join_few(int *memory, hloc_few<S> &own, First first) {
  __syncthreads(); /* the last result has been read */
  for (int n = 0; n < S::KEEP; n++) memory[threadIdx.x * S::KEEP + n] = own.at[n];
  for (int lists = S::THREADS / 2; lists > 0; lists /= 2) {
    __syncthreads(); /* the lists of this round are there */
    if (threadIdx.x >= lists) continue;
    for (int n = 0; n < S::KEEP; n++)
      if (!hloc_add_few<S>(own, memory[(threadIdx.x + lists) * S::KEEP + n], first)) break;
    for (int n = 0; n < S::KEEP; n++) memory[threadIdx.x * S::KEEP + n] = own.at[n];
  }
  __syncthreads();
}

/* Each block finds the first KEEP positions of a chunk. The last block of a row finds those of all chunks. */
template <class S, class Before, class Move>
HLOC_FN void hloc_pick_few(int *memory, int *places, unsigned *arrived, Before before, Move move) {
  constexpr int CHUNKS = (S::LENGTH + S::CHUNK - 1) / S::CHUNK, FOUND = CHUNKS * S::KEEP;
  for (long work = blockIdx.x; work < S::ROWS * (long)CHUNKS; work += gridDim.x) {
    const long row = work / CHUNKS;
    const int start = work % CHUNKS * S::CHUNK, end = start + S::CHUNK < S::LENGTH ? start + S::CHUNK : S::LENGTH;
    auto first = [&](int a, int b) { return hloc_sort_first<S>(before, row, a, b); };
    hloc_few<S> own;
    hloc_clear_few<S>(own);
    for (int t = start + threadIdx.x; t < end; t += S::THREADS) hloc_add_few<S>(own, t, first);
    hloc_join_few<S>(memory, own, first);
    for (int t = threadIdx.x; t < S::KEEP; t += S::THREADS) places[work * S::KEEP + t] = memory[t];
    if (!hloc_last_block(&arrived[row], CHUNKS)) continue;
    hloc_clear_few<S>(own);
    for (int t = threadIdx.x; t < FOUND; t += S::THREADS) hloc_add_few<S>(own, places[row * FOUND + t], first);
    hloc_join_few<S>(memory, own, first);
    for (int t = threadIdx.x; t < S::KEEP; t += S::THREADS) move(row, memory[t], t);
  }
}

#endif
