"""Reductions of rows of a few elements, such as the largest of ten classes: rows are turned, so that vectors go across
them.

In: a Reduction whose last loop alone is reduced, and short, by what vectors of one row do slowly (`_is_slow`).
Out: statements in the Outline's builder: a block of rows is copied as it lies in memory into a Local array, columns
side by side (by shuffles, see turned_copies.py of the CPU); then each vector has an element of as many rows.

    for blocks of 128 rows:  for i: t[0, i] = x[i, 0]; t[1, i] = x[i, 1]; ...
                             for i (VECTOR): r[i] = max(max(t[0, i], t[1, i]), ...)

Longer rows are gone through in parts where they give pairs of integers: a row's own chain of comparisons is slow.
"""
from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hloc.analysis.fusible import is_elementwise, is_splat_constant
from hloc.ir import ELEMENT_TYPES, Instruction
from hloc.kernels import indexing, loops
from hloc.kernels.elements import Indices
from hloc.kernels.indexing import Index
from hloc.kernels.ir import SERIAL, Apply, Const, Expr, Var
from hloc.kernels.monoids import chosen_float, chosen_integer
from hloc.kernels.reductions.choice import places_count
from hloc.kernels.reductions.nest import MOST_OPERATIONS, Nest
from hloc.kernels.reductions.reduction import Reduction, side_roots, start
from hloc.kernels.rules.loops import accumulate
from hloc.kernels.scalars import computation_type, narrow, widen
from hloc.machine import Machine

SHORTEST, LONGEST = 5, 31   # elements of a row: shorter ones are done by reductions/short.py,
LONGEST_OF_PAIRS = 128      # and longer ones by vectors of one row
PART = 16                   # of a longer row of pairs, at most
FEWEST_ROWS = 64
MOST_WIDENED = 4            # pairs of 8 and 64 bits take longer in vectors than one by one
WIDENED_BY_VECTORS = ("f16", "bf16")
AT_ONCE = 4                 # columns whose code is written out
MOST_TURNED = 3             # parameters that one array is computed from
FEW = 16                    # elements of a row that fill too little of a vector


def is_turned(reduction: Reduction, machine: Machine) -> bool:
    """Whether the loops below suit a reduction."""
    extents, gone = reduction.extents, reduction.reduced
    return (machine.kind == "cpu" and len(extents) > 1 and gone[-1] and not any(gone[:-1])
            and SHORTEST <= part_of(reduction) and extents[-2] >= FEWEST_ROWS and not reduction.has_loops
            and reduction.operations <= MOST_OPERATIONS and not side_roots(reduction)
            and (any(_is_slow(reduction, r) for r in reduction.reduces) or makes_floats_of_few_bytes(reduction)))


def _is_slow(reduction: Reduction, reduce: Instruction) -> bool:
    """Whether vectors of one row do a reduce slowly: find a place; widen; join a few lanes of floats by comparisons, or
    of preds, which are made of wider numbers; or have more to compute of the result, for one row at a time."""
    op, arrays = reduction.monoid(reduce), reduction.arrays(reduce)
    read = [s.shape.element_type for s in dict.fromkeys(s for a in arrays for s in sources(reduction, a))]
    if op is None or any(type in WIDENED_BY_VECTORS for type in read):
        return True
    kind = ELEMENT_TYPES[arrays[0].shape.element_type].kind
    compares = kind == "float" and op in ("maximum", "minimum") \
        or kind == "pred" and any(ELEMENT_TYPES[type].bits > 8 for type in read)
    goes_on = len(read) == 1 and any(root not in reduction.reduces for root in reduction.group.roots)
    return (compares or goes_on) and reduction.extents[-1] < FEW


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
    length, pairs = reduction.extents[-1], not any(reduction.monoid(r) for r in reduction.reduces)
    if length <= (LONGEST_OF_PAIRS if pairs else LONGEST):
        return length
    types = [ELEMENT_TYPES[a.shape.element_type] for a in arrays_of(reduction)]
    sizes = [t.bytes for t in types]
    chains = (all(len(reduction.arrays(r)) > 1 for r in reduction.reduces) and all(t.kind != "float" for t in types)
              and max(sizes) <= MOST_WIDENED * min(sizes))
    return next((n for n in range(PART, 0, -1) if length % n == 0), 0) if chains else 0


def sources(reduction: Reduction, array: Instruction) -> list[Instruction]:
    """What is turned for an array: the parameters that it is computed from, position by position, unless those are
    many; several arrays may share them."""
    known = reduction.group.parameters
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
    return found if 0 < len(found) <= MOST_TURNED else [array]


class TurnedNest(Nest):
    """The loops of a reduction kernel over turned rows."""

    MOST_COLUMNS = 128

    def emit(self, finish: Callable[[list[Index], list[Expr]], None]) -> None:
        r, b = self.reduction, self.outline.builder
        self.outline.share_broadcasts()
        lane, part = len(r.extents) - 2, part_of(r)
        with self.blocks(lane) as (counters, width, block):
            self.width = width
            self.names = {a: b.local(stored_type(r, a), width * part, "turned")
                          for a in dict.fromkeys(s for a in arrays_of(r) for s in sources(r, a))
                          if a.opcode != "iota"}
            over_block = partial(self.column_loop, counters, lane, width, block)
            totals = [(b.local(t, width, "sum"), t) for _, _, t in r.accumulators]
            over_block(lambda j: self.clear(totals, j))
            with b.loop(r.extents[-1] // part, SERIAL) as number:
                first = indexing.scale(number, part)
                self.turn(counters, block, first)
                groups, rest = divmod(part, AT_ONCE)
                with b.loop(groups, SERIAL) as group:
                    place = indexing.scale(group, AT_ONCE)
                    over_block(lambda j: self.take_columns(counters, j, first, place, AT_ONCE, totals))
                if rest:
                    place = indexing.constant(part - rest)
                    over_block(lambda j: self.take_columns(counters, j, first, place, rest, totals))
            counters[-1] = indexing.ZERO
            over_block(lambda j: finish(counters, [b.let(self.at(name, t, j)) for name, t in totals]))

    def turn(self, counters: list[Index], block: Index, first: Index) -> None:
        """Copy a part of the rows of a block, from column `first` on, into the Local arrays."""
        b, lane, width = self.outline.builder, len(counters) - 2, self.width
        with loops.block_loop(b, self.reduction.extents[lane], width, block, SERIAL) as counters[lane]:
            row = indexing.subtract(counters[lane], indexing.scale(block, width))
            for k in range(part_of(self.reduction)):
                counters[-1] = indexing.shift(first, k)
                for array, name in self.names.items():
                    b.store(name, indexing.shift(row, k * width), self.copied(array, counters))

    def take_columns(self, counters: list[Index], row: Index, first: Index, place: Index, count: int,
                     totals: list[tuple[str, str]]) -> None:
        """Take in a few columns of the part from `first` on, from `place` in it on, written out: what was found
        meanwhile is in registers."""
        b = self.outline.builder
        accumulators = [b.mutable(t, self.at(name, t, row)) for name, t in totals]
        for k in range(count):
            column = indexing.shift(place, k)
            counters[-1] = indexing.add(first, column)
            self.take(accumulators, self.turned(counters, indexing.add(indexing.scale(column, self.width), row)))
        for (name, _), total in zip(totals, accumulators):
            b.store(name, row, total)

    def take(self, accumulators: list[Var], elements: list[list[Expr]]) -> None:
        """Take in a column. Where a number and its place are chosen, those before come first of equals."""
        remaining = list(accumulators)
        for reduce, values in zip(self.reduction.reduces, elements):
            own, remaining = remaining[:len(values)], remaining[len(values):]
            if self.keeps_first_place(reduce):
                self.choose(reduce, own, values)
            else:
                accumulate(self.outline.elements, own, values, reduce)

    def keeps_first_place(self, reduce: Instruction) -> bool:
        """Whether a reduce chooses a number and its place, which counts up and is never below the initial one."""
        r, places = self.reduction, 1
        if not (chosen_float(reduce) or chosen_integer(reduce)) or not places_count(r, reduce):
            return False
        initial = start(r, self.outline, reduce, places)
        return isinstance(initial, Const) and initial.value <= 0

    def choose(self, reduce: Instruction, accumulators: list[Var], values: list[Expr]) -> None:
        """What the reducer does (monoids.py), but that places are not compared."""
        b, (best, place), (value, here) = self.outline.builder, accumulators, values
        chosen = chosen_float(reduce) or chosen_integer(reduce)
        above: Expr = Apply("compare_gt" if chosen == "maximum" else "compare_lt", (best, value), "pred")
        if chosen_float(reduce):
            above = Apply("or", (above, Apply("compare_ne", (best, best), "pred")), "pred")
        with b.pinned([best.name]):
            above = b.let(above)
            stays = b.let(Apply("or", (above, Apply("compare_eq", (best, value), "pred")), "pred"))
        b.assign(place, Apply("select", (stays, place, here), place.type))
        b.assign(best, Apply("select", (above, best, value), best.type))

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
