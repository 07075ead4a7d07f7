"""Transposes on the GPU: pointwise kernels that read an array across its rows use tiles in shared memory.

In: a loop Kernel, the edge of its tiles, and the arrays that are read across their rows. Out: its Form: a block for a
tile. A tile is square. Adjacent threads load its elements along one axis, and use them along the other, so that reads
and writes are coalesced.

    d1 = 32 down + line, d0 = 32 across + column:  tile[column, line] = in[32 d0 + d1], for line and column swapped
      -> barrier -> out[512 d1 + d0] = tile[column, line]

If positions and sizes allow it, a thread loads and stores vectors. The tile lies in groups of adjacent elements: a
vector, or a word of shared memory. Groups of a line change places with the number of the line, or of its vector (an
exclusive or), so that neither the stores of lines nor the loads of elements across them meet in one bank.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.affine import factor_of, stays_inside
from hloc.kernels.indexing import index_apply, sum_of
from hloc.kernels.ir import INDEX, Apply, Barrier, Const, Expr, Kernel, Let, Load, Shared, Store, Var
from hloc.kernels.schedule.steps import Refused
from hloc.kernels.walks import loads, stores, with_expressions, with_values
from hloc.targets.cuda.loops.iteration_space import Space, counters_of
from hloc.targets.cuda.loops.rows import Spread, bytes_of
from hloc.targets.cuda.loops.teams import Form
from hloc.targets.cuda.loops.vector_accesses import Accesses, by_vectors

WORD, BANKS = 4, 32             # of shared memory: bytes of a word
CHUNKS = 8                      # vectors of a line, which a quarter of a warp stores: 128 bytes; single ones: a warp
LARGEST_SHARED = 36 << 10
ACROSS, DOWN, GROUP, LINE, COLUMN = (Var(name, INDEX) for name in ("across", "down", "group", "line", "column"))


def across(kernel: Kernel, space: Space) -> dict[str, list[Load]]:
    """The loads that are contiguous along another axis than d0, by this axis."""
    found, sizes = dict[str, list[Load]](), {b.name: b.size for b in kernel.buffers}
    for load in dict.fromkeys(loads(space.body)):
        along = [name for name in reversed(space.sizes) if factor_of(load.position, name) == 1]
        if factor_of(load.position, "d0") not in (0, 1) and along \
                and stays_inside(load.position, sizes[load.buffer], space.sizes):
            found.setdefault(along[0], []).append(load)
    return found


def tiled_form(kernel: Kernel, space: Space, read: str, edge: int, width: int, threads: int,
               buffers: tuple[str, ...]) -> Form:
    """Tiles for arrays that are read along axis `read`. Raises Refused."""
    tile, written = Tile(space.sizes, read, edge, width), stores(space.body)
    if len(written) != 1 or factor_of(written[0].position, "d0") != 1:
        raise Refused("not one result that is written along d0")
    cached = [load for load in across(kernel, space).get(read, []) if load.buffer in buffers]
    if {load.buffer for load in cached} != set(buffers) or not buffers:
        raise Refused(f"not what is read along {read}: {', '.join(buffers) or 'no buffer'}")
    if 2 * min(space.sizes["d0"], space.sizes[read]) < edge:
        raise Refused("most of a tile would be empty")
    if edge * edge % (width * threads) or edge // width % tile.adjacent or edge & edge - 1:
        raise Refused(f"{threads} threads share no tile of {edge} by {edge}, {width} elements at once")
    shared = [Shared(f"tile{n}", load.type, edge * edge) for n, load in enumerate(cached)]
    if (size := sum(map(bytes_of, shared))) > LARGEST_SHARED:
        raise Refused(f"tiles of {size >> 10} KiB: at most {LARGEST_SHARED >> 10}")
    fill = tile.each(LINE, tile.chunk, [Store(s.name, tile.place(load.type, LINE, tile.chunk), load)
                                        for s, load in zip(shared, cached)])
    places = {load: Load(s.name, tile.place(load.type, tile.chunk, LINE), load.type) for s, load in zip(shared, cached)}
    use = tile.each(tile.chunk, LINE, [with_expressions(s, lambda e: with_values(e, places)) for s in space.body])
    vectors = Accesses(kernel, (*tile.numbers(), fill)).packs(fill, width)
    if len(vectors.loads) < len(cached) or any(space.sizes[axis] % width for axis in ("d0", read)):
        raise Refused(f"rows are no vectors of {width}")
    if width > 1:
        fill = fill._replace(packs=vectors._replace(stores={s: s.position for s in stores(fill.body)}))
        use = by_vectors(use, width, kernel, tile.numbers())
    body = tuple(s._replace(slots=edge * edge // width // threads) if isinstance(s, Spread) else s
                 for s in (*tile.numbers(), *shared, Barrier(), fill, Barrier(), use))
    return Form(kernel, threads, threads, body, "work", math.prod(tile.counts.values()), space.before, tiled=True)


class Tile(NamedTuple):
    """Tiles of d0 and the axis `read`. sizes: of all axes."""

    sizes: dict[str, int]
    read: str
    edge: int
    width: int

    @property
    def counts(self) -> dict[str, int]:
        """The tiles along the axes, `read` and d0 last."""
        counts = {name: n for name, n in self.sizes.items() if name not in ("d0", self.read)}
        return counts | {name: -(-self.sizes[name] // self.edge) for name in (self.read, "d0")}

    def numbers(self) -> list[Let]:
        """The place of tile number `work`: along d0 `across`, along the axis that is read `down`."""
        names, counts = {"d0": ACROSS.name, self.read: DOWN.name}, self.counts
        return counters_of("work", [(names.get(name, name), n) for name, n in counts.items()])

    @property
    def adjacent(self) -> int:
        """Adjacent vectors of a line that adjacent lanes have."""
        return CHUNKS if self.width > 1 else BANKS

    @property
    def chunk(self) -> Expr:
        """The place in a line."""
        return COLUMN if self.edge == self.adjacent * self.width else \
            sum_of([(GROUP, self.adjacent * self.width), (COLUMN, 1)], 0)

    def each(self, d0: Expr, other: Expr, body: Sequence[Let | Store]) -> Spread:
        """A loop over a tile's elements. d0, other: their places in the tile along d0 and the axis that is read."""
        edge, width = self.edge, self.adjacent * self.width
        lets = [Let(name, sum_of([(number, edge), (place, 1)], 0))
                for name, number, place in (("d0", ACROSS, d0), (self.read, DOWN, other))]
        inside = [Apply("compare_lt", (let.value, Const(self.sizes[let.name], INDEX)), "pred")
                  for let in lets if self.sizes[let.name] % edge]
        condition = Apply("and", (inside[0], inside[1]), "pred") if len(inside) > 1 else inside[0] if inside else None
        counters = (((GROUP.name, edge // width),) if edge > width else ()) + ((LINE.name, edge), (COLUMN.name, width))
        return Spread(counters, (*lets, *body), inside=condition)

    def place(self, type: str, line: Expr, column: Expr) -> Expr:
        """The place of an element in a tile of this type. line: of what is read, across the results."""
        size = max(self.width, WORD // ELEMENT_TYPES[type].bytes)
        number, rest = (index_apply(op, column, Const(size, INDEX)) for op in ("divide", "remainder"))
        moved = index_apply("remainder", index_apply("divide", line, Const(self.width, INDEX)),
                            Const(self.edge // size, INDEX))
        return sum_of([(line, self.edge), (Apply("xor", (number, moved), INDEX), size), (rest, size > 1)], 0)
