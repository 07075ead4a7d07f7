"""Convolutions of few channels on GPUs: a window's row, or adjacent taps of a filter's gradient, as one line."""
from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from cuda_emulation.cases import emulate
from test_cuda_warpgroups import BULK, H100, check_fault, compiled, emulated, inputs

from hloc import api
from hloc.evaluate import Evaluator
from hloc.targets.cuda.compiler import compile_verbosely
from hloc.targets.cuda.gpus import GPUS
from hloc.targets.cuda.resources import resources, resources_in
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.target import cuda_target
from hloc.targets.cuda.tiles.convolution_facts import Asked
from hloc.targets.cuda.tiles.source import variants


class Few(NamedTuple):
    """A convolution. x, w: its operands; y: its result; how: the window."""

    x: str
    w: str
    y: str
    how: str
    labels: str = "b01f_01io->b01f"
    type: str = "f32"
    result: str = "f32"

    @property
    def text(self) -> str:
        return (f"HloModule m\nENTRY e {{ x = {self.type}[{self.x}] parameter(0)  w = {self.type}[{self.w}] parameter(1)\n"
                f"  ROOT y = {self.result}[{self.y}] convolution(x, w), window={{size={self.how}}}, "
                f"dim_labels={self.labels} }}\n")

    def program(self, gpu=H100):
        target = cuda_target(gpu)
        return api.plan(api.optimize(api.load(self.text), target), target)

    def facts(self, gpu=H100) -> Asked:
        return Asked.of(self.tile(gpu)[1])

    def tile(self, gpu=H100):
        return next((n, k) for n, k in enumerate(self.program(gpu).kernels) if getattr(k, "library_kernel", "") == "convolution")

    def variants(self, gpu=H100) -> list[str]:
        return variants(self.tile(gpu)[1], gpu)

    def sources(self, variant: str, gpu=H100):
        program, number = self.program(gpu), self.tile(gpu)[0]
        return make_sources(program, gpu, [variant if n == number else "" for n in range(len(program.kernels))])


STEM = Few("2,14,16,3", "7,7,3,72", "2,7,8,72", "7x7 stride=2x2 pad=3_3x3_3")
GRADIENT = Few("2,14,16,3", "2,7,8,40", "7,7,3,40", "7x8 pad=3_2x3_2 rhs_dilate=2x2", "f01b_i01o->01bf")
FORWARD = {
    "stem f32": STEM, "stem bf16": STEM._replace(type="bf16"),
    "two lines of a row": Few("2,8,8,11", "3,3,11,72", "2,8,8,72", "3x3 pad=1_1x1_1"),
    "no padding": Few("3,9,17,4", "3,5,4,72", "3,7,13,72", "3x5"),
    "dilated down": Few("2,14,16,3", "5,5,3,72", "2,10,14,72", "5x5 pad=2_2x1_1 rhs_dilate=2x1", type="f16"),
    "stride 3": Few("2,10,22,3", "5,7,3,72", "2,8,8,72", "5x7 pad=1_1x4_2 stride=1x3"),
    "one channel": Few("2,14,16,1", "5,5,1,72", "2,14,16,72", "5x5 pad=2_2x2_2")}
BACKWARD = {
    "stem f32": GRADIENT, "stem bf16": GRADIENT._replace(type="bf16"),
    "same size": Few("2,6,9,11", "2,6,9,40", "3,3,11,40", "6x9 pad=1_1x1_1", GRADIENT.labels),
    "no padding": Few("4,9,17,4", "4,7,13,40", "3,5,4,40", "7x13", GRADIENT.labels)}
# What stays as it is: windows that take every second element, filters read from their end or with channels apart
PLAIN = [Few("2,14,16,4", "3,3,4,72", "2,12,12,72", "3x3 rhs_dilate=1x2"),
         Few("2,14,16,4", "3,3,4,72", "2,12,14,72", "3x3 rhs_reversal=0x1"),
         Few("2,14,16,4", "72,4,3,3", "2,12,14,72", "3x3", "b01f_oi01->b01f", "f32"),
         Few("2,14,16,32", "3,3,32,72", "2,12,14,72", "3x3"),
         Few("2,14,16,4", "2,6,7,40", "2,2,4,40", "6x7 stride=2x2 rhs_dilate=2x2", GRADIENT.labels)]


def check(case: Few, variant: str, monkeypatch, gpu=H100, backwards: bool = False) -> None:
    sources = case.sources(variant, gpu)
    arrays = inputs(sources)
    (result,) = emulate(sources, arrays, monkeypatch, checked=True, backwards=backwards)
    (right,) = Evaluator(api.load(case.text)).run(arrays)
    np.testing.assert_array_equal(result.astype(float), right.astype(float))


def long_lines(case: Few, gpu=H100) -> bool:
    """Whether a line has the elements of several taps."""
    c = case.facts(gpu).c
    return c["ADJACENT"] > 1 or c["WINDOW2"] == 1


@emulated
@pytest.mark.parametrize("name", FORWARD)
def test_rows_of_windows(name, monkeypatch):
    """By boxes in shared memory, by threads, and on a GPU without boxes."""
    case = FORWARD[name]
    assert long_lines(case) and long_lines(case, GPUS["a100"])
    check(case, next(w for w in case.variants() if w.startswith("64x64x") and "bulk" in w), monkeypatch)
    check(case, next(w for w in case.variants() if "wgmma" not in w), monkeypatch)
    check(case, case.variants(GPUS["a100"])[0], monkeypatch, GPUS["a100"], backwards=True)


@emulated
@pytest.mark.parametrize("name", BACKWARD)
def test_adjacent_taps(name, monkeypatch):
    """Likewise; the depth whole, and in pieces."""
    case = BACKWARD[name]
    assert long_lines(case) and long_lines(case, GPUS["a100"])
    check(case, next(w for w in case.variants() if w.startswith("64x64x") and "bulk" in w), monkeypatch)
    check(case, next(w for w in case.variants() if "wgmma" not in w), monkeypatch)
    check(case, case.variants(GPUS["a100"])[0], monkeypatch, GPUS["a100"], backwards=True)


@emulated
def test_pieces_of_adjacent_taps(monkeypatch):
    case = Few("70,4,6,4", "70,4,4,16", "3,3,4,16", "4x4 pad=1_1", GRADIENT.labels)._replace(how="4x4 pad=1_1x0_0")
    check(case, next(w for w in case.variants() if "bulk" in w and "splits" in w), monkeypatch)


def test_what_has_no_long_lines():
    assert not any(long_lines(case) for case in PLAIN)


def test_images_are_padded_once():
    """A forward convolution and the gradient of its filter read one padded image."""
    text = """HloModule m
ENTRY e {
  x = f32[8,28,28,3] parameter(0)
  w = f32[7,7,3,64] parameter(1)
  dy = f32[8,14,14,64] parameter(2)
  y = f32[8,14,14,64] convolution(x, w), window={size=7x7 stride=2x2 pad=3_3x3_3}, dim_labels=b01f_01io->b01f
  dw = f32[7,7,3,64] convolution(x, dy), window={size=14x14 pad=3_2x3_2 rhs_dilate=2x2}, dim_labels=f01b_i01o->01bf
  ROOT both = (f32[8,14,14,64], f32[7,7,3,64]) tuple(y, dw)
}
"""
    module = api.optimize(api.load(text), cuda_target(H100))
    entry = [i for c in module.computations for i in c.instructions]
    images = {i.operands[0].name for i in entry if i.opcode == "convolution"}
    assert len(images) == 1
    assert {i.operands[0].shape.dimensions for i in entry if i.opcode == "convolution"} == {(8, 28, 34, 4)}
    arrays = [np.random.default_rng(n).integers(-3, 4, size=s).astype(np.float32)
              for n, s in enumerate([(8, 28, 28, 3), (7, 7, 3, 64), (8, 14, 14, 64)])]
    for ours, right in zip(Evaluator(module).run(arrays), Evaluator(api.load(text)).run(arrays), strict=True):
        np.testing.assert_array_equal(ours, right)


@emulated
@pytest.mark.parametrize("case, place, wrong, told", [
    (STEM, "if (channel >= S::CHANNELS || k", "if (k", "outside|nothing has written|NaN|read"),
    (STEM, "(first + k0) % DEEP, across", "4, across", ""),
    (STEM, "CHANNELS = 28,", "CHANNELS = 24,", ""),
    (GRADIENT, "row * S::ADJACENT + image / OWN", "row", "two threads write"),
    (GRADIENT, "image % OWN", "image", "outside|while another|two threads"),
    (GRADIENT, "+ image / OWN", "+ S::ADJACENT - 1 - image / OWN", "")], ids=range(6))
def test_faults(case, place, wrong, told, monkeypatch):
    sources = case.sources(next(w for w in case.variants() if w.startswith("64x64x") and "bulk" in w))
    check_fault(sources, case.text, place, wrong, told, monkeypatch)


LARGE = [Few("32,224,224,3", "7,7,3,64", "32,112,112,64", STEM.how),
         Few("32,224,224,3", "32,112,112,64", "7,7,3,64", "112x112 pad=3_2x3_2 rhs_dilate=2x2", GRADIENT.labels)]


@compiled
@pytest.mark.parametrize("case", LARGE, ids=["forward", "gradient"])
@pytest.mark.parametrize("type", ["f32", "bf16"])
def test_machine_code(case, type):
    """The choice for an H200: nothing spills, products are begun without a wait."""
    case = case._replace(type=type)
    report = compile_verbosely(case.sources(case.variants(GPUS["h200"])[0], GPUS["h200"]).single_file(), "sm_90a")
    assert all(f.spill_stores == f.spill_loads == 0 for f in resources_in(report).values())
    assert "serialized" not in report and BULK in case.variants(GPUS["h200"])[0]


@compiled
@pytest.mark.parametrize("arch", ["a100", "a10", "l4", "h100", "b200", "rtx5090"])
@pytest.mark.parametrize("case", LARGE, ids=["forward", "gradient"])
def test_compile_everywhere(case, arch):
    gpu = GPUS[arch]
    found = resources(case.sources(case.variants(gpu)[0], gpu).single_file(), gpu.arch)
    assert all(f.spill_stores == f.spill_loads == 0 for f in found.values()), found
