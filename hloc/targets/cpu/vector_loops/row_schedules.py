"""Gives loops over rows their schedules: row by row, several rows at once, a row in each lane, rows as one loop.

In: a lowered Kernel. Out: the kernel with other loops in the place of loops over rows (kernels/schedule/row_nest.py),
whose VECTOR loops the passes behind this one see. Transposing copies stay: they are calls.
"""
from __future__ import annotations

from collections.abc import Mapping

from hloc.kernels.ir import PARALLEL, SERIAL, Expr, For, Kernel, Let, Stmt
from hloc.kernels.schedule.file import ROWS, Given
from hloc.kernels.schedule.hoisting import different_names, hoisted
from hloc.kernels.schedule.nest import most_iterations
from hloc.kernels.schedule.row_nest import NOTHING, row_nest_of
from hloc.kernels.schedule.steps import Refused
from hloc.machine import Machine
from hloc.targets.c_expressions import ExpressionPrinter
from hloc.targets.cpu.vector_loops.call_printer import transpose_call
from hloc.targets.cpu.vector_loops.loop_schedules import Change, by_schedules


def row_schedules(kernel: Kernel, machine: Machine, given: Mapping[str, Given] | None = None) -> Kernel:
    """The kernel whose rows go together, by the schedules of least predicted cost. given: schedules from a file, by
    ROWS and the number of the row nest in the kernel. Raises ParseError where one of them does not apply."""
    return with_row_nests(kernel, machine, by_schedules(machine, given, ROWS))


def with_row_nests(kernel: Kernel, machine: Machine, change: Change) -> Kernel:
    """The kernel with other statements for loops over rows that have schedules."""
    body: list[Stmt] = []
    for s in kernel.body:
        if not isinstance(s, For) or s.kind != PARALLEL:
            body += _changed((s,), change)
        elif (inside := _changed(s.body, change)) != s.body:
            before, rest = hoisted(inside, different_names(s))
            body += [*before, s._replace(body=rest)]
        else:
            body.append(s)
    return kernel._replace(body=tuple(body))


def _changed(body: tuple[Stmt, ...], change: Change, outer: Mapping[str, Expr] = NOTHING, times: int = 1,
             different: frozenset[str] = frozenset()) -> tuple[Stmt, ...]:
    """outer: names around these statements; times, different: of the SERIAL loop around, before which tables stand
    that are the same in its iterations."""
    found: list[Stmt] = []
    named = {**outer, **{s.name: s.value for s in body if isinstance(s, Let)}}
    for s in body:
        if not isinstance(s, For) or s.kind != SERIAL or transpose_call(s, ExpressionPrinter()) is not None:
            found.append(s)
            continue
        most = most_iterations(s.extent, named)
        try:
            found += change(row_nest_of(s, most, times, different, named))
        except Refused:
            inside = _changed(s.body, change, named, max(1, most), different_names(s))
            is_run = most > 0                   # of other loops there may be no iteration
            before, rest = hoisted(inside, different_names(s)) if is_run and inside != s.body else ((), inside)
            found += [*before, s._replace(body=rest)]
    return tuple(found)
