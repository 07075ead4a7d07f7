"""Reductions over the last dimension of a combination of two arrays, such as the squared distances between all points
of one and all points of another: vectors run along the points of the second, whose coordinates are transposed.

In: a Reduction with two kept loops before its last one, over values computed from arrays without the first of them and
arrays without the second. Out: statements in the Outline's builder. A block of the second array is transposed into a
Local array, and combined with a block of points of the first.

    d[p, q] = sum over k of (x[p, k] - y[q, k])^2

    for blocks of 32 p, of 128 q:  for q: for k: t[k, q] = y[q, k]
                                   for p: for k: for q (VECTOR): s[q] += (x[p, k] - t[k, q])^2
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack

from hloc.analysis.fusible import is_elementwise
from hloc.ir import Instruction
from hloc.kernels import indexing, loops
from hloc.kernels.builder import Builder
from hloc.kernels.elements import Indices, always
from hloc.kernels.group import Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import SERIAL, Expr
from hloc.kernels.reductions.nest import Nest
from hloc.kernels.reductions.reduction import Reduction, point_values, side_roots
from hloc.kernels.scalars import computation_type
from hloc.machine import Machine

LONGEST = 128                   # elements of a row
FEWEST_ROWS, FEWEST_LANES, NARROWEST = 16, 16, 32
ROWS, LANES = 32, 128           # of a block: a table is read once per row
VECTOR_LANES = 16               # of the widest vectors
TABLES = 4096                   # elements of all tables together: half of the L1 cache
MOST_WRITTEN_OUT = 8            # columns that a vector accumulates between a load and a store of its sums
PLAIN = frozenset(["broadcast", "reshape", "bitcast", "transpose", "slice", "iota", "constant"])


def is_pairwise(reduction: Reduction, machine: Machine) -> bool:
    """Whether the loops below suit a reduction."""
    extents, gone = reduction.extents, reduction.reduced
    return (machine.kind == "cpu" and len(extents) > 2 and gone[-1] and not any(gone[:-1])
            and extents[-1] <= LONGEST and extents[-2] >= FEWEST_LANES and extents[-3] >= FEWEST_ROWS
            and not reduction.has_loops and not side_roots(reduction) and bool(arrays_to_transpose(reduction)))


def arrays_to_transpose(reduction: Reduction) -> list[Instruction]:
    """The arrays stored in tables: of the arrays of the input's size that do not depend on the first of the two loops,
    those nearest to the reduction. None if a value in memory depends on both."""
    builder = Builder()
    outline = Outline(reduction.group, builder)
    with ExitStack() as stack:
        counters = [stack.enter_context(builder.loop(n)) for n in reduction.extents]
        point_values(reduction, outline, counters)
    row, lane = ("".join(indexing.variables(c)) for c in counters[-3:-1])
    trace, known = outline.elements.trace, reduction.group.parameters
    if not all(n in known or n.opcode in PLAIN or is_elementwise(n) for n in trace):
        return []
    if any({row, lane} <= _counters(index) for n in trace if n in known for index in trace[n]):
        return []
    depends = _dependence(reduction, trace)
    full = {reduction.full_index(counters)}
    found: list[Instruction] = []
    waiting = [a for r in reduction.reduces for a in reduction.arrays(r)]
    seen: set[Instruction] = set()
    while waiting:                  # from the reduction down to instructions that do not depend on the first loop
        node = waiting.pop()
        if node in seen or lane not in depends.get(node, ()):
            continue
        seen.add(node)
        if row not in depends[node] and trace[node] == full:
            found.append(node)
        elif node in known:
            return []
        else:
            waiting.extend(node.operands)
    return sorted(found, key=lambda n: n.name)


def _dependence(reduction: Reduction, trace: dict[Instruction, set[Indices]]) -> dict[Instruction, set[str]]:
    """The counters that the element of each instruction depends on. A parameter may be read at several positions, as in
    distances between the points of one array: then its users are checked, not the parameter."""
    found: dict[Instruction, set[str]] = {}
    several = {p for p in reduction.group.parameters if len(trace.get(p, ())) > 1}
    for node in [*reduction.group.parameters, *reduction.group.members]:
        asked = trace.get(node, ())
        if node.opcode == "iota":
            found[node] = {name for index in asked for name in indexing.variables(index[node.get("iota_dimension")])}
        elif node in reduction.group.parameters:
            found[node] = {name for index in asked for name in _counters(index)}
        elif several.isdisjoint(node.operands):
            found[node] = {name for o in node.operands for name in found.get(o, ())}
        else:
            found[node] = _read_by(reduction, node, asked)
    return found


def _counters(index: Indices) -> set[str]:
    return {name for i in index for name in indexing.variables(i)}


def _read_by(reduction: Reduction, node: Instruction, asked: Iterable[Indices]) -> set[str]:
    """The counters in the memory positions from which an instruction's element is computed."""
    builder = Builder()
    outline = Outline(reduction.group, builder)
    for index in asked:
        outline.elements.value(node, index)
    return {name for _, position in builder.accesses for name in indexing.variables(position)}


class PairwiseNest(Nest):
    """The loops of a reduction kernel over pairs."""

    def emit(self, finish: Callable[[list[Index], list[Expr]], None]) -> None:
        r, b = self.reduction, self.outline.builder
        self.arrays = arrays_to_transpose(r)
        *outer, rows, lanes, length = r.extents
        width = min(lanes, LANES, max(NARROWEST, TABLES // (length * len(self.arrays)) // VECTOR_LANES * VECTOR_LANES))
        with loops.parallel(b, [*outer, -(-rows // ROWS), -(-lanes // width)]) as opened:
            counters = [*opened[:len(outer)], indexing.ZERO, indexing.ZERO, indexing.ZERO]
            self.width, self.block = width, opened[-1]
            self.tables = {a: b.local(computation_type(a.shape.element_type), width * length, "transposed")
                           for a in self.arrays}
            self.fill(list(counters))
            totals = [(b.local(t, width, "sum"), t) for _, _, t in r.accumulators]
            with loops.block_loop(b, rows, ROWS, opened[-2], SERIAL) as counters[-3]:
                self.lanes(counters, lambda j: self.clear(totals, j))
                self.sums(counters, totals)
                counters[-1] = indexing.ZERO
                self.lanes(counters, lambda j: finish(counters, [b.let(self.at(name, t, j)) for name, t in totals]))

    def lanes(self, counters: list[Index], body: Callable[[Index], None]) -> None:
        """The VECTOR loop over a block of the second array's points; body(number in the block)."""
        self.column_loop(counters, len(counters) - 2, self.width, self.block, body)

    def fill(self, counters: list[Index]) -> None:
        """Compute the tables."""
        r, b = self.reduction, self.outline.builder
        with loops.block_loop(b, r.extents[-2], self.width, self.block, SERIAL) as counters[-2]:
            lane = indexing.subtract(counters[-2], indexing.scale(self.block, self.width))
            with b.loop(r.extents[-1], SERIAL) as counters[-1]:
                for array, name in self.tables.items():
                    value = self.outline.elements.value(array, r.full_index(counters))
                    b.store(name, indexing.add(indexing.scale(counters[-1], self.width), lane), value)

    def sums(self, counters: list[Index], totals: list[tuple[str, str]]) -> None:
        """Accumulate all columns, a few at a time."""
        b, length = self.outline.builder, self.reduction.extents[-1]
        part = next(n for n in range(MOST_WRITTEN_OUT, 0, -1) if length % n == 0)
        with b.loop(length // part, SERIAL) as number:
            def take(lane: Index) -> None:
                for k in range(part):
                    counters[-1] = indexing.shift(indexing.scale(number, part), k)
                    self.gather(totals, self.elements_at(counters, lane), lane)
            self.lanes(counters, take)

    def elements_at(self, counters: list[Index], lane: Index) -> list[list[Expr]]:
        """The inputs of each reduce, with loads from tables in place of the values stored there."""
        elements, place = self.outline.elements, indexing.add(indexing.scale(counters[-1], self.width), lane)
        before = dict(elements.sources)
        for array, name in self.tables.items():
            elements.sources[array] = always(self.at(name, computation_type(array.shape.element_type), place))
        values = point_values(self.reduction, self.outline, counters)[0]
        elements.sources = before
        return values
