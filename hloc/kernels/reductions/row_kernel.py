"""The loops of a row group (rows.py): a PARALLEL loop over rows that contains a VECTOR loop over the columns per stage.

RowGroup: which instructions are reduces, and the number of reduces that each member depends on. RowKernel: one emission
of the kernel into an Outline's builder; transposed_rows.py and batched_rows.py have variants.
"""
from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

from hloc.analysis.cost import operations
from hloc.errors import UnsupportedError
from hloc.ir import Instruction, Shape
from hloc.kernels import indexing, loops, scalars
from hloc.kernels.elements import Indices
from hloc.kernels.group import Group, Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import SERIAL, VECTOR, Expr, Load, Var
from hloc.kernels.monoids import can_reassociate
from hloc.kernels.reductions.reduction import Reduction, finished, start
from hloc.kernels.rules.loops import accumulate


@dataclass
class RowGroup:
    """A kCustom group in terms of rows x columns. levels: the longest chain of reduces that each member depends on."""

    group: Group
    reduces: list[Instruction]
    rows: int
    columns: int
    levels: dict[Instruction, int]
    row_extents: list[int] = field(default_factory=list)
    column_extents: list[int] = field(default_factory=list)

    @property
    def stages(self) -> int:
        return 1 + max(self.levels[r] for r in self.reduces)

    def is_full(self, instruction: Instruction) -> bool:
        return instruction.shape.is_array and instruction.shape.num_elements == self.rows * self.columns

    def full_roots(self, stage: int) -> list[tuple[int, Instruction]]:
        return [(leaf, r) for leaf, r in enumerate(self.group.roots)
                if self.is_full(r) and self.columns > 1 and self.levels.get(r, 0) == stage]

    def row_roots(self) -> list[tuple[int, Instruction]]:
        return [(leaf, r) for leaf, r in enumerate(self.group.roots) if not (self.is_full(r) and self.columns > 1)]

    def spread_after(self, stage: int) -> list[Instruction]:
        """The values computed per row of the reduces so far, and read by members that are not computed per row."""
        return [m for m in self.group.members if self.levels[m] == stage + 1 and m.shape.is_array
                and m.shape.num_elements == self.rows and m.opcode != "reduce" and operations(m) >= 1
                and self._is_spread(m)]

    def _is_spread(self, node: Instruction) -> bool:
        readers = [m for m in self.group.members if node in m.operands and m.shape.is_array]
        return any(m.shape.num_elements != self.rows or operations(m) < 1 for m in readers)


class Work(NamedTuple):
    """The work of a stage: reduces, each a Reduction; results of full size, with their leaves; values to keep."""

    parts: list[Reduction]
    roots: list[tuple[int, Instruction]]
    kept: list[Instruction]


@dataclass
class RowKernel:
    """One emission of the kernel. kept: values kept in Local arrays, with the stage that computes them.

    traces, places: the values that each stage read, and the current position of its loops."""

    rows: RowGroup
    outline: Outline
    kept: dict[Instruction, int] = field(default_factory=dict)
    traces: list[dict[Instruction, set[Indices]]] = field(default_factory=list)
    places: list[Index | None] = field(default_factory=list)

    def emit(self) -> None:
        builder, rows = self.outline.builder, self.rows
        with loops.parallel(builder, rows.row_extents) as counters:
            self.row = indexing.linearize(counters, rows.row_extents)
            self.locals = {node: builder.local(type_of(node), rows.columns) for node in self.kept}
            for stage in range(rows.stages + 1):
                self.outline.elements.trace = {}
                self.places.append(None)
                self.stage(stage)
                self.traces.append(self.outline.elements.trace)
            self.store_rows()

    def store_rows(self) -> None:
        """The results that have one element for each row."""
        values = [(leaf, self.outline.elements.value(r, indexing.delinearize(self.row, r.shape.dimensions)))
                  for leaf, r in self.rows.row_roots()]
        for leaf, value in values:
            self.outline.store(leaf, self.row, value)

    def stage(self, stage: int) -> None:
        """One loop over the columns, then the reduces that it finishes."""
        work = self.work(stage)
        for part, totals in zip(work.parts, self.along_row(work)):
            self.bind(part, finished(part, self.outline, list(totals)))
        for node in work.kept:
            self.outline.elements.sources[node] = self.local_reader(node)

    def work(self, stage: int) -> Work:
        rows = self.rows
        parts = [Reduction(rows.group, [r], r.operands[0].shape.dimensions) for r in rows.reduces
                 if rows.levels[r] == stage]
        return Work(parts, rows.full_roots(stage), [node for node, when in self.kept.items() if when == stage])

    def along_row(self, work: Work) -> list[list[Var]]:
        """The loop over the columns of one row, then the accumulators of each reduce."""
        rows, builder = self.rows, self.outline.builder
        if not any(work):
            return []
        vector = all(can_reassociate(p.monoid(p.reduces[0]), t) for p in work.parts for _, _, t in p.accumulators)
        accumulators = [[builder.mutable(t, start(p, self.outline, r, k), (p.monoid(r) or "") if vector else "")
                         for r, k, t in p.accumulators] for p in work.parts]
        with ExitStack() as stack:
            counters = [stack.enter_context(builder.loop(n)) for n in rows.column_extents[:-1]]
            last = rows.column_extents[-1]
            counters.append(stack.enter_context(builder.loop(last, VECTOR if vector else SERIAL)))
            self.point(indexing.linearize(counters, rows.column_extents), work, accumulators)
        return accumulators

    def point(self, column: Index, work: Work, accumulators: list[list[Var]]) -> None:
        """The work of one stage for one element."""
        self.column = column
        position = indexing.add(indexing.scale(self.row, self.rows.columns), column)
        self.places[-1] = position
        value = self.outline.elements.value
        for part, own in zip(work.parts, accumulators):
            arrays = part.arrays(part.reduces[0])
            values = [value(a, indexing.delinearize(position, a.shape.dimensions)) for a in arrays]
            accumulate(self.outline.elements, own, values, part.reduces[0])
        stores = [(leaf, value(r, indexing.delinearize(position, r.shape.dimensions))) for leaf, r in work.roots]
        if len(stores) > 1:                         # all loads before all stores: results may share operands' memory
            stores = [(leaf, self.outline.builder.let(v)) for leaf, v in stores]
        for node in work.kept:
            element = value(node, indexing.delinearize(position, node.shape.dimensions))
            self.outline.builder.store(self.locals[node], self.place, element)
        for leaf, element in stores:
            self.outline.store(leaf, position, element)

    @property
    def place(self) -> Index:
        """The position of the current element in a Local array."""
        return self.column

    def bind(self, part: Reduction, totals: list[Expr]) -> None:
        """Make a finished reduce readable for later stages."""
        reduce = part.reduces[0]
        totals = [self.outline.builder.let(t) for t in totals]
        if not reduce.shape.is_tuple:
            self.outline.elements.sources[reduce] = self.row_reader(reduce.shape, totals[0], reduce)
        for member in self.rows.group.members:
            if member.opcode == "get-tuple-element" and member.operands[0] is reduce:
                total = totals[member.get("index")]
                self.outline.elements.sources[member] = self.row_reader(member.shape, total, member)

    def row_reader(self, shape: Shape, value: Expr, where: Instruction) -> Callable[[Indices], Expr]:
        def read(index: Indices) -> Expr:
            if indexing.linearize(index, shape.dimensions) != self.row:
                raise UnsupportedError("a reduce of another row inside a row fusion", where.span)
            return value
        return read

    def local_reader(self, node: Instruction) -> Callable[[Indices], Expr]:
        """Reads the Local array; only at the current element, as the trial run has shown."""
        name = self.locals[node]

        def read(index: Indices) -> Expr:
            return Load(name, self.outline.builder.position(self.place), type_of(node))
        return read


def type_of(node: Instruction) -> str:
    """The type in which a value is computed and kept."""
    return scalars.computation_type(node.shape.element_type)
