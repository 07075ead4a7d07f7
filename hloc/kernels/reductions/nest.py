"""The loops of a reduction kernel: by rows, or by columns (see reductions/reduce.py).

In: a Reduction with its loops, and a function that uses the totals of a result. Out: statements in the Outline's
builder.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from hloc.ir import ELEMENT_TYPES
from hloc.kernels import indexing, loops
from hloc.kernels.group import Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import SERIAL, VECTOR, Expr, Load, Var
from hloc.kernels.monoids import can_reassociate
from hloc.kernels.reductions.reduction import Reduction, join, point_values, start
from hloc.kernels.rules.loops import accumulate
from hloc.machine import Machine


@dataclass
class Nest:
    """The loops of one reduction kernel. chunks: the number of chunks of the reduced loops; values: reads."""

    reduction: Reduction
    outline: Outline
    machine: Machine
    chunks: int = 1
    values: Callable | None = None

    def emit(self, finish: Callable[[list[Index], list[Expr]], None]) -> None:
        """finish(counters, totals) stores the totals of one result; in a chunked nest totals are partial."""
        self.use_point_values()
        if self.reduction.is_written_out:
            self.outline.share_broadcasts()
        rows = self.reduction.reduced[self.lane] or self.reduction.extents == [1]
        (self.rows if rows else self.columns)(finish)

    @property
    def lane(self) -> int:
        """The innermost loop that is not written out."""
        return len(self.reduction.extents) - 1 - self.reduction.is_written_out

    @property
    def results(self) -> int:
        """The number of results whose loop is written out, each with accumulators of its own."""
        r = self.reduction
        return r.extents[-1] if r.is_written_out and not r.reduced[-1] else 1

    @property
    def read(self) -> Callable:
        """`values`, once they are set."""
        assert self.values is not None
        return self.values

    def use_point_values(self) -> None:
        if self.values is None:
            self.values = partial(point_values, self.reduction, self.outline)

    def counters(self, kept: list[int], opened: Sequence[Index]) -> list[Index]:
        """The counters of all loops, given those of the kept ones."""
        counters = [indexing.ZERO] * len(self.reduction.extents)
        for n, counter in zip(kept, opened):
            counters[n] = counter
        return counters

    @property
    def piece_extents(self) -> list[int]:
        """The loops over chunks: the spread ones, and the pieces of the loop that is cut."""
        spread = [self.reduction.extents[n] for n in self.reduction.spread]
        return [*spread, self.chunks // math.prod(spread)]

    @property
    def chunk(self) -> int:
        """Iterations of the cut loop in one chunk."""
        return -(-self.reduction.extents[self.reduction.cut_loop] // self.piece_extents[-1])

    def deal(self, counters: list[Index], opened: Sequence[Index]) -> None:
        """Record the number of this chunk, and its piece of the loop that is cut."""
        for n, counter in zip(self.reduction.spread, opened):
            counters[n] = counter
        self.part = opened[-1]
        self.piece = indexing.linearize(opened, self.piece_extents)

    # rows: one result at a time

    def rows(self, finish: Callable) -> None:
        r, b = self.reduction, self.outline.builder
        kept = [n for n, gone in enumerate(r.reduced[:self.lane + 1]) if not gone]
        extents = [r.extents[n] for n in kept]
        size = math.prod(n for n, gone in zip(r.extents, r.reduced) if gone)
        bytes = size * max(ELEMENT_TYPES[t].bytes for _, _, t in r.accumulators)
        with (loops.parallel(b, [*extents, *self.piece_extents]) if self.chunks > 1
              else loops.rows(b, extents, bytes, self.machine)) as opened:
            counters = self.counters(kept, opened)
            self.deal(counters, opened[len(kept):] or [indexing.ZERO])
            self.finish_each(counters, self.row(counters), finish)

    def finish_each(self, counters: list[Index], totals: Sequence[list[Expr]], finish: Callable) -> None:
        """finish(counters, totals) for each result whose loop is written out."""
        for k, total in enumerate(totals):
            if self.results > 1:
                counters[-1] = indexing.constant(k)
            finish(counters, total)

    def row(self, counters: list[Index]) -> list[list[Expr]]:
        """All reduced loops for one result, or for those whose loop is written out: the totals of each."""
        r = self.reduction
        gone = [n for n, reduced in enumerate(r.reduced[:self.lane + 1]) if reduced and n not in r.spread]
        vector = all(can_reassociate(r.monoid(i), t) for i, _, t in r.accumulators)
        sets = [self.start(vector) for _ in range(self.results)]
        with ExitStack() as stack:
            for n in gone:
                kind = VECTOR if vector and n == gone[-1] else SERIAL
                first = n == r.cut_loop or len(gone) == 1
                counters[n] = stack.enter_context(self.reduced_loop(n, first, kind))
            self.update(sets, counters)
        return [list(one) for one in sets]

    def reduced_loop(self, n: int, first: bool, kind: str) -> AbstractContextManager[Index]:
        extent = self.reduction.extents[n]
        if first and self.piece_extents[-1] > 1:
            return loops.block_loop(self.outline.builder, extent, self.chunk, self.part, kind)
        return self.outline.builder.loop(extent, kind)

    def start(self, vector: bool) -> list[Var]:
        """A set of new accumulators."""
        r, b = self.reduction, self.outline.builder
        return [b.mutable(t, start(r, self.outline, i, k), (r.monoid(i) or "") if vector else "")
                for i, k, t in r.accumulators]

    def update(self, sets: list, counters: list[Index], take: Callable | None = None) -> None:
        """Accumulate the elements at one point, or at those whose loop is written out, in the sets of their results."""
        r = self.reduction
        points = [[*counters[:-1], indexing.constant(k)] for k in range(r.extents[-1])] if r.is_written_out \
            else [counters]
        for k, elements in enumerate(self.read(*points)):
            (take or self.take)(sets[k % len(sets)], elements)

    def take(self, accumulators: list[Var], elements: list[list[Expr]]) -> None:
        remaining = list(accumulators)
        for reduce, values in zip(self.reduction.reduces, elements):
            own, remaining = remaining[:len(values)], remaining[len(values):]
            accumulate(self.outline.elements, own, values, reduce)

    # columns: a block of adjacent results at a time

    def columns(self, finish: Callable) -> None:
        r, b, lane = self.reduction, self.outline.builder, self.lane
        with self.blocks() as (counters, width, block):
            sets = [[(b.local(t, width, "sum"), t) for _, _, t in r.accumulators] for _ in range(self.results)]

            def clear(j: Index) -> None:
                for own in sets:
                    self.clear(own, j)
            self.column_loop(counters, lane, width, block, clear)
            with ExitStack() as stack:
                for n in (n for n, gone in enumerate(r.reduced[:lane]) if gone and n not in r.spread):
                    counters[n] = stack.enter_context(self.reduced_loop(n, n == self.reduction.cut_loop, SERIAL))
                self.column_loop(counters, lane, width, block, lambda j: self.update(
                    sets, counters, lambda own, elements: self.gather(own, elements, j)))
            self.column_loop(counters, lane, width, block, lambda j: self.finish_each(
                counters, [[b.let(self.at(name, t, j)) for name, t in own] for own in sets], finish))

    @contextmanager
    def blocks(self) -> Iterator[tuple[list[Index], int, Index]]:
        """The PARALLEL loop over the other kept loops, the chunks, and blocks of columns: gives the counters, the
        columns of a block, and its number."""
        r, lane = self.reduction, self.lane
        kept = [n for n, gone in enumerate(r.reduced[:lane]) if not gone]
        width = min(r.columns, r.extents[lane])
        with loops.parallel(self.outline.builder, [
                *(r.extents[n] for n in kept), *self.piece_extents, -(-r.extents[lane] // width)]) as opened:
            counters = self.counters(kept, opened)
            self.deal(counters, opened[len(kept):-1])
            yield counters, width, opened[-1]

    def column_loop(self, counters: list[Index], last: int, width: int, block: Index, body: Callable) -> None:
        """VECTOR loop over a block of columns; body(offset in the block)."""
        b = self.outline.builder
        with loops.block_loop(b, self.reduction.extents[last], width, block) as counters[last]:
            body(indexing.subtract(counters[last], indexing.scale(block, width)))

    def at(self, name: str, type: str, offset: Index) -> Load:
        return Load(name, self.outline.builder.position(offset), type)

    def clear(self, arrays: list[tuple[str, str]], offset: Index) -> None:
        for (reduce, k, _), (name, _) in zip(self.reduction.accumulators, arrays):
            self.outline.builder.store(name, offset, start(self.reduction, self.outline, reduce, k))

    def gather(self, arrays: list[tuple[str, str]], elements: list[list[Expr]], offset: Index) -> None:
        """sum[offset] = to_apply(sum[offset], element) for every reduce."""
        b, r = self.outline.builder, self.reduction
        with b.pinned([name for name, _ in arrays]):
            remaining = list(arrays)
            for reduce, values in zip(r.reduces, elements):
                own, remaining = remaining[:len(values)], remaining[len(values):]
                old: list[Expr] = [b.let(self.at(name, t, offset)) for name, t in own]
                new = join(r, self.outline, reduce, old, values)
                if len(new) > 1:
                    new = [b.let(v) for v in new]
                for (name, _), value in zip(own, new):
                    b.store(name, offset, value)
