/* gemm_thin.h: matmuls with at most THIN_ROWS rows of A, which read B only once (template; gemm_tile.h includes it).
 *
 * In (macros): those of gemm_tile.h, and G(widen)(p): LANES elements at p as a VECTOR; G(widen_one)(element). G_DOTS
 * (optional): G(thin_lanes) is already defined, for rows of A that are not widened.
 * Out: G(thin)(plan), which computes the whole product.
 *
 * B's columns contiguous along k: every column is a dot product, four at a time; the lanes of a vector's number of
 * them are reduced together. B's rows contiguous along n: rows are streamed four at a time into sums that stay in
 * cache; k is split over tasks with their own sums, which are added at the end. A small B, which fits the cache, or one
 * of few rows, is read a few vectors of columns at a time instead, aligned to cache lines; their sums stay in
 * registers.
 */
#if defined(G_DOTS)
#define DOT_FACTOR ELEMENT
#define DOT_FACTOR_OF(element) (element)
#else
#define DOT_FACTOR SUM
#define DOT_FACTOR_OF(element) G(widen_one)(element)
#endif
enum { G(THIN_ROWS) = 4, G(THIN_AT_ONCE) = LANES < 4 ? LANES : 4,
       G(HELD) = HLOC_VECTOR_BYTES == 64 ? 16 : 12 /* sums that fit registers */ };

typedef struct {
  const G(plan)* plan;
  SUM* a;        /* widened: [batch][row][k]; for dot products DOT_FACTORs */
  SUM* partial;  /* [batch][k split][row][n] */
  long k_splits, column_parts;
} G(thin_work);

#if !defined(G_DOTS)
/* sum[i * stride + j] = the lanes whose sum is the dot product of row i with the j-th of COUNT neighbouring columns;
 * k is at least LANES. The last vector along k overlaps the previous one if it is not whole. */
HLOC_INLINE void G(thin_lanes)(const int rows, const int count, const SUM* a, const ELEMENT* b, long b_column, long k,
                               VECTOR* lanes, const int stride) {
  static const unsigned char met[2 * HLOC_VECTOR_BYTES] = {[HLOC_VECTOR_BYTES ... 2 * HLOC_VECTOR_BYTES - 1] = 255};
  VECTOR sum[G(THIN_ROWS) * 4];
  HLOC_UNROLL for (int i = 0; i < rows * count; i++) sum[i] = (VECTOR){0};
  long p = 0;
  for (; p + LANES <= k; p += LANES) {
    HLOC_UNROLL for (int j = 0; j < count; j++) {
      __builtin_prefetch(b + (j + count) * b_column + p); /* too short for the hardware prefetcher */
      VECTOR bj = G(widen)(b + j * b_column + p);
      if (rows > 1) HLOC_IN_REGISTER(bj);
      HLOC_UNROLL for (int i = 0; i < rows; i++) sum[i * count + j] += G(load_sum)(a + i * k + p) * bj;
    }
  }
  if (p < k) {
    const hloc_vu32 new = hloc_load_u32(met + (k - p) * sizeof(SUM));
    HLOC_UNROLL for (int j = 0; j < count; j++) {
      VECTOR bj = (VECTOR)((hloc_vu32)G(widen)(b + j * b_column + k - LANES) & new);
      HLOC_UNROLL for (int i = 0; i < rows; i++)
        sum[i * count + j] += (VECTOR)((hloc_vu32)G(load_sum)(a + i * k + k - LANES) & new) * bj;
    }
  }
  HLOC_UNROLL for (int i = 0; i < rows; i++)
    HLOC_UNROLL for (int j = 0; j < count; j++) lanes[i * stride + j] = sum[i * count + j];
}
#endif
/* The sums of all lanes of LANES vectors, as one vector: partial sums of two vectors are interleaved into one, until
 * one vector remains. */
HLOC_INLINE VECTOR G(thin_mixed)(VECTOR a, VECTOR b) {
  if (sizeof(SUM) == 8)
    return (VECTOR)hloc_low_64((hloc_vu64)a, (hloc_vu64)b) + (VECTOR)hloc_high_64((hloc_vu64)a, (hloc_vu64)b);
  return (VECTOR)hloc_low_32((hloc_vu32)a, (hloc_vu32)b) + (VECTOR)hloc_high_32((hloc_vu32)a, (hloc_vu32)b);
}
HLOC_INLINE VECTOR G(thin_fold)(const VECTOR* lanes) {
  VECTOR v[LANES];
  HLOC_UNROLL for (int i = 0; i < LANES; i++) v[i] = lanes[i];
  HLOC_UNROLL for (int half = LANES / 2; half; half /= 2) {
    HLOC_UNROLL for (int i = 0; i < half; i++) v[i] = G(thin_mixed)(v[i], v[i + half]);
  }
  return v[0];
}
HLOC_INLINE void G(thin_dot_columns)(const int rows, const G(thin_work)* w, const DOT_FACTOR* a, const ELEMENT* b,
                                     SUM* sums, long from, long to) {
  const hloc_gemm_args* g = &w->plan->g;
  const long k = g->k, column = g->b_column;
  VECTOR lanes[G(THIN_ROWS) * LANES];
  long j = from;
  for (; k >= LANES && j + LANES <= to; j += LANES) {
    for (int part = 0; part < LANES; part += G(THIN_AT_ONCE))
      G(thin_lanes)(rows, G(THIN_AT_ONCE), a, b + (j + part) * column, column, k, lanes + part, LANES);
    for (int i = 0; i < rows; i++) G(store_sum)(sums + i * g->n + j, G(thin_fold)(lanes + i * LANES));
  }
  for (; k >= LANES && j < to; j++) {
    G(thin_lanes)(rows, 1, a, b + j * column, column, k, lanes, 1);
    for (int i = 0; i < rows; i++) sums[i * g->n + j] = G(fold)(lanes[i]);
  }
  for (; j < to; j++)
    for (int i = 0; i < rows; i++) {
      SUM total = 0;
      for (long p = 0; p < k; p++) total += a[i * k + p] * G(widen_one)(b[j * column + p]);
      sums[i * g->n + j] = total;
    }
}

/* sums[i][from..to) = sum over k0 <= p < k1 of a[i][p] b[p][..], four rows of B at a time. */
HLOC_INLINE void G(thin_stream_rows)(const int rows, const G(thin_work)* w, const SUM* a, const ELEMENT* b, SUM* sums,
                                     long from, long to, long k0, long k1) {
  const hloc_gemm_args* g = &w->plan->g;
  const long k = g->k, n = g->n;
  for (int i = 0; i < rows; i++) __builtin_memset(sums + i * n + from, 0, (to - from) * sizeof(SUM));
  for (long p = k0; p < k1; p += 4) {
    const ELEMENT* row[4];
    SUM factor[G(THIN_ROWS)][4];
    for (int q = 0; q < 4; q++) { /* beyond the end: the last row again, times zero */
      row[q] = b + (p + q < k1 ? p + q : k1 - 1) * g->b_row;
      for (int i = 0; i < rows; i++) factor[i][q] = p + q < k1 ? a[i * k + p + q] : 0;
    }
    long j = from;
    for (; j + LANES <= to; j += LANES) {
      HLOC_UNROLL for (int q = 0; q < 4; q++) __builtin_prefetch(row[q] + j + 4 * g->b_row); /* the next four */
      VECTOR b0 = G(widen)(row[0] + j), b1 = G(widen)(row[1] + j), b2 = G(widen)(row[2] + j), b3 = G(widen)(row[3] + j);
      HLOC_UNROLL for (int i = 0; i < rows; i++) {
        SUM* at = sums + i * n + j;
        VECTOR low = b0 * factor[i][0] + b1 * factor[i][1], high = b2 * factor[i][2] + b3 * factor[i][3];
        G(store_sum)(at, G(load_sum)(at) + (low + high));
      }
    }
    for (; j < to; j++)
      for (int i = 0; i < rows; i++)
        for (int q = 0; q < 4; q++) sums[i * n + j] += factor[i][q] * G(widen_one)(row[q][j]);
  }
}

/* sums[i][at[j]..) of `count` vectors of columns, all of k. */
HLOC_INLINE void G(thin_held)(const int rows, const int count, const G(thin_work)* w, const SUM* a, const ELEMENT* b,
                              SUM* sums, const long* at) {
  const hloc_gemm_args* g = &w->plan->g;
  VECTOR sum[4 * G(THIN_ROWS)];
  HLOC_UNROLL for (int i = 0; i < rows * count; i++) sum[i] = (VECTOR){0};
  for (long p = 0; p < g->k; p++) {
    HLOC_UNROLL for (int j = 0; j < count; j++) {
      VECTOR bj = G(widen)(b + p * g->b_row + at[j]);
      if (w->plan->p.fetches) __builtin_prefetch(b + (p + G(ROWS_AHEAD)) * g->b_row + at[j], 0, 2);
      if (rows > 1) HLOC_IN_REGISTER(bj);
      HLOC_UNROLL for (int i = 0; i < rows; i++) sum[i * count + j] += bj * a[i * g->k + p];
    }
  }
  HLOC_UNROLL for (int i = 0; i < rows; i++)
    HLOC_UNROLL for (int j = 0; j < count; j++) G(store_sum)(sums + i * g->n + at[j], sum[i * count + j]);
}
/* The number of columns before the first aligned vector: callers' arrays have any alignment, and a vector that crosses
 * a cache line costs two. 0 if most rows have other alignments, or if widening takes longer. */
static long G(thin_ahead)(const hloc_gemm_args* g, const ELEMENT* from) {
  const long bytes = HLOC_VECTOR_BYTES, past = (long)((unsigned long)from % bytes), size = (long)sizeof(ELEMENT);
  return size < (long)sizeof(SUM) || g->b_row % (LANES / 2) || past % size ? 0 : (bytes - past) % bytes / size;
}
/* Columns before and after blocks of whole vectors are in vectors that overlap these. */
HLOC_INLINE void G(thin_hold_columns)(const int rows, const G(thin_work)* w, const SUM* a, const ELEMENT* b, SUM* sums,
                                      long from, long to) {
  enum { FEW = 4 };
  const hloc_gemm_args* g = &w->plan->g;
  const int most = G(HELD) / rows < 8 ? G(HELD) / rows : 8;
  long at[8], rest[10], found = 0, j = from;
  if (to - from >= LANES) {
    j += G(smaller)(G(thin_ahead)(g, b + from), to - from - LANES);
    if (j > from) rest[found++] = from;
    for (; j + most * LANES <= to; j += most * LANES) {
      HLOC_UNROLL for (int q = 0; q < most; q++) at[q] = j + q * LANES;
      G(thin_held)(rows, most, w, a, b, sums, at);
    }
    for (; j < to; j += LANES) rest[found++] = G(smaller)(j, to - LANES);
    for (long done = 0; done < found; done += FEW) {
      HLOC_UNROLL for (int q = 0; q < FEW; q++) at[q] = rest[G(smaller)(done + q, found - 1)];
      if (found - done == 1) G(thin_held)(rows, 1, w, a, b, sums, at);
      else G(thin_held)(rows, FEW, w, a, b, sums, at);
    }
    return;
  }
  for (; j < to; j++)
    for (int i = 0; i < rows; i++) {
      SUM total = 0;
      for (long p = 0; p < g->k; p++) total += a[i * g->k + p] * G(widen_one)(b[p * g->b_row + j]);
      sums[i * g->n + j] = total;
    }
}

/* The same with B's rows, of which only k0 <= p < k1 where they are streamed. */
HLOC_INLINE void G(thin_rows)(const int rows, const G(thin_work)* w, const SUM* a, const ELEMENT* b, SUM* sums,
                              long from, long to, long k0, long k1) {
  if (w->plan->p.is_held) G(thin_hold_columns)(rows, w, a, b, sums, from, to);
  else G(thin_stream_rows)(rows, w, a, b, sums, from, to, k0, k1);
}

#define HLOC_BY_ROWS(rows, OF)                                                                                        \
  switch (rows) {                                                                                                     \
    case 1: OF(1); break;                                                                                             \
    case 2: OF(2); break;                                                                                             \
    case 3: OF(3); break;                                                                                             \
    case 4: OF(4); break;                                                                                             \
  }
static void G(thin_finish)(const G(thin_work)* w, long batch, long from, long to) {
  const hloc_gemm_args* g = &w->plan->g;
  SUM* total = w->partial + batch * w->k_splits * g->m * g->n;
  for (long split = 1; split < w->k_splits; split++)
    for (long i = 0; i < g->m; i++)
      for (long j = from; j < to; j++) total[i * g->n + j] += total[(split * g->m + i) * g->n + j];
  const long most = w->plan->p.exchanged ? G(TILE_COLUMNS) : to - from;
  for (long column = from; column < to; column += most)
    G(finish)(w->plan, batch, 0, column, g->m, G(smaller)(most, to - column), total + column, g->n);
}
static void G(thin_finishes)(void* const* args, long begin, long end) {
  const G(thin_work)* w = (const G(thin_work)*)args;
  for (long t = begin; t < end; t++) {
    const long from = t % w->column_parts * w->plan->p.n_block;
    G(thin_finish)(w, t / w->column_parts, from, G(smaller)(w->plan->g.n, from + w->plan->p.n_block));
  }
}

static void G(thin_task)(void* const* args, long begin, long end) {
  const G(thin_work)* w = (const G(thin_work)*)args;
  const hloc_gemm_args* g = &w->plan->g;
  for (long t = begin; t < end; t++) {
    long part = t % w->column_parts, split = t / w->column_parts % w->k_splits;
    long batch = t / w->column_parts / w->k_splits;
    long from = part * w->plan->p.n_block, to = G(smaller)(g->n, from + w->plan->p.n_block);
    long k0 = split * w->plan->p.k_part, k1 = G(smaller)(g->k, k0 + w->plan->p.k_part);
    const SUM* a = w->a + batch * g->m * g->k;
    const DOT_FACTOR* factors = (const DOT_FACTOR*)w->a + batch * g->m * g->k;
    const ELEMENT* b = G(b_of)(g, batch);
    SUM* sums = w->partial + (batch * w->k_splits + split) * g->m * g->n;
#define HLOC_DOTS(ROWS) G(thin_dot_columns)(ROWS, w, factors, b, sums, from, to)
#define HLOC_ROWS(ROWS) G(thin_rows)(ROWS, w, a, b, sums, from, to, k0, k1)
    if (g->b_row == 1) HLOC_BY_ROWS(g->m, HLOC_DOTS)
    else HLOC_BY_ROWS(g->m, HLOC_ROWS)
#undef HLOC_DOTS
#undef HLOC_ROWS
    if (w->k_splits == 1) G(thin_finish)(w, batch, from, to);
  }
}

static void G(thin_widen_a)(const G(plan)* plan, SUM* out) {
  const hloc_gemm_args* g = &plan->g;
  const long row = g->a_row, column = g->a_column;
  DOT_FACTOR* factors = (DOT_FACTOR*)out;
  for (long batch = 0; batch < g->batches; batch++, out += g->m * g->k, factors += g->m * g->k) {
    const ELEMENT* source = G(a_of)(g, batch);
    for (long i = 0; i < g->m; i++)
      if (g->b_row == 1 && column == 1)
        for (long p = 0; p < g->k; p++) factors[i * g->k + p] = DOT_FACTOR_OF(source[i * row + p]);
      else if (g->b_row == 1)
        for (long p = 0; p < g->k; p++) factors[i * g->k + p] = DOT_FACTOR_OF(source[i * row + p * column]);
      else
        for (long p = 0; p < g->k; p++) out[i * g->k + p] = G(widen_one)(source[i * row + p * column]);
  }
}

static int G(thin)(const G(plan)* plan) {
  const hloc_gemm_args* g = &plan->g;
  const long part = plan->p.n_block, splits = (g->k + plan->p.k_part - 1) / plan->p.k_part;
  char* memory = hloc_scratch(HLOC_FIRST, plan->p.first);
  if (!memory) return 1;
  const G(thin_work) w = {plan, (SUM*)memory, (SUM*)(memory + plan->p.at_sums), splits, (g->n + part - 1) / part};
  G(thin_widen_a)(plan, w.a);
  hloc_parallel(G(thin_task), (void* const*)&w, g->batches * splits * w.column_parts, hloc_gemm_grain(&plan->p));
  if (splits > 1)
    hloc_parallel(G(thin_finishes), (void* const*)&w, g->batches * w.column_parts, 65536 / (part * g->m) + 1);
  return 0;
}
#undef HLOC_BY_ROWS

#undef DOT_FACTOR
#undef DOT_FACTOR_OF
