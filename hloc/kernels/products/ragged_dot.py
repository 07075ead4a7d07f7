"""ragged-dot on a GPU: a Tile of the library kernel "gemm" whose rows are in groups, each with its own right operand.

In: a ragged-dot of the form that `is_grouped` tests (passes/ragged_dot_rewriter.py leaves it unchanged). Out: the tile,
as in products/dot.py, with one more buffer, for the sizes, and one more parameter:
    groups     their number, and the name of that buffer
Rows after the last group are zero. There is one batch; `batches` is (1, groups), so that the strides have their
positions: the second batch stride of rhs is the distance between the matrices of adjacent groups.
"""
from __future__ import annotations

from hloc.errors import UnsupportedError
from hloc.kernels import indexing
from hloc.kernels.group import Group, Lowered, Outline
from hloc.kernels.ir import Stmt
from hloc.kernels.products.epilogues import algorithm_fact, call_of, epilogue_statements, stores_itself, tile_types
from hloc.kernels.products.operands import OperandKernels
from hloc.machine import Machine
from hloc.ops.products import is_grouped, ragged_dimensions

ROW, COLUMN = "row", "column"


def lower_ragged_product(group: Group, machine: Machine) -> Lowered:
    """One kernel, and before it those that pack operands of other types."""
    root = group.roots[0]
    if machine.kind != "gpu" or not is_grouped(root):
        raise UnsupportedError("a ragged-dot that is not expanded into matmuls", root.span)
    left, right, sizes = root.operands
    ragged = ragged_dimensions(root, left.shape, right.shape)
    (summed,), (contracted,) = ragged.dims.lhs_contracting, ragged.dims.rhs_contracting
    assert ragged.rhs_group is not None         # as is_grouped says
    column = 3 - ragged.rhs_group - contracted
    type, total = tile_types(group, root, machine)
    operands = OperandKernels(group, machine)
    lhs = operands.access(left, type, (ragged.dimension, summed))
    rhs = operands.access(right, type, (ragged.rhs_group, contracted, column))
    outline = Outline(group)
    numbers = outline.operand_buffer(group.parameters[sizes], sizes.shape)
    outline.builder.loaded.add(numbers)
    m, n = root.shape.dimensions
    k, groups = left.shape.dimensions[summed], right.shape.dimensions[ragged.rhs_group]
    epilogue: tuple[Stmt, ...] = ()
    if not stores_itself(outline, root, type, total):
        place = indexing.linearize([indexing.variable(ROW, m), indexing.variable(COLUMN, n)], (m, n))
        epilogue = epilogue_statements(outline, root, total, place)
    parameters = (("types", (type, total)), ("sizes", (m, n, k)), ("batches", (1, groups)),
                  ("lhs", (lhs.offset, 0, 0, lhs.strides[ragged.dimension], lhs.strides[summed])),
                  ("rhs", (rhs.offset, 0, rhs.strides[ragged.rhs_group], rhs.strides[contracted], rhs.strides[column])),
                  ("result", (0, 0, n, 1)), ("groups", (groups, numbers)),
                  *algorithm_fact(root, machine))
    call = call_of(group, "gemm", (("lhs", lhs), ("rhs", rhs)), [outline], parameters, epilogue, m * n * k)
    return Lowered((*operands.calls, call), tuple(operands.scratch))
