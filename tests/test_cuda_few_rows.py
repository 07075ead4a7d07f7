"""Products of a few rows on tensor cores, whose right operand goes from memory into registers: emulated, every access
looked at, against the evaluator."""
from __future__ import annotations

import shutil

import numpy as np
import pytest
from cuda_emulation import driver
from cuda_emulation.cases import backend_of, emulate

from hloc import api
from hloc.errors import RunError
from hloc.evaluate import Evaluator
from hloc.inputs import check_arrays
from hloc.ir import numpy_dtype
from hloc.machine import Machine
from hloc.targets.cuda.compiler import compiler_version
from hloc.targets.cuda.gpus import GPUS, gpu_named
from hloc.targets.cuda.resources import resources
from hloc.targets.cuda.sources import CudaSources, make_sources
from hloc.targets.cuda.target import cuda_target
from hloc.targets.cuda.tiles.source import variants

H100 = GPUS["h100"]
emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles the emulation, is not installed")
compiled = pytest.mark.skipif(compiler_version() == 0, reason="neither NVRTC nor nvcc is installed")

WEIGHTS = """HloModule m
ENTRY e {{ x = {t}[{n},{k}] parameter(0)  w = s8[{c},{k}] parameter(1)  s = {t}[{c}] parameter(2)
  v = {t}[{c},{k}] convert(w)  b = {t}[{c},{k}] broadcast(s), dimensions={{0}}  m = {t}[{c},{k}] multiply(v, b)
  ROOT d = {t}[{n},{c}] dot(x, m), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}} }}
"""
PLAIN = """HloModule m
ENTRY e {{ x = {t}[{n},{k}] parameter(0)  w = {t}[{c},{k}] parameter(1)  b = {r}[{c}] parameter(2)
  d = {r}[{n},{c}] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
  bs = {r}[{n},{c}] broadcast(b), dimensions={{1}}  ROOT y = {r}[{n},{c}] add(d, bs) }}
"""
BATCHES = """HloModule m
ENTRY e {{ w = s8[3,{c},{k}] parameter(0)  x = {t}[3,{k},{n}] parameter(1)  v = {t}[3,{c},{k}] convert(w)
  ROOT d = {t}[3,{c},{n}] dot(v, x), lhs_batch_dims={{0}}, rhs_batch_dims={{0}}, lhs_contracting_dims={{2}},
    rhs_contracting_dims={{1}} }}
"""


def sources_of(text: str, gpu: Machine) -> CudaSources:
    target = cuda_target(gpu)
    return make_sources(api.plan(api.optimize(api.load(text), target), target), gpu)


def arguments(sources: CudaSources) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    whole = {"s8": (-100, 100), "s32": (-1000, 1000)}
    return [random.integers(*whole[v.shape.element_type], v.shape.dimensions).astype(numpy_dtype(v.shape.element_type))
            if v.shape.element_type in whole else
            random.normal(size=v.shape.dimensions).astype(numpy_dtype(v.shape.element_type))
            for v in sources.program.parameters]


def differences(results, text: str, arrays) -> float:
    """The largest one, relative to the largest result."""
    found = 0.0
    for result, wanted in zip(results, Evaluator(api.load(text)).run(arrays)):
        wide = wanted.astype(np.float64)
        found = max(found, float(np.max(np.abs(result.astype(np.float64) - wide)) / np.max(np.abs(wide))))
    return found


@emulated
@pytest.mark.parametrize("text, sizes", [
    (WEIGHTS, {"t": "bf16", "n": 1, "k": 64, "c": 40}), (WEIGHTS, {"t": "bf16", "n": 16, "k": 1040, "c": 70}),
    (WEIGHTS, {"t": "f16", "n": 9, "k": 272, "c": 9000}), (WEIGHTS, {"t": "bf16", "n": 32, "k": 176, "c": 33}),
    (PLAIN, {"t": "bf16", "r": "f32", "n": 5, "k": 72, "c": 17}), (PLAIN, {"t": "s8", "r": "s32", "n": 8, "k": 144, "c": 30}),
    (PLAIN, {"t": "f8e4m3fn", "r": "f32", "n": 4, "k": 96, "c": 50}), (PLAIN, {"t": "f16", "r": "f32", "n": 3, "k": 5000, "c": 12})])
@pytest.mark.parametrize("gpu", ["h100", "a100"])
def test_products(text, sizes, gpu, monkeypatch):
    """One warp and many, depths and columns that are no whole blocks, several blocks of work, every number format."""
    text = text.format(**sizes)
    sources = sources_of(text, GPUS[gpu])
    assert any("hloc_gemm_few<" in k for k in sources.kernels)
    arrays = arguments(sources)
    results = emulate(sources, check_arrays(sources.program.parameters, arrays), monkeypatch, checked=True, backwards=True)
    assert differences(results, text, arrays) <= (0 if sizes.get("r") == "s32" else 2e-2)


@emulated
def test_infinities_stay_in_their_columns(monkeypatch):
    """What lies behind the end of the depth, of the rows and of the columns counts as none on both sides."""
    text = PLAIN.format(t="bf16", r="f32", n=5, k=72, c=17)
    sources = sources_of(text, H100)
    arrays = arguments(sources)
    arrays[1][3, 70], arrays[0][2, 0] = np.inf, np.nan
    (result,) = emulate(sources, check_arrays(sources.program.parameters, arrays), monkeypatch, checked=True)
    finite = np.isfinite(result.astype(float))
    assert not finite[:, 3].any() and not finite[2].any()
    assert np.delete(np.delete(finite, 3, 1), 2, 0).all()


@emulated
def test_columns_are_the_few(monkeypatch):
    """Weights on the left, batches; columns that lie apart are no case for it."""
    text = BATCHES.format(t="bf16", n=4, k=80, c=40)
    sources = sources_of(text, H100)
    arrays = arguments(sources)
    results = emulate(sources, check_arrays(sources.program.parameters, arrays), monkeypatch, checked=True)
    assert differences(results, text, arrays) <= 2e-2


def test_which_products():
    """Up to 32 rows if the weights are computed, else two to eight; not f32, which tensor cores would round."""
    def few(text: str, **sizes) -> bool:
        target = cuda_target(H100)
        program = api.plan(api.optimize(api.load(text.format(**sizes)), target), target)
        return "few rows" in variants(program.kernels[0], H100)
    sizes = {"k": 4096, "c": 4096}
    assert [n for n in (1, 2, 8, 9, 32, 33) if few(WEIGHTS, t="bf16", n=n, **sizes)] == [1, 2, 8, 9, 32]
    assert [n for n in (1, 2, 8, 9) if few(PLAIN, t="bf16", r="f32", n=n, **sizes)] == [2, 8]
    assert not few(PLAIN, t="f32", r="f32", n=4, **sizes)


@emulated
@pytest.mark.parametrize("old, new", [
    ("const int column = t * 8 + group;", "const int column = t * 8 + (group ^ 1);"),
    ("const long place = inside(k) + d;", "const long place = inside(k);"),
    ("x[s / 2][s % 2 * 2 + half]", "x[s / 2][half * 2 + s % 2]"),
    ("const int own = lane % 4 * DEEP;", "const int own = lane % 2 * DEEP;"),
    ("for (int w = 1; w < S::BK; w++)", "for (int w = 2; w < S::BK; w++)"),
    ("    __syncthreads();\n    for (int n = threadIdx.x; n < S::M * S::BN;", "    for (int n = threadIdx.x; n < S::M * S::BN;")],
    ids=["another column", "another place", "words exchanged", "half of the depth", "a warp's sums omitted", "no barrier"])
def test_planted_faults(old, new, monkeypatch):
    text = WEIGHTS.format(t="bf16", n=12, k=1040, c=40)
    sources = sources_of(text, H100)
    code = driver.text_of(sources)
    assert old in code
    driver.install(monkeypatch)
    backend = backend_of(sources, image=driver.build_text(code.replace(old, new), checked=True))
    arrays = arguments(sources)
    try:
        assert differences(backend(check_arrays(sources.program.parameters, arrays)), text, arrays) > 5e-2
    except RunError as error:
        assert "thread" in str(error) or "outside" in str(error) or "nothing has written" in str(error)
    backend.close()


@compiled
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"])
def test_no_spills(arch):
    gpu = gpu_named(arch)
    for n in (1, 4, 16, 32):
        sources = sources_of(WEIGHTS.format(t="bf16", n=n, k=4096, c=16384), gpu)
        found = resources(sources.single_file(), arch)
        assert {k: r for k, r in found.items() if r.spill_stores or r.spill_loads} == {}
