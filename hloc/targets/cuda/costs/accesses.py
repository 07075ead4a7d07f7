"""Sampled memory accesses of the threads of a block: positions of loop IR at sampled threads and iterations.

In: positions, and the values of counters at the points of a sample. Out: bytes of the sectors that a block requests,
per point. An access with a loaded index gets a pseudorandom position.

    x[i0 * 4096 + lane]: 4 bytes per thread in f32;  x[lane * 4096]: 32;  bias[i0]: almost 0
"""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hloc.kernels.ir import SUM, Const, Expr, Load, Var
from hloc.kernels.walks import names_in

SECTOR = 32                         # bytes of a request from L1 to L2
SCATTERED, MOST_LOADED = 2654435761, 0xFFFFFF   # a multiplier that scatters positions; the largest loaded value
LIMIT = 1 << 40
FLAGS = 16                          # flags for each number, which are quicker than sorting


def mixed(number: np.ndarray, counters: Sequence[tuple[str, int]]) -> dict[str, np.ndarray]:
    """The counters of a loop nest from the number of the iteration. counters: the innermost last."""
    found = {}
    for name, extent in reversed(counters):
        found[name] = number % max(1, extent)
        number = number // max(1, extent)
    return found


class Points:
    """Values of INDEX expressions at sampled points. known: values of counters; lets: expressions of other names."""

    def __init__(self, known: Mapping[str, np.ndarray], lets: Mapping[str, Expr]) -> None:
        self.known, self.lets = dict(known), lets

    def value(self, expr: Expr) -> np.ndarray:
        """The value of an expression. Loads give a pseudorandom number per position; unknown names are 0."""
        needed = names_in([expr], self.lets) - self.known.keys()
        with np.errstate(over="ignore"):
            for name in [n for n in self.lets if n in needed]:      # in statement order
                self.known[name] = self._now(self.lets[name])
            return self._now(expr)

    def _now(self, expr: Expr) -> np.ndarray:
        """The value of an expression whose names are known."""
        if isinstance(expr, Const):
            return np.asarray(max(-LIMIT, min(LIMIT, int(expr.real))) if _is_whole(expr.value) else 0, np.int64)
        if isinstance(expr, Var):
            return self.known.get(expr.name, np.zeros((), np.int64))
        if isinstance(expr, Load):
            return (self._now(expr.position) * SCATTERED >> 7) & MOST_LOADED
        arguments = [self._now(a) for a in expr.arguments]
        if expr.op == SUM:
            return sum((a * factor for a, factor in zip(arguments, expr.immediate)),
                       np.asarray(expr.immediate[-1], np.int64))
        operation = OPERATIONS.get(expr.op)
        return operation(*arguments) if operation else arguments[0] if arguments else np.zeros((), np.int64)


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, bool)) or isinstance(value, float) and math.isfinite(value)


def _divisor(value: np.ndarray) -> np.ndarray:
    return np.where(value == 0, 1, value)


def _select(condition: np.ndarray, yes: np.ndarray, no: np.ndarray) -> np.ndarray:
    return np.where(condition != 0, yes, no)


OPERATIONS: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "minimum": np.minimum, "maximum": np.maximum,
    "divide": lambda a, b: a // _divisor(b), "remainder": lambda a, b: a % _divisor(b),
    "select": _select, "clamp": lambda a, b, c: np.minimum(np.maximum(a, b), c),
    "compare_eq": np.equal, "compare_ne": np.not_equal, "compare_lt": np.less, "compare_le": np.less_equal,
    "compare_gt": np.greater, "compare_ge": np.greater_equal,
    "and": lambda a, b: (a != 0) & (b != 0), "or": lambda a, b: (a != 0) | (b != 0),
}


def sectors(positions: Sequence[np.ndarray], width: float, size: int, blocks: np.ndarray) -> float:
    """Bytes of sectors per point, if a block requests each sector once. width: bytes of an element; size: elements of
    the array; blocks: the block of each point."""
    count, asked = int(blocks.max()) + 1, []
    for position in positions:
        place = np.broadcast_to(position, blocks.shape) % max(1, size)
        asked.append(((place * width).astype(np.int64) // SECTOR) * count + blocks)
    return distinct(np.concatenate(asked)) * SECTOR / blocks.size


def distinct(numbers: np.ndarray) -> int:
    """How many different whole numbers there are; those near to each other are counted without sorting."""
    first = int(numbers.min())
    span = int(numbers.max()) - first + 1
    if span > FLAGS * numbers.size:
        return len(np.unique(numbers))
    seen = np.zeros(span, bool)
    seen[numbers - first] = True
    return int(np.count_nonzero(seen))
