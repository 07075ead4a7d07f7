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
from collections.abc import Mapping

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.affine import affine, factors_of, forms, stays_inside
from hloc.kernels.ir import Buffer, Expr, For, If, Kernel, Load, Store, While
from hloc.kernels.schedule.steps import Refused
from hloc.kernels.walks import defined, expressions, parts, walk, with_all_expressions
from hloc.targets.cuda.loops.cache_read import unconditional
from hloc.targets.cuda.loops.iteration_space import Space, vectors_along
from hloc.targets.cuda.loops.printing import Packs
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
    lengths = {b.name: b.size for b in kernel.buffers}
    return Packs(width, {load: start for load, form in space.loads.items()
                         if (start := vectors_along(form, "d0", width)) is not None
                         and stays_inside(form, lengths[load.buffer], space.sizes)}, stored)


# -- of rows -----------------------------------------------------------------------------------------------------------

def with_vectors(team: TeamKernel, buffers: Mapping[str, Buffer], most: int) -> TeamKernel:
    """The team with the vector accesses of its distributed loops, of at most `most` adjacent elements: as many as the
    narrowest type allows. Loops that share split arrays have one width."""
    row, statements, found = _Row(team, buffers), list[Own](walk(team.body)), dict[int, Packs]()
    spreads = [s for s in statements if isinstance(s, Spread)]
    for group in ([s for s in spreads if s.slots], *([s] for s in spreads if not s.slots)):
        for width in (n for n in WIDTHS if n <= most and all(row.fits(s, n) for s in group)):
            packs = [row.packs(s, width) for s in group]
            if any(p and width * row.narrowest(p) <= VECTOR_BYTES for p in packs):
                found |= {id(s): p or Packs(width, {}, {}) for s, p in zip(group, packs)}
                break

    def packed(s: Own) -> Own | None:
        return s._replace(packs=found.get(id(s))) if isinstance(s, Spread) else None
    return team._replace(body=with_all_expressions(team.body, lambda e: e, packed))


class _Row:
    """The distributed loops of a team's row."""

    def __init__(self, team: TeamKernel, buffers: Mapping[str, Buffer]) -> None:
        self.lanes, self.buffers, self.known = team.threads, buffers, forms((*team.before, *team.body))

    def fits(self, s: Spread, width: int) -> bool:
        """Whether a loop consists of such vectors, its lanes have work, and arrays keep their number of slots."""
        extents = [n for _, n in s.counters if isinstance(n, int)]
        total = math.prod(extents)
        is_straight = not any(isinstance(i, (For, If, While)) for i in walk(s.body))
        if len(extents) < len(s.counters) or total % width or not is_straight:
            return False
        if not s.slots:
            return len(extents) == 1 and total // width >= self.lanes
        return s.slots % width == 0 and width * -(-total // (width * self.lanes)) <= s.slots

    def packs(self, s: Spread, width: int) -> Packs | None:
        """The vector accesses of a loop; None if it has none."""
        counter, extent = s.counters[-1]
        assert isinstance(extent, int)                      # as it fits
        own, written = defined(s.body), {i.buffer for i in s.body if isinstance(i, Store)}
        again = {p.buffer for i in s.body for p in parts(expressions(i)) if isinstance(p, Load)}

        def place(position: Expr) -> Expr | None:
            start = vectors_along(affine(position, self.known), counter, width)
            return start if start is not None and not own & (factors_of(start) or {}).keys() else None
        loads = {p: start for i in s.body for p in unconditional(expressions(i))
                 if p.buffer in self.buffers.keys() - written and (start := place(p.position)) is not None}
        stores = {i: start for i in s.body if isinstance(i, Store) and i.buffer in self.buffers.keys() - again
                  and (start := place(i.position)) is not None}
        return Packs(width, loads, stores) if (loads or stores) and extent % width == 0 else None

    def narrowest(self, packs: Packs) -> int:
        """Bytes of the narrowest element of the vector accesses."""
        types = [load.type for load in packs.loads] or [self.buffers[s.buffer].type for s in packs.stores]
        return min(ELEMENT_TYPES[t].bytes for t in types)
