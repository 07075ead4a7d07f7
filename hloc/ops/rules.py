"""Shape rules that several families share.

In: an instruction. Out: the shape that its operands imply, or a VerifyError that names both sides.

    elementwise_shape(add(f32[4], bf16[4]))    -> f32[4]       operands of mixed float precision: the wider one
    elementwise_shape(add(f32[4], f32[5]))     -> VerifyError: add: operands differ: f32[4] and f32[5]

Source: xla/service/shape_inference.cc.
"""
from __future__ import annotations

from hloc.ir import ELEMENT_TYPES, UNBOUNDED, Instruction, Shape
from hloc.ops.checks import array_operand, dynamic_of, fail, text


def scalar_operand(instruction: Instruction, index: int) -> Shape:
    """The shape of an operand that must be an array of rank 0."""
    shape = array_operand(instruction, index)
    if shape.rank:
        fail(instruction, f"operand {index} must be a scalar, is {text(shape)}")
    return shape


def same_type_family(a: Shape, b: Shape) -> bool:
    """Equal element types, or two floats: XLA lets passes mix float precisions."""
    return a.element_type == b.element_type or (a.is_array and b.is_array and a.kind == b.kind == "float")


def wider_type(a: str, b: str) -> str:
    """The element type of more bits; the first of two equals."""
    return b if ELEMENT_TYPES[b].bits > ELEMENT_TYPES[a].bits else a


def same_sizes(a: Shape, b: Shape) -> bool:
    """Equal dimensions, where an unbounded one fits any."""
    if a.dimensions == b.dimensions:
        return True
    return a.rank == b.rank and all(x == y or UNBOUNDED in (x, y) for x, y in zip(a.dimensions, b.dimensions))


def merge(instruction: Instruction, a: Shape, b: Shape) -> Shape:
    """The common shape of two operands of an elementwise op."""
    if a is b or a == b:
        return a
    if not same_sizes(a, b):
        fail(instruction, f"operands differ: {text(a)} and {text(b)}")
    if not same_type_family(a, b):
        fail(instruction, f"operands differ in element type: {text(a)} and {text(b)}")
    element_type = wider_type(a.element_type, b.element_type)
    if a.dimensions == b.dimensions and not a.dynamic_dimensions and not b.dynamic_dimensions:
        return a if a.element_type == element_type else a.with_element_type(element_type)
    sizes = [_merged_size(*pair) for pair in zip(a.dimensions, b.dimensions, dynamic_of(a), dynamic_of(b))]
    flags = tuple(dynamic for _, dynamic in sizes)
    return Shape(element_type, tuple(s for s, _ in sizes), (), flags if any(flags) else (), a.layout)


def _merged_size(a: int, b: int, a_dynamic: bool, b_dynamic: bool) -> tuple[int, bool]:
    """Size and whether it is dynamic: a known size replaces an unbounded one."""
    if a == UNBOUNDED:
        return b, b_dynamic
    if b == UNBOUNDED:
        return a, a_dynamic
    return a, a_dynamic or b_dynamic


def elementwise_shape(instruction: Instruction) -> Shape:
    """All operands have one shape, and so has the result."""
    shape = array_operand(instruction, 0)
    for index in range(1, len(instruction.operands)):
        shape = merge(instruction, shape, array_operand(instruction, index))
    return shape


def predicate_shape(instruction: Instruction) -> Shape:
    """Operands of one shape; the result has a pred for each element."""
    return elementwise_shape(instruction).with_element_type("pred")


def real_shape(instruction: Instruction) -> Shape:
    """As the operand, with complex numbers replaced by real ones."""
    shape = array_operand(instruction, 0)
    real = {"c64": "f32", "c128": "f64"}.get(shape.element_type)
    return shape.with_element_type(real) if real else shape


def first_operand_shape(instruction: Instruction) -> Shape:
    """The result has the first operand's shape."""
    return instruction.operands[0].shape


def written_shape(instruction: Instruction) -> None:
    """Operands and attributes do not determine the shape: the written one is used."""
    return None
