"""Which factors of an op are divided along which axes: the choice that costs least.

In: an op's rule, the shardings in which its operands are there, and those in which its results are wanted. Out: axes by
factor. Candidates follow the arrays in turn: all that the first is divided along, then what the next adds to that. What
operands are sent for is counted as sides.py counts it, results as resharding.py does; partial results are joined by
reduce-scatter where the wanted sharding has the axes, else by all-reduce. What a device computes counts, too: dividing
the work is worth some bytes.
"""
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import permutations, takewhile
from typing import NamedTuple

from hloc.analysis.communication import sent_by_each
from hloc.passes.spmd_partitioner.halos import reach_plan, sent_for_all
from hloc.passes.spmd_partitioner.resharding import elements_sent, padded, steps_between
from hloc.passes.spmd_partitioner.sides import STEPS_PER_BYTE, Side, is_possible, local_elements, redistribution
from hloc.sharding.factors import FactorAxes, dimension_axes, factor_axes, fits
from hloc.sharding.meshes import Axes, DeviceMesh
from hloc.sharding.rules import ShardingRule

MOST_PERMUTED = 4                # arrays whose orders are all tried


class Joining(NamedTuple):
    """How partial results become whole: (dimension, axes) of each reduce-scatter, then the axes of an all-reduce; the
    axes along the dimensions afterwards."""

    scattered: tuple[tuple[int, Axes], ...]
    reduced: Axes
    axes: tuple[Axes, ...]


@lru_cache(maxsize=4096)
def choose(rule: ShardingRule, operands: tuple[Side | None, ...], results: tuple[Side, ...], mesh: DeviceMesh,
           manual: frozenset[int]) -> tuple[float, FactorAxes]:
    """What the best way costs, and the axes of each factor by it."""
    best: tuple[float, FactorAxes] | None = None
    for known in _candidates(rule, operands, results, mesh, manual):
        steps = math.prod(n / mesh.count(known.get(f, ())) for f, n in enumerate(rule.sizes) if n)
        cost = _sent(rule, known, operands, results, mesh) + steps / STEPS_PER_BYTE
        if best is None or cost < best[0]:
            best = cost, known
    assert best is not None
    return best


def _candidates(rule: ShardingRule, operands: Sequence[Side | None], results: Sequence[Side], mesh: DeviceMesh,
                manual: frozenset[int]) -> Iterator[FactorAxes]:
    sides = [s for s in (*results, *operands) if s is not None]
    said = [found for s in sides if (found := factor_axes(s.axes, s.mapping, rule, mesh))]
    distinct = [f for n, f in enumerate(said) if f not in said[:n]]
    orders = list(permutations(distinct)) if len(distinct) <= MOST_PERMUTED else [distinct, distinct[::-1]]
    seen: list[FactorAxes] = []
    for order in [()] + [o[:n] for o in orders for n in range(1, len(o) + 1)]:
        known = _merged(order, manual)
        for without in _left_whole(rule):
            candidate = {f: axes for f, axes in known.items() if f not in without}
            if candidate not in seen and is_possible(rule, candidate, sides, mesh):
                seen.append(candidate)
                yield candidate


def _left_whole(rule: ShardingRule) -> list[frozenset[int]]:
    """Factors that a candidate may leave whole: those whose results must be joined, those that reach for elements of
    other parts, both."""
    reaching = frozenset(reach.factor for reach in rule.reaches)
    return list(dict.fromkeys([frozenset(), rule.reduced, reaching, rule.reduced | reaching]))


def _merged(order: Sequence[FactorAxes], manual: frozenset[int]) -> FactorAxes:
    known: FactorAxes = {}
    used = set(manual)
    for found in order:
        for factor, axes in found.items():
            own = known.get(factor, ())
            if axes[:len(own)] != own:
                continue
            for axis in axes[len(own):]:
                if axis in used:
                    break
                own = (*own, axis)
                used.add(axis)
            if own:
                known[factor] = own
    return known


def _sent(rule: ShardingRule, known: FactorAxes, operands: Sequence[Side | None], results: Sequence[Side],
          mesh: DeviceMesh) -> float:
    """Bytes that each device sends."""
    total = 0.0
    for number, side in enumerate(operands):
        if side is not None:
            target = operand_axes(rule, known, number, side, mesh)
            total += redistribution(side, target, mesh).cost
            total += side.width * _reached(rule, known, number, side, target, mesh)
    partial = partial_axes(rule, known)
    for side in results:
        made = dimension_axes(known, side.mapping, rule, mesh)
        for factor in rule.running & known.keys():
            parts = mesh.count(known[factor])
            last = local_elements(side.sizes, made, mesh) // -(-rule.sizes[factor] // parts)
            total += side.width * sent_by_each("all-gather", last, parts)
        if rule.again:
            local = local_elements(side.sizes, made, mesh)
            total += side.width * sent_by_each("all-gather", local, mesh.count(partial))
            total += side.width * elements_sent(steps_between(side.sizes, made, side.axes, mesh))
            continue
        joining = joined(side.sizes, made, partial, side.axes, mesh)
        total += side.width * _sent_joining(side.sizes, made, joining, mesh)
        total += side.width * elements_sent(steps_between(side.sizes, joining.axes, side.axes, mesh))
    return total


def operand_axes(rule: ShardingRule, known: FactorAxes, number: int, side: Side, mesh: DeviceMesh) -> tuple[Axes, ...]:
    """The axes along the dimensions of an operand, as the op reads it. Where a factor reaches for elements of other
    parts, all devices have all of a dimension that is too short to be divided, or if that takes no more to send."""
    axes = list(dimension_axes(known, side.mapping, rule, mesh))
    for reach in rule.reaches:
        d = reach.dimension
        if reach.operand == number and axes[d]:
            count, size = mesh.count(axes[d]), side.sizes[d]
            if not fits(size, count, not reach.wraps) or reach_plan(
                    reach, size, rule.sizes[reach.factor], count, True).sent >= sent_for_all(size, count):
                axes[d] = ()
    return tuple(axes)


def _reached(rule: ShardingRule, known: FactorAxes, number: int, side: Side, axes: Sequence[Axes],
             mesh: DeviceMesh) -> float:
    """Elements of an operand that each device sends to its neighbours."""
    total, local = 0.0, [-(-n // mesh.count(a)) for n, a in zip(side.sizes, axes)]
    for reach in rule.reaches:
        d = reach.dimension
        if reach.operand == number and axes[d]:
            sent = reach_plan(reach, side.sizes[d], rule.sizes[reach.factor], mesh.count(axes[d]), True).sent
            total += sent * math.prod(n for k, n in enumerate(local) if k != d)
    return total


def partial_axes(rule: ShardingRule, known: FactorAxes) -> Axes:
    """The axes along which results are partial."""
    return tuple(sorted(axis for factor in rule.reduced for axis in known.get(factor, ())))


def joined(sizes: Sequence[int], made: tuple[Axes, ...], partial: Axes, wanted: tuple[Axes, ...],
           mesh: DeviceMesh) -> Joining:
    """How results that are partial along some axes are joined, where they are wanted divided so."""
    rest, scattered, axes = list(partial), [], list(made)
    for d, size in enumerate(sizes):
        more = _scattered(size, made[d], wanted[d], rest, mesh)
        if more:
            scattered.append((d, more))
            axes[d] = (*made[d], *more)
            rest = [axis for axis in rest if axis not in more]
    return Joining(tuple(scattered), tuple(rest), tuple(axes))


def _scattered(size: int, made: Axes, wanted: Axes, partial: Sequence[int], mesh: DeviceMesh) -> Axes:
    """The partial axes that a dimension gets behind those that it has: as many as divide it evenly, or all that are
    wanted, with padding."""
    if wanted[:len(made)] != made:
        return ()
    more = tuple(takewhile(partial.__contains__, wanted[len(made):]))
    if not made and more == wanted:
        return more
    while more and size % mesh.count((*made, *more)):
        more = more[:-1]
    return more


def _sent_joining(sizes: Sequence[int], made: tuple[Axes, ...], joining: Joining, mesh: DeviceMesh) -> float:
    local = local_elements(sizes, made, mesh)
    total = 0.0
    for d, axes in joining.scattered:
        parts, length = mesh.count(axes), -(-sizes[d] // mesh.count(made[d]))
        local = local // length * padded(length, axes, mesh)
        total += sent_by_each("reduce-scatter", local, parts)
        local //= parts
    return total + sent_by_each("all-reduce", local, mesh.count(joining.reduced))
