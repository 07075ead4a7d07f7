"""The range of an integer instruction, from a few of its operands.

In: an instruction. Out: an interval, at most that of its element type. Indices that a program clips are known not to be
negative:

    interval(maximum(x, broadcast(constant(0))))  ->  (0, 2147483647)    for s32
"""
from __future__ import annotations

from collections.abc import Callable

from hloc.ir import ELEMENT_TYPES, Instruction

DEEPEST = 8                     # operands of operands: a chain doubles the work if both operands are visited

Interval = tuple[int, int]
SAME = frozenset(["broadcast", "reshape", "bitcast", "copy", "transpose", "slice", "reverse"])


def interval(instruction: Instruction, depth: int = DEEPEST) -> Interval:
    """(least, greatest) of the elements of an instruction of an integer type."""
    whole = interval_of_type(instruction.shape.element_type)
    if instruction.opcode == "constant":
        return _of_literal(instruction, whole)
    if depth == 0:
        return whole
    if instruction.opcode == "iota":
        length = instruction.shape.dimensions[instruction.get("iota_dimension")]
        return (0, max(0, length - 1)) if length - 1 <= whole[1] else whole
    if instruction.opcode in SAME and instruction.operands[0].shape.element_type == instruction.shape.element_type:
        return interval(instruction.operands[0], depth - 1)
    rule = RULES.get(instruction.opcode)
    found = rule(instruction, depth - 1) if rule else None
    return found if found and whole[0] <= found[0] and found[1] <= whole[1] else whole


def interval_of_type(element_type: str) -> Interval:
    row = ELEMENT_TYPES[element_type]
    if row.kind == "signed":
        return -(1 << (row.bits - 1)), (1 << (row.bits - 1)) - 1
    return 0, 1 if row.kind == "pred" else (1 << row.bits) - 1


def _of_literal(instruction: Instruction, whole: Interval) -> Interval:
    literal = instruction.array_literal
    return (int(literal.min()), int(literal.max())) if literal is not None and literal.size else whole


def _both(instruction: Instruction, depth: int) -> tuple[Interval, Interval]:
    a, b = instruction.operands[-2:]
    return interval(a, depth), interval(b, depth)


def _maximum(instruction: Instruction, depth: int) -> Interval:
    a, b = _both(instruction, depth)
    return max(a[0], b[0]), max(a[1], b[1])


def _minimum(instruction: Instruction, depth: int) -> Interval:
    a, b = _both(instruction, depth)
    return min(a[0], b[0]), min(a[1], b[1])


def _clamp(instruction: Instruction, depth: int) -> Interval:
    low, x, high = (interval(o, depth) for o in instruction.operands)
    return min(max(x[0], low[0]), high[0]), min(max(x[1], low[1]), high[1])


def _select(instruction: Instruction, depth: int) -> Interval:
    a, b = _both(instruction, depth)
    return min(a[0], b[0]), max(a[1], b[1])


def _add(instruction: Instruction, depth: int) -> Interval:
    a, b = _both(instruction, depth)
    return a[0] + b[0], a[1] + b[1]


def _subtract(instruction: Instruction, depth: int) -> Interval:
    a, b = _both(instruction, depth)
    return a[0] - b[1], a[1] - b[0]


def _and(instruction: Instruction, depth: int) -> Interval | None:
    """The range of an and: it has no bits that one operand does not have."""
    least = [high for low, high in _both(instruction, depth) if low >= 0]
    return (0, min(least)) if least else None


def _remainder(instruction: Instruction, depth: int) -> Interval | None:
    a, b = _both(instruction, depth)
    if b[0] <= 0:
        return None
    return (0 if a[0] >= 0 else 1 - b[1]), b[1] - 1


def _convert(instruction: Instruction, depth: int) -> Interval | None:
    source = instruction.operands[0]
    return interval(source, depth) if ELEMENT_TYPES[source.shape.element_type].kind in KINDS else None


KINDS = ("signed", "unsigned", "pred")
RULES: dict[str, Callable[[Instruction, int], Interval | None]] = {
    "maximum": _maximum, "minimum": _minimum, "clamp": _clamp, "select": _select, "add": _add,
    "subtract": _subtract, "and": _and, "remainder": _remainder, "convert": _convert,
}
