"""The loops of a row group (rows.py): a PARALLEL loop over rows that contains a VECTOR loop over the columns per stage.

RowGroup: which instructions are reduces, and the number of reduces that each member depends on. RowKernel: one emission
of the kernel into an Outline's builder.
"""
from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from hloc.errors import UnsupportedError
from hloc.ir import ELEMENT_TYPES, Instruction, Shape
from hloc.kernels import indexing, loops, scalars
from hloc.kernels.elements import Indices
from hloc.kernels.group import Group, Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import SERIAL, VECTOR, Expr, Load, Var
from hloc.kernels.monoids import can_reassociate
from hloc.kernels.reductions.reduction import Reduction, finished, start
from hloc.kernels.rules.loops import accumulate
from hloc.machine import Machine


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


@dataclass
class RowKernel:
    """One emission of the kernel. kept: values kept in Local arrays, with the stage that computes them.

    traces, places: the values that each stage read, and the current position of its loops."""

    rows: RowGroup
    outline: Outline
    machine: Machine
    kept: dict[Instruction, int] = field(default_factory=dict)
    traces: list[dict[Instruction, set[Indices]]] = field(default_factory=list)
    places: list[Index | None] = field(default_factory=list)

    def emit(self) -> None:
        builder, rows = self.outline.builder, self.rows
        size = max(ELEMENT_TYPES[type_of(r.operands[0])].bytes for r in rows.reduces)
        with loops.rows(builder, rows.row_extents, rows.columns * size, self.machine) as counters:
            self.row = indexing.linearize(counters, rows.row_extents)
            self.locals = {node: builder.local(type_of(node), rows.columns) for node in self.kept}
            for stage in range(rows.stages + 1):
                self.outline.elements.trace = {}
                self.places.append(None)
                self.stage(stage)
                self.traces.append(self.outline.elements.trace)
            values = [(leaf, self.outline.elements.value(r, indexing.delinearize(self.row, r.shape.dimensions)))
                      for leaf, r in rows.row_roots()]
            for leaf, value in values:
                self.outline.store(leaf, self.row, value)

    def stage(self, stage: int) -> None:
        """One loop over the columns, then the reduces that it finishes."""
        rows, builder = self.rows, self.outline.builder
        parts = [Reduction(rows.group, [r], r.operands[0].shape.dimensions) for r in rows.reduces
                 if rows.levels[r] == stage]
        roots, kept = rows.full_roots(stage), [node for node, when in self.kept.items() if when == stage]
        if not parts and not roots and not kept:
            return
        vector = all(can_reassociate(p.monoid(p.reduces[0]), t) for p in parts for _, _, t in p.accumulators)
        accumulators = [[builder.mutable(t, start(p, self.outline, r, k), (p.monoid(r) or "") if vector else "")
                         for r, k, t in p.accumulators] for p in parts]
        with ExitStack() as stack:
            counters = [stack.enter_context(builder.loop(n)) for n in rows.column_extents[:-1]]
            last = rows.column_extents[-1]
            counters.append(stack.enter_context(builder.loop(last, VECTOR if vector else SERIAL)))
            self.column = indexing.linearize(counters, rows.column_extents)
            self.point(parts, roots, kept, accumulators)
        for part, totals in zip(parts, accumulators):
            self.bind(part, finished(part, self.outline, list(totals)))
        for node in kept:
            self.outline.elements.sources[node] = self.local_reader(node)

    def point(self, parts: list[Reduction], roots: list[tuple[int, Instruction]], kept: list[Instruction],
              accumulators: list[list[Var]]) -> None:
        """The work of one stage for one element: reduces, results of full size with their leaves, values to keep."""
        position = indexing.add(indexing.scale(self.row, self.rows.columns), self.column)
        self.places[-1] = position
        value = self.outline.elements.value
        for part, own in zip(parts, accumulators):
            arrays = part.arrays(part.reduces[0])
            values = [value(a, indexing.delinearize(position, a.shape.dimensions)) for a in arrays]
            accumulate(self.outline.elements, own, values, part.reduces[0])
        stores = [(leaf, value(r, indexing.delinearize(position, r.shape.dimensions))) for leaf, r in roots]
        if len(stores) > 1:                         # all loads before all stores: results may share operands' memory
            stores = [(leaf, self.outline.builder.let(v)) for leaf, v in stores]
        for node in kept:
            element = value(node, indexing.delinearize(position, node.shape.dimensions))
            self.outline.builder.store(self.locals[node], self.column, element)
        for leaf, element in stores:
            self.outline.store(leaf, position, element)

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
            return Load(name, self.outline.builder.position(self.column), type_of(node))
        return read


def type_of(node: Instruction) -> str:
    """The type in which a value is computed and kept."""
    return scalars.computation_type(node.shape.element_type)
