"""Gives the loops that reduce their schedules: lanes, accumulators, tails.

In: a Kernel. Out: the kernel with vectors of the loop IR instead of VECTOR loops that combine into accumulators, where
these are nests (hloc/kernels/schedule); other loops are left to the C compiler.

    var t1 = f32(0.0)                                  var t1 = f32(0.0)
    vector i1 < 24 { t1 = t1 + x[i1] }           ->    let t1_v0 = x[0]:f32x8 + x[8]:f32x8 ...
                                                       t1 = t1 + the lanes, joined by halves
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count

from hloc.errors import ParseError
from hloc.kernels.ir import For, Kernel, Local, Stmt
from hloc.kernels.schedule.choice import chosen, scheduled
from hloc.kernels.schedule.file import Given
from hloc.kernels.schedule.nest import Nest, Refused, nest_of
from hloc.kernels.walks import loads, walk, with_vector_loops
from hloc.machine import Machine


def reduction_schedules(kernel: Kernel, machine: Machine, given: Mapping[int, Given] | None = None) -> Kernel:
    """The kernel whose reductions are vectors, by the schedules of least predicted cost. given: schedules from a file,
    by the number of the nest in the kernel. Raises ParseError where one of them does not apply."""
    numbers, names = count(), count()

    def change(nest: Nest) -> tuple[Stmt, ...]:
        own = (given or {}).get(next(numbers))
        if own is None:
            return scheduled(nest.loop, chosen(nest.loop, nest.local, machine).steps, names)
        try:
            return scheduled(nest.loop, own.steps, names)
        except Refused as error:
            raise ParseError(str(error), own.span) from None
    return _with_nests(kernel, change)


def nests(kernel: Kernel) -> list[Nest]:
    """The loops of a kernel that have schedules, in order."""
    found: list[Nest] = []

    def note(nest: Nest) -> tuple[Stmt, ...]:
        found.append(nest)
        return (nest.loop,)
    _with_nests(kernel, note)
    return found


def _with_nests(kernel: Kernel, change: Callable[[Nest], tuple[Stmt, ...]]) -> Kernel:
    local = frozenset(s.name for s in walk(kernel.body) if isinstance(s, Local))

    def one(loop: For) -> tuple[Stmt, ...]:
        try:
            nest = nest_of(loop, local & {load.buffer for load in loads(loop.body)})
        except Refused:
            return (loop,)
        return change(nest)
    return kernel._replace(body=with_vector_loops(kernel.body, one))
