"""Values: what the evaluator passes around, and moving between them and flat lists of arrays.

A value is an ndarray (array shapes), a tuple of values (tuple shapes) or None (tokens). A bounded dynamic dimension
f32[<=4] is held at its size at run time: its value is an ndarray of shape (3,) when the size is 3.

    flatten((a, (b, None))) == [a, b]
    unflatten(shape of (f32[2], (f32[3], token[])), [a, b]) == (a, (b, None))
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hloc.ir import Shape, numpy_dtype

Value = Any


def flatten(value: Value) -> list[np.ndarray]:
    """The arrays inside a value, in order, without tokens."""
    arrays: list[np.ndarray] = []
    stack = [value]
    while stack:
        top = stack.pop()
        if type(top) is tuple:
            stack.extend(reversed(top))
        elif top is not None:
            arrays.append(top)
    return arrays


def unflatten(shape: Shape, arrays: Iterable[np.ndarray]) -> Value:
    """A value of `shape` that takes its arrays from the front of `arrays`."""
    arrays = iter(arrays)
    finished: list[Value] = []
    stack: list[tuple[Shape, bool]] = [(shape, False)]
    while stack:
        top, children_done = stack.pop()
        if children_done:
            count = len(top.tuple_shapes)
            parts = tuple(finished[len(finished) - count:])
            del finished[len(finished) - count:]
            finished.append(parts)
        elif top.is_aggregate:
            stack.append((top, True))
            stack.extend((s, False) for s in reversed(top.tuple_shapes))
        else:
            finished.append(next(arrays) if top.is_array else None)
    return finished[0]


def zeros(shape: Shape) -> Value:
    """A value of `shape` with every element zero."""
    flat: list[np.ndarray] = []
    stack = [shape]
    while stack:
        top = stack.pop()
        if top.is_aggregate:
            stack.extend(reversed(top.tuple_shapes))
        elif top.is_array:
            flat.append(np.zeros(top.dimensions, numpy_dtype(top.element_type)))
    return unflatten(shape, flat)


def result_of(parts: Sequence[np.ndarray], shape: Shape) -> Value:
    """One array alone, or a tuple, as `shape` of a variadic op says."""
    return tuple(parts) if shape.is_tuple else parts[0]
