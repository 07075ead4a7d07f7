"""Arrays in combiners and comparators, which have no kernel of their own: refused by name, with the place; the evaluator
computes them all."""
from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

import hloc
from hloc.errors import UnsupportedError


class Inside(NamedTuple):
    """Lines of a combiner of f32 a and b, up to f32[1] one; the computations that they call."""

    lines: str
    helpers: str = ""


PAIR = "a1 = f32[1] reshape(a)  b1 = f32[1] reshape(b)  v = f32[2] concatenate(a1, b1), dimensions={0}\n"
STATE = "(s32[], f32[2])"
CASES = {
    "sort": Inside(PAIR + "w = f32[2] sort(v), dimensions={0}, to_apply=before  one = f32[1] slice(w), slice={[1:2]}",
                   "before { x = f32[] parameter(0)  y = f32[] parameter(1)  ROOT r = pred[] compare(x, y), direction=LT }"),
    "topk": Inside(PAIR + "w = (f32[1], s32[1]) topk(v), k=1, largest=true  one = f32[1] get-tuple-element(w), index=0"),
    "fft": Inside(PAIR + "w = c64[2] fft(v), fft_type=RFFT, fft_length={2}  c = f32[2] real(w)  "
                  "one = f32[1] slice(c), slice={[1:2]}"),
    "conditional": Inside(PAIR + "p = pred[] compare(a, b), direction=LT  w = f32[2] conditional(p, v, v), "
                          "true_computation=turned, false_computation=negated  one = f32[1] slice(w), slice={[1:2]}",
                          "turned { q = f32[2] parameter(0)  ROOT r = f32[2] reverse(q), dimensions={0} }\n"
                          "negated { q = f32[2] parameter(0)  ROOT r = f32[2] negate(q) }"),
    "while": Inside(PAIR + f"n = s32[] convert(a)  t = {STATE} tuple(n, v)  u = {STATE} while(t), condition=more, body=step\n"
                    "w = f32[2] get-tuple-element(u), index=1  one = f32[1] slice(w), slice={[1:2]}",
                    f"more {{ q = {STATE} parameter(0)  i = s32[] get-tuple-element(q), index=0  z = s32[] constant(9)\n"
                    "ROOT r = pred[] compare(i, z), direction=LT }\n"
                    f"step {{ q = {STATE} parameter(0)  i = s32[] get-tuple-element(q), index=0\n"
                    "e = f32[2] get-tuple-element(q), index=1  o = s32[] constant(1)  j = s32[] add(i, o)\n"
                    f"d = f32[2] reverse(e), dimensions={{0}}  ROOT r = {STATE} tuple(j, d) }}"),
}
ROOTS = {"combiner": "ROOT sum = f32[] add(r0, b)", "comparator": "ROOT less = pred[] compare(r0, b), direction=LT"}
USES = {
    "reduce": ("combiner", "f32[3] reduce(x, z), dimensions={1}, to_apply=f"),
    "reduce-window": ("combiner", "f32[3,4] reduce-window(x, z), window={size=1x2}, to_apply=f"),
    "map": ("combiner", "f32[3,5] map(x, x), dimensions={0,1}, to_apply=f"),
    "scatter": ("combiner", "f32[3,5] scatter(x, i, u), update_window_dims={1}, inserted_window_dims={0}, "
                            "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=f"),
    "select-and-scatter": ("combiner", "f32[3,5] select-and-scatter(x, s, z), window={size=1x2 stride=1x2}, select=above, "
                                       "scatter=f"),
    "sort": ("comparator", "f32[3,5] sort(x), dimensions={1}, to_apply=f"),
}


def module(inside: str, use: str) -> str:
    kind, call = USES[use]
    lines, helpers = CASES[inside]
    return f"""HloModule m
{helpers}
f {{ a = f32[] parameter(0)  b = f32[] parameter(1)
{lines}
r0 = f32[] reshape(one)  {ROOTS[kind]} }}
above {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = pred[] compare(a, b), direction=GE }}
ENTRY e {{
  x = f32[3,5] parameter(0)
  z = f32[] constant(0)
  i = s32[1,1] constant({{{{1}}}})
  u = f32[1,5] slice(x), slice={{[0:1], [0:5]}}
  s = f32[3,2] slice(x), slice={{[0:3], [0:2]}}
  ROOT result = {call}
}}
"""


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("inside", CASES)
def test_refused_with_the_place(inside: str, use: str) -> None:
    text = module(inside, use)
    hloc.compile(text, "reference")(np.arange(15, dtype=np.float32).reshape(3, 5))
    for target in ("cpu", "h200"):
        with pytest.raises(UnsupportedError, match=f"'{inside}'") as refusal:
            hloc.compile(text, target, run=False)
        assert f" {inside}(" in str(refusal.value).splitlines()[1]              # the line of the text
