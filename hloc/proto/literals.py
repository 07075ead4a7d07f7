"""LiteralProto to arrays and back.

In: a record and the Shape of its constant. Out: an ndarray of the shape's dimensions, or a tuple of them. Example:

    read_literal(record, shape, source)      array([1., 2.], dtype=float32), from {"f32s": array([1., 2.])}

Elements are in the order of the literal's layout. Types smaller than a byte take one byte each. Types of one or two
bytes are raw bytes, little-endian. Complex numbers are pairs.
"""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from hloc.errors import ParseError, Source, Span, UnsupportedError
from hloc.ir.shapes import UNBOUNDED, Shape
from hloc.ir.types import ELEMENT_TYPES, ElementType
from hloc.proto.schema import MESSAGES
from hloc.proto.shapes import ShapeReader, write_shape
from hloc.proto.wire import Record

_PARTS: dict[str, np.dtype] = {"c64": np.dtype("<f4"), "c128": np.dtype("<f8")}


def read_literal(record: Record, shapes: ShapeReader, shape: Shape | None = None) -> np.ndarray | tuple:
    """The value of a literal, which must be compatible with `shape`, if given. Recursive: shapes bound the depth."""
    span = Span(shapes.source, record.offset, record.offset + 1)
    own = shapes.read(record.part("shape"))
    if shape is not None and not own.compatible(shape):
        raise ParseError(f"a literal of {own.to_string(False)} for a constant of {shape.to_string(False)}", span)
    if own.is_tuple:
        parts = record["tuple_literals"]
        if len(parts) != len(own.tuple_shapes):
            raise ParseError(f"a literal of {own.to_string(False)} has {len(parts)} parts", span)
        return tuple(read_literal(r, shapes, s) for r, s in zip(parts, own.tuple_shapes))
    if not own.is_array or UNBOUNDED in own.dimensions:
        raise ParseError(f"a literal cannot have the shape {own.to_string(False)}", span)
    if record["dynamic_sizes"] and _is_cut(record["dynamic_sizes"], own):
        raise UnsupportedError("a literal that is smaller than its bounds", span)
    return _array(record, own, shapes.source)


def _is_cut(sizes: tuple[int, ...], shape: Shape) -> bool:
    return any(size != bound for size, bound in zip(sizes, shape.dimensions))


def _array(record: Record, shape: Shape, source: Source) -> np.ndarray:
    span = Span(source, record.offset, record.offset + 1)
    row = ELEMENT_TYPES[shape.element_type]
    if row.dtype is None:
        raise ParseError(f"the installed ml_dtypes has no {row.name}", span)
    field = row.name + "s"
    values = record[field]
    if not isinstance(values, np.ndarray):
        raw = values if isinstance(values, bytes) else b""
        if len(raw) % row.bytes:
            raise ParseError(f"{field} has {len(raw)} bytes, each element {row.bytes}", span)
        values = _from_bytes(raw, row)
    elif row.kind == "complex":
        values = values[:len(values) // 2 * 2].astype(_PARTS[row.name]).view(row.dtype)
    elif values.dtype != row.dtype:
        values = values.astype(row.dtype)
    if len(values) != shape.num_elements:
        raise ParseError(f"a literal of {shape.to_string(False)} has {len(values)} elements", span)
    return _in_rows(values, shape)


def _from_bytes(raw: bytes, row: ElementType) -> np.ndarray:
    assert row.dtype is not None
    if row.bits >= 8:
        return np.frombuffer(raw, row.dtype.newbyteorder("<") if row.dtype.kind in "iu" else row.dtype)
    low: np.ndarray = np.frombuffer(raw, np.uint8) & np.uint8((1 << row.bits) - 1)
    if row.kind == "signed":
        low = (low.astype(np.int8) ^ np.int8(1 << row.bits - 1)) - np.int8(1 << row.bits - 1) if row.bits > 1 else \
            -low.astype(np.int8)
    return low.view(row.dtype) if row.kind == "float" else low.astype(row.dtype)


def _in_rows(values: np.ndarray, shape: Shape) -> np.ndarray:
    """Elements in row-major order, from the order of the layout."""
    order = shape.minor_to_major[::-1]                        # major to minor
    if math.prod(shape.dimensions) == 0 or order == tuple(range(shape.rank)):
        return values.reshape(shape.dimensions)
    stored = values.reshape([shape.dimensions[d] for d in order])
    return np.ascontiguousarray(stored.transpose(np.argsort(order)))


def write_literal(shape: Shape, value: np.ndarray | tuple | None) -> dict[str, Any]:
    """The fields of a LiteralProto. Raises UnsupportedError for types that it cannot hold."""
    record: dict[str, Any] = {"shape": write_shape(shape)}
    if shape.is_tuple:
        assert isinstance(value, tuple)
        return record | {"tuple_literals": [write_literal(s, v) for s, v in zip(shape.tuple_shapes, value)]}
    if value is None:
        raise UnsupportedError("a proto cannot hold a tuple constant of which a part is omitted ({...})")
    row = ELEMENT_TYPES[shape.element_type]
    field = MESSAGES["LiteralProto"].by_name.get(row.name + "s")
    if field is None:
        raise UnsupportedError(f"a proto has no constants of {row.name}")
    flat = np.ascontiguousarray(np.asarray(value).transpose(shape.minor_to_major[::-1])).ravel()
    if row.kind == "complex":
        return record | {field.name: flat.view(_PARTS[row.name])}
    if field.kind != "bytes":
        return record | {field.name: flat}
    if row.bits < 8 and row.kind != "float":
        flat = flat.astype(np.int8).view(np.uint8) & np.uint8((1 << row.bits) - 1)
    return record | {field.name: flat.tobytes()}
