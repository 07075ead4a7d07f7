"""A block of columns, and those around it that windows read: which of them are elements, and not padding.

In: a block, and bounds of what is there. Out: a loop without conditions over the columns that are.

    with Columns(builder, 1000, 512, block, before=3, after=3).between(0, 1000) as column: ...
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hloc.kernels import indexing
from hloc.kernels.builder import Builder
from hloc.kernels.indexing import Index, index_apply
from hloc.kernels.ir import INDEX, VECTOR, Apply, Const, Expr

TAPS = 8                        # of a window in one pass over the columns


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
    def between(self, first: int, end: int) -> Iterator[Index]:
        """The loop over those with first <= column < end, maybe none."""
        b, room = self.builder, self.width + self.before + self.after
        begin = self._outermost("maximum", max, [indexing.constant(first), self.start])
        stop = self._outermost("minimum", min, [indexing.constant(end), indexing.shift(self.start, room)])
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
