"""Two nested loops that copy elements: calls of library functions, by their positions as affine forms of the counters.

In: a For before printing. Out: the call that replaces it, or None if it does anything else.

Transposes, element by element, shuffle registers (runtime/transpose.h). Tiles that are copied to an array larger than
the caches use streaming stores (runtime/stream_rows.h).

    for j < 64: for i < 32 (VECTOR): t[64 i + j] = x[500 j + i]     ->   hloc_transpose_32(x, 500, t, 64, 64, 32);
    for r < 32: for i < 32 (VECTOR): out[p + 1536 r + i] = tile[32 r + i]
                                                   ->   hloc_stream_rows(tile, 32 * 4, out + p, 1536 * 4, 32, 32 * 4);
"""
from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.affine import affine, factor_of, factors_of, forms, without
from hloc.kernels.ir import INDEX, SERIAL, VECTOR, Buffer, Const, Expr, For, Let, Load, Store
from hloc.targets.c_expressions import Call, ExpressionPrinter

SIZES = (1, 2, 4, 8)            # bytes of an element that is transposed
FEWEST = 4                      # rows, and columns: fewer fill too little of a register
TRANSPOSING, STREAMING = "transpose_", "stream_rows"


class NestedCopy(NamedTuple):
    """Two nested loops around one copy of an element: arrays and forms of the positions, and the extent of the inner
    loop, outside of both."""

    written: str
    target: Expr
    read: str
    source: Expr
    bytes: int
    inner: For
    length: int | Expr


def transpose_call(loop: For, printer: ExpressionPrinter) -> Call | None:
    """The call, if one array is contiguous along one of two loops, and the other along the other; else None."""
    found = _nested_copy(loop)
    if found is None:
        return None
    outer, inside = (loop.name, loop.extent), (found.inner.name, found.length)
    for row, column in ((outer, inside), (inside, outer)):
        if factor_of(found.target, row[0]) == factor_of(found.source, column[0]) == 1:
            break
    else:
        return None
    pitches = factor_of(found.source, row[0]), factor_of(found.target, column[0])
    if found.bytes not in SIZES or min(pitches) < 1 \
            or any(isinstance(extent, int) and extent < FEWEST for _, extent in (row, column)):
        return None
    start, to = _ends(found, loop, printer)
    rows, columns = (printer.extent(extent) for _, extent in (row, column))
    return f"{TRANSPOSING}{8 * found.bytes}", start, str(pitches[0]), to, str(pitches[1]), rows, columns


def far_arrays(buffers: Collection[Buffer], least: int) -> frozenset[str]:
    """The names of written buffers of at least so many bytes."""
    return frozenset(b.name for b in buffers if b.access == "write" and b.size * ELEMENT_TYPES[b.type].bytes >= least)


def streaming_store_call(loop: For, far: Collection[str], printer: ExpressionPrinter) -> Call | None:
    """The call for a loop over rows of a tile, each of which is copied to its position in an array of `far`."""
    found = _nested_copy(loop) if far and loop.kind == SERIAL else None
    if found is None or found.inner.kind != VECTOR or found.written not in far \
            or factor_of(found.target, found.inner.name) != 1 or factor_of(found.source, found.inner.name) != 1:
        return None
    start, to = _ends(found, loop, printer)
    to_pitch, from_pitch = (factor_of(form, loop.name) * found.bytes for form in (found.target, found.source))
    count = found.length
    length = str(count * found.bytes) if isinstance(count, int) else f"({printer.expression(count)}) * {found.bytes}"
    return STREAMING, start, str(from_pitch), to, str(to_pitch), printer.extent(loop.extent), length


def _nested_copy(loop: For) -> NestedCopy | None:
    """The copy that a loop in a loop does; None for other loops."""
    inner = loop.body[-1] if loop.body else None
    store = inner.body[-1] if isinstance(inner, For) and inner.body else None
    if not isinstance(inner, For) or not isinstance(store, Store) or not isinstance(store.value, Load) \
            or store.buffer == store.value.buffer:
        return None
    before = (*loop.body[:-1], *inner.body[:-1])
    known = forms(before)
    if not all(isinstance(s, Let) and s.name in known and factors_of(known[s.name]) is not None for s in before):
        return None
    target, source = place(store.position, known), place(store.value.position, known)
    length = Const(inner.extent, INDEX) if isinstance(inner.extent, int) else place(inner.extent, known)
    if target is None or source is None or length is None or factor_of(length, loop.name):
        return None
    return NestedCopy(store.buffer, target, store.value.buffer, source, ELEMENT_TYPES[store.value.type].bytes, inner,
                      length.integer if isinstance(length, Const) else length)


def _ends(found: NestedCopy, loop: For, printer: ExpressionPrinter) -> tuple[str, str]:
    """Where the first element is read and written."""
    start, to = (pointer(name, without(form, loop.name, found.inner.name), printer)
                 for name, form in ((found.read, found.source), (found.written, found.target)))
    return start, to


def place(position: Expr, known: Mapping[str, Expr]) -> Expr | None:
    """The form of a position; None if it is not a sum of names."""
    form = affine(position, known)
    return form if factors_of(form) is not None else None


def pointer(buffer: str, place: Expr, printer: ExpressionPrinter) -> str:
    """The C expression for that position in a buffer."""
    return buffer if place == Const(0, INDEX) else f"{buffer} + {printer.expression(place)}"
