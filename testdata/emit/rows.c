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
#pragma omp declare reduction(hloc_maximum_f32 : float : omp_out = hloc_maximum_f32(omp_out, omp_in)) initializer(omp_priv = omp_orig)
  for (long i0 = begin; i0 < end; i0++) {
    float row0[1050] __attribute__((aligned(64)));
    float sum0[15] __attribute__((aligned(64)));
    for (long i1 = 0; i1 < 15; i1++) {
      float v0 = -HLOC_INF_F32;
      #pragma omp simd reduction(hloc_maximum_f32:v0)
      for (long i2 = 0; i2 < 70; i2++) {
        const float t0 = in0[i0 * 1050 + i1 * 70 + i2] * 0.125f;
        v0 = hloc_maximum_f32(v0, t0);
      }
      sum0[i1] = v0;
    }
    float sum1[15] __attribute__((aligned(64)));
    for (long i3 = 0; i3 < 15; i3++) {
      float v1 = 0.0f;
      const float t2 = sum0[i3];
      #pragma omp simd reduction(+:v1)
      for (long i4 = 0; i4 < 70; i4++) {
        const float t1 = in0[i0 * 1050 + i3 * 70 + i4] * 0.125f;
        const float t3 = hloc_exp_f32(t1 - t2);
        v1 = v1 + t3;
        row0[i3 * 70 + i4] = t3;
      }
      sum1[i3] = v1;
    }
    for (long i5 = 0; i5 < 15; i5++) {
      const float t5 = sum1[i5];
      #pragma omp simd
      for (long i6 = 0; i6 < 70; i6++) {
        const float t4 = row0[i5 * 70 + i6];
        out0[i0 * 1050 + i5 * 70 + i6] = t4 / t5;
      }
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
  for (long i0 = begin; i0 < end; i0++) {
    float row0[960] __attribute__((aligned(64)));
    float sum0[10] __attribute__((aligned(64)));
    for (long i1 = 0; i1 < 10; i1++) {
      float v0 = 0.0f;
      #pragma omp simd reduction(+:v0)
      for (long i2 = 0; i2 < 96; i2++) {
        const float t0 = hloc_bf16_to_f32(in0[i0 * 960 + i1 * 96 + i2]);
        v0 = v0 + t0;
        row0[i1 * 96 + i2] = hloc_bf16_to_f32(in0[i0 * 960 + i1 * 96 + i2]);
      }
      sum0[i1] = v0;
    }
    float each0[10] __attribute__((aligned(64)));
    #pragma omp simd
    for (long i3 = 0; i3 < 10; i3++) {
      const float t1 = sum0[i3] * 0.010416667f;
      each0[i3] = t1;
    }
    float sum1[10] __attribute__((aligned(64)));
    for (long i4 = 0; i4 < 10; i4++) {
      float v1 = 0.0f;
      const float t3 = each0[i4];
      #pragma omp simd reduction(+:v1)
      for (long i5 = 0; i5 < 96; i5++) {
        const float t2 = row0[i4 * 96 + i5];
        const float t4 = t2 - t3;
        v1 = v1 + t4 * t4;
      }
      sum1[i4] = v1;
    }
    float each1[10] __attribute__((aligned(64)));
    #pragma omp simd
    for (long i6 = 0; i6 < 10; i6++) {
      const float t5 = hloc_rsqrt_f32(sum1[i6] * 0.010416667f);
      each1[i6] = t5;
    }
    for (long i7 = 0; i7 < 10; i7++) {
      const float t7 = each0[i7];
      const float t9 = each1[i7];
      #pragma omp simd
      for (long i8 = 0; i8 < 96; i8++) {
        const float t6 = row0[i7 * 96 + i8];
        const float t8 = t6 - t7;
        out0[i0 * 960 + i7 * 96 + i8] = hloc_f32_to_bf16(hloc_round_bf16_f32(t8 * t9) * hloc_bf16_to_f32(in1[i8]));
      }
    }
    #pragma omp simd
    for (long i9 = 0; i9 < 10; i9++) {
      const float t10 = each0[i9];
      const float t11 = each1[i9];
      out1[i0 * 10 + i9] = t10;
      out2[i0 * 10 + i9] = t11;
    }
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
  (void)begin, (void)end;
  float transposed0[1280] __attribute__((aligned(64)));
  const long p0 = (128 < 120 ? 128 : 120);
  for (long i0 = 0; i0 < p0; i0++) {
    transposed0[i0] = in0[i0 * 10];
    transposed0[i0 + 128] = in0[i0 * 10 + 1];
    transposed0[i0 + 256] = in0[i0 * 10 + 2];
    transposed0[i0 + 384] = in0[i0 * 10 + 3];
    transposed0[i0 + 512] = in0[i0 * 10 + 4];
    transposed0[i0 + 640] = in0[i0 * 10 + 5];
    transposed0[i0 + 768] = in0[i0 * 10 + 6];
    transposed0[i0 + 896] = in0[i0 * 10 + 7];
    transposed0[i0 + 1024] = in0[i0 * 10 + 8];
    transposed0[i0 + 1152] = in0[i0 * 10 + 9];
  }
  float transposed1[1280] __attribute__((aligned(64)));
  float sum0[128] __attribute__((aligned(64)));
  #pragma omp simd
  for (long i1 = 0; i1 < p0; i1++) {
    sum0[i1] = -HLOC_INF_F32;
  }
  for (long i2 = 0; i2 < 10; i2++) {
    #pragma omp simd
    for (long i3 = 0; i3 < p0; i3++) {
      const long p1 = i3 % 10;
      const float t0 = transposed0[i2 * 128 + i3] + in1[p1 * 10 + i2];
      const float t1 = sum0[i3];
      sum0[i3] = hloc_maximum_f32(t1, t0);
    }
  }
  #pragma omp simd
  for (long i4 = 0; i4 < p0; i4++) {
    const float t2 = sum0[i4];
    sum0[i4] = t2;
  }
  float sum1[128] __attribute__((aligned(64)));
  #pragma omp simd
  for (long i5 = 0; i5 < p0; i5++) {
    sum1[i5] = 0.0f;
  }
  for (long i6 = 0; i6 < 10; i6++) {
    #pragma omp simd
    for (long i7 = 0; i7 < p0; i7++) {
      const long p2 = i7 % 10;
      const float t3 = transposed0[i6 * 128 + i7] + in1[p2 * 10 + i6];
      const float t4 = t3 - sum0[i7];
      const float t5 = sum1[i7];
      sum1[i7] = t5 + hloc_exp_f32(t4);
    }
  }
  #pragma omp simd
  for (long i8 = 0; i8 < p0; i8++) {
    const float t6 = sum1[i8];
    sum1[i8] = t6;
  }
  float each0[128] __attribute__((aligned(64)));
  #pragma omp simd
  for (long i9 = 0; i9 < p0; i9++) {
    each0[i9] = hloc_log_f32(sum1[i9]);
  }
  for (long i10 = 0; i10 < 10; i10++) {
    #pragma omp simd
    for (long i11 = 0; i11 < p0; i11++) {
      const long p3 = i11 % 10;
      const float t7 = transposed0[i10 * 128 + i11] + in1[p3 * 10 + i10];
      const float t8 = t7 - sum0[i11];
      transposed1[i10 * 128 + i11] = t8 - each0[i11];
    }
  }
  for (long i12 = 0; i12 < p0; i12++) {
    out0[i12 * 10] = transposed1[i12];
    out0[i12 * 10 + 1] = transposed1[i12 + 128];
    out0[i12 * 10 + 2] = transposed1[i12 + 256];
    out0[i12 * 10 + 3] = transposed1[i12 + 384];
    out0[i12 * 10 + 4] = transposed1[i12 + 512];
    out0[i12 * 10 + 5] = transposed1[i12 + 640];
    out0[i12 * 10 + 6] = transposed1[i12 + 768];
    out0[i12 * 10 + 7] = transposed1[i12 + 896];
    out0[i12 * 10 + 8] = transposed1[i12 + 1024];
    out0[i12 * 10 + 9] = transposed1[i12 + 1152];
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
    v1 = v1 + t2;
    row0[i1] = t2;
  }
  #pragma omp simd
  for (long i2 = 0; i2 < 500; i2++) {
    const float t3 = row0[i2];
    out0[i2] = t3 / v1;
  }
}
