/* gemm_choice.h: chooses the algorithm of a matmul and its blocks (template; gemm_tile.h includes it).
 *
 * In: a plan with its arguments, and the macros of gemm_tile.h. Out: G(choose), which fills in the plan and decides
 * whether panels of A, or of B, are packed once for all tasks; G(choose_splits), after it: the number of parts of sums.
 * hloc/targets/cpu/scratch/products.py makes the same choices.
 */

/* Makes blocks smaller until all threads have some: fewer groups of rows, down to `fewest`, then fewer columns. */
static void G(deal_out)(const hloc_gemm_args* g, long m_panels, long fewest, long* m_group, long* n_blocks) {
  const long wanted = 4 * hloc_pool_threads();
  while (g->batches * *n_blocks * ((m_panels + *m_group - 1) / *m_group) < wanted) {
    if (*m_group > fewest) *m_group = (*m_group + 1) / 2;
    else if (*n_blocks * 2 <= G(panels)(g->n)) *n_blocks *= 2;
    else if (*m_group > 1) *m_group = (*m_group + 1) / 2;
    else break;
  }
}

/* Whether the program contains all tables of kernels, and packing, that run_tile and find_b use for operands read like
 * this; targets/cpu/building/product_parts.py computes the same for a program's products. */
static int G(can_read)(const hloc_gemm_args* g, int a_in_place, int b_in_place, int halves) {
#if defined(G_AMX_MULTIPLY)
  (void)b_in_place, (void)halves;
  return (a_in_place || HLOC_HAS(G(pack_rows_of_a))) && HLOC_HAS_PACK(g->b_column, g->b_row);
#else
  const long rest = g->n % G(TILE_COLUMNS);
  const int in_place = a_in_place && g->m > 1, packed = !a_in_place || g->m % 2; /* tiles of A: the last may be odd */
  const int half = halves && rest && rest <= LANES, wide = (rest && !half) || (g->n >= G(TILE_COLUMNS) && !b_in_place);
  const int packs_b = !b_in_place || (rest && !(half && rest == LANES));
  if (packed && !HLOC_HAS_PACK(g->a_row, g->a_column)) return 0;
  if (packs_b && !HLOC_HAS_PACK(g->b_column, g->b_row)) return 0;
  if (wide && packed && !HLOC_HAS(G(kernels))) return 0;
#if HLOC_READS_A
  if (wide && in_place && !HLOC_HAS(G(kernels_a))) return 0;
#endif
#if HLOC_READS_B
  const int direct = g->n >= G(TILE_COLUMNS) && b_in_place;
  if (direct && ((in_place && !HLOC_HAS(G(kernels_ab))) || (packed && !HLOC_HAS(G(kernels_b))))) return 0;
  if (half && ((in_place && !HLOC_HAS(G(kernels_half_a))) || (packed && !HLOC_HAS(G(kernels_half))))) return 0;
#endif
  (void)in_place;
  return 1;
#endif
}

enum { G(TWO_TILES) = 16 }; /* rows of two tiles: reading a panel in place twice is faster than packing it */

/* One tile has all rows, and reads each line of B once: it does not matter that its rows are in few cache sets. */
static int G(b_is_met_once)(const hloc_gemm_args* g) { return g->m <= HLOC_TILE_ROWS && G(is_shared)(g); }

/* Reads operands in place as wanted, if there are kernels: B is preferred to A, half tiles come last; 0: no kernels. */
static int G(read_operands)(G(plan)* plan, int wants_a, int wants_b) {
  for (int without = 0; without < 8; without++) {
    plan->has_halves = HLOC_READS_B && !(without & 1);
    plan->a_in_place = wants_a && !(without & 2), plan->b_in_place = wants_b && !(without & 4);
    if (G(can_read)(&plan->g, plan->a_in_place, plan->b_in_place, plan->has_halves)) return 1;
  }
  return 0;
}

/* Sizes of blocks and how operands are read; 0 if the program contains no kernels for that. */
static int G(choose)(G(plan)* plan, int* share_a, int* share_b) {
  hloc_gemm_args* g = &plan->g;
  plan->rows = G(smaller)(HLOC_TILE_ROWS, G(even)(g->m));
  plan->k_block = G(k_block)(g->k);
  const int aliases = (g->a_row * (long)sizeof(ELEMENT)) % 4096 == 0; /* rows share few cache sets */
  const int b_lies = HLOC_READS_B && g->b_column == 1;
  const int b_readable = b_lies && (!G(b_aliases)(g) || G(b_is_met_once)(g));
  const int a_readable = UNIT_IS_MEMORY && g->a_column == 1 && g->a_row % GROUP == 0 &&
                         g->a_outer % GROUP == 0 && g->a_inner % GROUP == 0 && plan->k_block % GROUP == 0 &&
                         g->k % GROUP == 0;
  double work = (double)g->m * g->n * g->k;
  const int narrow = HLOC_READS_B && g->n <= LANES;
  if (aliases && narrow) plan->rows = G(smaller)(plan->rows, G(ALIASED_ROWS));
  const int aliased = aliases && plan->rows > (narrow ? G(ALIASED_ROWS) : 4);
  int small = work <= 3e6, skinny = g->m <= 4 * HLOC_TILE_ROWS;
  /* an epilogue over several arrays is memory-bound: it processes whole rows in order */
  int whole_rows = g->epilogue_arrays >= 4 && !small && !skinny && g->n <= 2048 && !plan->exchanged;
  int flat = !small && !skinny && !narrow && g->m <= 32 * HLOC_TILE_ROWS && g->batches == 1 &&
             !whole_rows;
  *share_a = flat;
  *share_b = !flat && g->batches == 1 && !(b_readable && (small || skinny)) && !skinny;
  int streams = skinny && b_lies && (double)g->n * g->k * sizeof(ELEMENT) > 512 << 10;
  /* several tiles of rows read a panel, or few rows of B are far apart */
  const int packs = streams && (g->k <= G(SHORT) ? g->m > 4 : g->m > (G(is_shared)(g) ? G(TWO_TILES) : HLOC_TILE_ROWS));
  const int wants_b = b_readable && !*share_b && !flat && !packs && !g->b_packed && !g->pack_to;
  long most_k = streams ? g->m <= 16 ? 32 : 64 : 256 * GROUP; /* rows of B in few pages; from memory: in few streams */
  if (skinny && g->k > most_k) plan->k_block = most_k;
  plan->k_blocks = (g->k + plan->k_block - 1) / plan->k_block;
  plan->sums_in_c = G_STORES_SUMS(g) && !plan->exchanged && !g->epilogue && g->c_column == 1 &&
                    (plan->k_blocks == 1 || g->c_row * (long)sizeof(SUM) % 4096);
  const long widest = plan->exchanged || g->epilogue ? G(WIDEST_OF_TILES) : G(WIDEST);
  long n_panels = G(panels)(g->n), n_blocks = whole_rows ? 1 : (g->n + widest - 1) / widest;
  long m_panels = (g->m + plan->rows - 1) / plan->rows, m_group = flat ? m_panels : G(smaller)(m_panels, 8);
  while (whole_rows && m_group > 1 && m_group * plan->rows * g->n * (long)sizeof(SUM) > 256 << 10) m_group--;
  /* some 10 microseconds: not worth a second thread, which would fetch A from the first one's cache */
  if (work * g->batches < (hloc_pool_awake() ? 2e5 : 6e5)) {
    n_blocks = 1, m_group = m_panels;
  } else {
    G(deal_out)(g, m_panels, skinny || flat ? m_panels : whole_rows ? 1 : 2, &m_group, &n_blocks);
  }
  plan->m_block = m_group * plan->rows;
  plan->n_block = ((n_panels + n_blocks - 1) / n_blocks) * G(TILE_COLUMNS);
  const int wants_a = a_readable && !flat && (plan->n_block <= G(A_WIDE) || small) && !(aliased && g->k > 64);
  const int has_blocks = HLOC_HAS(G(run_blocks)); /* and kernels for this, or, for other threads than were expected, */
  if (!has_blocks || (!G(read_operands)(plan, HLOC_READS_A && wants_a, HLOC_READS_B && wants_b) &&
                      !G(read_operands)(plan, HLOC_READS_A && a_readable && !flat, HLOC_READS_B && wants_b)))
    return 0;
  plan->a_across = HLOC_READS_B && g->a_row == 1 && !plan->a_in_place && !flat &&
                   plan->n_block <= 2 * G(TILE_COLUMNS);
  plan->m_blocks = (g->m + plan->m_block - 1) / plan->m_block;
  plan->n_blocks = (g->n + plan->n_block - 1) / plan->n_block;
  plan->group = 1;
  if (g->b_column == 1 && !*share_b && !plan->b_in_place) {
    const long panel = G(TILE_COLUMNS) * G(units)(plan->k_block) * (long)sizeof(UNIT);
    plan->group = G(smaller)(G(panels)(plan->n_block), G(smaller)(G(GROUP_PANELS), 1 + G(GROUP_BYTES) / panel));
  }
  plan->sweeps = g->epilogue && !plan->exchanged && plan->n_block > G(TILE_COLUMNS) && !small &&
                 (plan->k_blocks > 1 || plan->m_block * plan->n_block * (long)sizeof(SUM) <= 512 << 10);
  return 1;
}

/* Few blocks of long sums: parts of k for all threads. */
static void G(choose_splits)(G(plan)* plan, int* share_a, int* share_b) {
  const hloc_gemm_args* g = &plan->g;
  const long tasks = g->batches * plan->m_blocks * plan->n_blocks, threads = hloc_pool_threads();
  const double work = (double)g->m * g->n * g->k * g->batches;
  plan->k_splits = 1, plan->k_part = g->k;
  if (tasks >= threads || plan->k_blocks < 2 || work < 1e6 || !HLOC_HAS(G(join_blocks))) return;
  const long wanted = G(smaller)(plan->k_blocks, 2 * threads / tasks);
  plan->k_part = (plan->k_blocks + wanted - 1) / wanted * plan->k_block;
  plan->k_splits = (g->k + plan->k_part - 1) / plan->k_part;
  if (plan->k_splits > 1) *share_a = *share_b = plan->sweeps = plan->sums_in_c = 0;
}
