/* f1 = f32[4,5] fusion(x, i, j) */
/* d = f32[4,5] dynamic-slice(x, i, j) */
/* n = f32[4,5] negate(d) */
void f1_0(void *const *buffers, long begin, long end) {
  const float *in0 = (const float *)buffers[0];
  const int *in1 = (const int *)buffers[1];
  const int *in2 = (const int *)buffers[2];
  float *out0 = (float *)buffers[3];
  (void)begin, (void)end;
  const int t0 = in1[0];
  const long p0 = (long)hloc_minimum_s32(hloc_maximum_s32(t0, 0), 6);
  const int t1 = in2[0];
  const long p1 = (long)hloc_minimum_s32(hloc_maximum_s32(t1, 0), 7);
  for (long i0 = 0; i0 < 4; i0++) {
    #pragma omp simd
    for (long i1 = 0; i1 < 5; i1++) {
      out0[i0 * 5 + i1] = -in0[i0 * 12 + p0 * 12 + i1 + p1];
    }
  }
}

/* f2 = f32[10,12] fusion(x, u, i) */
/* z = s32[] constant() */
/* e = f32[12] exponential(u) */
/* r = f32[1,12] reshape(e) */
/* d = f32[10,12] dynamic-update-slice(c, r, i, z) */
void f2_1(void *const *buffers, long begin, long end) {
  const float *in1 = (const float *)buffers[0];
  const int *in2 = (const int *)buffers[1];
  float *out0 = (float *)buffers[2];
  (void)begin, (void)end;
  const int t0 = in2[0];
  const long p0 = (long)hloc_minimum_s32(hloc_maximum_s32(t0, 0), 9);
  #pragma omp simd
  for (long i0 = 0; i0 < 12; i0++) {
    out0[p0 * 12 + i0] = hloc_exp_f32(in1[i0]);
  }
}

/* f3 = f32[10,12] fusion(x, v, i) */
/* z = s32[] constant() */
/* n = f32[10,12] negate(c) */
/* d = f32[10,12] dynamic-update-slice(n, u, i, z) */
/* a = f32[10,12] abs(d) */
void f3_2(void *const *buffers, long begin, long end) {
  const float *in0 = (const float *)buffers[0];
  const float *in1 = (const float *)buffers[1];
  const int *in2 = (const int *)buffers[2];
  float *out0 = (float *)buffers[3];
  (void)begin, (void)end;
  const int t0 = in2[0];
  const long p0 = (long)hloc_minimum_s32(hloc_maximum_s32(t0, 0), 7);
  for (long i0 = 0; i0 < 10; i0++) {
    #pragma omp simd
    for (long i1 = 0; i1 < 12; i1++) {
      float v0 = -in0[i0 * 12 + i1];
      if ((i0 - p0 >= 0) & (i0 - p0 < 3)) {
        v0 = in1[i0 * 12 - p0 * 12 + i1];
      }
      out0[i0 * 12 + i1] = hloc_abs_f32(v0);
    }
  }
}

/* d = f32[2,12] dynamic-slice(x, i, j) */
void d_3(void *const *buffers, long begin, long end) {
  const float *in0 = (const float *)buffers[0];
  const int *in1 = (const int *)buffers[1];
  float *out0 = (float *)buffers[2];
  (void)begin, (void)end;
  const int t0 = in1[0];
  const long p0 = (long)hloc_minimum_s32(hloc_maximum_s32(t0, 0), 8);
  #pragma omp simd
  for (long i0 = 0; i0 < 24; i0++) {
    out0[i0] = in0[p0 * 12 + i0];
  }
}

/* w = f32[10,12] dynamic-update-slice(x, v, i, j) */
void w_4(void *const *buffers, long begin, long end) {
  const float *in1 = (const float *)buffers[0];
  const int *in2 = (const int *)buffers[1];
  float *out0 = (float *)buffers[2];
  (void)begin, (void)end;
  const int t0 = in2[0];
  const long p0 = (long)hloc_minimum_s32(hloc_maximum_s32(t0, 0), 7);
  #pragma omp simd
  for (long i0 = 0; i0 < 36; i0++) {
    out0[p0 * 12 + i0] = in1[i0];
  }
}
