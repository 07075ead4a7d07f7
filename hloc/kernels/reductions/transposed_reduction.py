"""Reductions of rows of a few elements, such as the maximum of ten classes: rows are transposed, so that vectors run
across them.

In: a Reduction whose last loop alone is reduced, and short, by an operation that vectors of one row do slowly
(`_is_slow`). Out: statements in the Outline's builder: a block of rows is transposed as stored into a Local array (by
shuffles, see transpose_calls.py of the CPU); then each vector holds one column of many rows.

    for blocks of 128 rows:  for i: t[0, i] = x[i, 0]; t[1, i] = x[i, 1]; ...
                             for i (VECTOR): r[i] = max(max(t[0, i], t[1, i]), ...)

Values that are the same for all rows, or contiguous across rows, are read in place. Results of the input's size are
computed by columns, too, and transposed back. Longer rows are processed in parts if they reduce pairs of integers: a
row's own chain of comparisons is slow.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

from hloc.analysis.cost import operations
from hloc.analysis.fusible import is_elementwise, is_splat_constant
from hloc.ir import ELEMENT_TYPES, Instruction
from hloc.kernels import indexing, loops
from hloc.kernels.builder import Builder
from hloc.kernels.elements import Indices
from hloc.kernels.group import Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import SERIAL, VECTOR, Apply, Const, Expr, Var
from hloc.kernels.monoids import chosen_float, chosen_integer
from hloc.kernels.reductions.argmax import places_count
from hloc.kernels.reductions.nest import MOST_OPERATIONS, Nest
from hloc.kernels.reductions.reduction import Reduction, side_roots, start
from hloc.kernels.rules.loops import accumulate
from hloc.kernels.scalars import computation_type, narrow, widen
from hloc.machine import Machine

SHORTEST, LONGEST = 5, 31   # elements of a row: shorter ones are handled by reductions/unrolled_reduction.py,
LONGEST_OF_PAIRS = 128      # and longer ones by vectors of one row
FEW_INTEGERS, LONGEST_OF_INTEGERS = 12, 63          # of small integers that become floats
FEW_OPERATIONS = 3          # per element: a widening, and a sum
PART = 16                   # of a longer row of pairs, at most
FEWEST_ROWS = 64
MOST_OF_COLUMN = 64         # operations
MOST_WIDENED = 4            # pairs of 8 and 64 bits take longer in vectors than one by one
WIDENED_BY_VECTORS = ("f16", "bf16")
AT_ONCE = 4                 # columns whose code is unrolled
MOST_TRANSPOSED = 4         # source arrays of one array
MOVES = ("broadcast", "reshape", "bitcast", "transpose", "slice", "dynamic-slice", "copy")
FEW = 16                    # elements of a row that fill too little of a vector
WIDEST_VECTOR = 64          # bytes
FUNCTION = 10               # operations


def is_transposed(reduction: Reduction, machine: Machine) -> bool:
    """Whether the loops below suit a reduction."""
    extents, gone = reduction.extents, reduction.reduced
    return (machine.kind == "cpu" and len(extents) > 1 and gone[-1] and not any(gone[:-1])
            and SHORTEST <= part_of(reduction) and extents[lane_of(extents)] >= FEWEST_ROWS
            and not reduction.has_loops
            and reduction.operations <= MOST_OF_COLUMN and (not side_roots(reduction) or _reads_few(reduction))
            and (any(_is_slow(reduction, r) for r in reduction.reduces) or makes_floats_of_few_bytes(reduction)))


def lane_of(extents: Sequence[int]) -> int:
    """The loop whose iterations are lanes: that over the rows, or the one before if the rows are few and the outer
    iterations differ in their reads."""
    return len(extents) - (3 if len(extents) > 2 and extents[-2] < FEWEST_ROWS <= extents[-3] else 2)


def _is_slow(reduction: Reduction, reduce: Instruction) -> bool:
    """Whether vectors of one row do a reduce slowly: find a position; widen; combine a few lanes of floats by
    comparisons, or of preds, which are computed from wider numbers; or compute more, of the result for one row at a
    time, or of elements that do not fill vectors."""
    op, arrays = reduction.monoid(reduce), reduction.arrays(reduce)
    read = [s.shape.element_type for s in dict.fromkeys(s for a in arrays for s in sources(reduction, a))]
    if op is None or any(type in WIDENED_BY_VECTORS for type in read):
        return True
    kind = ELEMENT_TYPES[arrays[0].shape.element_type].kind
    compares = kind == "float" and op in ("maximum", "minimum") \
        or kind == "pred" and any(ELEMENT_TYPES[type].bits > 8 for type in read)
    others = [r for r in reduction.group.roots if r not in reduction.reduces]
    goes_on = len(read) == 1 and len(others) > len(side_roots(reduction))
    few = (compares or goes_on) and reduction.extents[-1] < FEW
    return few or kind == "float" and _computes_half_vectors(reduction)


def _computes_half_vectors(reduction: Reduction) -> bool:
    """Whether functions are applied to elements, and rows leave lanes of the widest vectors empty."""
    lanes = WIDEST_VECTOR // max(ELEMENT_TYPES[t].bytes for _, _, t in reduction.accumulators)
    elements = math.prod(reduction.dimensions)
    return reduction.extents[-1] % lanes > 0 and any(
        m.shape.is_array and m.shape.num_elements == elements and operations(m) >= FUNCTION
        for m in reduction.group.members if m not in reduction.group.parameters)


def _reads_few(reduction: Reduction) -> bool:
    """Whether the inputs of reduces, and results beside them, are computed from few transposed arrays."""
    roots = [root for _, root in side_roots(reduction)]
    return len(arrays_to_transpose(reduction, [*arrays_of(reduction), *roots])) <= MOST_TRANSPOSED


def makes_floats_of_few_bytes(reduction: Reduction) -> bool:
    """Whether rows of small integers become floats: a row's own vectors leave lanes empty, or have as many lanes as
    integers fit in a register, which compilers widen piece by piece and combine through memory."""
    read = [ELEMENT_TYPES[p.shape.element_type] for p in reduction.group.parameters if p.shape.num_elements > 1]
    length, bits = reduction.extents[-1], max((t.bits for t in read), default=64)
    slow = length == 8 or FEW_INTEGERS < length or 8 < length and reduction.operations > FEW_OPERATIONS
    return (slow and length <= LONGEST_OF_INTEGERS and (bits <= 8 or bits == 16 and length % 16 > 0)
            and all(t.kind in ("signed", "unsigned", "pred") for t in read)
            and all(ELEMENT_TYPES[t].kind == "float" for _, _, t in reduction.accumulators))


def arrays_of(reduction: Reduction) -> list[Instruction]:
    return [a for r in reduction.reduces for a in reduction.arrays(r)]


def stored_type(reduction: Reduction, array: Instruction) -> str:
    """The type in which a table stores an array: that of the parameter if the array is only loaded, moved or widened to
    f32; otherwise the type in which it is computed."""
    type, source = array.shape.element_type, moved_from(reduction, array)
    read = source.shape.element_type if source is not None else ""
    return read if source is not None and computation_type(read) == computation_type(type) else computation_type(type)


def moved_from(reduction: Reduction, array: Instruction) -> Instruction | None:
    """The parameter whose elements an array has, only moved or widened to f32; else None."""
    known = reduction.group.parameters
    source, may_widen = array, array.shape.element_type == "f32"
    while source not in known and (source.opcode in MOVES or source.opcode == "convert" and may_widen):
        may_widen = may_widen and source.opcode != "convert"
        source = source.operands[0]
    return source if source in known else None


def part_of(reduction: Reduction) -> int:
    """The number of elements of a row that are transposed at a time; 0 if rows are too long, or have no such parts."""
    length, pairs = reduction.extents[-1], not any(reduction.monoid(r) for r in reduction.reduces)
    longest = LONGEST_OF_PAIRS if pairs else LONGEST_OF_INTEGERS if makes_floats_of_few_bytes(reduction) else LONGEST
    if length <= longest:
        return length
    types = [ELEMENT_TYPES[a.shape.element_type] for a in arrays_of(reduction)]
    sizes = [t.bytes for t in types]
    chains = (all(len(reduction.arrays(r)) > 1 for r in reduction.reduces) and all(t.kind != "float" for t in types)
              and max(sizes) <= MOST_WIDENED * min(sizes))
    return next((n for n in range(PART, 0, -1) if length % n == 0), 0) if chains else 0


def sources(reduction: Reduction, array: Instruction) -> list[Instruction]:
    """The arrays to transpose for an array: its sources, if computed position by position, or itself, if that is
    expensive."""
    found = arrays_to_transpose(reduction, [array])
    return found if len(found) <= MOST_TRANSPOSED else [array]


def arrays_to_transpose(reduction: Reduction, arrays: Sequence[Instruction]) -> list[Instruction]:
    """The sources of arrays, if computed position by position, except those that vectors across rows read in place."""
    known = reduction.group.parameters
    found, seen, stack = [], set(arrays), list(reversed(arrays))
    while stack:
        node = stack.pop()
        if node not in known and is_elementwise(node):
            arguments = {o for o in node.operands if not is_splat_constant(o)} - seen
            stack.extend(sorted(arguments, key=lambda o: o.name))
            seen |= arguments
        elif node in known or _reads_whole(reduction, node) or not _lies_in_lanes(reduction, node):
            found.append(node)
    return found


def _reads_whole(reduction: Reduction, node: Instruction) -> bool:
    """Whether a node reads an array of the input's size at other positions: while columns are accumulated, only the
    current element of such an array is known."""
    size, stack, seen = math.prod(reduction.dimensions), list(node.operands), set()
    while stack:
        top = stack.pop()
        if top.shape.is_array and top.shape.num_elements == size:
            return True
        if top not in seen and top not in reduction.group.parameters:
            stack.extend(top.operands)
        seen.add(top)
    return False


def _lies_in_lanes(reduction: Reduction, node: Instruction) -> bool:
    """Whether adjacent rows read the same element for a node, or adjacent elements in memory."""
    builder, lane = Builder(), lane_of(reduction.extents)
    with ExitStack() as stack:
        counters = [stack.enter_context(builder.loop(n)) for n in reduction.extents]
        Outline(reduction.group, builder).elements.value(node, reduction.full_index(counters))
        names = [next(iter(indexing.variables(c)), "") for c in counters]
    outside = builder.levels[names[lane]]
    read = {name for _, place in builder.accesses for name in indexing.variables(place)}
    if builder.divisions or any(builder.levels[name] >= outside for name in read.difference(names)):
        return False                                # positions depend on the row in an unknown way
    return all(indexing.coefficient_of(p, names[lane]) in (0, 1) for _, p in builder.accesses)


class TransposedNest(Nest):
    """The loops of a reduction kernel over transposed rows."""

    MOST_COLUMNS = 128

    def emit(self, finish: Callable[[list[Index], list[Expr]], None]) -> None:
        r, b = self.reduction, self.outline.builder
        lane, part = lane_of(r.extents), part_of(r)
        with self.blocks(lane) as (counters, width, block):
            self.width = width
            self.names = {a: b.local(stored_type(r, a), width * part, "transposed")
                          for a in self.transposed_arrays()}
            self.results = {leaf: b.local(root.shape.element_type, width * part, "transposed")
                            for leaf, root in side_roots(r)}
            at_once = AT_ONCE if r.operations <= MOST_OPERATIONS else 1
            over_block = partial(self.column_loop, counters, lane, width, block)
            totals = [(b.local(t, width, "sum"), t) for _, _, t in r.accumulators]
            over_block(lambda j: self.clear(totals, j))
            with b.loop(r.extents[-1] // part, SERIAL) as number:
                first = indexing.scale(number, part)
                self.transpose(counters, block, first)
                self.outline.share_broadcasts()
                groups, rest = divmod(part, at_once)
                with b.loop(groups, SERIAL) as group, b.pinned(self.results.values()):
                    place = indexing.scale(group, at_once)
                    over_block(lambda j: self.take_columns(counters, j, first, place, at_once, totals))
                if rest:
                    place = indexing.constant(part - rest)
                    with b.pinned(self.results.values()):
                        over_block(lambda j: self.take_columns(counters, j, first, place, rest, totals))
                self.transpose_back(counters, block, first)
            counters[-1] = indexing.ZERO
            over_block(lambda j: finish(counters, [b.let(self.at(name, t, j)) for name, t in totals]))

    def transposed_arrays(self) -> list[Instruction]:
        """The arrays with a table: for results beside the reduces, too, which then read few arrays."""
        r, roots = self.reduction, [root for _, root in side_roots(self.reduction)]
        return arrays_to_transpose(r, [*arrays_of(r), *roots]) if roots else \
            list(dict.fromkeys(s for a in arrays_of(r) for s in sources(r, a)))

    def transpose(self, counters: list[Index], block: Index, first: Index) -> None:
        """Transpose a part of the rows of a block, from column `first` on, into the Local arrays; values that are more
        than a copy are computed before, row by row."""
        b, r, width, part = self.outline.builder, self.reduction, self.width, part_of(self.reduction)
        lane = lane_of(r.extents)
        made = {a: self.made(a, counters, block, first) for a in self.names if moved_from(r, a) is None}
        with loops.block_loop(b, r.extents[lane], width, block, SERIAL) as counters[lane]:
            row = indexing.subtract(counters[lane], indexing.scale(block, width))
            for k in range(part):
                counters[-1] = indexing.shift(first, k)
                for array, name in self.names.items():
                    value = self.at(made[array], stored_type(r, array), indexing.shift(indexing.scale(row, part), k)) \
                        if array in made else self.copied(array, counters)
                    b.store(name, indexing.shift(row, k * width), value)

    def made(self, array: Instruction, counters: list[Index], block: Index, first: Index) -> str:
        """A Local array of a part of the rows, in the order of memory."""
        b, r, width, part = self.outline.builder, self.reduction, self.width, part_of(self.reduction)
        lane, name = lane_of(r.extents), b.local(stored_type(r, array), width * part, "made")
        with loops.block_loop(b, r.extents[lane], width, block, SERIAL) as counters[lane]:
            row = indexing.subtract(counters[lane], indexing.scale(block, width))
            with b.loop(part, VECTOR) as column:
                counters[-1] = indexing.add(first, column)
                b.store(name, indexing.add(indexing.scale(row, part), column), self.copied(array, counters))
        return name

    def transpose_back(self, counters: list[Index], block: Index, first: Index) -> None:
        """Transpose the results of the input's size of a part back to their positions."""
        r, b, lane, width = self.reduction, self.outline.builder, lane_of(self.reduction.extents), self.width
        for leaf, root in side_roots(r):
            with loops.block_loop(b, r.extents[lane], width, block, SERIAL) as counters[lane]:
                row = indexing.subtract(counters[lane], indexing.scale(block, width))
                for k in range(part_of(r)):
                    counters[-1] = indexing.shift(first, k)
                    value = self.at(self.results[leaf], root.shape.element_type, indexing.shift(row, k * width))
                    self.outline.store(leaf, indexing.linearize(counters, r.extents), widen(value))

    def take_columns(self, counters: list[Index], row: Index, first: Index, place: Index, count: int,
                     totals: list[tuple[str, str]]) -> None:
        """Accumulate a few columns of the part from `first` on, from `place` in it on, unrolled: intermediate results
        stay in registers."""
        b = self.outline.builder
        accumulators = [b.mutable(t, self.at(name, t, row)) for name, t in totals]
        for k in range(count):
            column = indexing.shift(place, k)
            counters[-1] = indexing.add(first, column)
            places = indexing.add(indexing.scale(column, self.width), row)
            self.take(accumulators, self.transposed_inputs(counters, places))
        for (name, _), total in zip(totals, accumulators):
            b.store(name, row, total)

    def take(self, accumulators: list[Var], elements: list[list[Expr]]) -> None:
        """Accumulate a column. When a number and its position are chosen, the earlier of equal ones wins."""
        remaining = list(accumulators)
        for reduce, values in zip(self.reduction.reduces, elements):
            own, remaining = remaining[:len(values)], remaining[len(values):]
            if self.keeps_first_place(reduce):
                self.choose(reduce, own, values)
            else:
                accumulate(self.outline.elements, own, values, reduce)

    def keeps_first_place(self, reduce: Instruction) -> bool:
        """Whether a reduce chooses a number and its position, which counts up and is never below the initial one."""
        r, places = self.reduction, 1
        if not (chosen_float(reduce) or chosen_integer(reduce)) or not places_count(r, reduce):
            return False
        initial = start(r, self.outline, reduce, places)
        return isinstance(initial, Const) and initial.real <= 0

    def choose(self, reduce: Instruction, accumulators: list[Var], values: list[Expr]) -> None:
        """The operation of the reducer (monoids.py), without a comparison of positions."""
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
        """An element as its table stores it; that of a parameter as it is in memory."""
        index, known = self.reduction.full_index(counters), self.reduction.group.parameters
        if array in known:
            buffer = self.outline.operand_buffer(known[array], array.shape)
            flat = indexing.linearize(index, array.shape.dimensions)
            return self.outline.builder.load(buffer, array.shape.element_type, flat)
        return narrow(self.outline.elements.value(array, index), stored_type(self.reduction, array))

    def transposed_inputs(self, counters: list[Index], place: Index) -> list[list[Expr]]:
        """The inputs of each reduce for one column, from the Local arrays or in place; results beside them are stored
        in such arrays."""
        def read(array: Instruction) -> Callable[[Indices], Expr]:
            stored = self.at(self.names[array], stored_type(self.reduction, array), place)
            return lambda _: self.outline.builder.let(widen(stored))
        elements, index = self.outline.elements, self.reduction.full_index(counters)
        before = dict(elements.sources)
        elements.sources.update((array, read(array)) for array in self.names)
        values = [[elements.value(a, index) for a in self.reduction.arrays(r)] for r in self.reduction.reduces]
        for leaf, root in side_roots(self.reduction):
            own = indexing.reshape(index, self.reduction.dimensions, root.shape.dimensions)
            value = narrow(elements.value(root, own), root.shape.element_type)
            self.outline.builder.store(self.results[leaf], place, value)
        elements.sources = before
        return values
