"""The gradients of attention: a Tile of the library kernel "attention_gradient" for matmuls whose operands are computed
from matmuls.

In: a kCustom fusion that is a Gradient (hloc/analysis/attention_gradient.py). Out: the tile; before it a kernel for
each operand that is not a strided view.

Tile "attention_gradient": for every batch b, row i and feature f, with one or two products p and outputs n
    acc_p[j] = sum over d of A_p[b, i, d] B_p[b, j, d]          for every column j
    out_n[b, i, f] = sum over j of weight_n(b, i, j, acc) X_n[b, j, f]
all in f32. Buffers: "array0" ... (what A, B and X lie in), what the weights read, then "out0" ... Parameters (strides
in elements; offsets are of the first element; `batch strides`: one per dimension of the batch, outermost first):
    types      element types of "array0" ...
    sizes      (rows, columns)
    batches    (size, ...) of the batch's dimensions; b counts through them, the last fastest
    products   ((depth, A, B), ...), of each array (buffer, offset, row or column, depth, (batch strides))
    outputs    ((features, X, result, parts), ...): X is (buffer, offset, column, feature, (batch strides)), the result
               (buffer, row, feature, (batch strides)); parts: how many numbers of X's type weights are the sum of: 1,
               where they may be rounded to it, 3, where that is bf16; 0: they must stay f32
Epilogue, the weights: statements over the INDEX Vars "batch", "row", "column" and Vars "acc0", "acc1" of f32; the last
are Lets of "weight0", "weight1", f32. It stores nothing.
"""
from __future__ import annotations

from hloc.analysis.attention import multiply_adds, side_of
from hloc.analysis.attention_gradient import Gradient, Weighted, gradient_in
from hloc.errors import UnsupportedError
from hloc.ir import ELEMENT_TYPES, Instruction
from hloc.kernels import scalars
from hloc.kernels.attention.walks import (
    OPERATIONS_OF_SOFTMAX,
    Operand,
    Walk,
    common,
    dependents,
    features_of,
    flat_position,
    merged,
    one_walk,
    operands_of,
    places,
    reader_of,
    strides_of_result,
    values_of,
    walks_of_product,
    walks_of_weights,
)
from hloc.kernels.group import Arg, Group, KernelCall, Lowered, Outline
from hloc.kernels.ir import Buffer, Cost, Let, Stmt, Tile
from hloc.kernels.products.operands import OperandKernels
from hloc.machine import Machine


def lower_attention_gradient(group: Group, machine: Machine) -> Lowered:
    """A fusion of one or two matmuls with operands computed from one or two others."""
    gradient = gradient_in(group.instruction.get("calls"))
    if gradient is None:
        raise UnsupportedError("matmuls that are not an attention's gradients, in one fusion", group.instruction.span)
    return _Lowering(group, machine, gradient).lowered()


class _Lowering:
    """The kernels of one gradient."""

    def __init__(self, group: Group, machine: Machine, gradient: Gradient):
        self.group = group
        self.gradient = gradient
        self.operands = OperandKernels(group, machine)
        self.arrays: dict[Arg, Buffer] = {}

    def lowered(self) -> Lowered:
        walks, columns = self.gradient.walks, self.gradient.columns
        products, values, lists = [], [], []
        for product in self.gradient.products:
            side = side_of(product, walks[product], columns)
            assert side is not None             # as the analysis has checked
            products.append(operands_of(product, side, walks[product], self.operands))
            lists.append(walks_of_product(product, side, walks[product], *products[-1]))
        for output in self.gradient.outputs:
            values.append(values_of(output.dot, output.slot, walks[output.weights], self.operands))
            lists.append(walks_of_weights(output.dot, output.slot, walks[output.weights], values[-1],
                                          self.result_strides(output)))
        levels = merged(common(lists))
        fixed = self.columns_only(len(products))
        rows = [n for n in levels if not any(n.steps[f] for f in fixed)]
        row = max(rows, key=lambda n: n.size, default=Walk(1, 0, (0,) * 2 * len(lists)))
        tile = self.tile(products, values, row, [n for n in levels if n is not row])
        return Lowered((*self.operands.calls, tile), tuple(self.operands.scratch))

    def columns_only(self, products: int) -> list[int]:
        """The steps of a level that belong to arrays with columns and no rows: the second of each product, the first of
        each output."""
        return [2 * n + 1 for n in range(products)] + [2 * (products + n) for n in range(len(self.gradient.outputs))]

    # -- arrays

    def result_strides(self, output: Weighted) -> list[int]:
        return strides_of_result(self.group, output.dot, self.root_of(output))

    def root_of(self, output: Weighted) -> Instruction:
        """The root of the fusion for an output."""
        depends = dependents(self.group, output.dot)
        return next(r for r in self.group.roots if r in depends)

    def array(self, operand: Operand) -> str:
        """The name of an operand's buffer."""
        access = operand.access
        made = Buffer(f"array{len(self.arrays)}", access.type, access.size)
        return self.arrays.setdefault(access.stored_at, made).name

    # -- the tile

    def tile(self, products: list[tuple[Operand, Operand]], values: list[Operand], row: Walk, others: list[Walk]
             ) -> KernelCall:
        outline = Outline(self.group)
        weights = self.weights(outline, row, others)

        def place(operand: Operand, number: int, part: int) -> tuple:
            """The fields of an array: buffer, offset, row or column, depth or feature, batch strides."""
            line = row.steps[number] if number % 2 == 0 and number < 2 * len(products) else operand.stride(1)
            return (self.array(operand), operand.access.offset, line, operand.stride(part),
                    tuple(n.steps[number] for n in others))
        told = [(a.size(2), place(a, 2 * n, 2), place(b, 2 * n + 1, 2)) for n, (a, b) in enumerate(products)]
        outputs = []
        for n, (output, x) in enumerate(zip(self.gradient.outputs, values)):
            number = 2 * (len(products) + n)
            name = outline.result_buffer(self.group.roots.index(self.root_of(output)))
            features = features_of(output.dot, output.slot, self.result_strides(output))
            result = (name, row.steps[number + 1], one_walk(features),
                      tuple(k.steps[number + 1] for k in others))
            outputs.append((x.size(2), place(x, number, 2), result, parts_of(output, x.access.type)))
        buffers, arguments = outline.buffers()
        operands = tuple(self.arrays.values())
        parameters = (("types", tuple(b.type for b in operands)), ("sizes", (row.size, self.gradient.columns[0])),
                      ("batches", tuple(n.size for n in others)), ("products", tuple(told)),
                      ("outputs", tuple(outputs)))
        tile = Tile(self.group.kernel_name, "attention_gradient", operands + buffers, parameters, weights,
                    cost=self.cost((*operands, *buffers)), origin=self.group.origin)
        return KernelCall(tile, (*self.arrays, *arguments))

    def cost(self, buffers: tuple[Buffer, ...]) -> Cost:
        dots = [*self.gradient.products, *(o.dot for o in self.gradient.outputs)]
        work = 2 * sum(multiply_adds(d) for d in dots) + OPERATIONS_OF_SOFTMAX * self.gradient.scores.shape.num_elements
        return Cost(sum(b.size * ELEMENT_TYPES[b.type].bytes for b in buffers), work)

    def weights(self, outline: Outline, row: Walk, others: list[Walk]) -> tuple[Stmt, ...]:
        """Statements that compute the weights from Var("acc0") ..."""
        walks = self.gradient.walks
        position = flat_position(row, self.gradient.columns, others)
        for number, product in enumerate(self.gradient.products):
            outline.elements.sources[product] = reader_of(product, f"acc{number}", walks[product], position)
        elements = self.gradient.scores.shape.num_elements
        values = [outline.builder.let(scalars.convert_to(
            outline.elements.value(o.weights, places(position, walks[o.weights], elements)), "f32"))
            for o in self.gradient.outputs]
        return (*outline.builder.body(), *(Let(f"weight{n}", v) for n, v in enumerate(values)))


def parts_of(output: Weighted, type: str) -> int:
    """The number of values of a type whose sum represents a weight; 0: only f32 does."""
    own, other = (output.dot.operands[n].shape.element_type for n in (output.slot, 1 - output.slot))
    if own == type or str(output.dot.get("algorithm")) == f"dot_{other}_{other}_f32":
        return 1
    return 3 if type == "bf16" else 0
