"""Common parts of attention and its gradients: dimensions, and the strides of arrays along them.

In: dots of a fusion, and the walks of the arrays of the scores' size (hloc/analysis/attention.py). Out: the operands in
memory; the dimensions of the scores except the columns' as Walks: the stride of each in every array.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from hloc.analysis.attention import batch, contracting, free, free_of_side
from hloc.analysis.strides import collapsed
from hloc.errors import UnsupportedError
from hloc.ir import Instruction
from hloc.ir.narrowing import all_known
from hloc.kernels import indexing
from hloc.kernels.elements import Indices
from hloc.kernels.group import Group
from hloc.kernels.ir import Expr, Var
from hloc.kernels.products.operands import Access, OperandKernels, behind_conversion
from hloc.kernels.rules.loops import product_result

BATCH, ROW, COLUMN = "batch", "row", "column"
OPERATIONS_OF_SOFTMAX = 20      # per score
Dimensions = tuple[tuple[int, int], ...]        # (size, stride in the flat scores) of an array of their size


class Walk(NamedTuple):
    """A dimension: its size, its stride in the flat scores, and its strides in other arrays."""

    size: int
    distance: int
    steps: tuple[int, ...]

    def split(self, inner: int) -> tuple[Walk, Walk]:
        """As an outer dimension and an inner one of that size."""
        outer = Walk(self.size // inner, self.distance * inner, tuple(s * inner for s in self.steps))
        return outer, self._replace(size=inner)


class Operand(NamedTuple):
    """An operand in memory, and its dimensions in three parts."""

    access: Access
    dimensions: tuple[int, ...]
    parts: tuple[tuple[int, ...], ...]

    @property
    def strides(self) -> tuple[int, ...]:
        return self.access.strides

    def stride(self, part: int) -> int | None:
        """The stride of all dimensions of one part collapsed; None if there is none."""
        return one_walk([(self.dimensions[d], self.strides[d]) for d in self.parts[part]])

    def size(self, part: int) -> int:
        return math.prod(self.dimensions[d] for d in self.parts[part])


def one_walk(dimensions: list[tuple[int, int]]) -> int | None:
    """The stride of dimensions (size, stride), outermost first, collapsed into one; None if there is none."""
    (_, stride), *others = collapsed(dimensions) or [(1, 0)]
    return None if others else stride


# -- operands of products ----------------------------------------------------------------------------------------------

def operands_of(product: Instruction, side: int, walk: Dimensions, operands: OperandKernels) -> tuple[Operand, Operand]:
    """The operand with the rows, and the one with the columns, which is the one at `side`. Parts: batch, rows or
    columns, depth."""
    other = 1 - side
    columns = sorted(zip(free_of_side(product, side), free(product, side)), key=lambda pair: -walk[pair[0]][1])
    depth = sorted(zip(contracting(product, side), contracting(product, other)))
    return (_operand(operands, product.operands[other],
                     (batch(product, other), free(product, other), tuple(d for _, d in depth)), (2,)),
            _operand(operands, product.operands[side],
                     (batch(product, side), tuple(d for _, d in columns), tuple(d for d, _ in depth)), (1, 2)))


def values_of(dot: Instruction, slot: int, walk: Dimensions, operands: OperandKernels) -> Operand:
    """The operand multiplied with the weights, which are at `slot`. Parts: batch, columns, features. walk: of the
    weights."""
    side = 1 - slot
    summed = sorted(zip(contracting(dot, slot), contracting(dot, side)), key=lambda pair: -walk[pair[0]][1])
    return _operand(operands, behind_conversion(operands.group, dot.operands[side]),
                    (batch(dot, side), tuple(d for _, d in summed), free(dot, side)), (1, 2))


def _operand(operands: OperandKernels, operand: Instruction, parts: tuple[tuple[int, ...], ...],
             alone: tuple[int, ...]) -> Operand:
    """An operand in memory; the parts in `alone` are walked by one stride each: else it is copied in that order."""
    type = operand.shape.element_type
    order = tuple(d for part in parts for d in part)
    given = Operand(operands.access(operand, type, order), operand.shape.dimensions, parts)
    if all(given.stride(part) is not None for part in alone):
        return given
    return given._replace(access=operands.in_order(operand, type, order))


def walks_of_product(product: Instruction, side: int, walk: Dimensions, first: Operand, second: Operand) -> list[Walk]:
    """A product's dimensions except the columns: steps in both operands."""
    found = [Walk(*walk[n], (first.strides[a], second.strides[b]))
             for n, (a, b) in enumerate(zip(first.parts[0], second.parts[0]))]
    return found + [Walk(*walk[n], (first.strides[a], 0))
                    for n, a in zip(free_of_side(product, 1 - side), first.parts[1])]


def walks_of_weights(dot: Instruction, slot: int, walk: Dimensions, values: Operand, results: list[int]) -> list[Walk]:
    """The dimensions of a dot's weights except the columns: steps in the values and in the result."""
    found = [Walk(*walk[d], (values.strides[v], results[n]))
             for n, (d, v) in enumerate(zip(batch(dot, slot), values.parts[0]))]
    return found + [Walk(*walk[d], (0, results[n]))
                    for d, n in zip(free(dot, slot), free_of_side(dot, slot))]


def features_of(dot: Instruction, slot: int, results: list[int]) -> list[tuple[int, int]]:
    """(size, step in the result) of the features' dimensions."""
    return [(dot.shape.dimensions[n], results[n]) for n in free_of_side(dot, 1 - slot)]


# -- results -----------------------------------------------------------------------------------------------------------

def strides_of_result(group: Group, dot: Instruction, root: Instruction) -> list[int]:
    """The strides of a result, computed from a dot by conversions and transposes, along each dimension of the dot."""
    names = [f"d{n}" for n in range(dot.shape.rank)]
    index = tuple(indexing.variable(n, size) for n, size in zip(names, dot.shape.dimensions))
    for node in reversed(tail_of_result(group, dot, root)):
        if node.opcode == "transpose":
            index = tuple(index[d] for d in node.get("dimensions"))
        elif node.opcode in ("reshape", "bitcast"):
            index = indexing.reshape(index, node.operands[0].shape.dimensions, node.shape.dimensions)
    position = indexing.linearize(index, root.shape.dimensions)
    strides = [indexing.coefficient_of(position, n) for n in names]
    if not all_known(strides):
        raise UnsupportedError("the result of an attention has no regular strides", group.instruction.span)
    return strides


def dependents(group: Group, dot: Instruction) -> set[Instruction]:
    """A dot, and the members of the group that are computed from it."""
    found = {dot}
    for member in group.members:
        if any(o in found for o in member.operands):
            found.add(member)
    return found


def tail_of_result(group: Group, dot: Instruction, root: Instruction) -> list[Instruction]:
    """The instructions from the root back to a dot, without the dot."""
    depends = dependents(group, dot)
    node, found = root, []
    while node is not dot:
        found.append(node)
        node = next(o for o in node.operands if o in depends)
    return found


# -- positions ---------------------------------------------------------------------------------------------------------

def flat_position(row: Walk, columns: tuple[int, int], others: list[Walk]) -> indexing.Index:
    """The flat position of (batch, row, column) in the scores. columns: size, stride."""
    counted = indexing.variable(BATCH, math.prod(n.size for n in others))
    position = indexing.add(indexing.scale(indexing.variable(ROW, row.size), row.distance),
                            indexing.scale(indexing.variable(COLUMN, columns[0]), columns[1]))
    for index, level in zip(indexing.delinearize(counted, [n.size for n in others]), others):
        position = indexing.add(position, indexing.scale(index, level.distance))
    return position


def reader_of(product: Instruction, sum: str, walk: Dimensions, position: indexing.Index
              ) -> Callable[[Indices], Expr]:
    """A product at an index, which is where its sum, a Var, is being computed."""
    def read(index: Indices) -> Expr:
        found = indexing.ZERO
        for place, (_, distance) in zip(index, walk):
            found = indexing.add(found, indexing.scale(place, distance))
        if found != position:
            raise UnsupportedError("a matmul that is read at other positions than the one computed", product.span)
        return product_result(Var(sum, "f32"), product.shape.element_type)
    return read


def places(position: indexing.Index, walk: tuple[tuple[int, int], ...], elements: int) -> Indices:
    """The multi-index of a flat position of the scores, in an array with this walk. Computed step by step from the
    innermost dimension, so that divisions cancel."""
    result = [indexing.ZERO] * len(walk)
    rest, divided = position, 1
    for d in sorted((d for d, (size, _) in enumerate(walk) if size > 1), key=lambda d: walk[d][1]):
        size, distance = walk[d]
        rest, divided = indexing.floor_divide(rest, distance // divided), distance
        result[d] = rest if size * distance == elements else indexing.modulo(rest, size)
    return tuple(result)


# -- dimensions --------------------------------------------------------------------------------------------------------

def common(lists: list[list[Walk]]) -> list[Walk]:
    """Lists of dimensions of the same elements as one list, outermost first: dimensions of different sizes are split.
    UnsupportedError if they do not divide one another."""
    first = _inner_first(lists[0])
    for walks in lists[1:]:
        first = _common(first, _inner_first(walks))
    return first[::-1]


def _inner_first(walks: list[Walk]) -> list[Walk]:
    return sorted((w for w in walks if w.size > 1), key=lambda w: w.distance)


def _common(left: list[Walk], right: list[Walk]) -> list[Walk]:
    left, right, found = [*left], [*right], []
    while left and right:
        a, b = left.pop(0), right.pop(0)
        inner = math.gcd(a.size, b.size)
        if a.distance != b.distance or inner != min(a.size, b.size):
            raise UnsupportedError("the matmuls of an attention disagree on its dimensions")
        if a.size > inner:
            outer, a = a.split(inner)
            left.insert(0, outer)
        if b.size > inner:
            outer, b = b.split(inner)
            right.insert(0, outer)
        found.append(Walk(inner, a.distance, a.steps + b.steps))
    return found


def merged(levels: list[Walk]) -> list[Walk]:
    """Adjacent dimensions collapsed if all arrays allow it."""
    return [Walk(size, distance, tuple(steps)) for size, distance, *steps in collapsed(
        (level.size, level.distance, *level.steps) for level in levels)]
