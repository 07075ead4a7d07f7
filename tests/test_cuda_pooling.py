"""Gradients of poolings on a GPU: elements look for the windows that chose them."""
from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import pytest
from cuda_emulation.cases import emulate
from test_cuda_warpgroups import H100, check_fault, emulated

from hloc import api
from hloc.evaluate import Evaluator
from hloc.inputs import check_arrays
from hloc.ir import numpy_dtype
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.target import cuda_target

SMALL = dataclasses.replace(H100, cores=1)      # has enough threads if each has four elements


class Pooling(NamedTuple):
    """x: the operand; dy: the sources; how: the window."""

    x: str
    dy: str
    how: str
    lanes: int = 4
    type: str = "f32"
    select: str = "GE"

    @property
    def text(self) -> str:
        return f"""HloModule m
choose {{ a = {self.type}[] parameter(0)  b = {self.type}[] parameter(1)  ROOT r = pred[] compare(a, b), direction={self.select} }}
add {{ a = {self.type}[] parameter(0)  b = {self.type}[] parameter(1)  ROOT r = {self.type}[] add(a, b) }}
ENTRY e {{ x = {self.type}[{self.x}] parameter(0)  dy = {self.type}[{self.dy}] parameter(1)  z = {self.type}[] constant(0)
  ROOT dx = {self.type}[{self.x}] select-and-scatter(x, dy, z), window={{size={self.how}}}, select=choose, scatter=add }}
"""

    def sources(self):
        target = cuda_target(SMALL)
        return make_sources(api.plan(api.optimize(api.load(self.text), target), target), SMALL)


CASES = {
    "3x3, stride 2": Pooling("2,9,11,64", "2,4,5,64", "1x3x3x1 stride=1x2x2x1"),
    "padding": Pooling("2,8,8,32", "2,4,4,32", "1x3x3x1 stride=1x2x2x1 pad=0_0x1_0x0_1x0_0"),
    "two elements": Pooling("3,12,12,18", "3,6,6,18", "1x2x2x1 stride=1x2x2x1", lanes=2),
    "few windows": Pooling("1,7,7,32", "1,3,3,32", "1x3x3x1 stride=1x2x2x1", lanes=1),
    "windows along rows": Pooling("2,32,9,11", "2,32,4,5", "1x1x3x3 stride=1x1x2x2", lanes=1),
    "more than 128 taps": Pooling("1,24,24,64", "1,4,5,64", "1x12x12x1 stride=1x4x3x1"),
    "bf16": Pooling("2,9,11,64", "2,4,5,64", "1x3x3x1 stride=1x2x2x1", type="bf16"),
    "the last of equals": Pooling("2,9,11,64", "2,4,5,64", "1x3x3x1 stride=1x2x2x1", select="GT"),
    "windows of padding": Pooling("2,4,4,64", "2,6,6,64", "1x2x2x1 stride=1x2x2x1 pad=0_0x4_4x4_4x0_0")}


def arrays_of(sources) -> list[np.ndarray]:
    """Small whole numbers, many of them equal, NaN, and infinities."""
    random = np.random.default_rng(0)
    x, dy = (random.integers(-3, 4, size=p.shape.dimensions).astype(np.float32) for p in sources.program.parameters)
    for value in (np.nan, np.inf, -np.inf):
        x[random.random(x.shape) < 0.05] = value
    return check_arrays(sources.program.parameters, [
        a.astype(numpy_dtype(p.shape.element_type)) for a, p in zip((x, dy), sources.program.parameters)])


@emulated
@pytest.mark.parametrize("name", CASES)
def test_windows_that_chose_an_element(name, monkeypatch):
    case = CASES[name]
    sources = case.sources()
    chosen = sources.readable().split("_choose(")[1].split("_gather(")[0]
    assert chosen.count("scratch0[") == case.lanes
    assert ("hloc_s16 *scratch0" in chosen) == ("taps" in name)
    arrays = arrays_of(sources)
    (result,) = emulate(sources, arrays, monkeypatch, checked=True)
    (right,) = Evaluator(api.load(case.text)).run(arrays)
    np.testing.assert_array_equal(result.astype(float), right.astype(float))


@emulated
@pytest.mark.parametrize("place, wrong", [
    ("p5 + 16] = v1;", "p5 + 16] = v0;"), ("? v1 + t6", "? v1 + t5"), ("hloc_convert_s8_s32(t2) == t0", "hloc_convert_s8_s32(t1) == t0")],
    ids=range(3))
def test_faults(place, wrong, monkeypatch):
    """An element that takes another one's sum, source or window."""
    case = CASES["3x3, stride 2"]
    check_fault(case.sources(), case.text, place, wrong, "", monkeypatch)
