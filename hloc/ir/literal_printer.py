"""Constants to HLO text, in XLA's form, with digits enough to read back the same bits.

In: a shape and its value (array, nested tuple of arrays, None where it is elided). Out: text. Example:

    print_literal(array("f32", 2, 2), np.eye(2, dtype=np.float32))      { { 1, 0 }, { 0, 1 } }
"""
from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from hloc.ir.shapes import Shape
from hloc.ir.types import ELEMENT_TYPES

_PARTS = {"c64": ("f32", np.float32), "c128": ("f64", np.float64)}


def print_literal(shape: Shape, value: np.ndarray | tuple | None, elide_from: int | None = None) -> str:
    """The text between the parentheses of constant(...); arrays of `elide_from` elements or more as {...}."""
    pieces: list[str] = []
    pending: list[tuple[Shape, Any] | str] = [(shape, value)]
    while pending:
        top = pending.pop()
        if isinstance(top, str):
            pieces.append(top)
        elif top[0].is_tuple:
            pending.extend(reversed(_tuple_parts(*top)))
        else:
            pieces.append(_print_array(*top, elide_from))
    return "".join(pieces)


def _tuple_parts(shape: Shape, value: tuple | None) -> list:
    parts: list = ["( "]
    shapes = shape.tuple_shapes
    for i, element in enumerate(zip(shapes, value if value is not None else (None,) * len(shapes))):
        parts += [", ", element] if i else [element]
    return parts + [" )"]


def _print_array(shape: Shape, value: np.ndarray | None, elide_from: int | None) -> str:
    if value is None or elide_from is not None and shape.rank and value.size >= elide_from:
        return "{...}"
    value = np.asarray(value)
    if shape.element_type == "pred":
        words = ["1" if v else "0" for v in value.ravel().tolist()] if shape.rank else ["true" if value else "false"]
    else:
        words = element_texts(shape.element_type, value.ravel())
    return _braces(words, shape.dimensions) if shape.rank else words[0]


def _braces(words: list[str], dimensions: tuple[int, ...]) -> str:
    """The elements grouped by dimensions, innermost first."""
    for level, size in reversed(list(enumerate(dimensions))):
        count = int(np.prod(dimensions[:level], dtype=np.int64))
        tight = len(dimensions) == 1 or level == len(dimensions) - 1 and size < 2
        opening, closing = ("{", "}") if tight else ("{ ", " }")
        words = [opening + ", ".join(words[i * size:(i + 1) * size]) + closing for i in range(count)]
    return words[0]


def element_texts(element_type: str, values: np.ndarray) -> list[str]:
    """The text of every element of a flat array."""
    kind = ELEMENT_TYPES[element_type].kind
    if kind in ("signed", "unsigned"):
        wide = values.astype(np.uint64 if element_type == "u64" else np.int64)
        return list(map(str, wide.tolist()))
    if kind == "complex":
        part, dtype = _PARTS[element_type]
        texts = _float_texts(part, np.ascontiguousarray(values).view(dtype))
        return [f"({a}, {b})" for a, b in zip(texts[::2], texts[1::2])]
    return _float_texts(element_type, np.ascontiguousarray(values))


def _float_texts(element_type: str, values: np.ndarray) -> list[str]:
    short, long = _digits(element_type)
    with np.errstate(all="ignore"):
        wide = values.astype(np.float64)
    texts = [f"{v:.{short}g}" for v in wide.tolist()]
    places = _read_differently(texts, values)
    for i in places[np.isnan(wide[places])].tolist():
        texts[i] = _nan_text(element_type, values[i:i + 1])
    # the digits that determine a value of its type; all digits if these do not read back the same
    places = places[~np.isnan(wide[places])]
    more = [f"{v:.{long}g}" for v in wide[places].tolist()]
    for k in _read_differently(more, values[places]).tolist():
        more[k] = repr(float(wide[places[k]]))
    for i, text in zip(places.tolist(), more):
        texts[i] = text
    return texts


@cache
def _digits(element_type: str) -> tuple[int, int]:
    """Significant digits: XLA tries the first number, and the second if that does not read back the same. The second
    are enough for every value; the first are digits that every number of so many keeps, for f32 and f64."""
    row = ELEMENT_TYPES[element_type]
    bits = row.significand_bits
    enough = math.ceil((bits + 1) * math.log10(2) + 1)
    return (math.floor(bits * math.log10(2)) if row.bits >= 32 else enough), enough


def _read_differently(texts: list[str], values: np.ndarray) -> np.ndarray:
    """A mask of the texts that do not read back as the bits of the value."""
    bits = f"u{values.dtype.itemsize}"
    with np.errstate(all="ignore"):
        back = np.fromiter(map(float, texts), np.float64, len(texts)).astype(values.dtype)
    return np.flatnonzero(back.view(bits) != values.view(bits))


def _nan_text(element_type: str, value: np.ndarray) -> str:
    """nan, -nan or nan(0x12): with sign and payload if the type has them and they are not the default."""
    width = 8 * value.dtype.itemsize
    number = int(value.view(f"u{value.dtype.itemsize}")[0])
    mantissa = ELEMENT_TYPES[element_type].payload_bits
    has_sign = mantissa > 0 or element_type == "f8e4m3fn"
    sign = "-" if has_sign and number >> (width - 1) else ""
    payload = number & (1 << mantissa) - 1 if mantissa else 0
    return f"{sign}nan(0x{payload:x})" if mantissa and payload != 1 << mantissa - 1 else f"{sign}nan"
