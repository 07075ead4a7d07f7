"""Loops that only convert contiguous elements between f16 and f32: calls of runtime/half_rows.h.

    for i < n (VECTOR): a[i] = f32(x[p + i])     ->      hloc_widen_row_f16(x + p, a, n);

In: a For before printing. Out: the call that replaces it, or none if it does anything else.
"""
from __future__ import annotations

from hloc.kernels.affine import Along, affine
from hloc.kernels.ir import VECTOR, Apply, For, Load, Store
from hloc.targets.c_expressions import Call, ExpressionPrinter
from hloc.targets.cpu.vector_loops.copies import pointer
from hloc.targets.cpu.vector_loops.half_rounding_groups import rounded_by

FUNCTIONS = {("f16", "f32"): "widen_row_f16", ("f32", "f16"): "narrow_row_f16"}
ROUNDING = "round_row_f16"
SINGLE = ("widen_f16", "narrow_f32")


def row_call(loop: For, printer: ExpressionPrinter) -> Call | None:
    """The call that replaces a loop that only converts contiguous elements; None for other loops."""
    store = loop.body[0] if loop.kind == VECTOR and len(loop.body) == 1 else None
    if not isinstance(store, Store) or not isinstance(store.value, Apply) or store.value.op != "convert":
        return None
    exact = rounded_by(store.value)
    load = exact if exact is not None else store.value.arguments[0]
    library_kernel = ROUNDING if exact is not None else FUNCTIONS.get((load.type, store.value.type))
    if library_kernel is None or not isinstance(load, Load):
        return None
    along = Along(loop)
    if not along.step(load.position) == along.step(store.position) == 1:
        return None
    source, target = (pointer(x.buffer, affine(along.start(x.position), {}), printer) for x in (load, store))
    return library_kernel, source, target, printer.extent(loop.extent)
