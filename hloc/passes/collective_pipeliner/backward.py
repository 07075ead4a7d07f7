"""Collectives of the next iteration in this one: what is made of counters and of what never changes.

    backward(loop, rewriter, channels)         the first collectives, a loop that runs once less, the last iteration
"""
from __future__ import annotations

from collections.abc import Iterable

from hloc.analysis.effects import has_side_effect
from hloc.analysis.while_loops import Loop, element_read, trip_count
from hloc.ir import Instruction
from hloc.ops.collectives import EXCHANGES
from hloc.passes.collective_combining import in_order
from hloc.passes.collective_pipeliner.predictable import counters, predictable
from hloc.passes.loop_rewriter import (
    CopiesInBody,
    copied,
    drop_hints,
    elements_of,
    end_one_earlier,
    extended,
    made_of,
    reads_replaced,
)
from hloc.passes.rewriter import Channels, Rewriter, control_dependent, remove_dead


def backward(loop: Loop, rewriter: Rewriter, channels: Channels) -> Instruction | None:
    """What stands for the loop, in a tuple of the old shape; None where there is nothing to move."""
    values = predictable(loop)
    found = read_collectives(loop, values)
    if not found or (trip_count(loop) or 0) < 2:
        return None
    order = made_of(found, values)
    first = copied(order, reads_replaced(order, loop, loop.initial), rewriter.adopt)
    channels.renumber(first)
    new, carries = extended(loop, loop.initial, [first[i] for i in found], rewriter)
    drop_hints(new)
    end_one_earlier(loop)
    ahead = next_iteration(loop, order, values)
    read_carried(loop, dict(zip(found, carries)), ahead)
    rest = [i for i in loop.body.instructions if i not in ahead and i.opcode != "parameter" and i is not loop.body.root]
    last = copied(rest, reads_replaced(rest, loop, elements_of(new, rewriter)), rewriter.adopt)
    channels.renumber(last)
    count = len(loop.updated) - len(found)
    return rewriter.add("tuple", loop.instruction.shape, [last[i] for i in loop.updated[:count]])


def read_collectives(loop: Loop, values: dict[Instruction, bool]) -> list[Instruction]:
    """The predictable collectives that change and that the rest of this iteration reads. Those that only the next one
    reads have been moved, or need not be."""
    ahead = {i for i, changes in values.items() if changes and i.opcode in EXCHANGES}
    needed = control_dependent(loop.body) | {loop.body.root}
    needed |= {i for i in loop.body.instructions if has_side_effect(i)}
    read: set[Instruction] = set()
    for instruction in reversed(loop.body.instructions):
        if instruction in needed and instruction not in ahead:
            needed.update(instruction.operands)
            if instruction is not loop.body.root:
                read.update(ahead.intersection(instruction.operands))
    return [i for i in loop.body.instructions if i in read]


def next_iteration(loop: Loop, order: Iterable[Instruction], values: dict[Instruction, bool]) -> dict[
        Instruction, Instruction]:
    """Copies of `order` with the counters of the next iteration, put into the body; by these the originals."""
    copies, counting = CopiesInBody(loop), counters(loop)
    known = {i: i for i in order if not values[i]}
    for instruction in order:
        element = element_read(instruction, loop.body)
        if element in counting:
            known[instruction] = loop.updated[element]
    made = copied(order, known, copies.adopt)
    loop.body.instructions[-1:-1] = copies.made
    new = set(copies.made)
    return {made[i]: i for i in order if made[i] in new}


def read_carried(loop: Loop, carried: dict[Instruction, Instruction], ahead: dict[Instruction, Instruction]) -> None:
    """Let the body read what it carries, and carry the collectives of the next iteration, which are among `ahead`."""
    body = loop.body
    for instruction in body.instructions:
        if instruction not in ahead:
            instruction.operands = [carried.get(o, o) for o in instruction.operands]
    copy = {original: made for made, original in ahead.items()}
    body.root.operands[len(body.root.operands) - len(carried):] = [copy[i] for i in carried]
    remove_dead(body, {i for i in copy if i.opcode in EXCHANGES})
    body.instructions = in_order(body.instructions)
