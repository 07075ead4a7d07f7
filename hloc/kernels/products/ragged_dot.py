"""ragged-dot on a GPU: a Tile of the library kernel "gemm" whose rows are in groups, each with its own right operand.

In: a ragged-dot of the form that `is_grouped` tests (passes/ragged_dot_rewriter.py leaves it unchanged). Out: the tile,
as in products/gemm.py, with one more buffer, for the sizes, and one more parameter:
    groups     their number, and the name of that buffer
Rows after the last group are zero. There is one batch; `batches` is (1, groups), so that the strides have their
positions: the second batch stride of rhs is the distance between the matrices of adjacent groups.
"""
from __future__ import annotations

from hloc.errors import UnsupportedError
from hloc.kernels.group import Group, Lowered, Outline
from hloc.kernels.products.epilogues import tile_types
from hloc.kernels.products.gemm import gemm_call
from hloc.kernels.products.operands import OperandKernels
from hloc.machine import Machine
from hloc.ops.products import is_grouped, ragged_dimensions


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
    (m, n), groups = root.shape.dimensions, right.shape.dimensions[ragged.rhs_group]
    lines = ((1, 0, 0, 0), (groups, 0, rhs.strides[ragged.rhs_group], 0), (m, lhs.strides[ragged.dimension], 0, n),
             (n, 0, rhs.strides[column], 1),
             (left.shape.dimensions[summed], lhs.strides[summed], rhs.strides[contracted], 0))
    more = (("groups", (groups, numbers)),)
    return operands.lowered(root, gemm_call(operands, root, total, [lhs, rhs], lines, outline, more=more))
