"""Computation between the start of a collective and its end: a device waits where it needs the result, not before.

In: the steps of a plan, in which the end of a collective follows its start. Out: the same steps; an end stands behind
the steps that neither touch its results nor write its operands.

    start(a -> s), done(s), b = f(x), c = g(s)     =>     start(a -> s), b = f(x), done(s), c = g(s)
"""
from __future__ import annotations

from collections.abc import Sequence
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
    with_inner,
)

FURTHEST = 200                   # steps past which an end moves: each is compared with what the collective touches

Kernels = Sequence[Kernel | Tile]


def with_late_ends(steps: Sequence[Step], kernels: Kernels) -> tuple[Step, ...]:
    """The steps of a plan, those of loops and branches too."""
    found: list[Step] = []
    ends: list[tuple[Collective, int]] = []                     # and how many steps they have passed
    for step in (with_inner(s, lambda inner: with_late_ends(inner, kernels)) for s in steps):
        if isinstance(step, Collective) and step.is_done:
            ends.append((step, 0))
            continue
        memory = memory_of(step, kernels) if ends else Memory([], [])
        stops = [passed == FURTHEST or must_follow(step, end, memory) for end, passed in ends]
        found += [*(end for (end, _), here in zip(ends, stops) if here), step]
        ends = [(end, passed + 1) for (end, passed), here in zip(ends, stops) if not here]
    return (*found, *(end for end, _ in ends))


class Memory(NamedTuple):
    """What a step, with those inside of it, reads and may write."""

    reads: list[Ref]
    writes: list[Ref]


def memory_of(step: Step, kernels: Kernels) -> Memory:
    reads, writes = zip(*(touched(inner, kernels) for inner in all_steps([step])))
    return Memory(*(merged([ref for refs in side for ref in refs if ref is not None]) for side in (reads, writes)))


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


def must_follow(step: Step, end: Collective, memory: Memory) -> bool:
    """Whether a step may run only after the end of a collective: it touches the results or writes the operands, or it
    is, or has inside, the same collective again, or any that a loop or branch may repeat."""
    if isinstance(step, (WhileLoop, Branch)) and any(isinstance(s, Collective) for s in all_steps([step])):
        return True
    if isinstance(step, Collective) and step.number == end.number:
        return True
    return conflict(Memory(merged(end.arguments), merged(end.results)), memory)


def conflict(one: Memory, other: Memory) -> bool:
    """Whether either writes what the other reads or writes."""
    return any(overlaps(a, b) for a in one.writes for b in (*other.reads, *other.writes)) \
        or any(overlaps(a, b) for a in one.reads for b in other.writes)


def touched(step: Step, kernels: Kernels) -> tuple[Sequence[Ref | None], Sequence[Ref | None]]:
    """The memory that a step itself reads, and that it may write."""
    if isinstance(step, Launch):
        sides: tuple[list[Ref | None], list[Ref | None]] = [], [step.scratch, step.packed]
        for buffer, ref in zip(kernels[step.kernel].buffers, step.arguments):
            sides[buffer.access != "read"].append(ref)
        return sides
    if isinstance(step, Copy):
        return [step.source], [step.destination]
    if isinstance(step, HostCall):
        return [ref for ref, _ in step.arguments], [*(ref for ref, _ in step.results), step.scratch]
    if isinstance(step, Collective):
        return step.arguments, step.results
    if isinstance(step, DeviceNumber):
        return [], [step.result]
    if isinstance(step, WhileLoop):
        return [step.flag], [counter.place for counter in step.counters]
    return [step.selector], []


def overlaps(a: Ref, b: Ref) -> bool:
    """Whether two pieces of memory share a byte."""
    return (a.region, a.index) == (b.region, b.index) and a.offset < b.offset + b.size and b.offset < a.offset + a.size
