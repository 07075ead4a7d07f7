"""Computation between the start of a collective and its end: a device waits where it needs the result, not before.

In: the steps of a plan, in which the end of a collective follows its start. Out: the same steps; an end stands behind
the steps that neither touch its results nor write its operands.

    start(a -> s), done(s), b = f(x), c = g(s)     =>     start(a -> s), b = f(x), done(s), c = g(s)
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hloc.kernels.ir import Kernel, Tile
from hloc.kernels.plan import (
    Branch,
    Collective,
    Copy,
    DeviceNumber,
    HostCall,
    Launch,
    Ref,
    Step,
    WhileLoop,
    all_steps,
)

FURTHEST = 200                   # steps past which an end moves: each is compared with what the collective touches

Kernels = Sequence[Kernel | Tile]


def with_late_ends(steps: Sequence[Step], kernels: Kernels) -> tuple[Step, ...]:
    """The steps of a plan, those of loops and branches too."""
    found: list[Step] = []
    ends: list[tuple[Collective, Collective, int]] = []           # start, end, and how many steps it has passed
    for step in map(lambda step: _inside(step, kernels), steps):
        if isinstance(step, Collective) and step.is_done:
            ends.append((started(found, step), step, 0))
            continue
        waiting = []
        memory = memory_of(step, kernels) if ends else Memory([], [])
        for start, end, passed in ends:
            if passed == FURTHEST or must_follow(step, start, memory):
                found.append(end)
            else:
                waiting.append((start, end, passed + 1))
        ends = waiting
        found.append(step)
    return (*found, *(end for _, end, _ in ends))


def _inside(step: Step, kernels: Kernels) -> Step:
    if isinstance(step, WhileLoop):
        return step._replace(condition=with_late_ends(step.condition, kernels), body=with_late_ends(step.body, kernels))
    if isinstance(step, Branch):
        return step._replace(branches=tuple(with_late_ends(branch, kernels) for branch in step.branches))
    return step


def started(steps: Sequence[Step], end: Collective) -> Collective:
    """The start of a collective, the last one of its kind and number."""
    return next(s for s in reversed(steps) if isinstance(s, Collective) and not s.is_done
                and (s.number, s.kind) == (end.number, end.kind))


class Memory(NamedTuple):
    """What a step, with those inside of it, reads and may write."""

    reads: list[Ref]
    writes: list[Ref]


def memory_of(step: Step, kernels: Kernels) -> Memory:
    found = Memory([], [])
    for inner in all_steps([step]):
        for ref, is_written in touched(inner, kernels):
            (found.writes if is_written else found.reads).append(ref)
    return Memory(merged(found.reads), merged(found.writes))


def merged(refs: Sequence[Ref]) -> list[Ref]:
    """The same bytes; pieces that follow each other are one: blocks for a thousand devices do."""
    found: list[Ref] = []
    for ref in sorted(refs, key=lambda r: (r.region, r.index, r.offset)):
        last = found[-1] if found else None
        if last and (last.region, last.index) == (ref.region, ref.index) and ref.offset <= last.offset + last.size:
            found[-1] = last._replace(size=max(last.size, ref.offset + ref.size - last.offset))
        else:
            found.append(ref)
    return found


def must_follow(step: Step, start: Collective, memory: Memory) -> bool:
    """Whether a step may run only after the end of a collective: it touches the results or writes the operands, or it
    is, or has inside, the same collective again, or any that a loop or branch may repeat."""
    if isinstance(step, (WhileLoop, Branch)) and any(isinstance(s, Collective) for s in all_steps([step])):
        return True
    if isinstance(step, Collective) and step.number == start.number:
        return True
    return conflict(Memory(merged(start.arguments), merged(start.results)), memory)


def conflict(one: Memory, other: Memory) -> bool:
    """Whether either writes what the other reads or writes."""
    return any(overlaps(a, b) for a in one.writes for b in (*other.reads, *other.writes)) \
        or any(overlaps(a, b) for a in one.reads for b in other.writes)


def touched(step: Step, kernels: Kernels) -> Iterator[tuple[Ref, bool]]:
    """The memory that a step itself reads, and (True) that it may write."""
    if isinstance(step, Launch):
        for buffer, ref in zip(kernels[step.kernel].buffers, step.arguments):
            yield ref, buffer.access != "read"
        yield from ((ref, True) for ref in (step.scratch, step.packed) if ref is not None)
    elif isinstance(step, Copy):
        yield step.destination, True
        yield step.source, False
    elif isinstance(step, HostCall):
        yield from ((ref, False) for ref, _ in step.arguments)
        yield from ((ref, True) for ref, _ in step.results)
        yield from ((ref, True) for ref in (step.scratch,) if ref is not None)
    elif isinstance(step, Collective):
        yield from ((ref, False) for ref in step.arguments)
        yield from ((ref, True) for ref in step.results)
    elif isinstance(step, DeviceNumber):
        yield step.result, True
    elif isinstance(step, WhileLoop):
        yield from ((ref, False) for ref in (step.flag,) if ref is not None)
        yield from ((counter.place, True) for counter in step.counters)
    else:
        yield step.selector, False


def overlaps(a: Ref, b: Ref) -> bool:
    """Whether two pieces of memory share a byte."""
    return (a.region, a.index) == (b.region, b.index) and a.offset < b.offset + b.size and b.offset < a.offset + a.size
