"""Kernels that the driver holds itself (hloc/targets/cpu/program/small_kernels.py): which, and that they mean the same."""
from __future__ import annotations

import numpy as np
import pytest

import hloc

# x is scaled 30 times; beside it, scalars count, and a running sum of a row is kept.
LOOP = """HloModule loop
sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
body {
  p = (s32[], f32[8], f32[]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[8] get-tuple-element(p), index=1
  s = f32[] get-tuple-element(p), index=2
  one = s32[] constant(1)
  zero = f32[] constant(0)
  next = s32[] add(i, one)
  row = f32[] reduce(x, zero), dimensions={0}, to_apply=sum
  more = f32[] add(s, row)
  scale = f32[] constant(1.125)
  scales = f32[8] broadcast(scale), dimensions={}
  y = f32[8] multiply(x, scales)
  ROOT t = (s32[], f32[8], f32[]) tuple(next, y, more)
}
condition {
  p = (s32[], f32[8], f32[]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  limit = s32[] constant(30)
  ROOT less = pred[] compare(i, limit), direction=LT
}
ENTRY e {
  x = f32[8] parameter(0)
  zero = s32[] constant(0)
  nothing = f32[] constant(0)
  start = (s32[], f32[8], f32[]) tuple(zero, x, nothing)
  ROOT w = (s32[], f32[8], f32[]) while(start), condition=condition, body=body
}
"""
OFF = {"fusion": "off"}


def source(text: str, **options) -> str:
    return hloc.compile(text, target="cpu", options=hloc.Options(**options)).source


def test_a_loop_over_scalars_runs_inside_the_driver():
    """Without fusion each instruction stays a kernel that is called, and where steps are timed each is one."""
    assert "HLOC_RUN(" in source(LOOP) and "hloc_launch(" not in source(LOOP)
    assert "HLOC_RUN(" not in source(LOOP, passes=OFF)
    assert "HLOC_RUN(" not in source(LOOP, profile=True)


def test_what_runs_long_is_called():
    """A call is nothing beside a kernel over a million elements, nor beside a program that has one."""
    text = ("HloModule long\nENTRY e {\n  x = f32[1000000] parameter(0)\n  y = f32[1000000] exponential(x)\n"
            "  i = s32[4] parameter(1)\n  j = s32[4] negate(i)\n  ROOT t = tuple(y, j)\n}\n")
    assert "HLOC_RUN(" not in source(text)


@pytest.mark.parametrize("passes", [{}, OFF], ids=["inlined", "called"])
def test_results_are_those_of_the_evaluator(passes):
    x = np.linspace(1, 2, 8, dtype=np.float32)
    expected = hloc.compile(LOOP, target="reference")(x)
    for got, want in zip(hloc.compile(LOOP, target="cpu", options=hloc.Options(passes=passes))(x), expected):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_memory_may_change_its_type():
    """A place that one inlined kernel writes as f32 is read as s32 by the next: bytes, not values, are what it holds."""
    text = ("HloModule bits\nENTRY e {\n  x = f32[4] parameter(0)\n  y = f32[4] add(x, x)\n"
            "  z = f32[4] copy(y)\n  b = s32[4] bitcast-convert(z)\n  ROOT t = tuple(y, b)\n}\n")
    x = np.float32([0.5, -1, 3e38, 0])
    y, bits = hloc.compile(text, target="cpu")(x)
    np.testing.assert_array_equal(bits, y.view(np.int32))
