"""Facts about a while loop: its invariant elements, its induction variable, its trip count.

In: a `while` whose operand is a tuple. Out: for

    body { p = (s32[], f32[4]) parameter(0)  i = get-tuple-element(p), index=0  x = get-tuple-element(p), index=1
           n = add(i, constant(1))  ROOT t = tuple(n, x) }
    cond { ... ROOT c = compare(get-tuple-element(p), index=0, constant(10)), direction=LT }

element 1 is invariant, element 0 is the induction variable, and starting from 0 the loop runs 10 times.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from hloc.ir import Computation, Instruction, Module
from hloc.ir.types import ELEMENT_TYPES, INTEGRAL

MIRRORED = {"EQ": "EQ", "NE": "NE", "LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}


class Loop(NamedTuple):
    """A while loop whose state is a tuple that is only ever read element by element."""

    instruction: Instruction
    body: Computation
    condition: Computation

    @property
    def initial(self) -> list[Instruction]:
        """The values that the carried elements start with."""
        return self.instruction.operands[0].operands

    @property
    def updated(self) -> list[Instruction]:
        """The values in the body that the carried elements have in the next iteration."""
        return self.body.root.operands


def call_sites(module: Module) -> Counter[Computation]:
    """How often each computation is referred to."""
    return Counter(c for i in module.instructions() for c in i.called_computations)


def loop_of(instruction: Instruction, sites: Counter[Computation] | None = None) -> Loop | None:
    """The loop, if its state is a tuple that is only read by element; else None. With `sites`, no other loop may use
    its body and condition."""
    if instruction.opcode != "while" or instruction.operands[0].opcode != "tuple":
        return None
    body, condition = instruction.get("body"), instruction.get("condition")
    if body.root.opcode != "tuple" or body is condition:
        return None
    if sites is not None and (sites[body] != 1 or sites[condition] != 1):
        return None
    if not only_elements_read(body) or not only_elements_read(condition):
        return None
    return Loop(instruction, body, condition)


def only_elements_read(computation: Computation) -> bool:
    """Whether only get-tuple-elements read the parameter."""
    state = computation.parameters[0]
    return computation.root is not state and all(
        i.opcode == "get-tuple-element" for i in computation.instructions if state in i.operands)


def element_read(instruction: Instruction, computation: Computation) -> int | None:
    """The number of the carried element that `instruction` is, or None."""
    if instruction.opcode != "get-tuple-element" or instruction.operands[0].opcode != "parameter":
        return None
    return instruction.get("index")


def reads_of(loop: Loop, index: int, uses: Mapping[Instruction, int]) -> int:
    """How many operand slots of the body read element `index`, where `uses` says how many read each instruction."""
    return sum(uses[i] for i in loop.body.instructions if element_read(i, loop.body) == index)


def compared_elements(loop: Loop) -> set[int]:
    """The carried elements that the condition reads."""
    return {n for i in loop.condition.instructions if (n := element_read(i, loop.condition)) is not None}


def invariant_elements(loop: Loop) -> set[int]:
    """The carried elements that the body returns unchanged."""
    return {n for n, value in enumerate(loop.updated) if element_read(value, loop.body) == n}


class Induction(NamedTuple):
    """Carried element number `element` starts at `start` and grows by `step`; the loop goes on while `direction` holds
    to `limit`."""

    element: int
    start: int
    step: int
    direction: str
    limit: int


def induction_of(loop: Loop) -> Induction | None:
    """The variable that the condition compares with a known limit, if its start and step are known, too."""
    compare = loop.condition.root
    if compare.opcode != "compare" or compare.operands[0].shape.element_type not in INTEGRAL:
        return None
    left, right = compare.operands
    direction = compare.get("direction")
    index, limit = element_read(left, loop.condition), known(right, loop)
    if index is None or limit is None:
        index, limit = element_read(right, loop.condition), known(left, loop)
        direction = MIRRORED[direction]
    if index is None or limit is None:
        return None
    start, step = integer(loop.initial[index]), step_of(loop, index)
    if start is None or not step:
        return None
    return Induction(index, start, step, direction, limit)


def known(instruction: Instruction, loop: Loop) -> int | None:
    """A constant of the condition, or an invariant element that starts with one."""
    index = element_read(instruction, loop.condition)
    if index is None:
        return integer(instruction)
    return integer(loop.initial[index]) if element_read(loop.updated[index], loop.body) == index else None


def integer(instruction: Instruction) -> int | None:
    """The value of an integer constant of one element."""
    literal = instruction.array_literal
    if instruction.opcode != "constant" or literal is None or instruction.shape.element_type not in INTEGRAL:
        return None
    return int(literal.reshape(-1)[0]) if literal.size == 1 else None


def step_of(loop: Loop, index: int, new: Instruction | None = None) -> int | None:
    """What the body adds to element `index`, or None. new: its value in the next iteration, if the loop has a copy."""
    new = loop.updated[index] if new is None else new
    if new.opcode not in ("add", "subtract"):
        return None
    left, right = new.operands
    if element_read(left, loop.body) == index:
        amount = integer(right)
        return -amount if amount is not None and new.opcode == "subtract" else amount
    return integer(left) if new.opcode == "add" and element_read(right, loop.body) == index else None


def trip_count(loop: Loop) -> int | None:
    """How often the body runs, or None if that is unknown or the counter would overflow."""
    induction = induction_of(loop)
    if induction is None:
        return None
    _, start, step, direction, limit = induction
    row = ELEMENT_TYPES[loop.initial[induction.element].shape.element_type]
    if row.kind == "unsigned" and step >= 1 << (row.bits - 1):
        step -= 1 << row.bits                                 # adding 2^n - 1 subtracts 1
    count = count_steps(start, step, direction, limit)
    if count is None:
        return None
    least = -(1 << (row.bits - 1)) if row.kind == "signed" else 0
    return count if least <= start + count * step < least + (1 << row.bits) else None


def count_steps(start: int, step: int, direction: str, limit: int) -> int | None:
    """How many of start, start + step, start + 2 step ... come before the first that fails the comparison."""
    if direction in ("GT", "GE"):
        start, step, limit = -start, -step, -limit
        direction = {"GT": "LT", "GE": "LE"}[direction]
    if direction == "LE":
        limit, direction = limit + 1, "LT"
    if direction == "LT":
        if start >= limit:
            return 0
        return -((start - limit) // step) if step > 0 else None
    if direction == "NE":
        distance = limit - start
        return distance // step if distance % step == 0 and distance // step >= 0 else None
    return 1 if start == limit else 0                         # EQ: the second value differs, as the step is not zero
