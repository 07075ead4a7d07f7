"""Reductions of rows of a few elements, such as the largest of ten classes: rows are turned, so that vectors go across
them.

In: a Reduction whose last loop alone is reduced, and short, by something that vectors of one row do slowly: a maximum,
a pair as in argmax, or anything of f16 and bf16, which whole vectors widen. Out: statements in the Outline's builder: a
block of rows is copied element by element, as it lies in memory, into a Local array, columns side by side; then each
vector has an element of as many rows.

    for blocks of 128 rows:  for i: t[0, i] = x[i, 0]; t[1, i] = x[i, 1]; ...
                             for i (VECTOR): r[i] = max(max(t[0, i], t[1, i]), ...)

Longer rows are gone through in parts where they give pairs of integers: a row's own chain of comparisons is slow.
"""
from __future__ import annotations

from collections.abc import Callable

from hloc.analysis.fusible import is_elementwise, is_splat_constant
from hloc.ir import ELEMENT_TYPES, Instruction
from hloc.kernels import indexing, loops
from hloc.kernels.elements import Indices
from hloc.kernels.indexing import Index
from hloc.kernels.ir import SERIAL, Expr
from hloc.kernels.reductions.nest import MOST_OPERATIONS, Nest
from hloc.kernels.reductions.reduction import Reduction, side_roots
from hloc.kernels.scalars import computation_type, narrow, widen
from hloc.machine import Machine

SHORTEST, LONGEST = 5, 16   # elements of a row: shorter ones are done by reductions/short.py
FEWEST_ROWS = 64
MOST_WIDENED = 4            # pairs of 8 and 64 bits take longer in vectors than one by one
WIDENED_BY_VECTORS = ("f16", "bf16")
MOST_TURNED = 3             # parameters that one array is computed from
QUICK = ("add", "multiply")  # what vectors along a row do well: lanes are joined by instructions for that


def is_turned(reduction: Reduction, machine: Machine) -> bool:
    """Whether the loops below suit a reduction."""
    extents, gone = reduction.extents, reduction.reduced
    return (machine.kind == "cpu" and len(extents) > 1 and gone[-1] and not any(gone[:-1])
            and SHORTEST <= part_of(reduction) and extents[-2] >= FEWEST_ROWS and not reduction.has_loops
            and reduction.operations <= MOST_OPERATIONS and not side_roots(reduction)
            and (any(reduction.monoid(r) not in QUICK for r in reduction.reduces)
                 or makes_floats_of_few_bytes(reduction)
                 or any(stored_type(reduction, a) in WIDENED_BY_VECTORS for a in arrays_of(reduction))))


def makes_floats_of_few_bytes(reduction: Reduction) -> bool:
    """Whether rows of eight small integers become floats: in a row's own vector they fill a quarter of the lanes."""
    read = [ELEMENT_TYPES[p.shape.element_type] for p in reduction.group.parameters if p.shape.num_elements > 1]
    return (reduction.extents[-1] == 8 and all(t.bits <= 16 and t.kind in ("signed", "unsigned") for t in read)
            and all(ELEMENT_TYPES[t].kind == "float" for _, _, t in reduction.accumulators))


def arrays_of(reduction: Reduction) -> list[Instruction]:
    return [a for r in reduction.reduces for a in reduction.arrays(r)]


def stored_type(reduction: Reduction, array: Instruction) -> str:
    """The type in which a table holds an array: that of a parameter that is read, or widened to f32, and no more."""
    known = reduction.group.parameters
    type = array.shape.element_type
    source = array.operands[0] if array.opcode == "convert" and array not in known and type == "f32" else array
    read = source.shape.element_type
    return read if source in known and computation_type(read) == computation_type(type) else computation_type(type)


def part_of(reduction: Reduction) -> int:
    """How many elements of a row are turned at a time; 0 for rows that are too long, or have no such parts."""
    length = reduction.extents[-1]
    if length <= LONGEST:
        return length
    types = [ELEMENT_TYPES[a.shape.element_type] for a in arrays_of(reduction)]
    sizes = [t.bytes for t in types]
    chains = (all(len(reduction.arrays(r)) > 1 for r in reduction.reduces) and all(t.kind != "float" for t in types)
              and max(sizes) <= MOST_WIDENED * min(sizes))
    return next((n for n in range(LONGEST, 0, -1) if length % n == 0), 0) if chains else 0


class TurnedNest(Nest):
    """The loops of a reduction kernel over turned rows."""

    MOST_COLUMNS = 128

    def emit(self, finish: Callable[[list[Index], list[Expr]], None]) -> None:
        r, b = self.reduction, self.outline.builder
        self.outline.share_broadcasts()
        lane, part = len(r.extents) - 2, part_of(r)
        with self.blocks(lane) as (counters, width, block):
            self.names = {a: b.local(stored_type(r, a), width * part, "turned")
                          for a in dict.fromkeys(s for a in arrays_of(r) for s in self.sources(a))
                          if a.opcode != "iota"}
            totals = [(b.local(t, width, "sum"), t) for _, _, t in r.accumulators]
            self.column_loop(counters, lane, width, block, lambda j: self.clear(totals, j))
            with b.loop(r.extents[-1] // part, SERIAL) as number:
                first = indexing.scale(number, part)
                with loops.block_loop(b, r.extents[lane], width, block, SERIAL) as counters[lane]:
                    row = indexing.subtract(counters[lane], indexing.scale(block, width))
                    for k in range(part):
                        counters[-1] = indexing.shift(first, k)
                        for array, name in self.names.items():
                            b.store(name, indexing.shift(row, k * width), self.copied(array, counters))
                with b.loop(part, SERIAL) as column:
                    counters[-1] = indexing.add(first, column)
                    self.column_loop(counters, lane, width, block, lambda j: self.gather(
                        totals, self.turned(counters, indexing.add(indexing.scale(column, width), j)), j))
            counters[-1] = indexing.ZERO
            self.column_loop(counters, lane, width, block, lambda j: finish(
                counters, [b.let(self.at(name, t, j)) for name, t in totals]))

    def sources(self, array: Instruction) -> list[Instruction]:
        """What is turned for an array: the parameters that it is computed from, position by position, where vectors
        have to widen them; several arrays may share them."""
        known = self.reduction.group.parameters
        found, seen, stack = [], {array}, [array]
        while stack:
            node = stack.pop()
            if node in known:
                found.append(node)
            elif not is_elementwise(node):
                return [array]
            else:
                arguments = {o for o in node.operands if not is_splat_constant(o)} - seen
                stack.extend(sorted(arguments, key=lambda o: o.name))
                seen |= arguments
        widened = [p for p in found if p.shape.element_type in WIDENED_BY_VECTORS]
        return found if widened and len(found) <= MOST_TURNED else [array]

    def copied(self, array: Instruction, counters: list[Index]) -> Expr:
        """An element as its table holds it; that of a parameter as it lies in memory."""
        index, known = self.reduction.full_index(counters), self.reduction.group.parameters
        if array in known:
            buffer = self.outline.operand_buffer(known[array], array.shape)
            flat = indexing.linearize(index, array.shape.dimensions)
            return self.outline.builder.load(buffer, array.shape.element_type, flat)
        return narrow(self.outline.elements.value(array, index), stored_type(self.reduction, array))

    def turned(self, counters: list[Index], place: Index) -> list[list[Expr]]:
        """What each reduce takes in of one column, from the Local arrays or, where that needs no memory, without."""
        def read(array: Instruction) -> Callable[[Indices], Expr]:
            stored = self.at(self.names[array], stored_type(self.reduction, array), place)
            return lambda _: self.outline.builder.let(widen(stored))
        elements, index = self.outline.elements, self.reduction.full_index(counters)
        before = dict(elements.sources)
        elements.sources.update((array, read(array)) for array in self.names)
        values = [[elements.value(a, index) for a in self.reduction.arrays(r)] for r in self.reduction.reduces]
        elements.sources = before
        return values
