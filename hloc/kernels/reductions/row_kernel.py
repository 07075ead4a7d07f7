"""The loops of a row group (rows.py): a PARALLEL loop over rows that contains a VECTOR loop over the columns per stage.

RowGroup: which instructions are reduces, and the number of reduces that each member depends on. RowKernel: one emission
of the kernel into an Outline's builder.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from hloc.ir import ELEMENT_TYPES, Instruction
from hloc.kernels import indexing, loops, scalars
from hloc.kernels.elements import Indices
from hloc.kernels.group import Group, Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import Expr, Load
from hloc.kernels.reductions.nest import Nest
from hloc.kernels.reductions.reduction import Reduction, bind_sources, finished
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
        rows = self.rows
        reduces = [r for r in rows.reduces if rows.levels[r] == stage]
        roots, kept = rows.full_roots(stage), [node for node, when in self.kept.items() if when == stage]
        if not reduces and not roots and not kept:
            return
        part = Reduction(rows.group, reduces, (rows.rows, rows.columns), [rows.rows, *rows.column_extents],
                         [False] + [True] * len(rows.column_extents))
        nest = Nest(part, self.outline, self.machine, values=partial(self.point, part, roots, kept))
        sums = nest.row([self.row, *(indexing.ZERO for _ in rows.column_extents)])
        totals = [self.outline.builder.let(t) for t in finished(part, self.outline, sums)]
        bind_sources(part, self.outline, {(r, k): t for (r, k, _), t in zip(part.accumulators, totals)}, self.row)
        for node in kept:
            self.outline.elements.sources[node] = self.local_reader(node)

    def point(self, part: Reduction, roots: list[tuple[int, Instruction]], kept: list[Instruction],
              counters: list[Index]) -> list[list[Expr]]:
        """The work of one stage for one element: the elements that reduces accumulate; results of full size with their
        leaves and values to keep are stored."""
        position = indexing.linearize(counters, part.extents)
        self.places[-1], self.column = position, indexing.linearize(counters[1:], self.rows.column_extents)

        def value(node: Instruction) -> Expr:
            return self.outline.elements.value(node, indexing.delinearize(position, node.shape.dimensions))
        elements = [[value(a) for a in part.arrays(r)] for r in part.reduces]
        stores = [(leaf, value(r)) for leaf, r in roots]
        if len(stores) + len(elements) > 1:         # all loads before all stores: results may share operands' memory
            stores = [(leaf, self.outline.builder.let(v)) for leaf, v in stores]
            elements = [[self.outline.builder.let(v) for v in own] for own in elements] if stores else elements
        for node in kept:
            self.outline.builder.store(self.locals[node], self.column, value(node))
        for leaf, element in stores:
            self.outline.store(leaf, position, element)
        return elements

    def local_reader(self, node: Instruction) -> Callable[[Indices], Expr]:
        """Reads the Local array; only at the current element, as the trial run has shown."""
        name = self.locals[node]

        def read(index: Indices) -> Expr:
            return Load(name, self.outline.builder.position(self.column), type_of(node))
        return read


def type_of(node: Instruction) -> str:
    """The type in which a value is computed and kept."""
    return scalars.computation_type(node.shape.element_type)
