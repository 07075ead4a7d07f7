"""Windows with a stride of one or a few elements per column: which taps are valid in which columns.

In: a block of columns, the window, the size of its operand's dimension, and a function that accumulates taps. Out:
loops without conditions, over TAPS at a time, so that sums are read and written rarely. If some taps are padding, taps
are processed one at a time, over the columns for which they are not padding.

    slide(Columns(builder, 1000, 512, block), WindowDim(7, padding_low=3, padding_high=3), 1000, take)
        take(column, [(tap, place) ...])       some taps of a column: the element at `place`, which is never padding
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from hloc.ir import WindowDim
from hloc.kernels import indexing, loops
from hloc.kernels.builder import Builder
from hloc.kernels.indexing import Index, index_apply
from hloc.kernels.ir import INDEX, SERIAL, VECTOR, Apply, Const, Expr

SHORTEST_SLIDE = 16             # columns of a window that moves along them
LONGEST_STEP = 4                # elements
TAPS = 8                        # of such a window in one pass over the columns

Take = Callable[[Index, list[tuple[Index, Index]]], object]


def slides(w: WindowDim) -> bool:
    """Whether the window has stride one along the columns: one tap of adjacent columns is contiguous."""
    return w.size > 1 and w.stride == 1 and w.base_dilation == 1


def steps(w: WindowDim) -> bool:
    """Whether the window has a stride of a few elements along the columns, which vectors load with gaps."""
    return w.size > 1 and 1 < w.stride <= LONGEST_STEP and w.base_dilation == 1


class Columns:
    """A block of `width` columns among `extent`, and `before` and `after` columns around it."""

    def __init__(self, builder: Builder, extent: int, width: int, block: Index, before: int = 0, after: int = 0):
        self.builder = builder
        self.extent = extent
        self.width = width
        self.block = block
        self.before = before
        self.after = after

    @property
    def start(self) -> Index:
        return indexing.shift(indexing.scale(self.block, self.width), -self.before)

    @contextmanager
    def all(self) -> Iterator[Index]:
        """The loop over the columns of the block."""
        loop = (self.between(0, self.extent) if self.before else
                loops.block_loop(self.builder, self.extent, self.width, self.block, VECTOR))
        with loop as column:
            yield column

    @contextmanager
    def between(self, first: int, end: int, low: Index = indexing.ZERO, high: Index | None = None) -> Iterator[Index]:
        """The loop over those with first <= column < end and low <= column < high, maybe none."""
        b, room = self.builder, self.width + self.before + self.after
        begin = self._outermost("maximum", max, [indexing.constant(first), low, self.start])
        ends = [indexing.constant(end), indexing.shift(self.start, room), *([high] if high else [])]
        stop = self._outermost("minimum", min, ends)
        if isinstance(begin, Const) and isinstance(stop, Const) and begin.integer < stop.integer:
            with b.loop(stop.integer - begin.integer, VECTOR) as offset:
                yield indexing.shift(offset, begin.integer)
            return
        begin = b.let(begin, "p")
        length = b.let(index_apply("subtract", stop, begin), "p")
        with b.loop(length, VECTOR, high=min(room, end - first) - 1) as offset:
            column = index_apply("add", begin, b.position(offset))
            # never a constant: loads would be hoisted out of the loop, which may have no iterations
            yield b.bind_index(column, first, max(first + 1, end - 1))

    def _outermost(self, name: str, fold: Callable[[list[int]], int], bounds: list[Index]) -> Expr:
        """The greatest or the least of some bounds, as far as it is known."""
        result: Expr = Const(fold([bound.constant for bound in bounds if not bound.terms]), INDEX)
        for bound in bounds:
            if bound.terms:
                result = Apply(name, (result, self.builder.position(bound)), INDEX)
        return result

    def offset(self, column: Index) -> Index:
        """The position of a column in the block."""
        return indexing.subtract(column, self.start)


def slide(columns: Columns, window: WindowDim, size: int, take: Take) -> None:
    """All taps of the window for all columns of the block; it moves over `size` elements."""
    b, extent, far = columns.builder, columns.extent, (window.size - 1) * window.window_dilation
    low = max(0, -(-window.padding_low // window.stride))
    high = min(extent, (size + window.padding_low - far - 1) // window.stride + 1)
    if high - low < min(extent, SHORTEST_SLIDE):
        low = high = extent                                  # no column has all taps
    whole, rest = divmod(window.size if low < high else 0, TAPS)

    def interior() -> AbstractContextManager[Index]:
        return columns.all() if high - low == extent else columns.between(low, high)

    def taps(column: Index, first: Index, count: int) -> list[tuple[Index, Index]]:
        return [(tap, _place(window, column, tap)) for tap in (indexing.shift(first, i) for i in range(count))]
    if whole:
        with b.loop(whole, SERIAL) as step, interior() as column:
            take(column, taps(column, indexing.scale(step, TAPS), TAPS))
    if rest:
        with interior() as column:
            take(column, taps(column, indexing.constant(whole * TAPS), rest))
    ends = [(first, end) for first, end in ((0, low), (high, extent)) if first < end]
    if not ends:
        return
    with b.loop(window.size, SERIAL) as tap:
        before = indexing.scale(_place(window, indexing.ZERO, tap), -1)
        inside = [_columns_before(window, place) for place in (before, indexing.shift(before, size))]
        for first, end in ends:
            with columns.between(first, end, *inside) as column:
                take(column, taps(column, tap, 1))


def _columns_before(window: WindowDim, place: Index) -> Index:
    """The number of columns that begin before a position, which may be slightly negative."""
    whole = window.size * window.window_dilation
    shifted = indexing.shift(place, window.stride * whole + window.stride - 1)
    return indexing.shift(indexing.floor_divide(shifted, window.stride), -whole)


def _place(window: WindowDim, column: Index, tap: Index) -> Index:
    """The element that a tap of a column's window reads."""
    if window.reversal:
        tap = indexing.subtract(indexing.constant(window.size - 1), tap)
    first = indexing.shift(indexing.scale(column, window.stride), -window.padding_low)
    return indexing.add(first, indexing.scale(tap, window.window_dilation))
