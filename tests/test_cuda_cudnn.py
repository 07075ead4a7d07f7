"""cuDNN in the place of own kernels: what is called, with which sizes and strides, against the evaluator; by a stand-in."""
from __future__ import annotations

import shutil

import numpy as np
import pytest
from cuda_emulation import driver
from cuda_emulation.cudnn import FakeCudnn
from kernel_harness import compare
from test_cuda_runtime import H100

from hloc import api
from hloc.errors import RunError
from hloc.evaluate import evaluate
from hloc.inputs import check_arrays
from hloc.inputs.sensible import sensible_arrays
from hloc.kernels.ir import Tile
from hloc.targets.cuda import container
from hloc.targets.cuda.execution.runtime import CudaBackend
from hloc.targets.cuda.libraries import convolutions as library_convolutions
from hloc.targets.cuda.libraries import cudnn
from hloc.targets.cuda.libraries.cudnn import CudnnConvolution
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.target import cuda_target
from hloc.targets.cuda.tiles.source import CUDNN, variants

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles the emulation, is not installed")


def convolution(lhs: str, rhs: str, result: str, labels: str, window: str, type: str = "f32", rest: str = "", more: str = "") -> str:
    return (f"HloModule m\nENTRY e {{\n  x = {type}[{lhs}] parameter(0)  w = {type}[{rhs}] parameter(1)\n"
            f"  {'' if rest else 'ROOT '}c = {type}[{result}] convolution(x, w), window={{{window}}}, dim_labels={labels}{more}\n"
            f"{rest}}}\n")


NHWC, NCHW = "b01f_01io->b01f", "bf01_oi01->bf01"
FILTER = "f01b_i01o->01bf"              # as the gradient of a filter is written
STEP = "  n = f32[3,3,8,12] negate(c)\n  ROOT s = f32[3,3,8,12] add(n, c)\n"
BIAS = ("  b = {t}[{f}] parameter(2)  bb = {t}[{out}] broadcast(b), dimensions={{{at}}}\n"
        "  {root}s = {t}[{out}] add(c, bb)\n")
RELU = "  z = {t}[] constant(0)  zs = {t}[{out}] broadcast(z), dimensions={{}}\n  ROOT r = {t}[{out}] maximum(s, zs)\n"


def with_bias(text: str, type: str = "f32", out: str = "2,9,10,12", at: int = 3, relu: bool = True) -> str:
    """A convolution's text with a bias for each feature, and a ReLU."""
    facts = {"t": type, "out": out, "f": 12, "at": at, "root": "" if relu else "ROOT "}
    return text.replace("ROOT c", "c").replace("\n}\n", "\n" + (BIAS + (RELU if relu else "")).format(**facts) + "}\n")


# name -> (module, direction, padding, strides, dilations)
CONVOLUTIONS = {
    "channels last": (convolution("2,9,10,8", "3,3,8,12", "2,9,10,12", NHWC, "size=3x3 pad=1_1x1_1"), "forward",
                      (1, 1), (1, 1), (1, 1)),
    "channels first": (convolution("2,8,9,10", "12,8,3,3", "2,12,5,5", NCHW, "size=3x3 stride=2x2 pad=1_1x1_1"),
                       "forward", (1, 1), (2, 2), (1, 1)),
    "bf16": (convolution("2,9,10,8", "3,3,8,12", "2,9,10,12", NHWC, "size=3x3 pad=1_1x1_1", "bf16"), "forward",
             (1, 1), (1, 1), (1, 1)),
    "f64": (convolution("2,9,10,8", "3,3,8,12", "2,9,10,12", NHWC, "size=3x3 pad=1_1x1_1", "f64"), "forward",
            (1, 1), (1, 1), (1, 1)),
    "bias and ReLU": (with_bias(convolution("2,9,10,8", "3,3,8,12", "2,9,10,12", NHWC, "size=3x3 pad=1_1x1_1")), "forward",
                      (1, 1), (1, 1), (1, 1)),
    "bias alone": (with_bias(convolution("2,9,10,8", "3,3,8,12", "2,5,5,12", NHWC, "size=3x3 stride=2x2 pad=1_1x1_1"),
                             out="2,5,5,12", relu=False), "forward", (1, 1), (2, 2), (1, 1)),
    "bf16 with bias and ReLU": (with_bias(convolution("2,9,10,8", "3,3,8,12", "2,9,10,12", NHWC, "size=3x3 pad=1_1x1_1",
                                                      "bf16"), "bf16"), "forward", (1, 1), (1, 1), (1, 1)),
    "padding after the last window": (convolution("2,9,10,8", "3,3,8,12", "2,4,5,12", NHWC, "size=3x3 stride=2x2 pad=0_0x0_1"
                                                  ).replace("pad=0_0x0_1", "pad=0_0x1_0"), "forward", (0, 1), (2, 2), (1, 1)),
    "dilated": (convolution("2,9,10,8", "3,3,8,12", "2,5,6,12", NHWC, "size=3x3 rhs_dilate=2x2"), "forward", (0, 0), (1, 1), (2, 2)),
    "reversed": (convolution("2,9,10,8", "3,3,8,12", "2,9,10,12", NHWC, "size=3x3 pad=1_1x1_1 rhs_reversal=1x1"), "forward",
                 (1, 1), (1, 1), (1, 1)),
    "groups": (convolution("2,9,10,8", "3,3,4,12", "2,9,10,12", NHWC, "size=3x3 pad=1_1x1_1", more=", feature_group_count=2"),
               "forward", (1, 1), (1, 1), (1, 1)),
    "one dimension": (convolution("2,20,8", "3,8,12", "2,20,12", "b0f_0io->b0f", "size=3 pad=1_1"), "forward",
                      (0, 1), (1, 1), (1, 1)),
    "three dimensions": (convolution("2,5,6,7,8", "2,3,2,8,12", "2,4,4,6,12", "b012f_012io->b012f", "size=2x3x2"), "forward",
                         (0, 0, 0), (1, 1, 1), (1, 1, 1)),
    "image gradient": (convolution("2,5,5,12", "3,3,8,12", "2,9,10,8", "b01f_01oi->b01f",
                                   "size=3x3 pad=1_1x1_2 lhs_dilate=2x2 rhs_reversal=1x1"), "data", (1, 1), (2, 2), (1, 1)),
    "image gradient, channels first": (convolution("2,12,5,5", "12,8,3,3", "2,8,9,10", "bf01_io01->bf01",
                                                   "size=3x3 pad=1_1x1_2 lhs_dilate=2x2 rhs_reversal=1x1"), "data",
                                       (1, 1), (2, 2), (1, 1)),
    "filter gradient": (convolution("2,9,10,8", "2,5,5,12", "3,3,8,12", FILTER, "size=5x5 pad=1_1x1_0 rhs_dilate=2x2"),
                        "filter", (1, 1), (2, 2), (1, 1)),
    "filter gradient, with what follows": (convolution("2,9,10,8", "2,9,10,12", "3,3,8,12", FILTER, "size=9x10 pad=1_1x1_1", rest=STEP),
                                           "filter", (1, 1), (1, 1), (1, 1)),
}


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    driver.install(monkeypatch)
    monkeypatch.setattr(library_convolutions, "SMALLEST", 1)
    monkeypatch.setattr(cudnn, "WORKSPACE", 1 << 20)            # of each byte the checker remembers who used it
    FakeCudnn.alive.clear()
    library = FakeCudnn()
    monkeypatch.setattr(cudnn, "library", lambda: library)
    return library


def planned(text: str):
    target = cuda_target(H100)
    return api.plan(api.optimize(api.load(text), target), target)


def convolution_of(text: str) -> CudnnConvolution | None:
    tiles = [k for k in planned(text).kernels if isinstance(k, Tile)]
    found = library_convolutions.library_convolution(tiles[0]) if tiles else None
    assert not tiles or (CUDNN in variants(tiles[0], H100)) == (found is not None)
    return found


def container_of(text: str) -> container.Container:
    program = planned(text)
    sources = make_sources(program, H100, [CUDNN if isinstance(k, Tile) else "" for k in program.kernels])
    own = sources.program
    return container.Container(own.name, "sm_90a", (driver.build(sources, checked=True),) * len(sources.units()),
                               sources.geometry, own.steps, own.parameters, own.results, own.constants, own.arena_size)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name, emulated):
    """Twice: kernel by kernel, and as a graph."""
    text, direction, padding, strides, dilations = CONVOLUTIONS[name]
    module = api.load(text)
    arrays = sensible_arrays(module, 3)
    backend = CudaBackend(container_of(text), {})
    for _ in range(2):
        (result,) = backend(check_arrays(backend.packed.parameters, arrays))
        compare(name, result, evaluate(module, arrays)[0])
    assert len(emulated.calls) == 2 and emulated.calls[0].direction == cudnn.DIRECTIONS[direction]
    about = emulated.calls[0].about
    assert (about.padding, about.strides, about.dilations) == (padding, strides, dilations)
    assert getattr(emulated.calls[0], "relu", None) == ("ReLU" in name if "bias" in name else None)
    backend.close()
    assert not FakeCudnn.alive


OTHERS = {
    "an epilogue": convolution("2,9,10,8", "3,3,8,12", "2,9,10,12", NHWC, "size=3x3 pad=1_1x1_1", rest="  ROOT r = f32[2,9,10,12] sine(c)\n"),
    "a bias, channels first": with_bias(convolution("2,8,9,10", "12,8,3,3", "2,12,5,5", NCHW, "size=3x3 stride=2x2 pad=1_1x1_1"),
                                        out="2,12,5,5", at=1),
    "a bias of another kind": with_bias(convolution("2,9,12,8", "3,3,8,12", "2,9,12,12", NHWC, "size=3x3 pad=1_1x1_1"),
                                        out="2,9,12,12", at=2),
    "less padding behind": convolution("2,9,10,8", "3,3,8,12", "2,8,10,12", NHWC, "size=3x3 pad=1_0x1_1"),
    "batch groups": convolution("4,9,10,8", "3,3,8,12", "2,9,10,12", NHWC, "size=3x3 pad=1_1x1_1", more=", batch_group_count=2"),
    "an image cut off": convolution("2,9,10,8", "3,3,8,12", "2,6,8,12", NHWC, "size=3x3 pad=-1_0x0_0"),
    "integers": convolution("2,9,10,8", "3,3,8,12", "2,9,10,12", NHWC, "size=3x3 pad=1_1x1_1", "s32"),
    "both spread out": convolution("2,5,5,12", "3,3,12,8", "2,5,5,8", NHWC, "size=3x3 stride=2x2 pad=1_1x1_1 lhs_dilate=2x2"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_convolutions_of_another_kind(name):
    """These stay with the own kernels."""
    assert convolution_of(OTHERS[name]) is None


def test_small_convolutions_are_not_worth_a_call(monkeypatch):
    monkeypatch.undo()
    assert convolution_of(CONVOLUTIONS["channels last"][0]) is None
    assert convolution_of(convolution("8,56,56,64", "3,3,64,64", "8,56,56,64", NHWC, "size=3x3 pad=1_1x1_1")) is not None


@pytest.mark.parametrize("first, refused", [
    (((0, 0, 1 << 20, 0, 3),), False), (((0, 9, 1 << 20, 1, 3),), False), (((0, 0, 1 << 40, 1, 3),), False),
    (((0, 0, 1 << 20, 1, 2),), False), (((0, 0, 0, 0, 0),), True)])
def test_algorithms(first, refused, emulated, monkeypatch):
    """Not one whose sums have no order, that fails, that wants too much memory, or that rounds f32; else none."""
    monkeypatch.setattr(FakeCudnn, "first", first)
    if refused:
        with pytest.raises(RunError, match="cuDNN has no algorithm for f32 2x8x9x10, forward"):
            CudaBackend(container_of(CONVOLUTIONS["channels last"][0]), {})
        assert not FakeCudnn.alive
        return
    backend = CudaBackend(container_of(CONVOLUTIONS["channels last"][0]), {})
    backend([np.ones(v.shape.dimensions, np.float32) for v in backend.packed.parameters])
    backend.close()


def test_files(tmp_path):
    """Calls are part of a .cubin; what does not fit is refused."""
    packed, path = container_of(CONVOLUTIONS["image gradient"][0]), tmp_path / "m.cubin"

    def written(**changes) -> container.Container:
        kernels = [k._replace(product=k.product._replace(**changes)) if k.product else k for k in packed.kernels]
        with open(path, "w+b") as file:
            container.write(file, [b"image"] * 99, packed, kernels, "sm_90a")
        return container.read(path)
    assert written().kernels == packed.kernels
    (own,) = (k.product for k in packed.kernels if k.product)
    for wrong in ({"direction": "sideways"}, {"element": "s8"}, {"groups": 0}, {"groups": 3}, {"padding": (0, 0)}, {"strides": (0, 2)},
                  {"x": own.x._replace(argument=7)}, {"x": own.x._replace(offset=1)}, {"filter": (12, 8, 3)},
                  {"y": own.y._replace(strides=(-1, 1, 1, 1))}, {"bias": 0}, {"relu": True}):
        with pytest.raises(RunError, match="no convolution of cuDNN|larger than its arguments"):
            written(**wrong)


def test_without_the_library(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(cudnn, "NAMES", ("libnothing.so",))
    monkeypatch.setattr(cudnn.finding.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RunError, match="cuDNN is not installed") as raised:
        cudnn.library()
    assert "hloc[cudnn]" in raised.value.hint
