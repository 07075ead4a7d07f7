"""Rows of the ops that change the element type or its precision: convert, bitcast-convert, reduce-precision,
stochastic-convert, and bitcast, which looks at the same memory as another array.

    convert(f32 {1.9, -300, nan}) to s8           -> {1, -128, 0}        toward zero, saturating, nan gives 0
    bitcast-convert(f32[2]) to bf16[2,2]          -> the halves of each element, low half first
    reduce-precision(f32 {1.1}), mantissa_bits=2  -> {1}
"""
from __future__ import annotations

import math

import numpy as np

from hloc.errors import UnsupportedError
from hloc.ir import ELEMENT_TYPES, Instruction, Shape, element_type_of, numpy_dtype
from hloc.ir.tiles import depends_on_tiles, has_known_memory, in_memory, tile_steps
from hloc.ir.types import FLOATING
from hloc.ops.checks import array_operand, array_shape, dynamic_of, fail, text
from hloc.ops.numerics import bits_of, narrow, result_type, unsigned_bits, widen
from hloc.ops.op import Op
from hloc.ops.rules import elementwise_shape, written_shape
from hloc.sharding import rules

# -- convert -----------------------------------------------------------------------------------------------------------

def convert_array(value: np.ndarray, element_type: str) -> np.ndarray:
    """`value` in another element type, as `convert` means it."""
    kind, bits, dtype = ELEMENT_TYPES[element_type].kind, ELEMENT_TYPES[element_type].bits, numpy_dtype(element_type)
    value = widen(value)
    if value.dtype.kind == "c" and kind != "complex":
        value = value.real
    if kind == "pred":
        return np.asarray(value != 0)
    if value.dtype.kind == "f" and kind in ("signed", "unsigned"):
        return narrow(_to_integer(value, bits, kind == "signed"), dtype)
    return narrow(value, dtype)


def _to_integer(value: np.ndarray, bits: int, signed: bool) -> np.ndarray:
    """Toward zero, to the nearest limit where out of range, nan to 0."""
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    wide = np.int64 if signed else np.uint64
    value = np.trunc(value.astype(np.float64))
    inside = (value >= low) & (value < high + 1)
    limits = np.where(value < low, np.array(low, wide), np.array(high, wide))
    result = np.where(inside, np.where(inside, value, 0.0).astype(wide), limits)
    return np.where(np.isnan(value), wide(0), result)


def _convert(evaluator, instruction, operand):
    result_type(instruction)
    return convert_array(operand, instruction.shape.element_type)


def _convert_shape(instruction: Instruction) -> Shape:
    """The operand's dimensions with the written element type, which determines the conversion."""
    operand = array_operand(instruction, 0)
    if not instruction.shape.is_array:
        fail(instruction, f"cannot convert {text(operand)} to {text(instruction.shape)}")
    return operand.with_element_type(instruction.shape.element_type)


# -- bits --------------------------------------------------------------------------------------------------------------

def to_bits(value: np.ndarray) -> np.ndarray:
    """The bits of a flat array in memory order, one uint8 for each, lowest first; s4 takes four."""
    bits = bits_of(value.dtype)
    all_bits = np.unpackbits(np.ascontiguousarray(value).reshape(-1).view(np.uint8), bitorder="little")
    return all_bits if bits % 8 == 0 else all_bits.reshape(-1, 8)[:, :bits].reshape(-1)


def from_bits(all_bits: np.ndarray, element_type: str) -> np.ndarray:
    """The inverse of to_bits: a flat array."""
    bits, dtype = ELEMENT_TYPES[element_type].bits, numpy_dtype(element_type)
    if bits % 8:
        padded = np.zeros((all_bits.size // bits, 8), np.uint8)
        padded[:, :bits] = all_bits.reshape(-1, bits)
        if ELEMENT_TYPES[element_type].kind == "signed":       # ml_dtypes keeps s4 sign-extended in its byte
            padded[:, bits:] = padded[:, bits - 1:bits]
        all_bits = padded
    raw = np.packbits(all_bits.reshape(-1), bitorder="little")
    return (raw != 0) if element_type == "pred" else raw.view(dtype)


def reinterpret(value: np.ndarray, element_type: str) -> np.ndarray:
    """The memory of an array as a flat array of another type, elements in row-major order."""
    dtype = numpy_dtype(element_type)
    flat = np.ascontiguousarray(value).reshape(-1)
    if flat.dtype == dtype:
        return flat
    if bits_of(flat.dtype) % 8 == 0 and bits_of(dtype) % 8 == 0 and element_type != "pred":
        return flat.view(np.uint8).view(dtype)
    return from_bits(to_bits(flat), element_type)


def _bitcast_convert(evaluator, instruction, operand):
    shape = instruction.shape
    result_type(instruction)
    sizes = operand.shape[:shape.rank]
    return reinterpret(operand, shape.element_type).reshape(sizes + shape.dimensions[len(sizes):])


def _bitcast_convert_shape(instruction: Instruction) -> Shape:
    """A wider operand gives a last dimension more, a narrower one loses its last, which counts its parts."""
    operand, wanted = array_operand(instruction, 0), instruction.shape
    if not wanted.is_array or (operand.kind == "complex") != (wanted.kind == "complex"):
        fail(instruction, f"cannot take the bits of {text(operand)} as {text(wanted)}")
    have, want = ELEMENT_TYPES[operand.element_type].bits, ELEMENT_TYPES[wanted.element_type].bits
    if have == want:
        return operand.with_element_type(wanted.element_type)
    big, small = max(have, want), min(have, want)
    if big % small:
        fail(instruction, f"{have} bits of {text(operand)} cannot be divided into {want} bits of {text(wanted)}")
    if have > want:
        return array_shape(wanted.element_type, (*operand.dimensions, big // small), (*dynamic_of(operand), False))
    if not operand.rank or operand.dimensions[-1] not in (big // small, -1):
        fail(instruction, f"the last dimension of {text(operand)} must be {big // small} to make {wanted.element_type}")
    return array_shape(wanted.element_type, operand.dimensions[:-1], dynamic_of(operand)[:-1])


def _bitcast(evaluator, instruction, operand):
    """Write the operand to memory in its layout and read the result in its own."""
    source, target = instruction.operands[0].shape, instruction.shape
    result_type(instruction)
    tiled = depends_on_tiles(source, target)
    if tiled and not (has_known_memory(source) and has_known_memory(target)):
        raise UnsupportedError(f"bitcast of {source} to {target}: tiles that join dimensions, or of no sensible size",
                               instruction.span)
    split, steps = (tile_steps(source), tile_steps(target)) if tiled else ([], [])
    memory = np.transpose(operand, source.minor_to_major[::-1])
    for step in split:
        filled = np.pad(memory.reshape(step.before), [(0, p - n) for n, p in zip(step.before, step.padded)])
        memory = filled.reshape(step.split).transpose(step.order)
    flat = reinterpret(memory, target.element_type)
    sizes = in_memory(target)
    wanted = math.prod(steps[-1].after if steps else sizes)
    if flat.size != wanted and not tiled:
        raise UnsupportedError(f"bitcast of {text(source)} to {text(target)}, which is not of the same size",
                               instruction.span)
    memory = flat[:wanted]
    if flat.size < wanted:                                     # the end of the memory is padded
        memory = np.pad(flat, (0, wanted - flat.size))
    for step in reversed(steps):
        filled = memory.reshape(step.after).transpose(np.argsort(step.order)).reshape(step.padded)
        memory = filled[tuple(slice(0, n) for n in step.before)]
    value = np.transpose(memory.reshape(sizes), np.argsort(target.minor_to_major[::-1]))
    return np.ascontiguousarray(value).reshape(target.dimensions)


# -- precision ---------------------------------------------------------------------------------------------------------

def reduce_precision(value: np.ndarray, exponent_bits: int, mantissa_bits: int) -> np.ndarray:
    """Round to a float format of fewer bits: nearest even, too large to infinity, too small to zero, nan stays."""
    info = _format(value.dtype)
    if info is None:
        return reduce_precision(value.astype(np.float32), exponent_bits, mantissa_bits).astype(value.dtype)
    width, own_exponent, own_mantissa = info
    unsigned = np.dtype(f"u{width // 8}").type
    raw = np.ascontiguousarray(value).view(f"u{width // 8}").astype(np.uint64)
    sign_mask = np.uint64(1 << width - 1)
    sign, magnitude = raw & sign_mask, raw & ~sign_mask & np.uint64((1 << width) - 1)
    drop = own_mantissa - mantissa_bits
    if drop > 0:
        half, last = np.uint64((1 << drop - 1) - 1), (magnitude >> np.uint64(drop)) & np.uint64(1)
        magnitude = (magnitude + half + last) & ~np.uint64((1 << drop) - 1)
    if exponent_bits < own_exponent:
        magnitude = _fit_exponent(magnitude, own_exponent, own_mantissa, exponent_bits)
    rounded = (sign | magnitude).astype(unsigned).view(value.dtype).reshape(value.shape)
    if mantissa_bits == 0:       # no bit is left to tell nan from infinity
        return np.where(np.isnan(value), np.copysign(value.dtype.type(np.inf), value), rounded).astype(value.dtype)
    return np.where(np.isnan(value), value, rounded).astype(value.dtype)


def _format(dtype: np.dtype) -> tuple[int, int, int] | None:
    """Width, exponent bits and mantissa bits of the formats that have infinities and subnormals as IEEE 754 says."""
    row = ELEMENT_TYPES[element_type_of(dtype)]
    return (row.bits, row.bits - 1 - row.payload_bits, row.payload_bits) if row.payload_bits else None


def _fit_exponent(magnitude, own_exponent: int, own_mantissa: int, exponent_bits: int):
    """Values beyond the smaller exponent's range become infinity or zero (also what would be subnormal in it)."""
    own_bias, bias = (1 << own_exponent - 1) - 1, (1 << exponent_bits - 1) - 1
    exponent = (magnitude >> np.uint64(own_mantissa)).astype(np.int64)
    infinity = np.uint64(((1 << own_exponent) - 1) << own_mantissa)
    magnitude = np.where(exponent > own_bias + bias, infinity, magnitude)
    return np.where(exponent <= own_bias - bias, np.uint64(0), magnitude)


def _reduce_precision(evaluator, instruction, operand):
    with np.errstate(all="ignore"):
        result = reduce_precision(operand, instruction.attributes["exponent_bits"],
                                  instruction.attributes["mantissa_bits"])
        return narrow(widen(result), result_type(instruction)) if result.dtype != result_type(instruction) else result


def _reduce_precision_shape(instruction: Instruction) -> Shape:
    shape = elementwise_shape(instruction)
    if instruction.get("exponent_bits", 1) < 1:
        fail(instruction, f"exponent_bits={instruction.get('exponent_bits')} must be at least 1")
    if instruction.get("mantissa_bits", 0) < 0:
        fail(instruction, f"mantissa_bits={instruction.get('mantissa_bits')} must not be negative")
    return shape


# -- stochastic rounding -----------------------------------------------------------------------------------------------

def _stochastic_convert(evaluator, instruction, operand, random):
    """Away from zero with the probability of the fraction: where the random bits, as a part of 1, are below it."""
    row = ELEMENT_TYPES[instruction.shape.element_type]
    if row.kind not in ("signed", "unsigned"):
        raise UnsupportedError(f"stochastic-convert to {row.name}: XLA defines it for integers only", instruction.span)
    value = widen(operand).astype(np.float64)
    with np.errstate(all="ignore"):
        size = np.abs(value)
        fraction = np.ldexp(size - np.trunc(size), bits_of(random.dtype))
        # f64 holds the fraction's bits exactly; random bits of 64 lose their last ones in it
        up = unsigned_bits(random).astype(np.float64) < np.floor(fraction)
        moved = np.copysign(np.trunc(size) + up, value)
        return narrow(_to_integer(moved, row.bits, row.kind == "signed"), result_type(instruction))


def _stochastic_convert_shape(instruction: Instruction) -> Shape:
    operand, random = array_operand(instruction, 0), array_operand(instruction, 1)
    if operand.dimensions != random.dimensions:
        fail(instruction, f"operands differ: {text(operand)} and {text(random)}")
    if operand.kind != "float" or random.kind != "unsigned":
        fail(instruction, f"takes floats and unsigned random bits, not {text(operand)} and {text(random)}")
    if ELEMENT_TYPES[operand.element_type].bits != ELEMENT_TYPES[random.element_type].bits:
        fail(instruction, f"{text(random)} has not as many bits as {text(operand)}")
    if not instruction.shape.is_array or instruction.shape.kind not in ("signed", "unsigned", "float"):
        fail(instruction, f"cannot convert {text(operand)} to {text(instruction.shape)}")
    return operand.with_element_type(instruction.shape.element_type)


ROWS = (
    Op("convert", 1, _convert_shape, _convert, "convert"),
    Op("bitcast-convert", 1, _bitcast_convert_shape, _bitcast_convert, sharding=rules.bitcast_convert),
    Op("bitcast", 1, written_shape, _bitcast, optional=("result_layout", "source_layout")),
    Op("reduce-precision", 1, _reduce_precision_shape, _reduce_precision, "reduce_precision", FLOATING,
       required=("exponent_bits", "mantissa_bits"), cost=6, rounds=False),
    Op("stochastic-convert", 2, _stochastic_convert_shape, _stochastic_convert, "stochastic_convert"),
)
