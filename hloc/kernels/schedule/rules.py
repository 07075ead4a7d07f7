"""Rules: the schedules that a nest may have, of which choice.py takes the one of least predicted cost.

A rule yields lists of steps, with the cycles that such a schedule takes at least; one that does not apply is dropped.
Rules hold few thresholds: the cost decides.
"""
from __future__ import annotations

import math
from collections.abc import Iterator

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.affine import affine, factor_of, forms
from hloc.kernels.ir import INDEX, Apply, Assign, Let, Mutable, Stmt
from hloc.kernels.operations import HEAVY
from hloc.kernels.schedule.cost import UNITS, Constants, constants, row_cost, work_of
from hloc.kernels.schedule.lowering import enough_bytes, lower
from hloc.kernels.schedule.nest import MASK, NEST_STEPS, OVERLAP, PEEL, Nest
from hloc.kernels.schedule.row_lowering import lower_rows, type_of
from hloc.kernels.schedule.row_nest import ROW_STEPS, RowNest
from hloc.kernels.schedule.steps import Step, apply_steps
from hloc.kernels.vectors import bits_of
from hloc.kernels.walks import expressions, loads, parts, walk
from hloc.machine import Machine

ACCUMULATORS = (1, 2, 4)
AT_ONCE, MOST_AT_ONCE = 4, 16
MOST_COLLAPSED = 48             # elements of rows that are one loop with others
GROUPS = (2, 3, 4)              # elements side by side that compilers load as vectors, if an iteration reads all


def scheduled(nest: Nest | RowNest, steps: tuple[Step, ...], names: Iterator[int]) -> tuple[Stmt, ...]:
    """The statements of a nest with a schedule. names: numbers for new names, unique in the kernel. Raises Refused."""
    if isinstance(nest, RowNest):
        return lower_rows(apply_steps(nest, steps, ROW_STEPS), names)
    return lower(apply_steps(nest, steps, NEST_STEPS), names)


def rules(nest: Nest | RowNest, machine: Machine) -> Iterator[tuple[tuple[Step, ...], float]]:
    """Schedules that may be the cheapest, with the cycles that they take at least."""
    if isinstance(nest, RowNest):
        yield from _of_rows(nest, constants(machine.arch))
        return
    vectors = list(lanes_along(nest, machine.vector_bytes))
    if not vectors or may_be_scalar(nest, machine.vector_bytes):
        yield (), 0.0
    yield from ((steps, 0.0) for steps in vectors)


def may_be_scalar(nest: Nest, vector_bytes: int) -> bool:
    """Whether scalars may be the cheapest: they are not where adjacent elements fill vectors."""
    extent = nest.iterations
    is_full = nest.is_adjacent and (extent is None or extent >= _most_lanes(nest, vector_bytes))
    return nest.reduces or not is_full


def _most_lanes(nest: Nest, vector_bytes: int) -> int:
    return vector_bytes * 8 // max(bits_of(t) for t in nest.types)


def lanes_along(nest: Nest, vector_bytes: int) -> Iterator[tuple[Step, ...]]:
    """Vectors along the loop. Where lanes are joined: also shorter vectors than the loop fills, several in an iteration
    with accumulators of their own, and the rest in shorter ones."""
    axis, extent, lanes = nest.loop.name, nest.iterations, _most_lanes(nest, vector_bytes)
    copies = ACCUMULATORS if nest.reduces else (1,)
    while lanes > 1 and enough_bytes(nest.types, lanes):
        tails = (MASK,) if extent is None or extent < lanes else (OVERLAP, PEEL) if extent % lanes and (
            nest.reduces or nest.in_place) else (OVERLAP,)
        for tail in tails:
            steps: tuple[Step, ...] = (("split", (axis, lanes, tail)), ("vectorize", (axis + "i", lanes)))
            for n in copies:
                yield steps + (("rfactor", (axis + "o", n)),) * (n > 1)
        if extent is None or extent >= lanes and not nest.reduces:
            return
        lanes //= 2


def _of_rows(nest: RowNest, known: Constants) -> Iterator[tuple[tuple[Step, ...], float]]:
    """Schedules, with the cycles of a row at least: row by row; each part for all rows, so that what is computed
    for each row is a vector; fewer loops; a row in each lane, where nothing is joined across lanes, and no lane
    is empty. Then short rows are written out, but not many functions."""
    rows, longest = nest.loop.name, max(math.prod(n for _, n in p.chain) for p in nest.loops)
    lanes: tuple[Step, ...] = (("fission", (rows,)), ("vectorize", (rows,)))
    one_by_one = _one_by_one(nest, known)
    yield (), one_by_one
    if any(isinstance(s, (Let, Mutable)) and type_of(s) != INDEX for p in nest.parts if not p.chain for s in p.body):
        yield lanes[:1], one_by_one
    if len(nest.loops) == 1 and not nest.reduces:
        along = tuple(n for n, _ in nest.loops[0].chain)
        yield (("fuse", along),), 0.0
        if longest <= MOST_COLLAPSED:
            yield (("fuse", (rows, *along)),), 0.0
    if longest > MOST_COLLAPSED and not nest.reduces:
        return
    tables, least, is_moved = list[Step](), 0.0, True
    for buffer, types in nest.strided.items():
        table = max(known[f"row_moved{ELEMENT_TYPES[t].bytes}"] * n for t, n in types) / nest.tables_of(buffer)
        single = known["row_stores"] * sum(n for _, n in types)
        is_table = table <= single and nest.fits(buffer)
        tables += [("stage", (buffer,))] if is_table else []
        least, is_moved = least + (table if is_table else single), is_moved and is_table
    values = parts(e for s in walk(nest.loop.body) for e in expressions(s))
    is_short = longest <= MOST_AT_ONCE and not nest.arrays      # what is stored and read again would be no vector
    n = 1 if any(p.guards for p in nest.loops) else longest if is_short else AT_ONCE if is_moved else 1
    is_heavy = any(isinstance(e, Apply) and e.op in HEAVY for e in values)
    if is_heavy and not (is_short and longest <= AT_ONCE):
        yield (*lanes, *tables), least
        return
    if n > 1:
        lanes += ("unroll", (n,)),
    yield (*lanes, *tables), least
    if is_short and tables:
        yield lanes, 0.0


def _one_by_one(nest: RowNest, known: Constants) -> float:
    """The cycles of a row, at least, for loops along it that combine elements which are not adjacent."""
    named, cycles = forms(nest.loop.body), 0.0
    for part in nest.loops:
        steps = [factor_of(affine(load.position, named), part.chain[-1][0]) for load in loads(part.body)]
        if any(abs(step) > GROUPS[-1] for step in steps) and any(isinstance(s, Assign) for s in part.body):
            units = dict(zip(UNITS, work_of(part.body, known).units))
            cycles += row_cost(units, known) * math.prod(n for _, n in part.chain)
    return cycles
