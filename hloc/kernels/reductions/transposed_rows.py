"""Row groups over rows of a few elements, such as a softmax of ten classes: rows are transposed, so that vectors run
across them.

In: a RowGroup of many short rows, and its trial run. Out: statements in an Outline's builder, or a refusal
(`can_be_transposed`). A block of rows is transposed into Local arrays (by shuffles, see transpose_calls.py of the CPU);
each stage loops over the columns, with a row in each lane; results are transposed back.

    for blocks of 128 rows:  for i: x[0, i] = in[i, 0]; x[1, i] = in[i, 1]; ...
                             for k: for i (VECTOR): m[i] = max(m[i], x[k, i])
                             for k: for i (VECTOR): e[k, i] = exp(x[k, i] - m[i]); s[i] += e[k, i]
                             for k: for i (VECTOR): y[k, i] = e[k, i] / s[i]
                             for i: out[i, 0] = y[0, i]; out[i, 1] = y[1, i]; ...
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from hloc.analysis.cost import operations
from hloc.ir import ELEMENT_TYPES, Instruction
from hloc.kernels import indexing, loops, scalars
from hloc.kernels.elements import Indices
from hloc.kernels.group import Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import SERIAL, VECTOR, Expr, Load
from hloc.kernels.reductions.reduction import Reduction, finished, join, start
from hloc.kernels.reductions.row_kernel import RowGroup, type_of
from hloc.kernels.reductions.transposed_reduction import WIDENED_BY_VECTORS
from hloc.machine import Machine

SHORTEST = 2                    # elements of a row
LONGEST = 15                    # of rows that vectors reduce as stored,
LONGEST_OF_MUCH = 31            # that are widened, or are arguments of functions,
LONGEST_OF_SMALL = 64           # integers of 8 or 16 bits that become floats
LONGEST_OF_F64 = {LONGEST: 3, LONGEST_OF_MUCH: 8}
FUNCTION = 10                   # operations
WIDTH = 128                     # rows of a block
FEWEST = 16                     # minimum number of rows


def can_be_transposed(rows: RowGroup, machine: Machine) -> bool:
    """Whether the loops below suit a group whose parameters of full size are each read in place."""
    monoids = [Reduction(rows.group, [r], ()).monoid(r) if r.shape.is_array else None for r in rows.reduces]
    return (machine.kind == "cpu" and SHORTEST <= rows.columns <= _longest(rows) and rows.rows >= FEWEST
            and len(rows.column_extents) == 1 and all(monoids))


def _longest(rows: RowGroup) -> int:
    """The longest rows that are worth transposing, by the work per element."""
    full = [m for m in rows.group.members if rows.is_full(m)]
    types = {o.shape.element_type for m in (*full, *rows.reduces) for o in m.operands if rows.is_full(o)}
    facts = [ELEMENT_TYPES[type] for type in types]
    floats = any(t.kind == "float" for t in facts)
    if floats and "f64" not in types and any(t.bits in (8, 16) and t.kind in ("signed", "unsigned") for t in facts):
        return LONGEST_OF_SMALL
    much = any(operations(m) >= FUNCTION for m in full) or bool(types & set(WIDENED_BY_VECTORS))
    longest = LONGEST_OF_MUCH if much else LONGEST
    return LONGEST_OF_F64[longest] if "f64" in types else longest


@dataclass
class TransposedRows:
    """One emission of the kernel. kept: as in a RowKernel; read: parameters that are transposed."""

    rows: RowGroup
    outline: Outline
    kept: dict[Instruction, int]
    read: list[Instruction]

    def emit(self) -> None:
        b, rows = self.outline.builder, self.rows
        with loops.parallel(b, [-(-rows.rows // WIDTH)]) as (self.block,):
            for node in self.read:
                self.transpose(node)
            roots = [pair for stage in range(rows.stages + 1) for pair in rows.full_roots(stage)]
            results = {leaf: self.array(root.shape.element_type) for leaf, root in roots}
            for stage in range(rows.stages + 1):
                self.stage(stage, results)
            for leaf, root in roots:
                with self.lanes(SERIAL):
                    for k in range(rows.columns):
                        self.column = indexing.constant(k)
                        stored = Load(results[leaf], b.position(self.place), root.shape.element_type)
                        self.outline.store(leaf, self.position, scalars.widen(stored))
            if rows.row_roots():
                with self.lanes():
                    values = [(leaf, self.value(r, self.row)) for leaf, r in rows.row_roots()]
                    for leaf, value in values:
                        self.outline.store(leaf, self.row, value)

    def transpose(self, parameter: Instruction) -> None:
        """Transpose a parameter's rows, as stored, and read it from the copy from then on."""
        b, type = self.outline.builder, parameter.shape.element_type
        name = self.array(type)
        buffer = self.outline.operand_buffer(self.rows.group.parameters[parameter], parameter.shape)
        with self.lanes(SERIAL):
            for k in range(self.rows.columns):
                self.column = indexing.constant(k)
                b.store(name, self.place, b.load(buffer, type, self.position))
        self.outline.elements.sources[parameter] = self.reader(name, type)

    def array(self, type: str) -> str:
        return self.outline.builder.local(type, self.rows.columns * WIDTH, "transposed")

    @contextmanager
    def lanes(self, kind: str = VECTOR) -> Iterator[None]:
        """The loop over the rows of a block; sets self.row."""
        with loops.block_loop(self.outline.builder, self.rows.rows, WIDTH, self.block, kind) as self.row:
            yield

    @property
    def position(self) -> Index:
        return indexing.add(indexing.scale(self.row, self.rows.columns), self.column)

    @property
    def inside(self) -> Index:
        """The number of the row within its block."""
        return indexing.subtract(self.row, indexing.scale(self.block, WIDTH))

    @property
    def place(self) -> Index:
        """The position of the current element in a transposed array."""
        return indexing.add(indexing.scale(self.column, WIDTH), self.inside)

    def value(self, node: Instruction, position: Index) -> Expr:
        return self.outline.elements.value(node, indexing.delinearize(position, node.shape.dimensions))

    def reader(self, name: str, type: str) -> Callable[[Indices], Expr]:
        """Reads a transposed array; only at the current element, as the trial run has shown."""
        def read(index: Indices) -> Expr:
            return scalars.widen(Load(name, self.outline.builder.position(self.place), type))
        return read

    def stage(self, stage: int, results: dict[int, str]) -> None:
        """The columns one after the other, then the reduces that they finish."""
        rows, b = self.rows, self.outline.builder
        parts = [Reduction(rows.group, [r], r.operands[0].shape.dimensions) for r in rows.reduces
                 if rows.levels[r] == stage]
        roots = rows.full_roots(stage)
        kept = {node: self.array(scalars.computation_type(node.shape.element_type))
                for node, when in self.kept.items() if when == stage}
        if not parts and not roots and not kept:
            return
        totals = [b.local(p.accumulators[0][2], WIDTH, "sum") for p in parts]
        if parts:
            with self.lanes():
                for part, total in zip(parts, totals):
                    b.store(total, self.inside, start(part, self.outline, part.reduces[0], 0))
        arrays = [*kept.values(), *(results[leaf] for leaf, _ in roots)]
        with b.loop(rows.columns) as self.column, b.pinned([*totals, *arrays]), self.lanes():
            self.point(parts, totals, [*((n, name, scalars.computation_type(n.shape.element_type))
                                         for n, name in kept.items()),
                                       *((r, results[leaf], r.shape.element_type) for leaf, r in roots)])
        for node, name in kept.items():
            self.outline.elements.sources[node] = self.reader(name, scalars.computation_type(node.shape.element_type))
        for part, total in zip(parts, totals):
            self.finish(part, total)
        if parts:
            self.keep_spread(stage)

    def point(self, parts: list[Reduction], totals: list[str], stores: list[tuple[Instruction, str, str]]) -> None:
        """The work of one stage for one element of each row. stores: (value, array, its type)."""
        b = self.outline.builder
        for part, total in zip(parts, totals):
            reduce, type = part.reduces[0], part.accumulators[0][2]
            element = self.value(part.arrays(reduce)[0], self.position)
            old = b.let(Load(total, b.position(self.inside), type))
            b.store(total, self.inside, join(part, self.outline, reduce, [old], [element])[0])
        for node, name, type in stores:
            b.store(name, self.place, scalars.narrow(self.value(node, self.position), type))

    def finish(self, part: Reduction, total: str) -> None:
        """Make a finished reduce readable for later stages."""
        b, (reduce, _, type) = self.outline.builder, part.accumulators[0]
        with b.pinned([total]), self.lanes():
            value = b.let(Load(total, b.position(self.inside), type))
            b.store(total, self.inside, finished(part, self.outline, [value])[0])
        self.outline.elements.sources[reduce] = lambda _: Load(total, b.position(self.inside), type)

    def keep_spread(self, stage: int) -> None:
        """Compute once the values per row of the reduces so far that are broadcast over the columns."""
        b, nodes = self.outline.builder, self.rows.spread_after(stage)
        if not nodes:
            return
        kept = {node: (b.local(type, WIDTH, "each"), type) for node, type in ((n, type_of(n)) for n in nodes)}
        with self.lanes(), b.pinned([name for name, _ in kept.values()]):
            for node, (name, _) in kept.items():
                b.store(name, self.inside, self.value(node, self.row))
        for node, (name, type) in kept.items():
            self.outline.elements.sources[node] = partial(self._spread_value, name, type)

    def _spread_value(self, name: str, type: str, index: Indices) -> Expr:
        return Load(name, self.outline.builder.position(self.inside), type)
