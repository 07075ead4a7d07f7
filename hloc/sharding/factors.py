"""Axes of arrays and axes of factors: the two sides of a ShardingRule.

    f32[m,k] with the axis x along k, in a rule whose factors are m, n, k         {k: (x,)}
    and back: the factors {m: (y,), k: (x,)}                                      ((y,), (x,))

A dimension made of several factors (a reshape's) is divided along the major one first, and along the next only once
that is divided to the end. What a mapping cannot say is left out: the array then has fewer axes than it could.
"""
from __future__ import annotations

from collections.abc import Mapping as Table
from collections.abc import Sequence

from hloc.sharding.meshes import Axes, AxisSharding, DeviceMesh
from hloc.sharding.rules import Mapping, ShardingRule

FactorAxes = dict[int, Axes]


def factor_axes(dimensions: Sequence[Axes], mapping: Mapping, rule: ShardingRule, mesh: DeviceMesh) -> FactorAxes:
    """The axes of each factor, as one array has them. Whole factors have none."""
    found: FactorAxes = {}
    for axes, factors in zip(dimensions, mapping):
        rest = list(axes)
        for factor in factors:
            if factor in rule.whole:
                break
            taken: list[int] = []
            while rest and fits(rule.sizes[factor], mesh.count([*taken, rest[0]]), len(factors) == 1):
                taken.append(rest.pop(0))
            if taken:
                found[factor] = tuple(taken)
            if mesh.count(taken) != rule.sizes[factor]:
                break
    return found


def dimension_axes(known: Table[int, Axes], mapping: Mapping, rule: ShardingRule, mesh: DeviceMesh) -> tuple[Axes, ...]:
    """The axes along each dimension of an array, as those of the factors have it."""
    found = []
    for factors in mapping:
        axes: list[int] = []
        for factor in factors:
            axes += known.get(factor, ())
            if mesh.count(known.get(factor, ())) != rule.sizes[factor]:
                break
        found.append(tuple(axes))
    return tuple(found)


def says_all(known: Table[int, Axes], mapping: Mapping, rule: ShardingRule, mesh: DeviceMesh) -> bool:
    """Whether an array with such a mapping can have all axes of those of its factors."""
    said = dimension_axes(known, mapping, rule, mesh)
    return all(len(axes) == sum(len(known.get(f, ())) for f in factors) for axes, factors in zip(said, mapping))


def fits(size: int, count: int, alone: bool) -> bool:
    """Whether `size` elements can be divided in `count`: evenly, or, along a dimension of one factor, with padding, as
    long as there are no more parts than elements. The last parts may be padding alone: 9 in 4 are 3, 3, 3, 0."""
    return size % count == 0 if not alone else size >= count


def local_sizes(sizes: Sequence[int], sharding: AxisSharding, mesh: DeviceMesh) -> tuple[int, ...]:
    """The sizes of one device's part; uneven dimensions are rounded up."""
    return tuple(-(-n // mesh.count(axes)) for n, axes in zip(sizes, sharding.dimensions))
