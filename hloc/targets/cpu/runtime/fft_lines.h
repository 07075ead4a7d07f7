/* fft_lines.h: transforms of one precision (template; fft_f32.c and fft_f64.c include it).
 *
 * In (macros): F(name) the instance's prefix, REAL, POINT the complex type {re, im}, WORDS(name) and BITS what
 * vector.h calls shuffles of words of REAL's size, and vectors of them.
 * Parts (parts.h): FFT_LINES, FFT_PLANS, FFT_MOVES from and to memory, and transforms of one line and of many side by
 * side, each with its steps of odd radix apart.
 * Out: F(fft)(kind, rank, lengths, batch, in, out) as fft.h says.
 */

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "fft.h"
#include "fft_roots.h"
#include "parts.h"
#include "pool.h"
#include "vector.h"

enum { F(LONGEST_KEPT) = 1 << 20, F(MOST_KEPT) = 1 << 26 }; /* points of a plan, bytes of all plans */

typedef struct F(plan) {
  long n;
  int factors[64], factor_count;
  POINT* roots;     /* exp(-2 pi i j / n) for j < n */
  POINT* turns;     /* exp(-pi i j / n) for 2 j <= n, if the line is real and has 2 n points; else NULL */
  /* Bluestein, for lengths with a large prime factor: a convolution of length m with a chirp */
  long m;
  POINT *chirp, *chirp_transform; /* exp(-pi i j^2 / n); the transform of its conjugate, over m */
  void* wide;                     /* the plan for length m */
  /* Lines that are split: rows x columns points; columns are transformed, multiplied by `between`, then the rows */
  long rows, columns;
  REAL* between; /* of row r, exp(-2 pi i r c / n) of all columns c: first the real parts */
  const void *of_column, *of_row;
  struct F(plan)* next;           /* in the list of kept plans */
} F(plan);

static POINT F(point)(double re, double im) {
  POINT z;
  z.re = (REAL)re, z.im = (REAL)im;
  return z;
}
static long F(spare_points)(const F(plan)* p) { return p->m ? 2 * p->m : p->n; }

#define HLOC_FFT_LINES 1
#define HLOC_FFT_ONE 2
#define HLOC_FFT_ONE_ODD 3
#define HLOC_FFT_MANY 4
#define HLOC_FFT_MANY_ODD 5
#define HLOC_FFT_PLANS 6
#define HLOC_FFT_MOVES 7
#define S(name) F(one_##name)
#define S_STEPS HLOC_FFT_ONE
#define S_ODD HLOC_FFT_ONE_ODD
#define R REAL
#include "fft_steps.h"
#undef S
#undef S_STEPS
#undef S_ODD
#undef R

typedef REAL F(lanes) __attribute__((vector_size(HLOC_VECTOR_BYTES)));
enum { F(FFT_LANES) = HLOC_VECTOR_BYTES / sizeof(REAL), F(LONGEST_IN_LANES) = 1 << 16 }; /* bytes of a line: caches */
#define S(name) F(many_##name)
#define S_STEPS HLOC_FFT_MANY
#define S_ODD HLOC_FFT_MANY_ODD
#define R F(lanes)
#include "fft_steps.h"
#undef S
#undef S_STEPS
#undef S_ODD
#undef R

static long F(without_small_factors)(long n) {
  for (int r = 2; r <= 31 && n > 1; r++) while (n % r == 0) n /= r;
  return n;
}
static long F(chirp_length)(long n) {
  static const int starts[] = {1, 3, 5, 9, 15};
  long least = 0;
  for (int i = 0; i < 5; i++) {
    long m = starts[i];
    while (m < 2 * n) m *= 2;
    if (!least || m < least) least = m;
  }
  return least;
}

#if !HLOC_IS_HERE(HLOC_FFT_PLANS)
const F(plan)* F(plan_of)(long n, int real, long rows);
#else
/* The memory of a plan: one block, from which pieces are allocated in order.
 * hloc/targets/cpu/plans/steps.py computes its size. */
typedef struct { char* at; } F(block);

static size_t F(padded)(size_t bytes) { return (bytes + 63) / 64 * 64; }
static void* F(take)(F(block)* block, size_t bytes) {
  void* piece = block->at;
  block->at += F(padded)(bytes);
  return piece;
}
static size_t F(plan_bytes)(long n, int real, long rows) {
  const size_t point = sizeof(POINT), plan = F(padded)(sizeof(F(plan))), m = F(chirp_length)(n);
  const size_t turns = real ? F(padded)((n / 2 + 1) * point) : 0;
  const size_t between = F(padded)((n + F(FFT_LANES)) * point);
  if (rows) return plan + between + turns + F(plan_bytes)(rows, 0, 0) + F(plan_bytes)(n / rows, 0, 0);
  if (F(without_small_factors)(n) == 1) return plan + F(padded)(n * point) + turns;
  return plan + F(padded)(n * point) + 2 * F(padded)(m * point) + F(plan_bytes)((long)m, 0, 0) + turns;
}

/* exp(-2 pi i times j / n) for j < count: re[j * apart], im[j * apart]. Those of long lines are products of two. */
static void F(fill_roots)(long times, long n, long count, REAL* re, REAL* im, long apart) {
  enum { MOST = 32 };
  const long chunk = n > 4096 ? MOST : 1;
  double fine_re[MOST], fine_im[MOST];
  for (long j = 0; j < chunk; j++) fine_re[j] = cos_turn(times * j, n), fine_im[j] = -sin_turn(times * j, n);
  for (long first = 0; first < count; first += chunk) {
    if (n > 8 * F(LONGEST_KEPT) && HLOC_STOPS()) return; /* a kept plan needs all of them */
    const double a = cos_turn(times * first, n), b = -sin_turn(times * first, n);
    for (long j = 0; j < chunk && first + j < count; j++) {
      re[(first + j) * apart] = (REAL)(a * fine_re[j] - b * fine_im[j]);
      im[(first + j) * apart] = (REAL)(a * fine_im[j] + b * fine_re[j]);
    }
  }
}
static F(plan)* F(make_plan)(long n, F(block)* block);
static void F(plan_chirp)(F(plan)* p, F(block)* block) {
  const long n = p->n, m = p->m = F(chirp_length)(n);
  p->chirp = F(take)(block, n * sizeof *p->chirp), p->chirp_transform = F(take)(block, m * sizeof *p->chirp);
  p->wide = F(make_plan)(m, block);
  POINT* spare = F(take)(block, m * sizeof *spare);
  for (long j = 0; j < m; j++) p->chirp_transform[j] = F(point)(0, 0);
  for (long j = 0; j < n; j++) {
    long turn = (long)((unsigned __int128)j * j % (2 * n)); /* j^2 half turns of 1/n */
    double re = cos_turn(turn, 2 * n), im = sin_turn(turn, 2 * n);
    p->chirp[j] = F(point)(re, -im);
    p->chirp_transform[j] = F(point)(re, im);
    if (j) p->chirp_transform[m - j] = F(point)(re, im);
  }
  F(one_stockham)((const F(plan)*)p->wide, (F(one_point)*)p->chirp_transform, (F(one_point)*)spare);
}
static F(plan)* F(make_plan)(long n, F(block)* block) {
  F(plan)* p = F(take)(block, sizeof *p);
  memset(p, 0, sizeof *p);
  p->n = n;
  long rest = n;
  while (rest % 4 == 0) p->factors[p->factor_count++] = 4, rest /= 4;
  for (int r = 2; r <= 31 && rest > 1; r++)
    while (rest % r == 0) p->factors[p->factor_count++] = r, rest /= r;
  if (rest > 1) {
    F(plan_chirp)(p, block);
    return p;
  }
  p->roots = F(take)(block, n * sizeof *p->roots);
  F(fill_roots)(1, n, n, &p->roots->re, &p->roots->im, 2);
  return p;
}
static F(plan)* F(make_split)(long n, long rows, F(block)* block) {
  F(plan)* p = F(take)(block, sizeof *p);
  memset(p, 0, sizeof *p);
  p->n = n, p->rows = rows, p->columns = n / rows;
  p->between = F(take)(block, (n + F(FFT_LANES)) * sizeof(POINT)); /* the last vectors may read past the last row */
  memset(p->between + 2 * n, 0, F(FFT_LANES) * sizeof(POINT));
  for (long r = 0; r < rows; r++) {
    REAL* re = p->between + 2 * r * p->columns;
    F(fill_roots)(r, n, p->columns, re, re + p->columns, 1);
  }
  p->of_column = F(make_plan)(rows, block), p->of_row = F(make_plan)(p->columns, block);
  return p;
}
static F(plan)* F(make_plan_in)(void* memory, long n, int real, long rows) {
  F(block) block = {memory};
  F(plan)* p = rows ? F(make_split)(n, rows, &block) : F(make_plan)(n, &block);
  if (!real) return p;
  p->turns = F(take)(&block, (n / 2 + 1) * sizeof *p->turns);
  F(fill_roots)(1, 2 * n, n / 2 + 1, &p->turns->re, &p->turns->im, 2);
  return p;
}

/* Roots take longer than the transform of a few lines: plans are kept until the program is unloaded, except very long
 * ones, which are in scratch memory. A list that only grows at its head needs no lock; if two threads make the same
 * plan at once, both are kept. */
static _Atomic(F(plan)*) F(kept);
static _Atomic long F(kept_bytes);

HLOC_OF_PARTS const F(plan)* F(plan_of)(long n, int real, long rows) {
  for (F(plan)* p = atomic_load(&F(kept)); p; p = p->next)
    if (p->n == n && !p->turns == !real && p->rows == rows) return p;
  const long bytes = (long)F(plan_bytes)(n, real, rows);
  int keeps = n <= F(LONGEST_KEPT);
  if (keeps && atomic_fetch_add(&F(kept_bytes), bytes) + bytes > F(MOST_KEPT))
    keeps = 0, atomic_fetch_sub(&F(kept_bytes), bytes);
  void* memory = keeps ? malloc(bytes) : hloc_scratch(HLOC_SECOND, bytes);
  if (!memory) return NULL;
  F(plan)* made = F(make_plan_in)(memory, n, real, rows);
  if (!keeps) return made;
  made->next = atomic_load(&F(kept));
  while (!atomic_compare_exchange_weak(&F(kept), &made->next, made)) {}
  return made;
}

static __attribute__((destructor)) void F(free_kept)(void) {
  for (F(plan) *p = atomic_exchange(&F(kept), NULL), *next; p; p = next) next = p->next, free(p);
}

#endif

/* ---- lines: the last dimension first (or last, for IRFFT), then the others in place in `out`.
 * Real lines of even length are transformed as complex ones of half the length (`folded`). */
/* The layout of lines: each starts at line / inner * outer_step + line % inner, with its points `step` apart. */
typedef struct {
  long inner, outer_step, step;
} F(places);
typedef struct {
  const F(plan)* plan;
  int kind; /* of this dimension */
  int folded, lanes; /* lines at a time */
  long lines, n, half;
  F(places) from, to;
  const void* in;
  void* out;
  const REAL* between; /* the twiddle factors of the results of line 0; NULL: none */
  int failed;
} F(lines);

/* Real lines of odd length whose first step takes real numbers: in `raw` they have no imaginary parts. */
static int F(steps_from_reals)(const F(lines)* w) {
  return w->kind == HLOC_RFFT && !w->folded && w->n > 1 && !w->plan->m;
}

#if !HLOC_IS_HERE(HLOC_FFT_MOVES)
void F(read_lines)(const F(lines)* w, long line, long width, long lanes, REAL* raw);
void F(write_lines)(const F(lines)* w, long line, long width, long lanes, REAL* raw);
#else
static long F(start)(const F(places)* p, long line) { return line / p->inner * p->outer_step + line % p->inner; }

/* raw[(2 j + part) * lanes + lane] = point j of line `line + lane`, or back: a vector of points of all lines at a time,
 * so that both sides stay in the L1 cache. `apart`: REALs from line to line if that is constant, else 0. */
enum { F(POINTS_AT_ONCE) = HLOC_VECTOR_BYTES / sizeof(POINT) };
static void F(transpose_lines)(POINT* const* lines, long apart, long step, long count, long width, long lanes,
                               REAL* raw, int back) {
  const int whole = apart && step == 1 && width == F(FFT_LANES);
  for (long first = 0; first < count; first += F(POINTS_AT_ONCE)) {
    const long end = first + F(POINTS_AT_ONCE) < count ? first + F(POINTS_AT_ONCE) : count;
    if (whole && end - first == F(POINTS_AT_ONCE)) {
      REAL *rows = raw + 2 * first * lanes, *points = &lines[0][first].re;
      if (back) WORDS(transpose_tile)(rows, lanes, points, apart);
      else WORDS(transpose_tile)(points, apart, rows, lanes);
    } else for (long l = 0; l < width; l++) {
      POINT* line = lines[l];
      if (back) for (long j = first; j < end; j++)
        line[j * step].re = raw[2 * j * lanes + l], line[j * step].im = raw[(2 * j + 1) * lanes + l];
      else for (long j = first; j < end; j++)
        raw[2 * j * lanes + l] = line[j * step].re, raw[(2 * j + 1) * lanes + l] = line[j * step].im;
    }
  }
}
/* As many contiguous points as there are lanes: split into raw[lane], raw[lanes + lane], and back. */
static void F(part_points)(const POINT* from, REAL* raw, long lanes) {
  BITS a, b;
  memcpy(&a, from, sizeof a), memcpy(&b, from + F(POINTS_AT_ONCE), sizeof b);
  for (int round = 1; round < F(FFT_LANES); round *= 2) { /* each moves word i to 2 i, modulo all words but one */
    const BITS low = WORDS(low)(a, b);
    b = WORDS(high)(a, b), a = low;
  }
  memcpy(raw, &a, sizeof a), memcpy(raw + lanes, &b, sizeof b);
}
static void F(join_points)(POINT* to, const REAL* raw, long lanes) {
  BITS a, b;
  memcpy(&a, raw, sizeof a), memcpy(&b, raw + lanes, sizeof b);
  const BITS low = WORDS(low)(a, b), high = WORDS(high)(a, b);
  memcpy(to, &low, sizeof low), memcpy(to + F(POINTS_AT_ONCE), &high, sizeof high);
}
static void F(move_complex)(const F(places)* p, long n, long line, long width, long lanes, POINT* base, REAL* raw,
                            int back) {
  POINT* lines[F(FFT_LANES)];
  for (long l = 0; l < width; l++) lines[l] = base + F(start)(p, line + l);
  if (width == 1 || line % p->inner + width > p->inner) { /* not contiguous, point by point */
    F(transpose_lines)(lines, p->inner == 1 ? 2 * p->outer_step : 0, p->step, n, width, lanes, raw, back);
    return;
  }
  POINT* next = lines[0];
  for (long j = 0; j < n; j++, next += p->step, raw += 2 * lanes) {
    for (int byte = 0; byte < 2 * HLOC_VECTOR_BYTES; byte += 64) __builtin_prefetch((char*)(next + width) + byte, 1);
    if (width == F(FFT_LANES) && back) F(join_points)(next, raw, lanes);
    else if (width == F(FFT_LANES)) F(part_points)(next, raw, lanes);
    else if (back) for (long l = 0; l < width; l++) next[l].re = raw[l], next[l].im = raw[l + lanes];
    else for (long l = 0; l < width; l++) raw[l] = next[l].re, raw[l + lanes] = next[l].im;
  }
}
/* The points of real lines, in pairs; or of their spectra. `stride` points from line to line. */
static void F(move_folded)(long line, long width, long lanes, POINT* base, long stride, long count, REAL* raw,
                           int back) {
  POINT* lines[F(FFT_LANES)];
  for (long l = 0; l < width; l++) lines[l] = (POINT*)((REAL*)base + (line + l) * stride);
  F(transpose_lines)(lines, stride, 1, count, width, lanes, raw, back);
}

/* Real lines: raw[j * step + lane] = point j of a line, or back. */
static void F(transpose_reals)(REAL* line, long n, long width, REAL* raw, long step, int back) {
  for (long first = 0; first < n; first += F(FFT_LANES)) {
    const long end = first + F(FFT_LANES) < n ? first + F(FFT_LANES) : n;
    if (width == F(FFT_LANES) && end - first == F(FFT_LANES)) {
      if (back) WORDS(transpose_tile)(raw + first * step, step, line + first, n);
      else WORDS(transpose_tile)(line + first, n, raw + first * step, step);
    } else for (long l = 0; l < width; l++)
      for (long j = first; j < end; j++)
        if (back) line[l * n + j] = raw[j * step + l];
        else raw[j * step + l] = line[l * n + j];
  }
}
HLOC_OF_PARTS void F(read_lines)(const F(lines)* w, long line, long width, long lanes, REAL* raw) {
  POINT* in = (POINT*)w->in;
  if (w->kind <= HLOC_IFFT) F(move_complex)(&w->from, w->n, line, width, lanes, in, raw, 0);
  else if (w->kind == HLOC_IRFFT) F(move_folded)(line, width, lanes, in, 2 * w->half, w->half, raw, 0);
  else if (w->folded) F(move_folded)(line, width, lanes, in, w->n, w->n / 2, raw, 0);
  else {
    const long step = F(steps_from_reals)(w) ? lanes : 2 * lanes;
    if (step > lanes) memset(raw, 0, 2 * w->n * lanes * sizeof *raw);
    F(transpose_reals)((REAL*)w->in + line * w->n, w->n, width, raw, step, 0);
  }
}
HLOC_OF_PARTS void F(write_lines)(const F(lines)* w, long line, long width, long lanes, REAL* raw) {
  POINT* out = (POINT*)w->out;
  if (w->kind <= HLOC_IFFT) F(move_complex)(&w->to, w->n, line, width, lanes, out, raw, 1);
  else if (w->kind == HLOC_RFFT) F(move_folded)(line, width, lanes, out, 2 * w->half, w->half, raw, 1);
  else if (w->folded) F(move_folded)(line, width, lanes, out, w->n, w->n / 2, raw, 1);
  else F(transpose_reals)((REAL*)w->out + line * w->n, w->n, width, raw, 2 * lanes, 1);
}

#endif

#if HLOC_IS_HERE(HLOC_FFT_LINES)
/* `width` lines, one per lane, of `lanes` lanes; PREFIX: many, or one. */
#define HLOC_RUN_LINES(PREFIX, width, lanes)                                                                          \
  {                                                                                                                   \
    const int inverse = w->kind == HLOC_IFFT || w->kind == HLOC_IRFFT;                                                \
    F(PREFIX##_point)* data = (F(PREFIX##_point)*)memory;                                                             \
    F(read_lines)(w, line, width, lanes, memory);                                                                     \
    if (w->folded && inverse) F(PREFIX##_line_to_halves)(w->plan, data, data);                                        \
    if (w->kind == HLOC_IRFFT && !w->folded) F(PREFIX##_mirror)(data, w->n);                                          \
    if (F(steps_from_reals)(w)) F(PREFIX##_real_spectrum)(w->plan, data, data + w->n + 1);                            \
    else F(PREFIX##_transform)(w->plan, inverse, data, data + w->n + 1);                                              \
    if (w->between) F(PREFIX##_turn_rows)(data, w->n, w->between + line, w->lines, inverse);                          \
    if (w->folded && !inverse) F(PREFIX##_halves_to_line)(w->plan, data);                                             \
    F(write_lines)(w, line, width, lanes, memory);                                                                    \
  }
static int F(fit_lanes)(long n) { /* whether many lines at a time fit the cache */
  const long points = F(without_small_factors)(n) == 1 ? n : 2 * F(chirp_length)(n);
  return points * (long)sizeof(POINT) <= F(LONGEST_IN_LANES);
}
static void F(run_lines)(void* const* args, long begin, long end) { /* of blocks of lines, one per lane */
  F(lines)* w = (F(lines)*)args;
  const size_t points = w->n + 1 + F(spare_points)(w->plan);
  REAL* memory = hloc_scratch(HLOC_OWN, 2 * points * w->lanes * sizeof(REAL));
  if (!memory) {
    __atomic_store_n(&w->failed, 1, __ATOMIC_RELAXED);
    return;
  }
  end = end * w->lanes < w->lines ? end * w->lanes : w->lines;
  for (long line = begin * w->lanes; line < end;) {
    const long width = w->lanes < end - line ? w->lanes : end - line;
    if (width > 1 || !HLOC_HAS(F(one_transform))) {
      if (width < F(FFT_LANES)) memset(memory, 0, 2 * points * sizeof(F(lanes))); /* lanes without a line */
      HLOC_RUN_LINES(many, width, F(FFT_LANES))
    } else HLOC_RUN_LINES(one, 1, 1)
    line += width;
  }
}
#undef HLOC_RUN_LINES

/* The number of rows into which long lines are split, as close to a square as possible, if there are too few lines for
 * the lanes or they are too long to be transformed in lanes; 0: not split. */
static long F(rows_of)(long n, long lines) {
  if (lines >= F(FFT_LANES) && F(fit_lanes)(n)) return 0;
  long rows = (long)sqrt((double)n);
  while (rows >= F(FFT_LANES) && n % rows) rows--;
  return rows >= F(FFT_LANES) && F(without_small_factors)(n) == 1 ? rows : 0;
}
static int F(run_blocks)(F(lines)* w) {
  const long blocks = (w->lines + w->lanes - 1) / w->lanes, grain = 8192 / (w->lanes * (w->n + 1)) + 1;
  hloc_parallel(F(run_lines), (void* const*)w, blocks, grain);
  return w->failed;
}
/* One line from `in` to `out` through `middle`, of n points each: n = rows * columns. */
static int F(run_split)(const F(plan)* p, int kind, const POINT* in, POINT* middle, POINT* out) {
  const F(places) down = {p->columns, p->n, p->columns}, along = {1, p->columns, 1};
  const F(places) transposed = {p->rows, p->n, p->rows};
  F(lines) columns = {.kind = kind, .n = p->rows, .lines = p->columns, .lanes = F(FFT_LANES), .plan = p->of_column,
                      .from = down, .to = down, .in = in, .out = middle, .between = p->between};
  F(lines) rows = {.kind = kind, .n = p->columns, .lines = p->rows, .lanes = F(FFT_LANES), .plan = p->of_row,
                   .from = along, .to = transposed, .in = middle, .out = out};
  return F(run_blocks)(&columns) || F(run_blocks)(&rows);
}
static int F(run_long)(const F(lines)* w, POINT* middle) {
  const F(plan)* p = w->plan;
  const long n = p->n, from = w->kind == HLOC_IRFFT ? n + 1 : n, to = w->kind == HLOC_RFFT ? n + 1 : n;
  const int kind = w->kind == HLOC_IFFT || w->kind == HLOC_IRFFT ? HLOC_IFFT : HLOC_FFT;
  for (long line = 0; line < w->lines; line++) {
    const POINT* in = (const POINT*)w->in + line * from;
    POINT* out = (POINT*)w->out + line * to;
    if (w->kind == HLOC_IRFFT) F(one_line_to_halves)(p, (const F(one_point)*)in, (F(one_point)*)out), in = out;
    if (F(run_split)(p, kind, in, middle, out)) return 1;
    if (w->kind == HLOC_RFFT) F(one_halves_to_line)(p, (F(one_point)*)out);
  }
  return 0;
}

/* `middle`: memory for the points of the last dimension, if that is split; else NULL. */
static int F(run_dimension)(int kind, const long* sizes, int rank, int d, long n, long batch, const void* in, void* out,
                            POINT* middle) {
  F(lines) w = {.kind = kind, .n = n, .half = n / 2 + 1, .in = in, .out = out, .lines = batch};
  F(places) places = {.step = 1};
  w.folded = kind >= HLOC_RFFT && n % 2 == 0;
  for (int i = 0; i < rank; i++) w.lines *= i == d ? 1 : sizes[i];
  for (int i = d + 1; i < rank; i++) places.step *= sizes[i];
  places.inner = places.step, places.outer_step = places.step * sizes[d];
  w.from = w.to = places;
  const long points = w.folded ? n / 2 : n;
  w.plan = F(plan_of)(points, w.folded, middle ? F(rows_of)(points, w.lines) : 0);
  if (!w.plan) return 1;
  if (w.plan->rows) return F(run_long)(&w, middle);
  w.lanes = F(fit_lanes)(points) && (w.lines >= F(FFT_LANES) / 4 || !HLOC_HAS(F(one_transform))) ? F(FFT_LANES) : 1;
  return F(run_blocks)(&w);
}
static long F(middle_points)(int kind, long n, long lines) { /* 0: lines of the last dimension are not split */
  if (kind >= HLOC_RFFT && n % 2) return 0;
  const long points = kind >= HLOC_RFFT ? n / 2 : n;
  return F(rows_of)(points, lines) ? points : 0;
}

int F(fft)(int kind, int rank, const long* lengths, long batch, const void* in, void* out) {
  long sizes[3]; /* of the complex side */
  int other = kind == HLOC_IFFT || kind == HLOC_IRFFT ? HLOC_IFFT : HLOC_FFT, failed = 0;
  long points = batch;
  for (int d = 0; d < rank; d++) {
    sizes[d] = lengths[d];
    if (d == rank - 1 && (kind == HLOC_RFFT || kind == HLOC_IRFFT)) sizes[d] = lengths[d] / 2 + 1;
    points *= sizes[d];
  }
  if (points <= 0 || lengths[rank - 1] <= 0) return 0;
  const long last = lengths[rank - 1], split = F(middle_points)(kind, last, points / sizes[rank - 1]);
  const long inner = kind == HLOC_IRFFT && rank > 1 ? points : 0; /* intermediate results between dimensions */
  POINT* memory = inner + split ? hloc_scratch(HLOC_FIRST, (inner + split) * sizeof *memory) : NULL;
  if (inner + split && !memory) return 1;
  POINT* middle = split ? memory + inner : NULL;
  if (inner) { /* the outer dimensions first */
    for (int d = 0; d < rank - 1; d++)
      failed |= F(run_dimension)(HLOC_IFFT, sizes, rank, d, lengths[d], batch, d ? memory : in, memory, NULL);
    return failed | F(run_dimension)(kind, sizes, rank, rank - 1, last, batch, memory, out, middle);
  }
  failed |= F(run_dimension)(kind, sizes, rank, rank - 1, last, batch, in, out, middle);
  for (int d = 0; d < rank - 1; d++)
    failed |= F(run_dimension)(other, sizes, rank, d, lengths[d], batch, out, out, NULL);
  return failed;
}
#endif

#undef F
#undef REAL
#undef POINT
#undef WORDS
#undef BITS
