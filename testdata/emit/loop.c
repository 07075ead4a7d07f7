/* f1 = f32[128,24] fusion(x, b) */
/* c = f32[8,16,24] broadcast(b) */
/* a = f32[8,16,24] add(x, c) */
/* r = f32[128,24] reshape(a) */
void f1_0(void *const *buffers, long begin, long end) {
  const float *in0 = (const float *)buffers[0];
  const float *in1 = (const float *)buffers[1];
  float *out0 = (float *)buffers[2];
  (void)begin, (void)end;
  for (long i0 = 0; i0 < 128; i0++) {
    #pragma omp simd
    for (long i1 = 0; i1 < 24; i1++) {
      out0[i0 * 24 + i1] = in0[i0 * 24 + i1] + in1[i1];
    }
  }
}

/* f2 = f32[8,4,16,6] fusion(x) */
/* r = f32[8,16,4,6] reshape(x) */
/* t = f32[8,4,16,6] transpose(r) */
void f2_1(void *const *buffers, long begin, long end) {
  const float *in0 = (const float *)buffers[0];
  float *out0 = (float *)buffers[1];
  for (long i0 = begin; i0 < end; i0++) {
    const long p0 = i0 / 4;
    const long p1 = i0 % 4;
    for (long i1 = 0; i1 < 16; i1++) {
      #pragma omp simd
      for (long i2 = 0; i2 < 6; i2++) {
        out0[p0 * 384 + p1 * 96 + i1 * 6 + i2] = in0[p0 * 384 + i1 * 24 + p1 * 6 + i2];
      }
    }
  }
}

/* f3 = f32[8,16,24] fusion(f2) */
/* t = f32[8,16,4,6] transpose(x) */
/* r = f32[8,16,24] reshape(t) */
void f3_2(void *const *buffers, long begin, long end) {
  const float *in0 = (const float *)buffers[0];
  float *out0 = (float *)buffers[1];
  for (long i0 = begin; i0 < end; i0++) {
    for (long i1 = 0; i1 < 16; i1++) {
      for (long i2 = 0; i2 < 4; i2++) {
        #pragma omp simd
        for (long i3 = 0; i3 < 6; i3++) {
          out0[i0 * 384 + i1 * 24 + i2 * 6 + i3] = in0[i0 * 384 + i2 * 96 + i1 * 6 + i3];
        }
      }
    }
  }
}

/* f4 = f32[70,100] fusion(y) */
/* t = f32[70,100] transpose(x) */
/* e = f32[70,100] exponential(t) */
void f4_3(void *const *buffers, long begin, long end) {
  const float *in0 = (const float *)buffers[0];
  float *out0 = (float *)buffers[1];
  for (long i0 = begin; i0 < end; i0++) {
    const long p0 = i0 / 4;
    const long p1 = i0 % 4;
    float tile0[1024] __attribute__((aligned(64)));
    const long p2 = (32 < 100 - p1 * 32 ? 32 : 100 - p1 * 32);
    const long p4 = (32 < 70 - p0 * 32 ? 32 : 70 - p0 * 32);
    for (long i1 = 0; i1 < p2; i1++) {
      const long p3 = p1 * 32 + i1;
      for (long i2 = 0; i2 < p4; i2++) {
        const long p5 = p0 * 32 + i2;
        tile0[0 - p0 * 1024 - p1 * 32 + p5 * 32 + p3] = in0[p3 * 70 + p5];
      }
    }
    for (long i3 = 0; i3 < p4; i3++) {
      const long p6 = p0 * 32 + i3;
      #pragma omp simd
      for (long i4 = 0; i4 < p2; i4++) {
        const long p7 = p1 * 32 + i4;
        out0[p6 * 100 + p7] = hloc_exp_f32(tile0[0 - p0 * 1024 - p1 * 32 + p6 * 32 + p7]);
      }
    }
  }
}

/* f5 = (f32[100,70], f32[7000]) fusion(y) */
/* e = f32[100,70] negate(x) */
/* r = f32[7000] reshape(e) */
/* m = f32[7000] multiply(r, r) */
void f5_4(void *const *buffers, long begin, long end) {
  const float *in0 = (const float *)buffers[0];
  float *out0 = (float *)buffers[1];
  float *out1 = (float *)buffers[2];
  for (long i0 = begin; i0 < end; i0++) {
    const long p0 = (4096 < 7000 - i0 * 4096 ? 4096 : 7000 - i0 * 4096);
    #pragma omp simd
    for (long i1 = 0; i1 < p0; i1++) {
      const long p1 = i0 * 4096 + i1;
      const float t0 = -in0[p1];
      const float t1 = t0 * t0;
      out0[p1] = t0;
      out1[p1] = t1;
    }
  }
}

/* f6 = f32[10,21] fusion(z) */
/* r = f32[14,15] reshape(x) */
/* t = f32[15,14] transpose(r) */
/* q = f32[10,21] reshape(t) */
void f6_5(void *const *buffers, long begin, long end) {
  const float *in0 = (const float *)buffers[0];
  float *out0 = (float *)buffers[1];
  (void)begin, (void)end;
  float tile0[210] __attribute__((aligned(64)));
  for (long i0 = 0; i0 < 14; i0++) {
    for (long i1 = 0; i1 < 15; i1++) {
      tile0[i1 * 14 + i0] = in0[i0 * 15 + i1];
    }
  }
  for (long i2 = 0; i2 < 15; i2++) {
    #pragma omp simd
    for (long i3 = 0; i3 < 14; i3++) {
      out0[i2 * 14 + i3] = tile0[i2 * 14 + i3];
    }
  }
}

/* n = f32[9000] negate(big) */
void n_6(void *const *buffers, long begin, long end) {
  const float *in0 = (const float *)buffers[0];
  float *out0 = (float *)buffers[1];
  for (long i0 = begin; i0 < end; i0++) {
    const long p0 = (4096 < 9000 - i0 * 4096 ? 4096 : 9000 - i0 * 4096);
    #pragma omp simd
    for (long i1 = 0; i1 < p0; i1++) {
      const long p1 = i0 * 4096 + i1;
      out0[p1] = -in0[p1];
    }
  }
}
