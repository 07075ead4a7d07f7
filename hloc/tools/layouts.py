"""A module with other layouts: its results must not depend on them.

    other = with_layouts(module, "column-major")          a new module; the one given stays as it is
"""
from __future__ import annotations

from hloc.errors import UsageError
from hloc.ir import Module, Shape
from hloc.ir.clone import clone_module
from hloc.ir.shapes import Layout, default_layout
from hloc.verify import verify

ORDERS = ("row-major", "column-major")
LOOK_AT_BYTES = frozenset({"bitcast", "custom-call"})        # their meaning depends on the layouts


def with_layouts(module: Module, order: str) -> Module:
    """Give every array one order of ORDERS. Raises UsageError if an instruction's meaning depends on its layout."""
    for instruction in module.instructions():
        if instruction.opcode in LOOK_AT_BYTES:
            raise UsageError(f"a {instruction.opcode} depends on the layouts: they cannot be changed", instruction.span)
    other = clone_module(module)
    other.attributes.pop("entry_computation_layout", None)
    for instruction in other.instructions():
        instruction.shape = _laid_out(instruction.shape, order)
    verify(other)
    return other


def _laid_out(shape: Shape, order: str) -> Shape:
    if shape.is_aggregate:
        return Shape(shape.element_type, (), tuple(_laid_out(s, order) for s in shape.tuple_shapes))
    if not shape.is_array:
        return shape
    rows = default_layout(shape.rank)
    return shape.with_layout(rows if order == "row-major" else Layout(rows.minor_to_major[::-1]))
