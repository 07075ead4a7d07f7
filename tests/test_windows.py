"""Loops over windows on the CPU: which are made by passes, and in doublings (reductions/window_passes.py)."""
from __future__ import annotations

import pytest
from kernel_harness import MACHINE

from hloc.kernels.ir import VECTOR, For, Local
from hloc.kernels.lower import lower
from hloc.kernels.walks import walk
from hloc.text import parse_module


@pytest.mark.parametrize("shapes, window, op, extents", [
    # 500 of the result, 31 more under the last window; 32 = 1 * 2 ** 5
    ("531 500", "size=32", "add", [531, 531, 530, 528, 524, 516, 500, 500, 500]),
    # 21 = 1 + 4 + 16: as it comes, then with what is four and sixteen long
    ("520 500", "size=21", "add", [520, 520, 500, 519, 517, 500, 513, 505, 500, 500]),
    # of maxima two of sixteen overlap
    ("520 500", "size=21", "maximum", [520, 520, 519, 517, 513, 505, 500, 500]),
    ("503 500", "size=4", "add", []),
    ("40,40,8 34,34,8", "size=7x7x1", "add", [320, 320, 272, 272]),
    ("60,60 60,60", "size=3x3 pad=1_1x1_1", "add", [62, 60, 60, 60]),
    ("20,42,8 18,40,8", "size=3x3x1", "add", [336, 336, 320, 320]),
    ("20,42,64 18,40,64", "size=3x3x1", "add", []),
    ("1529 500", "size=32 stride=3", "add", [1529, 1529, 1528, 1526, 1522, 1514, 1498, 500, 500]),
    ("90000 60000", "size=30001", "add", []),
], ids=["a power of two", "a sum of powers", "overlapping", "few taps", "taps one by one", "an image's few taps",
        "few channels", "channels enough", "steps", "too long"])
def test_windows_by_passes(shapes, window, op, extents):
    """The lengths of the VECTOR loops of one block."""
    given, result = shapes.split()
    root = parse_module(f"""f {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] {op}(a, b) }}
      ENTRY e {{ x = f32[{given}] parameter(0) i = f32[] constant(0)
                 ROOT r = f32[{result}] reduce-window(x, i), window={{{window}}}, to_apply=f }}""").entry.root
    body = list(walk(lower(root, MACHINE).calls[0].kernel.body))
    assert any(isinstance(s, Local) and s.name == "taken0" for s in body) == bool(extents)
    if extents:
        assert [s.extent for s in body if isinstance(s, For) and s.kind == VECTOR] == extents
