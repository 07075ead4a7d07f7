/* fft.h: HLO's fft over the last one to three dimensions of contiguous row-major arrays, any lengths.
 *
 * int hloc_fft_f32(int kind, int rank, const long* lengths, long batch, const void* in, void* out)   c64 and f32
 * int hloc_fft_f64(...)                                                                              c128 and f64
 *   kind: HLOC_FFT complex to complex, HLOC_IFFT its inverse (divided by the number of points),
 *         HLOC_RFFT real to the first lengths[rank - 1] / 2 + 1 complex, HLOC_IRFFT back
 *   lengths: HLO's fft_length, outermost first: the size of the transform, of the real side for RFFT and IRFFT
 * Returns 0 when done, 1 when memory is exhausted. `in` and `out` must not overlap.
 *
 * Mixed radix (4, 2, 3, 5 and other small primes) by Stockham's algorithm, large primes by Bluestein's. Real lines of
 * even length are transformed as complex ones of half the length; of odd length, without the redundant half. Lines are
 * transformed in parallel, as many at a time as a vector has lanes; a few long ones as the columns and then the rows of
 * a matrix of their points, many at a time.
 * Example: lengths {8}, batch 2: two transforms of eight points.
 */
#ifndef HLOC_FFT_H
#define HLOC_FFT_H
enum { HLOC_FFT, HLOC_IFFT, HLOC_RFFT, HLOC_IRFFT };
int hloc_fft_f32(int kind, int rank, const long* lengths, long batch, const void* in, void* out);
int hloc_fft_f64(int kind, int rank, const long* lengths, long batch, const void* in, void* out);
#endif
