"""Loops over short rows on the CPU: how they are cut into lanes, and what is left of a row (vector_loops/)."""
from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from kernel_harness import MACHINE

from hloc.kernels.ir import PARALLEL, SERIAL, VECTOR, For, Kernel, Local
from hloc.kernels.lower import lower
from hloc.kernels.walks import walk
from hloc.targets.cpu.vector_loops.lane_fitting import lane_fitting
from hloc.targets.cpu.vector_loops.reduction_interleaving import reduction_interleaving
from hloc.targets.cpu.vector_loops.reduction_tail_peeling import reduction_tail_peeling
from hloc.targets.cpu.vector_loops.reduction_tree import reduction_tree
from hloc.targets.printer import C, print_kernel
from hloc.text import parse_module

DATA = Path(__file__).parent.parent / "testdata"
SEPARATOR = re.compile(r"^// -----.*$", re.MULTILINE)


def test_what_is_left_of_short_rows_is_apart():
    """testdata/kernels/reduce.hlo: the loops of a row, by vectors of 32 bytes and one by one; small integers that
    become floats are turned."""
    text = SEPARATOR.split((DATA / "kernels" / "reduce.hlo").read_text(encoding="utf-8"))[-1]
    found = {}
    for name, root in ((i.name, i) for i in parse_module(text).entry.instructions if i.opcode in ("reduce", "fusion")):
        body = list(walk(reduction_tail_peeling(lower(root, MACHINE).calls[0].kernel, MACHINE).body))
        found[name] = [(s.kind, s.extent) for s in body if isinstance(s, For) and s.kind != PARALLEL]
        assert any(isinstance(s, Local) and "transposed" in s.name for s in body) == (name == "transposed")
    found.pop("transposed")
    assert found == {"r1": [(SERIAL, 8)], "r2": [(VECTOR, 8), (SERIAL, 4)], "r3": [(VECTOR, 8), (SERIAL, 1)],
                     "r4": [(VECTOR, 4), (SERIAL, 1)], "r5": [(VECTOR, 32), (SERIAL, 15)]}


def sum_of_rows(operand: str) -> Kernel:
    """The kernel that sums up the 999 rows of `x`, which `operand` defines."""
    type, columns = re.search(r"x = (\w+)\[999,(\d+)\]", operand).groups()
    given = re.search(r"\w+ = (\w+)\[", operand)[1]
    root = parse_module(f"""a {{ p = {type}[] parameter(0) q = {type}[] parameter(1) ROOT s = {type}[] add(p, q) }}
      f {{ {operand} z = {type}[] constant(0) ROOT r = {type}[999] reduce(x, z), dimensions={{1}}, to_apply=a }}
      ENTRY e {{ g = {given}[999,{columns}] parameter(0)
                 ROOT r = {type}[999] fusion(g), kind=kInput, calls=f }}""").entry.root
    return lower(root, MACHINE).calls[0].kernel


@pytest.mark.parametrize("operand, vector_bytes, lanes", [
    ("x = s32[999,24] parameter(0)", 64, [8]),
    ("x = s32[999,24] parameter(0)", 32, [0]),
    ("x = s32[999,48] parameter(0)", 64, [0]),
    ("x = f32[999,48] parameter(0)", 64, [8]),
    ("x = f32[999,48] parameter(0)", 32, [0]),
    ("b = bf16[999,48] parameter(0) x = f32[999,48] convert(b)", 64, [16]),
    ("b = bf16[999,48] parameter(0) x = f32[999,48] convert(b)", 32, [0]),
    ("b = bf16[999,40] parameter(0) x = f32[999,40] convert(b)", 32, [8]),
    ("b = f32[999,40] parameter(0) x = f32[999,40] exponential(b)", 64, [0]),
    ("x = f32[999,9000] parameter(0)", 64, [0] * 7),
], ids=["a half is left", "AVX2", "whole vectors", "floats", "floats by AVX2", "mixed", "mixed, whole", "mixed, by AVX2",
        "a function", "several sums"])
def test_lanes_that_fit_short_rows(operand, vector_bytes, lanes):
    """Of the VECTOR loops of a sum over rows."""
    kernel = lane_fitting(reduction_interleaving(sum_of_rows(operand), MACHINE), replace(MACHINE, vector_bytes=vector_bytes))
    assert [s.lanes for s in walk(kernel.body) if isinstance(s, For) and s.kind == VECTOR] == lanes
    assert print_kernel(kernel, C, "k").count("simdlen(") == sum(map(bool, lanes))


@pytest.mark.parametrize("operand, wide, extents", [
    ("x = f32[999,16] parameter(0)", False, [16, 8, 4, 2]),
    ("x = f32[999,24] parameter(0)", False, [8, 8, 4, 2]),
    ("x = f32[999,9] parameter(0)", False, [9]),
    ("x = f32[999,600] parameter(0)", False, [600]),
    ("b = bf16[999,80] parameter(0) x = f32[999,80] convert(b)", True, [16, 16, 8, 4, 2]),
    ("b = f32[999,40] parameter(0) x = f32[999,40] exponential(b)", True, [16, 16, 8, 4, 2, 8, 4, 2]),
    ("x = s32[999,16] parameter(0)", False, [16]),
], ids=["one group", "several", "no whole vectors", "long", "mixed", "a function, and a rest", "integers"])
def test_sums_over_short_rows_are_joined_by_halves(operand, wide, extents):
    """The VECTOR loops of a sum over rows, with vectors of 64 bytes: the lanes' own, and one for each halving."""
    kernel = reduction_tree(sum_of_rows(operand)._replace(wide=wide), replace(MACHINE, vector_bytes=64))
    loops = [s.extent for s in walk(kernel.body) if isinstance(s, For) and s.kind == VECTOR]
    assert loops == extents


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
