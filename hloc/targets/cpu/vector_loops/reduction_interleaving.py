"""Interleaves cheap sums over several vector accumulators.

A single one has a latency of three or four cycles per addition.

In: a Kernel. Out: the same with VECTOR loops that sum (or multiply) terms of few operations split into groups of lanes,
each of which has its own accumulator; these are combined at the end.
    for i < 1000 (VECTOR): v += x[i]        for k < 32 (VECTOR): s[k] = 0
                                       ->   for g < 31: for k < 32 (VECTOR): s[k] += x[32 g + k]
                                            v += s, joined by halves (reduction_tree.py)
                                            for k < 8 (VECTOR): v += x[992 + k]

Compilers keep `s` in registers during the loop over groups.
"""
from __future__ import annotations

from itertools import count

from hloc.kernels.ir import INDEX, Apply, Assign, For, Kernel, Stmt, Store
from hloc.kernels.walks import parts, with_vector_loops
from hloc.machine import Machine
from hloc.targets.cpu.vector_loops.reduction_tree import by_lanes, float_sums, loads_without_sums
from hloc.targets.cpu.vector_loops.vector_width import is_heavy

LANES = {"f32": 32, "f64": 16}   # four vectors of AVX2, of whose 16 registers another four hold the terms
FEWEST_GROUPS = 3
MOST_SUMS = 2                    # of one loop
MOST_WORK = 10                   # operations per element: more take longer than an addition


def reduction_interleaving(kernel: Kernel, machine: Machine) -> Kernel:
    """The kernel with several accumulators for one."""
    numbers = count()            # of arrays, as adjacent loops may have counters with the same name

    def change(loop: For) -> tuple[Stmt, ...]:
        sums = float_sums(loop)
        return by_lanes(loop, sums, _lanes(sums), str(next(numbers))) if _is_worth(loop, sums) else (loop,)
    return kernel._replace(body=with_vector_loops(kernel.body, change))


def _is_worth(loop: For, sums: list[Assign]) -> bool:
    """Whether this is straight-line code that sums terms of few operations over a long enough row."""
    if not 1 <= len(sums) <= MOST_SUMS:
        return False
    read = loads_without_sums(loop)
    stores = any(isinstance(s, Store) for s in loop.body)
    done = [e for e in parts(read) if isinstance(e, Apply) and e.type != INDEX and (stores or not _widens_bf16(e))]
    return isinstance(loop.extent, int) and loop.extent >= FEWEST_GROUPS * _lanes(sums) \
        and len(done) <= MOST_WORK and not any(map(is_heavy, done))


def _widens_bf16(e: Apply) -> bool:
    """Two operations; other narrow types take many. (Rows that are stored widened take 1.2 times as long with several
    vectors.)"""
    return e.op == "convert" and e.type == "f32" and e.arguments[0].type == "bf16"


def _lanes(sums: list[Assign]) -> int:
    return min(LANES[s.value.type] for s in sums)
