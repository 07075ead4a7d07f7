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

from hloc.analysis.attention_gradient import Gradient, Weighted, gradient_in
from hloc.errors import UnsupportedError
from hloc.ir.narrowing import known
from hloc.kernels import scalars
from hloc.kernels.attention.walks import Level, Matmuls, Operand
from hloc.kernels.group import Arg, Group, KernelCall, Lowered, Outline
from hloc.kernels.ir import Let, Stmt
from hloc.kernels.products.epilogues import call_of
from hloc.kernels.products.operands import Access
from hloc.machine import Machine


def lower_attention_gradient(group: Group, machine: Machine) -> Lowered:
    """A fusion of one or two matmuls with operands computed from one or two others."""
    gradient = gradient_in(group.instruction.get("calls"))
    if gradient is None:
        raise UnsupportedError("matmuls that are not an attention's gradients, in one fusion", group.instruction.span)
    return _Lowering(group, machine, gradient).lowered()


class _Lowering(Matmuls):
    """The kernels of one gradient."""

    def __init__(self, group: Group, machine: Machine, gradient: Gradient):
        super().__init__(group, machine, gradient.walks, gradient.columns, gradient.products, gradient.outputs)
        self.arrays: dict[Arg, tuple[str, Access]] = {}

    def lowered(self) -> Lowered:
        tile = self.tile(*self.levels())
        return Lowered((*self.operands.calls, tile), tuple(self.operands.scratch))

    def array(self, operand: Operand) -> str:
        """The name of an operand's buffer."""
        made = f"array{len(self.arrays)}", operand.access
        return self.arrays.setdefault(known(operand.access.argument), made)[0]

    def tile(self, row: Level, others: list[Level]) -> KernelCall:
        outline = Outline(self.group)
        weights = self.weights(outline, row, others)
        steps = [(row.steps[n], tuple(k.steps[n] for k in others)) for n in range(len(row.steps))]
        firsts = 2 * len(self.products)

        def place(operand: Operand, number: int) -> tuple:
            """The fields of an array: buffer, offset, row or column, depth or feature, batch strides."""
            line = row.steps[number] if number % 2 == 0 and number < firsts else operand.stride(1)
            return self.array(operand), operand.access.offset, line, operand.stride(2), steps[number][1]
        products = tuple((a.size(2), place(a, 2 * n), place(b, 2 * n + 1)) for n, (a, b) in enumerate(self.factors))
        outputs = []
        for n, (output, x, root) in enumerate(zip(self.outputs, self.values, self.roots)):
            line, batches = steps[firsts + 2 * n + 1]
            result = outline.result_buffer(self.group.roots.index(root)), line, self.feature(n), batches
            outputs.append((x.size(2), place(x, firsts + 2 * n), result, parts_of(output, x.access.type)))
        arrays = tuple(self.arrays.values())
        parameters = (("types", tuple(a.type for _, a in arrays)), ("sizes", (row.size, self.columns[0])),
                      ("batches", tuple(n.size for n in others)), ("products", products), ("outputs", tuple(outputs)))
        return call_of(self.group, "attention_gradient", arrays, [outline], parameters, weights, self.multiply_adds)

    def weights(self, outline: Outline, row: Level, others: list[Level]) -> tuple[Stmt, ...]:
        """Statements that compute the weights from Var("acc0") ..."""
        position = self.flat_position(row, others)
        for number, product in enumerate(self.products):
            outline.elements.sources[product] = self.reader(product, f"acc{number}", position)
        values = [outline.builder.let(scalars.convert_to(
            outline.elements.value(o.weights, self.index(position, o.weights)), "f32")) for o in self.outputs]
        return (*outline.builder.body(), *(Let(f"weight{n}", v) for n, v in enumerate(values)))


def parts_of(output: Weighted, type: str) -> int:
    """The number of values of a type whose sum represents a weight; 0: only f32 does."""
    own, other = (output.dot.operands[n].shape.element_type for n in (output.slot, 1 - output.slot))
    if own == type or str(output.dot.get("algorithm")) == f"dot_{other}_{other}_f32":
        return 1
    return 3 if type == "bf16" else 0
