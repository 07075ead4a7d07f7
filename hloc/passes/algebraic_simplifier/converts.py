"""Rules for convert, bitcast-convert, copy, bitcast, and reduce-precision."""
from __future__ import annotations

import ml_dtypes

from hloc.ir import Instruction, numpy_dtype
from hloc.ir.types import ELEMENT_TYPES
from hloc.passes.patterns import highest, lowest, splat
from hloc.passes.rewriter import Rewriter

EXTREMA = ("maximum", "minimum")


def convert_to_same_type(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """convert(x) => x if the types are the same"""
    x = instruction.operands[0]
    return x if x.shape.element_type == instruction.shape.element_type else None


def convert_twice(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """convert(convert(x)) => convert(x) if the intermediate type represents every value of x

    Conversion to an integer type saturates from a float type, and keeps the lowest bits from an integer type. So
    integers that are converted through floats must fit.
    """
    inner = instruction.operands[0]
    if inner.opcode != "convert":
        return None
    x = inner.operands[0]
    if not holds(inner.shape.element_type, x.shape.element_type):
        return None
    source, middle, target = x.shape.kind, inner.shape.kind, instruction.shape.kind
    if "complex" in (source, middle, target):
        return None
    saturates = source != "float" and middle == "float" and target in ("signed", "unsigned")
    if saturates and not holds(instruction.shape.element_type, x.shape.element_type):
        return None
    return rewriter.change(instruction, operands=[x])


def convert_of_clamped(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """convert(min(x, c)) => convert(x) from float to integer if c is at least the integer type's highest value, to
    which larger numbers saturate anyway; the same for maxima, and for clamp"""
    x, type = instruction.operands[0], instruction.shape.element_type
    if x.shape.kind != "float" or instruction.shape.kind not in ("signed", "unsigned"):
        return None
    inner = x
    if x.opcode == "clamp":
        low, inner, high = x.operands
        drops = is_bound(low, "maximum", type) and is_bound(high, "minimum", type)
    else:
        bounds = [n for n, o in enumerate(x.operands) if x.opcode in EXTREMA and is_bound(o, x.opcode, type)]
        drops = bool(bounds)
        inner = x.operands[1 - bounds[0]] if bounds else x
    return rewriter.change(instruction, operands=[inner]) if drops else None


def is_bound(bound: Instruction, opcode: str, type: str) -> bool:
    """Whether a minimum (maximum) with this operand changes only values that an integer type cannot represent."""
    value = splat(bound)
    if value is None:
        return False
    return float(value) >= highest(type) if opcode == "minimum" else float(value) <= lowest(type)


def holds(wide: str, narrow: str) -> bool:
    """True if converting `narrow` to `wide` is exact, and later conversions round and saturate in the same way."""
    if wide == narrow:
        return True
    a, b = ELEMENT_TYPES[wide], ELEMENT_TYPES[narrow]
    if a.kind == "pred" or "complex" in (a.kind, b.kind) or a.dtype is None or b.dtype is None:
        return False
    if b.kind == "pred":
        return wide != "s1"
    if a.kind == "float":
        return float_holds(wide, narrow)
    if b.kind == "float":
        return False
    if a.kind == b.kind:
        return a.bits >= b.bits
    return a.kind == "signed" and a.bits > b.bits


def float_holds(wide: str, narrow: str) -> bool:
    try:
        a = ml_dtypes.finfo(numpy_dtype(wide))
        if ELEMENT_TYPES[narrow].kind != "float":
            return ELEMENT_TYPES[narrow].bits <= a.nmant + 1 and a.maxexp > ELEMENT_TYPES[narrow].bits
        b = ml_dtypes.finfo(numpy_dtype(narrow))
    except (ValueError, KeyError):
        return False
    # Subnormals of the narrow type must fit too; only the IEEE-like types have infinities.
    return wide in ("bf16", "f16", "f32", "f64") and a.nmant >= b.nmant and a.maxexp >= b.maxexp \
        and a.minexp - a.nmant <= b.minexp - b.nmant


def bitcast_convert_twice(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """bitcast-convert(x) => x of the same type, bitcast-convert twice => once in one width"""
    x = instruction.operands[0]
    if x.shape.element_type == instruction.shape.element_type:
        return x
    if x.opcode != "bitcast-convert" or x.operands[0].shape.dimensions != x.shape.dimensions:
        return None
    return rewriter.change(instruction, operands=x.operands) if x.shape.dimensions == instruction.shape.dimensions \
        else None


def copy_of_same_layout(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """copy(x) => x, copy(copy(x)) => copy(x); a copy into another layout or memory space stays"""
    x = instruction.operands[0]
    if x.shape == instruction.shape:
        return x
    if x.opcode == "copy" and memory(x) == memory(x.operands[0]):
        return rewriter.change(instruction, operands=x.operands)
    return None


def memory(instruction: Instruction) -> str:
    layout = instruction.shape.layout
    return layout.suffix if layout is not None else ""


def bitcast_to_same_shape(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """bitcast(x) => x if shape and layout are the same, bitcast(bitcast(x)) => bitcast(x)"""
    x = instruction.operands[0]
    if x.shape == instruction.shape:
        return x
    return rewriter.change(instruction, operands=x.operands) if x.opcode == "bitcast" else None


def reduce_precision_to_all(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """reduce-precision(x) => x if it keeps all bits of the type"""
    x = instruction.operands[0]
    name = x.shape.element_type
    if name not in ("f64", "f32", "f16", "bf16"):
        return None
    mantissa = int(ml_dtypes.finfo(numpy_dtype(name)).nmant)
    exponent = ELEMENT_TYPES[name].bits - 1 - mantissa
    keeps_all = instruction.get("exponent_bits") >= exponent and instruction.get("mantissa_bits") >= mantissa
    return x if keeps_all else None


RULES = {
    "convert": (convert_to_same_type, convert_twice, convert_of_clamped),
    "bitcast-convert": (bitcast_convert_twice,),
    "copy": (copy_of_same_layout,),
    "bitcast": (bitcast_to_same_shape,),
    "reduce-precision": (reduce_precision_to_all,),
}
