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
  const float t0 = in1[0];
  for (long i0 = begin; i0 < end; i0++) {
    const long p0 = (512 < 2100 - i0 * 512 ? 512 : 2100 - i0 * 512);
    for (long i1 = 0; i1 < p0; i1++) {
      const long p1 = i0 * 512 + i1;
      float v0 = 0.0f;
      for (long i2 = 0; i2 < 12; i2++) {
        v0 = v0 + in0[i2 * 2100 + p1];
      }
      out0[p1] = t0 + v0;
    }
  }
}

/* middle = f32[12,300] reduce(x, m) */
void middle_2(void *const *buffers, long begin, long end) {
  const float *in0 = (const float *)buffers[0];
  float *out0 = (float *)buffers[1];
  for (long i0 = begin; i0 < end; i0++) {
    for (long i1 = 0; i1 < 300; i1++) {
      float v0 = -HLOC_INF_F32;
      for (long i2 = 0; i2 < 7; i2++) {
        v0 = hloc_maximum_f32(in0[i0 * 2100 + i2 * 300 + i1], v0);
      }
      out0[i0 * 300 + i1] = v0;
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
  const float t0 = in1[0];
  for (long i0 = begin; i0 < end; i0++) {
    const long p0 = (2048 < 25200 - i0 * 2048 ? 2048 : 25200 - i0 * 2048);
    for (long i1 = 0; i1 < p0; i1++) {
      const long p1 = i0 * 2048 + i1;
      float v0 = 0.0f;
      v0 = v0 + in0[p1];
      out0[p1] = t0 + v0;
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
    const long p0 = (512 < 2100 - i0 * 512 ? 512 : 2100 - i0 * 512);
    for (long i1 = 0; i1 < p0; i1++) {
      const long p1 = i0 * 512 + i1;
      float v0 = t0;
      for (long i2 = 0; i2 < 12; i2++) {
        v0 = v0 * 0.5f + in0[i2 * 2100 + p1];
      }
      out0[p1] = v0;
    }
  }
}
