"""Element rules of ops whose source position is data-dependent: dynamic-slice, dynamic-update-slice, gather.

Start indices are clamped as HLO specifies, hoisted out of the loops that do not change them, and enter the index
algebra as variables with known bounds.
"""
from __future__ import annotations

from hloc.ir import ELEMENT_TYPES, Instruction
from hloc.kernels import indexing, scalars
from hloc.kernels.builder import within
from hloc.kernels.elements import Asking, Elements, Indices, Rule, Steps
from hloc.kernels.indexing import Index
from hloc.kernels.ir import INDEX, Apply, Const, Expr
from hloc.kernels.rules.elementwise import guarded, loads_before

MOST_LOOKED_AT = 64


def clamped_start(e: Elements, value: Expr, limit: int, source: Instruction) -> Index:
    """A start index between 0 and limit; `source` is the instruction that computes `value`.

    One that can only be 0 or 1 is hidden from the C compiler, for the sake of gcc 12 (hloc_opaque_index).
    """
    if limit <= 0:
        return indexing.ZERO
    clamped = clamp(e.builder.let(value), limit)
    if limit == 1 or may_be_truth(source):
        clamped = Apply("opaque", (clamped,), INDEX)
    start = e.builder.bind_index(clamped, 0, limit)
    return start


def clamp(value: Expr, limit: int) -> Expr:
    """An integer between 0 and limit, as INDEX; compared in its own type if that holds the limit: 32-bit vectors have
    twice as many lanes as those of INDEX."""
    row = ELEMENT_TYPES[value.type]
    if row.bits >= 32 and limit < 1 << (row.bits - 1):
        raised = value if row.kind == "unsigned" else Apply("maximum", (value, Const(0, value.type)), value.type)
        return scalars.to_index(Apply("minimum", (raised, Const(limit, value.type)), value.type))
    raised = Apply("maximum", (scalars.to_index(value), Const(0, INDEX)), INDEX)
    return Apply("minimum", (raised, Const(limit, INDEX)), INDEX)


def may_be_truth(source: Instruction) -> bool:
    """Whether an index may come from truth values, as far as its operands tell within a few steps. The condition of a
    select does not make its values 0 or 1."""
    stack = [source]
    seen: set[Instruction] = set()
    while stack and len(seen) < MOST_LOOKED_AT:
        top = stack.pop()
        if top in seen:
            continue
        seen.add(top)
        if top.shape.is_array and (top.shape.element_type == "pred" or ELEMENT_TYPES[top.shape.element_type].bits == 1):
            return True
        stack.extend(top.operands[1:] if top.opcode == "select" else top.operands)
    return bool(stack)


def start_indices(e: Elements, operands: list[Instruction], limits: list[int]) -> Asking[list[Index]]:
    """One clamped start per dimension; given as scalars, or (old form) as one vector."""
    starts: list[Index] = []
    for d, limit in enumerate(limits):
        if limit <= 0:
            starts.append(indexing.ZERO)
            continue
        if len(operands) == 1 and operands[0].shape.rank == 1:
            value = yield operands[0], (indexing.constant(d),)
        else:
            value = yield operands[d], ()
        starts.append(clamped_start(e, value, limit, operands[d if len(operands) > d else 0]))
    return starts


def dynamic_slice(e: Elements, instruction: Instruction, index: Indices) -> Steps:
    operand = instruction.operands[0]
    limits = [n - s for n, s in zip(operand.shape.dimensions, instruction.shape.dimensions)]
    starts = yield from start_indices(e, instruction.operands[1:], limits)
    return (yield operand, tuple(indexing.add(s, i) for s, i in zip(starts, index)))


def dynamic_update_slice(e: Elements, instruction: Instruction, index: Indices) -> Steps:
    operand, update = instruction.operands[:2]
    sizes = update.shape.dimensions
    limits = [n - s for n, s in zip(operand.shape.dimensions, sizes)]
    starts = yield from start_indices(e, instruction.operands[2:], limits)
    wanted = tuple(indexing.subtract(i, s) for i, s in zip(index, starts))
    conditions = [c for i, n in zip(wanted, sizes) for c in within(i, n, e.builder)]
    if not conditions:
        return (yield update, wanted)
    old = yield operand, index
    return (yield from guarded(e, update, wanted, conditions, old))


def gather(e: Elements, instruction: Instruction, index: Indices) -> Steps:
    operand, indices = instruction.operands
    offset_dims = instruction.get("offset_dims", ())
    batch = [i for d, i in enumerate(index) if d not in offset_dims]
    sizes = instruction.get("slice_sizes", ())
    limits = [n - s for n, s in zip(operand.shape.dimensions, sizes)]
    wanted = [indexing.ZERO] * operand.shape.rank
    for component, d in enumerate(instruction.get("start_index_map", ())):
        if limits[d] > 0:
            value = yield indices, indices_position(instruction, indices, batch, component)
            wanted[d] = clamped_start(e, value, limits[d], indices)
    add_batch(wanted, batch, instruction, "operand_batching_dims", "start_indices_batching_dims")
    window = window_dimensions(operand.shape.rank, instruction, "collapsed_slice_dims")
    for d, offset in zip(window, offset_dims):
        wanted[d] = indexing.add(wanted[d], index[offset])
    return loads_before(e, (yield operand, tuple(wanted)))         # under a condition: a data-dependent branch


def indices_position(instruction: Instruction, indices: Instruction, batch: list[Index], component: int) -> Indices:
    """The position of component `component` of a start vector in the array of indices."""
    vector = instruction.get("index_vector_dim", indices.shape.rank)
    if vector == indices.shape.rank:
        return tuple(batch)
    return (*batch[:vector], indexing.constant(component), *batch[vector:])


def add_batch(wanted: list[Index], batch: list[Index], instruction: Instruction, dimensions: str,
              sources: str) -> None:
    """Set the positions along the batching dimensions of an array, by those of the indices."""
    vector = instruction.get("index_vector_dim")
    for d, source in zip(instruction.get(dimensions, ()), instruction.get(sources, ())):
        wanted[d] = batch[source - (1 if vector is not None and source > vector else 0)]


def window_dimensions(rank: int, instruction: Instruction, collapsed: str) -> list[int]:
    """Operand dimensions that a gathered or scattered window spans."""
    gone = {*instruction.get(collapsed, ()), *instruction.get("operand_batching_dims", ()),
            *instruction.get("input_batching_dims", ())}
    return [d for d in range(rank) if d not in gone]


INDEXING_RULES: dict[str, Rule] = {
    "dynamic-slice": dynamic_slice, "dynamic-update-slice": dynamic_update_slice, "gather": gather,
}
