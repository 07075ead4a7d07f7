"""Chooses half as many lanes for reductions of short rows that are not a multiple of the widest vector, if they fit.

In: a Kernel, and the bytes of a vector. Out: the same with the number of lanes set on such VECTOR loops. Compilers take
as many lanes as a vector holds numbers of the smallest type, compute the remainder one by one or by half a vector, and
combine the lanes of either through memory.

    for i < 24 (VECTOR): v = max(v, x[i])              16 + 8 of s32        ->   3 x 8 (0.1 of the time)
    for i < 48 (VECTOR): v += s32(x[i])                32 + 16 of s16       ->   3 x 16

Sums of floats over a few vectors of 64 bytes that reduction_tree.py skips gain from vectors of 32 bytes, too: rows at
any alignment cross fewer cache lines, and fewer lanes are combined.

Remainders of rows that half a vector does not fit were split off before (reduction_tail_peeling.py, tail_overlap.py).
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import INDEX, Apply, Assign, Expr, For, Kernel, Let, Load, Stmt, Store
from hloc.kernels.walks import assigned, expressions, parts, with_vector_loops
from hloc.machine import Machine
from hloc.targets.functions import is_function
from hloc.targets.printer import simd_reduction

LEAST_BYTES = 32                # of a vector of the widest type: below there is no gain
# Costs relative to a 64-byte vector (1): a vector of LEAST_BYTES, one element, combining the float lanes of 64 bytes.
HALF, HALF_OF_MIXED, JOIN = 0.55, 0.75, 1


def lane_fitting(kernel: Kernel, machine: Machine) -> Kernel:
    """The kernel whose short rows are whole vectors if possible."""
    return kernel._replace(body=with_vector_loops(
        kernel.body, lambda loop: (loop._replace(lanes=_lanes(loop, machine.vector_bytes)),)))


def _lanes(loop: For, vector_bytes: int) -> int:
    """The number of lanes that fits a loop best; 0: the compiler's choice."""
    if not isinstance(loop.extent, int) or not assigned(loop.body) \
            or not all(isinstance(s, (Let, Assign, Store)) for s in loop.body):
        return 0
    values = list(parts([e for s in loop.body for e in expressions(s)]))
    held = list(_held(loop, values))
    if not held or any(_has_own_reduction(s) for s in loop.body):
        return 0
    smallest, widest = min(map(_bytes, held)), max(_bytes(e.type) for e in values if e.type != INDEX)
    most = min(vector_bytes // smallest, 1 << loop.extent.bit_length() - 1)
    # half a vector of a function takes as long as a whole one; the remainder of a row is short in comparison
    has_functions = any(isinstance(e, Apply) and is_function(e) for e in values)
    if most // 2 * widest < (vector_bytes if has_functions else LEAST_BYTES):
        return 0
    half_cost = HALF_OF_MIXED if smallest != widest else HALF
    join = JOIN if smallest == widest and any(ELEMENT_TYPES[t].kind == "float" for t in held) else 0
    costs = [_cost(loop.extent, n, n * widest, half_cost, join) for n in (most, most // 2)]
    return most // 2 if costs[1] < costs[0] else 0


def _held(loop: For, values: Iterable[Expr]) -> Iterator[str]:
    """The types that a loop reads, writes and accumulates."""
    yield from (e.type for e in values if isinstance(e, Load))
    yield from (s.value.type for s in loop.body if isinstance(s, Store))
    yield from (s.value.type for s in loop.body if isinstance(s, Assign) and s.value.type != "pred")


def _has_own_reduction(s: Stmt) -> bool:
    """Whether compilers combine the lanes of an accumulator one by one, as OpenMP has no reduction of this
    operation."""
    return isinstance(s, Assign) and isinstance(s.value, Apply) and simd_reduction(s.value.op, s.value.type) is None


def _bytes(type: str) -> int:
    return max(1, ELEMENT_TYPES[type].bits // 8)


def _cost(extent: int, lanes: int, bytes: int, half_cost: float, join: float) -> float:
    """The cost of a row, in 64-byte vectors, or elements: either is a few instructions. bytes: of all lanes."""
    return extent // lanes * max(half_cost, bytes / 64) + extent % lanes + (join if bytes >= 64 else 0)
