"""Elementwise functions on large arrays, block by block: intermediate values stay in the processor's caches.

In: an elementwise function and its operands. Out: its result for the whole arrays.

    in_blocks(lambda a: np.exp(a.astype(np.float64)).astype(np.float32), [array of 19 million f32], np.dtype("f4"))
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

BLOCK = 1 << 15             # elements


def in_blocks(function: Callable[..., np.ndarray], operands: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    """function(*operands), which has type `dtype`. Operands broadcast together; scalars go into every block."""
    largest = operands[0]
    for operand in operands:
        if operand.size > largest.size:
            largest = operand
    shape = largest.shape
    if largest.size <= 2 * BLOCK or any(o.shape != shape and o.ndim for o in operands):
        return function(*operands)
    result = np.empty(shape, dtype)
    for block in blocks(shape):
        result[block] = function(*[o[block] if o.ndim else o for o in operands])
    return result


def blocks(shape: Sequence[int]) -> Iterator[tuple]:
    """Indices that cut an array of `shape` into parts of about BLOCK elements, each contiguous in row-major order."""
    axis, inner = len(shape) - 1, 1
    while axis and inner * shape[axis] <= BLOCK:
        inner *= shape[axis]
        axis -= 1
    step = max(1, BLOCK // inner)
    for outer in np.ndindex(*shape[:axis]):
        for start in range(0, shape[axis], step):
            yield (*outer, slice(start, start + step))
