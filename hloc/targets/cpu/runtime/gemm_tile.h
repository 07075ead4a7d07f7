/* gemm_tile.h: a whole matrix product for one set of element types (template; each gemm_<type>.c includes it).
 *
 * In (macros): those of gemm_kernel.h; G_NAME the public suffix; G(store)(args, c, tile, ...) stores a tile of sums;
 * G_TURNS_A (optional): G(turn)(units, count) changes packed A; G_CORRECTS 1 when sums need a correction per column of
 * B (G(column_correction)), else 0.
 * Out: hloc_gemm_<G_NAME>, hloc_gemm_<G_NAME>_packed_bytes, hloc_gemm_<G_NAME>_pack_b as gemm.h says.
 *
 * A task computes one block of C: for every block of k, A's panels are packed into the thread's scratch (or read in
 * place), then every panel of B meets every panel of A in a register tile. B's panels are packed once for all tasks,
 * or by the task itself, or read in place when that is cheaper: choose() decides. A flat product (few rows against a
 * large B) has A packed once for all tasks, and each panel of B by the one task that meets it, just before; meanwhile
 * the kernels fetch the panel after it. A skinny one (fewer rows still) reads a large B in place, row after row. Where
 * there are fewer blocks than threads, and sums are long, tasks add up parts of them.
 */
#include "gemm_kernel.h"

typedef struct {
  hloc_gemm_args g; /* with A and B exchanged when n is tiny */
  int exchanged;
  long rows;                    /* of a register tile, at most (even) */
  long m_block, n_block, k_block, m_blocks, n_blocks, k_blocks;
  long k_splits, k_part;        /* parts of k that different tasks sum, where there are fewer blocks than threads */
  SUM* partial;                 /* with splits: their sums, one block behind the other; else NULL */
  int a_in_place, a_across, b_in_place; /* a_across: in place, too, where its rows lie side by side */
  int sweeps;                   /* a task's epilogue runs when its block is done, along whole rows of it */
  const UNIT* shared_b;         /* packed panels, or NULL */
  const SUM* corrections;       /* with shared_b: [panel][k block][tile column] */
  UNIT* shared_a;               /* packed panels [k block][panel][a_panel_units], or NULL */
  long a_panels, a_panel_units;
  int* failed;                  /* set by a task that found no memory */
} G(plan);

/* NARROW: columns that fill less than half a tile; FEW: that are better met along k than by kernels for half a tile */
enum { G(NARROW) = LANES < HLOC_TILE_ROWS ? LANES : HLOC_TILE_ROWS, G(FEW) = LANES / 2, G(ALIASED_ROWS) = 8 };

static long G(smaller)(long a, long b) { return a < b ? a : b; }
static long G(units)(long k) { return (k + GROUP - 1) / GROUP; }
static long G(even)(long rows) { return (rows + 1) / 2 * 2; }
static long G(panels)(long n) { return (n + G(TILE_COLUMNS) - 1) / G(TILE_COLUMNS); }

/* Blocks of k: one when k is short, else equal ones of at most 512 units. Prepacked B relies on it. */
static long G(k_block)(long k) {
  if (k <= 640 * GROUP) return k;
  long blocks = (k + 512 * GROUP - 1) / (512 * GROUP);
  return ((k + blocks - 1) / blocks + 15) / 16 * 16;
}

static const ELEMENT* G(a_of)(const hloc_gemm_args* g, long batch) {
  return (const ELEMENT*)g->a + batch / g->inner_batches * g->a_outer + batch % g->inner_batches * g->a_inner;
}
static const ELEMENT* G(b_of)(const hloc_gemm_args* g, long batch) {
  return (const ELEMENT*)g->b + batch / g->inner_batches * g->b_outer + batch % g->inner_batches * g->b_inner;
}

/* One panel of B: k0 <= k < k0 + count, columns from `column`; scratch_rows is for the prologue's output. */
static void G(pack_b_panel)(const G(plan)* plan, long batch, long k0, long count, long column, UNIT* target,
                            SUM* correction, ELEMENT* loaded) {
  const hloc_gemm_args* g = &plan->g;
  long columns = G(smaller)(G(TILE_COLUMNS), g->n - column);
  const ELEMENT* source;
  long column_stride = g->b_column, k_stride = g->b_row;
  if (g->load_b) {
    g->load_b(g->load_b_args, batch, k0, count, column, columns, loaded);
    source = loaded, column_stride = 1, k_stride = columns;
  } else {
    source = G(b_of)(g, batch) + k0 * k_stride + column * column_stride;
  }
  G(pack)(source, column_stride, k_stride, columns, count, G(TILE_COLUMNS), target);
#if G_CORRECTS
  G(column_correction)(target, G(units)(count), correction);
#else
  (void)correction;
#endif
}
static void G(pack_a_panel)(const G(plan)* plan, long batch, long row, long rows, long k0, long count, UNIT* target,
                            ELEMENT* loaded) {
  const hloc_gemm_args* g = &plan->g;
  if (g->load_a) {
    g->load_a(g->load_a_args, batch, row, rows, k0, count, loaded);
    G(pack)(loaded, count, 1, rows, count, G(even)(rows), target);
  } else {
    const ELEMENT* source = G(a_of)(g, batch) + row * g->a_row + k0 * g->a_column;
    G(pack)(source, g->a_row, g->a_column, rows, count, G(even)(rows), target);
  }
#if defined(G_TURNS_A)
  G(turn)(target, G(units)(count) * G(even)(rows));
#endif
}

/* Rows of the tile that begins at `row`: all that a tile takes; what is left of a block for two is halved. */
static long G(rows_at)(const G(plan)* plan, long row) {
  long rest = G(smaller)(plan->g.m, (row / plan->m_block + 1) * plan->m_block) - row;
  if (rest > plan->rows && rest < plan->rows + plan->rows / 2 - 1) return (rest + 3) / 4 * 2;
  return G(smaller)(rest, plan->rows);
}

/* Panels lie in the order of their tiles; only a block's last tile begins between multiples of plan->rows. */
static UNIT* G(shared_panel)(const G(plan)* plan, long row, long k0) {
  long panel = (row + plan->rows - 1) / plan->rows;
  return plan->shared_a + (k0 / plan->k_block * plan->a_panels + panel) * plan->a_panel_units;
}
static void G(pack_a_panels)(void* const* args, long begin, long end) {
  const G(plan)* plan = (const G(plan)*)args;
  for (long panel = begin; panel < end; panel++)
    for (long k0 = 0; k0 < plan->g.k; k0 += plan->k_block) {
      long row = panel * plan->rows, before = row - plan->rows;
      if (panel && row % plan->m_block) row = before + G(rows_at)(plan, before);
      long rows = G(rows_at)(plan, row), count = G(smaller)(plan->k_block, plan->g.k - k0);
      G(pack_a_panel)(plan, 0, row, rows, k0, count, G(shared_panel)(plan, row, k0), NULL);
    }
}
/* All of A, packed for all tasks; 0 where memory is missing. */
static int G(share_a)(G(plan)* plan) {
  const long vector = HLOC_VECTOR_BYTES / (long)sizeof(UNIT); /* packing may write one vector beyond a panel */
  plan->a_panels = (plan->g.m + plan->rows - 1) / plan->rows;
  plan->a_panel_units = (plan->rows * G(units)(plan->k_block) + 2 * vector - 1) / vector * vector;
  plan->shared_a = hloc_scratch(HLOC_FIRST, plan->k_blocks * plan->a_panels * plan->a_panel_units * sizeof(UNIT));
  if (!plan->shared_a) return 0;
  hloc_parallel(G(pack_a_panels), (void* const*)plan, plan->a_panels, 16384 / (plan->rows * plan->g.k) + 1);
  return 1;
}

/* out[j * rows + i] = tile[i * stride + j]; up to one vector may be written beyond the end. */
static void G(turn_tile)(const SUM* tile, long stride, long rows, long columns, SUM* out) {
  const long whole = columns / LANES * LANES;
  SUM block[LANES * LANES] __attribute__((aligned(64)));
  for (long j = 0; j < whole; j += LANES)
    /* narrow rows spill into what is written later */
    for (long i0 = (rows - 1) / LANES * LANES; i0 >= 0; i0 -= LANES) {
      for (long i = 0; i < LANES; i++)
        G(store_sum)(block + i * LANES, i0 + i < rows ? G(load_sum)(tile + (i0 + i) * stride + j) : (VECTOR){0});
      if (sizeof(SUM) == 8) hloc_transpose_64(block, LANES, out + j * rows + i0, rows);
      else hloc_transpose_32(block, LANES, out + j * rows + i0, rows);
    }
  for (long j = whole; j < columns; j++)
    for (long i = 0; i < rows; i++) out[j * rows + i] = tile[i * stride + j];
}
/* Hands a tile of finished sums to the epilogue or stores it. */
static void G(finish)(const G(plan)* plan, long batch, long row, long column, long rows, long columns, const SUM* tile,
                      long stride) {
  const hloc_gemm_args* g = &plan->g;
  SUM turned[HLOC_TILE_ROWS * G(TILE_COLUMNS) + LANES];
  if (plan->exchanged) {
    if (rows > 1) {
      G(turn_tile)(tile, stride, rows, columns, turned);
      tile = turned;
    }
    long first_row = row, first_rows = rows;
    row = column, column = first_row;
    rows = columns, columns = stride = first_rows;
  }
  if (g->epilogue) {
    g->epilogue(g->epilogue_args, batch, row, column, rows, columns, tile, stride);
    return;
  }
  if (stride == columns && g->c_column == 1 && g->c_row == columns) columns *= rows, rows = 1; /* one piece of memory */
  long at = batch / g->inner_batches * g->c_outer + batch % g->inner_batches * g->c_inner;
  if (columns < LANES && stride >= LANES && g->c_column == 1 && g->c_row == columns && G_STORES_SUMS(g)) {
    SUM* to = (SUM*)g->c + at + row * columns + column; /* what a vector writes beyond a row is written again later */
    for (; rows * columns >= LANES; rows--, row++, to += columns, tile += stride) G(store_sum)(to, G(load_sum)(tile));
  }
  G(store)(g, at + row * g->c_row + column * g->c_column, rows, columns, tile, stride);
}

typedef struct { UNIT* a; UNIT* b; SUM* sums; SUM* tile; SUM* correction; ELEMENT* loaded; } G(scratch);

/* Elements of a block's sums: whole register tiles. */
static long G(block_sums)(const G(plan)* plan) {
  return (plan->m_block + plan->rows - 1) / plan->rows * plan->rows * G(panels)(plan->n_block) * G(TILE_COLUMNS);
}
static size_t G(aligned)(size_t bytes) { return (bytes + 127) / 64 * 64 + 64; }
static int G(take_scratch)(const G(plan)* plan, G(scratch)* s) {
  long depth = G(units)(plan->k_block), panels = (plan->m_block + plan->rows - 1) / plan->rows;
  size_t a = plan->shared_a ? 0 : G(aligned)(panels * plan->rows * depth * sizeof(UNIT) + HLOC_VECTOR_BYTES);
  size_t b = plan->shared_b ? 0 : G(aligned)(G(TILE_COLUMNS) * depth * sizeof(UNIT));
  int keeps = (plan->k_blocks > 1 || plan->sweeps) && !plan->partial;
  size_t sums = keeps ? G(aligned)(G(block_sums)(plan) * sizeof(SUM)) : 0;
  size_t tile = G(aligned)(HLOC_TILE_ROWS * G(TILE_COLUMNS) * sizeof(SUM));
  size_t row = G(aligned)(G(TILE_COLUMNS) * sizeof(SUM));
  int loads = plan->g.load_a || plan->g.load_b;
  size_t loaded = loads ? G(aligned)((HLOC_TILE_ROWS + G(TILE_COLUMNS)) * plan->k_block * sizeof(ELEMENT)) : 0;
  char* memory = hloc_scratch(HLOC_OWN, a + b + sums + tile + row + loaded);
  if (!memory) return 0;
  s->a = (UNIT*)memory;
  s->b = (UNIT*)(memory + a);
  s->sums = (SUM*)(memory + a + b);
  s->tile = (SUM*)(memory + a + b + sums);
  s->correction = (SUM*)(memory + a + b + sums + tile);
  s->loaded = (ELEMENT*)(memory + a + b + sums + tile + row);
  return 1;
}

/* Where a panel of B is to be found. */
typedef struct { const UNIT* units; long stride; const SUM* correction; int in_place; } G(b_panel);

static G(b_panel) G(find_b)(const G(plan)* plan, const G(scratch)* s, long batch, long k0, long count, long column) {
  const hloc_gemm_args* g = &plan->g;
  long panel = column / G(TILE_COLUMNS);
  if (plan->shared_b) {
    const UNIT* units = plan->shared_b + (panel * G(units)(g->k) + k0 / GROUP) * G(TILE_COLUMNS);
    const SUM* correction = plan->corrections + (panel * plan->k_blocks + k0 / plan->k_block) * G(TILE_COLUMNS);
    return (G(b_panel)){units, 0, G_CORRECTS ? correction : NULL, 0};
  }
  if (plan->b_in_place && (column + G(TILE_COLUMNS) <= g->n || (HLOC_READS_B && column + LANES == g->n))) {
    const ELEMENT* units = G(b_of)(g, batch) + k0 * g->b_row + column;
    return (G(b_panel)){(const UNIT*)(const void*)units, g->b_row, NULL, 1};
  }
  G(pack_b_panel)(plan, batch, k0, count, column, s->b, s->correction, s->loaded);
  return (G(b_panel)){s->b, 0, G_CORRECTS ? s->correction : NULL, 0};
}

/* What the kernel of a panel's n-th tile of rows fetches for the panel that its task packs next: one line per k. */
typedef struct { const char* from; long step; } G(ahead);

static G(ahead) G(fetch)(const hloc_gemm_args* g, const ELEMENT* next, long count, long tile) {
  const long line = 64 / (long)sizeof(ELEMENT), unit_lines = (G(TILE_COLUMNS) + line - 1) / line;
  if (g->b_column == 1 && tile < GROUP * unit_lines)
    return (G(ahead)){(const char*)(next + tile % GROUP * g->b_row + tile / GROUP * line),
                      g->b_row * GROUP * (long)sizeof(ELEMENT)};
  if (g->b_row == 1 && g->b_column == count && tile < GROUP * unit_lines) /* one piece of memory */
    return (G(ahead)){(const char*)next + tile * G(units)(count) * 64, 64};
  return (G(ahead)){(const char*)next, 0};
}

/* One panel of B against all panels of A in the block; `next` (or NULL) begins the panel that comes after. */
static void G(run_column)(const G(plan)* plan, const G(scratch)* s, long batch, long m0, long m1, long k0, long count,
                          int adds, long n0, long column, const ELEMENT* next) {
  const hloc_gemm_args* g = &plan->g;
  G(b_panel) b = G(find_b)(plan, s, batch, k0, count, column);
  long depth = G(units)(count), columns = G(smaller)(G(TILE_COLUMNS), g->n - column), tile = 0;
  long sums_stride = G(panels)(plan->n_block) * G(TILE_COLUMNS);
  int last = k0 + count == g->k && !plan->partial, half = HLOC_READS_B && columns <= LANES;
  if (half && !b.in_place) b.stride = G(TILE_COLUMNS);
  for (long row = m0, rows; row < m1; row += rows) {
    rows = G(rows_at)(plan, row);
    int whole = rows == G(even)(rows), in_place = plan->a_in_place && whole;
    const UNIT* a = plan->shared_a ? G(shared_panel)(plan, row, k0) : s->a + (row - m0) * depth;
    long a_step = in_place ? g->a_row / GROUP : G(even)(rows);
    if (in_place) a = (const UNIT*)(const void*)(G(a_of)(g, batch) + row * g->a_row + k0);
    if (plan->a_across && whole)
      a = (const UNIT*)(const void*)(G(a_of)(g, batch) + row + k0 * g->a_column), a_step = g->a_column;
    G(ahead) ahead = next ? G(fetch)(g, next, count, tile++) : (G(ahead)){(const char*)b.units, 0};
    int direct = G_STORES_SUMS(g) && plan->k_blocks == 1 && whole && columns == (half ? LANES : G(TILE_COLUMNS)) &&
                 !plan->exchanged && !g->epilogue && g->c_column == 1;
    SUM* sums = s->tile;
    long stride = G(TILE_COLUMNS);
    if (direct) {
      long at = batch / g->inner_batches * g->c_outer + batch % g->inner_batches * g->c_inner;
      sums = (SUM*)g->c + at + row * g->c_row + column, stride = g->c_row;
      const int more = column + 2 * G(TILE_COLUMNS) <= g->n && g->m * g->n * (long)sizeof(SUM) >= 1 << 17;
      for (long i = 0; more && i < rows; i++) { /* where the next panel's sums go */
        const char* later = (const char*)(sums + i * stride + G(TILE_COLUMNS));
        __builtin_prefetch(later, 1), __builtin_prefetch(later + 64, 1);
      }
    } else if (plan->k_blocks > 1 || plan->sweeps) {
      sums = s->sums + (row - m0) * sums_stride + (column - n0), stride = sums_stride;
    }
#if HLOC_READS_B
    const G(kernel_table)* table = half ? &G(half_kernels) : b.in_place ? &G(kernels_in_place) : &G(kernels);
    G(kernel) kernel = (*table)[G(even)(rows) / 2 - 1][in_place];
#else
    G(kernel) kernel = G(kernels)[G(even)(rows) / 2 - 1][in_place];
#endif
    kernel(depth, a, a_step, b.units, b.stride, b.correction, sums, stride, adds, ahead.from, ahead.step);
    if (last && !direct && !plan->sweeps) G(finish)(plan, batch, row, column, rows, columns, sums, stride);
  }
}

/* The epilogue of a whole block, row by row: what it reads and writes beside the sums is as large as they are, and
 * memory likes long runs that nothing interrupts. */
static void G(sweep)(const G(plan)* plan, const SUM* sums, long batch, long m0, long m1, long n0, long n1) {
  const long stride = G(panels)(plan->n_block) * G(TILE_COLUMNS);
  G(finish)(plan, batch, m0, n0, m1 - m0, n1 - n0, sums, stride);
}

/* Where a part's sums of a block lie. */
static SUM* G(sums_of)(const G(plan)* plan, long batch, long m0, long n0, long split) {
  const long block = (batch * plan->n_blocks + n0 / plan->n_block) * plan->m_blocks + m0 / plan->m_block;
  return plan->partial + (block * plan->k_splits + split) * G(block_sums)(plan);
}
static void G(run_block)(const G(plan)* plan, long batch, long m0, long n0, long split) {
  const hloc_gemm_args* g = &plan->g;
  long m1 = G(smaller)(g->m, m0 + plan->m_block), n1 = G(smaller)(g->n, n0 + plan->n_block);
  G(scratch) s;
  if (!G(take_scratch)(plan, &s)) {
    __atomic_store_n(plan->failed, 1, __ATOMIC_RELAXED);
    return;
  }
  const long first = split * plan->k_part, end = G(smaller)(g->k, first + plan->k_part);
  if (plan->partial) s.sums = G(sums_of)(plan, batch, m0, n0, split);
  for (long k0 = first; k0 < end; k0 += plan->k_block) {
    long count = G(smaller)(plan->k_block, end - k0);
    for (long row = m0, rows; row < m1; row += rows) {
      rows = G(rows_at)(plan, row);
      if (plan->shared_a || ((plan->a_in_place || plan->a_across) && rows == G(even)(rows))) continue;
      G(pack_a_panel)(plan, batch, row, rows, k0, count, s.a + (row - m0) * G(units)(count), s.loaded);
    }
    int packs_b = !plan->shared_b && !plan->b_in_place && !g->load_b;
    for (long column = n0; column < n1; column += G(TILE_COLUMNS)) {
      long next_k = column + G(TILE_COLUMNS) < n1 ? k0 : k0 + count;
      long next_column = column + G(TILE_COLUMNS) < n1 ? column + G(TILE_COLUMNS) : n0;
      const ELEMENT* next = G(b_of)(g, batch) + next_k * g->b_row + next_column * g->b_column;
      G(run_column)(plan, &s, batch, m0, m1, k0, count, k0 > first, n0, column, packs_b && next_k < end ? next : NULL);
    }
  }
  if (plan->sweeps) G(sweep)(plan, s.sums, batch, m0, m1, n0, n1);
}
static void G(run_blocks)(void* const* args, long begin, long end) {
  const G(plan)* plan = (const G(plan)*)args;
  for (long t = begin; t < end; t++) {
    long part = t / plan->k_splits, blocks = plan->m_blocks * plan->n_blocks, block = part % blocks;
    G(run_block)(plan, part / blocks, block % plan->m_blocks * plan->m_block, block / plan->m_blocks * plan->n_block,
                 t % plan->k_splits);
  }
}
/* The sums of all parts of blocks. */
static void G(join_blocks)(void* const* args, long begin, long end) {
  const G(plan)* plan = (const G(plan)*)args;
  const hloc_gemm_args* g = &plan->g;
  const long size = G(block_sums)(plan), stride = G(panels)(plan->n_block) * G(TILE_COLUMNS);
  for (long t = begin; t < end; t++) {
    const long blocks = plan->m_blocks * plan->n_blocks, batch = t / blocks;
    const long m0 = t % plan->m_blocks * plan->m_block, n0 = t % blocks / plan->m_blocks * plan->n_block;
    const long m1 = G(smaller)(g->m, m0 + plan->m_block), n1 = G(smaller)(g->n, n0 + plan->n_block);
    SUM* sums = G(sums_of)(plan, batch, m0, n0, 0);
    for (long split = 1; split < plan->k_splits; split++)
      for (long i = 0; i < (m1 - m0) * stride; i++) sums[i] += sums[split * size + i];
    for (long row = m0, rows; row < m1; row += rows) {
      rows = G(rows_at)(plan, row);
      for (long column = n0; column < n1; column += G(TILE_COLUMNS))
        G(finish)(plan, batch, row, column, rows, G(smaller)(G(TILE_COLUMNS), n1 - column),
                  sums + (row - m0) * stride + (column - n0), stride);
    }
  }
}
/* Few blocks of long sums: parts of k for all threads. */
static void G(choose_splits)(G(plan)* plan, int* share_a, int* share_b) {
  const hloc_gemm_args* g = &plan->g;
  const long tasks = g->batches * plan->m_blocks * plan->n_blocks, threads = hloc_pool_threads();
  const double work = (double)g->m * g->n * g->k * g->batches;
  plan->k_splits = 1, plan->k_part = g->k;
  if (tasks >= threads || plan->k_blocks < 2 || work < 1e6 || g->packed_b) return;
  const long wanted = G(smaller)(plan->k_blocks, 2 * threads / tasks);
  plan->k_part = (plan->k_blocks + wanted - 1) / wanted * plan->k_block;
  plan->k_splits = (g->k + plan->k_part - 1) / plan->k_part;
  if (plan->k_splits > 1) *share_a = *share_b = plan->sweeps = 0;
}

/* Packing B for all tasks: panels side by side, then the corrections. */
static size_t G(panel_bytes)(long k, long n) {
  return (size_t)G(panels)(n) * G(units)(k) * G(TILE_COLUMNS) * sizeof(UNIT);
}
static void G(pack_panels)(void* const* args, long begin, long end) {
  const G(plan)* plan = (const G(plan)*)args;
  long k = plan->g.k;
  for (long panel = begin; panel < end; panel++)
    for (long k0 = 0; k0 < k; k0 += plan->k_block) {
      long count = G(smaller)(plan->k_block, k - k0);
      ELEMENT* loaded = NULL;
      if (plan->g.load_b) {
        loaded = hloc_scratch(HLOC_OWN, count * G(TILE_COLUMNS) * sizeof(ELEMENT));
        if (!loaded) { __atomic_store_n(plan->failed, 1, __ATOMIC_RELAXED); return; }
      }
      UNIT* target = (UNIT*)plan->shared_b + (panel * G(units)(k) + k0 / GROUP) * G(TILE_COLUMNS);
      SUM* correction = (SUM*)plan->corrections + (panel * plan->k_blocks + k0 / plan->k_block) * G(TILE_COLUMNS);
      G(pack_b_panel)(plan, 0, k0, count, panel * G(TILE_COLUMNS), target, correction, loaded);
    }
}
static void G(pack_shared)(G(plan)* plan, void* memory) {
  long panels = G(panels)(plan->g.n), k = plan->g.k, n = plan->g.n;
  plan->shared_b = memory;
  plan->corrections = (const SUM*)((char*)memory + G(panel_bytes)(k, n));
  long grain = k * n < 65536 ? panels : panels / (4 * hloc_pool_threads()) + 1;
  hloc_parallel(G(pack_panels), (void* const*)plan, panels, grain);
}
#if HLOC_IS_HERE(HLOC_MAIN)
long HLOC_JOIN(hloc_gemm_, G_NAME, _packed_bytes)(long k, long n) {
  long k_blocks = k ? (k + G(k_block)(k) - 1) / G(k_block)(k) : 0;
  return (long)G(panel_bytes)(k, n) + G(panels)(n) * k_blocks * G(TILE_COLUMNS) * (long)sizeof(SUM) * G_CORRECTS;
}
int HLOC_JOIN(hloc_gemm_, G_NAME, _pack_b)(const hloc_gemm_args* args, void* memory) {
  int failed = 0;
  G(plan) plan = {.g = *args, .k_block = G(k_block)(args->k), .failed = &failed};
  plan.k_blocks = args->k ? (args->k + plan.k_block - 1) / plan.k_block : 0;
  if (plan.k_blocks) G(pack_shared)(&plan, memory);
  return failed;
}
#endif

static void G(exchange)(G(plan)* plan) { /* C^T = B^T A^T */
  hloc_gemm_args* g = &plan->g;
  hloc_gemm_args old = *g;
  plan->exchanged = 1;
  g->m = old.n, g->n = old.m;
  g->a = old.b, g->a_outer = old.b_outer, g->a_inner = old.b_inner, g->a_row = old.b_column, g->a_column = old.b_row;
  g->b = old.a, g->b_outer = old.a_outer, g->b_inner = old.a_inner, g->b_row = old.a_column, g->b_column = old.a_row;
}

#if !HLOC_IS_HERE(HLOC_THIN) && !HLOC_IS_HERE(HLOC_THIN_DOTS) && !HLOC_IS_HERE(HLOC_THIN_ROWS)
__attribute__((weak)) int G(is_thin)(const G(plan)* plan);
__attribute__((weak)) int G(thin)(const G(plan)* plan);
#else
#include "gemm_thin.h"
#endif

/* Sizes of blocks and how operands are read. */
static void G(choose)(G(plan)* plan, int* share_a, int* share_b) {
  hloc_gemm_args* g = &plan->g;
  const long threads = hloc_pool_threads();
  plan->rows = G(smaller)(HLOC_TILE_ROWS, G(even)(g->m));
  plan->k_block = G(k_block)(g->k);
  const int aliases = (g->a_row * (long)sizeof(ELEMENT)) % 4096 == 0; /* rows share few cache sets */
  int b_readable = HLOC_READS_B && g->b_column == 1 && !g->load_b;
  int a_readable = UNIT_IS_MEMORY && g->a_column == 1 && !g->load_a && g->a_row % GROUP == 0 &&
                   g->a_outer % GROUP == 0 && g->a_inner % GROUP == 0 && plan->k_block % GROUP == 0 &&
                   g->k % GROUP == 0;
  double work = (double)g->m * g->n * g->k;
#if defined(G_TURNS_A)
  a_readable = 0;
#endif
  const int narrow = HLOC_READS_B && g->n <= LANES;
  if (aliases && narrow) plan->rows = G(smaller)(plan->rows, G(ALIASED_ROWS));
  const int aliased = aliases && plan->rows > (narrow ? G(ALIASED_ROWS) : 4);
  int small = work <= 3e6, skinny = g->m <= 4 * HLOC_TILE_ROWS;
  /* an epilogue over several arrays takes memory's time: it goes along whole rows, one after the other */
  int whole_rows = g->epilogue_arrays >= 4 && !small && !skinny && g->n <= 2048 && !plan->exchanged;
  int flat = !small && !skinny && !narrow && g->m <= 32 * HLOC_TILE_ROWS && g->batches == 1 && !g->load_a &&
             !g->packed_b && !whole_rows;
  *share_a = flat;
  *share_b = !flat && !g->packed_b && g->batches == 1 && !(b_readable && (small || skinny)) && !skinny;
  plan->b_in_place = b_readable && !*share_b && !flat && !g->packed_b;
  long n_panels = G(panels)(g->n), n_blocks = whole_rows ? 1 : (g->n + 511) / 512;
  int streams = skinny && plan->b_in_place && (double)g->n * g->k * sizeof(ELEMENT) > 512 << 10;
  long most_k = streams ? g->m <= 16 ? 32 : 64 : 256 * GROUP; /* rows of B in few pages; from memory: in few streams */
  if (skinny && !g->packed_b && g->k > most_k) plan->k_block = most_k;
  long m_panels = (g->m + plan->rows - 1) / plan->rows, m_group = flat ? m_panels : G(smaller)(m_panels, 8);
  while (whole_rows && m_group > 1 && m_group * plan->rows * g->n * (long)sizeof(SUM) > 256 << 10) m_group--;
  /* some 10 microseconds: not worth a second thread, that fetches A from the first one's cache */
  if (work * g->batches < (g->epilogue && hloc_pool_awake() ? 2e5 : 6e5)) {
    n_blocks = 1, m_group = m_panels;
  } else {
    while (g->batches * n_blocks * ((m_panels + m_group - 1) / m_group) < 4 * threads) {
      if (m_group > (whole_rows ? 1 : 2) && !skinny && !flat) m_group = (m_group + 1) / 2;
      else if (n_blocks * 2 <= n_panels) n_blocks *= 2;
      else if (m_group > 1) m_group = (m_group + 1) / 2;
      else break;
    }
  }
  plan->m_block = m_group * plan->rows;
  plan->n_block = ((n_panels + n_blocks - 1) / n_blocks) * G(TILE_COLUMNS);
  plan->a_in_place = a_readable && !flat && (plan->n_block <= 8 * G(TILE_COLUMNS) || small) && !(aliased && g->k > 64);
  plan->a_across = HLOC_READS_B && g->a_row == 1 && !plan->a_in_place && !flat && !g->load_a &&
                   plan->n_block <= 2 * G(TILE_COLUMNS);
  plan->m_blocks = (g->m + plan->m_block - 1) / plan->m_block;
  plan->n_blocks = (g->n + plan->n_block - 1) / plan->n_block;
  plan->k_blocks = (g->k + plan->k_block - 1) / plan->k_block;
  plan->sweeps = g->epilogue && !plan->exchanged && plan->n_block > G(TILE_COLUMNS) && !small &&
                 (plan->k_blocks > 1 || plan->m_block * plan->n_block * (long)sizeof(SUM) <= 512 << 10);
}

static void G(store_zeros)(G(plan)* plan) { /* k == 0 */
  const SUM zeros[HLOC_TILE_ROWS * G(TILE_COLUMNS)] = {0};
  for (long batch = 0; batch < plan->g.batches; batch++)
    for (long row = 0; row < plan->g.m; row += HLOC_TILE_ROWS)
      for (long column = 0; column < plan->g.n; column += G(TILE_COLUMNS))
        G(finish)(plan, batch, row, column, G(smaller)(HLOC_TILE_ROWS, plan->g.m - row),
                  G(smaller)(G(TILE_COLUMNS), plan->g.n - column), zeros, G(TILE_COLUMNS));
}

#if HLOC_IS_HERE(HLOC_MAIN)
#if defined(HLOC_PART)
#define HLOC_HAS(function) ((function) != NULL)
#else
#define HLOC_HAS(function) 1
#endif
int HLOC_JOIN(hloc_gemm_, G_NAME, )(const hloc_gemm_args* args) {
  G(plan) plan = {.g = *args, .k_splits = 1, .k_part = args->k};
  if (args->batches <= 0 || args->m <= 0 || args->n <= 0) return 0;
  if (args->k <= 0) {
    G(store_zeros)(&plan);
    return 0;
  }
  int share_a, share_b, failed = 0;
  plan.failed = &failed;
  if (args->n == 1) plan.g.c_column = 1; /* whatever it was: a column of sums may be one piece of memory */
  const int halves = HLOC_READS_B && args->n > G(FEW) && args->a_column == 1;
  if (args->n <= G(NARROW) && args->m > 2 * args->n && !halves && !args->load_a && !args->load_b && !args->packed_b)
    G(exchange)(&plan);
  if (HLOC_HAS(G(is_thin)) && G(is_thin)(&plan)) return G(thin)(&plan);
  G(choose)(&plan, &share_a, &share_b);
  G(choose_splits)(&plan, &share_a, &share_b);
  if (plan.k_splits > 1) {
    const long sums = args->batches * plan.m_blocks * plan.n_blocks * plan.k_splits * G(block_sums)(&plan);
    plan.partial = hloc_scratch(HLOC_FIRST, sums * sizeof(SUM));
    if (!plan.partial) return 1;
  }
  if (share_a && !G(share_a)(&plan)) return 1;
  if (args->packed_b) {
    plan.shared_b = args->packed_b;
    plan.corrections = (const SUM*)((const char*)args->packed_b + G(panel_bytes)(args->k, args->n));
  } else if (share_b) {
    void* memory = hloc_scratch(HLOC_FIRST, HLOC_JOIN(hloc_gemm_, G_NAME, _packed_bytes)(args->k, args->n));
    if (!memory) return 1;
    G(pack_shared)(&plan, memory);
  }
  long blocks = args->batches * plan.m_blocks * plan.n_blocks, tasks = blocks * plan.k_splits;
  double per_task = (double)plan.m_block * plan.n_block * plan.k_part;
  const double piece = hloc_pool_awake() ? 1e5 : 4e5;
  long grain = per_task > piece ? 1 : (long)(piece / per_task) + 1;
  hloc_parallel(G(run_blocks), (void* const*)&plan, tasks, grain);
  if (plan.partial) hloc_parallel(G(join_blocks), (void* const*)&plan, blocks, blocks);
  return __atomic_load_n(&failed, __ATOMIC_RELAXED);
}
#undef HLOC_HAS
#endif

#undef HLOC_OF_PARTS
#undef HLOC_IS_HERE
#undef HLOC_READS_B
#undef G
#undef G_NAME
#undef G_CORRECTS
#undef G_TURNS_A
#undef G_DOTS
#undef G_STORES_SUMS
#undef ELEMENT
#undef UNIT
#undef GROUP
#undef UNIT_IS_MEMORY
#undef SUM
#undef VECTOR
#undef LANES
