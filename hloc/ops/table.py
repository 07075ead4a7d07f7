"""All opcodes: OPS["tanh"] is the row of tanh.

The rows stand by family in the files of this folder; here they are put together, and nowhere else. For any op X that
has a row, OPS also answers for "X-start", "X-update" and "X-done", the text's short forms of asynchronous ops.
"""
from __future__ import annotations

from hloc.ops import (
    collectives,
    control,
    conversions,
    convolution,
    custom_calls,
    dynamic,
    elementwise,
    host,
    indexing,
    linalg,
    movement,
    products,
    random,
    reductions,
    sorting,
    tuples,
)
from hloc.ops.op import Op

FAMILIES = (
    elementwise, conversions, movement, tuples, products, convolution, reductions, indexing, sorting, linalg, random,
    control, host, collectives, dynamic, custom_calls,
)


class Rows(dict):
    """Opcode to row; the asynchronous short forms are made from their op's row when asked for."""

    def __missing__(self, opcode: str) -> Op:
        row = control.async_row(opcode, self)
        if row is None:
            raise KeyError(opcode)
        return row


OPS: dict[str, Op] = Rows((row.opcode, row) for family in FAMILIES for row in family.ROWS)
# The rows of elementwise ops by the names of their scalar functions.
SCALARS: dict[str, Op] = {row.scalar: row for row in OPS.values() if row.scalar}
