"""Gives loops their schedules: lanes, accumulators, tails.

In: a Kernel. Out: the kernel with vectors of the loop IR instead of VECTOR loops that combine into accumulators,
compute adjacent elements from adjacent ones, or convert by an instruction that C compilers do not select
(targets/vectors.py), where these are nests (hloc/kernels/schedule); other loops are left to the C compiler.

    var t1 = f32(0.0)                                  var t1 = f32(0.0)
    vector i1 < 24 { t1 = t1 + x[i1] }           ->    let t1_v0 = x[0]:f32x8 + x[8]:f32x8 ...
                                                       t1 = t1 + the lanes, joined by halves
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count

from hloc.errors import ParseError
from hloc.kernels.ir import INDEX, Apply, For, Kernel, Let, Stmt
from hloc.kernels.schedule.choice import chosen
from hloc.kernels.schedule.file import Given
from hloc.kernels.schedule.nest import Nest, most_iterations, nest_of
from hloc.kernels.schedule.row_nest import RowNest
from hloc.kernels.schedule.rules import scheduled
from hloc.kernels.schedule.steps import Refused
from hloc.kernels.vectors import bits_of
from hloc.kernels.walks import expressions, parts, walk, with_vector_loops
from hloc.machine import Machine
from hloc.targets.vectors import CONVERTED

SHORTEST_REGISTER = 128         # bits
Change = Callable[..., tuple[Stmt, ...]]         # of a nest


def loop_schedules(kernel: Kernel, machine: Machine, given: Mapping[str, Given] | None = None) -> Kernel:
    """The kernel whose nests are vectors, by the schedules of least predicted cost. given: schedules from a file, by
    the number of the nest in the kernel. Raises ParseError where one of them does not apply."""
    return with_nests(kernel, machine, by_schedules(machine, given))


def by_schedules(machine: Machine, given: Mapping[str, Given] | None, kind: str = "") -> Change:
    """What replaces the nests of a kernel, in order: the statements of the chosen schedule, or of that in `given` by
    the kind and the number of the nest, which may raise ParseError."""
    numbers, names = count(), count()

    def change(nest: Nest | RowNest) -> tuple[Stmt, ...]:
        by_hand = (given or {}).get(f"{kind}{next(numbers)}")
        if by_hand is None:
            return scheduled(nest, chosen(nest, machine), names)
        try:
            return scheduled(nest, by_hand.steps, names)
        except Refused as error:
            raise ParseError(str(error), by_hand.span) from None
    return change


def with_nests(kernel: Kernel, machine: Machine, change: Change) -> Kernel:
    """The kernel with other statements for loops that have schedules."""
    named = {s.name: s.value for s in walk(kernel.body) if isinstance(s, Let)}

    def one(loop: For) -> tuple[Stmt, ...]:
        try:
            nest = nest_of(loop, most_iterations(loop.extent, named))
        except Refused:
            return (loop,)
        return change(nest) if has_schedule(nest, machine) else (loop,)
    return kernel._replace(body=with_vector_loops(kernel.body, one))


def nests(kernel: Kernel, machine: Machine, walk: Callable[..., Kernel] = with_nests) -> list:
    """The nests of a kernel that `walk` finds, in order."""
    found: list[Nest | RowNest] = []

    def note(nest: Nest | RowNest) -> tuple[Stmt, ...]:
        found.append(nest)
        return (nest.loop,)
    walk(kernel, machine, note)
    return found


def has_schedule(nest: Nest, machine: Machine) -> bool:
    """Whether a nest is worth a schedule: it reduces, converts by instructions that C compilers do not select, or
    computes adjacent elements from adjacent ones. They read others well; loops that only move elements are copies,
    some of which are calls (call_printer.py); loops shorter than the shortest register are unrolled, and make vectors
    along the loop around them."""
    everything = [e for s in nest.loop.body for e in parts(expressions(s)) if isinstance(e, Apply)]
    if nest.reduces or machine.arch == "x86_64" and any(
            e.op == "convert" and (e.arguments[0].type, e.type) in CONVERTED for e in everything):
        return True
    is_short = nest.iterations is not None and nest.iterations * max(map(bits_of, nest.types)) < SHORTEST_REGISTER
    return nest.is_adjacent and not is_short and any(e.type != INDEX for e in everything)
