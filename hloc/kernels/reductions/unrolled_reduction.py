"""Reductions with a very short innermost dimension, such as the coordinates of points: it is unrolled, and vectors run
along the dimension before it.

In: a Reduction whose last loop has 2 to 4 iterations, and a function that uses the totals of a result. Out: statements
in the Outline's builder. Values that do not depend on the last dimension are computed once for all of it.

    r[i] = sum over k < 3 of x[i, k]          for i (VECTOR): r[i] = x[i, 0] + x[i, 1] + x[i, 2]
    r[k] = sum over i of x[i, k]              for i (VECTOR): s0 += x[i, 0]; s1 += x[i, 1]; s2 += x[i, 2]
    r[j, k] = sum over i of x[i, j, k]        for i: for j (VECTOR): s0[j] += x[i, j, 0]; s1[j] += ...; s2[j] += ...
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from hloc.kernels import indexing, loops
from hloc.kernels.indexing import Index
from hloc.kernels.ir import SERIAL, VECTOR, Expr, Var
from hloc.kernels.monoids import can_reassociate
from hloc.kernels.reductions.nest import Nest
from hloc.kernels.reductions.reduction import Reduction
from hloc.machine import Machine

SHORTEST_VECTOR = 16        # minimum iterations of the loop before the last one,
SHORTEST_LANES = 4          # if each of them is a result: the sums are independent
MOST_OPERATIONS = 64        # per element of the last loop: more would not stay in registers


def can_be_unrolled(reduction: Reduction, machine: Machine) -> bool:
    """Whether the loops below suit a reduction: threads of a GPU have no vectors to fill."""
    extents = reduction.extents
    shortest = SHORTEST_VECTOR if any(reduction.reduced[:-1]) else SHORTEST_LANES
    return (machine.kind == "cpu" and len(extents) > 1 and extents[-1] in loops.SIDE_BY_SIDE
            and extents[-2] >= shortest and reduction.operations <= MOST_OPERATIONS
            and not reduction.has_loops)


class UnrolledNest(Nest):
    """The loops of a reduction kernel, the last one unrolled."""

    def emit(self, finish: Callable[[list[Index], list[Expr]], None]) -> None:
        self.use_point_values()
        self.outline.share_broadcasts()
        gone = [n for n, reduced in enumerate(self.reduction.reduced[:-1]) if reduced]
        if not gone:
            self.lanes(finish)
        elif self.reduction.reduced[-2]:
            self.rows(finish)
        else:
            self.columns(finish)

    @property
    def last(self) -> list[Index]:
        """The counters of the last loop."""
        return [indexing.constant(k) for k in range(self.reduction.extents[-1])]

    @property
    def results(self) -> list[Index]:
        """The counters of the last loop if it is kept."""
        return [indexing.ZERO] if self.reduction.reduced[-1] else self.last

    def each(self, counters: list[Index], sets: list, take: Callable) -> None:
        """take(set, elements) for every iteration of the last loop, with its set of accumulators."""
        for k, elements in enumerate(self.read(*([*counters[:-1], k] for k in self.last))):
            take(sets[k % len(sets)], elements)

    def finish_each(self, counters: list[Index], totals: Sequence[Sequence[Expr]], finish: Callable) -> None:
        for counters[-1], total in zip(self.results, totals):
            finish(counters, total)

    def lanes(self, finish: Callable) -> None:
        """Only the last loop is reduced: one result per lane."""
        r, b = self.reduction, self.outline.builder
        with self.blocks(len(r.extents) - 2) as (counters, width, block):
            with loops.block_loop(b, r.extents[-2], width, block) as counters[-2]:
                accumulators = self.start(False)
                self.each(counters, [accumulators], self.take)
                finish(counters, accumulators)

    def rows(self, finish: Callable) -> None:
        """The loop before the last is reduced: separate accumulators for each iteration of the last."""
        r, b = self.reduction, self.outline.builder
        kept = [n for n, gone in enumerate(r.reduced[:-1]) if not gone]
        gone = [n for n, reduced in enumerate(r.reduced[:-1]) if reduced]
        vector = all(can_reassociate(r.monoid(i), t) for i, _, t in r.accumulators)
        with loops.parallel(b, [r.extents[n] for n in kept] + [self.chunks]) as opened:
            counters = self.counters(kept, opened)
            self.piece = self.part = opened[-1]
            sets: list[list[Var]] = [self.start(vector) for _ in self.results]
            with ExitStack() as stack:
                for n in gone:
                    kind = VECTOR if vector and n == gone[-1] else SERIAL
                    counters[n] = stack.enter_context(self.reduced_loop(n, n == self.reduction.cut_loop, kind))
                self.each(counters, sets, self.take)
            self.finish_each(counters, sets, finish)

    def columns(self, finish: Callable) -> None:
        """An earlier loop is reduced: Local arrays accumulate a block of results along the loop before the last."""
        r, b = self.reduction, self.outline.builder
        gone = [n for n, reduced in enumerate(r.reduced[:-1]) if reduced]
        with self.blocks(len(r.extents) - 2) as (counters, width, block):
            sets = [[(b.local(t, width, "sum"), t) for _, _, t in r.accumulators] for _ in self.results]
            lane = len(r.extents) - 2

            def clear_all(j: Index) -> None:
                for own in sets:
                    self.clear(own, j)
            self.column_loop(counters, lane, width, block, clear_all)
            with ExitStack() as stack:
                for n in gone:
                    counters[n] = stack.enter_context(self.reduced_loop(n, n == self.reduction.cut_loop, SERIAL))
                self.column_loop(counters, lane, width, block, lambda j: self.each(
                    counters, sets, lambda own, elements: self.gather(own, elements, j)))
            self.column_loop(counters, lane, width, block, lambda j: self.finish_each(
                counters, [[b.let(self.at(name, t, j)) for name, t in own] for own in sets], finish))
