/* fft_lines.h: transforms of one precision (template; fft_f32.c and fft_f64.c include it).
 *
 * In (macros): F(name) the instance's prefix, REAL, POINT the complex type {re, im}.
 * Out: F(fft)(kind, rank, lengths, batch, in, out) as fft.h says.
 */

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "fft.h"
#include "fft_roots.h"
#include "pool.h"
#include "vector.h"

enum { F(LONGEST_KEPT) = 1 << 14, F(MOST_KEPT) = 64 }; /* plans: some MB at most */

typedef struct F(plan) {
  long n;
  int factors[64], factor_count;
  POINT* roots;     /* exp(-2 pi i j / n) for j < n */
  POINT* turns;     /* exp(-pi i j / n) for 2 j <= n, where the line is real and has 2 n points; else NULL */
  /* Bluestein, for lengths with a large prime factor: a convolution of length m with a chirp */
  long m;
  POINT *chirp, *chirp_transform; /* exp(-pi i j^2 / n); the transform of its conjugate, over m */
  void* wide;                     /* the plan for length m */
  struct F(plan)* next;           /* among those kept */
} F(plan);

static POINT F(point)(double re, double im) {
  POINT z;
  z.re = (REAL)re, z.im = (REAL)im;
  return z;
}
static long F(spare_points)(const F(plan)* p) { return p->m ? 2 * p->m : p->n; }

#define S(name) F(one_##name)
#define R REAL
#include "fft_steps.h"
#undef S
#undef R

typedef REAL F(lanes) __attribute__((vector_size(HLOC_VECTOR_BYTES)));
enum { F(LANES) = HLOC_VECTOR_BYTES / sizeof(REAL), F(LONGEST_IN_LANES) = 1 << 16 }; /* bytes of a line: caches */
#define S(name) F(many_##name)
#define R F(lanes)
#include "fft_steps.h"
#undef S
#undef R

/* What a plan lies in: one block, of which piece after piece is taken. hloc/targets/cpu/scratch.py knows its size. */
typedef struct { char* at; } F(block);

static size_t F(padded)(size_t bytes) { return (bytes + 63) / 64 * 64; }
static void* F(take)(F(block)* block, size_t bytes) {
  void* piece = block->at;
  block->at += F(padded)(bytes);
  return piece;
}
static long F(without_small_factors)(long n) {
  for (int r = 2; r <= 31 && n > 1; r++) while (n % r == 0) n /= r;
  return n;
}
static long F(chirp_length)(long n) {
  long m = 1;
  while (m < 2 * n) m *= 2;
  return m;
}
static size_t F(plan_bytes)(long n, int real) {
  const size_t point = sizeof(POINT), plan = F(padded)(sizeof(F(plan))), m = F(chirp_length)(n);
  const size_t turns = real ? F(padded)((n / 2 + 1) * point) : 0;
  if (F(without_small_factors)(n) == 1) return plan + F(padded)(n * point) + turns;
  return plan + F(padded)(n * point) + 2 * F(padded)(m * point) + F(plan_bytes)((long)m, 0) + turns;
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
  for (long j = 0; j < n; j++) p->roots[j] = F(point)(cos_turn(j, n), -sin_turn(j, n));
  return p;
}
static F(plan)* F(make_plan_in)(void* memory, long n, int real) {
  F(block) block = {memory};
  F(plan)* p = F(make_plan)(n, &block);
  if (real) p->turns = F(take)(&block, (n / 2 + 1) * sizeof *p->turns);
  for (long j = 0; real && 2 * j <= n; j++) p->turns[j] = F(point)(cos_turn(j, 2 * n), -sin_turn(j, 2 * n));
  return p;
}

/* Roots take longer than the transform of a few lines: plans are kept, and never given back, but for long ones, which lie
 * in scratch memory. A list that only grows at its head needs no lock; two threads that make the same plan at once keep
 * both. */
static _Atomic(F(plan)*) F(kept);
static _Atomic int F(kept_count);

static const F(plan)* F(plan_of)(long n, int real) {
  for (F(plan)* p = atomic_load(&F(kept)); p; p = p->next) if (p->n == n && !p->turns == !real) return p;
  const int keeps = n <= F(LONGEST_KEPT) && atomic_fetch_add(&F(kept_count), 1) < F(MOST_KEPT);
  const size_t bytes = F(plan_bytes)(n, real);
  void* memory = keeps ? malloc(bytes) : hloc_scratch(HLOC_SECOND, bytes);
  if (!memory) return NULL;
  F(plan)* made = F(make_plan_in)(memory, n, real);
  if (!keeps) return made;
  made->next = atomic_load(&F(kept));
  while (!atomic_compare_exchange_weak(&F(kept), &made->next, made)) {}
  return made;
}

/* ---- lines: the last dimension first (or last, for IRFFT), then the others in place in `out`.
 * Real lines of even length are transformed as complex ones of half the length (`folded`). */
typedef struct {
  const F(plan)* plan;
  int kind; /* of this dimension */
  int folded, lanes; /* lines at a time */
  long lines, n, half, outer_step, step, inner; /* lines start at outer * outer_step + inner, points `step` apart */
  const void* in;
  void* out;
  int failed;
} F(lines);

static long F(start)(const F(lines)* w, long line) {
  return line / w->inner * w->outer_step + line % w->inner;
}
/* Whether lines lie next to each other, point by point. */
static int F(side_by_side)(const F(lines)* w, long line, long width) { return line % w->inner + width <= w->inner; }

/* raw[(2 j + part) * width + lane] = point j of line `line + lane`, or back: a few points of all lines at a time, so that
 * both sides stay in the nearest cache. */
enum { F(POINTS_AT_ONCE) = 64 / sizeof(POINT) };
static void F(turn_lines)(POINT* const* lines, long step, long count, long width, REAL* raw, int back) {
  for (long first = 0; first < count; first += F(POINTS_AT_ONCE)) {
    const long end = first + F(POINTS_AT_ONCE) < count ? first + F(POINTS_AT_ONCE) : count;
    for (long l = 0; l < width; l++) {
      POINT* line = lines[l];
      if (back) for (long j = first; j < end; j++)
        line[j * step].re = raw[2 * j * width + l], line[j * step].im = raw[(2 * j + 1) * width + l];
      else for (long j = first; j < end; j++)
        raw[2 * j * width + l] = line[j * step].re, raw[(2 * j + 1) * width + l] = line[j * step].im;
    }
  }
}
static void F(move_complex)(const F(lines)* w, long line, long width, POINT* base, REAL* raw, int back) {
  POINT* lines[F(LANES)];
  for (long l = 0; l < width; l++) lines[l] = base + F(start)(w, line + l);
  if (width == 1 || !F(side_by_side)(w, line, width)) {
    F(turn_lines)(lines, w->step, w->n, width, raw, back);
    return;
  }
  POINT* next = lines[0];
  for (long j = 0; j < w->n; j++, next += w->step, raw += 2 * width) {
    if (back) for (long l = 0; l < width; l++) next[l].re = raw[l], next[l].im = raw[l + width];
    else for (long l = 0; l < width; l++) raw[l] = next[l].re, raw[l + width] = next[l].im;
  }
}
/* The points of real lines, two by two; or of their spectra. `stride` points from line to line. */
static void F(move_folded)(long line, long width, POINT* base, long stride, long count, REAL* raw,
                           int back) {
  POINT* lines[F(LANES)];
  for (long l = 0; l < width; l++) lines[l] = (POINT*)((REAL*)base + (line + l) * stride);
  F(turn_lines)(lines, 1, count, width, raw, back);
}

static void F(read_lines)(const F(lines)* w, long line, long width, REAL* raw) {
  POINT* in = (POINT*)w->in;
  if (w->kind <= HLOC_IFFT) F(move_complex)(w, line, width, in, raw, 0);
  else if (w->kind == HLOC_IRFFT) F(move_folded)(line, width, in, 2 * w->half, w->half, raw, 0);
  else if (w->folded) F(move_folded)(line, width, in, w->n, w->n / 2, raw, 0);
  if (w->kind <= HLOC_IFFT || w->folded) return;
  for (long l = 0; l < width; l++) { /* real lines of odd length: no imaginary part, or the conjugate other half */
    const REAL* real = (const REAL*)w->in + (line + l) * w->n;
    for (long j = 0; w->kind == HLOC_RFFT && j < w->n; j++)
      raw[2 * j * width + l] = real[j], raw[(2 * j + 1) * width + l] = 0;
    if (w->kind == HLOC_IRFFT) raw[width + l] = 0;
    for (long j = w->half; w->kind == HLOC_IRFFT && j < w->n; j++) {
      raw[2 * j * width + l] = raw[2 * (w->n - j) * width + l];
      raw[(2 * j + 1) * width + l] = -raw[(2 * (w->n - j) + 1) * width + l];
    }
  }
}
static void F(write_lines)(const F(lines)* w, long line, long width, REAL* raw) {
  POINT* out = (POINT*)w->out;
  if (w->kind <= HLOC_IFFT) F(move_complex)(w, line, width, out, raw, 1);
  else if (w->kind == HLOC_RFFT) F(move_folded)(line, width, out, 2 * w->half, w->half, raw, 1);
  else if (w->folded) F(move_folded)(line, width, out, w->n, w->n / 2, raw, 1);
  else for (long l = 0; l < width; l++)
    for (long j = 0; j < w->n; j++) ((REAL*)w->out)[(line + l) * w->n + j] = raw[2 * j * width + l];
}

/* `width` lines, one per lane; PREFIX: many, or one. */
#define HLOC_RUN_LINES(PREFIX, width)                                                                                 \
  {                                                                                                                   \
    const int inverse = w->kind == HLOC_IFFT || w->kind == HLOC_IRFFT;                                                \
    F(PREFIX##_point)* data = (F(PREFIX##_point)*)memory;                                                             \
    F(read_lines)(w, line, width, memory);                                                                            \
    if (w->folded && inverse) F(PREFIX##_line_to_halves)(w->plan, data);                                              \
    F(PREFIX##_transform)(w->plan, inverse, data, data + w->n + 1);                                                   \
    if (w->folded && !inverse) F(PREFIX##_halves_to_line)(w->plan, data);                                             \
    F(write_lines)(w, line, width, memory);                                                                           \
  }
static int F(lanes_of)(const F(lines)* w) {
  const int fit = F(spare_points)(w->plan) * (long)sizeof(POINT) <= F(LONGEST_IN_LANES);
  return fit && w->lines >= F(LANES) ? F(LANES) : 1;
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
    if (w->lanes > 1 && line + F(LANES) <= end) {
      HLOC_RUN_LINES(many, F(LANES))
      line += F(LANES);
    } else {
      HLOC_RUN_LINES(one, 1)
      line++;
    }
  }
}
#undef HLOC_RUN_LINES

static int F(run_dimension)(int kind, const long* sizes, int rank, int d, long n, long batch, const void* in,
                            void* out) {
  F(lines) w = {.kind = kind, .n = n, .half = n / 2 + 1, .step = 1, .inner = 1, .in = in, .out = out, .lines = batch};
  w.folded = kind >= HLOC_RFFT && n % 2 == 0;
  for (int i = 0; i < rank; i++) w.lines *= i == d ? 1 : sizes[i];
  for (int i = d + 1; i < rank; i++) w.step *= sizes[i];
  w.inner = w.step, w.outer_step = w.step * sizes[d];
  w.plan = F(plan_of)(w.folded ? n / 2 : n, w.folded);
  if (!w.plan) return 1;
  w.lanes = F(lanes_of)(&w);
  hloc_parallel(F(run_lines), (void* const*)&w, (w.lines + w.lanes - 1) / w.lanes, 8192 / (w.lanes * (n + 1)) + 1);
  return w.failed;
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
  if (kind == HLOC_IRFFT && rank > 1) { /* the outer dimensions first, in memory of their own */
    POINT* middle = hloc_scratch(HLOC_FIRST, points * sizeof *middle);
    if (!middle) return 1;
    for (int d = 0; d < rank - 1; d++)
      failed |= F(run_dimension)(HLOC_IFFT, sizes, rank, d, lengths[d], batch, d ? middle : in, middle);
    return failed | F(run_dimension)(kind, sizes, rank, rank - 1, lengths[rank - 1], batch, middle, out);
  }
  failed |= F(run_dimension)(kind, sizes, rank, rank - 1, lengths[rank - 1], batch, in, out);
  for (int d = 0; d < rank - 1; d++)
    failed |= F(run_dimension)(other, sizes, rank, d, lengths[d], batch, out, out);
  return failed;
}

#undef F
#undef REAL
#undef POINT
