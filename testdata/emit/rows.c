/* f1 = f32[5,6,70] fusion(x) */
/* k = f32[] constant() */
/* kb = f32[5,6,70] broadcast(k) */
/* sx = f32[5,6,70] multiply(x, kb) */
/* low = f32[] constant() */
/* m = f32[5,6] reduce(sx, low) */
/* mb = f32[5,6,70] broadcast(m) */
/* d = f32[5,6,70] subtract(sx, mb) */
/* e = f32[5,6,70] exponential(d) */
/* z = f32[] constant() */
/* s = f32[5,6] reduce(e, z) */
/* sb = f32[5,6,70] broadcast(s) */
/* r = f32[5,6,70] divide(e, sb) */
void f1_0(void *const *buffers, long begin, long end) {
  const float *in0 = (const float *)buffers[0];
  float *out0 = (float *)buffers[1];
  (void)begin, (void)end;
#pragma omp declare reduction(hloc_maximum_f32 : float : omp_out = hloc_maximum_f32(omp_out, omp_in)) initializer(omp_priv = omp_orig)
  for (long i0 = 0; i0 < 30; i0++) {
    float row0[70] __attribute__((aligned(64)));
    float v0 = -HLOC_INF_F32;
    #pragma omp simd reduction(hloc_maximum_f32:v0)
    for (long i1 = 0; i1 < 70; i1++) {
      const float t0 = in0[i0 * 70 + i1] * 0.125f;
      v0 = hloc_maximum_f32(v0, t0);
    }
    float v1 = 0.0f;
    #pragma omp simd reduction(+:v1)
    for (long i2 = 0; i2 < 70; i2++) {
      const float t1 = in0[i0 * 70 + i2] * 0.125f;
      const float t2 = hloc_exp_f32(t1 - v0);
      row0[i2] = t2;
      v1 = v1 + t2;
    }
    #pragma omp simd
    for (long i3 = 0; i3 < 70; i3++) {
      const float t3 = row0[i3];
      out0[i0 * 70 + i3] = t3 / v1;
    }
  }
}

/* f2 = (bf16[40,8,12], f32[40], f32[40]) fusion(h, g) */
/* w = f32[40,96] convert(x) */
/* z = f32[] constant() */
/* s = f32[40] reduce(w, z) */
/* n = f32[] constant() */
/* nb = f32[40] broadcast(n) */
/* mean = f32[40] multiply(s, nb) */
/* mb = f32[40,96] broadcast(mean) */
/* c = f32[40,96] subtract(w, mb) */
/* q = f32[40,96] multiply(c, c) */
/* v = f32[40] reduce(q, z) */
/* vm = f32[40] multiply(v, nb) */
/* rs = f32[40] rsqrt(vm) */
/* rb = f32[40,96] broadcast(rs) */
/* y = f32[40,96] multiply(c, rb) */
/* yb = bf16[40,96] convert(y) */
/* gb = bf16[40,96] broadcast(g) */
/* o = bf16[40,96] multiply(yb, gb) */
/* shaped = bf16[40,8,12] reshape(o) */
void f2_1(void *const *buffers, long begin, long end) {
  const hloc_bf16 *in0 = (const hloc_bf16 *)buffers[0];
  const hloc_bf16 *in1 = (const hloc_bf16 *)buffers[1];
  hloc_bf16 *out0 = (hloc_bf16 *)buffers[2];
  float *out1 = (float *)buffers[3];
  float *out2 = (float *)buffers[4];
  (void)begin, (void)end;
  for (long i0 = 0; i0 < 40; i0++) {
    float v0 = 0.0f;
    #pragma omp simd reduction(+:v0)
    for (long i1 = 0; i1 < 96; i1++) {
      const float t0 = hloc_bf16_to_f32(in0[i0 * 96 + i1]);
      v0 = v0 + t0;
    }
    float v1 = 0.0f;
    const float t2 = v0 * 0.010416667f;
    #pragma omp simd reduction(+:v1)
    for (long i2 = 0; i2 < 96; i2++) {
      const float t1 = hloc_bf16_to_f32(in0[i0 * 96 + i2]);
      const float t3 = t1 - t2;
      v1 = v1 + t3 * t3;
    }
    const float t6 = v1 * 0.010416667f;
    const float t7 = hloc_rsqrt_f32(t6);
    #pragma omp simd
    for (long i3 = 0; i3 < 96; i3++) {
      const float t4 = hloc_bf16_to_f32(in0[i0 * 96 + i3]);
      const float t5 = t4 - t2;
      out0[i0 * 96 + i3] = hloc_f32_to_bf16(hloc_round_bf16_f32(t5 * t7) * hloc_bf16_to_f32(in1[i3]));
    }
    out1[i0] = t2;
    out2[i0] = t7;
  }
}

/* f3 = f32[4,3,10,10] fusion(a, b) */
/* bb = f32[4,3,10,10] broadcast(b) */
/* a = f32[4,3,10,10] add(x, bb) */
/* low = f32[] constant() */
/* m = f32[4,3,10] reduce(a, low) */
/* mb = f32[4,3,10,10] broadcast(m) */
/* d = f32[4,3,10,10] subtract(a, mb) */
/* e = f32[4,3,10,10] exponential(d) */
/* z = f32[] constant() */
/* s = f32[4,3,10] reduce(e, z) */
/* l = f32[4,3,10] log(s) */
/* lb = f32[4,3,10,10] broadcast(l) */
/* r = f32[4,3,10,10] subtract(d, lb) */
void f3_2(void *const *buffers, long begin, long end) {
  const float *in0 = (const float *)buffers[0];
  const float *in1 = (const float *)buffers[1];
  float *out0 = (float *)buffers[2];
#pragma omp declare reduction(hloc_maximum_f32 : float : omp_out = hloc_maximum_f32(omp_out, omp_in)) initializer(omp_priv = omp_orig)
  for (long i0 = begin; i0 < end; i0++) {
    for (long i1 = 0; i1 < 2; i1++) {
      for (long i2 = 0; i2 < 12; i2++) {
        float v0 = -HLOC_INF_F32;
        #pragma omp simd reduction(hloc_maximum_f32:v0)
        for (long i3 = 0; i3 < 10; i3++) {
          const float t0 = in0[i2 * 100 + i0 * 20 + i1 * 10 + i3] + in1[i0 * 20 + i1 * 10 + i3];
          v0 = hloc_maximum_f32(v0, t0);
        }
        float v1 = 0.0f;
        #pragma omp simd reduction(+:v1)
        for (long i4 = 0; i4 < 10; i4++) {
          const float t1 = in0[i2 * 100 + i0 * 20 + i1 * 10 + i4] + in1[i0 * 20 + i1 * 10 + i4];
          const float t2 = t1 - v0;
          v1 = v1 + hloc_exp_f32(t2);
        }
        const float t5 = hloc_log_f32(v1);
        #pragma omp simd
        for (long i5 = 0; i5 < 10; i5++) {
          const float t3 = in0[i2 * 100 + i0 * 20 + i1 * 10 + i5] + in1[i0 * 20 + i1 * 10 + i5];
          const float t4 = t3 - v0;
          out0[i2 * 100 + i0 * 20 + i1 * 10 + i5] = t4 - t5;
        }
      }
    }
  }
}

/* f4 = f32[1,500] fusion(o) */
/* low = f32[] constant() */
/* m = f32[1] reduce(x, low) */
/* ms = f32[] reshape(m) */
/* mb = f32[1,500] broadcast(ms) */
/* d = f32[1,500] subtract(x, mb) */
/* e = f32[1,500] exponential(d) */
/* z = f32[] constant() */
/* s = f32[1] reduce(e, z) */
/* sb = f32[1,500] broadcast(s) */
/* r = f32[1,500] divide(e, sb) */
void f4_3(void *const *buffers, long begin, long end) {
  const float *in0 = (const float *)buffers[0];
  float *out0 = (float *)buffers[1];
  (void)begin, (void)end;
#pragma omp declare reduction(hloc_maximum_f32 : float : omp_out = hloc_maximum_f32(omp_out, omp_in)) initializer(omp_priv = omp_orig)
  float row0[500] __attribute__((aligned(64)));
  float v0 = -HLOC_INF_F32;
  #pragma omp simd reduction(hloc_maximum_f32:v0)
  for (long i0 = 0; i0 < 500; i0++) {
    const float t0 = in0[i0];
    v0 = hloc_maximum_f32(v0, t0);
  }
  float v1 = 0.0f;
  #pragma omp simd reduction(+:v1)
  for (long i1 = 0; i1 < 500; i1++) {
    const float t1 = in0[i1];
    const float t2 = hloc_exp_f32(t1 - v0);
    row0[i1] = t2;
    v1 = v1 + t2;
  }
  #pragma omp simd
  for (long i2 = 0; i2 < 500; i2++) {
    const float t3 = row0[i2];
    out0[i2] = t3 / v1;
  }
}
