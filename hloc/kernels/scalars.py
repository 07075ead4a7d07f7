"""From HLO element types to computation types: one elementwise op on one element.

In: the opcode's row, operand values in computation form. Out: the loop IR expression of the result, in that form too.
Narrow floats (bf16, f16, f8*, f4*) are computed in f32 (f8e8m0fnu in f64) and rounded after every op that does not keep
them exact; integers below eight bits are computed in s8 or u8 and cut to their width. In memory they keep their type:

    add of bf16 a, b  ->  convert_f32(convert_bf16(add_f32(convert_f32(a), convert_f32(b))))
"""
from __future__ import annotations

import math
from typing import TypeGuard

import numpy as np

from hloc.errors import UnsupportedError
from hloc.ir import ELEMENT_TYPES, Instruction, holds
from hloc.kernels.ir import INDEX, Apply, Const, Expr
from hloc.ops.table import OPS, SCALARS

REMAINDER_STEPS = {"f16": 1, "bf16": 6}     # of targets/c/float32.h
# Functions whose arguments must not have bits above the element type's width; signed numbers are sign-extended.
BITWISE = {"signed": frozenset(["popcnt", "count_leading_zeros", "shift_right_logical"]),
           "unsigned": frozenset(["popcnt", "count_leading_zeros", "shift_right_logical", "shift_right_arithmetic"])}
LARGEST_S32 = (1 << 31) - 1


def computation_type(element_type: str) -> str:
    """The type in which values of an element type are computed."""
    row = ELEMENT_TYPES[element_type]
    if element_type == "f8e8m0fnu":                     # 2^-127 is subnormal in f32, zero to compiled arithmetic
        return "f64"
    if row.kind == "float" and row.bits < 32:
        return "f32"
    if row.bits < 8:
        return "s8" if row.kind == "signed" else "u8"
    return element_type


def is_narrow(element_type: str) -> bool:
    return computation_type(element_type) != element_type


def convert_to(expr: Expr, type: str) -> Expr:
    return expr if expr.type == type else Apply("convert", (expr,), type)


def widen(stored: Expr) -> Expr:
    """A stored element -> computation form."""
    return convert_to(stored, computation_type(stored.type))


def narrow(value: Expr, element_type: str) -> Expr:
    """Computation form -> storage form; undoes a `widen` right before it, or before a select of two such values. If
    values are rounded first, the select is done before a single rounding."""
    stored = _as_stored(value, element_type)
    if stored is not None:
        return stored
    if isinstance(value, Apply) and value.op == "select":
        choices = [c for a in value.arguments[1:] if (c := _as_stored(a, element_type)) is not None]
        if len(choices) == len(value.arguments) - 1 and not _are_computed(choices):
            return Apply("select", (value.arguments[0], *choices), element_type)
        value = _unrounded(value, element_type)
    return Apply("convert", (value,), element_type)


def _is_rounding(stored: Expr) -> TypeGuard[Apply]:
    return isinstance(stored, Apply) and stored.op == "convert" and stored.arguments[0].type == "f32"


def _are_computed(choices: list[Expr]) -> bool:
    """Whether no value is, in storage form, a load, and one is rounded."""
    rounded = [_is_rounding(c) for c in choices]
    return any(rounded) and all(r or isinstance(c, Const) for r, c in zip(rounded, choices))


def _unrounded(value: Expr, element_type: str) -> Expr:
    """A value in f32 that rounds to the same: a select of numbers that are not rounded yet."""
    if not isinstance(value, Apply) or value.type != "f32":
        return value
    if value.op == "select":
        return Apply("select", (value.arguments[0], *(_unrounded(a, element_type) for a in value.arguments[1:])), "f32")
    inner = value.arguments[0]
    return inner.arguments[0] if value.op == "convert" and _is_rounding(inner) and inner.type == element_type else value


def sums_of_whole_numbers(left: str, right: str, result: str) -> tuple[str, str] | None:
    """(operand type, sum type) of a CPU's products of 8 and 16 bits with sums of 32 bits, which wrap as the result
    does. Library kernels treat unsigned numbers as signed ones; the bits of the operands' width are right. Truth values
    are 0 and 1: "or" of "and" is a sum that is not 0."""
    if left == right == result == "pred":
        return left, "s32"
    given, kept = ELEMENT_TYPES[left], ELEMENT_TYPES[result]
    most = 32 if given.kind == "signed" else given.bits
    if left != right or given.bits not in (8, 16) or not 8 <= kept.bits <= most \
            or not {given.kind, kept.kind} <= {"signed", "unsigned"}:
        return None
    return left, "s32"


def _as_stored(value: Expr, element_type: str) -> Expr | None:
    """A value that needs no rounding, in storage form; None for others."""
    if value.type == element_type:
        return value
    if isinstance(value, Apply) and value.op == "convert" and value.arguments[0].type == element_type:
        return value.arguments[0]
    return Const(value.value, element_type) if isinstance(value, Const) else None


def rounded(value: Expr, element_type: str) -> Expr:
    """A result of arithmetic, rounded or wrapped to its element type, in computation form."""
    if not is_narrow(element_type) or isinstance(value, Const):
        return value
    return widen(narrow(value, element_type))


def literal(array: np.ndarray | object, element_type: str) -> Const:
    """A scalar literal in computation form."""
    scalar = np.asarray(array).reshape(())
    kind = ELEMENT_TYPES[element_type].kind
    value = {"pred": bool, "signed": int, "unsigned": int, "float": float, "complex": complex}[kind](scalar)
    return Const(value, computation_type(element_type))


def converted(value: Expr, source: str, target: str) -> Expr:
    """HLO's convert between element types, both in computation form."""
    if source == target:
        return value
    if ELEMENT_TYPES[source].kind == "complex" and ELEMENT_TYPES[target].kind != "complex":
        source = "f32" if source == "c64" else "f64"
        value = Apply("real", (value,), source)
    if source == "f8e8m0fnu":
        value = narrow(value, source)                   # f32 takes its bits; f64 in between would lose 2^-127
    if not is_narrow(target):
        return convert_to(value, target)
    if is_narrow(source) and computation_type(source) != "f64" and holds(target, source):
        return convert_to(value, computation_type(target))
    if ELEMENT_TYPES[target].bits < 8 and ELEMENT_TYPES[target].kind != "float":
        if ELEMENT_TYPES[source].kind == "float":
            value = _saturated(value, target)
        return widen(Apply("convert", (convert_to(value, computation_type(target)),), target))
    if target in ("bf16", "f16", "f8e8m0fnu") and ELEMENT_TYPES[source].kind in ("signed", "unsigned", "pred"):
        value = convert_to(value, "f32")                     # as a narrow type: rounding of f32 handles this form
    return widen(Apply("convert", (value,), target))


def _saturated(value: Expr, target: str) -> Expr:
    """A float clamped to the bounds of an integer type of less than eight bits; conversions to wider ones saturate."""
    row = ELEMENT_TYPES[target]
    low, high = (-(1 << row.bits - 1), (1 << row.bits - 1) - 1) if row.kind == "signed" else (0, (1 << row.bits) - 1)
    bounds = Const(float(low), value.type), Const(float(high), value.type)
    return Apply("clamp", (bounds[0], value, bounds[1]), value.type)


def from_index(value: Expr, high: int, element_type: str) -> Expr:
    """An INDEX value as an element (iota), in computation form."""
    type = computation_type(element_type)
    kind = ELEMENT_TYPES[element_type].kind
    if kind == "complex":
        part = "f32" if element_type == "c64" else "f64"
        return Apply("complex", (from_index(value, high, part), Const(0.0, part)), element_type)
    if kind == "float" and high <= LARGEST_S32:
        value = Apply("convert", (value,), "s32")
    return rounded(convert_to(value, type), element_type)


def to_index(value: Expr) -> Expr:
    """A start index or a position given as an integer element, as INDEX."""
    return convert_to(value, INDEX)


def elementwise(instruction: Instruction, arguments: list[Expr], unrounded: frozenset[str] = frozenset()) -> Expr:
    """One element of an elementwise instruction from its operands' elements.

    unrounded: narrow floats that stay in f32 between ops, as accumulators of reductions do.
    """
    opcode = instruction.opcode
    target = instruction.shape.element_type
    if opcode == "convert":
        source = instruction.operands[0].shape.element_type
        if target in unrounded and ELEMENT_TYPES[target].kind == "float":
            return convert_to(arguments[0], computation_type(target))
        return converted(arguments[0], source, target)
    if opcode in ("copy", "opt-barrier"):
        return arguments[0]
    if opcode == "bitcast-convert":
        return bitcast(arguments[0], instruction.operands[0].shape.element_type, target, instruction)
    if opcode == "compare":
        return compare(instruction, arguments)
    if opcode == "reduce-precision":
        bits = (instruction.get("exponent_bits"), instruction.get("mantissa_bits"))
        return Apply("reduce_precision", tuple(arguments), arguments[0].type, bits)
    if opcode == "mulhi":
        return multiply_high(instruction, arguments)
    if opcode == "stochastic-convert":
        return stochastic_convert(instruction, arguments)
    scalar = scalar_name(instruction)
    if ELEMENT_TYPES[target].bits < 8 and scalar in BITWISE.get(ELEMENT_TYPES[target].kind, ()):
        return rounded(_of_few_bits(scalar, ELEMENT_TYPES[target].bits, arguments), target)
    if scalar == "remainder" and computation_type(target) in ("f32", "f64") and is_power_of_two(arguments[1]):
        return Apply("remainder_by_power", tuple(arguments), arguments[0].type)
    if scalar == "remainder" and target in REMAINDER_STEPS:
        return Apply("remainder_of_few_bits", tuple(arguments), "f32", (REMAINDER_STEPS[target],))
    if scalar == "power" and arguments[0] == Const(2.0, "f64"):
        return Apply("exp2", (arguments[1],), "f64")
    value = Apply(scalar, tuple(arguments), computation_type(target))
    if not SCALARS[scalar].rounds or (target in unrounded and ELEMENT_TYPES[target].kind == "float"):
        return value
    return rounded(value, target)


def is_power_of_two(value: Expr) -> bool:
    """Whether this is 1, 2, 4 ... 2^64: division by such a constant is exact, and needs no libm."""
    return isinstance(value, Const) and 1 <= value.real <= 2.0**64 and math.frexp(value.real)[0] == 0.5


def _of_few_bits(scalar: str, bits: int, arguments: list[Expr]) -> Expr:
    """Ops that depend on the width of their operand, on integers of less than eight bits stored in eight."""
    type = arguments[0].type
    low = Apply("and", (arguments[0], Const((1 << bits) - 1, type)), type)
    if scalar == "shift_right_arithmetic":               # the sign bit to the top, and back with sign extension
        top = Apply("shift_left", (low, Const(8 - bits, type)), type)
        low = Apply(scalar, (top, Const(8 - bits, type)), type)
    value = Apply(scalar, (low, *arguments[1:]), type)
    if scalar == "count_leading_zeros":
        return Apply("subtract", (value, Const(8 - bits, type)), type)
    return value


def multiply_high(instruction: Instruction, arguments: list[Expr]) -> Expr:
    """The upper half of a product; up to 32 bits are multiplied in 64."""
    row = ELEMENT_TYPES[instruction.shape.element_type]
    if row.bits == 64:
        return Apply("mulhi", tuple(arguments), row.name)
    wide = "s64" if row.kind == "signed" else "u64"
    product = Apply("multiply", tuple(convert_to(a, wide) for a in arguments), wide)
    shift = "shift_right_arithmetic" if row.kind == "signed" else "shift_right_logical"
    return convert_to(Apply(shift, (product, Const(row.bits, wide)), wide), computation_type(row.name))


def stochastic_convert(instruction: Instruction, arguments: list[Expr]) -> Expr:
    """Round up or down at random, as the bits say; to integers only, as in XLA."""
    target = instruction.shape.element_type
    row = ELEMENT_TYPES[target]
    if row.kind not in ("signed", "unsigned"):
        raise UnsupportedError(f"stochastic-convert to {target}: XLA defines it for integers only", instruction.span)
    value, random = arguments
    bits = ELEMENT_TYPES[instruction.operands[1].shape.element_type].bits
    if value.type == "f32" and bits < 32:           # as many bits as the float has: the upper ones of 32, ones below
        upper = Apply("shift_left", (convert_to(random, "u32"), Const(32 - bits, "u32")), "u32")
        random = Apply("or", (upper, Const((1 << 32 - bits) - 1, "u32")), "u32")
    result = Apply("stochastic_convert", (value, random), computation_type(target))
    if row.bits >= 8:
        return result
    low, high = (-(1 << row.bits - 1), (1 << row.bits - 1) - 1) if row.kind == "signed" else (0, (1 << row.bits) - 1)
    return Apply("clamp", (Const(low, result.type), result, Const(high, result.type)), result.type)


def scalar_name(instruction: Instruction) -> str:
    """The scalar function of an elementwise opcode, from its row in the op table."""
    row = OPS.get(instruction.opcode)
    if row is None or row.scalar is None:
        raise UnsupportedError(f"'{instruction.opcode}' cannot be computed inside a kernel", instruction.span)
    return row.scalar


def compare(instruction: Instruction, arguments: list[Expr]) -> Expr:
    """HLO's compare; a total order on floats orders -NaN < -inf ... -0 < +0 ... < NaN."""
    direction = instruction.get("direction").lower()
    element_type = instruction.operands[0].shape.element_type
    if instruction.get("type") == "TOTALORDER" and ELEMENT_TYPES[element_type].kind == "float":
        return Apply(f"compare_{direction}_total", tuple(arguments), "pred")
    return Apply(f"compare_{direction}", tuple(arguments), "pred")


def bitcast(value: Expr, source: str, target: str, instruction: Instruction) -> Expr:
    """The same bits as another type of the same width."""
    if ELEMENT_TYPES[source].bits != ELEMENT_TYPES[target].bits:
        raise UnsupportedError("bitcast-convert between widths inside a fusion", instruction.span)
    if source == target:
        return value
    return widen(Apply("bitcast", (narrow(value, source),), target))
