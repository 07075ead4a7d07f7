"""Matrix products and attention: operations per second, as a fraction of cuBLASLt's and of mma.sync's alone."""
from __future__ import annotations

from collections.abc import Iterator

from hloc.errors import RunError
from hloc.targets.cuda.container import Geometry
from hloc.targets.cuda.execution.context import primary_context
from hloc.targets.cuda.libraries.cublaslt import SUMS as SUMS_OF
from hloc.targets.cuda.libraries.cublaslt import WORKSPACE, CublasLt, LtProduct, Matrix, library

SUMS = {"bf16": "bf16", "f16": "f16", "f32": "f32", "s8": "s32"}
ACCUMULATORS, REPEATS = 8, 4096
BIAS_TANH = """  bias = {t}[{n}] parameter(2)  bb = {t}[{m},{n}] broadcast(bias), dimensions={{1}}
  s = {t}[{m},{n}] add(d, bb)
  ROOT g = {t}[{m},{n}] tanh(s) }}
"""
DOT = "HloModule m\nENTRY e {{ a = {t}[{m},{k}] parameter(0)  b = {t}[{k},{n}] parameter(1)\n" \
      "  {root}d = {o}[{m},{n}] dot(a, b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n"
ATTENTION = """HloModule attention
add {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }}
max {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] maximum(a, b) }}
ENTRY e {{
  q = bf16[{h},{s},{d}] parameter(0)  k = bf16[{h},{s},{d}] parameter(1)  v = bf16[{h},{s},{d}] parameter(2)
  x = f32[{h},{s},{s}] dot(q, k), lhs_batch_dims={{0}}, rhs_batch_dims={{0}},
    lhs_contracting_dims={{2}}, rhs_contracting_dims={{2}}
  f = f32[] constant(0.0883883461)  fb = f32[{h},{s},{s}] broadcast(f), dimensions={{}}
  y = f32[{h},{s},{s}] multiply(x, fb)  low = f32[] constant(-inf)  z = f32[] constant(0)
  m = f32[{h},{s}] reduce(y, low), dimensions={{2}}, to_apply=max
  mb = f32[{h},{s},{s}] broadcast(m), dimensions={{0,1}}
  w = f32[{h},{s},{s}] subtract(y, mb)  e = f32[{h},{s},{s}] exponential(w)
  t = f32[{h},{s}] reduce(e, z), dimensions={{2}}, to_apply=add
  tb = f32[{h},{s},{s}] broadcast(t), dimensions={{0,1}}
  p = f32[{h},{s},{s}] divide(e, tb)  c = bf16[{h},{s},{s}] convert(p)
  ROOT o = bf16[{h},{s},{d}] dot(c, v), lhs_batch_dims={{0}}, rhs_batch_dims={{0}},
    lhs_contracting_dims={{2}}, rhs_contracting_dims={{1}}
}}
"""
GRADIENTS = ATTENTION.replace("ROOT o =", "o =").rstrip().removesuffix("}}") + """
  g = bf16[{h},{s},{d}] parameter(3)
  gp = f32[{h},{s},{s}] dot(g, v), lhs_batch_dims={{0}}, rhs_batch_dims={{0}},
    lhs_contracting_dims={{2}}, rhs_contracting_dims={{2}}
  gw = f32[{h},{s},{s}] multiply(gp, p)  r = f32[{h},{s}] reduce(gw, z), dimensions={{2}}, to_apply=add
  rb = f32[{h},{s},{s}] broadcast(r), dimensions={{0,1}}
  ga = f32[{h},{s},{s}] subtract(gp, rb)  gy = f32[{h},{s},{s}] multiply(p, ga)
  gx = f32[{h},{s},{s}] multiply(gy, fb)  gc = bf16[{h},{s},{s}] convert(gx)
  dq = bf16[{h},{s},{d}] dot(gc, k), lhs_batch_dims={{0}}, rhs_batch_dims={{0}},
    lhs_contracting_dims={{2}}, rhs_contracting_dims={{1}}
  dk = bf16[{h},{s},{d}] dot(gc, q), lhs_batch_dims={{0}}, rhs_batch_dims={{0}},
    lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
  dv = bf16[{h},{s},{d}] dot(c, g), lhs_batch_dims={{0}}, rhs_batch_dims={{0}},
    lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
  ROOT all = (bf16[{h},{s},{d}], bf16[{h},{s},{d}], bf16[{h},{s},{d}], bf16[{h},{s},{d}]) tuple(o, dq, dk, dv)
}}
"""


def peak_text(repeats: int) -> str:
    """A kernel that does nothing but mma.sync on bf16, its operands in registers."""
    return f"""#include "scalar.h"
#include "mma.cuh"
extern "C" __global__ void __launch_bounds__(256) peak(float *out) {{
  float sums[{ACCUMULATORS}][4] = {{}};
  const unsigned a[4] = {{threadIdx.x, 1, 2, 3}}, b[2] = {{4, threadIdx.x}};
  for (int n = 0; n < {repeats}; n++) {{
#pragma unroll
    for (int i = 0; i < {ACCUMULATORS}; i++) hloc_mma_bf16(sums[i], a, b);
  }}
  float total = 0;
  for (int i = 0; i < {ACCUMULATORS}; i++) total += sums[i][0] + sums[i][1] + sums[i][2] + sums[i][3];
  out[blockIdx.x * blockDim.x + threadIdx.x] = total;
}}
"""


def peak(device) -> float:
    """Operations per second of mma.sync on bf16 without any memory."""
    repeats, blocks = device.size(REPEATS, 2), device.size(4 * device.machine.cores, 1)
    context = primary_context(device.cuda)
    context.push()
    try:
        launch = device.kernel(peak_text(repeats), Geometry("peak", (blocks, 1, 1), (256, 1, 1)))
        out = device.cuda.mem_alloc(blocks * 256 * 4)
        seconds = device.median(lambda: launch(out), launch.stream, context)
        out.free()
    finally:
        context.pop()
    return blocks * 8 * repeats * ACCUMULATORS * 2 * 16 * 8 * 16 / seconds


def cublas(device) -> tuple[object, str]:
    """cuBLASLt, or why it is not measured."""
    if device.emulated:
        return None, "cuBLASLt does not run on the emulation"
    try:
        return library(), ""
    except RunError as error:
        return None, f"{error.message}: {error.hint}"


def cublas_rate(device, loaded, type: str, m: int, n: int, k: int) -> float:
    """Row-major C = A B is column-major C' = B' A'; of bytes the library wants the first operand transposed."""
    width = {"bf16": 2, "f16": 2, "f32": 4, "s8": 1}[type]
    first = Matrix(1, 0, k, n, k, 0, True) if type == "s8" else Matrix(1, 0, n, k, n, 0)
    facts = LtProduct(type, SUMS[type], SUMS_OF[type], 1, first, Matrix(0, 0, k, m, k, 0), Matrix(2, 0, n, m, n, 0))
    context = primary_context(device.cuda)
    context.push()
    try:
        sizes = (m * k * width, n * k * width, m * n * 4, WORKSPACE)
        memory = [device.cuda.mem_alloc(s) for s in sizes]
        for piece, count in zip(memory, (m * k, n * k)):
            device.fill(piece, type, count)
        stream, lt = device.cuda.Stream(1), CublasLt(loaded)
        multiply, places = lt.product(facts), [int(piece) for piece in memory]
        seconds = device.median(lambda: multiply(places, stream.handle), stream, context)
        lt.close()
        for piece in memory:
            piece.free()
    finally:
        context.pop()
    return 2 * m * n * k / seconds


def rows(device) -> Iterator[dict]:
    best = peak(device)
    yield {"what": "mma.sync on bf16, no memory", "value": best / 1e12, "unit": "TFLOP/s"}
    lt, missing = cublas(device)
    if lt is None:
        yield {"what": "cuBLASLt", "missing": missing}
    for type, size in (("bf16", 8192), ("f16", 8192), ("s8", 8192), ("f32", 4096)):
        m = n = k = device.size(size, 40)
        yield from product(device, lt, type, m, n, k, best)
    m, n, k = (device.size(s, t) for s, t in ((4096, 36), (1024, 20), (16384, 70)))
    yield from product(device, lt, "bf16", m, n, k, best)
    yield from fused(device, device.size(8192, 40))
    yield from attention(device, lt, best)


def product(device, lt, type: str, m: int, n: int, k: int, best: float) -> Iterator[dict]:
    what = f"{type} {m} x {n} x {k}"
    text = DOT.format(t=type, o=SUMS[type], m=m, n=n, k=k, root="ROOT ") + "}\n"
    backend = device.program(text)
    rate = 2 * m * n * k / device.seconds(backend)
    backend.close()
    compared = {"mma.sync's peak": rate / best} if type in ("bf16", "f16") else {}
    note = ""
    if lt is not None:
        try:
            compared["cuBLASLt"] = rate / cublas_rate(device, lt, type, m, n, k)
        except RunError as error:
            note = f"cuBLASLt not measured: {error.message}"
    yield {"what": what, "value": rate / 1e12, "unit": "TFLOP/s", "compared": compared, "note": note}


def fused(device, size: int) -> Iterator[dict]:
    """A product with bias and tanh, in one kernel and in three."""
    text = DOT.format(t="bf16", o="bf16", m=size, n=size, k=size, root="") + BIAS_TANH.format(t="bf16", m=size, n=size)
    seconds = {}
    for fusion in ("on", "off"):
        backend = device.program(text, fusion=fusion)
        seconds[fusion] = device.seconds(backend)
        backend.close()
    yield {"what": f"bf16 {size} cubed with bias and tanh", "value": 2 * size ** 3 / seconds["on"] / 1e12,
           "unit": "TFLOP/s", "compared": {"the time without fusion": seconds["on"] / seconds["off"]}}


def attention(device, lt, best: float) -> Iterator[dict]:
    """Against mma.sync's peak, and against the fastest product there is."""
    h, s, d = device.size(64, 2), device.size(2048, 40), device.size(128, 16)
    backend = device.program(ATTENTION.format(h=h, s=s, d=d))
    rate = 4 * h * s * s * d / device.seconds(backend)
    kernels = len(backend.packed.steps)
    backend.close()
    compared = {"mma.sync's peak": rate / best}
    if lt is not None:
        compared["cuBLASLt's bf16 product of 8192 cubed"] = rate / cublas_rate(device, lt, "bf16", 8192, 8192, 8192)
    yield {"what": f"attention bf16 {h} heads, {s} positions of {d}", "value": rate / 1e12, "unit": "TFLOP/s",
           "compared": compared, "note": f"to reach: 0.70 of the product; {kernels} kernels"}
    yield from gradients(device, best, h, s, d)


def gradients(device, best: float, h: int, s: int, d: int) -> Iterator[dict]:
    """Attention and its gradients. Seven products are counted, as if one kernel made all gradients; two make nine."""
    seconds, kernels = {}, {}
    for fusion in ("on", "off"):
        backend = device.program(GRADIENTS.format(h=h, s=s, d=d), fusion=fusion)
        seconds[fusion], kernels[fusion] = device.seconds(backend), len(backend.packed.steps)
        backend.close()
    rate = 14 * h * s * s * d / seconds["on"]
    yield {"what": f"attention bf16 with gradients, {h} heads, {s} positions of {d}", "value": rate / 1e12,
           "unit": "TFLOP/s", "note": f"{kernels['on']} kernels",
           "compared": {"mma.sync's peak": rate / best, "the time without fusion": seconds["on"] / seconds["off"]}}
