"""Joins before the devices do: one all-reduce of what two were of.

    add(all-reduce(x), all-reduce(y))     =>     all-reduce(add(x, y))

Both join elements as the operation between them does (add, multiply, maximum, minimum, and, or), over the same
devices, and nobody else reads them. Sums and products of floats are taken in another order then, as by XLA's pass of
this name. Integers, maxima and booleans are the same bit for bit.
"""
from __future__ import annotations

from hloc.ir import Instruction, Module
from hloc.passes.collective_combining import drop_replaced, is_of_array, reduction_key
from hloc.passes.context import PassContext
from hloc.passes.rewriter import Rewriter, rewrite_module
from hloc.sharding.rules import combiner_of

JOINING = frozenset(["add", "multiply", "maximum", "minimum", "and", "or"])


def all_reduce_reassociate(module: Module, context: PassContext) -> bool:
    """True if two all-reduces became one."""
    replaced: set[Instruction] = set()
    changed = rewrite_module(module, lambda i, rewriter: visit(i, rewriter, replaced, context), opcodes=JOINING)
    drop_replaced(module, replaced)
    return changed


def visit(instruction: Instruction, rewriter: Rewriter, replaced: set[Instruction],
          context: PassContext) -> Instruction | None:
    """The one all-reduce; the two are added to `replaced`."""
    left, right = instruction.operands
    if left is right or not all(is_of_array(o, "all-reduce") and rewriter.uses(o) == 1 for o in (left, right)):
        return None
    if reduction_key(left) != reduction_key(right) or combiner_of(left) != instruction.opcode:
        return None
    replaced.update(instruction.operands)
    context.join(left, [right])
    joined = rewriter.add(instruction.opcode, instruction.shape, [left.operands[0], right.operands[0]])
    return rewriter.change(left, operands=[joined], shape=instruction.shape)
