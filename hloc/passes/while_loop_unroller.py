"""Unrolls loops with few elementwise iterations, such as the rounds of a random generator: they become one kernel.

    w = (s32[], f32[4]) while(tuple(0, x)), condition={i < 3}, body={(i + 1, f(x))}
    =>
    t = (s32[], f32[4]) tuple(3, f(f(f(x))))

The body must run 2 to MOST_STEPS times, and be elementwise, except for small arrays, of which it may read any part: all
iterations together are then one kernel. On a CPU its instructions must be cheap: in a chain of long functions each
waits for the one before, while a loop over the array per iteration computes other elements meanwhile.
"""
from __future__ import annotations

import math

from hloc.analysis.cost import operations
from hloc.analysis.effects import has_side_effect
from hloc.analysis.fusible import DATA_MOVEMENT, is_elementwise
from hloc.analysis.while_loops import Loop, loop_of, trip_count
from hloc.ir import Computation, Instruction, Module, Shape, reachable_computations
from hloc.passes.call_inliner import inline
from hloc.passes.context import PassContext
from hloc.passes.rewriter import Rewriter, rewrite

MOST_STEPS = 16
MOST_INSTRUCTIONS = 256         # that compute something, in all steps together
MOST_OPERATIONS = 4             # of an instruction on a CPU: a division's
SMALL = 64                      # elements of arrays that may be read and written anywhere
WITHIN_SMALL = frozenset(["dot", "reduce", "dynamic-update-slice", *DATA_MOVEMENT])


def while_loop_unroller(module: Module, context: PassContext) -> bool:
    """Unroll small loops. True if there was one."""
    def visit(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
        loop = loop_of(instruction)
        if loop is None or not may_be_one_kernel(loop) or long_functions_wait(loop, context):
            return None
        state = instruction.operands[0]
        for _ in range(trip_count(loop) or 0):
            state = inline(loop.body, [state], rewriter)
        return state

    changed = False
    for computation in reachable_computations(module.entry):
        changed |= rewrite(computation, visit, opcodes=("while",))
    return changed


def long_functions_wait(loop: Loop, context: PassContext) -> bool:
    return context.machine.kind == "cpu" and any(operations(i) > MOST_OPERATIONS for i in loop.body.instructions)


def may_be_one_kernel(loop: Loop) -> bool:
    steps = trip_count(loop)
    if steps is None or not 1 < steps <= MOST_STEPS or not all(is_plain(i) for i in loop.body.instructions):
        return False
    return (steps * computing(loop.body) <= MOST_INSTRUCTIONS
            and not any(has_side_effect(i) for i in loop.condition.instructions))


def is_plain(instruction: Instruction) -> bool:
    """Whether an instruction is elementwise, or of small arrays."""
    if instruction.control_predecessors:
        return False
    if is_free(instruction) or is_elementwise(instruction):
        return True
    return instruction.opcode in WITHIN_SMALL and all(
        is_small(shape) for shape in (instruction.shape, *(o.shape for o in instruction.operands)))


def is_small(shape: Shape) -> bool:
    return shape.is_array and not shape.is_dynamic and math.prod(shape.dimensions) <= SMALL


def computing(body: Computation) -> int:
    return sum(not is_free(i) for i in body.instructions)


def is_free(instruction: Instruction) -> bool:
    """No work in a kernel: names, constants, and what spreads or renames elements."""
    return operations(instruction) == 0
