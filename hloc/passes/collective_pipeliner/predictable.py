"""What of an iteration can be computed in another one.

In: a loop. Out: its counters, which are integers that grow by the same number in each iteration, and the instructions
that are made of counters and of what never changes, by moving elements, elementwise operations and collectives.

    body { i, ws never changes  s = dynamic-slice(ws, i)  w = all-gather(s)  y = dot(x, w)  n = add(i, 1) }
                                                     counters {0: 1}; predictable: s, w and n
"""
from __future__ import annotations

from hloc.analysis.fusible import DATA_MOVEMENT, is_elementwise
from hloc.analysis.while_loops import Loop, element_read, integer, invariant_elements, step_of
from hloc.ir import Instruction
from hloc.ir.types import INTEGRAL
from hloc.ops.collectives import EXCHANGES, OWN_NUMBERS
from hloc.passes.rewriter import control_dependent

SIMPLE = frozenset(["constant", "iota", *OWN_NUMBERS]) | DATA_MOVEMENT | EXCHANGES


def counters(loop: Loop) -> dict[int, int]:
    """Elements of the state, and what each iteration adds to them."""
    shapes = loop.instruction.shape.tuple_shapes
    steps = ((n, step_of(loop, n)) for n, s in enumerate(shapes) if s.element_type in INTEGRAL and not s.dimensions)
    return {n: step for n, step in steps if step}


def predictable(loop: Loop) -> dict[Instruction, bool]:
    """Whether each changes from one iteration to the next. Parts of these are reads of the loop's state."""
    same, counting = invariant_elements(loop), counters(loop)
    pinned = control_dependent(loop.body) | {loop.body.root}
    found: dict[Instruction, bool] = {}
    for instruction in loop.body.instructions:
        element = element_read(instruction, loop.body)
        if element is not None and element in same | counting.keys():
            found[instruction] = element not in same
        elif instruction not in pinned and _is_simple(instruction) and all(o in found for o in instruction.operands):
            found[instruction] = any(found[o] for o in instruction.operands)
    return found


def _is_simple(instruction: Instruction) -> bool:
    if not instruction.shape.is_array:
        return False
    return instruction.opcode in SIMPLE or is_elementwise(instruction)


def after(loop: Loop, element: int, iterations: int) -> int | None:
    """A counter's value after so many iterations; None where it starts with a value that is not known."""
    start = integer(loop.initial[element])
    return None if start is None else start + counters(loop)[element] * iterations
