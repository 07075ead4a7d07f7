"""Kernels that no device has run when they were written: against the evaluator, and their share of a copy's bandwidth.

Products of f32 as TF32, bf16 that is f32 within a kernel, sums that the last block joins, rows in one kernel, the
gradient of a pooling, transposes by vectors, the first few of long rows, the norm of one row, gradients of filters
and of images, operands that a kernel packs before wgmma reads them, a few rows by weights of few bits, attention of a
few queries, also if it stores keys and values first. And loops whose number of rounds is not known, decided by the host
and by conditional nodes of a graph: in microseconds of a round, beside what was predicted of a round without its
kernels. A case goes to another section once a device has run it.
"""
from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from gpu_sections.bandwidth import ADD, copy_bandwidth
from gpu_sections.device import bytes_of, random_arrays
from hloc import api
from hloc.evaluate import evaluate
from hloc.passes.precision import product_precision
from hloc.targets.cuda.execution.recording import depth_of
from hloc.tools.compare import compare
from hloc.tools.gpu_times import program_times

PRODUCT = """ENTRY e {{ a = f32[{n},{n}] parameter(0)  b = f32[{n},{n}] parameter(1)
  ROOT d = f32[{n},{n}] dot(a, b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}{asked} }}
"""
PACKED = """ENTRY e {{ a = {t}[{m},{k}] parameter(0)  b = {t}[{k},{n}] parameter(1)
  ROOT d = {r}[{m},{n}] dot(a, b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}} }}
"""
WEIGHTS = """ENTRY e {{ x = bf16[{n},{k}] parameter(0)  w = s8[{c},{k}] parameter(1)  s = bf16[{c}] parameter(2)
  v = bf16[{c},{k}] convert(w)  t = bf16[{c},{k}] broadcast(s), dimensions={{0}}  m = bf16[{c},{k}] multiply(v, t)
  ROOT d = bf16[{n},{c}] dot(x, m), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}} }}
"""
IMAGE = """ENTRY e {{ g = f32[{i},{h},{h},{c}] parameter(0)  w = f32[3,3,{c},{c}] parameter(1)
  ROOT x = f32[{i},{s},{s},{c}] convolution(g, w), window={{size=3x3 pad={p} lhs_dilate={by}x{by} rhs_reversal=1x1}},
    dim_labels=b01f_01oi->b01f }}
"""
STEM = """ENTRY e {{ x = {t}[{i},{s},{s},3] parameter(0)  w = {t}[7,7,3,{c}] parameter(1)
  dy = {t}[{i},{h},{h},{c}] parameter(2)
  y = {t}[{i},{h},{h},{c}] convolution(x, w), window={{size=7x7 stride=2x2 pad=2_3x2_3}}, dim_labels=b01f_01io->b01f
  dw = {t}[7,7,3,{c}] convolution(x, dy), window={{size={h}x{h} pad=2_3x2_3 rhs_dilate=2x2}}, dim_labels=f01b_i01o->01bf
  ROOT both = ({t}[{i},{h},{h},{c}], {t}[7,7,3,{c}]) tuple(y, dw) }}
"""
CONVOLUTION = """ENTRY e {{ x = f32[{i},{s},{s},{c}] parameter(0)  w = f32[3,3,{c},{c}] parameter(1)
  ROOT y = f32[{i},{s},{s},{c}] convolution(x, w), window={{size=3x3 pad=1_1x1_1}}, dim_labels=b01f_01io->b01f }}
"""
CHAIN = """ENTRY e {{ x = bf16[{r},{c}] parameter(0)  a = bf16[{r},{c}] tanh(x)  b = bf16[{r},{c}] multiply(a, x)
  c = bf16[{r},{c}] add(b, a)  d = bf16[{r},{c}] logistic(c)  ROOT y = bf16[{r},{c}] multiply(d, b) }}
"""
FEW = ADD + """ENTRY e {{ x = {t}[{i},{s},{s},{c}] parameter(0)  z = {t}[] constant(0)
  y = {t}[{i},{s},{s},{c}] multiply(x, x)  a = {t}[{c}] reduce(x, z), dimensions={{0,1,2}}, to_apply=add
  b = {t}[{c}] reduce(y, z), dimensions={{0,1,2}}, to_apply=add  ROOT r = ({t}[{c}], {t}[{c}]) tuple(a, b) }}
"""
ROWS = ADD + """ENTRY e {{ x = {t}[1024,512] parameter(0)  y = {t}[1024,512] parameter(1)
  w = {t}[1024,512] parameter(2)  z = {t}[] constant(0)  m = {t}[1024,512] multiply(x, y)  q = {t}[1024,512] add(m, w)
  ROOT s = {t}[1024] reduce(q, z), dimensions={{1}}, to_apply=add }}
"""
POOLING = ADD + """ge {{ a = {t}[] parameter(0)  b = {t}[] parameter(1)  ROOT r = pred[] compare(a, b), direction=GE }}
ENTRY e {{ x = {t}[{i},{s},{s},{c}] parameter(0)  g = {t}[{i},{h},{h},{c}] parameter(1)  z = {t}[] constant(0)
  ROOT s = {t}[{i},{s},{s},{c}] select-and-scatter(x, g, z), window={{size=1x3x3x1 stride=1x2x2x1 pad=0_0x0_1x0_1x0_0}},
    select=ge, scatter=add }}
"""
SUM = ADD + """ENTRY e {{ x = {t}[{r},{c}] parameter(0)  z = {t}[] constant(0)
  ROOT s = {t}[{kept}] reduce(x, z), dimensions={{{gone}}}, to_apply=add }}
"""
TRANSPOSE = """ENTRY e {{ x = {t}[{r},{c}] parameter(0)  ROOT y = {t}[{c},{r}] transpose(x), dimensions={{1,0}} }}
"""
FIRST = """ENTRY e {{ x = f32[{r},{c}] parameter(0)
  ROOT t = (f32[{r},{k}], s32[{r},{k}]) topk(x), k={k}, largest=true }}
"""
NORM = ADD + """ENTRY e {{ x = f32[1,{c}] parameter(0)  z = f32[] constant(0)
  s = f32[1] reduce(x, z), dimensions={{1}}, to_apply=add  many = f32[1] constant({{{c}}})  m = f32[1] divide(s, many)
  mb = f32[1,{c}] broadcast(m), dimensions={{0}}  d = f32[1,{c}] subtract(x, mb)  q = f32[1,{c}] multiply(d, d)
  v = f32[1] reduce(q, z), dimensions={{1}}, to_apply=add  w = f32[1] divide(v, many)  r = f32[1] rsqrt(w)
  rb = f32[1,{c}] broadcast(r), dimensions={{0}}  ROOT y = f32[1,{c}] multiply(d, rb) }}
"""

FILTER = """ENTRY e {{ x = {t}[{i},{s},{s},{c}] parameter(0)  g = {t}[{i},{h},{h},{c}] parameter(1)
  ROOT w = f32[{k},{k},{c},{c}] convolution(x, g), window={{size={h}x{h} pad={p} rhs_dilate={by}x{by}}},
    dim_labels=f01b_i01o->01bf }}
"""
FILTERS = ((3, 1, "1_1x1_1"), (3, 2, "1_0x1_0"), (1, 1, "0_0x0_0"), (1, 2, "0_-1x0_-1"))   # size, stride, padding


ATTENTION = """MAX {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] maximum(a, b) }}
ADD {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }}
ENTRY e {{ q = {t}[{h},{r},{d}] parameter(0)  k = {t}[{h},{s},{d}] parameter(1)  v = {t}[{h},{s},{d}] parameter(2)
  x = f32[{h},{r},{s}] dot(q, k), lhs_batch_dims={{0}}, rhs_batch_dims={{0}}, lhs_contracting_dims={{2}},
    rhs_contracting_dims={{2}}
  low = f32[] constant(-inf)  m = f32[{h},{r}] reduce(x, low), dimensions={{2}}, to_apply=MAX
  mb = f32[{h},{r},{s}] broadcast(m), dimensions={{0,1}}  w = f32[{h},{r},{s}] subtract(x, mb)
  e = f32[{h},{r},{s}] exponential(w)  z = f32[] constant(0)
  t = f32[{h},{r}] reduce(e, z), dimensions={{2}}, to_apply=ADD  tb = f32[{h},{r},{s}] broadcast(t), dimensions={{0,1}}
  p = f32[{h},{r},{s}] divide(e, tb)  c = {t}[{h},{r},{s}] convert(p)
  ROOT o = {t}[{h},{r},{d}] dot(c, v), lhs_batch_dims={{0}}, rhs_batch_dims={{0}}, lhs_contracting_dims={{2}},
    rhs_contracting_dims={{1}} }}
"""
DECODER = ATTENTION.replace("k = {t}[{h},{s},{d}] parameter(1)  v = {t}[{h},{s},{d}] parameter(2)", """
  ck = {t}[{h},{s},{d}] parameter(1)  cv = {t}[{h},{s},{d}] parameter(2)  nk = {t}[{h},{r},{d}] parameter(3)
  nv = {t}[{h},{r},{d}] parameter(4)  zero = s32[] constant(0)  at = s32[] constant({p})
  k = {t}[{h},{s},{d}] dynamic-update-slice(ck, nk, zero, at, zero)
  v = {t}[{h},{s},{d}] dynamic-update-slice(cv, nv, zero, at, zero)
""").replace("ROOT o", "o").replace("{{1}} }}\n", """{{1}}
  ROOT all = ({t}[{h},{r},{d}], {t}[{h},{s},{d}], {t}[{h},{s},{d}]) tuple(o, k, v) }}
""")


def cases(device) -> Iterator[tuple[str, str]]:
    """Name, HLO: small ones, which the evaluator computes in a second."""
    n, i, s, c = (device.size(*sizes) for sizes in ((1024, 40), (8, 2), (28, 6), (64, 8)))
    for name, asked in (("TF32", ""), ("three products of TF32", ", operand_precision={high,high}"),
                        ("all bits", ", operand_precision={highest,highest}")):
        yield f"f32 matmul of {n} cubed, {name}", PRODUCT.format(n=n, asked=asked)
    for t, r in (("s8", "s32"), ("f8e4m3fn", "f32")):
        yield f"{t} matmul of {n} cubed across the depth", PACKED.format(t=t, r=r, m=n, k=n, n=n)
    for few in (1, 4, 16):
        yield f"{few} rows by s8 weights [{4 * n},{n}] with scales", WEIGHTS.format(n=few, k=n, c=4 * n)
    for by, p in ((1, "1_1x1_1"), (2, "1_2x1_2")):
        yield f"f32 gradient of the image of a 3x3 convolution of stride {by}", \
            IMAGE.format(i=i, h=s // by, s=s, c=c, p=p, by=by)
    yield f"f32 convolution 3x3, {i} images of {s}x{s}, {c} channels", CONVOLUTION.format(i=i, s=s, c=c)
    for t in ("f32", "bf16"):
        yield f"{t} 7x7 convolution of 3 channels and its filter's gradient, {i} images of {4 * s}x{4 * s}", \
            STEM.format(t=t, i=i, s=4 * s, h=2 * s, c=c)
    yield f"bf16 chain [{n},{n}]", CHAIN.format(r=n, c=n)
    for t in ("f32", "bf16"):
        yield f"{t} sum of {t}[1024,512]'s rows", ROWS.format(t=t)
        yield f"{t} two sums to {c} results, {i} images of {4 * s}x{4 * s}", FEW.format(t=t, i=i, s=4 * s, c=c)
        yield f"{t} pooling's gradient, {i} images of {4 * s}x{4 * s}", \
            POOLING.format(t=t, i=i, s=4 * s, h=2 * s, c=c)
        wide, high = device.size(2048, 72), device.size(8192, 136)
        for kept, gone, name in ((wide, "0", "columns"), ("", "0,1", "all")):
            yield f"{t} sum of {name} of [{high},{wide}]", SUM.format(t=t, r=high, c=wide, kept=kept, gone=gone)
        yield f"{t} transpose of [{high},{wide}]", TRANSPOSE.format(t=t, r=high, c=wide)
        for k, by, p in FILTERS:
            yield f"{t} gradient of a {k}x{k} filter of stride {by}, {i} images of {s}x{s}, {c} channels", \
                FILTER.format(t=t, i=i, s=s, h=s // by, c=c, k=k, p=p, by=by)
    for t, h, r, keys, d in (("f32", 12, 1, 96, 64), ("bf16", 32, 1, 4096, 128), ("bf16", 8, 4, 4096, 128)):
        keys = device.size(keys, 40)
        yield f"{t} attention of {r} of {h} heads' queries, {keys} keys of {d}", \
            ATTENTION.format(t=t, h=h, r=r, s=keys, d=d)
        yield f"{t} attention of {r} of {h} heads' queries, {keys} keys of {d}, {r} of them new", \
            DECODER.format(t=t, h=h, r=r, s=keys, d=d, p=keys // 2)
    long = device.size(50257, 3000)
    yield f"the first two of {long}", FIRST.format(r=1, c=long, k=2)
    yield f"the first 40 of 8 rows of {long}", FIRST.format(r=8, c=long, k=40)
    yield "norm of one row of 768", NORM.format(c=768, t="f32")


def rows(device) -> Iterator[dict[str, Any]]:
    best = copy_bandwidth(device)
    for name, text in cases(device):
        module = api.load("HloModule m\n" + text)
        packed = device.packed("HloModule m\n" + text)
        arrays = random_arrays(packed.parameters)
        backend = device.started(packed, arrays)
        got = backend(arrays)
        found = compare(packed.results, got, [np.asarray(a) for a in evaluate(module, arrays)],
                        products=product_precision(module, {}))
        seconds = device.seconds(backend, 0.05)
        rate, error = bytes_of(backend) / seconds, max(d.error for d in found)
        right = all(d.agrees for d in found)
        yield {"what": name, "value": seconds * 1e6, "unit": "us", "compared": {"the copy": rate / best},
               "note": f"error {error:.1e}" if right else f"WRONG: error {error:.1e}", "wrong": not right}
        backend.close()
    yield from loops(device)


def loop_text(kernels: int) -> str:
    """A loop with as many rounds as its second argument says, of so many kernels that depend on each other, if nothing
    is fused, and one that counts."""
    chain = "".join(f"  x{n} = f32[1024] {'sine' if n % 2 else 'cosine'}(x{n - 1})\n" for n in range(1, kernels + 1))
    return f"""HloModule rounds
test {{ s = (s32[], s32[], f32[1024]) parameter(0)  i = s32[] get-tuple-element(s), index=0
  n = s32[] get-tuple-element(s), index=1  ROOT c = pred[] compare(i, n), direction=LT }}
body {{ s = (s32[], s32[], f32[1024]) parameter(0)  i = s32[] get-tuple-element(s), index=0
  n = s32[] get-tuple-element(s), index=1  x0 = f32[1024] get-tuple-element(s), index=2
{chain}  one = s32[] constant(1)  j = s32[] add(i, one)
  ROOT r = (s32[], s32[], f32[1024]) tuple(j, n, x{kernels}) }}
ENTRY e {{ x = f32[1024] parameter(0)  n = s32[] parameter(1)  z = s32[] constant(0)
  s = (s32[], s32[], f32[1024]) tuple(z, n, x)  w = (s32[], s32[], f32[1024]) while(s), condition=test, body=body
  ROOT y = f32[1024] get-tuple-element(w), index=2 }}
"""


def loops(device) -> Iterator[dict[str, Any]]:
    """Both ways to decide whether a loop goes on."""
    rounds, asked = device.size(200, 3), os.environ.get("HLOC_CUDA_CONDITIONAL")
    arrays = [np.linspace(-1, 1, 1024, dtype=np.float32), np.int32(rounds)]
    for kernels in (1, device.size(8, 2), device.size(64, 3)):
        text, took = loop_text(kernels), []
        planned = device.planned(text, "off")
        (expected,), (told,) = evaluate(api.load(text), arrays), program_times(planned, device.machine).rounds
        packed = device.built(planned)
        for way, setting, predicted in (("the host", "off", told.host_us), ("the device", "on", told.device_us)):
            os.environ["HLOC_CUDA_CONDITIONAL"] = setting
            backend = device.started(packed, arrays)
            results = [backend(arrays)[0].copy() for _ in range(3)]         # from the second run on by graphs
            errors = [float(np.max(np.abs(result - expected))) for result in results]
            took.append(device.seconds(backend, 0.05) / rounds)
            done = ""
            if setting == "on" and backend.recorder.nodes is None:
                done = "; the host decided" + ("" if depth_of(packed.steps) else ", as is predicted to be cheaper")
            yield {"what": f"a round of {kernels} kernels and a counter, decided by {way}", "value": took[-1] * 1e6,
                   "unit": "us", "compared": {"the host's": took[-1] / took[0]}, "wrong": max(errors) > 1e-4,
                   "note": f"predicted beside the kernels: {predicted:.1f} us; error {max(errors):.1e}{done}"}
            backend.close()
    os.environ.pop("HLOC_CUDA_CONDITIONAL")
    if asked is not None:
        os.environ["HLOC_CUDA_CONDITIONAL"] = asked
