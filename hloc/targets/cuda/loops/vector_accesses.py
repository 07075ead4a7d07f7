"""Vector accesses: a thread takes several adjacent elements at once, 16 bytes if possible.

In: the Space of a pointwise kernel; or a Spread of teams.py, and the number of lanes. Out: Packs: the vector width, and
the loads and stores that are one access each; none if that is not possible, or leaves lanes without work. Vectors run
along the innermost of the loops.

    for i of 4096 by 256 lanes: s += x[r * 4096 + i]   in bf16
      ->  for vector of 512 by 256 lanes: x0 = 8 of x at r * 4096 + vector * 8; for part of 8: s += x0[part]

All loops of a row that share split Local arrays use the same width.
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.affine import Affine, affine, forms
from hloc.kernels.ir import Buffer, Expr, For, If, Kernel, Load, Stmt, Store, While
from hloc.kernels.schedule.nest import Refused
from hloc.kernels.walks import defined, expressions, parts, walk
from hloc.targets.cuda.loops.cache_read import unconditional
from hloc.targets.cuda.loops.iteration_space import Space, inside, vectors_along
from hloc.targets.cuda.loops.printing import Counters, Packs
from hloc.targets.cuda.loops.rows import Own, Spread
from hloc.targets.cuda.loops.teams import TeamKernel

VECTOR_BYTES = 16               # the most that one access to memory takes
WIDTHS = (16, 8, 4, 2)


# -- of pointwise kernels ----------------------------------------------------------------------------------------------

def packs_of_space(kernel: Kernel, space: Space, width: int) -> Packs:
    """The vector accesses along the results of a pointwise kernel. Raises Refused where these are no such vectors."""
    stored = {s: start for s, form in space.stores.items() if (start := vectors_along(form, "d0", width)) is not None}
    if space.sizes["d0"] % width or len(stored) < len(space.stores):
        raise Refused(f"results are no vectors of {width}")
    types = [load.type for load in space.loads] + \
        [b.type for b in kernel.buffers if any(s.buffer == b.name for s in space.stores)]
    if width * max(ELEMENT_TYPES[t].bytes for t in types) > VECTOR_BYTES:
        raise Refused(f"an access to memory has {VECTOR_BYTES} bytes at most")
    return Packs(width, {load: start for load, form in space.loads.items()
                         if (start := vectors_along(form, "d0", width)) is not None and inside(kernel, load, space)},
                 stored)


# -- of rows -----------------------------------------------------------------------------------------------------------

def packs_of(counters: Counters, body: tuple[Stmt, ...], lanes: int, known: Mapping[str, Affine],
             buffers: Mapping[str, Buffer], wanted: int = 0, most: int = VECTOR_BYTES) -> Packs | None:
    """The vector accesses of a nest of loops. wanted: the width of the other loops of the row; 0: as wide as the
    narrowest type allows, at most `most`."""
    counter, extent = counters[-1]
    total = math.prod(n for _, n in counters)
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
    width = wanted or min(most, VECTOR_BYTES // min(widths))
    while width > 1 and not wanted and (extent % width or total // width < lanes):
        width //= 2
    if width < 2 or extent % width:
        return None

    def place(position: Expr) -> Affine | None:
        start = vectors_along(affine(position, known), counter, width)
        return start if start is not None and not own & (start.factors or {}).keys() else None
    read = {load: form for load in loads if (form := place(load.position)) is not None}
    stored = {s: form for s in stores if (form := place(s.position)) is not None}
    again = {p.buffer for s in body for p in parts(expressions(s)) if isinstance(p, Load)}
    stored = {s: form for s, form in stored.items() if s.buffer not in again}
    return Packs(width, read, stored) if read or stored else None


def common_width(loops: Iterable[tuple[Counters, tuple[Stmt, ...], int]], lanes: int, known: Mapping[str, Affine],
                 buffers: Mapping[str, Buffer], most: int) -> int:
    """The width for all loops (counters, body, slots of a lane) that share split arrays, at most `most`; 1: no vector
    accesses. It does not change the number of slots."""
    loops = list(loops)
    for width in (n for n in WIDTHS if n <= most and all(_keeps_slots(c, slots, n, lanes) for c, _, slots in loops)):
        found = [packs_of(counters, body, lanes, known, buffers, width) for counters, body, _ in loops]
        if any(p and width * _narrowest(p, buffers) <= VECTOR_BYTES for p in found):
            return width
    return 1


def _narrowest(packs: Packs, buffers: Mapping[str, Buffer]) -> int:
    """Bytes of the narrowest element of the vector accesses."""
    types = [load.type for load in packs.loads] or [buffers[s.buffer].type for s in packs.stores]
    return min(ELEMENT_TYPES[t].bytes for t in types)


def _keeps_slots(counters: Counters, slots: int, width: int, lanes: int) -> bool:
    """Whether the vectors of a loop have places in as many slots."""
    total = math.prod(n for _, n in counters)
    return total % width == 0 and slots % width == 0 and width * -(-total // (width * lanes)) <= slots


def _constant(counters: Sequence[tuple[str, int | Expr]]) -> Counters | None:
    """The counters, if all extents are known."""
    found = [(name, extent) for name, extent in counters if isinstance(extent, int)]
    return found if len(found) == len(counters) else None


class Widths:
    """The vector accesses of each distributed loop of a team's row, of at most `most` adjacent elements."""

    def __init__(self, team: TeamKernel, buffers: Mapping[str, Buffer], most: int) -> None:
        self.lanes, self.most, self.buffers = team.threads, most, buffers
        self.known = forms((*team.before, *team.body))
        statements: Iterable[Own] = walk(team.body)
        self.loops = [s for s in statements if isinstance(s, Spread)]
        slotted = [s for s in self.loops if s.slots]
        loops = [(own, s.body, s.slots) for s in slotted if (own := _constant(s.counters)) is not None]
        plain = len(loops) == len(slotted) \
            and not any(isinstance(s, (For, If, While)) for spread in slotted for s in walk(spread.body))
        self.width = common_width(loops, self.lanes, self.known, buffers, most) if slotted and plain else 1
        self.found = {id(s): self._of(s) for s in self.loops}

    @property
    def is_any(self) -> bool:
        """Whether a loop has vector accesses."""
        return any(self.found.values())

    def of(self, s: Spread) -> Packs | None:
        """The width and vector accesses of a loop of the row; None if a lane takes one element at a time."""
        return self.found[id(s)]

    def _of(self, s: Spread) -> Packs | None:
        counters = _constant(s.counters)
        if self.most < 2 or counters is None or s.slots and self.width < 2 or len(s.counters) > 1 and not s.slots:
            return None
        wanted = self.width if s.slots else 0
        found = packs_of(counters, s.body, self.lanes, self.known, self.buffers, wanted, self.most)
        return found or (Packs(self.width, {}, {}) if s.slots else None)
