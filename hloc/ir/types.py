"""Element types: one row each, every fact about them.

In: XLA's name of an element type. Out: bits, kind, NumPy type. Example: ELEMENT_TYPES["bf16"].bits == 16.
Source: xla/xla_data.proto (PrimitiveType) and xla/primitive_util.h.
"""
from __future__ import annotations

from functools import cache
from typing import NamedTuple

import ml_dtypes
import numpy as np


class ElementType(NamedTuple):
    """kind: pred, signed, unsigned, float, complex, or other (token, opaque, tuple, buffer: no elements).
    significand_bits: of a float, or of the parts of a complex number, as stored; payload_bits: of its NaNs, 0 where a
    NaN is one pattern."""

    name: str
    bits: int
    kind: str
    dtype: np.dtype | None
    significand_bits: int = 0
    payload_bits: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of one element in memory; types under a byte take one byte, as in NumPy."""
        return (self.bits + 7) // 8


def _row(name: str, bits: int, kind: str, dtype: type | None) -> tuple[str, ElementType]:
    number = np.dtype(dtype) if dtype is not None else None
    significand = payload = 0
    if number is not None and kind in ("float", "complex"):
        part = np.empty(0, number).real.dtype if kind == "complex" else number
        significand = ml_dtypes.finfo(part).nmant
        with np.errstate(all="ignore"):
            has_infinity = np.isinf(np.full(1, np.inf).astype(part).astype(np.float64)).item()
        payload = significand if has_infinity else 0            # formats without infinity have one or two NaNs
    return name, ElementType(name, bits, kind, number, significand, payload)


def _small(name: str) -> type | None:
    """ml_dtypes' scalar type, or None where the installed version does not have it yet."""
    return getattr(ml_dtypes, name, None)


ELEMENT_TYPES: dict[str, ElementType] = dict([
    _row("pred", 8, "pred", np.bool_),
    _row("s1", 1, "signed", _small("int1")),
    _row("s2", 2, "signed", _small("int2")),
    _row("s4", 4, "signed", ml_dtypes.int4),
    _row("s8", 8, "signed", np.int8),
    _row("s16", 16, "signed", np.int16),
    _row("s32", 32, "signed", np.int32),
    _row("s64", 64, "signed", np.int64),
    _row("u1", 1, "unsigned", _small("uint1")),
    _row("u2", 2, "unsigned", _small("uint2")),
    _row("u4", 4, "unsigned", ml_dtypes.uint4),
    _row("u8", 8, "unsigned", np.uint8),
    _row("u16", 16, "unsigned", np.uint16),
    _row("u32", 32, "unsigned", np.uint32),
    _row("u64", 64, "unsigned", np.uint64),
    _row("f4e2m1fn", 4, "float", _small("float4_e2m1fn")),
    _row("f6e2m3fn", 6, "float", _small("float6_e2m3fn")),
    _row("f6e3m2fn", 6, "float", _small("float6_e3m2fn")),
    _row("f8e3m4", 8, "float", _small("float8_e3m4")),
    _row("f8e4m3", 8, "float", _small("float8_e4m3")),
    _row("f8e4m3b11fnuz", 8, "float", ml_dtypes.float8_e4m3b11fnuz),
    _row("f8e4m3fn", 8, "float", ml_dtypes.float8_e4m3fn),
    _row("f8e4m3fnuz", 8, "float", ml_dtypes.float8_e4m3fnuz),
    _row("f8e5m2", 8, "float", ml_dtypes.float8_e5m2),
    _row("f8e5m2fnuz", 8, "float", ml_dtypes.float8_e5m2fnuz),
    _row("f8e8m0fnu", 8, "float", _small("float8_e8m0fnu")),
    _row("bf16", 16, "float", ml_dtypes.bfloat16),
    _row("f16", 16, "float", np.float16),
    _row("f32", 32, "float", np.float32),
    _row("f64", 64, "float", np.float64),
    _row("c64", 64, "complex", np.complex64),
    _row("c128", 128, "complex", np.complex128),
    _row("token", 0, "other", None),
    _row("opaque", 0, "other", None),
    _row("tuple", 0, "other", None),
    _row("buffer", 0, "other", None),
])

SIGNED = frozenset(n for n, t in ELEMENT_TYPES.items() if t.kind == "signed")
UNSIGNED = frozenset(n for n, t in ELEMENT_TYPES.items() if t.kind == "unsigned")
INTEGRAL = SIGNED | UNSIGNED
FLOATING = frozenset(n for n, t in ELEMENT_TYPES.items() if t.kind == "float")
COMPLEX = frozenset(n for n, t in ELEMENT_TYPES.items() if t.kind == "complex")
ARRAY_TYPES = INTEGRAL | FLOATING | COMPLEX | {"pred"}


def numpy_dtype(element_type: str) -> np.dtype:
    """NumPy's type for an array element type. Raises KeyError for types without elements."""
    dtype = ELEMENT_TYPES[element_type].dtype
    if dtype is None:
        raise KeyError(element_type)
    return dtype


@cache
def holds(target: str, source: str) -> bool:
    """Whether every value of an integer or float type of at most 16 bits, with its sign and as NaN, is one of another
    type."""
    into, of = ELEMENT_TYPES[target], ELEMENT_TYPES[source]
    if into.dtype is None or of.dtype is None:          # the installed ml_dtypes has no such type
        return False
    values = np.arange(1 << of.bits, dtype=f"u{of.bytes}").view(of.dtype)
    with np.errstate(all="ignore"):
        before, after = (v.astype(np.float64) for v in (values, values.astype(np.float32).astype(into.dtype)))
    return bool(np.array_equal(before, after, equal_nan=True) and (np.signbit(before) == np.signbit(after)).all())


_BY_DTYPE = {t.dtype: t.name for t in ELEMENT_TYPES.values() if t.dtype is not None}


def element_type_of(dtype: np.dtype) -> str:
    """XLA's name for a NumPy type. Raises KeyError if HLO has none (float128, str, object)."""
    return _BY_DTYPE[np.dtype(dtype)]
