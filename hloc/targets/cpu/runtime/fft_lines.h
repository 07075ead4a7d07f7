/* fft_lines.h: transforms of one precision (template; fft.c includes it for f32 and f64).
 *
 * In (macros): F(name) the instance's prefix, REAL, POINT the complex type {re, im}.
 * Out: F(fft)(kind, rank, lengths, batch, in, out) as fft.h says.
 */

typedef struct F(plan) {
  long n;
  int factors[64], factor_count;
  POINT* roots;     /* exp(-2 pi i j / n) for j < n */
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
static inline POINT F(times)(POINT a, POINT b) {
  POINT z;
  z.re = a.re * b.re - a.im * b.im, z.im = a.re * b.im + a.im * b.re;
  return z;
}
static inline POINT F(plus)(POINT a, POINT b) { a.re += b.re, a.im += b.im; return a; }
static inline POINT F(minus)(POINT a, POINT b) { a.re -= b.re, a.im -= b.im; return a; }
static inline POINT F(times_minus_i)(POINT a) { POINT z; z.re = a.im, z.im = -a.re; return z; }

/* One Stockham step of radix r: `length` points remain to be transformed, `stride` transforms lie side by side. */
static void F(step4)(const F(plan)* p, long length, long stride, const POINT* x, POINT* y) {
  long m = length / 4;
  for (long j = 0; j < m; j++) {
    POINT w1 = p->roots[j * stride], w2 = p->roots[2 * j * stride], w3 = p->roots[3 * j * stride];
    const POINT* from = x + stride * j;
    POINT* to = y + stride * 4 * j;
    for (long q = 0; q < stride; q++) {
      POINT a = from[q], b = from[q + stride * m], c = from[q + 2 * stride * m], d = from[q + 3 * stride * m];
      POINT ac = F(plus)(a, c), bd = F(plus)(b, d), a_c = F(minus)(a, c), b_d = F(times_minus_i)(F(minus)(b, d));
      to[q] = F(plus)(ac, bd);
      to[q + stride] = F(times)(F(plus)(a_c, b_d), w1);
      to[q + 2 * stride] = F(times)(F(minus)(ac, bd), w2);
      to[q + 3 * stride] = F(times)(F(minus)(a_c, b_d), w3);
    }
  }
}
static void F(step2)(const F(plan)* p, long length, long stride, const POINT* x, POINT* y) {
  long m = length / 2;
  for (long j = 0; j < m; j++) {
    POINT w = p->roots[j * stride];
    for (long q = 0; q < stride; q++) {
      POINT a = x[q + stride * j], b = x[q + stride * (j + m)];
      y[q + stride * 2 * j] = F(plus)(a, b);
      y[q + stride * (2 * j + 1)] = F(times)(F(minus)(a, b), w);
    }
  }
}
static void F(step_any)(const F(plan)* p, int r, long length, long stride, const POINT* x, POINT* y) {
  long m = length / r;
  POINT unit[31]; /* exp(-2 pi i k / r) */
  for (int k = 0; k < r; k++) unit[k] = p->roots[k * (p->n / r)];
  for (long j = 0; j < m; j++)
    for (int t = 0; t < r; t++) {
      POINT w = p->roots[j * t * stride];
      for (long q = 0; q < stride; q++) {
        POINT sum = x[q + stride * j];
        for (int k = 1, turn = t; k < r; k++, turn += turn + t < r ? t : t - r)
          sum = F(plus)(sum, F(times)(x[q + stride * (j + m * k)], unit[turn]));
        y[q + stride * (r * j + t)] = F(times)(sum, w);
      }
    }
}

static void F(stockham)(const F(plan)* p, POINT* data, POINT* spare) {
  POINT *x = data, *y = spare;
  long length = p->n, stride = 1;
  for (int f = 0; f < p->factor_count; f++) {
    int r = p->factors[f];
    if (r == 4) F(step4)(p, length, stride, x, y);
    else if (r == 2) F(step2)(p, length, stride, x, y);
    else F(step_any)(p, r, length, stride, x, y);
    length /= r, stride *= r;
    POINT* t = x;
    x = y, y = t;
  }
  if (x != data) memcpy(data, x, p->n * sizeof *x);
}

/* The forward transform of one line in place; spare: F(spare_points)(p) points. */
static long F(spare_points)(const F(plan)* p) { return p->m ? 2 * p->m : p->n; }
static void F(forward)(const F(plan)* p, POINT* data, POINT* spare) {
  if (!p->m) {
    F(stockham)(p, data, spare);
    return;
  }
  POINT* wide = spare;
  for (long j = 0; j < p->n; j++) wide[j] = F(times)(data[j], p->chirp[j]);
  for (long j = p->n; j < p->m; j++) wide[j] = F(point)(0, 0);
  F(stockham)((const F(plan)*)p->wide, wide, spare + p->m);
  for (long j = 0; j < p->m; j++) { /* conjugated: the inverse transform is a forward one of the conjugate */
    wide[j] = F(times)(wide[j], p->chirp_transform[j]);
    wide[j].im = -wide[j].im;
  }
  F(stockham)((const F(plan)*)p->wide, wide, spare + p->m);
  for (long j = 0; j < p->n; j++) {
    POINT z = F(point)(wide[j].re / (double)p->m, -wide[j].im / (double)p->m);
    data[j] = F(times)(z, p->chirp[j]);
  }
}
static void F(transform)(const F(plan)* p, int inverse, POINT* data, POINT* spare) {
  if (inverse) for (long j = 0; j < p->n; j++) data[j].im = -data[j].im;
  F(forward)(p, data, spare);
  REAL scale = (REAL)1 / (REAL)p->n;
  if (inverse) for (long j = 0; j < p->n; j++) data[j].re *= scale, data[j].im *= -scale;
}

static void F(free_plan)(F(plan)* p) {
  if (!p) return;
  free(p->roots), free(p->chirp), free(p->chirp_transform);
  F(free_plan)((F(plan)*)p->wide);
  free(p);
}
static int F(plan_chirp)(F(plan)* p);
static F(plan)* F(make_plan)(long n) {
  F(plan)* p = calloc(1, sizeof *p);
  if (!p) return NULL;
  p->n = n;
  long rest = n;
  while (rest % 4 == 0) p->factors[p->factor_count++] = 4, rest /= 4;
  for (int r = 2; r <= 31 && rest > 1; r++)
    while (rest % r == 0) p->factors[p->factor_count++] = r, rest /= r;
  if (rest > 1) {
    if (F(plan_chirp)(p)) return p;
    F(free_plan)(p);
    return NULL;
  }
  p->roots = malloc(n * sizeof *p->roots);
  if (!p->roots) {
    free(p);
    return NULL;
  }
  for (long j = 0; j < n; j++) p->roots[j] = F(point)(cos_turn(j, n), -sin_turn(j, n));
  return p;
}
static int F(plan_chirp)(F(plan)* p) {
  long m = 1, n = p->n;
  while (m < 2 * n) m *= 2;
  p->m = m;
  p->chirp = malloc(n * sizeof *p->chirp), p->chirp_transform = malloc(m * sizeof *p->chirp);
  p->wide = F(make_plan)(m);
  POINT* spare = malloc(m * sizeof *spare);
  int made = p->chirp && p->chirp_transform && p->wide && spare;
  if (made) {
    for (long j = 0; j < m; j++) p->chirp_transform[j] = F(point)(0, 0);
    for (long j = 0; j < n; j++) {
      long turn = (long)((unsigned __int128)j * j % (2 * n)); /* j^2 half turns of 1/n */
      double re = cos_turn(turn, 2 * n), im = sin_turn(turn, 2 * n);
      p->chirp[j] = F(point)(re, -im);
      p->chirp_transform[j] = F(point)(re, im);
      if (j) p->chirp_transform[m - j] = F(point)(re, im);
    }
    F(stockham)((const F(plan)*)p->wide, p->chirp_transform, spare);
  }
  free(spare);
  return made;
}

/* Roots take longer than the transform of a few lines: plans are kept, and never given back. A list that only grows at
 * its head needs no lock; two threads that make the same plan at once keep both. `own`: the caller's, to be freed. */
static _Atomic(F(plan)*) F(kept);
static _Atomic int F(kept_count);

static const F(plan)* F(plan_of)(long n, F(plan)** own) {
  *own = NULL;
  for (F(plan)* p = atomic_load(&F(kept)); p; p = p->next) if (p->n == n) return p;
  F(plan)* made = F(make_plan)(n);
  if (!made || n > LONGEST_KEPT || atomic_fetch_add(&F(kept_count), 1) >= MOST_KEPT) return *own = made;
  made->next = atomic_load(&F(kept));
  while (!atomic_compare_exchange_weak(&F(kept), &made->next, made)) {}
  return made;
}

/* ---- lines: the last dimension first (or last, for IRFFT), then the others in place in `out` */
typedef struct {
  const F(plan)* plan;
  int kind; /* of this dimension */
  long n, half, outer_step, step, inner; /* lines start at outer * outer_step + inner, points `step` apart */
  const void* in;
  void* out;
  int failed;
} F(lines);

static void F(run_line)(const F(lines)* w, long line, POINT* data, POINT* spare) {
  long at = line / w->inner * w->outer_step + line % w->inner;
  const POINT* in = (const POINT*)w->in;
  POINT* out = (POINT*)w->out;
  if (w->kind == HLOC_RFFT) {
    for (long j = 0; j < w->n; j++) data[j] = F(point)(((const REAL*)w->in)[line * w->n + j], 0);
  } else if (w->kind == HLOC_IRFFT) { /* the other half is the conjugate; the ends are real */
    const POINT* half = in + line * w->half;
    for (long j = 0; j < w->half; j++) data[j] = half[j];
    for (long j = w->half; j < w->n; j++) data[j] = half[w->n - j], data[j].im = -data[j].im;
    data[0].im = 0;
    if (w->n % 2 == 0) data[w->n / 2].im = 0;
  } else {
    for (long j = 0; j < w->n; j++) data[j] = in[at + j * w->step];
  }
  F(transform)(w->plan, w->kind == HLOC_IFFT || w->kind == HLOC_IRFFT, data, spare);
  if (w->kind == HLOC_RFFT) for (long j = 0; j < w->half; j++) out[line * w->half + j] = data[j];
  else if (w->kind == HLOC_IRFFT) for (long j = 0; j < w->n; j++) ((REAL*)w->out)[line * w->n + j] = data[j].re;
  else for (long j = 0; j < w->n; j++) out[at + j * w->step] = data[j];
}
static void F(run_lines)(void* const* args, long begin, long end) {
  F(lines)* w = (F(lines)*)args;
  POINT* data = hloc_scratch(0, (w->n + F(spare_points)(w->plan)) * sizeof *data);
  if (!data) {
    __atomic_store_n(&w->failed, 1, __ATOMIC_RELAXED);
    return;
  }
  for (long line = begin; line < end; line++) F(run_line)(w, line, data, data + w->n);
}

static int F(run_dimension)(int kind, const long* sizes, int rank, int d, long n, long batch, const void* in,
                            void* out) {
  F(lines) w = {.kind = kind, .n = n, .half = n / 2 + 1, .step = 1, .inner = 1, .in = in, .out = out};
  long lines = batch;
  for (int i = 0; i < rank; i++) lines *= i == d ? 1 : sizes[i];
  for (int i = d + 1; i < rank; i++) w.step *= sizes[i];
  w.inner = w.step, w.outer_step = w.step * sizes[d];
  F(plan)* own;
  w.plan = F(plan_of)(n, &own);
  if (!w.plan) return 1;
  hloc_parallel(F(run_lines), (void* const*)&w, lines, 4096 / (n + 1) + 1);
  F(free_plan)(own);
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
    POINT* middle = hloc_scratch(1, points * sizeof *middle);
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
