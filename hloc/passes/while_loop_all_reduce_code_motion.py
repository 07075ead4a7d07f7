"""Moves an all-reduce out of a loop that only adds up what it gives.

    body { s = s + all-reduce(g) }          =>     body { s' = s' + g }, s' = 0 before the loop
    r = s of the loop                              r = (s before the loop) + all-reduce(s' of the loop)

Nothing else in the loop may read s or the all-reduce. The devices then meet once instead of in each iteration. Sums of
floats are taken in another order: XLA's pass of this name does the same; integers are the same bit for bit. Source:
xla/service/while_loop_all_reduce_code_motion.cc.
"""
from __future__ import annotations

from typing import NamedTuple

from hloc.analysis.while_loops import Loop, compared_elements, element_read, reads_of
from hloc.ir import Instruction, Module
from hloc.passes.collective_combining import is_of_array
from hloc.passes.context import PassContext
from hloc.passes.expressions import Expressions
from hloc.passes.loop_rewriter import elements_of, rewrite_loops
from hloc.passes.rewriter import Names, Rewriter, control_dependent, count_uses, remove_dead
from hloc.sharding.rules import combiner_of


class Sum(NamedTuple):
    """Element `element` of a loop's state, which `add` increases by what `reduce` gives."""

    element: int
    add: Instruction
    reduce: Instruction


def while_loop_all_reduce_code_motion(module: Module, context: PassContext) -> bool:
    """True if an all-reduce left a loop."""
    return rewrite_loops(module, change)


def change(loop: Loop, rewriter: Rewriter) -> Instruction | None:
    found = sums(loop)
    return moved(loop, found, rewriter) if found else None


def sums(loop: Loop) -> list[Sum]:
    """Those of a loop whose all-reduce may leave it."""
    uses, pinned = count_uses(loop.body), control_dependent(loop.body)
    asked = compared_elements(loop)
    found = []
    for index, add in enumerate(loop.updated):
        if add.opcode != "add" or uses[add] != 1 or index in asked:
            continue
        for before, reduce in (add.operands, add.operands[::-1]):
            if element_read(before, loop.body) == index and _is_plain(reduce) and uses[reduce] == 1 \
                    and reduce not in pinned and reads_of(loop, index, uses) == 1:
                found.append(Sum(index, add, reduce))
                break
    return found


def _is_plain(reduce: Instruction) -> bool:
    return is_of_array(reduce, "all-reduce") and combiner_of(reduce) == "add"


def moved(loop: Loop, found: list[Sum], rewriter: Rewriter) -> Instruction:
    """The loop with partial sums, and behind it the all-reduces, in a tuple of the old shape."""
    old, e = loop.instruction, Expressions(rewriter, loop.instruction.span)
    names = Names(i.name for i in loop.body.instructions)
    initial = list(loop.initial)
    for one in found:
        before = next(o for o in one.add.operands if o is not one.reduce)
        partial = Instruction(names.fresh("add"), "add", one.add.shape, [before, one.reduce.operands[0]],
                              {k: v for k, v in one.add.attributes.items() if k == "metadata"}, span=one.add.span)
        loop.body.instructions.insert(loop.body.instructions.index(one.add), partial)
        loop.body.root.operands[one.element] = partial
        initial[one.element] = e.full(0, one.add.shape)
    _drop(loop, found)
    new = rewriter.change(old, operands=[rewriter.add("tuple", old.shape, initial)])
    elements = elements_of(new, rewriter)
    for one in found:
        whole = rewriter.add("all-reduce", one.reduce.shape, [elements[one.element]],
                             {k: v for k, v in one.reduce.attributes.items() if k != "sharding"})
        elements[one.element] = rewriter.add("add", one.add.shape, [loop.initial[one.element], whole])
    return rewriter.add("tuple", old.shape, elements)


def _drop(loop: Loop, found: list[Sum]) -> None:
    """The all-reduces, and what only they needed, out of the body."""
    gone = {one.add for one in found} | {one.reduce for one in found}
    loop.body.instructions = [i for i in loop.body.instructions if i not in gone]
    remove_dead(loop.body)
