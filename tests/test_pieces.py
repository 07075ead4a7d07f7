"""Pieces of reductions: which loops are cut, and how the number of pieces follows from what they cost."""
from __future__ import annotations

import dataclasses
import math
import re

import pytest

from hloc import api
from hloc.kernels.reductions.pieces import AT_ONCE, best_cuts, seconds_on_one_core
from hloc.machine import Machine
from hloc.targets import find
from hloc.targets.cuda.gpus import GPUS

H100 = GPUS["h100"]
CPU = dataclasses.replace(Machine.host(), cores=4)
LONG, SHORT = 100e-3, 1e-6


@pytest.mark.parametrize("machine", [H100, CPU], ids=["gpu", "cpu"])
@pytest.mark.parametrize("extents", [(1 << 20,), (3, 1 << 18), (7, 11, 13, 17), (1_000_003,), (2, 1, 999_983)])
def test_pieces_cover_their_loops(machine, extents):
    """No piece is empty; loops before the last one that is cut have a piece for each iteration."""
    cuts = best_cuts(list(enumerate(extents)), 1, LONG, 0.0, 0, machine)
    assert 2 <= math.prod(c.count for c in cuts) <= AT_ONCE * machine.cores
    assert all(c.length == 1 for c in cuts[:-1])
    for c in cuts:
        assert (c.count - 1) * c.length < extents[c.loop] <= c.count * c.length


@pytest.mark.parametrize("machine", [H100, CPU], ids=["gpu", "cpu"])
def test_what_does_not_pay_stays_whole(machine):
    whole = [(0, 1 << 20)]
    assert best_cuts(whole, 1, SHORT, 0.0, 0, machine) == ()                            # shorter than to join it
    assert best_cuts(whole, AT_ONCE * machine.cores, LONG, 0.0, 0, machine) == ()       # enough groups
    assert best_cuts(whole, 1, LONG, LONG, 0, machine) == ()                            # as many results as elements
    assert best_cuts(whole, 1, LONG, 0.0, 0, dataclasses.replace(machine, cores=1)) == ()


def test_more_work_has_more_pieces():
    """Of 64 columns of f32 on a GPU, in each as many rows: up to four pieces per SM."""
    def pieces(rows: int) -> int:
        seconds = seconds_on_one_core(rows * 256, rows * 64, H100)
        return math.prod(c.count for c in best_cuts([(0, rows)], 1, seconds, seconds_on_one_core(512, 0, H100), 0, H100))
    found = [pieces(1 << n) for n in range(8, 24)]
    assert found == sorted(found) and found[0] == 1 and H100.cores < found[-1] <= AT_ONCE * H100.cores


def test_a_chain_is_cut_further():
    """A thread that takes in elements one after the other is slower than lanes that share them."""
    shared, alone = (best_cuts([(0, 1 << 20)], 1, 1e-4, 0.0, steps, H100) for steps in (0, 1 << 20))
    assert math.prod(c.count for c in alone) > math.prod(c.count for c in shared) > 1


@pytest.mark.parametrize("root, joined", [("add(a, b)", " joined by the last team"), ("subtract(a, c)", "")],
                         ids=["lanes", "threads"])
def test_kernels_name_their_cuts(root, joined):
    """c: -b, so that no operation of the reducer is one of its two parameters."""
    module = api.load(f"""HloModule m
f {{ a = f32[] parameter(0)  b = f32[] parameter(1)  c = f32[] negate(b)  ROOT r = f32[] {root} }}
ENTRY e {{ x = f32[40000,48] parameter(0)  z = f32[] constant(0)
  ROOT s = f32[48] reduce(x, z), dimensions={{0}}, to_apply=f }}""")
    kernels = api.plan(module, find("h100")).kernels
    assert len(kernels) == 2 - bool(joined)
    step, = re.fullmatch(r"rfactor\(i0,(\d+)\)" + joined, kernels[0].origin[-1]).groups()
    assert kernels[0].buffers[1].size == int(step) * 48


@pytest.mark.parametrize("sizes, gone, steps", [
    ("4096,10", "0", "rfactor(i1,8)"), ("4096,24", "0", "rfactor(i1,4)"), ("64,32,49", "0,2", "rfactor(i2,49)"),
    ("8000,4,2", "0,2", "rfactor(i1,16) rfactor(i3,2)"), ("4096,40", "0", ""), ("40,10", "0", "rfactor(i1,5)"),
    ("4,32,49", "0,2", ""), ("64,32,200", "0,2", ""), ("64,200", "1", ""), ("4099,10", "0", "")])
def test_short_inner_loops_are_kept(sizes, gone, steps):
    """Until the second kernel, where vectors then run along them in the first one, of many rows."""
    result = ",".join(n for d, n in enumerate(sizes.split(",")) if str(d) not in gone.split(","))
    module = api.load(f"""HloModule m
add {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }}
ENTRY e {{
  x = f32[{sizes}] parameter(0)
  z = f32[] constant(0)
  ROOT r = f32[{result}] reduce(x, z), dimensions={{{gone}}}, to_apply=add
}}""")
    one_core = dataclasses.replace(find("cpu"), machine=dataclasses.replace(CPU, cores=1))
    kernels = api.optimized_plan(module, one_core)[1].kernels
    assert len(kernels) == 1 + bool(steps)
    assert not steps or kernels[0].origin[-1] == steps
