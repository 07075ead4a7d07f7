/* fft_steps.h: the transform of one line, or of several lines in the lanes of vectors (template; fft_lines.h includes
 * it for both).
 *
 * In (macros): S(name) the instance's prefix; R the type of a real number: REAL, or a vector with a lane for each line;
 * F, REAL, POINT and F(plan) of fft_lines.h.
 * Out: S(point) {R re, im}; S(transform)(plan, inverse, data, spare) in place; S(halves_to_line), S(line_to_halves)
 * between the spectrum of a real line and that of its points taken as complex numbers, two by two;
 * S(real_spectrum), S(mirror) for real lines of odd length; S(turn_rows).
 */

typedef struct { R re, im; } S(point);

static inline S(point) S(times)(S(point) a, POINT w) {
  S(point) z;
  z.re = a.re * w.re - a.im * w.im, z.im = a.re * w.im + a.im * w.re;
  return z;
}
static inline S(point) S(plus)(S(point) a, S(point) b) { a.re += b.re, a.im += b.im; return a; }
static inline S(point) S(minus)(S(point) a, S(point) b) { a.re -= b.re, a.im -= b.im; return a; }
static inline S(point) S(times_minus_i)(S(point) a) { S(point) z; z.re = a.im, z.im = -a.re; return z; }
static inline S(point) S(times_i)(S(point) a) { S(point) z; z.re = -a.im, z.im = a.re; return z; }
static inline S(point) S(conjugate)(S(point) a) { a.im = -a.im; return a; }
static inline S(point) S(scaled)(S(point) a, REAL by) { a.re *= by, a.im *= by; return a; }

/* One Stockham step of radix r: `length` points remain to be transformed, `stride` transforms are interleaved. The
 * twiddle factors of point j are p->roots[j * turn], of j / length turns, and its powers. */
static void S(step4)(const F(plan)* p, long length, long stride, const S(point)* x, S(point)* y) {
  const long m = length / 4, turn = p->of->n / length;
  for (long j = 0; j < m; j++) {
    POINT w1 = p->roots[j * turn], w2 = p->roots[2 * j * turn], w3 = p->roots[3 * j * turn];
    const S(point)* from = x + stride * j;
    S(point)* to = y + stride * 4 * j;
    for (long q = 0; q < stride; q++) {
      S(point) a = from[q], b = from[q + stride * m], c = from[q + 2 * stride * m], d = from[q + 3 * stride * m];
      S(point) ac = S(plus)(a, c), bd = S(plus)(b, d), a_c = S(minus)(a, c), b_d = S(times_minus_i)(S(minus)(b, d));
      to[q] = S(plus)(ac, bd);
      to[q + stride] = S(times)(S(plus)(a_c, b_d), w1);
      to[q + 2 * stride] = S(times)(S(minus)(ac, bd), w2);
      to[q + 3 * stride] = S(times)(S(minus)(a_c, b_d), w3);
    }
  }
}
static void S(step2)(const F(plan)* p, long length, long stride, const S(point)* x, S(point)* y) {
  const long m = length / 2, turn = p->of->n / length;
  for (long j = 0; j < m; j++) {
    POINT w = p->roots[j * turn];
    for (long q = 0; q < stride; q++) {
      S(point) a = x[q + stride * j], b = x[q + stride * (j + m)];
      y[q + stride * 2 * j] = S(plus)(a, b);
      y[q + stride * (2 * j + 1)] = S(times)(S(minus)(a, b), w);
    }
  }
}
/* Any odd prime r: points k and r - k have the same cosine, and opposite sines. Inlined for the r that are known. */
HLOC_INLINE void S(step_odd)(const F(plan)* p, const int r, long length, long stride, const S(point)* x, S(point)* y) {
  const int half = r / 2;
  const long m = length / r, step = p->of->n / length;
  /* exp(-2 pi i k / r); the twiddle factor of result k */
  POINT unit[HLOC_FFT_LARGEST_FACTOR], root[HLOC_FFT_LARGEST_FACTOR];
  S(point) sum[HLOC_FFT_LARGEST_FACTOR / 2], difference[HLOC_FFT_LARGEST_FACTOR / 2];
  for (int k = 0; k < r; k++) unit[k] = p->roots[k * (p->of->n / r)];
  for (long j = 0; j < m; j++) {
    for (int k = 0; k < r; k++) root[k] = p->roots[j * k * step];
    for (long q = 0; q < stride; q++) {
      S(point) first = x[q + stride * j], total = first;
      for (int k = 0; k < half; k++) {
        S(point) a = x[q + stride * (j + m * (k + 1))], b = x[q + stride * (j + m * (r - 1 - k))];
        sum[k] = S(plus)(a, b), difference[k] = S(times_i)(S(minus)(a, b));
        total = S(plus)(total, sum[k]);
      }
      y[q + stride * r * j] = total;
      for (int t = 1; t <= half; t++) {
        S(point) even = first, odd = S(scaled)(difference[0], unit[t].im);
        for (int k = 0, turn = t; k < half; k++, turn += turn + t < r ? t : t - r) {
          even = S(plus)(even, S(scaled)(sum[k], unit[turn].re));
          if (k) odd = S(plus)(odd, S(scaled)(difference[k], unit[turn].im));
        }
        y[q + stride * (r * j + t)] = S(times)(S(plus)(even, odd), root[t]);
        y[q + stride * (r * j + r - t)] = S(times)(S(minus)(even, odd), root[r - t]);
      }
    }
  }
}

/* All steps except the `done` ones of the last factors, alternating between x and y. Returns the results' array. */
static S(point)* S(steps)(const F(plan)* p, int done, long length, long stride, S(point)* x, S(point)* y) {
  for (int f = 0; f < p->of->factor_count - done; f++) {
    int r = p->of->factors[f];
    if (r == 4) S(step4)(p, length, stride, x, y);
    else if (r == 2) S(step2)(p, length, stride, x, y);
    else if (r == 3) S(step_odd)(p, 3, length, stride, x, y);
    else if (r == 5) S(step_odd)(p, 5, length, stride, x, y);
    else S(step_odd)(p, r, length, stride, x, y);
    length /= r, stride *= r;
    S(point)* t = x;
    x = y, y = t;
  }
  return x;
}
static void S(stockham)(const F(plan)* p, S(point)* data, S(point)* spare) {
  const S(point)* made = S(steps)(p, 0, p->of->n, 1, data, spare);
  if (made != data) memcpy(data, made, p->of->n * sizeof *data);
}

/* The first step of a line of real numbers, of odd radix r: result r - t is the conjugate of result t, and omitted. */
static void S(step_real)(const F(plan)* p, int r, const R* x, S(point)* y) {
  const long m = p->of->n / r, half = r / 2;
  R sum[HLOC_FFT_LARGEST_FACTOR / 2], difference[HLOC_FFT_LARGEST_FACTOR / 2], zero;
  memset(&zero, 0, sizeof zero);
  for (long j = 0; j < m; j++, y += half + 1) {
    y[0].re = x[j], y[0].im = zero;
    for (long k = 0; k < half; k++) {
      R a = x[j + m * (k + 1)], b = x[j + m * (r - 1 - k)];
      sum[k] = a + b, difference[k] = a - b;
      y[0].re += sum[k];
    }
    for (int t = 1; t <= half; t++) {
      S(point) made = {x[j], zero};
      for (int k = 0, turn = t; k < half; k++, turn += turn + t < r ? t : t - r) {
        POINT unit = p->roots[turn * m];
        made.re += sum[k] * unit.re, made.im += difference[k] * unit.im;
      }
      y[t] = S(times)(made, p->roots[j * t]);
    }
  }
}
/* data: n real numbers, n odd and not 1  ->  the first half of their spectrum: from the computed results of the first
 * step; the others are mirrored. */
static void S(real_spectrum)(const F(plan)* p, S(point)* data, S(point)* spare) {
  const int r = p->of->factors[p->of->factor_count - 1];
  const long m = p->of->n / r, kept = r / 2 + 1;
  S(step_real)(p, r, (const R*)data, spare);
  S(point)*made = S(steps)(p, 1, m, kept, spare, data), *to = made == data ? spare : data;
  for (long k = 0, j = 0, t = 0; 2 * k < p->of->n; k++) { /* k = r * j + t */
    to[k] = t < kept ? made[t + kept * j] : S(conjugate)(made[r - t + kept * (m - 1 - j)]);
    if (++t == r) t = 0, j++;
  }
  if (to != data) memcpy(data, to, (p->of->n / 2 + 1) * sizeof *data);
}
/* The forward transform in place, by Bluestein's algorithm; spare: as many points as plans/fft.py says. */
static void S(forward_by_chirp)(const F(plan)* p, S(point)* data, S(point)* spare) {
  const long n = p->of->n, m = p->of->wide->n;
  S(point)* wide = spare;
  for (long j = 0; j < n; j++) wide[j] = S(times)(data[j], p->chirp[j]);
  memset(wide + n, 0, (m - n) * sizeof *wide);
  S(stockham)(p->wide, wide, spare + m);
  for (long j = 0; j < m; j++) /* conjugated: the inverse transform is a forward one of the conjugate */
    wide[j] = S(conjugate)(S(times)(wide[j], p->chirp_transform[j]));
  S(stockham)(p->wide, wide, spare + m);
  const REAL scale = (REAL)(1.0 / (double)m);
  for (long j = 0; j < n; j++) data[j] = S(times)(S(conjugate)(S(scaled)(wide[j], scale)), p->chirp[j]);
}

/* The other half of the spectrum of a real line of odd length. */
static void S(mirror)(S(point)* data, long n) {
  memset(&data[0].im, 0, sizeof data[0].im);
  for (long j = n / 2 + 1; j < n; j++) data[j] = S(conjugate)(data[n - j]);
}
/* In place; spare: as many points as plans/fft.py says. */
static void S(transform)(const F(plan)* p, int inverse, S(point)* data, S(point)* spare) {
  if (inverse) for (long j = 0; j < p->of->n; j++) data[j] = S(conjugate)(data[j]);
  if (p->wide) S(forward_by_chirp)(p, data, spare);
  else S(stockham)(p, data, spare);
  const REAL scale = (REAL)1 / (REAL)p->of->n;
  if (inverse) for (long j = 0; j < p->of->n; j++) data[j] = S(conjugate)(S(scaled)(data[j], scale));
}

/* data[k] times table[2 k columns] + i table[(2 k + 1) columns], and the following elements for the other lanes. */
static void S(turn_rows)(S(point)* data, long n, const REAL* table, long columns, int inverse) {
  for (long k = 0; k < n; k++, table += 2 * columns) {
    S(point) a = data[k], w;
    memcpy(&w.re, table, sizeof w.re), memcpy(&w.im, table + columns, sizeof w.im);
    if (inverse) w.im = -w.im;
    data[k].re = a.re * w.re - a.im * w.im, data[k].im = a.re * w.im + a.im * w.re;
  }
}

/* data: the spectrum of n points x[2 j] + i x[2 j + 1]  ->  n + 1 points of the spectrum of x. */
static void S(halves_to_line)(const F(plan)* p, S(point)* data) {
  const long n = p->of->n;
  S(point) first = data[0];
  data[0].re = first.re + first.im, data[n].re = first.re - first.im;
  memset(&data[0].im, 0, sizeof data[0].im), memset(&data[n].im, 0, sizeof data[n].im);
  for (long k = 1; 2 * k <= n; k++) {
    S(point) a = data[k], b = S(conjugate)(data[n - k]);
    S(point) even = S(scaled)(S(plus)(a, b), (REAL)0.5), odd = S(scaled)(S(minus)(a, b), (REAL)0.5);
    S(point) transposed = S(times)(S(times_minus_i)(odd), p->turns[k]);
    data[k] = S(plus)(even, transposed);
    data[n - k] = S(conjugate)(S(minus)(even, transposed));
  }
}
/* The inverse, in place or to other memory. The imaginary parts of the first and last points are ignored. */
static void S(line_to_halves)(const F(plan)* p, const S(point)* from, S(point)* data) {
  const long n = p->of->n;
  S(point) first = from[0], last = from[n];
  data[0].re = (first.re + last.re) * (REAL)0.5, data[0].im = (first.re - last.re) * (REAL)0.5;
  for (long k = 1; 2 * k <= n; k++) {
    S(point) a = from[k], b = S(conjugate)(from[n - k]);
    POINT back = p->turns[k];
    back.im = -back.im;
    S(point) even = S(scaled)(S(plus)(a, b), (REAL)0.5);
    S(point) odd = S(times_i)(S(times)(S(scaled)(S(minus)(a, b), (REAL)0.5), back));
    data[k] = S(plus)(even, odd);
    data[n - k] = S(conjugate)(S(minus)(even, odd));
  }
}
