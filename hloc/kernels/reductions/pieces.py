"""Pieces of a reduction (rfactor): reduced loops are cut, so that the whole machine has work for few results.

In: the reduced loops, and what the whole takes on one core. Out: the cuts of least predicted time. Each piece stores
partial results; the last block of a GPU that finishes, or another kernel, joins them in the order of the pieces.

    sum of x[3, 1000000] to one result, 8 pieces at most:     Cut(loop 0, 3 pieces of 1), Cut(loop 1, 2 of 500,000)
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from hloc.analysis.cost import ALONE_SECONDS, seconds_of_operations, seconds_one_by_one
from hloc.machine import Machine

AT_ONCE = 4                                     # pieces for each core: more only have to wait
PIECE_SECONDS = {"cpu": 1e-7, "gpu": 2e-9}      # for each piece: a task; the count of those that have arrived
STEP_SECONDS = {"cpu": 4e-9, "gpu": 3e-8}       # of a thread that takes in elements one after the other


class Cut(NamedTuple):
    """A loop cut into `count` pieces of `length` iterations; the last piece may be shorter."""

    loop: int
    count: int          # type: ignore[assignment]      # hides tuple.count, which nothing calls
    length: int

    def __str__(self) -> str:
        return f"rfactor(i{self.loop},{self.count})"


def seconds_on_one_core(size: int, operations: float, machine: Machine) -> float:
    """Of so many bytes from memory, and operations, on one core of a CPU, or one SM."""
    if machine.kind == "cpu":
        return max(size / machine.bandwidth, seconds_one_by_one(operations, machine))
    return machine.cores * max(size / machine.bandwidth, seconds_of_operations(operations, machine))


def best_cuts(loops: Sequence[tuple[int, int]], groups: int, seconds: float, joined: float, steps: int,
              machine: Machine) -> tuple[Cut, ...]:
    """The cuts of (loop, extent) from the first one on; none, if that is fastest. groups: parallel iterations without
    cuts; seconds: of all on one core; joined: of one piece of all groups, to store and load its results; steps:
    elements that a thread takes in one after the other, 0 if lanes share them.

    With n pieces of each group, all cores work until one has to finish its last piece alone; then all are joined."""
    cores = machine.cores if machine.kind == "gpu" else min(machine.cores, int(seconds / ALONE_SECONDS))
    most = steps or AT_ONCE * machine.cores // groups
    if cores < 2 or most < 2:
        return ()
    alone = max((1 - 1 / cores) * seconds / groups, steps * STEP_SECONDS[machine.kind])
    each = PIECE_SECONDS[machine.kind] + joined / min(cores, groups) + (steps > 0) * STEP_SECONDS[machine.kind]
    count = max(2, min(most, round(math.sqrt(alone / each))))
    if alone / count + count * each + machine.launch_seconds > alone:
        return ()
    return _cuts(loops, count)


def _cuts(loops: Sequence[tuple[int, int]], most: int) -> tuple[Cut, ...]:
    """Loops are cut into single iterations as long as there are few enough, and the next one into longer pieces: equal
    ones, if that leaves enough."""
    cuts = []
    for n, extent in loops:
        count = min(extent, most)
        count = next((c for c in range(count, count // 2, -1) if extent % c == 0), count)
        if count < 2:
            continue
        length = -(-extent // count)
        cuts.append(Cut(n, -(-extent // length), length))
        most //= count
        if length > 1:
            break
    return tuple(cuts)
