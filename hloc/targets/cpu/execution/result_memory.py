"""Reused memory for result arrays: fresh pages cost as much as filling them.

In: the shapes of the results. Out: uninitialized arrays, one per result, for each run.

A large result is in a block that is kept here. A block is reused once neither the array nor any view of it is
referenced: each of them holds a reference to the block, and Python counts those. At most KEPT blocks per result and
MOST_KEPT_BYTES in total are kept; others live as long as their arrays.

Making an array takes 0.3 us, more than many kernels. So the results of the last KEPT calls are kept, too, in `kept`,
and runtime/call.c reuses those of one call if neither they nor any of their arrays are referenced.
"""
from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from hloc.analysis.packing import ALIGNMENT

SMALL_BYTES = 1 << 16                 # below this, malloc is as quick
KEPT = 2                              # `y = f(y)` needs two; HLOC_KEPT of runtime/call.c
MOST_KEPT_BYTES = 1 << 30


def aligned_bytes(size: int) -> np.ndarray:
    """An uninitialized byte array whose address is a multiple of ALIGNMENT."""
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start:start + size]


def bytes_at(address: int | None, size: int) -> np.ndarray:
    """Bytes of C's."""
    if not size:
        return np.empty(0, np.uint8)
    assert address is not None
    block: Any = (ctypes.c_uint8 * size).from_address(address)
    return np.frombuffer(block, np.uint8)


class Block(np.ndarray):
    """Memory of a large result. It is a subclass so that views of the result reference the result, and not only the
    block: through plain arrays NumPy references the base object."""


class ResultMemory:
    """Makes the result arrays of one program. Not for several threads at once. keeps_arrays: it can be known that an
    array is not referenced."""

    def __init__(self, forms: Sequence[tuple[tuple[int, ...], np.dtype]], keeps_arrays: bool = False):
        self._forms = [(dimensions, dtype, int(np.prod(dimensions, dtype=np.int64)) * dtype.itemsize)
                       for dimensions, dtype in forms]
        large, total = (sum(size for _, _, size in self._forms if size >= least) for least in (SMALL_BYTES, 0))
        can_count = getattr(sys, "_is_gil_enabled", lambda: True)()       # else reference counts are stored elsewhere
        self._keeps = can_count and 0 < large <= MOST_KEPT_BYTES // KEPT
        self._blocks: list[list[Block]] = [[] for _ in self._forms]
        self._sets = KEPT if keeps_arrays and 0 < total <= MOST_KEPT_BYTES // KEPT else 0
        self.kept: list[tuple[np.ndarray, ...]] = []        # the results of earlier calls, the oldest first

    def new_arrays(self) -> tuple[np.ndarray, ...]:
        """Like arrays; they are kept and replace the oldest."""
        del self.kept[:len(self.kept) - self._sets + 1]
        arrays = self.arrays()
        if self._sets:
            self.kept.append(arrays)
        return arrays

    def arrays(self) -> tuple[np.ndarray, ...]:
        """Uninitialized arrays, C-contiguous, one per result."""
        return tuple([self._large(i, *form) if self._keeps and form[2] >= SMALL_BYTES else np.empty(form[0], form[1])
                      for i, form in enumerate(self._forms)])

    def _large(self, number: int, dimensions: tuple[int, ...], dtype: np.dtype, size: int) -> np.ndarray:
        block = free_block(self._blocks[number])
        if block is None:
            block = Block(size + ALIGNMENT, np.uint8)
            self._blocks[number] = [*self._blocks[number][1 - KEPT:], block]      # the oldest may be referenced forever
        return np.ndarray(dimensions, dtype, block, -block.ctypes.data % ALIGNMENT)


def free_block(blocks: list[Block]) -> Block | None:
    """A block that only the list references."""
    return next((blocks[i] for i in range(len(blocks)) if sys.getrefcount(blocks[i]) == IDLE_COUNT), None)


def _idle_count() -> int:
    """The result of getrefcount, as above, for an object that only a list references."""
    blocks = [object()]
    return [sys.getrefcount(blocks[i]) for i in range(1)][0]


IDLE_COUNT = _idle_count()
