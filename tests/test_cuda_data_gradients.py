"""Convolutions of dilated inputs on GPUs, such as gradients of strided convolutions, in phases; epilogues of tiles."""
from __future__ import annotations

import numpy as np
import pytest
from cuda_emulation import driver
from cuda_emulation.cases import backend_of, emulate
from test_cuda_warpgroups import BULK, H100, Patched, compiled, emulated, inputs

from hloc import api
from hloc.errors import RunError
from hloc.evaluate import Evaluator
from hloc.kernels.ir import Tile
from hloc.targets.cuda.gpus import GPUS
from hloc.targets.cuda.resources import resources
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.target import cuda_target
from hloc.targets.cuda.tiles.phases import Phase, phase, phases_of
from hloc.targets.cuda.tiles.source import variants


def strided(dy: str, w: str, dx: str, how: str, type: str = "bf16", labels: str = "b01f_01oi->b01f") -> Patched:
    """dy: the gradient of a strided convolution's output; w: the filter; dx: the gradient of its input."""
    return Patched(dy, w, dx, how, labels, type)


CASES = {
    "3x3": strided("3,4,5,64", "3,3,72,64", "3,8,10,72", "3x3 pad=1_2x1_2 lhs_dilate=2x2 rhs_reversal=1x1"),
    "1x1": strided("4,4,4,64", "1,1,40,64", "4,8,8,40", "1x1 pad=0_1x0_1 lhs_dilate=2x2"),
    "odd sizes": strided("3,5,5,64", "3,2,40,64", "3,10,9,40", "3x2 pad=1_2x1_0 lhs_dilate=2x2", "f16"),
    "three": strided("7,3,3,64", "5,4,64,40", "7,9,8,40", "5x4 pad=3_3x2_2 lhs_dilate=3x3 rhs_reversal=1x0",
                     labels="b01f_01io->b01f"),
    "one dimension": strided("3,8,3,64", "3,3,40,64", "3,8,5,40", "3x3 pad=1_1x1_1 lhs_dilate=1x2"),
    "negative padding": strided("7,5,5,64", "3,3,40,64", "7,6,6,40", "3x3 pad=-1_0x0_-1 lhs_dilate=2x2"),
}

BOXES = ("3x3", "1x1", "negative padding")      # whose phases fill tiles well enough


def program(text: str, gpu=H100):
    target = cuda_target(gpu)
    return api.plan(api.optimize(api.load(text), target), target)


def run(text: str, variant: str, monkeypatch, gpu=H100, backwards: bool = False) -> None:
    planned = program(text, gpu)
    labels = [next(w for w in variants(k, gpu) if all(part in w for part in variant.split("|")))
              if isinstance(k, Tile) and k.library_kernel in ("convolution", "gemm") else "" for k in planned.kernels]
    sources = make_sources(planned, gpu, labels)
    arrays = inputs(sources)
    results = emulate(sources, arrays, monkeypatch, checked=True, backwards=backwards)
    for result, right in zip(results, Evaluator(api.load(text)).run(arrays), strict=True):
        np.testing.assert_array_equal(result.astype(float), right.astype(float))


@emulated
@pytest.mark.parametrize("name", CASES)
def test_phases(name, monkeypatch):
    """Phases with different numbers of taps, with none, with output positions left over."""
    copies = ", bulk copies" if name in BOXES else ""
    run(CASES[name].text, f"64x64x64, 4 stages, wgmma{copies}, phases", monkeypatch)


@emulated
@pytest.mark.parametrize("type, gpu, variant", [
    ("bf16", "h100", "64x64x64, 4 stages, wgmma, phases"), ("bf16", "a100", "64x64x64, 3 stages, phases"),
    ("f32", "a100", "64x64x32, 3 stages, phases"), ("s8", "a100", "64x64x64, phases")])
def test_phases_by_other_copies(type, gpu, variant, monkeypatch):
    case = CASES["3x3"]._replace(type=type)
    text = case.text.replace("y = f32", "y = s32") if type == "s8" else case.text
    run(text, variant, monkeypatch, GPUS[gpu], backwards=True)


def test_which_taps_meet_elements():
    """Every tap of the window belongs to one phase, and every position to one, as the definition says."""
    for size, base, window, low in ((8, 2, 3, 1), (9, 3, 5, 2), (7, 2, 1, 0), (6, 4, 3, -2), (5, 1, 3, 1)):
        found = [phase(size, base, window, low, first) for first in range(min(base, size))]
        for p in found:
            for n in range(p.size):
                place = p.step * n + p.first
                right = [(w, (place - low + w) // base) for w in range(window) if (place - low + w) % base == 0]
                assert [(p.tap + p.distance * u, n - p.low + u) for u in range(p.taps)] == right
        assert sum(p.size for p in found) == size
    assert phase(8, 2, 3, 1, 1) == Phase(4, 2, 1, 2, 0, 2, 0)


def test_what_has_no_phases():
    """Windows with a stride of their own in a dilated dimension, and inputs without dilation."""
    case = CASES["3x3"]
    for other in (case._replace(x="3,8,10,64", how="3x3 pad=1_1x1_1"),
                  case._replace(y="3,4,10,72", how="3x3 stride=2x1 pad=1_2x1_2 lhs_dilate=2x2")):
        (kernel,) = program(other.text).kernels
        assert not phases_of(kernel) and not any("phases" in w for w in variants(kernel, H100))
    (kernel,) = program(case.text).kernels
    assert len(phases_of(kernel)) == 4


@emulated
@pytest.mark.parametrize("place, wrong", [
    ("p1 * S::STEP1 + S::FIRST1", "p1 * S::STEP1"), ("* S::WHOLE2 + p2", "* S::OUT2 + p2")])
def test_faults_of_phases(place, wrong, monkeypatch):
    case = CASES["3x3"]
    planned = program(case.text)
    sources = make_sources(planned, H100, [f"64x64x64, 4 {BULK}, phases"])
    whole = driver.text_of(sources)
    assert place in whole
    driver.install(monkeypatch)
    backend = backend_of(sources, image=driver.build_text(whole.replace(place, wrong), checked=True))
    arrays = inputs(sources)
    (right,) = Evaluator(api.load(case.text)).run(arrays)
    try:
        assert (backend(arrays)[0] != right).any()
    except RunError as error:
        assert "two threads write" in str(error) or "nothing has written" in str(error)
    backend.close()


# -- epilogues ---------------------------------------------------------------------------------------------------------

EPILOGUE = """HloModule m
ENTRY e {{ x = bf16[3,5,8,{c}] parameter(0)  w = bf16[{k},{k},{f},{c}] parameter(1)  b = f32[{f}] parameter(2)
  r = bf16[3,5,8,{f}] parameter(3)  g = f32[3,5,8,{f}] parameter(4)
  y = f32[3,5,8,{f}] convolution(x, w), window={{size={k}x{k} pad={p}_{p}x{p}_{p}}}, dim_labels=b01f_01oi->b01f
  bb = f32[3,5,8,{f}] broadcast(b), dimensions={{3}}  s = f32[3,5,8,{f}] add(y, bb)
  z = f32[] constant(0)  zs = f32[3,5,8,{f}] broadcast(z), dimensions={{}}
  rr = f32[3,5,8,{f}] convert(r)  q = f32[3,5,8,{f}] add(s, rr)  m = pred[3,5,8,{f}] compare(g, zs), direction=GT
  ROOT o = f32[3,5,8,{f}] select(m, q, zs) }}
"""


@emulated
@pytest.mark.parametrize("c, f, k, variant", [
    (64, 72, 3, f"64x64x64, 4 {BULK}"), (64, 70, 3, "64x64x64, 3 stages"), (64, 37, 1, "64x64x64, 3 stages"),
    (64, 72, 1, f"64x64x64, 4 {BULK}"), (64, 40, 3, "64x64x64, 4 stages, wgmma"), (128, 24, 3, "splits|bulk copies"),
    (6, 10, 3, "64x64x32")])
def test_epilogues(c, f, k, variant, monkeypatch):
    """Features in multiples of 4, 2 and 1, rows and columns outside of the result, a choice between two loads."""
    run(EPILOGUE.format(c=c, f=f, k=k, p=k // 2), variant, monkeypatch)


@compiled
@pytest.mark.parametrize("tile", ["128x256x64, 4 stages, wgmma, bulk copies", "128x256x64, 3 stages"])
def test_machine_code_of_epilogues(tile):
    """16 bytes at once, without spills."""
    text = EPILOGUE.format(c=64, f=256, k=3, p=1).replace("3,5,8", "64,28,28")
    planned = program(text)
    sources = make_sources(planned, H100, [next(w for w in variants(k, H100) if w.startswith(tile)) for k in planned.kernels])
    assert "hloc_wide<4>" in sources.readable()
    assert all(f.spill_stores == f.spill_loads == 0 for f in resources(sources.single_file(), "sm_90a").values())
