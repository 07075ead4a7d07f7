/* fft_lines.h: transforms of one precision (template; fft_f32.c and fft_f64.c include it).
 *
 * In (macros): F(name) the instance's prefix, F_KERNEL its name (fits.h), REAL, POINT the complex type {re, im},
 * WORDS(name) and BITS what vector.h calls shuffles of words of REAL's size, and vectors of them.
 * Out: F(fft)(plan, in, out) as fft.h says.
 */

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "fft.h"
#include "fft_roots.h"
#include "pool.h"
#include "vector.h"

enum { F(LONGEST_KEPT) = 1 << 20, F(MOST_KEPT) = 1 << 26 }; /* points of a plan, bytes of all plans */

/* The numbers of hloc_fft_points. */
typedef struct F(plan) {
  const hloc_fft_points* of;
  POINT* roots;                   /* exp(-2 pi i j / n) for j < n */
  POINT* turns;                   /* real: exp(-pi i j / n) for 2 j <= n */
  POINT *chirp, *chirp_transform; /* exp(-pi i j^2 / n); the transform of its conjugate, of wide->n points */
  REAL* between;                  /* split: of row r, exp(-2 pi i r c / n) of all columns c: first the real parts */
  const struct F(plan) *wide, *column, *row;
  struct F(plan)* next; /* in the list of kept plans */
} F(plan);
_Static_assert(sizeof(F(plan)) <= HLOC_FFT_PLAN_BYTES, "plans/fft.py reserves less for a plan of an FFT");

static POINT F(point)(double re, double im) {
  POINT z;
  z.re = (REAL)re, z.im = (REAL)im;
  return z;
}

#define S(name) F(one_##name)
#define R REAL
#include "fft_steps.h"
#undef S
#undef R

typedef REAL F(lanes) __attribute__((vector_size(HLOC_VECTOR_BYTES)));
enum { F(FFT_LANES) = HLOC_VECTOR_BYTES / sizeof(REAL) };
#define S(name) F(many_##name)
#define R F(lanes)
#include "fft_steps.h"
#undef S
#undef R

/* The memory of a plan: one block, from which pieces are allocated in order. */
typedef struct { char* at; } F(block);

static void* F(take)(F(block)* block, size_t bytes) {
  void* piece = block->at;
  block->at += (bytes + 63) / 64 * 64;
  return piece;
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
static F(plan)* F(make_plan)(const hloc_fft_points* of, F(block)* block);
static void F(plan_chirp)(F(plan)* p, F(block)* block) {
  const long n = p->of->n, m = p->of->wide->n;
  p->chirp = F(take)(block, n * sizeof *p->chirp), p->chirp_transform = F(take)(block, m * sizeof *p->chirp);
  p->wide = F(make_plan)(p->of->wide, block);
  POINT* spare = F(take)(block, m * sizeof *spare);
  for (long j = 0; j < m; j++) p->chirp_transform[j] = F(point)(0, 0);
  for (long j = 0; j < n; j++) {
    long turn = (long)((unsigned __int128)j * j % (2 * n)); /* j^2 half turns of 1/n */
    double re = cos_turn(turn, 2 * n), im = sin_turn(turn, 2 * n);
    p->chirp[j] = F(point)(re, -im);
    p->chirp_transform[j] = F(point)(re, im);
    if (j) p->chirp_transform[m - j] = F(point)(re, im);
  }
  F(one_stockham)(p->wide, (F(one_point)*)p->chirp_transform, (F(one_point)*)spare);
}
static void F(plan_split)(F(plan)* p, F(block)* block) {
  const long n = p->of->n, columns = p->of->row->n;
  p->between = F(take)(block, (n + F(FFT_LANES)) * sizeof(POINT)); /* the last vectors may read past the last row */
  memset(p->between + 2 * n, 0, F(FFT_LANES) * sizeof(POINT));
  for (long r = 0; r < p->of->column->n; r++) {
    REAL* re = p->between + 2 * r * columns;
    F(fill_roots)(r, n, columns, re, re + columns, 1);
  }
  p->column = F(make_plan)(p->of->column, block), p->row = F(make_plan)(p->of->row, block);
}
static F(plan)* F(make_plan)(const hloc_fft_points* of, F(block)* block) {
  F(plan)* p = F(take)(block, HLOC_FFT_PLAN_BYTES);
  memset(p, 0, sizeof *p);
  p->of = of;
  if (of->row) F(plan_split)(p, block);
  else if (of->wide) F(plan_chirp)(p, block);
  else {
    p->roots = F(take)(block, of->n * sizeof *p->roots);
    F(fill_roots)(1, of->n, of->n, &p->roots->re, &p->roots->im, 2);
  }
  if (of->real) {
    p->turns = F(take)(block, (of->n / 2 + 1) * sizeof *p->turns);
    F(fill_roots)(1, 2 * of->n, of->n / 2 + 1, &p->turns->re, &p->turns->im, 2);
  }
  return p;
}

/* Roots take longer than the transform of a few lines: plans are kept until the program is unloaded, except very long
 * ones, which are in scratch memory. A list that only grows at its head needs no lock; if two threads make the same
 * plan at once, both are kept. */
static _Atomic(F(plan)*) F(kept);
static _Atomic long F(kept_bytes);

static int F(is_for)(const hloc_fft_points* a, const hloc_fft_points* b) {
  return a->n == b->n && a->real == b->real && !a->row == !b->row && (!a->row || a->row->n == b->row->n);
}
static const F(plan)* F(plan_of)(const hloc_fft_points* of) {
  for (F(plan)* p = atomic_load(&F(kept)); p; p = p->next)
    if (F(is_for)(p->of, of)) return p;
  const long bytes = (long)of->bytes;
  int keeps = of->n <= F(LONGEST_KEPT);
  if (keeps && atomic_fetch_add(&F(kept_bytes), bytes) + bytes > F(MOST_KEPT))
    keeps = 0, atomic_fetch_sub(&F(kept_bytes), bytes);
  F(block) block = {keeps ? malloc(bytes) : hloc_scratch(HLOC_SECOND, bytes)};
  if (!block.at) return NULL;
  F(plan)* made = F(make_plan)(of, &block);
  if (!keeps) return made;
  made->next = atomic_load(&F(kept));
  while (!atomic_compare_exchange_weak(&F(kept), &made->next, made)) {}
  return made;
}

static __attribute__((destructor)) void F(free_kept)(void) {
  for (F(plan) *p = atomic_exchange(&F(kept), NULL), *next; p; p = next) next = p->next, free(p);
}

/* ---- lines: of one dimension, from `in` to `out`, which may be the same. */
typedef struct {
  const hloc_fft_lines* of;
  const F(plan)* plan;
  const void* in;
  void* out;
  const REAL* between; /* the twiddle factors of the results of line 0; NULL: none */
  int failed;
} F(lines);

static long F(start)(const hloc_fft_places* p, long line) { return line / p->inner * p->outer_step + line % p->inner; }

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
static void F(move_complex)(const hloc_fft_places* p, long n, long line, long width, long lanes, POINT* base, REAL* raw,
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
static void F(read_lines)(const F(lines)* w, long line, long width, long lanes, REAL* raw) {
  const hloc_fft_lines* of = w->of;
  const long n = of->n, half = n / 2 + 1;
  POINT* in = (POINT*)w->in;
  if (of->kind <= HLOC_IFFT) F(move_complex)(&of->start, n, line, width, lanes, in, raw, 0);
  else if (of->kind == HLOC_IRFFT) F(move_folded)(line, width, lanes, in, 2 * half, half, raw, 0);
  else if (of->folded) F(move_folded)(line, width, lanes, in, n, n / 2, raw, 0);
  else {
    const long step = of->from_reals ? lanes : 2 * lanes;
    if (step > lanes) memset(raw, 0, 2 * n * lanes * sizeof *raw);
    F(transpose_reals)((REAL*)w->in + line * n, n, width, raw, step, 0);
  }
}
static void F(write_lines)(const F(lines)* w, long line, long width, long lanes, REAL* raw) {
  const hloc_fft_lines* of = w->of;
  const long n = of->n, half = n / 2 + 1;
  POINT* out = (POINT*)w->out;
  if (of->kind <= HLOC_IFFT) F(move_complex)(&of->end, n, line, width, lanes, out, raw, 1);
  else if (of->kind == HLOC_RFFT) F(move_folded)(line, width, lanes, out, 2 * half, half, raw, 1);
  else if (of->folded) F(move_folded)(line, width, lanes, out, n, n / 2, raw, 1);
  else F(transpose_reals)((REAL*)w->out + line * n, n, width, raw, 2 * lanes, 1);
}

HLOC_COMPILED_FOR(F_KERNEL, HLOC_VECTOR_BYTES, HLOC_FFT_PLAN_BYTES, HLOC_FFT_LARGEST_FACTOR, 0)

/* `width` lines, one per lane, of `lanes` lanes; PREFIX: many, or one. */
#define HLOC_RUN_LINES(PREFIX, width, lanes)                                                                          \
  {                                                                                                                   \
    F(PREFIX##_point)* data = (F(PREFIX##_point)*)memory;                                                             \
    F(read_lines)(w, line, width, lanes, memory);                                                                     \
    if (of->folded && inverse) F(PREFIX##_line_to_halves)(w->plan, data, data);                                       \
    if (of->kind == HLOC_IRFFT && !of->folded) F(PREFIX##_mirror)(data, n);                                           \
    if (of->from_reals) F(PREFIX##_real_spectrum)(w->plan, data, data + n + 1);                                       \
    else F(PREFIX##_transform)(w->plan, inverse, data, data + n + 1);                                                 \
    if (w->between) F(PREFIX##_turn_rows)(data, n, w->between + line, of->lines, inverse);                            \
    if (of->folded && !inverse) F(PREFIX##_halves_to_line)(w->plan, data);                                            \
    F(write_lines)(w, line, width, lanes, memory);                                                                    \
  }
static void F(run_lines)(void* const* args, long begin, long end) { /* of blocks of lines, one per lane */
  F(lines)* w = (F(lines)*)args;
  const hloc_fft_lines* of = w->of;
  const int inverse = of->kind == HLOC_IFFT || of->kind == HLOC_IRFFT;
  const long n = of->n, lanes = of->lanes;
  REAL* memory = hloc_own_scratch(of->own, &w->failed);
  if (!memory) return;
  end = end * lanes < of->lines ? end * lanes : of->lines;
  for (long line = begin * lanes; line < end;) {
    const long width = lanes < end - line ? lanes : end - line;
    if (width > 1) {
      if (width < F(FFT_LANES)) memset(memory, 0, of->own); /* lanes without a line */
      HLOC_RUN_LINES(many, width, F(FFT_LANES))
    } else HLOC_RUN_LINES(one, 1, 1)
    line += width;
  }
}
#undef HLOC_RUN_LINES

static int F(run_blocks)(F(lines) w) {
  hloc_parallel(F(run_lines), (void* const*)&w, (w.of->lines + w.of->lanes - 1) / w.of->lanes, w.of->grain);
  return w.failed;
}
/* Lines one after the other, each through `middle`: its columns, then its rows. */
static int F(run_split)(const hloc_fft_lines* of, const F(plan)* p, const void* from, void* to, POINT* middle) {
  const long n = p->of->n;
  for (long line = 0; line < of->lines; line++) {
    const POINT* in = (const POINT*)from + line * (of->kind == HLOC_IRFFT ? n + 1 : n);
    POINT* out = (POINT*)to + line * (of->kind == HLOC_RFFT ? n + 1 : n);
    if (of->kind == HLOC_IRFFT) F(one_line_to_halves)(p, (const F(one_point)*)in, (F(one_point)*)out), in = out;
    if (F(run_blocks)((F(lines)){of->split, p->column, in, middle, p->between, 0})) return 1;
    if (F(run_blocks)((F(lines)){of->split + 1, p->row, middle, out, NULL, 0})) return 1;
    if (of->kind == HLOC_RFFT) F(one_halves_to_line)(p, (F(one_point)*)out);
  }
  return 0;
}

int F(fft)(const hloc_fft_plan* plan, const void* in, void* out) {
  POINT* memory = plan->first ? hloc_scratch(HLOC_FIRST, plan->first) : NULL;
  if (plan->first && !memory) return 1;
  void* through = plan->through_scratch ? (void*)memory : out;
  for (int d = 0; d < plan->dimensions; d++) {
    const hloc_fft_lines* of = plan->lines + d;
    const void* from = d ? through : in;
    void* to = d + 1 < plan->dimensions ? through : out;
    const F(plan)* p = F(plan_of)(of->points);
    if (!p) return 1;
    if (of->split ? F(run_split)(of, p, from, to, memory + plan->middle)
                  : F(run_blocks)((F(lines)){of, p, from, to, NULL, 0})) return 1;
  }
  return 0;
}

#undef F
#undef F_KERNEL
#undef REAL
#undef POINT
#undef WORDS
#undef BITS
