"""The predicted cycles of a whole kernel on a CPU: what forms of a kernel are compared by, before passes on kernels.

    kernel_cycles(kernel, machine)       of one thread, with all that it reads in the cache

Loops over rows and VECTOR loops count with the schedules that they will have (choice.py), others with
their iterations. Bytes from memory are the same for all forms of a kernel, and are not counted.
"""
from __future__ import annotations

from collections.abc import Mapping

from hloc.kernels.ir import PARALLEL, VECTOR, Expr, For, If, Kernel, Let, Local, Stmt, Tile, While
from hloc.kernels.schedule.choice import TYPICAL, candidates
from hloc.kernels.schedule.cost import constants, cost
from hloc.kernels.schedule.nest import Refused, most_iterations
from hloc.kernels.schedule.row_cost import whole_vectors
from hloc.kernels.schedule.row_nest import row_nest_of
from hloc.machine import Machine


def kernel_cycles(kernel: Kernel | Tile, machine: Machine) -> float:
    """The predicted cycles of one run of loops."""
    assert isinstance(kernel, Kernel), "a library kernel has costs of its own"
    return _cycles(kernel.body, {}, machine)


def _cycles(body: tuple[Stmt, ...], outer: Mapping[str, Expr], machine: Machine) -> float:
    named = {**outer, **{s.name: s.value for s in body if isinstance(s, Let)}}
    straight = tuple(s for s in body if not isinstance(s, (For, If, While, Local)))
    total = cost(straight, constants(machine.arch)) if straight else 0.0
    for s in body:
        if isinstance(s, For):
            total += _loop(s, most_iterations(s.extent, named) or TYPICAL, named, machine)
        elif isinstance(s, If):
            total += _cycles(s.then, named, machine)
        elif isinstance(s, While):
            total += _cycles(s.body, named, machine)
    return total


def _loop(loop: For, most: int, named: Mapping[str, Expr], machine: Machine) -> float:
    known = constants(machine.arch)
    if loop.kind == VECTOR and not any(isinstance(s, If) for s in loop.body):
        return cost(whole_vectors(loop._replace(extent=most), machine), known)
    if loop.kind != PARALLEL:
        try:
            return most * candidates(row_nest_of(loop, most, around=named), machine)[0].cycles
        except Refused:
            pass
    return most * (_cycles(loop.body, named, machine) + known["loop"])
