"""Row groups: softmax, layer norm, cross entropy and similar ones; each row is processed from its first load to its
last store.

In: a kCustom fusion in which every reduce runs over the same columns of the same rows. Out: one kernel: a PARALLEL loop
over rows that contains one VECTOR loop over the columns per stage. Stage n computes the reduces that depend on n
reduces, and the results of full size that depend on no more. Values that several stages need and that are expensive to
recompute are kept in a Local array, which stays in the L1 cache.

    softmax:  stage 0: m = max x     stage 1: row[j] = exp(x - m), s = sum row[j]     stage 2: out = row[j] / s
"""
from __future__ import annotations

import math
from collections.abc import Iterator

from hloc.ir import ELEMENT_TYPES, Instruction
from hloc.kernels import indexing, loops, scalars
from hloc.kernels.builder import Builder
from hloc.kernels.elemental.loop import cost_of, lower_loop, same_bytes
from hloc.kernels.elements import always
from hloc.kernels.group import Group, Lowered, Outline
from hloc.kernels.indexing import Index
from hloc.kernels.reductions.reduce import lower_reduce
from hloc.kernels.reductions.reduction import depends
from hloc.kernels.reductions.row_kernel import RowGroup, RowKernel, type_of
from hloc.kernels.rules.elementwise import zero
from hloc.machine import Machine
from hloc.ops.table import SCALARS

LOCAL_BYTES = 128 << 10         # of all Local arrays of one row together
WORTH_KEEPING = 6               # operations below which a value is recomputed
EXPENSIVE = frozenset(["gather", "concatenate", *(row.opcode for row in SCALARS.values()
                                                   if row.cost >= SCALARS["divide"].cost)])


def lower_rows(group: Group, machine: Machine) -> Lowered:
    """The kernel of a row group; groups that do not consist of rows are lowered as general reductions."""
    rows = _row_group(group)
    if rows is None:
        reduces = [m for m in group.members if m.opcode == "reduce"]
        nested = any(o.opcode != "reduce" and depends(o, reduces) for r in reduces for o in r.operands)
        return lower_loop(group, machine) if nested or not reduces else lower_reduce(group, machine)
    _choose_loops(rows)
    trial = RowKernel(rows, Outline(group), machine)
    trial.emit()
    final = RowKernel(rows, Outline(group), machine, _kept(rows, trial))
    final.emit()
    points = rows.rows * rows.columns
    operations = sum(len(t) for t in trial.traces)
    cost = cost_of(final.outline, points, trial.outline.builder)
    call = final.outline.finish(cost=cost._replace(flops=operations * points * 2))
    return Lowered((call,), can_share=tuple(_shareable(rows, trial)))


def _shareable(rows: RowGroup, trial: RowKernel) -> Iterator[tuple[int, int]]:
    """(result leaf, operand): operands that every stage up to the result's reads in place, and no later one."""
    for stage in range(rows.stages + 1):
        for leaf, root in rows.full_roots(stage):
            for parameter, number in rows.group.parameters.items():
                late = any(parameter in trace for trace in trial.traces[stage + 1:])
                if parameter.shape.is_array and not late and same_bytes(parameter, root) \
                        and _in_place(rows, parameter, trial):
                    yield leaf, number


def _row_group(group: Group) -> RowGroup | None:
    """The group as rows and columns; None if its reduces do not share them."""
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
    def emit(builder: Builder, counters: tuple[Index, ...]) -> None:
        outline, row = Outline(rows.group, builder), counters[0]
        position = indexing.linearize(counters, [rows.rows, rows.columns])
        for reduce in rows.reduces:
            for operand in reduce.operands[:len(reduce.operands) // 2]:
                outline.elements.value(operand, indexing.delinearize(position, operand.shape.dimensions))
            _bind_zero(outline, rows.group, reduce)
        for root in rows.group.roots:
            place = position if rows.is_full(root) else row
            outline.elements.value(root, indexing.delinearize(place, root.shape.dimensions))
    extents, origins, _ = loops.refine([rows.rows, rows.columns], emit)
    rows.row_extents = [n for n, o in zip(extents, origins) if o == 0]
    rows.column_extents = [n for n, o in zip(extents, origins) if o == 1]


def _bind_zero(outline: Outline, group: Group, reduce: Instruction) -> None:
    """For a trial: a reduce reads as zero."""
    for member in (reduce, *(m for m in group.members if m.operands[:1] == [reduce])):
        if member.shape.is_array and (member is reduce or member.opcode == "get-tuple-element"):
            outline.elements.sources[member] = always(zero(scalars.computation_type(member.shape.element_type)))


# -- values to keep ----------------------------------------------------------------------------------------------------

def _kept(rows: RowGroup, trial: RowKernel) -> dict[Instruction, int]:
    """Values that an early stage computes and a later one needs, and that cost more than a load: node -> first
    stage."""
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
            if node in kept or (first is not None and costs.get(node, 0) >= WORTH_KEEPING
                                and all(len(t.get(node, ())) < 2 for t in traces) and _in_place(rows, node, trial)):
                kept.setdefault(node, first if first is not None else stage)
            else:
                stack.extend(node.operands)
    fitting: dict[Instruction, int] = {}
    space = LOCAL_BYTES
    for node, stage in kept.items():
        space -= rows.columns * ELEMENT_TYPES[type_of(node)].bytes
        if space >= 0:
            fitting[node] = stage
    return fitting


def _targets(rows: RowGroup, stage: int) -> list[Instruction]:
    reduces = [r for r in rows.reduces if rows.levels[r] == stage]
    return [o for r in reduces for o in r.operands] + [r for _, r in rows.full_roots(stage)]


def _in_place(rows: RowGroup, node: Instruction, trial: RowKernel) -> bool:
    """Whether the node has full size and is read only at the current element of the loops."""
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
