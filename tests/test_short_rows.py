"""Sums over short rows of functions, on the CPU: which are transposed."""
from __future__ import annotations

import re

import pytest
from kernel_harness import MACHINE

from hloc.kernels.ir import Local
from hloc.kernels.lower import lower
from hloc.kernels.walks import walk
from hloc.text import parse_module


@pytest.mark.parametrize("operand, beside, turned", [
    ("x = f32[999,12] exponential(b)", "x", 2),
    ("x = f32[999,16] exponential(b)", "x", 0),
    ("t = f32[999,12] add(b, b) x = f32[999,12] add(t, t)", "x", 0),
    ("w = f32[999,12] broadcast(o), dimensions={1} e = f32[999,12] exponential(b) x = f32[999,12] multiply(e, w)",
     "x", 2),
    ("w = f32[999,12] broadcast(o), dimensions={0} e = f32[999,12] exponential(b) x = f32[999,12] multiply(e, w)",
     "e", 2),
], ids=["a function", "whole vectors", "quick", "the same for all rows", "one for each row"])
def test_rows_of_functions_are_turned(operand, beside, turned):
    """How many arrays hold the columns of what a sum reads, and of a result beside it."""
    columns = re.search(r"x = f32\[999,(\d+)\]", operand)[1]
    one = columns if "dimensions={1}" in operand else "999"
    root = parse_module(f"""a {{ p = f32[] parameter(0) q = f32[] parameter(1) ROOT s = f32[] add(p, q) }}
      f {{ b = f32[999,{columns}] parameter(0) o = f32[{one}] parameter(1) {operand} z = f32[] constant(0)
           s = f32[999] reduce(x, z), dimensions={{1}}, to_apply=a
           ROOT r = (f32[999], f32[999,{columns}]) tuple(s, {beside}) }}
      ENTRY e {{ g = f32[999,{columns}] parameter(0) h = f32[{one}] parameter(1)
                 ROOT r = (f32[999], f32[999,{columns}]) fusion(g, h), kind=kInput, calls=f }}""").entry.root
    kernel = lower(root, MACHINE).calls[0].kernel
    assert sum(isinstance(s, Local) and s.name.startswith("transposed") for s in walk(kernel.body)) == turned
