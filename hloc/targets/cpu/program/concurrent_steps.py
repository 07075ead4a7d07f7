"""Runs independent small kernels in parallel, on all threads.

In: the steps of a plan, in order. Out: the same steps, with neighbouring launches grouped if each is too little work
for several threads, all together are enough, and none writes what another reads or writes.

    the updates of 150 arrays   ->   3 groups of 50 launches, instead of 150 launches on one thread
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hloc.kernels.ir import Cost, Kernel
from hloc.kernels.overlap import Memory, conflict, memory_of
from hloc.kernels.plan import Launch, Program, Step
from hloc.machine import Machine
from hloc.targets.cpu.program.grain import extent_of, grain_of, pieces_of

MOST_CONCURRENT = 64              # launches of one group: each is compared with all others


class ConcurrentLaunches(NamedTuple):
    """Launches that may run at the same time; `grain` of them are one piece of work."""

    launches: tuple[Launch, ...]
    grain: int


def grouped(steps: Iterable[Step], program: Program, machine: Machine) -> Iterator[Step | ConcurrentLaunches]:
    """The steps with independent small launches together."""
    group: list[Launch] = []
    touched: list[Memory] = []
    for step in steps:
        small = step if isinstance(step, Launch) and _is_small(program.kernels[step.kernel], machine) else None
        own = memory_of(small, program.kernels) if small else Memory([], [])
        if not small or len(group) == MOST_CONCURRENT or any(conflict(own, other) for other in touched):
            yield from _finished(group, program, machine)
            group, touched = [], []
        if small:
            group.append(small)
            touched.append(own)
        else:
            yield step
    yield from _finished(group, program, machine)


def _is_small(kernel: object, machine: Machine) -> bool:
    """Whether it is one piece of work. Library kernels split their work themselves."""
    return isinstance(kernel, Kernel) and grain_of(kernel, machine) >= extent_of(kernel)


def _finished(group: list[Launch], program: Program, machine: Machine) -> Iterator[Launch | ConcurrentLaunches]:
    costs = [program.kernels[launch.kernel].cost for launch in group]
    total = Cost(sum(c.bytes for c in costs), sum(c.flops for c in costs))
    pieces = min(pieces_of(total, machine), len(group))
    if pieces < 2:
        yield from group
    else:
        yield ConcurrentLaunches(tuple(group), -(-len(group) // pieces))
