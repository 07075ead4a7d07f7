"""Reductions of rows of a few elements, such as the largest of ten classes: rows are turned, so that vectors go across
them.

In: a Reduction whose last loop alone is reduced, and short, by something that vectors of one row do slowly: a maximum,
or a pair as in argmax. Out: statements in the Outline's builder: a block of rows is copied element by element into a
Local array, columns side by side; then each vector has an element of as many rows.

    for blocks of 128 rows:  for i: t[0, i] = x[i, 0]; t[1, i] = x[i, 1]; ...
                             for i (VECTOR): r[i] = max(max(t[0, i], t[1, i]), ...)
"""
from __future__ import annotations

from collections.abc import Callable

from hloc.ir import Instruction
from hloc.kernels import indexing, loops
from hloc.kernels.indexing import Index
from hloc.kernels.ir import SERIAL, Expr
from hloc.kernels.reduce_nest import MOST_OPERATIONS, Nest
from hloc.kernels.reduction import Reduction, side_roots
from hloc.kernels.scalars import computation_type
from hloc.machine import Machine

SHORTEST, LONGEST = 5, 16   # elements of a row: shorter ones are done by reduce_short.py
FEWEST_ROWS = 64
QUICK = ("add", "multiply")  # what vectors along a row do well: lanes are joined by instructions for that


def is_turned(reduction: Reduction, machine: Machine) -> bool:
    """Whether the loops below suit a reduction."""
    extents, gone = reduction.extents, reduction.reduced
    return (machine.kind == "cpu" and len(extents) > 1 and gone[-1] and not any(gone[:-1])
            and SHORTEST <= extents[-1] <= LONGEST and extents[-2] >= FEWEST_ROWS and not reduction.has_loops
            and reduction.operations <= MOST_OPERATIONS and not side_roots(reduction)
            and any(reduction.monoid(r) not in QUICK for r in reduction.reduces))


class TurnedNest(Nest):
    """The loops of a reduction kernel over turned rows."""

    MOST_COLUMNS = 128

    def emit(self, finish: Callable[[list[Index], list[Expr]], None]) -> None:
        r, b = self.reduction, self.outline.builder
        self.outline.share_broadcasts()
        lane, length = len(r.extents) - 2, r.extents[-1]
        with self.blocks(lane) as (counters, width, block):
            self.names = {a: b.local(computation_type(a.shape.element_type), width * length, "turned")
                          for reduce in r.reduces for a in r.arrays(reduce) if a.opcode != "iota"}
            with loops.block_loop(b, r.extents[lane], width, block, SERIAL) as counters[lane]:
                row = indexing.subtract(counters[lane], indexing.scale(block, width))
                for k in range(length):
                    counters[-1] = indexing.constant(k)
                    for array, name in self.names.items():
                        b.store(name, indexing.shift(row, k * width), self.element(array, counters))
            totals = [(b.local(t, width, "sum"), t) for _, _, t in r.accumulators]
            self.column_loop(counters, lane, width, block, lambda j: self.clear(totals, j))
            with b.loop(length, SERIAL) as counters[-1]:
                self.column_loop(counters, lane, width, block, lambda j: self.gather(
                    totals, self.turned(counters, width, j), j))
            counters[-1] = indexing.ZERO
            self.column_loop(counters, lane, width, block, lambda j: finish(
                counters, [b.let(self.at(name, t, j)) for name, t in totals]))

    def element(self, array: Instruction, counters: list[Index]) -> Expr:
        return self.outline.elements.value(array, self.reduction.full_index(counters))

    def turned(self, counters: list[Index], width: int, row: Index) -> list[list[Expr]]:
        """What each reduce takes in of one column: from the Local arrays, or computed where that needs no memory."""
        place = indexing.add(indexing.scale(counters[-1], width), row)

        def read(array: Instruction) -> Expr:
            if array not in self.names:
                return self.element(array, counters)
            return self.outline.builder.let(self.at(self.names[array], computation_type(array.shape.element_type),
                                                    place))
        return [[read(a) for a in self.reduction.arrays(reduce)] for reduce in self.reduction.reduces]
