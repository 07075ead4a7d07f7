"""Attention as one kernel on the GPU: emulated, every access looked at, against the evaluator; what it takes of an SM."""
from __future__ import annotations

import dataclasses
import re
import shutil
from typing import NamedTuple

import numpy as np
import pytest
from cuda_emulation import driver
from cuda_emulation.cases import backend_of, emulate

from hloc import api
from hloc.errors import RunError
from hloc.evaluate import Evaluator
from hloc.inputs import check_arrays
from hloc.ir import numpy_dtype
from hloc.targets.cuda.compiler import compiler_version
from hloc.targets.cuda.gpus import GPUS, gpu_named
from hloc.targets.cuda.resources import resources
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.target import cuda_target

H100 = GPUS["h100"]
SMALL = dataclasses.replace(H100, cores=1, bandwidth=H100.bandwidth / 132)
emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles the emulation, is not installed")
compiled = pytest.mark.skipif(compiler_version() == 0, reason="neither NVRTC nor nvcc is installed")

SCORES = {
    "plain": "  score = f32[{s}] copy(scores)\n",
    "scaled": "  wide = f32[{s}] copy(scores)\n  c = f32[] constant(0.125)\n"
              "  cs = f32[{s}] broadcast(c), dimensions={{}}\n  score = f32[{s}] multiply(wide, cs)\n",
    "causal": "  wide = f32[{s}] copy(scores)\n  rows = s32[{s}] iota(), iota_dimension=2\n"
              "  columns = s32[{s}] iota(), iota_dimension=3\n  past = pred[{s}] compare(rows, columns), direction=GE\n"
              "  low = f32[] constant(-inf)\n  lows = f32[{s}] broadcast(low), dimensions={{}}\n"
              "  score = f32[{s}] select(past, wide, lows)\n",
    "future": "  wide = f32[{s}] copy(scores)\n  rows = s32[{s}] iota(), iota_dimension=2\n"
              "  columns = s32[{s}] iota(), iota_dimension=3\n  next = pred[{s}] compare(rows, columns), direction=LE\n"
              "  low = f32[] constant(-1e30)\n  lows = f32[{s}] broadcast(low), dimensions={{}}\n"
              "  score = f32[{s}] select(next, wide, lows)\n",
    "masked": "  wide = f32[{s}] copy(scores)\n  m = pred[{s}] broadcast(3), dimensions={{1,2,3}}\n"
              "  low = f32[] constant(-inf)\n  lows = f32[{s}] broadcast(low), dimensions={{}}\n"
              "  score = f32[{s}] select(m, wide, lows)\n",
    "dropped": "  wide = f32[{s}] copy(scores)\n  m = pred[{s}] broadcast(3), dimensions={{1,2,3}}\n"
               "  low = f32[] constant(-1e30)\n  lows = f32[{s}] broadcast(low), dimensions={{}}\n"
               "  score = f32[{s}] select(m, lows, wide)\n",
    "bias": "  wide = f32[{s}] copy(scores)\n  bs = f32[{s}] broadcast(3), dimensions={{1,2,3}}\n"
            "  score = f32[{s}] add(wide, bs)\n",
}


class Case(NamedTuple):
    """softmax(score(q k^T)) v; interleaved: heads lie between rows and depth, as frameworks keep them."""

    type: str
    score: str = "scaled"
    batch: int = 1
    heads: int = 1
    rows: int = 70
    columns: int = 90
    depth: int = 32
    features: int = 32
    interleaved: bool = False

    def shape(self, n: int, d: int) -> str:
        """Of queries, keys or values."""
        return f"{self.batch},{n},{self.heads},{d}" if self.interleaved else f"{self.batch},{self.heads},{n},{d}"

    def parameters(self) -> list[str]:
        shapes = [(self.rows, self.depth), (self.columns, self.depth), (self.columns, self.features)]
        more = {"bias": "f32", "masked": "pred", "dropped": "pred"}.get(self.score)
        bias = [f"{more}[{self.heads},{self.rows},{self.columns}]"] if more else []
        return [f"{self.type}[{self.shape(*s)}]" for s in shapes] + bias

    def text(self, p: str) -> str:
        """Instructions whose names start with p, of parameters p0, p1 ...; the last is p + "out"."""
        s, m = f"{self.batch},{self.heads},{self.rows},{self.columns}", f"{self.batch},{self.heads},{self.rows}"
        head = "0,2" if self.interleaved else "0,1"
        lines = f"""
  scores = f32[{s}] dot(0, 1), lhs_batch_dims={{{head}}}, rhs_batch_dims={{{head}}}, lhs_contracting_dims={{3}}, rhs_contracting_dims={{3}}
{SCORES[self.score].format(s=s)}  least = f32[] constant(-inf)
  top = f32[{m}] reduce(score, least), dimensions={{3}}, to_apply=max
  tops = f32[{s}] broadcast(top), dimensions={{0,1,2}}
  apart = f32[{s}] subtract(score, tops)
  e = f32[{s}] exponential(apart)
  zero = f32[] constant(0)
  sum = f32[{m}] reduce(e, zero), dimensions={{3}}, to_apply=add
  sums = f32[{s}] broadcast(sum), dimensions={{0,1,2}}
  weights = f32[{s}] divide(e, sums)
  narrow = {self.type}[{s}] convert(weights)
  out = {self.type}[{self.batch},{self.heads},{self.rows},{self.features}] dot(narrow, 2), lhs_batch_dims={{0,1}}, rhs_batch_dims={{{head}}}, lhs_contracting_dims={{3}}, rhs_contracting_dims={{{1 if self.interleaved else 2}}}
"""
        lines = re.sub(r"^  (\w+) =", rf"  {p}\1 =", lines, flags=re.MULTILINE)
        return re.sub(r"(?<= )(\w+)\(([\w, ]*)\)", lambda f: f[0] if f[1] == "constant" else
                      f"{f[1]}({', '.join(p + o for o in f[2].split(', ') if o)})", lines)


def module(*cases: Case) -> str:
    """All of them, each with parameters of its own."""
    lines, results, shapes = [], [], []
    for number, case in enumerate(cases):
        p = f"c{number}_"
        for n, shape in enumerate(case.parameters()):
            lines.append(f"  {p}{n} = {shape} parameter({len(shapes)})")
            shapes.append(shape)
        lines.append(case.text(p))
        results.append(f"{case.type}[{case.batch},{case.heads},{case.rows},{case.features}]")
    names = ", ".join(f"c{n}_out" for n in range(len(cases)))
    return ("HloModule attention\n"
            "add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }\n"
            "max { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] maximum(a, b) }\n"
            "ENTRY e {\n" + "\n".join(lines) + f"\n  ROOT all = ({', '.join(results)}) tuple({names})\n}}\n")


def sources_of(text: str, gpu):
    target = cuda_target(gpu)
    return make_sources(api.plan(api.optimize(api.load(text), target), target), gpu)


def check(cases: list[Case], gpu, monkeypatch, change=None) -> list[np.ndarray]:
    """Kernels of attention (and joins of pieces), nothing else, that compute what the evaluator computes."""
    text = module(*cases)
    sources = sources_of(text, gpu)
    assert all("hloc_attention_" in k for k in sources.kernels)
    random = np.random.default_rng(0)
    arrays = [random.normal(size=v.shape.dimensions) for v in sources.program.parameters]
    arrays = [a > 0 if v.shape.element_type == "pred" else a.astype(numpy_dtype(v.shape.element_type))
              for a, v in zip(arrays, sources.program.parameters)]
    if change:
        change(arrays)
    results = emulate(sources, check_arrays(sources.program.parameters, arrays), monkeypatch, checked=True,
                      backwards=True)
    for case, result, expected in zip(cases, results, Evaluator(api.load(text)).run(arrays)):
        tolerance = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-3}[result.dtype.name]
        np.testing.assert_allclose(result.astype(float), expected.astype(float), rtol=tolerance, atol=tolerance,
                                   err_msg=str(case))
    return results


@emulated
@pytest.mark.parametrize("type", ["f32", "bf16", "f16"])
def test_scores(type, monkeypatch):
    check([Case(type, score, 1, 2) for score in SCORES], H100, monkeypatch)


SIZES = [(16, 16, 16, 16), (64, 128, 64, 64), (40, 72, 128, 128), (33, 65, 33, 48), (20, 70, 16, 200), (1, 700, 64, 64),
         (5, 600, 40, 24), (20, 70, 300, 32), (1, 96, 64, 64), (3, 300, 36, 20), (2, 600, 33, 130)]       # rows, columns, depth, features


@emulated
@pytest.mark.parametrize("type", ["f32", "bf16"])
def test_sizes(type, monkeypatch):
    """One tile; heads of 64 and 128; odd ones; features of several blocks; few queries, keys in pieces; long depths."""
    check([Case(type, "scaled", 1, 1, *size) for size in SIZES], H100, monkeypatch)


@emulated
def test_many_queries(monkeypatch):
    """Warps with 32 queries."""
    case = Case("bf16", "causal", 1, 1, 150, 100, 32, 32)
    assert "BM = 128" in sources_of(module(case), SMALL).readable()
    check([case], SMALL, monkeypatch)


@emulated
@pytest.mark.parametrize("type", ["f32", "bf16"])
def test_heads_between_rows_and_depth(type, monkeypatch):
    """Arrays are read where they lie, by strides: no copy goes before."""
    check([Case(type, "causal", 2, 2, 20, 20, 16, 16, interleaved=True)], SMALL, monkeypatch)


@emulated
@pytest.mark.parametrize("type", ["f32", "bf16"])
def test_no_numbers(type, monkeypatch):
    """A row of which all is masked, an infinite score, a NaN: NaN in that row, and nowhere else."""
    sizes = ((20, 70), (1, 700))

    def change(arrays):
        for bias, (_, columns) in zip(arrays[3::4], sizes):
            bias[...] = 0
            bias[0, 0] = -np.inf
            bias[1, 0, 3] = np.inf
            bias[2, 0, columns - 1] = np.nan
            bias[3, 0, :columns - 2] = -np.inf
    for result in check([Case(type, "bias", 1, 4, *size, 16, 16) for size in sizes], H100, monkeypatch, change):
        nan = np.isnan(result.astype(float))
        assert nan[0, :3, 0].all() and not nan[0, 3].any() and not nan[0, :, 1:].any()


@emulated
def test_masked_tiles(monkeypatch):
    """Warps pass over tiles of which they see nothing; not before a row has seen something, nor where values are not
    finite: these are NaN in all rows."""
    def change(arrays):
        arrays[2][0, 0, 140, 3], arrays[2][0, 0, 141, 4], arrays[5][0, 0, 2, 5] = np.inf, np.nan, -np.inf
    cases = [Case("bf16", "causal", 1, 1, 150, 150, 32, 32), Case("f16", "future", 1, 1, 150, 100, 32, 32)]
    check(cases, H100, monkeypatch)
    first, second = check(cases, H100, monkeypatch, change)
    assert np.isnan(first[0, 0, :140, 3:5].astype(float)).all() and np.isnan(second[0, 0, 3:100, 5]).all()


@emulated
def test_masks_in_memory(monkeypatch):
    """Blocks of which nothing is seen, a row that sees nothing; a value that is not finite where nobody looks."""
    def change(arrays):
        arrays[3][0, :, 64:128] = arrays[7][0, :, :70] = False
        arrays[7][0, :, 70:] = True
        arrays[3][0, 5] = False
        arrays[2][0, 0, 100, 7] = np.inf
    cases = [Case("bf16", "masked", 1, 1, 70, 150, 32, 32), Case("f16", "dropped", 1, 1, 70, 150, 32, 32)]
    first, _ = check(cases, H100, monkeypatch, change)
    nan = np.isnan(first[0, 0].astype(float))
    assert nan[5].all() and nan[:, 7].all() and not np.delete(np.delete(nan, 5, 0), 7, 1).any()


@emulated
@pytest.mark.parametrize("score", ["causal", "masked", "dropped"])
def test_masked_tiles_are_passed_over(score, monkeypatch):
    """With what stands in the place of the weights of such a tile made NaN, and used, rows are NaN."""
    sources = sources_of(module(Case("bf16", score, 1, 1, 64, 300, 32, 32)), H100)
    text = driver.text_of(sources)
    for old, new in (("z[r][c] = 0;", "z[r][c] = HLOC_NAN_F32;"), ("if (!any && ", "if (!any && false && ")):
        assert old in text
        text = text.replace(old, new)
    driver.install(monkeypatch)
    backend = backend_of(sources, image=driver.build_text(text))
    arrays = [np.ones(v.shape.dimensions, numpy_dtype(v.shape.element_type)) for v in sources.program.parameters]
    if score != "causal":
        arrays[3] = (np.tri(64, 300, dtype=bool) == (score == "masked"))[None]
    (result,) = backend(check_arrays(sources.program.parameters, arrays))
    backend.close()
    assert np.isnan(result.astype(float)).all()


@emulated
@pytest.mark.parametrize("type, place", [
    ("bf16", "__syncthreads(); /* all have done with the last queries */"),
    ("bf16", "__syncthreads(); /* these keys have arrived, all have done with the last ones */"),
    ("bf16", "__syncthreads(); /* these values have arrived, all have done with the last ones */"),
    ("bf16", "hloc_copy_wait<1>();\n      __syncthreads(); /* these keys"),
    ("bf16", "hloc_copy_wait<1>();\n      __syncthreads(); /* these v"),
    ("bf16", "__syncthreads(); /* all have read the last values */"),
    ("f32", "__syncthreads(); /* all have read the last step */"),
    ("f32", "__syncthreads(); /* all have read the last values */"),
    ("f32", "__syncthreads(); /* and the weights are there */")], ids=lambda v: re.sub(r"\W+", "_", v)[-40:])
def test_missing_barrier(type, place, monkeypatch):
    """Each barrier and each wait is needed: without it the emulation's checker tells a race, or memory without a value."""
    sources = sources_of(module(Case(type, "plain", 1, 10, 20, 150, 32, 128 if type == "bf16" else 16)), SMALL)
    text = driver.text_of(sources)
    template = text[text.index("void hloc_attention_mma(" if type == "bf16" else "void hloc_attention_f32("):]
    template = template[:template.index("\n}\n")]
    assert place in template
    first = place.split("\n")[0]
    wrong = template.replace(place, place.replace(first.split(" /*")[0], "", 1), 1)
    driver.install(monkeypatch)
    backend = backend_of(sources, image=driver.build_text(text.replace(template, wrong), checked=True))
    random = np.random.default_rng(0)
    arrays = [random.normal(size=v.shape.dimensions).astype(numpy_dtype(v.shape.element_type))
              for v in sources.program.parameters]
    with pytest.raises(RunError, match="thread|nothing has written"):
        backend(check_arrays(sources.program.parameters, arrays))
    backend.close()


@compiled
@pytest.mark.parametrize("type", ["f32", "bf16"])
@pytest.mark.parametrize("arch, depth", [("sm_80", 64), ("sm_80", 128), ("sm_90a", 64), ("sm_90a", 128), ("sm_90a", 256),
                                         ("sm_89", 256), ("sm_120a", 128)])
def test_no_spills(arch, type, depth):
    sources = sources_of(module(*(Case(type, score, 8, 16, 1024, 1024, depth, depth) for score in ("bias", "masked"))),
                         gpu_named(arch))
    found = resources(sources.single_file(), arch)
    assert {k: r for k, r in found.items() if r.spill_stores or r.spill_loads} == {}
    assert all(g.shared <= gpu_named(arch).shared_bytes for g in sources.geometry)
