"""Tiles that are copied to an array larger than the caches: calls of runtime/spread.h, which writes past these.

In: a For as it is about to be printed, and the names of such arrays. Out: the call that does the same, or none.

    for r < 32: for i < 32 (VECTOR): out[p + 1536 r + i] = tile[32 r + i]
    ->  hloc_spread_rows(tile, 32 * 4, out + p, 1536 * 4, 32, 32 * 4);
"""
from __future__ import annotations

from collections.abc import Collection

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import INDEX, SERIAL, VECTOR, Buffer, For, Store, Var
from hloc.kernels.walks import parts
from hloc.targets.cpu.vector_loops.copies import is_copy, named_positions, plain, pointer, terms_of
from hloc.targets.printer import expression

ROUTINE = "hloc_spread_rows"


def far_arrays(buffers: Collection[Buffer], least: int) -> frozenset[str]:
    """The names of those that are written, and have so many bytes."""
    return frozenset(b.name for b in buffers if b.access == "write" and b.size * ELEMENT_TYPES[b.type].bytes >= least)


def spread_call(loop: For, far: Collection[str]) -> str | None:
    """The call for a loop over rows of a tile, each of which goes to its place in an array of `far`."""
    inner = loop.body[-1] if loop.body else None
    if not far or loop.kind != SERIAL or not isinstance(inner, For) or inner.kind != VECTOR or not inner.body:
        return None
    store, named = inner.body[-1], named_positions((*loop.body[:-1], *inner.body[:-1]))
    if named is None or not is_copy(store) or store.buffer not in far:
        return None
    places = terms_of(store.position, named), terms_of(store.value.position, named)
    length = inner.extent if isinstance(inner.extent, int) else plain(inner.extent, named)
    if None in places or (not isinstance(length, int) and Var(loop.name, INDEX) in parts([length])):
        return None
    return _call(store, *places, loop, inner)


def _call(store: Store, target: dict, source: dict, loop: For, inner: For) -> str | None:
    if target.get(inner.name) != 1 or source.get(inner.name) != 1:
        return None
    size = ELEMENT_TYPES[store.value.type].bytes
    to, start = (pointer(name, {n: k for n, k in place.items() if n not in (loop.name, inner.name)})
                 for name, place in ((store.buffer, target), (store.value.buffer, source)))
    to_pitch, from_pitch = (place.get(loop.name, 0) * size for place in (target, source))
    rows = str(loop.extent) if isinstance(loop.extent, int) else expression(loop.extent)
    length = str(inner.extent * size) if isinstance(inner.extent, int) else f"({expression(inner.extent)}) * {size}"
    return f"{ROUTINE}({start}, {from_pitch}, {to}, {to_pitch}, {rows}, {length});"
