"""The description of parameters and results in a compiled file, and its checks.

    value_to_json(value)  ->  ["x", "f32", [2, 3]];  value_from_json(row) is its inverse, and checks it
"""
from __future__ import annotations

from hloc.inputs import Parameter
from hloc.ir import numpy_dtype
from hloc.ir.shapes import array

MOST_BYTES = 1 << 48                # more than the address space


def value_to_json(value: Parameter) -> list:
    return [value.name, value.shape.element_type, list(value.shape.dimensions)]


def value_from_json(row: list) -> Parameter:
    """Raises ValueError, TypeError or KeyError for an invalid array."""
    name, element_type, dimensions = row
    numpy_dtype(element_type)                                    # KeyError for an unknown type
    sizes = [whole(d, MOST_BYTES) for d in dimensions]
    value = Parameter(str(name), array(element_type, *sizes))
    whole(value.shape.num_bytes, MOST_BYTES)
    return value


def whole(number: object, most: int) -> int:
    """A whole number from 0 to `most`. Raises ValueError for anything else."""
    if type(number) is not int or not 0 <= number <= most:
        raise ValueError(f"{str(number)[:40]} is no number from 0 to {most}")
    return number
