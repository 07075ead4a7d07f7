"""Arrays of an op, and how an operand comes to the sharding in which the op reads it.

    places = s32[64], divided along rows;  wide = f32[64,16,32] broadcast(places, ...), wanted whole
        =>  places is gathered, 256 bytes, and each device computes the broadcast again

What sends least counts: the array itself, by the steps of resharding.py, or, where ops that only move and compute
elements have made it of smaller arrays, these, and it is computed again.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES, Instruction
from hloc.ops.table import OPS
from hloc.passes.sharding_propagation.graph import rule_of
from hloc.passes.spmd_partitioner.resharding import elements_sent, steps_between
from hloc.sharding.factors import FactorAxes, dimension_axes, factor_axes, fits, says_all
from hloc.sharding.meshes import Axes, AxisSharding, DeviceMesh
from hloc.sharding.rules import Mapping, ShardingRule

# Steps of an op's innermost loop (a multiplication and an addition, in a product) that take as long as sending a byte:
# a GPU with NVLink does some hundreds, a CPU core some tens beside its memory.
STEPS_PER_BYTE = 50
MOVES = frozenset(["broadcast", "iota", "reshape", "transpose"])     # may be done again, as elementwise ops may
MOST_OPS_AGAIN = 16                                                  # one behind the other


@dataclass(frozen=True, eq=False)
class Producer:
    """The op that makes an array, where it may be done again. least: bytes of the fewest elements, of all devices, that
    the array can be computed from; depth: ops one behind the other. One object for all arrays that are made alike."""

    rule: ShardingRule
    operands: tuple[Side, ...]
    least: int
    depth: int


class Side(NamedTuple):
    """One array: its mapping, sizes, bytes of an element, the axes along its dimensions, and what makes it."""

    mapping: Mapping
    sizes: tuple[int, ...]
    width: int
    axes: tuple[Axes, ...]
    producer: Producer | None = None


class Redistribution(NamedTuple):
    """cost: bytes that each device sends, and what it computes again, in such. known: the axes of the factors of the op
    that is done again; None where the array itself is sent."""

    cost: float
    known: FactorAxes | None = None


def redistribution(side: Side, target: tuple[Axes, ...], mesh: DeviceMesh) -> Redistribution:
    """The cheapest for an operand to be divided along `target`."""
    if side.axes == target:
        return Redistribution(0.0)
    return _redistribution(side.sizes, side.width, side.axes, side.producer, target, mesh)


@lru_cache(maxsize=4096)
def _redistribution(sizes: tuple[int, ...], width: int, axes: tuple[Axes, ...], producer: Producer | None,
                    target: tuple[Axes, ...], mesh: DeviceMesh) -> Redistribution:
    sent = Redistribution(width * elements_sent(steps_between(sizes, axes, target, mesh)))
    if producer is None or not sent.cost:
        return sent
    rule, (mapping,) = producer.rule, producer.rule.results
    known = factor_axes(target, mapping, rule, mesh)
    result = Side(mapping, sizes, width, axes)
    if dimension_axes(known, mapping, rule, mesh) != target or not is_possible(
            rule, known, (result, *producer.operands), mesh):
        return sent
    cost = local_elements(sizes, target, mesh) / STEPS_PER_BYTE
    for operand in producer.operands:
        cost += redistribution(operand, dimension_axes(known, operand.mapping, rule, mesh), mesh).cost
    return Redistribution(cost, known) if cost < sent.cost else sent


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


def local_elements(sizes: Sequence[int], axes: Sequence[Axes], mesh: DeviceMesh) -> int:
    """Elements of a device's part."""
    return math.prod(-(-n // mesh.count(a)) for n, a in zip(sizes, axes))


class Producers:
    """The producers of a module's arrays, whose shardings `of` tells."""

    def __init__(self, of: Callable[[Instruction], Sequence[AxisSharding]]):
        self._of = of
        self._found: dict[Instruction, Producer | None] = {}
        self._alike: dict[tuple[ShardingRule, tuple[Side, ...]], Producer] = {}

    def side(self, mapping: Mapping, instruction: Instruction) -> Side:
        """An operand of an op, which is an array."""
        shape = instruction.shape
        return Side(mapping, shape.dimensions, ELEMENT_TYPES[shape.element_type].bytes,
                    self._of(instruction)[0].dimensions, self._producer(instruction))

    def _producer(self, instruction: Instruction) -> Producer | None:
        if instruction not in self._found:
            self._found[instruction] = self._made(instruction)
        return self._found[instruction]

    def _made(self, instruction: Instruction) -> Producer | None:
        """None where it cannot be computed again, or would be from as many bytes as it has."""
        operands = instruction.operands
        if not (OPS[instruction.opcode].is_elementwise or instruction.opcode in MOVES) or not all(
                one.shape.is_array for one in (instruction, *operands)):
            return None
        least = sum(found.least if (found := self._producer(o)) else o.shape.num_bytes for o in operands)
        rule = rule_of(instruction) if least < instruction.shape.num_bytes else None
        if rule is None:
            return None
        sides = tuple(self.side(m, o) for m, o in zip(rule.operands, operands))
        depth = max((side.producer.depth for side in sides if side.producer), default=0) + 1
        if depth > MOST_OPS_AGAIN:
            return None
        return self._alike.setdefault((rule, sides), Producer(rule, sides, least, depth))
