"""Buffer assignment: which values share memory, their live ranges, and their offsets in the arena.

In: Values made by the planner while it walks the schedule; each has a size in bytes and times of its definition and
uses on one flattened timeline. Out: a Ref per value.

    a = assignment.new(4096); assignment.define(a, 3); assignment.use(a, 7)
    assignment.place(); assignment.ref(a)          -> Ref("arena", 0, 0, 4096)

Values that must share memory (in-place updates, loop-carried values) are joined into groups by union-find. A group with
an entry parameter, a constant or an entry result is placed there. Of the others, large ones that are dead before a
result is first written use that result's memory; the rest is packed into an arena by live ranges, in O(n log n) if
there are many. Values of the host's memory, S(5), have an arena of their own: on a CPU it is part of the same block, a
GPU reaches it over its bus.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hloc.analysis.packing import align, pack_by_size, pack_in_order, reuse_result_memory
from hloc.errors import HlocError
from hloc.kernels.plan import Ref
from hloc.sanitize import GAP, sanitizers

LEAST_APART = 4096                    # bytes: NumPy caches smaller pieces of memory, with their gaps
MOST_BY_SIZE = 4000                   # groups from which on a check of all pairs is too slow


class Home(NamedTuple):
    """Memory outside the arena: region parameter, constant or result, and its index."""

    region: str
    index: int                          # type: ignore[assignment]     # hides tuple.index, which nothing calls


class Value:
    """One array in memory. `parent` is the union-find link; the other fields are valid only at the group's root."""

    __slots__ = ("size", "parent", "home", "lent", "stays", "first", "last", "offset", "written", "on_host")

    def __init__(self, size: int, home: Home | None = None, on_host: bool = False):
        self.size = size
        self.on_host = on_host                # in the host's memory, not the device's
        self.parent: Value | None = None
        self.home = home
        self.lent: Home | None = None         # a result whose memory this uses until that is written
        self.stays = False                    # in the arena: results may have a smaller alignment
        self.first = -1
        self.last = -1
        self.offset = 0
        self.written = False


class BufferAssignment:
    """Collects values, their sharing and their live ranges; `place` assigns addresses."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.arena_size = self.host_arena_size = 0        # bytes; the second is part of the first unless they are apart
        self._host_region = "arena"
        self.gaps: tuple[tuple[int, int], ...] = ()       # of the arena, checked by sanitizers: offset and size

    def new(self, size: int, home: Home | None = None, on_host: bool = False) -> Value:
        value = Value(size, home, on_host)
        self.values.append(value)
        return value

    def root(self, value: Value) -> Value:
        """The representative of the value's group."""
        top = value
        while top.parent is not None:
            top = top.parent
        while value.parent is not None:                     # path compression keeps the walk short
            value.parent, value = top, value.parent
        return top

    def define(self, value: Value, time: int) -> None:
        """The value is written at `time`."""
        group = self.root(value)
        group.written = True
        self._extend(group, time)

    def use(self, value: Value, time: int) -> None:
        """The value is read at `time`."""
        self._extend(self.root(value), time)

    def _extend(self, group: Value, time: int) -> None:
        group.first = time if group.first < 0 else min(group.first, time)
        group.last = max(group.last, time)

    def can_join(self, a: Value, b: Value) -> bool:
        """Whether two groups may be joined: they do not have two homes, nothing is written into a constant or
        parameter, and both are in the memory where that home is."""
        a, b = self.root(a), self.root(b)
        if a is b:
            return True
        homes = [g.home for g in (a, b) if g.home is not None]
        if len(homes) == 2 or homes and a.on_host != b.on_host:
            return False
        fixed = bool(homes) and homes[0].region != "result"
        return not (fixed and (a.written or b.written))

    def join(self, a: Value, b: Value) -> None:
        """Make two values share memory."""
        a, b = self.root(a), self.root(b)
        if a is b:
            return
        if a.home is not None and b.home is not None:
            raise HlocError(f"internal: values in {a.home} and {b.home} cannot share memory: "
                            "copy_insertion missed a copy")
        b.parent = a
        a.home = a.home or b.home
        a.on_host |= b.on_host
        a.size = max(a.size, b.size)
        a.written = a.written or b.written
        for time in (b.first, b.last):
            if time >= 0:
                self._extend(a, time)

    def share_if_dead(self, result: Value, operand: Value, time: int) -> None:
        """Let `result`, first written at `time`, reuse the memory of `operand` if that is last read then."""
        a, b = self.root(operand), self.root(result)
        if a is not b and a.home is b.home is None and (a.size, a.on_host) == (b.size, b.on_host) \
                and a.last == b.first == time:
            self.join(a, b)

    def place(self, host_apart: bool = False) -> None:
        """Give every group its offset: in results that are not yet written, or in an arena. Groups of the host's memory
        have an arena of their own, which stands behind the device's in one block unless the two are apart."""
        roots = [v for v in self.values if v.parent is None and v.first >= 0]
        groups = [v for v in roots if v.home is None]
        hosts = [v for v in roots if v.home is not None and v.home.region == "result" and not v.on_host]
        guests = [v for v in groups if not v.stays and not v.on_host]
        for number, (host, offset) in reuse_result_memory(hosts, guests).items():
            guests[number].lent, guests[number].offset = hosts[host].home, offset
        self.arena_size, self.gaps = _place_in_arena([v for v in groups if v.lent is None and not v.on_host])
        apart = [v for v in groups if v.on_host]
        if not apart:
            return
        self.host_arena_size, gaps = _place_in_arena(apart)
        if host_apart:
            self._host_region = "host"
            return
        start = align(self.arena_size)
        for group in apart:
            group.offset += start
        self.arena_size = start + self.host_arena_size
        self.gaps += tuple((offset + start, size) for offset, size in gaps)

    def ref(self, value: Value) -> Ref:
        """The location of the value; valid after `place`."""
        group = self.root(value)
        home = group.home or group.lent or Home(self._host_region if group.on_host else "arena", 0)
        return Ref(*home, group.offset, value.size)


def _place_in_arena(groups: Sequence[Value]) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Set the offsets: those of the smaller of the arenas of two packing algorithms. Its size and gaps."""
    candidates = [disjoint_offsets(groups)] if sanitizers() else [pack_in_order(groups)]
    if not sanitizers() and len(groups) <= MOST_BY_SIZE:
        candidates.append(pack_by_size(groups))
    size, offsets = min(candidates, key=lambda found: found[0])
    for group, offset in zip(groups, offsets):
        group.offset = offset
    return size, gaps(groups, offsets, size) if sanitizers() else ()


def disjoint_offsets(groups: Sequence[Value]) -> tuple[int, list[int]]:
    """An arena in which each group has its own memory, with a gap before and after it."""
    offsets, top = [], GAP
    for group in groups:
        offsets.append(top)
        top += align(group.size) + GAP
    return max(top, LEAST_APART), offsets


def gaps(groups: Sequence[Value], offsets: Sequence[int], end: int) -> tuple[tuple[int, int], ...]:
    """The gaps between groups: offset and size."""
    starts = [*offsets[1:], end]
    places = [(offset + g.size, start - offset - g.size) for g, offset, start in zip(groups, offsets, starts)]
    return ((0, offsets[0] if offsets else end), *places)
