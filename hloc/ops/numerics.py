"""Arithmetic with XLA's semantics on NumPy arrays.

In: arrays of any HLO element type. Out: arrays of a type that NumPy computes in; `narrow` brings them back.
Types under 32 bits are computed in f32 (integers under a byte in s8/u8) and rounded once; functions
of f32 that are not exact are computed in f64, so that the reference is as accurate as its type allows.

    narrow(widen(bf16 array) + 1, bf16)
    divide(int32([7, -7, 1]), int32([2, 2, 0]))   -> [3, -3, -1]
"""
from __future__ import annotations

import math

import numpy as np

from hloc.errors import UnsupportedError
from hloc.ir import ELEMENT_TYPES, Instruction

ERF_CHUNK = 1 << 18


def _wide_type(row) -> np.dtype:
    if row.kind == "float" and row.bits < 32:
        return np.dtype(np.float32)
    if row.kind in ("signed", "unsigned") and row.bits < 8:
        return np.dtype(np.int8 if row.kind == "signed" else np.uint8)
    return row.dtype


_WIDE = {row.dtype: _wide_type(row) for row in ELEMENT_TYPES.values() if row.dtype is not None}
WIDER = {small: wide for small, wide in _WIDE.items() if small != wide}
_ROW = {row.dtype: row for row in ELEMENT_TYPES.values() if row.dtype is not None}


def widen(value: np.ndarray) -> np.ndarray:
    """The same values in a type that NumPy computes in."""
    wider = WIDER.get(value.dtype)
    return value if wider is None else value.astype(wider)


def narrow(value, dtype: np.dtype) -> np.ndarray:
    """Round (floats, once, to nearest even) or wrap (integers) to the type of a result. Integers become floats of less
    than 32 bits by way of f32, as in XLA."""
    value = np.asarray(value)
    if value.dtype is dtype or value.dtype == dtype:
        return value
    # ml_dtypes convert to sub-byte integers from s8 by masking, from wider ones likewise, but not from u64
    if value.dtype.kind in "iu" and dtype in _WIDE and dtype.kind not in "iufcb":
        value = value.astype(_WIDE[dtype], copy=False)
    if value.dtype == np.float64 and WIDER.get(dtype) == np.float32 and dtype != np.float16:
        value = to_odd(value)                                   # ml_dtypes convert doubles by way of f32: to even twice
    return value.astype(dtype)


def to_odd(value: np.ndarray) -> np.ndarray:
    """f64 as f32: of the two neighbours the one with an odd last bit, so that a narrower type is then rounded right."""
    with np.errstate(all="ignore"):
        nearest = value.astype(np.float32)
        back = nearest.astype(np.float64)
        inexact = (back != value) & np.isfinite(value)
        away = inexact & (np.abs(back) > np.abs(value))
    bits = np.asarray(nearest).view(np.uint32) - away.astype(np.uint32) | inexact.astype(np.uint32)
    return bits.view(np.float32)


def result_type(instruction: Instruction) -> np.dtype:
    """NumPy's type of an instruction's result."""
    element_type = instruction.shape.element_type
    dtype = ELEMENT_TYPES[element_type].dtype
    if dtype is None:
        raise UnsupportedError(f"no NumPy type for {element_type} here (is ml_dtypes too old?)", instruction.span)
    return dtype


def bits_of(dtype: np.dtype) -> int:
    """Bits of one element of an HLO type: 4 for s4, 8 for pred."""
    return _ROW[dtype].bits


def double(function):
    """`function` computed in double precision, rounded to the operands' type."""
    def compute(*operands):
        wide = np.result_type(*operands)
        up = np.complex128 if wide.kind == "c" else np.float64
        return np.asarray(function(*(o.astype(up, copy=False) for o in operands))).astype(wide)
    return compute


def with_complex(opcode: str, function):
    """`function`, or for complex operands the opcode's function in complex_functions.py."""
    def compute(*operands):
        if operands[0].dtype.kind != "c":
            return function(*operands)
        from hloc.ops.complex_functions import FUNCTIONS
        return FUNCTIONS[opcode](*operands)
    return compute


def is_integer(value: np.ndarray) -> bool:
    return value.dtype.kind in "iu"


# -- integers ----------------------------------------------------------------------------------------------------------

def divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Integers round toward zero; by zero all bits are set; the smallest by -1 is itself."""
    if not is_integer(a):
        return np.true_divide(a, b)
    zero = b == 0
    divisor = np.where(zero, np.ones_like(b), b)
    quotient = (a - np.fmod(a, divisor)) // divisor
    return np.where(zero, np.zeros_like(a) - np.ones_like(a), quotient)


def remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The sign of the dividend; by zero, integers give the dividend."""
    if not is_integer(a):
        return np.fmod(a, b)
    zero = b == 0
    return np.where(zero, a, np.fmod(a, np.where(zero, np.ones_like(b), b)))


def power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Integers wrap around; a negative exponent gives 0 unless the base is 1 or -1."""
    if not is_integer(a):
        return double(np.power)(a, b)
    negative, odd = b < 0, (b & 1) == 1
    result, square, rest = np.ones_like(a), a, np.where(negative, np.zeros_like(b), b)
    while rest.any():
        result = np.where(rest & 1, result * square, result)
        square, rest = square * square, rest >> 1
    of_negative = np.where(a == 1, a, np.where(a + 1 == 0, np.where(odd, a, np.ones_like(a)), np.zeros_like(a)))
    return np.where(negative, of_negative, result)


def multiply_high(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The upper half of the double-width product."""
    bits = bits_of(a.dtype)
    if bits < 64:
        wide = np.int64 if a.dtype.kind == "i" or a.dtype.name.startswith("int") else np.uint64
        return (a.astype(wide) * b.astype(wide) >> wide(bits)).astype(a.dtype)
    product = (a.astype(object) * b.astype(object)) >> bits
    return np.asarray(product).astype(a.dtype)


def unsigned_bits(value: np.ndarray) -> np.ndarray:
    """The bits of an integer array, as u64 without sign extension."""
    if value.dtype.kind == "u":
        return value.astype(np.uint64)
    mask = np.uint64((1 << bits_of(value.dtype)) - 1)
    return widen(value).astype(np.uint64) & mask


def shift_left(value: np.ndarray, amount: np.ndarray) -> np.ndarray:
    """Zero when the amount, read as unsigned, is not below the width."""
    amount = unsigned_bits(amount)
    shifted = unsigned_bits(value) << np.minimum(amount, np.uint64(63))
    return np.where(amount < bits_of(value.dtype), shifted, np.uint64(0)).astype(np.int64)


def shift_right_logical(value: np.ndarray, amount: np.ndarray) -> np.ndarray:
    """Zeros come in from the left."""
    amount = unsigned_bits(amount)
    shifted = unsigned_bits(value) >> np.minimum(amount, np.uint64(63))
    return np.where(amount < bits_of(value.dtype), shifted, np.uint64(0)).astype(np.int64)


def shift_right_arithmetic(value: np.ndarray, amount: np.ndarray) -> np.ndarray:
    """Copies of the top bit come in from the left, for unsigned types too; too far leaves only them."""
    bits = bits_of(value.dtype)
    up = np.uint64(64 - bits)
    signed = (unsigned_bits(value) << up).astype(np.int64) >> up.astype(np.int64)
    return signed >> np.minimum(unsigned_bits(amount), np.uint64(bits - 1)).astype(np.int64)


def population_count(value: np.ndarray) -> np.ndarray:
    """The number of ones."""
    count, rest = np.zeros(value.shape, np.int64), unsigned_bits(value)
    while rest.any():
        count += (rest & np.uint64(1)).astype(np.int64)
        rest = rest >> np.uint64(1)
    return count


def count_leading_zeros(value: np.ndarray) -> np.ndarray:
    """The number of zeros above the highest one; all bits for zero."""
    count, rest = np.full(value.shape, bits_of(value.dtype), np.int64), unsigned_bits(value)
    while rest.any():
        count -= rest != 0
        rest = rest >> np.uint64(1)
    return count


# -- floats ------------------------------------------------------------------------------------------------------------

def maximum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """nan wins; 0 is above -0, as IEEE 754-2019 says (NumPy leaves it open)."""
    result = np.maximum(a, b)
    if result.dtype.kind != "f":
        return result
    zeros = (a == 0) & (b == 0)
    return np.where(zeros, a + b, result) if zeros.any() else result


def minimum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """nan wins; -0 is below 0."""
    result = np.minimum(a, b)
    if result.dtype.kind != "f":
        return result
    zeros = (a == 0) & (b == 0)
    return np.where(zeros, -(-a - b), result) if zeros.any() else result


def clamp(low: np.ndarray, value: np.ndarray, high: np.ndarray) -> np.ndarray:
    return minimum(maximum(value, low), high)


def sign(value: np.ndarray) -> np.ndarray:
    """-1, 0 or 1; zeros keep their sign, nan stays."""
    if value.dtype.kind == "f":
        return np.where((value == 0) | np.isnan(value), value, np.copysign(np.ones_like(value), value))
    return np.sign(value)


def round_away(value: np.ndarray) -> np.ndarray:
    """To the nearest integer, halves away from zero."""
    whole = np.trunc(value)
    away = np.where(np.abs(value - whole) >= 0.5, whole + np.copysign(np.ones_like(value), value), whole)
    return np.copysign(away, value)


def erf(value: np.ndarray) -> np.ndarray:
    """The error function, to the last bit of a double, as the C library has it."""
    flat = np.ravel(value)
    result = np.empty(flat.shape, np.float64)
    for start in range(0, flat.size, ERF_CHUNK):
        part = flat[start:start + ERF_CHUNK]
        result[start:start + ERF_CHUNK] = np.fromiter(map(math.erf, part.tolist()), np.float64, part.size)
    return result.reshape(np.shape(value))


def logistic(value: np.ndarray) -> np.ndarray:
    """1 / (1 + e^-x), without what overflows."""
    power = np.exp(-np.abs(value))
    return np.where(value < 0, power, 1) / (1 + power)


def reciprocal_square_root(value: np.ndarray) -> np.ndarray:
    return 1 / np.sqrt(value)


def total_order_key(value: np.ndarray) -> np.ndarray:
    """Integers in the order -nan < -inf < ... < -0 < +0 < ... < inf < nan."""
    size, bits = value.dtype.itemsize, bits_of(value.dtype)
    signed = np.dtype(f"i{size}")
    raw = (value.view(f"u{size}").astype(np.uint64) << np.uint64(8 * size - bits)).astype(f"u{size}").view(signed)
    if _ROW[value.dtype].name == "f8e8m0fnu":      # has no sign: its bits are in order already
        return value.view(np.uint8)
    return raw ^ ((raw >> signed.type(8 * size - 1)) & signed.type(np.iinfo(signed).max))
