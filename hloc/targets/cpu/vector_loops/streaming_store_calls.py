"""Tiles that are copied to an array larger than the caches: calls of runtime/stream_rows.h, which uses streaming
stores.

In: a For before printing, and the names of such arrays. Out: the call that replaces it, or none.

    for r < 32: for i < 32 (VECTOR): out[p + 1536 r + i] = tile[32 r + i]
    ->  hloc_stream_rows(tile, 32 * 4, out + p, 1536 * 4, 32, 32 * 4);
"""
from __future__ import annotations

from collections.abc import Collection

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import SERIAL, VECTOR, Buffer, For
from hloc.targets.c_expressions import Call, ExpressionPrinter
from hloc.targets.cpu.vector_loops.copies import copied_by, nested_copy, pointer

FUNCTION = "stream_rows"


def far_arrays(buffers: Collection[Buffer], least: int) -> frozenset[str]:
    """The names of written buffers of at least so many bytes."""
    return frozenset(b.name for b in buffers if b.access == "write" and b.size * ELEMENT_TYPES[b.type].bytes >= least)


def streaming_store_call(loop: For, far: Collection[str], printer: ExpressionPrinter) -> Call | None:
    """The call for a loop over rows of a tile, each of which is copied to its position in an array of `far`."""
    found = nested_copy(loop) if far and loop.kind == SERIAL else None
    if found is None or found.inner.kind != VECTOR or found.store.buffer not in far:
        return None
    inner, target, source = found.inner.name, found.target, found.source
    if target.factor(inner) != 1 or source.factor(inner) != 1:
        return None
    size = ELEMENT_TYPES[found.store.value.type].bytes
    to, start = (pointer(name, form.without(loop.name, inner), printer)
                 for name, form in ((found.store.buffer, target), (copied_by(found.store).buffer, source)))
    to_pitch, from_pitch = (form.factor(loop.name) * size for form in (target, source))
    count = found.length
    length = str(count * size) if isinstance(count, int) else f"({printer.expression(count)}) * {size}"
    return FUNCTION, start, str(from_pitch), to, str(to_pitch), printer.extent(loop.extent), length
