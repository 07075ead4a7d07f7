"""Loops over lanes with vector accesses: a lane takes several adjacent elements at once, 16 bytes if possible.

In: a Spread of teams.py, and the number of lanes. Out: Packs: the vector width, and the loads and stores that are one
access each; None if that is not possible, or leaves lanes without work.

    for i of 4096 by 256 lanes: s += x[r * 4096 + i]   in bf16
      ->  for vector of 512 by 256 lanes: x0 = 8 of x at r * 4096 + vector * 8; for part of 8: s += x0[part]

All loops of a row that share split Local arrays use the same width.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.affine import Affine, affine
from hloc.kernels.ir import Buffer, Expr, For, If, Load, Stmt, Store, While
from hloc.kernels.walks import defined, expressions, parts, walk
from hloc.targets.cuda.loops.cache_read import unconditional

PACK_BYTES = 16


class Packs(NamedTuple):
    """width: adjacent elements of a lane; loads, stores: those that are one vector access, with the position of the
    loop's first one."""

    width: int
    loads: dict[Load, Affine]
    stores: dict[Store, Affine]


def packs_of(counter: str, extent: int, body: tuple[Stmt, ...], lanes: int, known: Mapping[str, Affine],
             buffers: Mapping[str, Buffer], wanted: int = 0) -> Packs | None:
    """The vector accesses of a loop. wanted: the width of the other loops of the row; 0: as wide as the narrowest type
    allows."""
    if any(isinstance(s, (For, If, While)) for s in walk(body)):
        return None
    own = defined(body)
    written = {s.buffer for s in body if isinstance(s, Store)}
    loads = [p for s in body for p in unconditional(expressions(s)) if p.buffer in buffers and p.buffer not in written]
    stores = [s for s in body if isinstance(s, Store) and s.buffer in buffers]
    widths = [ELEMENT_TYPES[load.type].bytes for load in loads] or [ELEMENT_TYPES[buffers[s.buffer].type].bytes
                                                                    for s in stores]
    if not widths:
        return None
    width = wanted or PACK_BYTES // min(widths)
    while width > 1 and not wanted and (extent % width or extent // width < lanes):
        width //= 2
    if width < 2 or extent % width:
        return None

    def place(position: Expr) -> Affine | None:
        form = affine(position, known)
        start = form.without(counter)
        factors = start.factors
        if form.factor(counter) != 1 or factors is None or own & factors.keys():
            return None
        return None if any(n % width for n in (start.constant, *factors.values())) else start
    read = {load: form for load in loads if (form := place(load.position)) is not None}
    stored = {s: form for s in stores if (form := place(s.position)) is not None}
    again = {p.buffer for s in body for p in parts(expressions(s)) if isinstance(p, Load)}
    stored = {s: form for s, form in stored.items() if s.buffer not in again}
    return Packs(width, read, stored) if read or stored else None


def common_width(loops: Iterable[tuple[str, int, tuple[Stmt, ...]]], lanes: int, known: Mapping[str, Affine],
                 buffers: Mapping[str, Buffer]) -> int:
    """The width for all loops (counter, extent, body) that share split arrays; 1: no vector accesses. It does not
    change the number of slots of a lane."""
    loops = list(loops)
    found = [packs_of(*loop, lanes, known, buffers) for loop in loops]
    if len({extent for _, extent, _ in loops}) != 1 or not any(found) \
            or any(isinstance(s, (For, If, While)) for _, _, body in loops for s in walk(body)):
        return 1
    width = max(p.width for p in found if p)
    while width > 1 and loops[0][1] % (width * lanes):
        width //= 2
    return width
