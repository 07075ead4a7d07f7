"""Reducers that may be reassociated: the op and its identity.

In: a reduce's to_apply. Out: "add", "maximum" ... if it is one binary operation of its two parameters that may be done
in any order; None for everything else (argmax pairs and such), which then keeps one chain of updates.
"""
from __future__ import annotations

import math

import numpy as np

from hloc.ir import ELEMENT_TYPES, Computation, Instruction
from hloc.kernels.ir import Const
from hloc.kernels.scalars import computation_type, literal
from hloc.ops.combiners import plain_opcode

MONOIDS = frozenset(["add", "multiply", "maximum", "minimum", "and", "or", "xor"])


def monoid(computation: Computation) -> str | None:
    """The op, if the reducer is op(parameter 0, parameter 1) in either order, apart from conversions that keep all
    numbers of the parameters."""
    opcode = plain_opcode(computation)
    return opcode if opcode in MONOIDS and computation.root.opcode != "tuple" else None


def identity(op: str, element_type: str) -> Const:
    """The identity of op, in computation form."""
    type = computation_type(element_type)
    kind = ELEMENT_TYPES[type].kind
    if op == "multiply" or (op in ("and", "minimum") and kind == "pred"):
        return Const({"pred": True, "float": 1.0, "complex": 1 + 0j}.get(kind, 1), type)
    if op in ("maximum", "minimum") and kind == "float":
        return Const(-math.inf if op == "maximum" else math.inf, type)
    if op in ("maximum", "minimum") and kind in ("signed", "unsigned"):
        limits = np.iinfo(ELEMENT_TYPES[type].dtype)
        return Const(int(limits.min if op == "maximum" else limits.max), type)
    if op == "and":
        return Const(-1 if kind == "signed" else int(np.iinfo(ELEMENT_TYPES[type].dtype).max), type)
    return Const({"pred": False, "float": 0.0, "complex": 0j}.get(kind, 0), type)


def is_identity(initial: Instruction, op: str) -> bool:
    """Whether the initial value is a literal equal to the identity of op, so that it can be omitted."""
    if initial.opcode != "constant" or initial.literal is None or initial.shape.num_elements != 1:
        return False
    return literal(initial.literal, initial.shape.element_type) == identity(op, initial.shape.element_type)


def chosen_integer(reduce: Instruction) -> str | None:
    """"maximum" or "minimum", if a reduce gives the larger (smaller) of integers with its position, and of equal ones
    the lower position: the order is then arbitrary.

        above = a > b;  (select(above, a, b), select(above | (a == b & i < j), i, j))
    """
    if not _selects_two(reduce) or _kind(reduce.operands[0]) not in ("signed", "unsigned"):
        return None
    computation = reduce.get("to_apply")
    a, _, b, _ = computation.parameters
    above = computation.root.operands[0].operands[0]
    return _direction(above) if _compares(above, (a, b), ("GT", "LT")) \
        and _chooses(computation.root, computation.parameters, above) else None


def chosen_float(reduce: Instruction) -> str | None:
    """"maximum" or "minimum", if a reduce gives the largest (smallest) of floats with its position, and of equal ones
    the lower position; the first NaN precedes all numbers.

        above = a > b | a != a;  (select(above, a, b), select(above | (a == b & i < j), i, j))
    """
    if not _selects_two(reduce) or _kind(reduce.operands[0]) != "float" or _kind(reduce.operands[1]) != "signed":
        return None
    computation = reduce.get("to_apply")
    a, _, b, _ = computation.parameters
    above = computation.root.operands[0].operands[0]
    if above.opcode != "or" or not _chooses(computation.root, computation.parameters, above):
        return None
    for larger, is_nan in (above.operands, above.operands[::-1]):
        if _compares(is_nan, (a, a), ("NE",)) and _compares(larger, (a, b), ("GT", "LT")):
            return _direction(larger)
    return None


def _selects_two(reduce: Instruction) -> bool:
    """Whether a reduce of two arrays gives values selected from either."""
    root = reduce.get("to_apply").root
    return len(reduce.operands) == 4 and root.opcode == "tuple" and all(o.opcode == "select" for o in root.operands)


def _kind(array: Instruction) -> str:
    return ELEMENT_TYPES[array.shape.element_type].kind


def _direction(above: Instruction) -> str:
    return "maximum" if above.get("direction") == "GT" else "minimum"


def _chooses(root: Instruction, parameters: list[Instruction], above: Instruction) -> bool:
    """(select(above, a, b), select(above | (a == b & i < j), i, j)) of a reducer's parameters a, i, b, j."""
    a, i, b, j = parameters
    value, place = root.operands
    stays = place.operands[0]
    if value.operands[1:] != [a, b] or place.operands[1:] != [i, j] or stays.opcode != "or" \
            or above not in stays.operands:
        return False
    tie = next((o for o in stays.operands if o is not above), above)
    return tie.opcode == "and" and any(
        _compares(x, (a, b), ("EQ",)) and _compares(y, (i, j), ("LT",))
        for x, y in (tie.operands, tie.operands[::-1]))


def _compares(node: Instruction, operands: tuple[Instruction, Instruction], directions: tuple[str, ...]) -> bool:
    return node.opcode == "compare" and tuple(node.operands) == operands and node.get("direction") in directions


def can_reassociate(op: str | None, element_type: str) -> bool:
    """Whether a VECTOR loop can keep one partial result per lane."""
    return op is not None and ELEMENT_TYPES[element_type].kind != "complex"
