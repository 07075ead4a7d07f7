"""Rules of shapes and literals, and when an inferred shape agrees with the written one.

    agrees(inferred, written)      the same element types and sizes; layouts and tilings may differ
    check_shape(instruction)       raises VerifyError: too many dimensions, more bytes than 64 bits count ...
"""
from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hloc.errors import VerifyError
from hloc.ir import ELEMENT_TYPES, UNBOUNDED, Instruction, Shape
from hloc.ops.checks import text

MAX_RANK = 64                 # NumPy's limit
MAX_BYTES = 2**63 - 1


def same_type(a: Shape, b: Shape) -> bool:
    return a.element_type == b.element_type


def same_kind_of_type(a: Shape, b: Shape) -> bool:
    """Equal, or floats of any precision."""
    return a.element_type == b.element_type or a.kind == b.kind == "float"


def any_element_type(a: Shape, b: Shape) -> bool:
    return a.is_array == b.is_array


def agrees(inferred: Shape, written: Shape, types: Callable[[Shape, Shape], bool] = same_type) -> bool:
    """Equal but for layouts and for which dimensions are dynamic; an unbounded dimension fits any."""
    stack = [(inferred, written)]
    while stack:
        a, b = stack.pop()
        if a is b:
            continue
        if not types(a, b):
            return False
        if a.dimensions != b.dimensions and not _sizes_agree(a.dimensions, b.dimensions):
            return False
        if a.is_aggregate != b.is_aggregate or len(a.tuple_shapes) != len(b.tuple_shapes):
            return False
        stack.extend(zip(a.tuple_shapes, b.tuple_shapes))
    return True


def _sizes_agree(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return len(a) == len(b) and all(x == y or UNBOUNDED in (x, y) for x, y in zip(a, b))


def part_of(shape: Shape, index: tuple[int, ...]) -> Shape | None:
    """The shape at an index into nested tuples; None if there is none."""
    for position in index:
        if not shape.is_aggregate or not 0 <= position < len(shape.tuple_shapes):
            return None
        shape = shape.tuple_shapes[position]
    return shape


def operand_part(shapes: list[Shape], number: int, index: tuple[int, ...]) -> Shape | None:
    """The shape at an index into one of several operands or parameters; None if there is none."""
    return part_of(shapes[number], index) if 0 <= number < len(shapes) else None


def check_shape(instruction: Instruction) -> None:
    """Element types, sizes and layouts of an instruction's shape are valid, and its bytes fit into 64 bits."""
    total, stack = 0, [instruction.shape]
    while stack:
        shape = stack.pop()
        if shape.is_aggregate:
            stack.extend(shape.tuple_shapes)
        elif shape.is_array:
            problem = _array_problem(shape)
            if problem:
                raise VerifyError(f"%{instruction.name}: {problem}", instruction.span)
            total += abs(shape.num_bytes)
    if total > MAX_BYTES:
        raise VerifyError(f"%{instruction.name} has {total} bytes, which does not fit into 64 bits", instruction.span)


def _array_problem(shape: Shape) -> str:
    """The error of an array's shape; empty if there is none."""
    if shape.element_type not in ELEMENT_TYPES:
        return f"unknown element type {shape.element_type!r}"
    if shape.rank > MAX_RANK:
        return f"{shape.rank} dimensions are more than {MAX_RANK}"
    if any(d < 0 and d != UNBOUNDED for d in shape.dimensions):
        return f"negative dimension in {text(shape)}"
    if shape.dynamic_dimensions and len(shape.dynamic_dimensions) != shape.rank:
        return f"{len(shape.dynamic_dimensions)} dynamic flags for the {shape.rank} dimensions of {text(shape)}"
    if shape.layout and sorted(shape.layout.minor_to_major) != list(range(shape.rank)):
        return f"layout {shape.layout} is no order of the {shape.rank} dimensions of {text(shape)}"
    return ""


def check_literal(instruction: Instruction) -> None:
    """The value of a constant has the constant's shape; an elided one ({...}) has no value."""
    stack = [(instruction.literal, instruction.shape)]
    while stack:
        literal, shape = stack.pop()
        if literal is None:
            continue
        if isinstance(literal, tuple):
            if not shape.is_aggregate or len(literal) != len(shape.tuple_shapes):
                raise VerifyError(f"a tuple of {len(literal)} values is no {text(shape)}", instruction.span)
            stack.extend(zip(literal, shape.tuple_shapes))
        elif not _literal_fits(literal, shape):
            raise VerifyError(f"a literal of {literal.dtype}{list(literal.shape)} is no {text(shape)}",
                              instruction.span)


def _literal_fits(literal: np.ndarray, shape: Shape) -> bool:
    return shape.is_array and literal.shape == shape.dimensions and literal.dtype == ELEMENT_TYPES[
        shape.element_type].dtype
