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
from hloc.ir import ELEMENT_TYPES
from hloc.kernels.affine import Along
from hloc.kernels.ir import INDEX, Apply, Expr, For, Kernel, Let, Load, Local, Stmt
from hloc.kernels.schedule.choice import chosen, scheduled
from hloc.kernels.schedule.file import Given
from hloc.kernels.schedule.nest import Nest, Refused, most_iterations, nest_of
from hloc.kernels.schedule.steps import Step
from hloc.kernels.vectors import bits_of
from hloc.kernels.walks import expressions, loads, parts, walk, with_vector_loops
from hloc.machine import Machine
from hloc.targets.vectors import CONVERTED

SHORTEST_REGISTER = 128         # bits


def loop_schedules(kernel: Kernel, machine: Machine, given: Mapping[str, Given] | None = None) -> Kernel:
    """The kernel whose nests are vectors, by the schedules of least predicted cost. given: schedules from a file, by
    the number of the nest in the kernel. Raises ParseError where one of them does not apply."""
    numbers, names = count(), count()
    return _with_nests(kernel, machine, lambda nest: with_steps(
        (given or {}).get(str(next(numbers))), lambda: chosen(nest, machine),
        lambda steps: scheduled(nest, steps, names)))


def with_steps(given: Given | None, chosen: Callable[[], tuple[Step, ...]],
               scheduled: Callable[[tuple[Step, ...]], tuple[Stmt, ...]]) -> tuple[Stmt, ...]:
    """The statements of a nest by a schedule from a file, or by the chosen one. Raises ParseError."""
    if given is None:
        return scheduled(chosen())
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


def has_schedule(nest: Nest, machine: Machine) -> bool:
    """Whether a nest is worth a schedule: it reduces, converts by instructions that C compilers do not select, or
    computes adjacent elements from adjacent ones, or functions of some that compilers do not gather. They read others
    well; loops that only move elements are copies, some of which are calls (call_printer.py); loops shorter than the
    shortest register are unrolled, and make vectors along the loop around them."""
    if nest.reduces or machine.arch == "x86_64" and converts(nest.loop):
        return True
    if isinstance(nest.loop.extent, int) and nest.loop.extent * max(map(bits_of, nest.types)) < SHORTEST_REGISTER:
        return False
    everything = [e for s in nest.loop.body for e in parts(expressions(s))]
    return any(isinstance(e, Apply) and e.type != INDEX for e in everything) and (
        nest.is_adjacent or nest.functions > 0 and is_fetched(nest.loop, everything))


def is_fetched(loop: For, everything: list[Expr]) -> bool:
    """Whether elements of other than 32 bits are loaded from positions in data, which stops the compiler's vectors."""
    along = Along(loop)
    return any(isinstance(e, Load) and ELEMENT_TYPES[e.type].bits != 32 and along.step(e.position) is None
               for e in everything)


def converts(loop: For) -> bool:
    """Whether a loop converts by instructions that C compilers do not select."""
    return any(isinstance(e, Apply) and e.op == "convert" and (e.arguments[0].type, e.type) in CONVERTED
               for s in walk(loop.body) for e in parts(expressions(s)))


def _with_nests(kernel: Kernel, machine: Machine, change: Callable[[Nest], tuple[Stmt, ...]]) -> Kernel:
    local = frozenset(s.name for s in walk(kernel.body) if isinstance(s, Local))
    named = {s.name: s.value for s in walk(kernel.body) if isinstance(s, Let)}

    def one(loop: For) -> tuple[Stmt, ...]:
        try:
            nest = nest_of(loop, local & {load.buffer for load in loads(loop.body)},
                           most_iterations(loop.extent, named))
        except Refused:
            return (loop,)
        return change(nest) if has_schedule(nest, machine) else (loop,)
    return kernel._replace(body=with_vector_loops(kernel.body, one))
