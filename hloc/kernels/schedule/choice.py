"""Which schedules a nest may have, and which of them is chosen: the one of least predicted cost.

    candidates(nest_of(loop), machine)          [Candidate(steps, cycles), ...], the cheapest first
    chosen(nest_of(loop), machine)              the steps of the first of them

A rule yields lists of steps; one that does not apply is dropped. Rules hold no thresholds: the cost decides. It is the
cycles of a run (cost.py), times a price of what is written out: C compilers take longer for more.
"""
from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

from hloc.kernels.ir import SERIAL, For, Stmt
from hloc.kernels.schedule.cost import REGISTER, code_of, constants, cost, price
from hloc.kernels.schedule.lowering import enough_bytes, lower
from hloc.kernels.schedule.nest import Nest, Refused, nest_of
from hloc.kernels.schedule.steps import MASK, OVERLAP, PEEL, STEPS, Step, apply_steps, steps_text
from hloc.kernels.vectors import bits_of
from hloc.machine import Machine

ACCUMULATORS = (1, 2, 4)
OF_CHAINS = (4, 1)              # vectors in an iteration of functions of functions, each of which waits for another
TYPICAL = 1000                  # iterations of a loop, where only the run knows them
MOST_KEPT = 1024                # chosen schedules of a process


class Candidate(NamedTuple):
    """A schedule, and the predicted cycles of one run of the loop, times the price of its code."""

    steps: tuple[Step, ...]
    cycles: float

    @property
    def text(self) -> str:
        return steps_text(self.steps)


def candidates(nest: Nest, machine: Machine) -> list[Candidate]:
    """All schedules that apply, the cheapest first."""
    found, known = [], constants(machine.arch)
    extent = nest.loop.extent
    measured = nest if isinstance(extent, int) else nest_of(nest.loop._replace(extent=nest.most or TYPICAL), nest.local)
    for steps in dict.fromkeys(_rules(nest, machine)):
        try:
            body = scheduled(measured, steps, count())
        except Refused:
            continue
        written = body if measured is nest else scheduled(nest, steps, count())
        cycles = cost(body, known, nest.local) * price(code_of(written), known)
        found.append(Candidate(steps, cycles))
    return sorted(found, key=lambda one: one.cycles)


def chosen(nest: Nest, machine: Machine) -> tuple[Step, ...]:
    """The steps of the schedule of a nest."""
    key = nest.loop, nest.local, nest.most, machine
    if key not in _CHOSEN:
        while len(_CHOSEN) >= MOST_KEPT:
            del _CHOSEN[next(iter(_CHOSEN))]
        only, *others = _rules(nest, machine)
        _CHOSEN[key] = candidates(nest, machine)[0].steps if others else only
    return _CHOSEN[key]


_CHOSEN: dict[tuple, tuple[Step, ...]] = {}


def scheduled(nest: Nest, steps: tuple[Step, ...], names: Iterator[int]) -> tuple[Stmt, ...]:
    """The statements of a nest with a schedule. Raises Refused."""
    return lower(apply_steps(nest, steps, STEPS), names)


def whole_vectors(loop: For, machine: Machine) -> tuple[Stmt, ...]:
    """The statements of a loop as vectors that it fills, the last of which may overlap the one before, by the cheapest
    of the few schedules that differ in lanes; a scalar loop, where that is cheaper, or where it is no nest."""
    scalar: tuple[Stmt, ...] = (loop._replace(kind=SERIAL),)
    try:
        nest = nest_of(loop)
        found = [scheduled(nest, steps, count()) for steps in lanes_along(nest, REGISTER)    # compilers take pairs of
                 if len(steps) == 2 and OVERLAP in steps[0][1]]                              # shorter ones
    except Refused:
        return scalar
    if not found or may_be_scalar(nest, REGISTER):
        found.append(scalar)
    return min(found, key=lambda body: cost(body, constants(machine.arch))) if len(found) > 1 else found[0]


def _rules(nest: Nest, machine: Machine) -> Iterator[tuple[Step, ...]]:
    """Schedules that may be the cheapest."""
    vectors = list(lanes_along(nest, machine.vector_bytes))
    if not vectors or may_be_scalar(nest, machine.vector_bytes):
        yield ()
    yield from vectors


def may_be_scalar(nest: Nest, vector_bytes: int) -> bool:
    """Whether scalars may be the cheapest: they are not where adjacent elements fill vectors."""
    extent = nest.axes[0].extent
    is_full = nest.is_adjacent and (extent is None or extent >= _most_lanes(nest, vector_bytes))
    return nest.reduces or not is_full


def _most_lanes(nest: Nest, vector_bytes: int) -> int:
    return vector_bytes * 8 // max(bits_of(t) for t in nest.types)


def lanes_along(nest: Nest, vector_bytes: int) -> Iterator[tuple[Step, ...]]:
    """Vectors along the loop. Where lanes are joined: also shorter vectors than the loop fills, several in an iteration
    with accumulators of their own, and the rest in shorter ones."""
    axis, extent, lanes = nest.loop.name, nest.axes[0].extent, _most_lanes(nest, vector_bytes)
    vectors = ACCUMULATORS if nest.reduces else OF_CHAINS if nest.functions > 1 else (1,)
    while lanes > 1 and enough_bytes(nest.types, lanes):
        tails = (MASK,) if extent is None or extent < lanes else (OVERLAP, PEEL) if nest.reduces and extent % lanes \
            else (OVERLAP,)
        for tail in tails:
            steps: tuple[Step, ...] = (("split", (axis, lanes, tail)), ("vectorize", (axis + "i", lanes)))
            for several in vectors:
                yield steps + _several(nest, axis + "o", several)
        if extent is None or extent >= lanes and not nest.reduces:
            return
        lanes //= 2


def _several(nest: Nest, axis: str, n: int) -> tuple[Step, ...]:
    if n == 1:
        return ()
    return (("rfactor", (axis, n)),) if nest.reduces else (("split", (axis, n, PEEL)), ("unroll", (axis + "i",)))
