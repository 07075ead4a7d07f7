"""Predicates on instructions, and small builders, for simplification rules.

    splat(instruction)            7.0 for constant(7), broadcast(constant(7)); None if it is not one constant value
    is_splat(instruction, 0)      True for 0, 0.0, -0.0, false
    broadcast_to(rewriter, x, shape)    x, a scalar, spread over `shape`

Comparisons of constants are by value, so -0.0 counts as 0, as in XLA's AlgebraicSimplifier.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hloc.ir import Instruction, Shape
from hloc.ir.types import ELEMENT_TYPES
from hloc.ops.table import OPS

if TYPE_CHECKING:
    from hloc.passes.rewriter import Rewriter

COMMUTATIVE = frozenset({"add", "multiply", "and", "or", "xor", "maximum", "minimum"})
INTEGER_KINDS = ("signed", "unsigned")
# computation of one operation on its two parameters -> the value that changes nothing
MONOIDS = ("add", "multiply", "maximum", "minimum", "and", "or")


def scalar_source(instruction: Instruction) -> Instruction | None:
    """The constant of one element that `instruction` is or spreads, else None."""
    while instruction.opcode in ("broadcast", "reshape"):
        instruction = instruction.operands[0]
    literal = instruction.array_literal
    if instruction.opcode == "constant" and literal is not None and instruction.shape.is_array and literal.size == 1:
        return instruction
    return None


def splat(instruction: Instruction) -> Any:
    """The one value of a constant whose elements are all the same, as a NumPy scalar; else None."""
    source = scalar_source(instruction)
    return None if source is None else source.elements.reshape(())[()]


def is_splat(instruction: Instruction, value: float) -> bool:
    """True where `instruction` is `value` everywhere, known at compile time."""
    found = splat(instruction)
    return found is not None and bool(found == value)


def is_integer(instruction: Instruction) -> bool:
    return ELEMENT_TYPES[instruction.shape.element_type].kind in INTEGER_KINDS


def is_float(instruction: Instruction) -> bool:
    return ELEMENT_TYPES[instruction.shape.element_type].kind == "float"


def is_constant(instruction: Instruction) -> bool:
    """A constant of any size, or one broadcast value."""
    return instruction.opcode == "constant" or scalar_source(instruction) is not None


def is_elementwise(instruction: Instruction) -> bool:
    op = OPS.get(instruction.opcode)
    return op is not None and op.is_elementwise


def spread(rewriter: Rewriter, scalar: Instruction, shape: Shape) -> Instruction:
    """`scalar` (of one element) broadcast over the dimensions of `shape`."""
    if scalar.shape.dimensions == shape.dimensions:
        return scalar
    if scalar.shape.dimensions:
        scalar = rewriter.add("reshape", scalar.shape.with_dimensions(()), [scalar])
    wanted = shape if shape.element_type == scalar.shape.element_type \
        else shape.with_element_type(scalar.shape.element_type)
    return rewriter.add("broadcast", wanted, [scalar], {"dimensions": ()})


def full(rewriter: Rewriter, value: Any, shape: Shape) -> Instruction:
    """`value` everywhere in an array of `shape`."""
    return spread(rewriter, rewriter.constant(value, shape.element_type), shape)


def reshape(rewriter: Rewriter, operand: Instruction, shape: Shape) -> Instruction:
    """`operand` in the dimensions of `shape`, or itself where it has them already."""
    if operand.shape.dimensions == shape.dimensions:
        return operand
    return rewriter.add("reshape", shape, [operand])


def monoid_of(instruction: Instruction) -> str | None:
    """The opcode that a reduce (window) applies, where it is one of MONOIDS on the two parameters; else None."""
    computation = instruction.get("to_apply")
    if computation is None or len(instruction.operands) != 2:
        return None
    root = computation.root
    if root.opcode not in MONOIDS or [o.opcode for o in root.operands] != ["parameter", "parameter"]:
        return None
    return root.opcode if root.operands[0] is not root.operands[1] else None


def identity_of(opcode: str, element_type: str) -> Any:
    """The value that `opcode` leaves the other operand unchanged with, or None where there is none."""
    kind = ELEMENT_TYPES[element_type].kind
    if opcode == "add":
        return 0
    if opcode == "multiply":
        return 1
    if opcode == "or":
        return 0
    if opcode == "and":
        return True if kind == "pred" else -1 if kind == "signed" else (1 << ELEMENT_TYPES[element_type].bits) - 1
    if kind == "complex":
        return None
    return lowest(element_type) if opcode == "maximum" else highest(element_type)


def lowest(element_type: str) -> Any:
    """The least value of a type: -inf, INT_MIN, 0, false."""
    row = ELEMENT_TYPES[element_type]
    return {"float": -np.inf, "signed": -(1 << (row.bits - 1)), "unsigned": 0, "pred": False}[row.kind]


def highest(element_type: str) -> Any:
    """The greatest value of a type: inf, INT_MAX, UINT_MAX, true."""
    row = ELEMENT_TYPES[element_type]
    return {"float": np.inf, "signed": (1 << (row.bits - 1)) - 1, "unsigned": (1 << row.bits) - 1,
            "pred": True}[row.kind]


def without_ones(dimensions: tuple[int, ...]) -> tuple[int, ...]:
    """The dimensions without those of size 1."""
    return tuple(d for d in dimensions if d != 1)
