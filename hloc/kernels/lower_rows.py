"""Row groups: softmax, layer norm, cross entropy and the like, each row from its first load to its last store.

In: a kCustom fusion, in which every reduce runs over the same columns of the same rows. Out: one kernel: a PARALLEL
loop over rows, in it one VECTOR loop over the columns per stage. Stage n computes the reduces that need n reduces
before them, and the results of full size that need no more. What several stages need and is not cheap to compute again
is kept in a Local array, which stays in the first cache.

    softmax:  stage 0: m = max x     stage 1: row[j] = exp(x - m), s = sum row[j]     stage 2: out = row[j] / s
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

from hloc.errors import UnsupportedError
from hloc.ir import ELEMENT_TYPES, Instruction, Shape
from hloc.kernels import indexing, loops, scalars
from hloc.kernels.builder import Builder
from hloc.kernels.elements import Indices
from hloc.kernels.group import Group, Lowered, Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import SERIAL, VECTOR, Expr, Load, Var
from hloc.kernels.lower_loop import cost_of, lower_loop, same_bytes
from hloc.kernels.lower_reduce import lower_reduce
from hloc.kernels.monoids import can_reassociate
from hloc.kernels.reduction import Reduction, depends, finished, start
from hloc.kernels.rules_elementwise import zero
from hloc.kernels.rules_loops import accumulate
from hloc.kernels.short_rows import ShortRows, is_short
from hloc.machine import Machine

LOCAL_BYTES = 128 << 10         # of all Local arrays of one row together
WORTH_KEEPING = 6               # operations below which a value is computed again
EXPENSIVE = frozenset(["exponential", "exponential-minus-one", "log", "log-plus-one", "logistic", "tanh", "erf", "sine",
                       "cosine", "tan", "power", "divide", "sqrt", "rsqrt", "cbrt", "atan2", "gather", "concatenate"])


@dataclass
class RowGroup:
    """A kCustom group in terms of rows x columns. levels: how many reduces in a chain each member stands behind."""

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


def lower_rows(group: Group, machine: Machine) -> Lowered:
    """The kernel of a row group; groups that are not made of rows take the general way."""
    rows = _row_group(group)
    if rows is None:
        reduces = [m for m in group.members if m.opcode == "reduce"]
        nested = any(o.opcode != "reduce" and depends(o, reduces) for r in reduces for o in r.operands)
        return lower_loop(group, machine) if nested or not reduces else lower_reduce(group, machine)
    _choose_loops(rows)
    trial = RowKernel(rows, Outline(group))
    trial.emit()
    read = [p for p in group.parameters if rows.is_full(p) and any(p in t for t in trial.traces)]
    if is_short(rows, read, machine) and all(_in_place(rows, p, trial) for p in read):
        final = ShortRows(rows, Outline(group), _kept(rows, trial), read)
    else:
        final = RowKernel(rows, Outline(group), _kept(rows, trial))
    final.emit()
    points = rows.rows * rows.columns
    operations = sum(len(t) for t in trial.traces)
    cost = cost_of(final.outline, points, trial.outline.builder)
    call = final.outline.finish(cost=cost._replace(flops=operations * points * 2))
    return Lowered((call,), can_share=tuple(_shareable(rows, trial)))


def _shareable(rows: RowGroup, trial: RowKernel) -> Iterator[tuple[int, int, int]]:
    """(result leaf, operand, 0): operands that every stage up to the result's reads in place, and no later one."""
    for stage in range(rows.stages + 1):
        for leaf, root in rows.full_roots(stage):
            for parameter, number in rows.group.parameters.items():
                late = any(parameter in trace for trace in trial.traces[stage + 1:])
                if parameter.shape.is_array and not late and same_bytes(parameter, root) \
                        and _in_place(rows, parameter, trial):
                    yield leaf, number, 0


def _row_group(group: Group) -> RowGroup | None:
    """The group as rows and columns; None where its reduces do not share them."""
    reduces = [m for m in group.members if m.opcode == "reduce"]
    if not reduces or any(r.shape.is_tuple for r in group.roots):
        return None
    spaces = set()
    for reduce in reduces:
        dimensions = reduce.operands[0].shape.dimensions
        gone = sorted(reduce.get("dimensions", ()))
        kept = [d for d in range(len(dimensions)) if d not in gone and dimensions[d] > 1]
        if not gone or (kept and max(kept) > min(d for d in gone if dimensions[d] > 1 or len(gone) == 1)):
            return None
        spaces.add((math.prod(dimensions[d] for d in kept), math.prod(dimensions[d] for d in gone)))
    if len(spaces) != 1 or 0 in spaces.copy().pop():
        return None
    rows, columns = spaces.pop()
    levels: dict[Instruction, int] = {}
    for member in group.members:
        behind = [levels.get(o, 0) + (o.opcode == "reduce") for o in member.operands]
        levels[member] = max(behind, default=0)
    sizes = {rows, rows * columns}
    if any(r.shape.num_elements not in sizes for r in group.roots):
        return None
    return RowGroup(group, reduces, rows, columns, levels)


def _choose_loops(rows: RowGroup) -> None:
    """Split the loops over rows and over columns where positions need it."""
    def emit(builder: Builder, counters: tuple[Index, ...], extents: list[int]) -> None:
        outline = Outline(rows.group, builder)
        position = indexing.linearize(counters, extents)
        for reduce in rows.reduces:
            for operand in reduce.operands[:len(reduce.operands) // 2]:
                outline.elements.value(operand, indexing.delinearize(position, operand.shape.dimensions))
            _bind_zero(outline, rows.group, reduce)
        row = indexing.floor_divide(position, rows.columns)
        for root in rows.group.roots:
            place = position if rows.is_full(root) else row
            outline.elements.value(root, indexing.delinearize(place, root.shape.dimensions))
    extents, origins, _ = loops.refine([rows.rows, rows.columns], emit)
    rows.row_extents = [n for n, o in zip(extents, origins) if o == 0]
    rows.column_extents = [n for n, o in zip(extents, origins) if o == 1]


def _bind_zero(outline: Outline, group: Group, reduce: Instruction) -> None:
    """For a trial: let a reduce read as zero."""
    for member in (reduce, *(m for m in group.members if m.operands[:1] == [reduce])):
        if member.shape.is_array and (member is reduce or member.opcode == "get-tuple-element"):
            value = zero(scalars.computation_type(member.shape.element_type))
            outline.elements.sources[member] = lambda index, value=value: value


@dataclass
class RowKernel:
    """One emission of the kernel. kept: values kept in Local arrays, with the stage that computes them.

    traces, places: what each stage asked for, and the position where its loops stand."""

    rows: RowGroup
    outline: Outline
    kept: dict[Instruction, int] = field(default_factory=dict)
    traces: list[dict[Instruction, set[Indices]]] = field(default_factory=list)
    places: list[Index | None] = field(default_factory=list)

    def emit(self) -> None:
        builder, rows = self.outline.builder, self.rows
        with loops.parallel(builder, rows.row_extents) as counters:
            self.row = indexing.linearize(counters, rows.row_extents)
            self.locals = {node: builder.local(_type(node), rows.columns) for node in self.kept}
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
        reduces = [r for r in rows.reduces if rows.levels[r] == stage]
        roots = rows.full_roots(stage)
        kept = [node for node, when in self.kept.items() if when == stage]
        if not reduces and not roots and not kept:
            return
        parts = [Reduction(rows.group, [r], r.operands[0].shape.dimensions) for r in reduces]
        vector = all(can_reassociate(p.monoid(p.reduces[0]), t) for p in parts for _, _, t in p.accumulators)
        accumulators = [[builder.mutable(t, start(p, self.outline, r, k), (p.monoid(r) or "") if vector else "")
                         for r, k, t in p.accumulators] for p in parts]
        with ExitStack() as stack:
            counters = [stack.enter_context(builder.loop(n)) for n in rows.column_extents[:-1]]
            last = rows.column_extents[-1]
            counters.append(stack.enter_context(builder.loop(last, VECTOR if vector else SERIAL)))
            self.point(indexing.linearize(counters, rows.column_extents), parts, accumulators, roots, kept)
        for part, totals in zip(parts, accumulators):
            self.bind(part, finished(part, self.outline, list(totals)))
        for node in kept:
            self.outline.elements.sources[node] = self.local_reader(node)

    def point(self, column: Index, parts: list[Reduction], accumulators: list[list[Var]],
              roots: list[tuple[int, Instruction]], kept: list[Instruction]) -> None:
        """What one stage does for one element."""
        self.column = column
        position = indexing.add(indexing.scale(self.row, self.rows.columns), column)
        self.places[-1] = position
        value = self.outline.elements.value
        for part, own in zip(parts, accumulators):
            arrays = part.arrays(part.reduces[0])
            values = [value(a, indexing.delinearize(position, a.shape.dimensions)) for a in arrays]
            accumulate(self.outline.elements, own, values, part.reduces[0])
        stores = [(leaf, value(r, indexing.delinearize(position, r.shape.dimensions))) for leaf, r in roots]
        if len(stores) > 1:                         # all loads before all stores: a result may lie where an operand lay
            stores = [(leaf, self.outline.builder.let(v)) for leaf, v in stores]
        for node in kept:
            element = value(node, indexing.delinearize(position, node.shape.dimensions))
            self.outline.builder.store(self.locals[node], column, element)
        for leaf, element in stores:
            self.outline.store(leaf, position, element)

    def bind(self, part: Reduction, totals: list[Expr]) -> None:
        """Let later stages read a finished reduce."""
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
        """Reads the Local array; only asked for at the current element, as the trial run has shown."""
        name = self.locals[node]

        def read(index: Indices) -> Expr:
            return Load(name, self.outline.builder.position(self.column), _type(node))
        return read


def _type(node: Instruction) -> str:
    return scalars.computation_type(node.shape.element_type)


# -- what to keep ------------------------------------------------------------------------------------------------------

def _kept(rows: RowGroup, trial: RowKernel) -> dict[Instruction, int]:
    """Values that an early stage computes, a later one needs, and that cost more than a load: node -> first stage."""
    traces = trial.traces
    costs = _costs(rows)
    kept: dict[Instruction, int] = {}
    for stage in range(1, len(traces)):
        stack = _targets(rows, stage)
        seen: set[Instruction] = set()
        while stack:
            node = stack.pop()
            if node in seen or node not in traces[stage]:
                continue
            seen.add(node)
            first = next((s for s in range(stage) if node in traces[s] and node not in rows.reduces), None)
            if node in kept or (first is not None and node not in rows.group.parameters
                                and costs.get(node, 0) >= WORTH_KEEPING
                                and all(len(t.get(node, ())) < 2 for t in traces) and _in_place(rows, node, trial)):
                kept.setdefault(node, first if first is not None else stage)
            else:
                stack.extend(node.operands)
    fitting: dict[Instruction, int] = {}
    space = LOCAL_BYTES
    for node, stage in kept.items():
        space -= rows.columns * ELEMENT_TYPES[_type(node)].bytes
        if space >= 0:
            fitting[node] = stage
    return fitting


def _targets(rows: RowGroup, stage: int) -> list[Instruction]:
    reduces = [r for r in rows.reduces if rows.levels[r] == stage]
    return [o for r in reduces for o in r.operands] + [r for _, r in rows.full_roots(stage)]


def _in_place(rows: RowGroup, node: Instruction, trial: RowKernel) -> bool:
    """The node has full size and is asked for only at the element that the loops stand at."""
    if not rows.is_full(node):
        return False
    for trace, place in zip(trial.traces, trial.places):
        if any(indexing.linearize(index, node.shape.dimensions) != place for index in trace.get(node, ())):
            return False
    return True


def _costs(rows: RowGroup) -> dict[Instruction, int]:
    """Operations per element of each full-size member, down to parameters and reduces."""
    costs: dict[Instruction, int] = {}
    for member in rows.group.members:
        if not rows.is_full(member) or member.opcode == "reduce":
            continue
        own = 8 if member.opcode in EXPENSIVE else 1
        own += 2 if scalars.is_narrow(member.shape.element_type) else 0
        costs[member] = own + sum(costs.get(o, 0) for o in set(member.operands))
    return costs
