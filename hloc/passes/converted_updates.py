"""Lets updates of a converted array that is converted back update the narrow array itself.

    w = f32[9,4] convert(x)                          // x: bf16[9,4]
    s = f32[9,4] scatter(w, i, u)                    // overwrites
    r = bf16[9,4] convert(s)
    =>
    r = bf16[9,4] scatter(x, i, bf16[4] convert(u))

Other elements keep their value, because the wide type holds every value of the narrow one; the whole array is not
written. A scatter that combines has one window and comes first in a chain: it reads x there, computes in the wide type
and overwrites with the rounded result. Others may add to one place several times before they round. Where a mask keeps
what the update before has put there (selected_updates.py), it keeps it as rounded.
"""
from __future__ import annotations

from math import prod

from hloc.ir import Computation, Instruction, Module, array
from hloc.passes.algebraic_simplifier.converts import holds
from hloc.passes.algebraic_simplifier.selected_updates import is_link, pays
from hloc.passes.expressions import Body
from hloc.passes.patterns import reshape
from hloc.passes.rewriter import Rewriter
from hloc.passes.scatter_simplifier import combines, overwrites, window_sizes

GATHERED = {                            # how a gather reads what a scatter writes
    "offset_dims": "update_window_dims", "collapsed_slice_dims": "inserted_window_dims",
    "start_index_map": "scatter_dims_to_operand_dims", "index_vector_dim": "index_vector_dim",
    "operand_batching_dims": "input_batching_dims", "start_indices_batching_dims": "scatter_indices_batching_dims",
    "indices_are_sorted": "indices_are_sorted"}


def narrow_updates(module: Module, convert: Instruction, rewriter: Rewriter) -> Instruction | None:
    """A `convert` of a chain of updates, as updates of the narrow array; None if it is something else."""
    chain = wide_chain(convert, rewriter)
    if chain is None:
        return None
    value, links = chain
    if not pays(value, links, []) or not all(is_narrowable(link, link is links[0]) for link in links):
        return None
    for link in links:
        value = narrowed(module, rewriter, link, value)
    return value


def wide_chain(convert: Instruction, rewriter: Rewriter) -> tuple[Instruction, list[Instruction]] | None:
    """The narrow array, and the updates and reshapes of its wide copy, from there on, without other users."""
    links, top = [], convert.operands[0]
    readers = 1
    while is_link(top) and rewriter.uses(top) == readers:
        links.append(top)
        readers = 2 if kept_part(top, rewriter) is not None else 1
        top = top.operands[0]
    if not links or top.opcode != "convert":
        return None
    x, type = top.operands[0], convert.shape.element_type
    return (x, links[::-1]) if x.shape.element_type == type and holds(top.shape.element_type, type) else None


def kept_part(link: Instruction, rewriter: Rewriter) -> Instruction | None:
    """Of an update by select(mask, new, dynamic-slice(y)), y being what is updated: that slice, without other users
    and whose values only move."""
    if link.opcode != "dynamic-update-slice" or link.operands[1].opcode != "select":
        return None
    arms = link.operands[1].operands[1:]
    return next((arm for arm in arms if arm.opcode == "dynamic-slice" and arm.operands[0] is link.operands[0]
                 and rewriter.uses(arm) == 1), None)


def is_narrowable(link: Instruction, first: bool) -> bool:
    """Whether an update may round at once: it overwrites, or it reads the narrow array and each place once."""
    return link.opcode != "scatter" or overwrites(link) or (first and combines(link) and has_one_window(link))


def has_one_window(scatter: Instruction) -> bool:
    """Whether a scatter has one window, or one for each of a batch."""
    shape, update = scatter.shape, scatter.operands[2].shape
    batch = prod(shape.dimensions[d] for d in scatter.get("input_batching_dims", ()))
    return prod(window_sizes(scatter)) * batch == update.num_elements


def narrowed(module: Module, rewriter: Rewriter, link: Instruction, value: Instruction) -> Instruction:
    """The update `link` of `value`, which is narrow."""
    type = value.shape.element_type
    shape = link.shape.with_element_type(type)
    if link.opcode == "reshape":
        return reshape(rewriter, value, shape)
    if link.opcode == "dynamic-update-slice":
        return rewriter.change(link, shape=shape,
                               operands=[value, narrowed_update(rewriter, link, value), *link.operands[2:]])
    _, indices, update = link.operands
    new = update if overwrites(link) else combined(rewriter, link, value)
    return rewriter.change(link, shape=shape, operands=[value, indices, converted(rewriter, new, type)],
                           to_apply=second_of_two(module, link, type))


def narrowed_update(rewriter: Rewriter, link: Instruction, value: Instruction) -> Instruction:
    """What a dynamic-update-slice puts into the narrow `value`."""
    update, kept, type = link.operands[1], kept_part(link, rewriter), value.shape.element_type
    if kept is None:
        return converted(rewriter, update, type)
    arms = [rewriter.change(kept, shape=kept.shape.with_element_type(type), operands=[value, *kept.operands[1:]])
            if arm is kept else converted(rewriter, arm, type) for arm in update.operands[1:]]
    return rewriter.change(update, shape=update.shape.with_element_type(type), operands=[update.operands[0], *arms])


def converted(rewriter: Rewriter, x: Instruction, type: str) -> Instruction:
    return rewriter.add("convert", x.shape.with_element_type(type), [x])


def second_of_two(module: Module, scatter: Instruction, type: str) -> Computation:
    """A combiner that gives its second parameter."""
    body = Body(scatter.span)
    body.parameter(0, array(type))
    return body.finish(module, "second", body.parameter(1, array(type)))


def combined(rewriter: Rewriter, scatter: Instruction, value: Instruction) -> Instruction:
    """What a scatter that combines puts there: the result, in the wide type, of what lies there and the update. Where
    an index lies outside of the array, that is of something else, and the scatter leaves it out."""
    _, indices, update = scatter.operands
    place = {new: scatter.get(old) for new, old in GATHERED.items() if scatter.get(old) is not None}
    old = rewriter.add("gather", update.shape.with_element_type(value.shape.element_type), [value, indices],
                       {**place, "slice_sizes": tuple(window_sizes(scatter))})
    return rewriter.add(scatter.get("to_apply").root.opcode, update.shape,
                        [converted(rewriter, old, update.shape.element_type), update])
