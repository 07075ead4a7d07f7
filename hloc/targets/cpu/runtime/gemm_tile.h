/* gemm_tile.h: a whole matmul for one set of element types (template; each gemm_<type>.c includes it).
 *
 * In (macros): those of gemm_kernel.h; G_NAME the public suffix; G(store)(args, c, tile, ...) stores a tile of sums;
 * G_OFFSETS_A (optional): G(offset)(units, count) changes packed A; G_CORRECTS 1 when sums need a correction per column
 * of B (G(column_correction)), else 0; G_AMX_MULTIPLY (optional): gemm_amx.h.
 * Out: hloc_gemm_<G_NAME> as gemm.h says.
 *
 * A task computes one block of C: for every block of k, A's panels are packed into the thread's scratch (or read in
 * place), then every panel of B is multiplied by every panel of A in a register tile. B's panels are packed once for
 * all tasks, or by the task itself, or read in place if that is cheaper: as the plan says. In a flat product (few rows
 * by a large B) A is packed once for all tasks, and each panel of B by the one task that uses it, just before. The same
 * holds for a skinny one (fewer rows still), unless one register tile has all rows: that reads a B of many rows in
 * place, row by row. If B's rows are contiguous, a group of neighbouring panels is packed at once, along these rows,
 * for contiguous memory accesses; else the kernels prefetch the next panel. If there are fewer blocks than threads, and
 * sums are long, tasks compute parts of sums.
 */
#include "gemm_kernel.h"

typedef struct {
  hloc_gemm_args g; /* with A and B exchanged if the plan says so */
  hloc_gemm_plan p;
  long m_blocks, n_blocks, k_blocks, k_splits;
  SUM* partial;                 /* with splits: their sums, block by block; else NULL */
  const UNIT* shared_b;         /* packed panels, or NULL */
  long shared_batch;            /* panels per batch; 0: all batches share them */
  const SUM* corrections;       /* with shared_b: [panel][k block][tile column] */
  UNIT* shared_a;               /* packed panels [k block][panel][a_panel_units], or NULL */
  long a_panels;
  int has_amx;                  /* gemm_amx.h: the system allows it */
  int* failed;                  /* set by a task that found no memory */
} G(plan);

enum { G(GROUP_ROWS) = 8 }; /* units along k that a task packs at a time of a group of panels */

static long G(smaller)(long a, long b) { return a < b ? a : b; }
static long G(units)(long k) { return (k + GROUP - 1) / GROUP; }
static long G(even)(long rows) { return (rows + 1) / 2 * 2; }
static long G(panels)(long n) { return (n + G(TILE_COLUMNS) - 1) / G(TILE_COLUMNS); }

#if defined(G_AMX_MULTIPLY)
#include "gemm_amx.h"
enum { G(ANY_ROWS) = 1 }; /* a tile may have an odd number of rows in place */
static long G(a_units)(long k) { return G(row_units)(k); }
#else
enum { G(ANY_ROWS) = 0 };
/* Of packed A, for each of its rows. */
static long G(a_units)(long k) { return G(units)(k); }
#endif
static int G(is_whole)(long rows) { return G(ANY_ROWS) || rows == G(even)(rows); }

static long G(batch_at)(const hloc_gemm_args* g, long batch, long outer, long inner) {
  if (g->inner_batches == 1) return batch * outer; /* no division for each tile */
  return batch / g->inner_batches * outer + batch % g->inner_batches * inner;
}
static const ELEMENT* G(a_of)(const hloc_gemm_args* g, long batch) {
  return (const ELEMENT*)g->a + G(batch_at)(g, batch, g->a_outer, g->a_inner);
}
static const ELEMENT* G(b_of)(const hloc_gemm_args* g, long batch) {
  return (const ELEMENT*)g->b + G(batch_at)(g, batch, g->b_outer, g->b_inner);
}

/* One panel of B: k0 <= k < k0 + count, columns from `column`. */
static void G(pack_b_panel)(const G(plan)* plan, long batch, long k0, long count, long column, UNIT* target,
                            SUM* correction) {
  const hloc_gemm_args* g = &plan->g;
  long columns = G(smaller)(G(TILE_COLUMNS), g->n - column);
  const ELEMENT* source = G(b_of)(g, batch) + k0 * g->b_row + column * g->b_column;
  G(pack)(source, g->b_column, g->b_row, columns, count, G(TILE_COLUMNS), target);
#if G_CORRECTS
  G(column_correction)(target, G(units)(count), correction);
#else
  (void)correction;
#endif
}
static void G(pack_a_panel)(const G(plan)* plan, long batch, long row, long rows, long k0, long count, UNIT* target) {
  const hloc_gemm_args* g = &plan->g;
  const ELEMENT* source = G(a_of)(g, batch) + row * g->a_row + k0 * g->a_column;
#if defined(G_AMX_MULTIPLY)
  G(pack_rows_of_a)(source, g->a_row, g->a_column, rows, count, target);
#else
  G(pack)(source, g->a_row, g->a_column, rows, count, G(even)(rows), target);
#endif
#if defined(G_OFFSETS_A)
  G(offset)(target, G(units)(count) * G(even)(rows));
#endif
}

/* Rows of the next tile, of a block's `rest` of rows: as many as a tile has; the rows of the last two tiles are halved
 * if the second would have too few sums to keep the CPU busy. */
static long G(rows_of)(const G(plan)* plan, long rest) {
  const long few = plan->p.rows / 2 - 1 > 3 ? plan->p.rows / 2 - 1 : 3;
  if (rest > plan->p.rows && rest < plan->p.rows + few) return (rest + 3) / 4 * 2;
  return G(smaller)(rest, plan->p.rows);
}

static long G(rows_at)(const G(plan)* plan, long row) {
  return G(rows_of)(plan, G(smaller)(plan->g.m, (row / plan->p.m_block + 1) * plan->p.m_block) - row);
}

/* Panels are in the order of their tiles; only a block's last tile may begin between multiples of plan->p.rows. */
static UNIT* G(shared_panel)(const G(plan)* plan, long row, long k0) {
  long panel = (row + plan->p.rows - 1) / plan->p.rows;
  return plan->shared_a + (k0 / plan->p.k_block * plan->a_panels + panel) * plan->p.a_panel_units;
}
static void G(pack_a_panels)(void* const* args, long begin, long end) {
  const G(plan)* plan = (const G(plan)*)args;
  for (long panel = begin; panel < end; panel++)
    for (long k0 = 0; k0 < plan->g.k; k0 += plan->p.k_block) {
      long row = panel * plan->p.rows, before = row - plan->p.rows;
      if (panel && row % plan->p.m_block) row = before + G(rows_at)(plan, before);
      long rows = G(rows_at)(plan, row), count = G(smaller)(plan->p.k_block, plan->g.k - k0);
      G(pack_a_panel)(plan, 0, row, rows, k0, count, G(shared_panel)(plan, row, k0));
    }
}
/* Packs all of A for all tasks; 0 if there is no memory. */
static int G(share_a)(G(plan)* plan) {
  plan->a_panels = (plan->g.m + plan->p.rows - 1) / plan->p.rows;
  plan->shared_a = hloc_scratch(HLOC_FIRST, plan->p.first);
  if (!plan->shared_a) return 0;
  hloc_parallel(G(pack_a_panels), (void* const*)plan, plan->a_panels, 16384 / (plan->p.rows * plan->g.k) + 1);
  return 1;
}

/* out[j * rows + i] = tile[i * stride + j]; up to one vector may be written beyond the end. */
static void G(transpose_tile)(const SUM* tile, long stride, long rows, long columns, SUM* out) {
  const long whole = columns / LANES * LANES;
  SUM block[LANES * LANES] __attribute__((aligned(64)));
  for (long j = 0; j < whole; j += LANES)
    /* narrow rows overlap elements that are written later */
    for (long i0 = (rows - 1) / LANES * LANES; i0 >= 0; i0 -= LANES) {
      for (long i = 0; i < LANES; i++)
        G(store_sum)(block + i * LANES, i0 + i < rows ? G(load_sum)(tile + (i0 + i) * stride + j) : (VECTOR){0});
      if (sizeof(SUM) == 8) hloc_transpose_tile_64(block, LANES, out + j * rows + i0, rows);
      else hloc_transpose_tile_32(block, LANES, out + j * rows + i0, rows);
    }
  for (long j = whole; j < columns; j++)
    for (long i = 0; i < rows; i++) out[j * rows + i] = tile[i * stride + j];
}

/* Passes a tile of finished sums to the epilogue or stores it. */
static void G(finish)(const G(plan)* plan, long batch, long row, long column, long rows, long columns,
                             const SUM* tile, long stride) {
  const hloc_gemm_args* g = &plan->g;
  SUM transposed[HLOC_TILE_ROWS * G(TILE_COLUMNS) + LANES];
  if (plan->p.exchanged) {
    if (rows > 1) {
      G(transpose_tile)(tile, stride, rows, columns, transposed);
      tile = transposed;
    }
    long first_row = row, first_rows = rows;
    row = column, column = first_row;
    rows = columns, columns = stride = first_rows;
  }
  if (g->epilogue) {
    g->epilogue(g->epilogue_args, batch, row, column, rows, columns, tile, stride);
    return;
  }
  if (stride == columns && g->c_column == 1 && g->c_row == columns) columns *= rows, rows = 1; /* contiguous */
  long at = G(batch_at)(g, batch, g->c_outer, g->c_inner);
  if (columns < LANES && stride >= LANES && g->c_column == 1 && g->c_row == columns && G_STORES_SUMS(g)) {
    SUM* to = (SUM*)g->c + at + row * columns + column; /* elements written beyond a row are overwritten later */
    for (; rows * columns >= LANES; rows--, row++, to += columns, tile += stride) G(store_sum)(to, G(load_sum)(tile));
  }
  G(store)(g, at + row * g->c_row + column * g->c_column, rows, columns, tile, stride);
}

/* shaped: the number of rows set for AMX's tiles */
typedef struct { UNIT* a; UNIT* b; SUM* sums; SUM* tile; SUM* correction; long* shaped; } G(scratch);

/* Elements of a block's sums: whole register tiles. */
static long G(block_sums)(const G(plan)* plan) {
  const long rows = plan->p.rows;
  return (plan->p.m_block + rows - 1) / rows * rows * G(panels)(plan->p.n_block) * G(TILE_COLUMNS);
}
/* The address of a part's sums of a block. */
static SUM* G(sums_of)(const G(plan)* plan, long batch, long m0, long n0, long split) {
  const long block = (batch * plan->n_blocks + n0 / plan->p.n_block) * plan->m_blocks + m0 / plan->p.m_block;
  return plan->partial + (block * plan->k_splits + split) * G(block_sums)(plan);
}

static int G(take_scratch)(const G(plan)* plan, G(scratch)* s) {
  char* memory = hloc_own_scratch(plan->p.own, plan->failed);
  if (!memory) return 0;
  s->a = (UNIT*)memory;
  s->b = (UNIT*)(memory + plan->p.at_b);
  s->sums = (SUM*)(memory + plan->p.at_sums);
  s->tile = (SUM*)(memory + plan->p.at_tile);
  s->correction = (SUM*)(memory + plan->p.at_correction);
  return 1;
}

/* The address of a panel of B. */
typedef struct { const UNIT* units; long stride; const SUM* correction; int in_place; } G(b_panel);

static G(b_panel) G(find_b)(const G(plan)* plan, const G(scratch)* s, long batch, long k0, long count, long column) {
  const hloc_gemm_args* g = &plan->g;
  long panel = column / G(TILE_COLUMNS) + batch * plan->shared_batch;
  if (plan->shared_b) {
    const UNIT* units = plan->shared_b + (panel * G(units)(g->k) + k0 / GROUP) * G(TILE_COLUMNS);
    const SUM* correction = plan->corrections + (panel * plan->k_blocks + k0 / plan->p.k_block) * G(TILE_COLUMNS);
    return (G(b_panel)){units, 0, G_CORRECTS ? correction : NULL, 0};
  }
  if (plan->p.b_in_place && (column + G(TILE_COLUMNS) <= g->n || (HLOC_READS_B && column + LANES == g->n))) {
    const ELEMENT* units = G(b_of)(g, batch) + k0 * g->b_row + column;
    return (G(b_panel)){(const UNIT*)(const void*)units, g->b_row, NULL, 1};
  }
  G(pack_b_panel)(plan, batch, k0, count, column, s->b, s->correction);
  return (G(b_panel)){s->b, 0, G_CORRECTS ? s->correction : NULL, 0};
}

/* The prefetches of the n-th tile of a panel or group of `columns` columns, for the panel that its task packs next: two
 * lines per k. */
typedef struct { const char* from; long step; } G(ahead);

static G(ahead) G(fetch)(const hloc_gemm_args* g, const ELEMENT* next, long count, long tile, long columns) {
  const long lines = 128 / (long)sizeof(ELEMENT), units = (columns + lines - 1) / lines;
  if (g->b_column == 1 && tile < GROUP * units)
    return (G(ahead)){(const char*)(next + tile % GROUP * g->b_row + tile / GROUP * lines),
                      g->b_row * GROUP * (long)sizeof(ELEMENT)};
  if (g->b_row == 1 && g->b_column == count && tile < GROUP * units) /* contiguous */
    return (G(ahead)){(const char*)next + tile * G(units)(count) * 128, 128};
  return (G(ahead)){(const char*)next, 0};
}

#if !defined(G_AMX_MULTIPLY)
/* The kernels by how the operands of a tile are read. */
static G(kernel) G(kernel_for)(long rows, int a_in_place, int b_in_place, int half) {
  const G(kernel_table)* table = &G(kernels);
  (void)a_in_place, (void)b_in_place, (void)half;
#if HLOC_READS_B
  if (half) table = a_in_place ? &G(kernels_half_a) : &G(kernels_half);
  else if (b_in_place) table = a_in_place ? &G(kernels_ab) : &G(kernels_b);
  else if (a_in_place) table = &G(kernels_a);
#elif HLOC_READS_A
  if (a_in_place) table = &G(kernels_a);
#endif
  return (*table)[G(even)(rows) / 2 - 1];
}
#endif

/* Of a block of C, with sums from n0 on: the rows m0 <= row < m1, the terms k0 <= k < k0 + count. */
typedef struct { long batch, m0, m1, n0, k0, count; int adds; } G(step);

/* `rows` rows of A by one panel of B, which begins at `column`. */
static void G(run_tile)(const G(plan)* plan, const G(scratch)* s, const G(step)* at, long row, long rows, long column,
                        G(b_panel) b, G(ahead) ahead) {
  const hloc_gemm_args* g = &plan->g;
  const long depth = G(units)(at->count), columns = G(smaller)(G(TILE_COLUMNS), g->n - column), k0 = at->k0;
  const int last = k0 + at->count == g->k && !plan->partial, half = HLOC_READS_B && columns <= LANES;
  if (half && !b.in_place) b.stride = G(TILE_COLUMNS);
  const int whole = G(is_whole)(rows), in_place = plan->p.a_in_place && whole;
  const long a_units = G(a_units)(at->count);
  const UNIT* a = plan->shared_a ? G(shared_panel)(plan, row, k0) : s->a + (row - at->m0) * a_units;
  long a_step = in_place ? g->a_row / GROUP : G(ANY_ROWS) ? a_units : G(even)(rows);
  if (in_place) a = (const UNIT*)(const void*)(G(a_of)(g, at->batch) + row * g->a_row + k0);
  if (plan->p.a_across && whole)
    a = (const UNIT*)(const void*)(G(a_of)(g, at->batch) + row + k0 * g->a_column), a_step = g->a_column;
  const int direct = plan->p.sums_in_c && whole && columns == (half ? LANES : G(TILE_COLUMNS));
  SUM* sums = s->tile;
  long stride = G(TILE_COLUMNS);
  if (direct) {
    sums = (SUM*)g->c + G(batch_at)(g, at->batch, g->c_outer, g->c_inner) + row * g->c_row + column, stride = g->c_row;
    const int more = column + 2 * G(TILE_COLUMNS) <= g->n && g->m * g->n * (long)sizeof(SUM) >= 1 << 17;
    for (long i = 0; more && i < rows; i++) { /* the address of the next panel's sums */
      const char* later = (const char*)(sums + i * stride + G(TILE_COLUMNS));
      __builtin_prefetch(later, 1), __builtin_prefetch(later + 64, 1);
    }
  } else if (plan->k_blocks > 1 || plan->p.sweeps) {
    stride = G(panels)(plan->p.n_block) * G(TILE_COLUMNS);
    sums = s->sums + (row - at->m0) * stride + (column - at->n0);
  }
#if defined(G_AMX_MULTIPLY)
  if (*s->shaped != rows && plan->has_amx) hloc_shape_amx(*s->shaped = rows);
  if (plan->has_amx) G(amx_tile)(rows, depth, a, a_step, b.units, sums, stride, at->adds, ahead.from, ahead.step);
  else G(tile_without_amx)(rows, depth, a, a_step, b.units, sums, stride, at->adds);
#else
  G(kernel) kernel = G(kernel_for)(rows, in_place, b.in_place, half);
  kernel(depth, a, a_step, b.units, b.stride, b.correction, sums, stride, at->adds, ahead.from, ahead.step);
#endif
  if (last && !direct && !plan->p.sweeps) G(finish)(plan, at->batch, row, column, rows, columns, sums, stride);
}

/* One panel of B by all panels of A in the block; `next` (or NULL) is the start of the next panel. */
static void G(run_column)(const G(plan)* plan, const G(scratch)* s, const G(step)* at, long column,
                          const ELEMENT* next) {
  const G(b_panel) b = G(find_b)(plan, s, at->batch, at->k0, at->count, column);
  long tile = 0;
  for (long row = at->m0, rows; row < at->m1; row += rows) {
    rows = G(rows_of)(plan, at->m1 - row);
    G(ahead) ahead = {(const char*)b.units, 0};
    if (plan->g.b_packed && row == at->m0) /* the neighbouring panel: prefetched, since it may come from memory */
      ahead = (G(ahead)){(const char*)(b.units + G(units)(plan->g.k) * G(TILE_COLUMNS)),
                         G(TILE_COLUMNS) * (long)sizeof(UNIT)};
    if (next) ahead = G(fetch)(&plan->g, next, at->count, tile++, G(TILE_COLUMNS));
    G(run_tile)(plan, s, at, row, rows, column, b, ahead);
  }
}

/* The panels of a group, packed a few rows of B at a time, by all panels of A; `next` (or NULL) is the start of the
 * next group. */
static void G(run_group)(const G(plan)* plan, const G(scratch)* s, const G(step)* at, long from, long to,
                         const ELEMENT* next) {
  const hloc_gemm_args* g = &plan->g;
  long tile = 0;
  const long size = G(TILE_COLUMNS) * G(units)(at->count), most = G(GROUP_ROWS) * GROUP;
  for (long p = 0; p < at->count; p += most)
    for (long column = from; column < to; column += G(TILE_COLUMNS))
      G(pack)(G(b_of)(g, at->batch) + (at->k0 + p) * g->b_row + column, 1, g->b_row,
              G(smaller)(G(TILE_COLUMNS), g->n - column), G(smaller)(most, at->count - p), G(TILE_COLUMNS),
              s->b + (column - from) / G(TILE_COLUMNS) * size + p / GROUP * G(TILE_COLUMNS));
#if G_CORRECTS
  for (long column = from; column < to; column += G(TILE_COLUMNS))
    G(column_correction)(s->b + (column - from) / G(TILE_COLUMNS) * size, G(units)(at->count),
                         s->correction + (column - from));
#endif
  for (long row = at->m0, rows; row < at->m1; row += rows) {
    rows = G(rows_of)(plan, at->m1 - row);
    for (long column = from; column < to; column += G(TILE_COLUMNS)) {
      const UNIT* units = s->b + (column - from) / G(TILE_COLUMNS) * size;
      const G(b_panel) b = {units, 0, G_CORRECTS ? s->correction + (column - from) : NULL, 0};
      G(ahead) ahead = {(const char*)units, 0};
      if (next) ahead = G(fetch)(g, next, at->count, tile++, to - from);
      G(run_tile)(plan, s, at, row, rows, column, b, ahead);
    }
  }
}

/* The epilogue of a whole block, row by row: the other arrays that it reads and writes are as large as the sums, and
 * memory is fastest for long contiguous runs. */
static void G(sweep)(const G(plan)* plan, const SUM* sums, long batch, long m0, long m1, long n0, long n1) {
  const long stride = G(panels)(plan->p.n_block) * G(TILE_COLUMNS);
  G(finish)(plan, batch, m0, n0, m1 - m0, n1 - n0, sums, stride);
}

static void G(run_block)(const G(plan)* plan, long batch, long m0, long n0, long split) {
  const hloc_gemm_args* g = &plan->g;
  long m1 = G(smaller)(g->m, m0 + plan->p.m_block), n1 = G(smaller)(g->n, n0 + plan->p.n_block);
  G(scratch) s;
  long shaped = 0;
  if (!G(take_scratch)(plan, &s)) return;
  s.shaped = &shaped;
  const long first = split * plan->p.k_part, end = G(smaller)(g->k, first + plan->p.k_part);
  if (plan->partial) s.sums = G(sums_of)(plan, batch, m0, n0, split);
  for (long k0 = first; k0 < end; k0 += plan->p.k_block) {
    long count = G(smaller)(plan->p.k_block, end - k0);
    for (long row = m0, rows; row < m1; row += rows) {
      rows = G(rows_of)(plan, m1 - row);
      if (plan->shared_a || ((plan->p.a_in_place || plan->p.a_across) && G(is_whole)(rows))) continue;
      G(pack_a_panel)(plan, batch, row, rows, k0, count, s.a + (row - m0) * G(a_units)(count));
    }
    const G(step) at = {batch, m0, m1, n0, k0, count, k0 > first};
    const int packs_b = !plan->shared_b && !plan->p.b_in_place;
    for (long column = n0, end_column; column < n1; column = end_column) {
      end_column = G(smaller)(n1, column + plan->p.group * G(TILE_COLUMNS));
      const long next_k = end_column < n1 ? k0 : k0 + count, next_column = end_column < n1 ? end_column : n0;
      const ELEMENT* next = G(b_of)(g, batch) + next_k * g->b_row + next_column * g->b_column;
      if (!packs_b || next_k >= end) next = NULL;
      if (plan->p.group > 1) G(run_group)(plan, &s, &at, column, end_column, next);
      else G(run_column)(plan, &s, &at, column, next);
    }
  }
#if defined(G_AMX_MULTIPLY)
  if (shaped) hloc_release_amx(); /* other code of this thread may use other shapes */
#endif
  if (plan->p.sweeps) G(sweep)(plan, s.sums, batch, m0, m1, n0, n1);
}
static void G(run_blocks)(void* const* args, long begin, long end) {
  const G(plan)* plan = (const G(plan)*)args;
  for (long t = begin; t < end; t++) {
    long part = t / plan->k_splits, blocks = plan->m_blocks * plan->n_blocks, block = part % blocks;
    G(run_block)(plan, part / blocks, block % plan->m_blocks * plan->p.m_block,
                 block / plan->m_blocks * plan->p.n_block, t % plan->k_splits);
  }
}

/* The sums of all parts of blocks. */
static void G(join_blocks)(void* const* args, long begin, long end) {
  const G(plan)* plan = (const G(plan)*)args;
  const hloc_gemm_args* g = &plan->g;
  const long size = G(block_sums)(plan), stride = G(panels)(plan->p.n_block) * G(TILE_COLUMNS);
  for (long t = begin; t < end; t++) {
    const long blocks = plan->m_blocks * plan->n_blocks, batch = t / blocks;
    const long m0 = t % plan->m_blocks * plan->p.m_block, n0 = t % blocks / plan->m_blocks * plan->p.n_block;
    const long m1 = G(smaller)(g->m, m0 + plan->p.m_block), n1 = G(smaller)(g->n, n0 + plan->p.n_block);
    SUM* sums = G(sums_of)(plan, batch, m0, n0, 0);
    for (long split = 1; split < plan->k_splits; split++)
      for (long i = 0; i < (m1 - m0) * stride; i++) sums[i] += sums[split * size + i];
    for (long row = m0, rows; row < m1; row += rows) {
      rows = G(rows_of)(plan, m1 - row);
      for (long column = n0; column < n1; column += G(TILE_COLUMNS))
        G(finish)(plan, batch, row, column, rows, G(smaller)(G(TILE_COLUMNS), n1 - column),
                  sums + (row - m0) * stride + (column - n0), stride);
    }
  }
}

/* Packing B for all tasks: panels in order, batch by batch, then the corrections. */
static int G(shares_batches)(const hloc_gemm_args* g) { return g->b_outer == 0 && g->b_inner == 0; }
static long G(all_panels)(const hloc_gemm_args* g) { return G(panels)(g->n) * (G(shares_batches)(g) ? 1 : g->batches); }
static size_t G(panel_bytes)(const hloc_gemm_args* g) {
  return (size_t)G(all_panels)(g) * G(units)(g->k) * G(TILE_COLUMNS) * sizeof(UNIT);
}
static void G(pack_panels)(void* const* args, long begin, long end) {
  const G(plan)* plan = (const G(plan)*)args;
  const long k = plan->g.k, panels = G(panels)(plan->g.n);
  for (long panel = begin; panel < end; panel++)
    for (long k0 = 0; k0 < k; k0 += plan->p.k_block) {
      long count = G(smaller)(plan->p.k_block, k - k0);
      UNIT* target = (UNIT*)plan->shared_b + (panel * G(units)(k) + k0 / GROUP) * G(TILE_COLUMNS);
      SUM* correction = (SUM*)plan->corrections + (panel * plan->k_blocks + k0 / plan->p.k_block) * G(TILE_COLUMNS);
      G(pack_b_panel)(plan, panel / panels, k0, count, panel % panels * G(TILE_COLUMNS), target, correction);
    }
}
static void G(find_shared)(G(plan)* plan, const void* memory) {
  plan->shared_b = memory;
  plan->shared_batch = G(shares_batches)(&plan->g) ? 0 : G(panels)(plan->g.n);
  plan->corrections = (const SUM*)((const char*)memory + G(panel_bytes)(&plan->g));
}
static void G(pack_shared)(G(plan)* plan, void* memory) {
  long panels = G(all_panels)(&plan->g), k = plan->g.k, n = plan->g.n;
  G(find_shared)(plan, memory);
  long grain = k * n < 65536 ? panels : panels / (4 * hloc_pool_threads()) + 1;
  hloc_parallel(G(pack_panels), (void* const*)plan, panels, grain);
}
static void G(exchange)(G(plan)* plan) { /* C^T = B^T A^T */
  hloc_gemm_args* g = &plan->g;
  hloc_gemm_args old = *g;
  g->m = old.n, g->n = old.m;
  g->a = old.b, g->a_outer = old.b_outer, g->a_inner = old.b_inner, g->a_row = old.b_column, g->a_column = old.b_row;
  g->b = old.a, g->b_outer = old.a_outer, g->b_inner = old.a_inner, g->b_row = old.a_column, g->b_column = old.a_row;
}

#include "gemm_thin.h"

HLOC_COMPILED_FOR(HLOC_JOIN(gemm_, G_NAME, ), HLOC_TILE_ROWS, HLOC_VECTOR_BYTES, GROUP, UNIT_IS_MEMORY)

static void G(store_zeros)(G(plan)* plan) { /* k == 0 */
  const SUM zeros[HLOC_TILE_ROWS * G(TILE_COLUMNS)] = {0};
  for (long batch = 0; batch < plan->g.batches; batch++)
    for (long row = 0; row < plan->g.m; row += HLOC_TILE_ROWS)
      for (long column = 0; column < plan->g.n; column += G(TILE_COLUMNS))
        G(finish)(plan, batch, row, column, G(smaller)(HLOC_TILE_ROWS, plan->g.m - row),
                  G(smaller)(G(TILE_COLUMNS), plan->g.n - column), zeros, G(TILE_COLUMNS));
}

/* Memory, or packed panels, that all tasks share; 0 if there is no memory. */
static int G(share)(G(plan)* plan) {
  if (plan->g.b_packed) G(find_shared)(plan, plan->g.b_packed);
  if (plan->k_splits > 1) return (plan->partial = hloc_scratch(HLOC_FIRST, plan->p.first)) != NULL;
  if (plan->p.shares_a) return G(share_a)(plan);
  if (plan->p.shares_b) {
    void* memory = hloc_scratch(HLOC_FIRST, plan->p.first);
    if (!memory) return 0;
    G(pack_shared)(plan, memory);
  }
  return 1;
}

int HLOC_JOIN(hloc_gemm_, G_NAME, )(const hloc_gemm_args* args) {
  G(plan) plan = {.g = *args};
  if (args->batches <= 0 || args->m <= 0 || args->n <= 0) return 0;
  if (args->n == 1) plan.g.c_column = 1; /* whatever it was: a column of sums may be contiguous */
  if (args->k <= 0) {
    G(store_zeros)(&plan);
    return 0;
  }
  int failed = 0;
  plan.p = *args->plan, plan.failed = &failed;
#if defined(G_AMX_MULTIPLY)
  plan.has_amx = hloc_ask_for_amx();
#endif
  if (plan.p.exchanged) G(exchange)(&plan);
  if (plan.p.is_thin) return G(thin)(&plan);
  const hloc_gemm_args* g = &plan.g;
  plan.m_blocks = (g->m + plan.p.m_block - 1) / plan.p.m_block;
  plan.n_blocks = (g->n + plan.p.n_block - 1) / plan.p.n_block;
  plan.k_blocks = (g->k + plan.p.k_block - 1) / plan.p.k_block;
  plan.k_splits = (g->k + plan.p.k_part - 1) / plan.p.k_part;
  if (args->pack_to) {
    G(pack_shared)(&plan, args->pack_to);
    return 0;
  }
  if (!G(share)(&plan)) return 1;
  const long blocks = g->batches * plan.m_blocks * plan.n_blocks;
  hloc_parallel(G(run_blocks), (void* const*)&plan, blocks * plan.k_splits, hloc_gemm_grain(&plan.p));
  if (plan.partial) hloc_parallel(G(join_blocks), (void* const*)&plan, blocks, blocks);
  return __atomic_load_n(&failed, __ATOMIC_RELAXED);
}

#undef HLOC_READS_A
#undef HLOC_READS_B
#undef G
#undef G_NAME
#undef G_CORRECTS
#undef G_OFFSETS_A
#undef G_AMX_MULTIPLY
#undef G_DOTS
#undef G_STORES_SUMS
#undef ELEMENT
#undef UNIT
#undef GROUP
#undef UNIT_IS_MEMORY
#undef SUM
#undef VECTOR
#undef LANES
