"""Which factors of an op are divided along which axes: the choice that costs least.

In: an op's rule, the shardings in which its operands are there, and those in which its results are wanted. Out: axes by
factor. Candidates follow the arrays in turn: all that the first is divided along, then what the next adds to that. What
operands and results are sent for is counted as resharding.py counts it; partial results are joined by reduce-scatter
where the wanted sharding has the axes, else by all-reduce. What a device computes counts, too: dividing the work is
worth some bytes.
"""
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import permutations, takewhile
from typing import NamedTuple

from hloc.passes.spmd_partitioner.halos import reach_plan, sent_for_all
from hloc.passes.spmd_partitioner.resharding import elements_sent, padded, steps_between
from hloc.sharding.factors import FactorAxes, dimension_axes, factor_axes, fits, says_all
from hloc.sharding.meshes import Axes, DeviceMesh
from hloc.sharding.rules import Mapping, ShardingRule

MOST_PERMUTED = 4                # arrays whose orders are all tried
# Steps of an op's innermost loop (a multiplication and an addition, in a product) that take as long as sending a byte:
# a GPU with NVLink does some hundreds, a CPU core some tens beside its memory.
STEPS_PER_BYTE = 50


class Side(NamedTuple):
    """One array: its mapping, sizes, bytes of an element, and the axes along its dimensions."""

    mapping: Mapping
    sizes: tuple[int, ...]
    width: int
    axes: tuple[Axes, ...]


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


def is_possible(rule: ShardingRule, known: FactorAxes, sides: Sequence[Side], mesh: DeviceMesh) -> bool:
    """Whether every array can be divided so; operands that a factor reaches into need not be."""
    for side in sides:
        if not says_all(known, side.mapping, rule, mesh):
            return False
        for factors in side.mapping:
            for factor in factors:
                alone = len(factors) == 1 and not (rule.once and factor in rule.reduced)
                if not fits(rule.sizes[factor], mesh.count(known.get(factor, ())), alone) and factor in known:
                    return False
    return True


def _sent(rule: ShardingRule, known: FactorAxes, operands: Sequence[Side | None], results: Sequence[Side],
          mesh: DeviceMesh) -> float:
    """Bytes that each device sends."""
    total = 0.0
    for number, side in enumerate(operands):
        if side is not None:
            target = operand_axes(rule, known, number, side, mesh)
            total += side.width * elements_sent(steps_between(side.sizes, side.axes, target, mesh))
            total += side.width * _reached(rule, known, number, side, target, mesh)
    partial = partial_axes(rule, known)
    for side in results:
        made = dimension_axes(known, side.mapping, rule, mesh)
        for factor in rule.running & known.keys():
            parts = mesh.count(known[factor])
            total += side.width * (parts - 1) * _local(side.sizes, made, mesh) / -(-rule.sizes[factor] // parts)
        if rule.again:
            parts = mesh.count(partial)
            total += side.width * (parts - 1) * _local(side.sizes, made, mesh)
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


def _local(sizes: Sequence[int], axes: Sequence[Axes], mesh: DeviceMesh) -> int:
    """Elements of a device's part."""
    return math.prod(-(-n // mesh.count(a)) for n, a in zip(sizes, axes))


def _sent_joining(sizes: Sequence[int], made: tuple[Axes, ...], joining: Joining, mesh: DeviceMesh) -> float:
    local = _local(sizes, made, mesh)
    total = 0.0
    for d, axes in joining.scattered:
        parts, length = mesh.count(axes), -(-sizes[d] // mesh.count(made[d]))
        local = local // length * padded(length, axes, mesh)
        total += local * (parts - 1) / parts
        local //= parts
    parts = mesh.count(joining.reduced)
    return total + 2 * local * (parts - 1) / parts
