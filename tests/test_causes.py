"""Differences are named where they have a name, and only there."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from hloc.evaluate import evaluate
from hloc.inputs import entry_results
from hloc.text import parse_module
from hloc.tools.causes import causes_of
from hloc.tools.compare import compare

MULTIPLY_ADD = "ENTRY e { x = f32[64] parameter(0)  y = f32[64] parameter(1)  z = f32[64] parameter(2)\n" \
               "  p = f32[64] multiply(x, y)  ROOT r = f32[64] subtract(p, z) }"
HALVE = "ENTRY e { x = f32[4] parameter(0)  h = f32[] constant(0.25)  hh = f32[4] broadcast(h), dimensions={}\n" \
        "  s = f32[4] multiply(x, hh)  b = f32[] constant(1e30)  bb = f32[4] broadcast(b), dimensions={}\n" \
        "  ROOT r = f32[4] multiply(s, bb) }"
SUM = "add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }\n" \
      "ENTRY e { x = f32[4096] parameter(0)  z = f32[] constant(0)\n" \
      "  ROOT r = f32[] reduce(x, z), dimensions={0}, to_apply=add }"
HALVES = "ENTRY e { x = bf16[64] parameter(0)  y = bf16[64] parameter(1)  p = bf16[64] multiply(x, y)\n" \
         "  s = bf16[64] add(p, y)  ROOT r = bf16[64] multiply(s, x) }"
RANDOM = np.random.default_rng(1)


def named(text: str, arrays, got, tolerance: float = 0.0) -> tuple[str, ...]:
    module = parse_module(text)
    want = evaluate(module, arrays)
    results = entry_results(module)
    rows = compare(results, [got], want, tolerance)
    assert not rows[0].agrees
    (causes,) = causes_of(module, arrays, rows, results, [got], want, names=("cpu", "reference"))
    return tuple(c.partition(":")[0] for c in causes)


def three() -> list[np.ndarray]:
    x, y = RANDOM.random(64, np.float32), RANDOM.random(64, np.float32)
    return [x, y, x * y]


def test_contraction():
    x, y, z = three()
    fused = (x.astype(np.float64) * y - z).astype(np.float32)
    assert named(MULTIPLY_ADD, [x, y, z], fused) == ("contraction (fma)",)


def test_flushed_subnormals():
    x = np.float32([1e-38, 2e-38, 1, 0])
    flushed = np.float32([0, 0, 0.25e30, 0])
    assert named(HALVE, [x], flushed, 1e-40) == ("flushed subnormal",)


def test_order_of_a_sum():
    x = RANDOM.normal(0, 1, 4096).astype(np.float32)
    assert named(SUM, [x], x[::-1].cumsum(dtype=np.float32)[-1]) == ("order of a sum",)


def test_rounding_of_an_intermediate_type():
    x, y = (RANDOM.random(64, np.float32).astype(ml_dtypes.bfloat16) for _ in range(2))
    wide = [a.astype(np.float32) for a in (x, y)]
    got = ((wide[0] * wide[1] + wide[1]) * wide[0]).astype(ml_dtypes.bfloat16)
    assert named(HALVES, [x, y], got) == ("rounding of an intermediate type",)


@pytest.mark.parametrize("text, count, change", [
    (MULTIPLY_ADD, 3, lambda r: r + np.float32(0.01)), (SUM, 1, lambda r: r * np.float32(1.01)),
    (MULTIPLY_ADD, 3, np.negative), (HALVE, 1, lambda r: np.float32([0, 1, 2, 3]))])
def test_other_differences_have_no_name(text, count, change):
    module = parse_module(text)
    arrays = [RANDOM.random(p.shape.dimensions, np.float32) for p in module.entry.parameters]
    assert len(arrays) == count
    assert named(text, arrays, change(np.asarray(evaluate(module, arrays)[0]))) == ()
