"""Row groups of short rows, such as a layer norm of 32 features: several rows go through each stage together.

In: a RowGroup of short rows, and its trial run. Out: statements in an Outline's builder, or a refusal
(`can_be_batched`). A sum of lanes has the latency of a chain of shuffles, and the values per row that of a division and
a root; row by row, these latencies add up. So all rows of a block are summed first, and the values per row are computed
for all of them in vectors:

    for blocks of 16 rows:  for i: { t = 0; for k (VECTOR): t += x[i, k];  sum[i] = t }
                            for i (VECTOR): mean[i] = sum[i] / columns
                            for i: { t = 0; for k (VECTOR): t += (x[i, k] - mean[i])^2;  sum[i] = t }
                            for i (VECTOR): scale[i] = rsqrt(sum[i] / columns)
                            for i: for k (VECTOR): out[i, k] = (x[i, k] - mean[i]) * scale[i]
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hloc.ir import Instruction
from hloc.kernels import indexing, loops
from hloc.kernels.elements import Indices
from hloc.kernels.indexing import Index
from hloc.kernels.ir import SERIAL, VECTOR, Expr, Load, Store
from hloc.kernels.reductions.reduction import finished
from hloc.kernels.reductions.row_kernel import RowGroup, RowKernel, type_of
from hloc.machine import Machine

FEWEST, MOST = 8, 16            # rows of a block: at most a vector of f32
LONGEST = 256                   # elements of a row


def can_be_batched(rows: RowGroup, trial: RowKernel, machine: Machine) -> bool:
    """Whether the loops below suit a group."""
    return (machine.kind == "cpu" and 1 < rows.columns <= LONGEST and rows.rows > 1
            and len(rows.row_extents) == len(rows.column_extents) == 1)


def rows_of_block(rows: int) -> int:
    """The rows of a block: all of them, or a number without a remainder."""
    return rows if rows <= MOST else next((n for n in range(MOST, FEWEST - 1, -1) if rows % n == 0), MOST)


class BatchedRows(RowKernel):
    """One emission of the kernel. batch: rows of a block; `row` and `column` as in a RowKernel."""

    def emit(self) -> None:
        builder, rows = self.outline.builder, self.rows
        self.batch = rows_of_block(rows.rows)
        with loops.parallel(builder, [-(-rows.rows // self.batch)]) as (self.block,):
            self.locals = {node: builder.local(type_of(node), rows.columns * self.batch) for node in self.kept}
            for stage in range(rows.stages + 1):
                self.places.append(None)
                self.stage(stage)
            if rows.row_roots():
                with self.lanes():
                    self.store_rows()

    @contextmanager
    def lanes(self, kind: str = VECTOR) -> Iterator[None]:
        """The loop over the rows of a block; sets self.row."""
        with loops.block_loop(self.outline.builder, self.rows.rows, self.batch, self.block, kind) as self.row:
            yield

    @property
    def inside(self) -> Index:
        """The number of the row within its block."""
        return indexing.subtract(self.row, indexing.scale(self.block, self.batch))

    @property
    def place(self) -> Index:
        return indexing.add(indexing.scale(self.inside, self.rows.columns), self.column)

    def stage(self, stage: int) -> None:
        """Process every row of the block along its columns, then compute the results of the rows' reduces."""
        work, builder = self.work(stage), self.outline.builder
        if not any(work):
            return
        totals = [[builder.local(t, self.batch, "sum") for _, _, t in part.accumulators] for part in work.parts]
        names = [name for own in totals for name in own]
        with builder.pinned([*names, *(self.locals[node] for node in work.kept)]), self.lanes(SERIAL):
            for part, own, values in zip(work.parts, totals, self.along_row(work)):
                for name, value in zip(own, finished(part, self.outline, list(values))):
                    builder.append(Store(name, builder.position(self.inside), value))
        for node in work.kept:
            self.outline.elements.sources[node] = self.local_reader(node)
        for part, own in zip(work.parts, totals):
            self.bind_totals(part.reduces[0], [(name, t) for name, (_, _, t) in zip(own, part.accumulators)])
        if names:
            self.along_rows(stage)

    def total(self, name: str, type: str) -> Expr:
        return Load(name, self.outline.builder.position(self.inside), type)

    def bind_totals(self, reduce: Instruction, totals: list[tuple[str, str]]) -> None:
        """Make a finished reduce readable for later stages; only for the current row, as the trial run has shown."""
        sources = self.outline.elements.sources
        if not reduce.shape.is_tuple:
            sources[reduce] = self.row_total(*totals[0])
        for member in self.rows.group.members:
            if member.opcode == "get-tuple-element" and member.operands[0] is reduce:
                sources[member] = self.row_total(*totals[member.get("index")])

    def row_total(self, name: str, type: str) -> Callable[[Indices], Expr]:
        return lambda index: self.total(name, type)

    def along_rows(self, stage: int) -> None:
        """The values per row of the reduces so far that are broadcast over the columns."""
        rows, builder = self.rows, self.outline.builder
        nodes = rows.spread_after(stage)
        if not nodes:
            return
        names = [builder.local(type_of(node), self.batch, "each") for node in nodes]
        with builder.pinned(names), self.lanes():
            values = [self.outline.elements.value(n, indexing.delinearize(self.row, n.shape.dimensions)) for n in nodes]
            for name, value in zip(names, values):
                builder.append(Store(name, builder.position(self.inside), value))
        for node, name in zip(nodes, names):
            self.outline.elements.sources[node] = self.row_total(name, type_of(node))
