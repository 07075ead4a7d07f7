"""How kernels are divided among threads (hloc/targets/cpu/program/grain.py)."""
from __future__ import annotations

from dataclasses import replace

import pytest

import hloc
from hloc.api import Options, optimized_plan
from hloc.kernels.ir import PARALLEL, Cost, For, Kernel
from hloc.machine import Machine
from hloc.targets import find
from hloc.targets.cpu.program.grain import CORE_FLOPS, grain_of


def kernel(extent: int, seconds: float) -> Kernel:
    return Kernel("k", (), (For("i", extent, PARALLEL, ()),), Cost(0, int(seconds * CORE_FLOPS)))


@pytest.mark.parametrize("extent, microseconds, cores, grain", [
    (16, 5, 2, 16),             # not worth dividing
    (16, 31, 2, 8),             # three pieces would leave one core with two of them
    (16, 61, 2, 4),             # six of three iterations are nine for one core
    (256, 45, 2, 64),
    (3, 1000, 2, 1),            # no more pieces than iterations
    (1000, 2000, 2, 20),
    (1000, 31, 8, 334),         # fewer pieces than cores
    (1000, 2000, 1, 1000),
])
def test_pieces_are_balanced(extent, microseconds, cores, grain):
    machine = replace(Machine.host(), cores=cores)
    assert grain_of(kernel(extent, microseconds * 1e-6), machine) == grain


def test_functions_count_more_than_additions():
    def flops(opcode: str) -> int:
        module = hloc.load(f"HloModule m\nENTRY e {{ x = f16[65536] parameter(0) ROOT r = f16[65536] {opcode}(x) }}")
        _, program = optimized_plan(module, find("cpu"), Options())
        return program.kernels[0].cost.flops
    assert flops("tanh") > 2 * flops("negate") > 0
