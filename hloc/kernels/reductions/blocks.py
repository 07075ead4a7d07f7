"""Sums down the columns of an array on a GPU: blocks fill the device, and the last block of each group joins.

In: a Reduction of commutative reducers whose innermost loop is kept. Out: one kernel. A block of threads sums a tile of
`rows` x `width` elements for each of its steps; every lane has its own places of the tile, so that it loads vectors,
and all lanes have work even if there are few columns. At the end the rows of the tile are combined in shared memory.
If the columns alone do not fill the device, the steps are cut into pieces (pieces.py). Their partial results are the
rows of an array in scratch memory, which the last block that finishes with a group of columns sums in the same way.

    sum of columns of x[1605632, 64], tiles of 32 x 64, 528 pieces:
      for steps: for r of 32: for c of 64: sum[r * 64 + c] += x[(step * 32 + r) * 64 + c]
      for c of 64: scratch[piece * 64 + c] = sum over r of sum[r * 64 + c]
      last of 528: the same, of scratch[528, 64]
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from hloc.ir import ELEMENT_TYPES
from hloc.kernels import indexing
from hloc.kernels.builder import within
from hloc.kernels.indexing import Index
from hloc.kernels.ir import SERIAL, VECTOR, Load, Var
from hloc.kernels.reductions.nest import Finish, Nest
from hloc.kernels.reductions.reduction import Reduction, start
from hloc.machine import Machine

THREADS = 256               # of a block
PACK, MOST_PACKED = 16, 8   # bytes that a lane loads at once; elements
LINE, LONG_LINE = 128, 256  # bytes of a row of a tile, so that DRAM is read well; of arrays of LARGE bytes
LARGE = 32 << 20
SHARED = 48 << 10           # bytes of shared memory that every kernel can use
SUMS_OF_LANE = SHARED // (2 * THREADS)  # bytes: the sums of a block lie in its shared memory, some twice
BLOCKS = 4                  # per SM, if there are enough rows
FEW_ROWS = 16               # that one lane combines at the end, one after the other


def tile_of(columns: Reduction, machine: Machine) -> tuple[int, int]:
    """The rows and the width of a tile of columns."""
    count, length = columns.extents[-1], columns.extents[along(columns)]
    bytes_each, pack = _pack(columns, count)
    line = LONG_LINE if bytes_each * math.prod(columns.extents) >= LARGE else LINE
    whole = THREADS * pack
    around = math.prod(columns.kept_extents[:-1])
    if around * -(-count // whole) >= BLOCKS * machine.cores:
        return 1, min(whole, count)

    def score(width: int) -> tuple[float, int]:
        active = _rows(width // pack, length) * width / whole
        return min(1.0, active) * min(1.0, width * bytes_each / min(line, count * bytes_each)), -width
    widths = [n * pack for n in range(1, THREADS + 1) if count % (n * pack) == 0]
    best = max(widths, key=score, default=0)
    ragged = min(-(-line // bytes_each // pack), -(-count // pack)) * pack
    if not best or score(best)[0] < score(ragged)[0] / 2:
        best = ragged
    return _rows(max(1, best // pack), length), best


def along(columns: Reduction) -> int:
    """The innermost reduced loop."""
    return max(n for n, gone in enumerate(columns.reduced) if gone)


def _pack(reduction: Reduction, count: int) -> tuple[int, int]:
    """Bytes of the narrowest element that is read, and how many of them a lane takes at once."""
    elements = math.prod(reduction.dimensions)
    read = [p.shape for p in reduction.group.parameters if p.shape.is_array and 2 * p.shape.num_elements > elements]
    bytes_each = min((ELEMENT_TYPES[s.element_type].bytes for s in read), default=4)
    pack = min(MOST_PACKED, max(1, PACK // bytes_each))
    sums = sum(ELEMENT_TYPES[t].bytes for _, _, t in reduction.accumulators)
    while pack > 1 and (count % pack or pack * sums > SUMS_OF_LANE):
        pack //= 2
    return bytes_each, pack


def _rows(lanes: int, length: int) -> int:
    """Rows of a tile with so many lanes across: a divisor of the loop's length, if one uses half of the threads."""
    most = max(1, min(THREADS // max(1, lanes), length))
    even = next(n for n in range(most, 0, -1) if length % n == 0)
    return even if 2 * even > most else most


@dataclass
class BlockNest(Nest):
    """The loops of such a kernel, over the columns. tile: the rows and the width of one; sums, parts: the Local arrays
    of a tile's lanes, which the nest that joins pieces has, too."""

    tile: tuple[int, int] = (1, 1)
    sums: list[str] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)

    has_lanes = True

    def joining(self, reduction: Reduction, values: Callable) -> BlockNest:
        """The nest that reduces the partial results of all pieces, whose loop is the first one."""
        rows, width = self.tile
        return replace(self, reduction=reduction, values=values, cuts=(), tile=(min(reduction.extents[0], rows), width))

    def extent(self, n: int) -> int:
        """Of the columns: blocks; of the innermost reduced loop: tiles."""
        r, (rows, width) = self.reduction, self.tile
        return -(-r.extents[n] // (width if n == len(r.extents) - 1 else rows if n == along(r) else 1))

    @property
    def groups(self) -> int:
        return math.prod(self.group_extents)

    @contextmanager
    def opened(self, kept: list[int]) -> Iterator[list[Index]]:
        with self.opened_pieces(self.group_extents[:-1], self.group_extents[-1]) as counters:
            yield counters

    def results_of(self, counters: list[Index], finish: Finish) -> None:
        """The columns of a block, whose number stands for the last counter."""
        b, r, (rows, width) = self.outline.builder, self.reduction, self.tile
        first = indexing.scale(counters[-1], width)
        if not self.sums:
            self.sums += [b.local(t, rows * width, "sum") for _, _, t in r.accumulators]
        with self.places() as (_, _, place):
            for (reduce, k, _), name in zip(r.accumulators, self.sums):
                b.store(name, place, start(r, self.outline, reduce, k))
        self.walk(list(counters), first)

        def use(c: Index, totals: list[Var]) -> None:
            column = indexing.add(first, c)
            with b.guard(within(column, r.extents[-1], b)):
                finish(r.kept([*counters[:-1], column]), list(totals))
        self.combine(use)

    def walk(self, counters: list[Index], first: Index) -> None:
        """Adds up the tiles of one piece, from the first column on."""
        b, r, n = self.outline.builder, self.reduction, along(self.reduction)
        with ExitStack() as stack:
            for k, _ in self.reduced:
                counters[k] = stack.enter_context(self.reduced_loop(k, SERIAL))
            row, column, place = stack.enter_context(self.places())
            counters[n] = indexing.add(indexing.scale(counters[n], self.tile[0]), row)
            counters[-1] = indexing.add(first, column)
            stack.enter_context(b.guard([c for k in (-1, n) for c in within(counters[k], r.extents[k], b)]))
            self.add_point(counters, place)

    @contextmanager
    def places(self) -> Iterator[tuple[Index, Index, Index]]:
        """The loops over a tile: gives row, column, and the place of the lane's sum."""
        b, (rows, width) = self.outline.builder, self.tile
        with b.loop(rows) as row, b.loop(width, VECTOR) as column:
            yield row, column, indexing.add(indexing.scale(row, width), column)

    def add_point(self, counters: list[Index], place: Index) -> None:
        """sum = to_apply(sum, element) at one place of a tile."""
        b, types = self.outline.builder, [t for _, _, t in self.reduction.accumulators]
        elements = [v for one in self.read(counters) for v in one]
        with b.pinned(self.sums):
            old = [b.let(Load(n, b.position(place), t)) for n, t in zip(self.sums, types)]
            for (reduce, _, _), name, x, y in zip(self.reduction.accumulators, self.sums, old, elements):
                b.store(name, place, self.outline.elements.combined(reduce, [x, y])[0])

    def spilled(self) -> list[str]:
        """The lanes' sums where all lanes can read them; in place if nothing is to be combined."""
        b, (rows, width), types = self.outline.builder, self.tile, [t for _, _, t in self.reduction.accumulators]
        if rows == 1:
            return self.sums
        if not self.parts:
            self.parts += [b.local(t, rows * width, "part") for t in types]
        with self.places() as (_, _, place):
            for sums, part, type in zip(self.sums, self.parts, types):
                b.store(part, place, Load(sums, b.position(place), type))
        return self.parts

    def combine(self, use: Callable[[Index, list[Var]], None]) -> None:
        """use(column, totals) for each column of a tile. Many rows are combined in groups of adjacent ones first, which
        all lanes share."""
        b, (rows, width), types = self.outline.builder, self.tile, [t for _, _, t in self.reduction.accumulators]
        groups = next((n for n in range(math.isqrt(rows), FEW_ROWS + 1) if rows % n == 0), 1) if rows > FEW_ROWS else 1
        parts = self.spilled()
        for count in dict.fromkeys((groups, 1)):
            names = [b.local(t, count * width, "few") for t in types] if count > 1 else []
            with b.loop(count) as group, b.loop(width, VECTOR) as c:
                totals = self.start(False)
                with b.loop(rows // count) as row:
                    place = indexing.linearize([group, row, c], [count, rows // count, width])
                    self.take(totals, [[Load(n, b.position(place), t)] for n, t in zip(parts, types)])
                for name, value in zip(names, totals):
                    b.store(name, indexing.linearize([group, c], [count, width]), value)
                if not names:
                    use(c, totals)
            parts, rows = names, count
