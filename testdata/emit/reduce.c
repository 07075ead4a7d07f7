/* rows = f32[12,7] reduce(x, z) */
void rows_0(void *const *buffers, long begin, long end) {
  const float *in0 = (const float *)buffers[0];
  float *out0 = (float *)buffers[1];
  for (long i0 = begin; i0 < end; i0++) {
    float v0 = 0.0f;
    #pragma omp simd reduction(+:v0)
    for (long i1 = 0; i1 < 300; i1++) {
      v0 = v0 + in0[i0 * 300 + i1];
    }
    out0[i0] = v0;
  }
}

/* columns = f32[7,300] reduce(x, i) */
void columns_1(void *const *buffers, long begin, long end) {
  const float *in0 = (const float *)buffers[0];
  const float *in1 = (const float *)buffers[1];
  float *out0 = (float *)buffers[2];
  const float t2 = in1[0];
  for (long i0 = begin; i0 < end; i0++) {
    float sum0[512] __attribute__((aligned(64)));
    const long p0 = (512 < 2100 - i0 * 512 ? 512 : 2100 - i0 * 512);
    #pragma omp simd
    for (long i1 = 0; i1 < p0; i1++) {
      const long p1 = i0 * 512 + i1;
      sum0[0 - i0 * 512 + p1] = 0.0f;
    }
    for (long i2 = 0; i2 < 12; i2++) {
      #pragma omp simd
      for (long i3 = 0; i3 < p0; i3++) {
        const long p2 = i0 * 512 + i3;
        const float t0 = sum0[0 - i0 * 512 + p2];
        sum0[0 - i0 * 512 + p2] = t0 + in0[i2 * 2100 + p2];
      }
    }
    #pragma omp simd
    for (long i4 = 0; i4 < p0; i4++) {
      const long p3 = i0 * 512 + i4;
      const float t1 = sum0[0 - i0 * 512 + p3];
      out0[p3] = t2 + t1;
    }
  }
}

/* middle = f32[12,300] reduce(x, m) */
void middle_2(void *const *buffers, long begin, long end) {
  const float *in0 = (const float *)buffers[0];
  float *out0 = (float *)buffers[1];
  for (long i0 = begin; i0 < end; i0++) {
    float sum0[300] __attribute__((aligned(64)));
    #pragma omp simd
    for (long i1 = 0; i1 < 300; i1++) {
      sum0[i1] = -HLOC_INF_F32;
    }
    for (long i2 = 0; i2 < 7; i2++) {
      #pragma omp simd
      for (long i3 = 0; i3 < 300; i3++) {
        const float t0 = sum0[i3];
        sum0[i3] = hloc_maximum_f32(in0[i0 * 2100 + i2 * 300 + i3], t0);
      }
    }
    #pragma omp simd
    for (long i4 = 0; i4 < 300; i4++) {
      const float t1 = sum0[i4];
      out0[i0 * 300 + i4] = t1;
    }
  }
}

/* ends = f32[7] reduce(x, i) */
void ends_3(void *const *buffers, long begin, long end) {
  const float *in0 = (const float *)buffers[0];
  const float *in1 = (const float *)buffers[1];
  float *out0 = (float *)buffers[2];
  const float t0 = in1[0];
  for (long i0 = begin; i0 < end; i0++) {
    float v0 = 0.0f;
    for (long i1 = 0; i1 < 12; i1++) {
      #pragma omp simd reduction(+:v0)
      for (long i2 = 0; i2 < 300; i2++) {
        v0 = v0 + in0[i1 * 2100 + i0 * 300 + i2];
      }
    }
    out0[i0] = t0 + v0;
  }
}

/* all = f32[] reduce(x, m) */
void all_4(void *const *buffers, long begin, long end) {
  const float *in0 = (const float *)buffers[0];
  float *out0 = (float *)buffers[1];
  (void)begin, (void)end;
#pragma omp declare reduction(hloc_maximum_f32 : float : omp_out = hloc_maximum_f32(omp_out, omp_in)) initializer(omp_priv = omp_orig)
  float v0 = -HLOC_INF_F32;
  #pragma omp simd reduction(hloc_maximum_f32:v0)
  for (long i0 = 0; i0 < 25200; i0++) {
    v0 = hloc_maximum_f32(in0[i0], v0);
  }
  out0[0] = v0;
}

/* none = f32[12,7,300] reduce(x, i) */
void none_5(void *const *buffers, long begin, long end) {
  const float *in0 = (const float *)buffers[0];
  const float *in1 = (const float *)buffers[1];
  float *out0 = (float *)buffers[2];
  const float t2 = in1[0];
  for (long i0 = begin; i0 < end; i0++) {
    float sum0[2048] __attribute__((aligned(64)));
    const long p0 = (2048 < 25200 - i0 * 2048 ? 2048 : 25200 - i0 * 2048);
    #pragma omp simd
    for (long i1 = 0; i1 < p0; i1++) {
      const long p1 = i0 * 2048 + i1;
      sum0[0 - i0 * 2048 + p1] = 0.0f;
    }
    #pragma omp simd
    for (long i2 = 0; i2 < p0; i2++) {
      const long p2 = i0 * 2048 + i2;
      const float t0 = sum0[0 - i0 * 2048 + p2];
      sum0[0 - i0 * 2048 + p2] = t0 + in0[p2];
    }
    #pragma omp simd
    for (long i3 = 0; i3 < p0; i3++) {
      const long p3 = i0 * 2048 + i3;
      const float t1 = sum0[0 - i0 * 2048 + p3];
      out0[p3] = t2 + t1;
    }
  }
}

/* chain = f32[7,300] reduce(x, i) */
void chain_6(void *const *buffers, long begin, long end) {
  const float *in0 = (const float *)buffers[0];
  const float *in1 = (const float *)buffers[1];
  float *out0 = (float *)buffers[2];
  const float t0 = in1[0];
  for (long i0 = begin; i0 < end; i0++) {
    float sum0[512] __attribute__((aligned(64)));
    const long p0 = (512 < 2100 - i0 * 512 ? 512 : 2100 - i0 * 512);
    #pragma omp simd
    for (long i1 = 0; i1 < p0; i1++) {
      const long p1 = i0 * 512 + i1;
      sum0[0 - i0 * 512 + p1] = t0;
    }
    for (long i2 = 0; i2 < 12; i2++) {
      #pragma omp simd
      for (long i3 = 0; i3 < p0; i3++) {
        const long p2 = i0 * 512 + i3;
        const float t1 = sum0[0 - i0 * 512 + p2];
        sum0[0 - i0 * 512 + p2] = t1 * 0.5f + in0[i2 * 2100 + p2];
      }
    }
    #pragma omp simd
    for (long i4 = 0; i4 < p0; i4++) {
      const long p3 = i0 * 512 + i4;
      const float t2 = sum0[0 - i0 * 512 + p3];
      out0[p3] = t2;
    }
  }
}
