"""Reducers of pairs that choose a value and its place (hloc/kernels/monoids.py), however they are written, and the loops
of those that do."""
from __future__ import annotations

import pytest
from kernel_harness import MACHINE

from hloc.ir import Instruction
from hloc.kernels.ir import SERIAL, For
from hloc.kernels.lower import lower
from hloc.kernels.monoids import choice
from hloc.kernels.walks import walk
from hloc.text import parse_module

COMPARED = "p = pred[] compare({}), direction={} v = {type}[] select(p, a, b) k = s32[] select(p, i, j) "
PAIR = COMPARED + "ROOT t = ({type}[], s32[]) tuple(v, k)"
JAX = ("m = pred[] compare(a, b), direction=GT n = pred[] compare(a, a), direction=NE p = pred[] or(m, n) "
       "v = {type}[] select(p, a, b) e = pred[] compare(a, b), direction=EQ l = pred[] compare(i, j), direction=LT "
       "t = pred[] and(e, l) q = pred[] or(p, t) k = s32[] select(q, i, j) ROOT r = ({type}[], s32[]) tuple(v, k)")


def reduce_of(type: str, body: str, length: int = 256) -> Instruction:
    return parse_module(f"""f {{ a = {type}[] parameter(0) i = s32[] parameter(1) b = {type}[] parameter(2)
                                 j = s32[] parameter(3) {body.replace("{type}", type)} }}
      ENTRY e {{ x = {type}[4,{length}] parameter(0) n = s32[4,{length}] iota(), iota_dimension=1
                 z = {type}[] constant(0) o = s32[] constant(0)
                 ROOT r = ({type}[4], s32[4]) reduce(x, n, z, o), dimensions={{1}}, to_apply=f }}""").entry.root


@pytest.mark.parametrize("type, body, found", [
    ("s32", PAIR.format("a, b", "GE", type="{type}"), ("maximum", "first", "first", False)),
    ("s32", PAIR.format("a, b", "GT", type="{type}"), ("maximum", "last", "last", False)),
    ("s32", PAIR.format("b, a", "GE", type="{type}"), ("minimum", "first", "first", False)),
    ("f32", PAIR.format("b, a", "LT", type="{type}"), ("maximum", "last", "last", False)),
    ("f32", JAX, ("maximum", "last", "first", True)),
    ("u8", JAX, ("maximum", "last", "first", True)),
    ("s32", PAIR.format("i, j", "LT", type="{type}"), None),
    ("s32", PAIR.format("a, j", "GE", type="{type}"), None),
    ("s32", PAIR.format("a, b", "EQ", type="{type}"), None),
    ("s32", COMPARED.format("a, b", "GE", type="{type}") + "ROOT t = (s32[], s32[]) tuple(k, v)", None),
    ("s32", COMPARED.format("a, b", "GE", type="{type}") + "c = s32[] add(v, v) ROOT t = (s32[], s32[]) tuple(c, k)",
     None),
    ("pred", PAIR.format("a, b", "GE", type="{type}"), None),
], ids=["first", "last", "least", "turned", "jax", "jax of integers", "by place", "mixed", "equal", "swapped", "sum",
        "pred"])
def test_what_a_reducer_chooses(type, body, found):
    chosen = choice(reduce_of(type, body))
    assert (chosen and tuple(chosen)[:3]) == (found and found[:3])
    if found and type == "f32":
        assert chosen.first_nan == found[3]


@pytest.mark.parametrize("type, body, chains", [
    ("s32", PAIR.format("a, b", "GE", type="{type}"), 0),
    ("f32", JAX, 0),
    ("f32", PAIR.format("a, b", "GE", type="{type}"), 1),            # of a row that holds a NaN
    ("s32", PAIR.format("a, b", "EQ", type="{type}"), 1),
], ids=["integers", "the first NaN", "a NaN", "no choice"])
def test_places_are_found_in_vectors(type, body, chains):
    kernel = lower(reduce_of(type, body), MACHINE).calls[0].kernel
    assert sum(isinstance(s, For) and s.kind == SERIAL and s.extent == 256 for s in walk(kernel.body)) == chains
