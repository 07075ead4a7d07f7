"""Sums down the columns of an array on a GPU: blocks fill the device, and the last block of each group joins.

In: a Reduction of commutative reducers whose innermost loop is kept. Out: one kernel. A block of threads sums a tile of
`rows` x `width` elements for each of its steps; every lane has its own places of the tile, so that it loads vectors,
and all lanes have work even if there are few columns. At the end the rows of the tile are combined in shared memory.
If the columns alone do not fill the device, the steps are cut into pieces. Their partial results go to scratch memory,
and the last block that finishes with a group of columns joins them, in a fixed order (ir.Last).

    sum of columns of x[1605632, 64], tiles of 32 x 64, 528 pieces:
      for steps: for r of 32: for c of 64: sum[r * 64 + c] += x[(step * 32 + r) * 64 + c]
      for c of 64: scratch[piece * 64 + c] = sum over r of sum[r * 64 + c]
      last of 528: the same, of scratch[528, 64]
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels import indexing, loops
from hloc.kernels.builder import within
from hloc.kernels.group import Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import SERIAL, VECTOR, Expr, Load
from hloc.kernels.reductions.reduction import Reduction, join, point_values, start, store_results
from hloc.machine import Machine

THREADS = 256               # of a block
PACK, MOST_PACKED = 16, 8   # bytes that a lane loads at once; elements
LINE, LONG_LINE = 128, 256  # bytes of a row of a tile, so that DRAM is read well; of arrays of LARGE bytes
LARGE = 32 << 20
SHARED = 48 << 10           # bytes of shared memory that every kernel can use
SUMS_OF_LANE = SHARED // (2 * THREADS)  # bytes: the sums of a block lie in its shared memory, some twice
BLOCKS = 4                  # per SM, if there are enough rows
PIECE_BYTES = 32 << 10      # that a piece reads at least: joining costs more than reading fewer
FEW_ROWS = 16               # that one lane combines at the end, one after the other


class Tile(NamedTuple):
    """rows, width: of a tile; results: of its width, which are sums of `inner` adjacent columns each; blocks: of all
    columns; steps: tiles along the innermost reduced loop, with `rest` rows left over."""

    rows: int
    width: int
    inner: int
    blocks: int
    steps: int
    rest: int

    @property
    def results(self) -> int:
        return self.width // self.inner


def tile_of(reduction: Reduction, columns: Reduction, machine: Machine) -> Tile:
    """The tile of a reduction. columns: the reduction with its innermost loop kept, if it is a short reduced one."""
    inner = 1 if columns is reduction else reduction.extents[-1]
    count, length = columns.extents[-1], columns.extents[_along(columns)]
    bytes_each, pack = _pack(reduction, count)
    line = LONG_LINE if bytes_each * math.prod(reduction.extents) >= LARGE else LINE
    whole = THREADS * pack
    around = math.prod(columns.kept_extents[:-1])
    if inner == 1 and around * -(-count // whole) >= BLOCKS * machine.cores:
        return _tile(1, min(whole, count), 1, count, length)

    def score(width: int) -> tuple[float, int]:
        active = _rows(width // pack, length) * width / whole
        return min(1.0, active) * min(1.0, width * bytes_each / min(line, count * bytes_each)), -width
    widths = [n * pack for n in range(1, THREADS + 1) if count % (n * pack) == 0 and n * pack % inner == 0]
    best = max(widths, key=score, default=0)
    step = pack * inner
    ragged = min(-(-line // bytes_each // step), -(-count // step)) * step
    if not best or score(best)[0] < score(ragged)[0] / 2:
        best = ragged
    return _tile(_rows(max(1, best // pack), length), best, inner, count, length)


def _along(columns: Reduction) -> int:
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


def _tile(rows: int, width: int, inner: int, count: int, length: int) -> Tile:
    return Tile(rows, width, inner, -(-count // width), *divmod(length, rows))


class Pieces(NamedTuple):
    """How the tiles of a group of columns are shared by blocks. spread: reduced loops each iteration of which is in
    another piece; cut: the loop that is cut into `cuts` parts of `part` iterations: a reduced loop, or None: the
    steps."""

    spread: tuple[int, ...]
    cut: int | None
    cuts: int
    part: int


def pieces_of(columns: Reduction, tile: Tile, bytes_read: int, machine: Machine) -> Pieces:
    """As many pieces as fill the device, but for what is read faster by one block."""
    groups = math.prod(columns.kept_extents[:-1]) * tile.blocks
    most = min(-(-BLOCKS * machine.cores // groups), bytes_read // groups // PIECE_BYTES)
    if 2 * groups >= BLOCKS * machine.cores or most < 2:
        return Pieces((), None, 1, tile.steps)
    along, count, spread = _along(columns), 1, []
    outer = [n for n, gone in enumerate(columns.reduced) if gone and n != along]
    for n, extent in [*((n, columns.extents[n]) for n in outer), (None, tile.steps)]:
        if n is not None and count * extent <= most:
            spread.append(n)
            count *= extent
            continue
        cuts = max(1, min(extent, most // count))
        part = -(-extent // next((c for c in range(cuts, cuts * 3 // 4, -1) if extent % c == 0), cuts))
        return Pieces(tuple(spread), n, -(-extent // part), part)
    raise AssertionError("the steps are the last loop")


@dataclass
class BlockNest:
    """The statements of one such kernel. columns: as for tile_of; read: bytes that all blocks read."""

    reduction: Reduction
    columns: Reduction
    outline: Outline
    machine: Machine
    read: int
    sums: list[str] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)

    def emit(self) -> tuple[int, ...]:
        """Builds the kernel; gives the bytes of its scratch buffers."""
        r, b, columns = self.reduction, self.outline.builder, self.columns
        self.tile = tile = tile_of(r, columns, self.machine)
        pieces = pieces_of(columns, tile, self.read, self.machine)
        kept = [n for n, gone in enumerate(columns.reduced) if not gone][:-1]
        around, dealt = [columns.extents[n] for n in kept], [columns.extents[n] for n in pieces.spread]
        count = math.prod(dealt) * pieces.cuts
        with loops.parallel(b, [*around, *dealt, pieces.cuts, tile.blocks]) as opened:
            outer, block = list(opened[:len(kept)]), opened[-1]
            counters = [indexing.ZERO] * len(columns.extents)
            for n, counter in zip([*kept, *pieces.spread], opened):
                counters[n] = counter
            self.sums = [b.local(t, tile.rows * tile.width, "sum") for _, _, t in r.accumulators]
            self.clear(tile.rows, tile.width)
            self.walk(counters, block, pieces, opened[-2])
            parts = self.spilled(tile.rows, tile.width)
            group = indexing.linearize([*outer, block], [*around, tile.blocks])
            number = indexing.linearize(opened[len(kept):-1], [*dealt, pieces.cuts])
            if count == 1:
                self.finish(parts, tile.rows, tile.width, tile.inner, self.stored(counters, block))
                return ()
            groups, row = math.prod(around) * tile.blocks, tile.results
            first = indexing.scale(indexing.add(indexing.scale(group, count), number), row)
            types, size = [t for _, _, t in r.accumulators], groups * count * row

            def keep(c: Index, totals: list[Expr]) -> None:
                for k, (type, total) in enumerate(zip(types, totals)):
                    b.store(self.outline.scratch_buffer(k, type, size, "write"), indexing.add(first, c), total)
            self.finish(parts, tile.rows, tile.width, tile.inner, keep)
            with b.last(group, groups, count):
                self.join(indexing.scale(group, count * row), count, size, self.stored(counters, block))
            return tuple(size * ELEMENT_TYPES[t].bytes for t in types)

    # -- the steps of one block

    def walk(self, counters: list[Index], block: Index, pieces: Pieces, piece: Index) -> None:
        """Adds up the tiles of one piece."""
        b, tile, columns, along = self.outline.builder, self.tile, self.columns, _along(self.columns)
        with ExitStack() as stack:
            for n in [n for n, gone in enumerate(columns.reduced) if gone and n != along and n not in pieces.spread]:
                cut = n == pieces.cut and pieces.cuts > 1
                counters[n] = stack.enter_context(
                    loops.block_loop(b, columns.extents[n], pieces.part, piece, SERIAL) if cut
                    else b.loop(columns.extents[n]))

            def add(step: Index, rows: int) -> None:
                def at(row: Index, c: Index) -> list[list[Expr]]:
                    counters[along] = indexing.add(indexing.scale(step, tile.rows), row)
                    counters[-1] = indexing.add(indexing.scale(block, tile.width), c)
                    return point_values(columns, self.outline, list(counters))[0]
                self.add_tile(rows, tile.width, at, indexing.scale(block, tile.width))
            cut = pieces.cut is None and pieces.cuts > 1
            if tile.steps:
                steps = loops.block_loop(b, tile.steps, pieces.part, piece, SERIAL) if cut else b.loop(tile.steps)
                with steps as step:
                    add(step, tile.rows)
            if tile.rest:
                last = within(indexing.subtract(indexing.constant(pieces.cuts - 1), piece), 1, b) if cut else []
                with b.guard(last):
                    add(indexing.constant(tile.steps), tile.rest)

    @contextmanager
    def places(self, rows: int, width: int) -> Iterator[tuple[Index, Index, Index]]:
        """The loops over a tile: gives row, column, and the place of the lane's sum."""
        b = self.outline.builder
        with b.loop(rows) as row, b.loop(width, VECTOR) as column:
            yield row, column, indexing.add(indexing.scale(row, width), column)

    def clear(self, rows: int, width: int) -> None:
        """sum = the identity, for a tile."""
        with self.places(rows, width) as (_, _, place):
            for (reduce, k, _), name in zip(self.reduction.accumulators, self.sums):
                self.outline.builder.store(name, place, start(self.reduction, self.outline, reduce, k))

    def add_tile(self, rows: int, width: int, values: Callable, first: Index | None = None) -> None:
        """sum = to_apply(sum, value(row, column)) for a tile. first: its first column, if some may not exist."""
        b, r = self.outline.builder, self.reduction
        with self.places(rows, width) as (row, column, place):
            inside = within(indexing.add(first, column), self.columns.extents[-1], b) if first is not None else []
            with b.guard(inside):
                elements = [v for one in values(row, column) for v in one]
                with b.pinned(self.sums):
                    old = [b.let(Load(n, b.position(place), t)) for n, (_, _, t) in zip(self.sums, r.accumulators)]
                    new = self.joined(old, elements)
                    for name, value in zip(self.sums, new):
                        b.store(name, place, value)

    def joined(self, a: Sequence[Expr], b: Sequence[Expr]) -> list[Expr]:
        r, pairs = self.reduction, zip(self.reduction.accumulators, a, b)
        return [join(r, self.outline, reduce, [x], [y])[0] for (reduce, _, _), x, y in pairs]

    # -- from a tile to results

    def spilled(self, rows: int, width: int) -> list[str]:
        """The lanes' sums where all lanes can read them; in place if nothing is to be combined."""
        if rows * self.tile.inner == 1:
            return self.sums
        b, types = self.outline.builder, [t for _, _, t in self.reduction.accumulators]
        if not self.parts:
            self.parts = [b.local(t, self.tile.rows * self.tile.width, "part") for t in types]
        with self.places(rows, width) as (_, _, place):
            for sums, part, type in zip(self.sums, self.parts, types):
                b.store(part, place, Load(sums, b.position(place), type))
        return self.parts

    def finish(self, parts: list[str], rows: int, width: int, inner: int, use: Callable) -> None:
        """use(column, totals) for each result of a tile whose sums are in `parts`."""
        groups = next((n for n in range(math.isqrt(rows), FEW_ROWS + 1) if rows % n == 0), 1)
        if rows * inner > FEW_ROWS and 1 < groups < rows:
            parts, rows, width, inner = self.fewer(parts, rows, width, inner, groups), groups, width // inner, 1
        b = self.outline.builder
        with b.loop(width // inner, VECTOR) as c:
            use(c, self.total(parts, rows, width, inner, indexing.ZERO, c))

    def fewer(self, parts: list[str], rows: int, width: int, inner: int, groups: int) -> list[str]:
        """Combines the rows in `groups` of adjacent ones, which all lanes share."""
        b, results, each = self.outline.builder, width // inner, rows // groups
        types = [t for _, _, t in self.reduction.accumulators]
        names = [b.local(t, groups * results, "few") for t in types]
        with b.loop(groups) as group, b.loop(results, VECTOR) as c:
            totals = self.total(parts, each, width, inner, indexing.scale(group, each), c)
            for name, value in zip(names, totals):
                b.store(name, indexing.add(indexing.scale(group, results), c), value)
        return names

    def total(self, parts: list[str], rows: int, width: int, inner: int, first: Index, c: Index) -> list[Expr]:
        """The totals of one column over `rows` rows from the first one on, and over `inner` columns."""
        b, r = self.outline.builder, self.reduction
        if rows * inner == 1:
            place = indexing.add(indexing.scale(first, width), c)
            return [b.let(Load(n, b.position(place), t)) for n, (_, _, t) in zip(parts, r.accumulators)]
        totals = [b.mutable(t, start(r, self.outline, reduce, k)) for reduce, k, t in r.accumulators]
        with b.loop(rows) as row, b.loop(inner) as i:
            column = indexing.add(indexing.scale(c, inner), i)
            place = indexing.add(indexing.scale(indexing.add(first, row), width), column)
            read = [Load(n, b.position(place), t) for n, (_, _, t) in zip(parts, r.accumulators)]
            for total, value in zip(totals, self.joined(totals, read)):
                b.assign(total, value)
        return list(totals)

    def join(self, first: Index, count: int, size: int, use: Callable) -> None:
        """The totals of a group of columns, from the partial results of its `count` pieces."""
        b, row = self.outline.builder, self.tile.results
        types = [t for _, _, t in self.reduction.accumulators]
        names = [self.outline.scratch_buffer(k, t, size, "write") for k, t in enumerate(types)]
        rows = max(1, min(count, self.tile.rows * self.tile.width // row))
        self.clear(rows, row)

        def add(step: Index, some: int) -> None:
            def at(piece: Index, c: Index) -> list[list[Expr]]:
                place = indexing.add(first, indexing.add(indexing.scale(
                    indexing.add(indexing.scale(step, rows), piece), row), c))
                return [[b.load(n, t, place) for n, t in zip(names, types)]]
            self.add_tile(some, row, at)
        if count >= rows:
            with b.loop(count // rows) as step:
                add(step, rows)
        if count % rows:
            add(indexing.constant(count // rows), count % rows)
        self.finish(self.spilled(rows, row), rows, row, 1, use)

    def stored(self, counters: list[Index], block: Index) -> Callable:
        """Stores the results of a column that exists."""
        r, b, tile = self.reduction, self.outline.builder, self.tile
        joined = len(self.columns.extents) < len(r.extents)      # a kept loop and the short reduced one after it

        def use(c: Index, totals: list[Expr]) -> None:
            column = indexing.add(indexing.scale(block, tile.results), c)
            own = [*counters[:-1], column] if self.columns is r else [*counters[:-1], indexing.ZERO]
            if joined:
                own = [*counters[:-1], column, indexing.ZERO]
            with b.guard(within(column, self.columns.extents[-1] // tile.inner, b)):
                store_results(r, self.outline, own, list(totals))
        return use
