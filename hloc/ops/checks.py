"""Helpers that shape inference shares: raising, reading attributes, comparing sides.

    require(lhs.rank == rhs.rank, instruction, f"ranks differ: {lhs} and {rhs}")
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NoReturn

from hloc.errors import VerifyError
from hloc.ir import Computation, Instruction, Shape

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


def fail(instruction: Instruction, message: str) -> NoReturn:
    raise VerifyError(f"{instruction.opcode}: {message}", instruction.span)


def require(condition: bool, instruction: Instruction, message: str) -> None:
    if not condition:
        fail(instruction, message)


def text(shape: Shape) -> str:
    return shape.to_string(False)


def listed(numbers: Iterable[int]) -> str:
    return "{" + ",".join(map(str, numbers)) + "}"


def array_operand(instruction: Instruction, index: int) -> Shape:
    """The shape of an operand that must be an array."""
    shape = instruction.operands[index].shape
    require(shape.is_array, instruction, f"operand {index} must be an array, is {text(shape)}")
    return shape


def dimension_list(instruction: Instruction, key: str, rank: int, what: str = "operand") -> tuple[int, ...]:
    """Attribute `key`: different dimension numbers below `rank`; () if it is not given."""
    numbers = tuple(instruction.get(key, ()))
    require(len(set(numbers)) == len(numbers), instruction, f"{key}={listed(numbers)} names a dimension twice")
    for number in numbers:
        require(0 <= number < rank, instruction,
                f"{key}={listed(numbers)}: there is no dimension {number}, the {what} has rank {rank}")
    return numbers


def attribute(instruction: Instruction, key: str):
    """An attribute that must be there."""
    value = instruction.get(key)
    require(value is not None, instruction, f"attribute {key} is missing")
    return value


def unquoted(value: str) -> str:
    """The string of a quoted attribute value."""
    value = value.strip()
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
        return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), value[1:-1], flags=re.S)
    return value


def target_of(instruction: Instruction) -> str:
    """The computations that a custom call calls."""
    return unquoted(attribute(instruction, "custom_call_target"))


def parameter_shapes(computation: Computation) -> list[Shape]:
    return [p.shape for p in computation.parameters]


def root_parts(computation: Computation) -> list[Shape]:
    """The shapes that a computation returns, a tuple's elements one by one."""
    shape = computation.root.shape
    return list(shape.tuple_shapes) if shape.is_tuple else [shape]


def check_call(instruction: Instruction, key: str, computation: Computation, arguments: Sequence[Shape]) -> Shape:
    """Check that `computation` takes exactly `arguments`; returns its result shapes."""
    wanted = parameter_shapes(computation)
    require(len(wanted) == len(arguments), instruction,
            f"{key}=%{computation.name} takes {len(wanted)} parameters, {len(arguments)} are passed")
    for number, (parameter, argument) in enumerate(zip(wanted, arguments)):
        require(parameter.compatible(argument), instruction,
                f"parameter {number} of {key}=%{computation.name} is {text(parameter)}, {text(argument)} is passed")
    return computation.root.shape


def check_combiner(instruction: Instruction, key: str, element_types: Sequence[str]) -> Computation:
    """`key` names a computation that takes every element type twice, as scalars, and returns each once.

    A combiner may use a wider type than the data, so only kinds are compared, not widths.
    """
    computation = attribute(instruction, key)
    count = len(element_types)
    parameters = parameter_shapes(computation)
    require(len(parameters) == 2 * count, instruction,
            f"{key}=%{computation.name} must take {2 * count} parameters, takes {len(parameters)}")
    results = root_parts(computation)
    require(len(results) == count, instruction,
            f"{key}=%{computation.name} must return {count} values, returns {len(results)}")
    for number, shape in enumerate(parameters + results):
        wanted = element_types[number % count]
        what = f"parameter {number}" if number < 2 * count else f"result {number - 2 * count}"
        same = shape.is_array and (shape.element_type == wanted or shape.kind == Shape(wanted).kind)
        require(same and shape.rank == 0, instruction,
                f"{what} of {key}=%{computation.name} must be {wanted}[], is {text(shape)}")
    return computation


def check_predicate(instruction: Instruction, key: str, parameters: Sequence[Shape]) -> Computation:
    """`key` names a computation from scalars of the given shapes to pred[]."""
    computation = attribute(instruction, key)
    result = check_call(instruction, key, computation, parameters)
    require(result.is_array and result.element_type == "pred" and result.rank == 0, instruction,
            f"{key}=%{computation.name} must return pred[], returns {text(result)}")
    return computation


def scalar(element_type: str) -> Shape:
    return Shape(element_type)


def same_dimensions_all(instruction: Instruction, indices: Iterable[int]) -> Shape:
    """Operands that must agree in their dimensions; returns the first one's shape."""
    indices = list(indices)
    first = array_operand(instruction, indices[0])
    for index in indices[1:]:
        other = array_operand(instruction, index)
        require(other.dimensions == first.dimensions, instruction,
                f"operand {index} is {text(other)}, operand {indices[0]} is {text(first)}: dimensions differ")
    return first


def array_shape(element_type: str, dimensions: Iterable[int], dynamic: Iterable[bool] = ()) -> Shape:
    """A row-major shape; `dynamic` is kept where any dimension is."""
    shape = Shape(element_type).with_dimensions(dimensions)
    dynamic = tuple(dynamic)
    return Shape(element_type, shape.dimensions, dynamic_dimensions=dynamic, layout=shape.layout) if any(dynamic) \
        else shape


def dynamic_of(shape: Shape) -> tuple[bool, ...]:
    """One flag per dimension."""
    return shape.dynamic_dimensions or (False,) * shape.rank
