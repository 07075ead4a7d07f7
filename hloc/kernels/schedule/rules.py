"""Rules: the schedules that a nest may have, of which choice.py takes the one of least predicted cost.

A rule yields lists of steps; one that does not apply is dropped. Rules hold few thresholds: the cost decides.
"""
from __future__ import annotations

import math
from collections.abc import Iterator

from hloc.kernels.ir import INDEX, Apply, Let, Mutable, Stmt
from hloc.kernels.operations import HEAVY
from hloc.kernels.schedule.lowering import fewest_lanes, lower
from hloc.kernels.schedule.nest import NEST_STEPS, Nest
from hloc.kernels.schedule.row_lowering import lower_rows, type_of
from hloc.kernels.schedule.row_nest import ROW_STEPS, RowNest
from hloc.kernels.schedule.steps import Step, apply_steps
from hloc.kernels.vectors import bits_of
from hloc.kernels.walks import expressions, parts, walk
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


def rules(nest: Nest | RowNest, machine: Machine) -> Iterator[tuple[Step, ...]]:
    """Schedules that may be the cheapest."""
    if isinstance(nest, RowNest):
        yield from _of_rows(nest)
        return
    axis, lanes = nest.loop.name, list(lane_counts(nest, machine.vector_bytes))
    if not lanes or may_be_scalar(nest, machine.vector_bytes):
        yield ()
    for n in lanes:
        for copies in ACCUMULATORS if nest.reduces else (1,):
            yield (("vectorize", (axis, n)), *[("rfactor", (axis, copies))] * (copies > 1))


def may_be_scalar(nest: Nest, vector_bytes: int) -> bool:
    """Whether scalars may be the cheapest: they are not where adjacent elements fill vectors."""
    extent = nest.iterations
    is_full = nest.is_adjacent and (extent is None or extent >= _most_lanes(nest, vector_bytes))
    return nest.reduces or not is_full


def _most_lanes(nest: Nest, vector_bytes: int) -> int:
    return vector_bytes * 8 // max(bits_of(t) for t in nest.types)


def lane_counts(nest: Nest, vector_bytes: int) -> Iterator[int]:
    """Lanes of vectors along the loop; where lanes are joined, also fewer than the loop fills."""
    extent, lanes = nest.iterations, _most_lanes(nest, vector_bytes)
    while lanes >= max(2, fewest_lanes(nest)):
        yield lanes
        if extent is None or extent >= lanes and not nest.reduces:
            return
        lanes //= 2


def _of_rows(nest: RowNest) -> Iterator[tuple[Step, ...]]:
    """Row by row; each part for all rows, so that what is computed for each row is a vector; fewer loops; a row in each
    lane, where nothing is joined across lanes, and no lane is empty, by way of tables or not. Then short rows are
    written out, but not many functions."""
    rows, longest = nest.loop.name, max(math.prod(n for _, n in p.chain) for p in nest.loops)
    lanes: tuple[Step, ...] = (("fission", (rows,)), ("vectorize", (rows,)))
    yield ()
    if any(isinstance(s, (Let, Mutable)) and type_of(s) != INDEX for p in nest.parts if not p.chain for s in p.body):
        yield lanes[:1]
    if len(nest.loops) == 1 and not nest.reduces:
        along = tuple(n for n, _ in nest.loops[0].chain)
        yield (("fuse", along),)
        if longest <= MOST_COLLAPSED:
            yield (("fuse", (rows, *along)),)
    if longest > MOST_COLLAPSED and not nest.reduces:
        return
    tables = tuple(("stage", (buffer,)) for buffer in nest.strided if nest.fits(buffer))
    is_short = longest <= MOST_AT_ONCE and not nest.arrays      # what is stored and read again would be no vector
    is_heavy = any(isinstance(e, Apply) and e.op in HEAVY
                   for e in parts(e for s in walk(nest.loop.body) for e in expressions(s)))
    is_moved = len(tables) == len(nest.strided)
    n = longest if is_short else AT_ONCE if is_moved else 1
    if any(p.guards for p in nest.loops) or is_heavy and not (is_short and longest <= AT_ONCE):
        n = 1
    for staged in dict.fromkeys((tables, ()) if is_short else (tables,)):
        yield (*lanes, *staged, *[("unroll", (n,))] * (n > 1))
