"""The evaluator takes large arrays in blocks and convolutions in pieces: nothing may depend on where they are cut."""
from __future__ import annotations

import numpy as np
import pytest

from hloc.evaluate import evaluate
from hloc.ops import blocks, convolution
from hloc.text import parse_module


def run(text: str, *inputs) -> np.ndarray:
    return evaluate(parse_module(f"HloModule m\nENTRY e {{\n{text}\n}}"), inputs)[0]


@pytest.mark.parametrize("shape", [(7, 3, 5), (105,), (1, 1, 105), (105, 1), (3, 35), (2, 3, 1, 17)])
@pytest.mark.parametrize("block", [1, 4, 16, 1000])
def test_blocks_cover_an_array_once(monkeypatch, shape, block):
    monkeypatch.setattr(blocks, "BLOCK", block)
    seen = np.zeros(shape, np.int64)
    for index in blocks.blocks(shape):
        assert seen[index].size <= block
        seen[index] += 1
    assert (seen == 1).all()


@pytest.mark.parametrize("text", [
    "a = f32[30,7] parameter(0)  ROOT r = f32[30,7] tanh(a)",
    "a = f32[30,7] parameter(0)  b = bf16[30,7] convert(a)  ROOT r = bf16[30,7] multiply(b, b)",
    "a = f32[30,7] parameter(0)  z = f32[] constant(0)  b = f32[30,7] broadcast(z), dimensions={}  "
    "ROOT r = f32[30,7] maximum(a, b)",
    "a = f32[30,7] parameter(0)  l = f32[] constant(-1)  h = f32[] constant(1)  ROOT r = f32[30,7] clamp(l, a, h)",
    "a = f32[30,7] parameter(0)  p = pred[] constant(true)  b = f32[30,7] negate(a)  "
    "ROOT r = f32[30,7] select(p, a, b)",
])
def test_values_do_not_depend_on_blocks(monkeypatch, text):
    a = np.random.default_rng(0).standard_normal((30, 7)).astype(np.float32)
    whole = run(text, a)
    monkeypatch.setattr(blocks, "BLOCK", 10)
    assert run(text, a).tobytes() == whole.tobytes()


def test_a_large_broadcast_is_an_array_of_its_own():
    """Inside it is a view; what a caller gets can be written."""
    result = run("a = f32[300] parameter(0)  ROOT r = f32[300,300] broadcast(a), dimensions={1}",
                 np.arange(300, dtype=np.float32))
    result[0, 0] = 7
    assert result[1, 0] == 0 and result.flags.c_contiguous


@pytest.mark.parametrize("attributes, x, k, result", [
    ("window={size=3x2 stride=1x2 pad=1_1x0_1}, dim_labels=b01f_01io->b01f", (3, 5, 6, 4), (3, 2, 4, 2), (3, 5, 3, 2)),
    ("window={size=3x3 pad=1_1x1_1}, dim_labels=f01b_i01o->01bf", (3, 3, 3, 4), (3, 3, 3, 2), (3, 3, 4, 2)),
    ("window={size=2}, dim_labels=b0f_0io->b0f, feature_group_count=2", (3, 5, 4), (2, 2, 6), (3, 4, 6)),
    ("window={size=2}, dim_labels=f0b_i0o->b0f, batch_group_count=2", (4, 5, 6), (4, 2, 2), (3, 4, 2)),
])
def test_convolution_does_not_depend_on_pieces(monkeypatch, attributes, x, k, result):
    """Whole numbers, so that sums are exact in any order."""
    random = np.random.default_rng(0)
    lhs, rhs = (random.integers(-4, 5, s).astype(np.float32) for s in (x, k))
    shapes = ["f32[" + ",".join(map(str, s)) + "]" for s in (x, k, result)]
    text = (f"x = {shapes[0]} parameter(0)  k = {shapes[1]} parameter(1)  "
            f"ROOT r = {shapes[2]} convolution(x, k), {attributes}")
    whole = run(text, lhs, rhs)
    for size in (1, 40, 200):
        monkeypatch.setattr(convolution, "LARGEST_COPY", size)
        np.testing.assert_array_equal(run(text, lhs, rhs), whole)
