"""Are two modules the same? Compares everything but places in the text; says where they first differ."""
from __future__ import annotations

from itertools import zip_longest

import numpy as np

from hloc.ir import Computation, Instruction, Module


def difference(one: Module, other: Module) -> str | None:
    """The first difference in words, or None."""
    for field in ("name", "attributes", "tables", "is_scheduled"):
        if getattr(one, field) != getattr(other, field):
            return f"{field}: {getattr(one, field)!r} and {getattr(other, field)!r}"
    if one.entry.name != other.entry.name:
        return f"entry: {one.entry.name} and {other.entry.name}"
    for a, b in zip_longest(one.computations, other.computations):
        if a is None or b is None or _described(a) != _described(b):
            return f"computations {a} and {b}"
        for i, j in zip_longest(a.instructions, b.instructions):
            if i is None or j is None:
                return f"{a.name}: {i} and {j}"
            found = instruction_difference(i, j)
            if found:
                return f"{a.name}: {i.name}: {found}"
    return None


def _described(computation: Computation) -> tuple:
    return computation.name, computation.root.name, computation.attributes


def instruction_difference(one: Instruction, other: Instruction) -> str | None:
    """The first difference of two instructions, or None."""
    for field in ("name", "opcode", "shape", "parameter_number"):
        if getattr(one, field) != getattr(other, field):
            return f"{field}: {getattr(one, field)} and {getattr(other, field)}"
    if _names(one.operands) != _names(other.operands):
        return f"operands: {_names(one.operands)} and {_names(other.operands)}"
    if _names(one.control_predecessors) != _names(other.control_predecessors):
        return "control predecessors"
    mine, theirs = _plain(one.attributes), _plain(other.attributes)
    if mine != theirs:
        return f"attributes: {mine} and {theirs}"
    return None if same_value(one.literal, other.literal) else f"literals: {one.literal} and {other.literal}"


def _names(instructions) -> list[str]:
    return [i.name for i in instructions]


def _plain(attributes: dict) -> dict:
    """Computations by their names; every value with its type."""
    plain = {}
    for key, value in attributes.items():
        if isinstance(value, Computation):
            value = value.name
        elif type(value) is tuple and value and isinstance(value[0], Computation):
            value = tuple(c.name for c in value)
        plain[key] = (type(value).__name__, value)
    return plain


def same_value(one, other) -> bool:
    """Equal literals, bit by bit."""
    pairs = [(one, other)]
    while pairs:
        a, b = pairs.pop()
        if a is None or b is None:
            if a is not b:
                return False
        elif isinstance(a, tuple):
            if not isinstance(b, tuple) or len(a) != len(b):
                return False
            pairs.extend(zip(a, b))
        elif a.dtype != b.dtype or a.shape != b.shape or not np.array_equal(_bits(a), _bits(b)):
            return False
    return True


def _bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
