"""The loops of a reduction kernel: by rows, or by columns (see reductions/reduce.py).

In: a Reduction with its loops, and a function that uses the totals of a result. Out: statements in the Outline's
builder. Where reduced loops are cut into pieces (pieces.py), totals are those of a piece.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field

from hloc.ir import ELEMENT_TYPES
from hloc.kernels import indexing, loops
from hloc.kernels.group import Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import SERIAL, VECTOR, Expr, Var
from hloc.kernels.monoids import can_reassociate
from hloc.kernels.reductions.pieces import Cut
from hloc.kernels.reductions.reduction import Reduction, point_values, start
from hloc.kernels.rules.loops import accumulate
from hloc.machine import Machine

COLUMNS = 512               # the fewest of a block
ACCUMULATED_BYTES = 8192    # of a block: a quarter of the L1 cache

Finish = Callable[[Index, list[Expr]], None]


@dataclass
class Nest:
    """The loops of one reduction kernel. cuts: of reduced loops into pieces; values: what is reduced at a point, if
    not the elements of the Reduction's arrays. Inside of the loops, piece is the number of the piece, and dealt the
    piece of each loop that is cut."""

    reduction: Reduction
    outline: Outline
    machine: Machine
    cuts: tuple[Cut, ...] = ()
    values: Callable | None = None
    piece: Index = indexing.ZERO
    dealt: dict[int, Index] = field(default_factory=dict)

    def emit(self, finish: Finish, joined: tuple[Nest, Finish] | None = None) -> None:
        """finish(position, totals) uses the totals of one result, or of a piece of it. joined: the nest of what the
        last piece of a group of results does in the same kernel, and what uses its totals."""
        with self.opened(self.kept) as opened:
            self.group(opened, finish)
            if joined is not None:
                extents, (nest, store) = self.group_extents, joined
                with self.outline.builder.last(indexing.linearize(opened, extents), math.prod(extents), self.pieces):
                    nest.group(opened, store)

    def group(self, opened: Sequence[Index], finish: Finish) -> None:
        """What one iteration of the loops over results does."""
        counters = [indexing.ZERO] * len(self.reduction.extents)
        for n, counter in zip(self.kept, opened):
            counters[n] = counter
        self.results_of(counters, finish)

    def results_of(self, counters: list[Index], finish: Finish) -> None:
        """finish(position, totals) for each result of this iteration."""
        finish(self.reduction.kept(counters), self.row(counters))

    def joining(self, reduction: Reduction, values: Callable) -> Nest:
        """The nest of a kernel that reduces the partial results of all pieces."""
        return Nest(reduction, self.outline, self.machine, values=values)

    @property
    def kept(self) -> list[int]:
        """The loops over results."""
        return [n for n, gone in enumerate(self.reduction.reduced) if not gone]

    @property
    def reduced(self) -> list[tuple[int, int]]:
        """The reduced loops that may be cut, with their extents: one of lanes only if there is no other."""
        gone = [(n, self.extent(n)) for n, reduced in enumerate(self.reduction.reduced) if reduced]
        return gone[:-1] or gone if self.has_lanes and self.reduction.reduced[-1] else gone

    @property
    def group_extents(self) -> list[int]:
        """The loops over groups of results that are joined together."""
        return [self.extent(n) for n in self.kept]

    def extent(self, n: int) -> int:
        """The iterations of a loop."""
        return self.reduction.extents[n]

    @property
    def groups(self) -> int:
        """The number of results, or of blocks of adjacent ones, that are computed side by side without pieces."""
        r = self.reduction
        if not r.reduced[-1]:
            return r.results // min(self.columns, r.extents[-1])
        return r.results if self.has_lanes or self.machine.kind == "cpu" else -(-r.results // self.columns)

    @property
    def columns(self) -> int:
        """Adjacent results that are computed side by side: threads of a GPU; on a CPU a block, whose accumulators fit
        into the L1 cache, because longer pieces of rows are read faster from memory, but blocks for all cores."""
        if self.machine.kind == "gpu":
            return COLUMNS
        bytes_each = sum(ELEMENT_TYPES[t].bytes for _, _, t in self.reduction.accumulators)
        blocks = 2 * self.machine.cores if self.machine.cores > 1 else 1
        most = min(ACCUMULATED_BYTES // bytes_each, self.reduction.results // blocks)
        return max(COLUMNS, most // COLUMNS * COLUMNS)

    @property
    def has_lanes(self) -> bool:
        """Whether the innermost reduced loop is a VECTOR loop."""
        r = self.reduction
        return r.reduced[-1] and all(can_reassociate(r.monoid(i), t) for i, _, t in r.accumulators)

    @property
    def steps(self) -> int:
        """Elements that a thread reduces one after the other for one result; 0 if lanes share them, or if the lanes of
        a CPU's vectors have results of their own."""
        r = self.reduction
        is_chain = not self.has_lanes and (self.machine.kind == "gpu" or r.reduced[-1])
        return math.prod(r.extents) // r.results if is_chain else 0

    @property
    def pieces(self) -> int:
        """The number of pieces of each result."""
        return math.prod(c.count for c in self.cuts)

    def read(self, counters: list[Index]) -> list[list[Expr]]:
        """What each reduce takes in at one point."""
        return self.values(counters) if self.values else point_values(self.reduction, self.outline, counters)

    @contextmanager
    def opened(self, kept: list[int]) -> Iterator[list[Index]]:
        """The loops over results: one PARALLEL loop, also over pieces, on a CPU over blocks of results, which go
        together by schedules of row nests. Gives the counters of the kept loops. Where the innermost loop is kept,
        blocks are of adjacent results: columns."""
        r, b = self.reduction, self.outline.builder
        extents = [r.extents[n] for n in kept]
        columns = self.machine.kind == "cpu" and not r.reduced[-1]
        if not self.cuts and not columns:
            size = math.prod(n for n, gone in zip(r.extents, r.reduced) if gone)
            bytes = size * max(ELEMENT_TYPES[t].bytes for _, _, t in r.accumulators)
            with loops.rows(b, extents, bytes, self.machine) as rows:
                yield list(rows)
            return
        *outer, last = extents or [1]
        width = min(self.columns, last) if columns else 1
        with self.opened_pieces(outer, -(-last // width)) as counters, \
                loops.block_loop(b, last, width, counters[-1], SERIAL) as column:
            yield [*counters[:-1], column][:len(kept)]

    @contextmanager
    def opened_pieces(self, outer: list[int], last: int) -> Iterator[list[Index]]:
        """A PARALLEL loop over the outer ones, the pieces, and the last one, of which adjacent results are."""
        counts = [c.count for c in self.cuts]
        with loops.parallel(self.outline.builder, [*outer, *counts, last]) as opened:
            pieces = opened[len(outer):-1]
            self.dealt = {c.loop: piece for c, piece in zip(self.cuts, pieces)}
            self.piece = indexing.linearize(pieces, counts)
            yield [*opened[:len(outer)], opened[-1]]

    def row(self, counters: list[Index]) -> list[Expr]:
        """All reduced loops for one result: the totals."""
        gone, vector = [n for n, reduced in enumerate(self.reduction.reduced) if reduced], self.has_lanes
        accumulators = self.start(vector)
        with ExitStack() as stack:
            for n in gone:
                kind = VECTOR if vector and n == gone[-1] else SERIAL
                counters[n] = stack.enter_context(self.reduced_loop(n, kind))
            self.take(accumulators, self.read(counters))
        return list(accumulators)

    def reduced_loop(self, n: int, kind: str) -> AbstractContextManager[Index]:
        """A reduced loop, or the part of it that is in this piece."""
        cut = next((c for c in self.cuts if c.loop == n), None)
        if cut is None:
            return self.outline.builder.loop(self.extent(n), kind)
        return loops.block_loop(self.outline.builder, self.extent(n), cut.length, self.dealt[n], kind)

    def start(self, vector: bool) -> list[Var]:
        """A set of new accumulators."""
        r, b = self.reduction, self.outline.builder
        return [b.mutable(t, start(r, self.outline, i, k), (r.monoid(i) or "") if vector else "")
                for i, k, t in r.accumulators]

    def take(self, accumulators: list[Var], elements: list[list[Expr]]) -> None:
        remaining = list(accumulators)
        for reduce, values in zip(self.reduction.reduces, elements):
            own, remaining = remaining[:len(values)], remaining[len(values):]
            accumulate(self.outline.elements, own, values, reduce)
