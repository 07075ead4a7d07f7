"""Gives loops their schedules: lanes, accumulators, tails.

In: a Kernel. Out: the kernel with vectors of the loop IR instead of VECTOR loops that combine into accumulators, or
convert by an instruction that C compilers do not select (targets/vectors.py), where these are nests
(hloc/kernels/schedule); other loops are left to the C compiler.

    var t1 = f32(0.0)                                  var t1 = f32(0.0)
    vector i1 < 24 { t1 = t1 + x[i1] }           ->    let t1_v0 = x[0]:f32x8 + x[8]:f32x8 ...
                                                       t1 = t1 + the lanes, joined by halves
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count

from hloc.errors import ParseError
from hloc.kernels.ir import Apply, Assign, For, Kernel, Local, Stmt
from hloc.kernels.schedule.choice import Candidate, chosen, scheduled
from hloc.kernels.schedule.file import Given
from hloc.kernels.schedule.nest import Nest, Refused, nest_of
from hloc.kernels.schedule.steps import Step
from hloc.kernels.walks import expressions, loads, parts, walk, with_vector_loops
from hloc.machine import Machine
from hloc.targets.vectors import CONVERTED


def loop_schedules(kernel: Kernel, machine: Machine, given: Mapping[str, Given] | None = None) -> Kernel:
    """The kernel whose nests are vectors, by the schedules of least predicted cost. given: schedules from a file, by
    the number of the nest in the kernel. Raises ParseError where one of them does not apply."""
    numbers, names = count(), count()
    return _with_nests(kernel, machine, lambda nest: with_steps(
        (given or {}).get(str(next(numbers))), lambda: chosen(nest.loop, nest.local, machine),
        lambda steps: scheduled(nest.loop, steps, names)))


def with_steps(given: Given | None, chosen: Callable[[], Candidate],
               scheduled: Callable[[tuple[Step, ...]], tuple[Stmt, ...]]) -> tuple[Stmt, ...]:
    """The statements of a nest by a schedule from a file, or by the chosen one. Raises ParseError."""
    if given is None:
        return scheduled(chosen().steps)
    try:
        return scheduled(given.steps)
    except Refused as error:
        raise ParseError(str(error), given.span) from None


def nests(kernel: Kernel, machine: Machine) -> list[Nest]:
    """The loops of a kernel that have schedules, in order."""
    found: list[Nest] = []

    def note(nest: Nest) -> tuple[Stmt, ...]:
        found.append(nest)
        return (nest.loop,)
    _with_nests(kernel, machine, note)
    return found


def has_schedule(loop: For, machine: Machine) -> bool:
    """Whether a VECTOR loop is worth a schedule, if it is a nest: it reduces, or converts by instructions."""
    return any(isinstance(s, Assign) for s in loop.body) or machine.arch == "x86_64" and any(
        isinstance(e, Apply) and e.op == "convert" and (e.arguments[0].type, e.type) in CONVERTED
        for s in walk(loop.body) for e in parts(expressions(s)))


def _with_nests(kernel: Kernel, machine: Machine, change: Callable[[Nest], tuple[Stmt, ...]]) -> Kernel:
    local = frozenset(s.name for s in walk(kernel.body) if isinstance(s, Local))

    def one(loop: For) -> tuple[Stmt, ...]:
        try:
            nest = nest_of(loop, local & {load.buffer for load in loads(loop.body)})
        except Refused:
            return (loop,)
        return change(nest) if has_schedule(loop, machine) else (loop,)
    return kernel._replace(body=with_vector_loops(kernel.body, one))
