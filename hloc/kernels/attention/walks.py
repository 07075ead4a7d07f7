"""Common parts of attention and its gradients: dimensions, and the strides of arrays along them.

In: the matmuls of a fusion, and the walks of the arrays of the scores' size (hloc/analysis/attention.py). Out: the
operands in memory; the dimensions of the scores except the columns' as Levels: the stride of each in every array.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hloc.analysis.attention import Run, Walk, batch, contracting, free, free_of_side, side_of
from hloc.analysis.attention_gradient import Weighted
from hloc.analysis.prologues import multiply_adds
from hloc.analysis.strides import collapsed
from hloc.errors import UnsupportedError
from hloc.ir import Instruction
from hloc.ir.narrowing import all_known, known
from hloc.kernels import indexing
from hloc.kernels.builder import Builder
from hloc.kernels.elements import Indices
from hloc.kernels.group import Group
from hloc.kernels.indexing import Index
from hloc.kernels.ir import Expr, Var
from hloc.kernels.loops import refine
from hloc.kernels.products.operands import Access, OperandKernels, behind_conversion
from hloc.kernels.rules.loops import product_result
from hloc.machine import Machine

BATCH, ROW, COLUMN = "batch", "row", "column"
OPERATIONS_OF_SOFTMAX = 20      # per score


class Level(NamedTuple):
    """A dimension of the scores: its size, its stride in the flat scores, and its strides in arrays."""

    size: int
    distance: int
    steps: tuple[int, ...]


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

    def position(self, part: int, index: Sequence[Index]) -> Index:
        """The distance of an index along the dimensions of one part."""
        return indexing.strided(index, [self.strides[d] for d in self.parts[part]])


def one_walk(dimensions: list[tuple[int, int]]) -> int | None:
    """The stride of dimensions (size, stride), outermost first, collapsed into one; None if there is none."""
    (_, stride), *others = collapsed(dimensions) or [(1, 0)]
    return None if others else stride


class Matmuls:
    """The matmuls of one kernel. products: those as large as the scores; outputs: of the weights and other arrays;
    factors: of each product the operand with the rows, and the one with the columns (parts: batch, rows or columns,
    depth); values: what weights are multiplied with (parts: batch, columns, features); roots, results: of each output,
    and its strides along the dimensions of the dot."""

    def __init__(self, group: Group, machine: Machine, walks: dict[Instruction, Walk], columns: Run,
                 products: Sequence[Instruction], outputs: Sequence[Weighted]):
        self.group = group
        self.walks = walks
        self.columns = columns
        self.products = products
        self.outputs = outputs
        self.operands = OperandKernels(group, machine)
        self.factors = [self._factors(p) for p in products]
        self.values = [self._values(o) for o in outputs]
        self.roots = [next(r for r in group.roots if r in dependents(group, o.dot)) for o in outputs]
        self.results = [strides_of_result(group, o.dot, root) for o, root in zip(outputs, self.roots)]

    @property
    def elements(self) -> int:
        """Of the scores."""
        return self.products[0].shape.num_elements

    def _side(self, product: Instruction) -> int:
        """The operand of a product that has the columns."""
        return known(side_of(product, self.walks[product], self.columns))       # as the analysis has checked

    def _factors(self, product: Instruction) -> tuple[Operand, Operand]:
        side, walk = self._side(product), self.walks[product]
        other = 1 - side
        columns = sorted(zip(free_of_side(product, side), free(product, side)), key=lambda pair: -walk[pair[0]][1])
        depth = sorted(zip(contracting(product, side), contracting(product, other)))
        return (_operand(self.operands, product.operands[other],
                         (batch(product, other), free(product, other), tuple(d for _, d in depth)), (2,)),
                _operand(self.operands, product.operands[side],
                         (batch(product, side), tuple(d for _, d in columns), tuple(d for d, _ in depth)), (1, 2)))

    def _values(self, output: Weighted) -> Operand:
        dot, slot, walk = output.dot, output.slot, self.walks[output.weights]
        side = 1 - slot
        summed = sorted(zip(contracting(dot, slot), contracting(dot, side)), key=lambda pair: -walk[pair[0]][1])
        return _operand(self.operands, behind_conversion(self.group, dot.operands[side]),
                        (batch(dot, side), tuple(d for _, d in summed), free(dot, side)), (1, 2))

    def feature(self, number: int) -> int | None:
        """The stride of the features in a result."""
        dot, slot = self.outputs[number].dot, self.outputs[number].slot
        return one_walk([(dot.shape.dimensions[n], self.results[number][n]) for n in free_of_side(dot, 1 - slot)])

    def positions(self, place: Index) -> list[Index]:
        """The positions that belong to one of the scores, of column 0: in both operands of each product, and in the
        values and the result of each output, of feature 0."""
        found = []
        for product, (first, second) in zip(self.products, self.factors):
            both, index = self.batches(place, product), self.index(place, product)
            rows = [index[n] for n in free_of_side(product, 1 - self._side(product))]
            found += [indexing.add(first.position(0, both), first.position(1, rows)), second.position(0, both)]
        for (dot, slot), values, result in zip(self.outputs, self.values, self.results):
            both, index = self.batches(place, dot.operands[slot]), self.index(place, dot.operands[slot])
            rows = [index[d] for d in free(dot, slot)]
            kept = [result[n] for n in (*range(len(both)), *free_of_side(dot, slot))]
            found += [values.position(0, both), indexing.strided([*both, *rows], kept)]
        return found

    def batches(self, place: Index, array: Instruction) -> list[Index]:
        """The index along the dimensions of the batch: of a product, or of the weights of an output."""
        index = self.index(place, array)
        if array in self.products:
            return list(index[:len(batch(array, 0))])
        output = next(o for o in self.outputs if o.weights is array)
        return [index[d] for d in batch(output.dot, output.slot)]

    def index(self, place: Index, array: Instruction) -> Indices:
        """The multi-index of a flat position of the scores, in an array of their size."""
        return places(place, self.walks[array], self.elements)

    def levels(self, more: Callable[[Index], list[Index]] = lambda place: []) -> tuple[Level, list[Level]]:
        """The rows, and the other dimensions of the scores but the columns, outermost first, with the strides of the
        arrays of `positions`, then of `more`. UnsupportedError if there are none: the matmuls disagree."""
        size, distance = self.columns
        loops = [n for n in (self.elements // (size * distance), distance) if n > 1]

        def emit(builder: Builder, counters: Indices) -> None:
            flat = indexing.linearize(counters, loops)
            place = indexing.add(indexing.scale(indexing.floor_divide(flat, distance), size * distance),
                                 indexing.modulo(flat, distance))
            builder.accesses = [("", p) for p in (place, *self.positions(place), *more(place))]
            for _, position in builder.accesses:
                builder.position(position)
        extents, _, builder = refine(loops, emit)
        found = []
        for n, extent in enumerate(extents):
            steps = [indexing.coefficient_of(p, f"i{n}") for _, p in builder.accesses]
            if not all_known(steps):
                raise UnsupportedError("the matmuls of an attention disagree on its dimensions")
            found.append((extent, *steps))
        levels = [Level(size, first, tuple(steps)) for size, first, *steps in collapsed(found)]
        fixed = [2 * n + 1 for n in range(len(self.products))] + [2 * (len(self.products) + n)
                                                                   for n in range(len(self.outputs))]
        rows = [n for n in levels if not any(n.steps[f] for f in fixed)]
        row = max(rows, key=lambda n: n.size, default=Level(1, 0, (0,) * (len(builder.accesses) - 1)))
        return row, [n for n in levels if n is not row]

    def flat_position(self, row: Level, others: list[Level]) -> Index:
        """The flat position of (batch, row, column) in the scores."""
        counted = indexing.variable(BATCH, math.prod(n.size for n in others))
        return indexing.strided(
            [indexing.variable(ROW, row.size), indexing.variable(COLUMN, self.columns[0]),
             *indexing.delinearize(counted, [n.size for n in others])],
            [row.distance, self.columns[1], *(n.distance for n in others)])

    def reader(self, product: Instruction, sum: str, position: Index) -> Callable[[Indices], Expr]:
        """A product at an index, which is where its sum, a Var, is being computed."""
        def read(index: Indices) -> Expr:
            if indexing.strided(index, [distance for _, distance in self.walks[product]]) != position:
                raise UnsupportedError("a matmul that is read at other positions than the one computed", product.span)
            return product_result(Var(sum, "f32"), product.shape.element_type)
        return read

    @property
    def multiply_adds(self) -> int:
        """Of one run; a softmax counts as so many."""
        return sum(multiply_adds(d) for d in (*self.products, *(o.dot for o in self.outputs))) \
            + OPERATIONS_OF_SOFTMAX // 2 * self.elements


def _operand(operands: OperandKernels, operand: Instruction, parts: tuple[tuple[int, ...], ...],
             alone: tuple[int, ...]) -> Operand:
    """An operand in memory; the parts in `alone` are walked by one stride each: else it is copied in that order."""
    type = operand.shape.element_type
    order = tuple(d for part in parts for d in part)
    given = Operand(operands.access(operand, type, order), operand.shape.dimensions, parts)
    if all(given.stride(part) is not None for part in alone):
        return given
    return given._replace(access=operands.in_order(operand, type, order))


def strides_of_result(group: Group, dot: Instruction, root: Instruction) -> list[int]:
    """The strides of a result, computed from a dot by conversions and transposes, along each dimension of the dot."""
    names = [f"d{n}" for n in range(dot.shape.rank)]
    index = tuple(map(indexing.variable, names, dot.shape.dimensions))
    depends, node, tail = dependents(group, dot), root, list[Instruction]()
    while node is not dot:
        tail.append(node)
        node = next(o for o in node.operands if o in depends)
    for node in reversed(tail):
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


def places(position: Index, walk: Walk, elements: int) -> Indices:
    """The multi-index of a flat position of the scores, in an array with this walk. Computed step by step from the
    innermost dimension, so that divisions cancel."""
    result = [indexing.ZERO] * len(walk)
    rest, divided = position, 1
    for d in sorted((d for d, (size, _) in enumerate(walk) if size > 1), key=lambda d: walk[d][1]):
        size, distance = walk[d]
        rest, divided = indexing.floor_divide(rest, distance // divided), distance
        result[d] = rest if size * distance == elements else indexing.modulo(rest, size)
    return tuple(result)
