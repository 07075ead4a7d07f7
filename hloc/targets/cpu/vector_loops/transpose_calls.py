"""Loops that transpose element by element: calls of runtime/transpose.h, which shuffles registers.

In: a For before printing. Out: the call that replaces it, or None if it does anything else.

    for j < 64: for i < 32 (VECTOR): t[64 i + j] = x[500 j + i]   ->    hloc_transpose_32(x, 500, t, 64, 64, 32);
"""
from __future__ import annotations

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import For
from hloc.targets.c_expressions import Call, ExpressionPrinter
from hloc.targets.cpu.vector_loops.copies import copied_by, nested_copy, pointer

SIZES = (1, 2, 4, 8)            # bytes of an element
FEWEST = 4                      # rows, and columns: fewer fill too little of a register
FUNCTION = "transpose_"


def transpose_call(loop: For, printer: ExpressionPrinter) -> Call | None:
    """The call, if one array is contiguous along one of two loops, and the other along the other; else None."""
    found = nested_copy(loop)
    if found is None:
        return None
    store, target, source, inner, length = found
    outer, inside = (loop.name, loop.extent), (inner.name, length)
    for row, column in ((outer, inside), (inside, outer)):
        if target.factor(row[0]) == source.factor(column[0]) == 1:
            break
    else:
        return None
    size = ELEMENT_TYPES[store.value.type].bytes
    pitches = source.factor(row[0]), target.factor(column[0])
    if size not in SIZES or min(pitches) < 1 \
            or any(isinstance(extent, int) and extent < FEWEST for _, extent in (row, column)):
        return None
    start, to = (pointer(name, form.without(loop.name, inner.name), printer)
                 for name, form in ((copied_by(store).buffer, source), (store.buffer, target)))
    rows, columns = (printer.extent(extent) for _, extent in (row, column))
    return f"{FUNCTION}{8 * size}", start, str(pitches[0]), to, str(pitches[1]), rows, columns
