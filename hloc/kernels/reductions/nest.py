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
from hloc.kernels.ir import SERIAL, VECTOR, Expr, Var
from hloc.kernels.monoids import can_reassociate
from hloc.kernels.reductions.reduction import Reduction, point_values, start
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
    spread: Sequence[Index] = ()

    def emit(self, finish: Callable[[list[Index], list[Expr]], None]) -> None:
        """finish(counters, totals) stores the totals of one result; in a chunked nest totals are partial."""
        self.use_point_values()
        if self.reduction.is_written_out:
            self.outline.share_broadcasts()
        r = self.reduction
        kept = [n for n, gone in enumerate(r.reduced[:self.lane + 1]) if not gone]
        with self.opened(kept) as opened:
            counters = [indexing.ZERO] * len(r.extents)
            for n, counter in zip(kept, opened):
                counters[n] = counter
            self.finish_each(counters, self.row(counters), finish)

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

    @property
    def piece_extents(self) -> list[int]:
        """The loops over chunks: the spread ones, and the pieces of the loop that is cut."""
        spread = [self.reduction.extents[n] for n in self.reduction.spread]
        return [*spread, self.chunks // math.prod(spread)]

    @property
    def chunk(self) -> int:
        """Iterations of the cut loop in one chunk."""
        return -(-self.reduction.extents[self.reduction.cut_loop] // self.piece_extents[-1])

    @contextmanager
    def opened(self, kept: list[int]) -> Iterator[list[Index]]:
        """The loops over results: one PARALLEL loop, also over chunks, on a CPU over blocks of results, which go
        together by schedules of row nests. Gives the counters of the kept loops. Where the innermost loop is kept,
        blocks are of adjacent results: columns."""
        r, b = self.reduction, self.outline.builder
        extents = [r.extents[n] for n in kept]
        if self.machine.kind == "cpu" and kept and kept[-1] == self.lane:
            width = min(r.columns, extents[-1])
            with loops.parallel(b, [*extents[:-1], *self.piece_extents, -(-extents[-1] // width)]) as opened:
                self.deal(opened[len(kept) - 1:-1])
                with loops.block_loop(b, extents[-1], width, opened[-1], SERIAL) as column:
                    yield [*opened[:len(kept) - 1], column]
            return
        size = math.prod(n for n, gone in zip(r.extents, r.reduced) if gone)
        bytes = size * max(ELEMENT_TYPES[t].bytes for _, _, t in r.accumulators)
        with (loops.parallel(b, [*extents, *self.piece_extents]) if self.chunks > 1
              else loops.rows(b, extents, bytes, self.machine)) as opened:
            self.deal(opened[len(kept):] or [indexing.ZERO])
            yield list(opened[:len(kept)])

    def deal(self, opened: Sequence[Index]) -> None:
        """Record the number of this chunk, and its piece of the loop that is cut."""
        self.spread, self.part = opened[:-1], opened[-1]
        self.piece = indexing.linearize(opened, self.piece_extents)

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
        for n, counter in zip(r.spread, self.spread):
            counters[n] = counter
        vector = r.reduced[self.lane] and all(can_reassociate(r.monoid(i), t) for i, _, t in r.accumulators)
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

    def update(self, sets: list, counters: list[Index]) -> None:
        """Accumulate the elements at one point, or at those whose loop is written out, in the sets of their results."""
        r = self.reduction
        points = [[*counters[:-1], indexing.constant(k)] for k in range(r.extents[-1])] if r.is_written_out \
            else [counters]
        for k, elements in enumerate(self.read(*points)):
            self.take(sets[k % len(sets)], elements)

    def take(self, accumulators: list[Var], elements: list[list[Expr]]) -> None:
        remaining = list(accumulators)
        for reduce, values in zip(self.reduction.reduces, elements):
            own, remaining = remaining[:len(values)], remaining[len(values):]
            accumulate(self.outline.elements, own, values, reduce)
