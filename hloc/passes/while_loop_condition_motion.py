"""Moves a loop's condition into the body, whose kernels then compute it for the next iteration.

    while (s), condition={ compare(s.i, s.n) }, body={ tuple(i + 1, n) }
    =>
    while (s, compare(s.i, s.n)), condition={ the last element }, body={ tuple(i + 1, n, compare(i + 1, n)) }

On a GPU the condition would be a kernel of its own, which does next to nothing; in the body it is fused with what
computes its operands. Loops that are counted need no condition there, and are left alone, as are conditions with loops,
branches or effects of their own.
"""
from __future__ import annotations

from hloc.analysis.effects import has_side_effect
from hloc.analysis.loop_annotations import known_trip_count
from hloc.analysis.while_loops import Loop, element_read
from hloc.ir import Instruction, Module
from hloc.passes.context import PassContext
from hloc.passes.loop_rewriter import CopiesInBody, carrying, copied, made_of, reads_replaced, rewrite_loops
from hloc.passes.rewriter import Names, Rewriter, remove_dead

LEFT_ALONE = frozenset(["while", "conditional", "call", "custom-call"])


def while_loop_condition_motion(module: Module, context: PassContext) -> bool:
    """Let the body of each uncounted loop compute its condition. True if anything changed."""
    return rewrite_loops(module, change)


def change(loop: Loop, rewriter: Rewriter) -> Instruction | None:
    root = loop.condition.root
    if known_trip_count(loop.instruction) is not None or element_read(root, loop.condition) is not None:
        return None
    order = [i for i in made_of([root], loop.condition.instructions) if i.opcode != "parameter"]
    if any(i.opcode in LEFT_ALONE or has_side_effect(i) or i.control_predecessors for i in order):
        return None
    first = copied(order, reads_replaced(order, loop, loop.initial), rewriter.adopt)[root]
    new, _ = carrying(loop, [first], rewriter)
    _compute_next(loop, order)
    _read_flag(loop)
    return new


def _compute_next(loop: Loop, order: list[Instruction]) -> None:
    """Let the last element that the body returns be the condition of the next iteration."""
    body, copies = loop.body, CopiesInBody(loop)
    made = copied(order, reads_replaced(order, loop, loop.updated), copies.adopt)
    place = body.instructions.index(body.root)
    body.instructions[place:place] = copies.made
    body.root.operands[-1] = made[loop.condition.root]
    remove_dead(body)


def _read_flag(loop: Loop) -> None:
    """Let the condition be the last element of the state."""
    condition = loop.condition
    (state,), root = condition.parameters, condition.root
    names = Names(i.name for i in condition.instructions)
    flag = Instruction(names.fresh("get-tuple-element"), "get-tuple-element", root.shape, [state],
                       {"index": len(state.shape.tuple_shapes) - 1}, span=root.span)
    condition.instructions.append(flag)
    condition.root = flag
    remove_dead(condition)
