/* fft.cuh: one stage of a discrete Fourier transform of any length, as Stockham orders it.
 *
 * In: N = length; M = product of the radices of the stages before; P = radix of this one; R = float or double;
 *     SIGN = -1 forward, +1 backward; read(i) gives element i of what the stage before left.
 * Out: hloc_fft_element: element n of what this stage leaves: the sum over r < P of
 *          read(n / (M P) * M + n % M + r * N / P) * exp(SIGN * 2 pi i * r * (n % (M P)) / (M P))
 * After the last stage (M P = N) that is the transform. A prime length is one stage of N terms per element.
 */
#ifndef HLOC_FFT_CUH
#define HLOC_FFT_CUH

HLOC_FN void hloc_fft_turn(float halves, float &sine, float &cosine) { sincospif(halves, &sine, &cosine); }
HLOC_FN void hloc_fft_turn(double halves, double &sine, double &cosine) { sincospi(halves, &sine, &cosine); }

template <class C, class R, long N, long M, long P, int SIGN, class Read>
HLOC_FN C hloc_fft_element(Read read, long n) {
  const long step = n % (M * P), first = n / (M * P) * M + n % M;
  C sum = read(first);
#pragma unroll 4
  for (long r = 1; r < P; r++) {
    const long turn = r * step % (M * P); /* of M P a full turn */
    const long near = 2 * turn > M * P ? turn - M * P : turn;
    R sine, cosine;
    hloc_fft_turn((R)(SIGN * 2 * near) / (R)(M * P), sine, cosine);
    const C x = read(first + r * (N / P));
    sum.re += x.re * cosine - x.im * sine;
    sum.im += x.re * sine + x.im * cosine;
  }
  return sum;
}

#endif
