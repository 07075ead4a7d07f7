"""The gradients of attention: a Tile of the routine "attention_gradient" for products of what is made of products.

In: a kCustom fusion that is a Gradient (hloc/analysis/attention_gradient.py). Out: the tile; before it a kernel per
operand that no strides can describe.

Tile "attention_gradient": for every batch b, row i and feature f, with one or two products p and outputs n
    acc_p[j] = sum over d of A_p[b, i, d] B_p[b, j, d]          for every column j
    out_n[b, i, f] = sum over j of weight_n(b, i, j, acc) X_n[b, j, f]
all in f32. Buffers: "array0" ... (what A, B and X lie in), what the weights read, then "out0" ... Parameters (strides
in elements; offsets are of the first element; `batch strides`: one per dimension of the batch, outermost first):
    types      element types of "array0" ...
    sizes      (rows, columns)
    batches    (size, ...) of the batch's dimensions; b counts through them, the last fastest
    products   ((depth, A, B), ...), of each array (buffer, offset, row or column, depth, (batch strides))
    outputs    ((features, X, result, narrow), ...): X is (buffer, offset, column, feature, (batch strides)), the result
               (buffer, row, feature, (batch strides)); narrow: weights may be rounded to X's type
Epilogue, the weights: statements over the INDEX Vars "batch", "row", "column" and Vars "acc0", "acc1" of f32; the last
are Lets of "weight0", "weight1", f32. It stores nothing.
"""
from __future__ import annotations

import math

from hloc.analysis.attention import batch, contracting, free, free_of_side, multiply_adds, side_of
from hloc.analysis.attention_gradient import Gradient, Weighted, gradient_in
from hloc.errors import UnsupportedError
from hloc.ir import ELEMENT_TYPES, Instruction
from hloc.kernels import indexing, scalars
from hloc.kernels.elements import Indices
from hloc.kernels.group import Arg, Group, KernelCall, Lowered, Outline, kernel_name, origin_lines
from hloc.kernels.ir import Buffer, Cost, Expr, Let, Stmt, Tile, Var
from hloc.kernels.lower_attention import (
    BATCH,
    COLUMN,
    OPERATIONS_OF_SOFTMAX,
    ROW,
    Operand,
    Walk,
    common,
    one_walk,
    places,
    strides_of_result,
)
from hloc.kernels.operands import OperandKernels
from hloc.kernels.rules_loops import product_result
from hloc.machine import Machine


def lower_attention_gradient(group: Group, machine: Machine) -> Lowered:
    """A fusion of one or two products of what is made of one or two others."""
    gradient = gradient_in(group.instruction.get("calls"))
    if gradient is None:
        raise UnsupportedError("products that are no gradients of an attention, in one fusion", group.instruction.span)
    return _Lowering(group, machine, gradient).lowered()


class _Lowering:
    """The kernels of one gradient."""

    def __init__(self, group: Group, machine: Machine, gradient: Gradient):
        self.group = group
        self.gradient = gradient
        self.operands = OperandKernels(group, machine)
        self.arrays: dict[Arg, Buffer] = {}

    def lowered(self) -> Lowered:
        products = [self.operands_of(p) for p in self.gradient.products]
        values = [self.values_of(o) for o in self.gradient.outputs]
        lists = [self.walks_of_product(p, *sides) for p, sides in zip(self.gradient.products, products)]
        lists += [self.walks_of_output(o, v) for o, v in zip(self.gradient.outputs, values)]
        levels = merged(common(lists))
        fixed = self.columns_only(len(products))
        rows = [n for n in levels if not any(n.steps[f] for f in fixed)]
        row = max(rows, key=lambda n: n.size, default=Walk(1, 0, (0,) * 2 * len(lists)))
        tile = self.tile(products, values, row, [n for n in levels if n is not row])
        return Lowered((*self.operands.calls, tile), tuple(self.operands.scratch))

    def columns_only(self, products: int) -> list[int]:
        """Which steps of a level belong to arrays that have columns and no rows: of each product the second, of each
        output the first."""
        return [2 * n + 1 for n in range(products)] + [2 * (products + n) for n in range(len(self.gradient.outputs))]

    # -- arrays

    def operands_of(self, product: Instruction) -> tuple[Operand, Operand]:
        """The operand with the rows, and the one with the columns."""
        walk = self.gradient.walks[product]
        side = side_of(product, walk, self.gradient.columns)
        other = 1 - side
        columns = sorted(zip(free_of_side(product, side), free(product, side)), key=lambda pair: -walk[pair[0]][1])
        depth = sorted(zip(contracting(product, side), contracting(product, other)))
        return (self.access(product.operands[other], (batch(product, other), free(product, other),
                                                      tuple(d for _, d in depth)), (2,)),
                self.access(product.operands[side], (batch(product, side), tuple(d for _, d in columns),
                                                     tuple(d for d, _ in depth)), (1, 2)))

    def values_of(self, output: Weighted) -> Operand:
        """What the weights are multiplied with: batch, columns, features."""
        dot, side = output.dot, 1 - output.slot
        walk = self.gradient.walks[output.weights]
        summed = sorted(zip(contracting(dot, output.slot), contracting(dot, side)), key=lambda pair: -walk[pair[0]][1])
        return self.access(dot.operands[side], (batch(dot, side), tuple(d for _, d in summed), free(dot, side)), (1, 2))

    def access(self, operand: Instruction, parts: tuple[tuple[int, ...], ...], alone: tuple[int, ...]) -> Operand:
        """An operand in memory; the parts in `alone` are walked by one stride each."""
        type = operand.shape.element_type
        order = tuple(d for part in parts for d in part)
        given = Operand(self.operands.access(operand, type, order), operand.shape.dimensions, parts)
        if all(given.stride(part) is not None for part in alone):
            return given
        return given._replace(access=self.operands.in_order(operand, type, order))

    def walks_of_product(self, product: Instruction, first: Operand, second: Operand) -> list[Walk]:
        """A product's dimensions without the columns: steps in both operands."""
        walk = self.gradient.walks[product]
        side = side_of(product, walk, self.gradient.columns)
        found = [Walk(*walk[n], (first.strides[a], second.strides[b]))
                 for n, (a, b) in enumerate(zip(first.parts[0], second.parts[0]))]
        return found + [Walk(*walk[n], (first.strides[a], 0))
                        for n, a in zip(free_of_side(product, 1 - side), first.parts[1])]

    def walks_of_output(self, output: Weighted, values: Operand) -> list[Walk]:
        """The dimensions of an output's weights without the columns: steps in the values and in the result."""
        walk, dot, results = self.gradient.walks[output.weights], output.dot, self.result_strides(output)
        found = [Walk(*walk[d], (values.strides[v], results[n]))
                 for n, (d, v) in enumerate(zip(batch(dot, output.slot), values.parts[0]))]
        return found + [Walk(*walk[d], (0, results[n]))
                        for d, n in zip(free(dot, output.slot), free_of_side(dot, output.slot))]

    def result_strides(self, output: Weighted) -> list[int]:
        return strides_of_result(self.group, output.dot, self.root_of(output))

    def root_of(self, output: Weighted) -> Instruction:
        """The root of the fusion that an output ends in."""
        depends = {output.dot}
        for member in self.group.members:
            if any(o in depends for o in member.operands):
                depends.add(member)
        return next(r for r in self.group.roots if r in depends)

    def array(self, operand: Operand) -> str:
        """The name of the buffer in which an operand lies."""
        access = operand.access
        made = Buffer(f"array{len(self.arrays)}", access.type, access.size)
        return self.arrays.setdefault(access.argument, made).name

    # -- the tile

    def tile(self, products: list[tuple[Operand, Operand]], values: list[Operand], row: Walk, others: list[Walk]
             ) -> KernelCall:
        outline = Outline(self.group)
        weights = self.weights(outline, row, others)

        def place(operand: Operand, number: int, part: int) -> tuple:
            """Of an array: buffer, offset, row or column, depth or feature, batch strides."""
            line = row.steps[number] if number % 2 == 0 and number < 2 * len(products) else operand.stride(1)
            return (self.array(operand), operand.access.offset, line, operand.stride(part),
                    tuple(n.steps[number] for n in others))
        told = [(a.size(2), place(a, 2 * n, 2), place(b, 2 * n + 1, 2)) for n, (a, b) in enumerate(products)]
        outputs = []
        for n, (output, x) in enumerate(zip(self.gradient.outputs, values)):
            number = 2 * (len(products) + n)
            name = outline.result_buffer(self.group.roots.index(self.root_of(output)))
            result = (name, row.steps[number + 1], one_walk(self.features(output)),
                      tuple(k.steps[number + 1] for k in others))
            outputs.append((x.size(2), place(x, number, 2), result, is_narrow(output)))
        buffers, arguments = outline.buffers()
        operands = tuple(self.arrays.values())
        parameters = (("types", tuple(b.type for b in operands)), ("sizes", (row.size, self.gradient.columns[0])),
                      ("batches", tuple(n.size for n in others)), ("products", tuple(told)),
                      ("outputs", tuple(outputs)))
        tile = Tile(kernel_name(self.group), "attention_gradient", operands + buffers, parameters, weights,
                    cost=self.cost((*operands, *buffers)), origin=origin_lines(self.group))
        return KernelCall(tile, (*self.arrays, *arguments))

    def features(self, output: Weighted) -> list[tuple[int, int]]:
        """(size, step in the result) of the features' dimensions."""
        results = self.result_strides(output)
        return [(output.dot.shape.dimensions[n], results[n]) for n in free_of_side(output.dot, 1 - output.slot)]

    def cost(self, buffers: tuple[Buffer, ...]) -> Cost:
        dots = [*self.gradient.products, *(o.dot for o in self.gradient.outputs)]
        work = 2 * sum(multiply_adds(d) for d in dots) + OPERATIONS_OF_SOFTMAX * self.gradient.scores.shape.num_elements
        return Cost(sum(b.size * ELEMENT_TYPES[b.type].bytes for b in buffers), work)

    def weights(self, outline: Outline, row: Walk, others: list[Walk]) -> tuple[Stmt, ...]:
        """Statements that make the weights of Var("acc0") ..."""
        walks, columns = self.gradient.walks, self.gradient.columns
        counted = indexing.variable(BATCH, math.prod(n.size for n in others))
        position = indexing.add(indexing.scale(indexing.variable(ROW, row.size), row.distance),
                                indexing.scale(indexing.variable(COLUMN, columns[0]), columns[1]))
        for index, level in zip(indexing.delinearize(counted, [n.size for n in others]), others):
            position = indexing.add(position, indexing.scale(index, level.distance))
        for number, product in enumerate(self.gradient.products):
            outline.elements.sources[product] = _reader(product, number, walks[product], position)
        elements = self.gradient.scores.shape.num_elements
        values = [outline.builder.let(scalars.convert_to(
            outline.elements.value(o.weights, places(position, walks[o.weights], elements)), "f32"))
            for o in self.gradient.outputs]
        return (*outline.builder.body(), *(Let(f"weight{n}", v) for n, v in enumerate(values)))


def _reader(product: Instruction, number: int, walk: tuple[tuple[int, int], ...], position: indexing.Index):
    def read(index: Indices) -> Expr:
        found = indexing.ZERO
        for place, (_, distance) in zip(index, walk):
            found = indexing.add(found, indexing.scale(place, distance))
        if found != position:
            raise UnsupportedError("a product read at another position than the one being computed", product.span)
        return product_result(Var(f"acc{number}", "f32"), product.shape.element_type)
    return read


def is_narrow(output: Weighted) -> bool:
    """Whether a product's weights may be rounded to the type of what they are multiplied with."""
    own, other = (output.dot.operands[n].shape.element_type for n in (output.slot, 1 - output.slot))
    return own == other or str(output.dot.get("algorithm")) == f"dot_{other}_{other}_f32"


def merged(levels: list[Walk]) -> list[Walk]:
    """Neighbours that all arrays walk through as one dimension, joined."""
    result: list[Walk] = []
    for level in levels:
        outer = result[-1] if result else None
        if outer and (outer.distance, *outer.steps) == tuple(level.size * n for n in (level.distance, *level.steps)):
            result[-1] = level._replace(size=level.size * outer.size)
        else:
            result.append(level)
    return result
