"""Matrix products of the CUDA target: which numbers tensor cores are given, how they round, and what tiles take."""
from __future__ import annotations

import shutil

import ml_dtypes
import numpy as np
import pytest
from cuda_emulation.cases import emulate

from hloc import api
from hloc.inputs import check_arrays
from hloc.targets.cuda.compiler import compiler_version
from hloc.targets.cuda.gpus import GPUS, gpu_named
from hloc.targets.cuda.resources import resources
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.target import cuda_target

H100, A100 = GPUS["h100"], GPUS["a100"]
emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles the emulation, is not installed")
compiled = pytest.mark.skipif(compiler_version() == 0, reason="neither NVRTC nor nvcc is installed")


def sources_of(text: str, gpu):
    target = cuda_target(gpu)
    return make_sources(api.plan(api.optimize(api.load(text), target), target), gpu)


def product(lhs: str, rhs: str, result: str, algorithm: str = "", sizes=(40, 52, 36)) -> str:
    """A plain dot, [m, k] by [k, n]."""
    return products([(lhs, rhs, result, algorithm)], sizes)


def products(cases, sizes=(40, 52, 36)) -> str:
    """Dots of (lhs, rhs, result, algorithm), each of parameters of its own."""
    m, k, n = sizes
    lines, shapes = [], [f"{result}[{m},{n}]" for _, _, result, _ in cases]
    for i, (lhs, rhs, _, algorithm) in enumerate(cases):
        more = f", algorithm={algorithm}" if algorithm else ""
        lines.append(f"  a{i} = {lhs}[{m},{k}] parameter({2 * i})\n  b{i} = {rhs}[{k},{n}] parameter({2 * i + 1})\n"
                     f"  {'ROOT ' if len(cases) == 1 else ''}d{i} = {shapes[i]} dot(a{i}, b{i}), "
                     f"lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}{more}")
    if len(cases) > 1:
        names = ", ".join(f"d{i}" for i in range(len(cases)))
        lines.append(f"  ROOT all = ({', '.join(shapes)}) tuple({names})")
    return "HloModule m\nENTRY e {\n" + "\n".join(lines) + "\n}\n"


def run(text: str, arrays, gpu, monkeypatch) -> list[np.ndarray]:
    sources = sources_of(text, gpu)
    return list(emulate(sources, check_arrays(sources.program.parameters, arrays), monkeypatch, checked=True))


def tf32(x: np.ndarray) -> np.ndarray:
    """Rounded to 10 bits after the point, ties away from zero."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x1000) & np.uint32(0xFFFFE000)).view(np.float32)


def narrow(dtype):
    return lambda x: x.astype(dtype).astype(np.float32)


def parts(x: np.ndarray, round, count: int) -> list[np.ndarray]:
    found = []
    for _ in range(count):
        found.append(round(x))
        x = x - found[-1]
    return found


def sum_of_parts(a, b, round, count: int, last: int) -> np.ndarray:
    """The products of parts whose numbers add up to at most `last`, in f64."""
    pairs = [(x, y) for i, x in enumerate(parts(a, round, count)) for j, y in enumerate(parts(b, round, count))
             if i + j <= last]
    return sum(x.astype(np.float64) @ y.astype(np.float64) for x, y in pairs)


BF16 = narrow(ml_dtypes.bfloat16)
ROUNDINGS = {"dot_bf16_bf16_f32": (BF16, 1, 0), "dot_f16_f16_f32": (narrow(np.float16), 1, 0),
             "dot_tf32_tf32_f32": (tf32, 1, 0), "dot_tf32_tf32_f32_x3": (tf32, 2, 1),
             "dot_bf16_bf16_f32_x3": (BF16, 2, 1), "dot_bf16_bf16_f32_x6": (BF16, 3, 2),
             "dot_bf16_bf16_f32_x9": (BF16, 3, 4)}


@emulated
def test_algorithms_round_as_they_say(monkeypatch):
    """Closer to the sum of the rounded parts than to that of the given numbers, where these differ. Matmuls of TF32 may
    multiply all bits, where the cost model says that this is no slower; test_cuda_precision.py looks at their rounding."""
    random = np.random.default_rng(1)
    a, b = (random.normal(size=s).astype(np.float32) for s in ((40, 52), (52, 36)))
    results = run(products([("f32", "f32", "f32", algorithm) for algorithm in ROUNDINGS]), [a, b] * len(ROUNDINGS), H100,
                  monkeypatch)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    for result, (algorithm, (round, count, last)) in zip(results, ROUNDINGS.items()):
        lost = np.abs(result - exact).max()
        if algorithm == "dot_tf32_tf32_f32" and lost < 3e-5:
            continue
        np.testing.assert_allclose(result, sum_of_parts(a, b, round, count, last), rtol=0, atol=3e-5, err_msg=algorithm)
        assert lost < 3e-5 if count == 3 else lost < 1e-3 if count == 2 else lost > 1e-3, algorithm


@emulated
def test_infinities_stay_infinities(monkeypatch):
    """Splitting an infinity, or what rounds to one, leaves nothing over, not a NaN."""
    a, b = np.ones((40, 52), np.float32), np.ones((52, 36), np.float32)
    a[3, 5], a[4, 0], a[7, 7] = np.inf, np.finfo(np.float32).max, np.nan
    algorithms = ("dot_bf16_bf16_f32_x3", "dot_tf32_tf32_f32_x3")
    for result in run(products([("f32", "f32", "f32", n) for n in algorithms]), [a, b] * 2, H100, monkeypatch):
        assert np.isposinf(result[3]).all() and (result[4] > 3e38).all() and np.isnan(result[7]).all()
        assert np.isfinite(np.delete(result, [3, 4, 7], 0)).all()


def test_full_precision_where_an_algorithm_asks_for_it():
    assert "hloc_numbers" not in sources_of(product("f32", "f32", "f32", "dot_f32_f32_f32"), H100).readable()


@emulated
@pytest.mark.parametrize("gpu, numbers", [(H100, "hloc_numbers_{0}_{1}"),
                                          (A100, "hloc_numbers_f8_as_f16<hloc_{0}_to_f32, hloc_{1}_to_f32>")])
def test_every_f8(gpu, numbers, monkeypatch):
    """All 256 codes of both, each with a power of two of the other, subnormals and what is no number too."""
    types = {"f8e4m3fn": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2}
    pairs = [(lhs, rhs) for lhs in types for rhs in types]
    text = products([(lhs, rhs, "f32", "") for lhs, rhs in pairs], sizes=(256, 32, 32))
    source = sources_of(text, gpu).readable()
    a, arrays = np.zeros((256, 32), np.uint8), []
    a[:, 3] = np.arange(256)
    for lhs, rhs in pairs:
        assert numbers.format(lhs, rhs) in source
        b = np.zeros((32, 32), types[rhs])
        b[3] = 2.0 ** (np.arange(32) % 8 - 4)
        arrays += [a.view(types[lhs]), b]
    for n, result in enumerate(run(text, arrays, gpu, monkeypatch)):
        with np.errstate(invalid="ignore"):
            expected = arrays[2 * n].astype(np.float32) @ arrays[2 * n + 1].astype(np.float32)
        np.testing.assert_array_equal(result, expected)


@compiled
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("types", [("s8", "s8", "s32"), ("f8e4m3fn", "f8e5m2", "f32"), ("bf16", "bf16", "f32")])
@pytest.mark.parametrize("sizes", [(4000, 4000, 4000), (4001, 4001, 4001)])
def test_products_do_not_spill(arch, types, sizes):
    gpu = A100 if arch == "sm_80" else H100
    sources = sources_of(product(*types, sizes=sizes), gpu)
    found = resources(sources.single_file(), arch)
    assert {k: r for k, r in found.items() if r.spill_stores or r.spill_loads} == {}


@compiled
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120a"])
def test_algorithms_do_not_spill(arch):
    sources = sources_of(products([("f32", "f32", "f32", n) for n in ROUNDINGS], (2000, 2000, 2000)), gpu_named(arch))
    found = resources(sources.single_file(), arch)
    assert {k: r for k, r in found.items() if r.spill_stores or r.spill_loads} == {}
