"""Gradients of filters on GPUs: sums over positions, both operands contiguous across the depth."""
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
from hloc.targets.cuda.tiles.positions import Positions, positions_of
from hloc.targets.cuda.tiles.source import variants


class Gradient(NamedTuple):
    """x: the input of the forward convolution; dy: the gradient of its output; dw: of its filter; how: the window."""

    x: str
    dy: str
    dw: str
    how: str
    type: str = "bf16"
    labels: str = "f01b_i01o->01bf"
    more: str = ""

    @property
    def text(self) -> str:
        return (f"HloModule m\nENTRY e {{ x = {self.type}[{self.x}] parameter(0)  dy = {self.type}[{self.dy}] parameter(1)\n"
                f"  ROOT dw = f32[{self.dw}] convolution(x, dy), window={{size={self.how}}}, dim_labels={self.labels}"
                f"{self.more} }}\n")

    def program(self, gpu):
        target = cuda_target(gpu)
        return api.plan(api.optimize(api.load(self.text), target), target)

    def variants(self, gpu=H100) -> list[str]:
        return variants(self.program(gpu).kernels[0], gpu)

    def sources(self, variant: str, gpu=H100):
        program = self.program(gpu)
        assert variant in variants(program.kernels[0], gpu), variants(program.kernels[0], gpu)
        return make_sources(program, gpu, [variant])


SAME = Gradient("4,6,7,72", "4,6,7,40", "3,3,72,40", "6x7 pad=1_1x1_1")
STRIDED = Gradient("2,12,14,64", "2,6,7,72", "3,3,64,72", "6x7 pad=1_0x0_1 rhs_dilate=2x2", "f16")
GRADIENTS = {
    "3x3": SAME, "stride 2": STRIDED,
    "stride 3, more taps": Gradient("2,16,13,8", "2,4,4,16", "5,3,8,16", "4x4 pad=-1_-1x0_-1 rhs_dilate=3x3"),
    "1x1 of stride 2": Gradient("3,5,8,136", "3,3,4,24", "1,1,136,24", "3x4 pad=0_0x0_-1 rhs_dilate=2x2"),
    "dilated filter": Gradient("2,8,8,16", "2,8,8,64", "3,3,16,64", "8x8 pad=2_2x2_2 stride=2x2"),
    "large padding": Gradient("2,4,4,64", "2,9,9,8", "3,2,64,8", "9x9 pad=4_3x4_2"),
    "one dimension": Gradient("16,36,24", "16,36,8", "5,24,8", "36 pad=2_2", labels="f0b_i0o->0bf"),
    "one image": Gradient("1,8,8,64", "1,8,8,64", "3,3,64,64", "8x8 pad=1_1x1_1"),
    "other layout": Gradient("6,7,4,72", "6,7,4,40", "3,3,72,40", "6x7 pad=1_1x1_1", labels="01fb_01io->01bf"),
}
PRODUCT = Gradient("3,5,7,72", "3,5,7,40", "1,1,72,40", "5x7")


def check(case: Gradient, variant: str, monkeypatch, gpu=H100, backwards: bool = False) -> None:
    sources = case.sources(variant, gpu)
    arrays = inputs(sources)
    (result,) = emulate(sources, arrays, monkeypatch, checked=True, backwards=backwards)
    (right,) = Evaluator(api.load(case.text)).run(arrays)
    np.testing.assert_array_equal(result.astype(float), right.astype(float))


@emulated
@pytest.mark.parametrize("name", GRADIENTS)
def test_boxes_of_positions(name, monkeypatch):
    """Padding, strides, dilation; channels that are no whole lines; positions that fill no whole step."""
    check(GRADIENTS[name], f"64x64x64, 4 {BULK}", monkeypatch)


@emulated
@pytest.mark.parametrize("tile", ["128x256x64, 4", "128x128x64, 6", "64x256x64, 5", "64x128x64, 4", "192x128x64, 4",
                                  "192x64x64, 5", "128x64x64, 8"])
def test_tiles_of_positions(tile, monkeypatch):
    """Tiles of several taps, and tiles with panels behind the last one."""
    check(SAME, f"{tile} {BULK}", monkeypatch, backwards=True)


@emulated
def test_pieces_of_positions(monkeypatch):
    """Positions are cut into pieces, the last one shorter, and joined in order."""
    case = Gradient("70,4,4,16", "70,4,4,16", "3,3,16,16", "4x4 pad=1_1x1_1")
    variant = next(w for w in case.variants() if "192x64x64" in w and "splits" in w)
    check(case, variant, monkeypatch)


ROWS = {"bf16": SAME._replace(x="4,6,7,24"), "f16": STRIDED._replace(x="2,12,14,16", dw="3,3,16,72"),
        "f32": SAME._replace(type="f32", x="4,6,7,20"), "s8": SAME._replace(type="s8", x="4,6,7,16", dy="4,6,7,16")}
ROWS = {name: case._replace(dw=f"3,3,{case.x.split(',')[-1]},{case.dy.split(',')[-1]}") for name, case in ROWS.items()}
ROWS["groups"] = Gradient("2,6,7,48", "2,6,7,32", "3,3,24,32", "6x7 pad=1_1x1_1", more=", batch_group_count=2")


@emulated
@pytest.mark.parametrize("gpu", ["a100", "h100"])
@pytest.mark.parametrize("name", ["bf16", "f16", "f32", "groups"])
def test_images_side_by_side(name, gpu, monkeypatch):
    """16 bytes along the channels of the input, by asynchronous copies: a pipeline, and warpgroups."""
    case = ROWS[name]
    found = [next((w for w in case.variants(GPUS[gpu]) if w.startswith("64x64") and "stages" in w and "bulk" not in w
                   and ("wgmma" in w) == grouped), None) for grouped in (False, True)]
    assert found[0] and (found[1] or gpu == "a100" or name == "f32")
    for variant in filter(None, found):
        check(case, variant, monkeypatch, GPUS[gpu])


@emulated
@pytest.mark.parametrize("type, ends", [("bf16", ("3 stages", "4 stages, wgmma", f"4 {BULK}")), ("f32", ("3 stages",))])
def test_whole_windows_are_products(type, ends, monkeypatch):
    """A 1x1 filter's gradient is a matrix product: rows of channels, and a depth of all positions."""
    case = PRODUCT._replace(type=type)
    for end in ends:
        variant = next(w for w in case.variants() if w.startswith("64x64x") and w.endswith(end))
        assert "hloc_gemm<" in case.sources(variant).readable()
        check(case, variant, monkeypatch)


def test_positions_fill_steps():
    """Boxes divide the positions; sizes without small divisors fill less of a step."""
    def found(images: int, down: int, across: int) -> Positions:
        return positions_of({"CHANNELS": images, "WINDOW1": down, "WINDOW2": across, "DILATION1": 1, "DILATION2": 1}, 2)
    assert found(128, 28, 28) == Positions(4, 4, 4)
    assert all(found(128, n, n).size >= 56 for n in (56, 14, 7))
    assert found(1, 13, 11) == Positions(1, 13, 1)
    case = GRADIENTS["one image"]
    other = case._replace(dy="1,8,8,60", dw="3,3,64,60")
    assert not any("bulk" in w for w in other.variants())
    assert any("bulk" in w for w in case.variants()) and not any("wgmma" in w for w in case.variants(GPUS["a100"]))


@emulated
@pytest.mark.parametrize("place, wrong, told", [
    ("hloc_positions_rest<k0_convolution_shape>(memory);", "", "nothing has written"),
    ("step.down * S::DILATION1, step.channel", "step.down, step.channel", ""),
    ("% S::OUT2 * S::STRIDE2 - S::LOW2", "% S::OUT2 * S::STRIDE2", ""),
    ("hloc_position_step<S>::COUNT;\n  const unsigned char *map;\n  int panel", "S::BK;\n  const unsigned char *map;\n  int panel",
     "some threads never reach"),
    ("at.inside() && column", "column", "write outside|two threads write"),
    ("column + j, step.across, step.down,", "column + j, step.down, step.across,", ""),
    ("image = at % S::PANELS * LINE", "image = at * LINE", "")], ids=range(7))
def test_faults_of_positions(place, wrong, told, monkeypatch):
    """Positions of several boxes in each direction, in two panels of channels."""
    case = Gradient("1,12,132,72", "1,6,66,8", "3,3,72,8", "6x66 pad=1_0x1_0 rhs_dilate=2x2")
    sources = case.sources(f"128x64x64, 8 {BULK}")
    check_fault(sources, case.text, place, wrong, told, monkeypatch)


@compiled
@pytest.mark.parametrize("tile", ["128x256x64, 4", "192x128x64, 4", "192x64x64, 5", "64x64x64, 4"])
def test_machine_code_of_positions(tile):
    """Nothing spills; products are begun without a wait."""
    case = Gradient("128,28,28,128", "128,28,28,128", "3,3,128,128", "28x28 pad=1_1x1_1")
    variant = next(w for w in case.variants() if w.startswith(tile) and "bulk" in w)
    text = case.sources(variant).single_file()
    report = compile_verbosely(text, "sm_90a")
    assert all(f.spill_stores == f.spill_loads == 0 for f in resources_in(report).values())
    assert "serialized" not in report


@compiled
@pytest.mark.parametrize("arch", ["a100", "a10", "l4", "h100", "b200", "rtx5090"])
@pytest.mark.parametrize("type", ["bf16", "f32"])
def test_filter_gradients_compile_everywhere(type, arch):
    """Without spills."""
    case = Gradient("32,28,28,128", "32,28,28,128", "3,3,128,128", "28x28 pad=1_1x1_1", type)
    gpu = GPUS[arch]
    variant = next(w for w in case.variants(gpu) if "stages" in w)
    found = resources(case.sources(variant, gpu).single_file(), gpu.arch)
    assert all(f.spill_stores == f.spill_loads == 0 for f in found.values()), (variant, found)
