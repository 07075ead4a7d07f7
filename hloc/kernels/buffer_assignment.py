"""Buffer assignment: which values share memory, how long each lives, where it lies in the arena.

In: Values made by the planner while it walks the schedule; each has a size in bytes and times of its definition and
uses on one flattened timeline. Out: a Ref per value.

    a = assignment.new(4096); assignment.define(a, 3); assignment.use(a, 7)
    assignment.place(); assignment.ref(a)          -> Ref("arena", 0, 0, 4096)

Values that must share memory (in-place updates, loop-carried values) are joined into groups by union-find. A group that
holds an entry parameter, a constant or an entry result lies there. Of the others, large ones that are dead before a
result is first written lie in that result's memory meanwhile; the rest is packed into one arena over their live ranges,
in O(n log n) where there are many.
"""
from __future__ import annotations

import bisect
import heapq
from collections.abc import Sequence
from typing import NamedTuple

from hloc.errors import HlocError
from hloc.kernels.plan import ALIGNMENT, Ref

MOST_BY_SIZE = 2000                   # groups from which on all pairs of them are too many
LEAST_HOST, LEAST_GUEST = 1 << 16, 1 << 12      # bytes of results that lend their memory, and of what lies there
MOST_LENT = 1 << 17                   # pairs of such results and groups that are looked at


class Home(NamedTuple):
    """Memory outside the arena: region parameter, constant or result, and its index."""

    region: str
    index: int


class Value:
    """One array in memory. `parent` is the union-find link; the other fields count only at the group's root."""

    __slots__ = ("size", "parent", "home", "lent", "stays", "first", "last", "offset", "written")

    def __init__(self, size: int, home: Home | None = None):
        self.size = size
        self.parent: Value | None = None
        self.home = home
        self.lent: Home | None = None         # a result whose memory this has until that is written
        self.stays = False                    # in the arena: results may be less aligned
        self.first = -1
        self.last = -1
        self.offset = 0
        self.written = False


def align(size: int) -> int:
    """`size` rounded up to ALIGNMENT; nothing takes zero bytes, so that every value has an address."""
    return max(ALIGNMENT, (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT)


class BufferAssignment:
    """Collects values, their sharing and their lives; `place` gives each an address."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.arena_size = 0

    def new(self, size: int, home: Home | None = None) -> Value:
        value = Value(size, home)
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
        """Whether two groups may become one: not two homes, and nothing written into a constant or parameter."""
        a, b = self.root(a), self.root(b)
        if a is b:
            return True
        homes = [g.home for g in (a, b) if g.home is not None]
        if len(homes) == 2:
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
        a.size = max(a.size, b.size)
        a.written = a.written or b.written
        for time in (b.first, b.last):
            if time >= 0:
                self._extend(a, time)

    def share_if_dead(self, result: Value, operand: Value, time: int) -> bool:
        """Let `result`, first written at `time`, take over the memory of `operand` where that one is read last then."""
        a, b = self.root(operand), self.root(result)
        if a is b or a.home is not None or b.home is not None or a.size != b.size:
            return a is b
        if a.last != time or b.first != time:
            return False
        self.join(a, b)
        return True

    def place(self) -> None:
        """Give every group its offset: in results that are not yet written, or in the smaller of the arenas that two
        ways of packing find."""
        roots = [v for v in self.values if v.parent is None and v.first >= 0]
        groups = [v for v in roots if v.home is None]
        lend([v for v in roots if v.home is not None and v.home.region == "result"], groups)
        groups = [v for v in groups if v.lent is None]
        ways = [pack_in_order(groups)]
        if len(groups) <= MOST_BY_SIZE:
            ways.append(pack_by_size(groups))
        self.arena_size, offsets = min(ways, key=lambda way: way[0])
        for group, offset in zip(groups, offsets):
            group.offset = offset

    def ref(self, value: Value) -> Ref:
        """Where the value lies; valid after `place`."""
        group = self.root(value)
        if group.home is not None:
            return Ref(group.home.region, group.home.index, 0, value.size)
        if group.lent is not None:
            return Ref(group.lent.region, group.lent.index, group.offset, value.size)
        return Ref("arena", 0, group.offset, value.size)


def lend(results: Sequence[Value], groups: Sequence[Value]) -> None:
    """Put large groups into the memory of results that are written after their end: the largest first, each into the
    smallest result that has room for it."""
    hosts = sorted((r for r in results if r.size >= LEAST_HOST), key=lambda r: r.size)
    guests = sorted((g for g in groups if g.size >= LEAST_GUEST and not g.stays), key=lambda g: -g.size)
    placed: dict[Value, list[Placed]] = {host: [] for host in hosts}
    for guest in guests[:MOST_LENT // max(1, len(hosts))]:
        for host in hosts:
            if guest.size > host.size or guest.last >= host.first:
                continue
            offset = _tightest(placed[host], guest, align(guest.size), host.size)
            if offset is not None:
                guest.lent, guest.offset = host.home, offset
                bisect.insort(placed[host], Placed(offset, offset + align(guest.size), guest.first, guest.last))
                break


class Placed(NamedTuple):
    """A piece of memory, and its life."""

    offset: int
    end: int
    first: int
    last: int


def _tightest(placed: Sequence[Placed], group: Value, size: int, room: int | None = None) -> int | None:
    """The offset of the tightest gap between pieces that live at the group's time, else behind them; None where `room`
    is not enough for that. placed: by offset."""
    best, tightest, at = -1, 0, 0
    for offset, end, first, last in placed:
        if first <= group.last and group.first <= last:
            if size <= offset - at and (best < 0 or offset - at < tightest):
                best, tightest = at, offset - at
            at = max(at, end)
    if best >= 0:
        return best
    return at if room is None or at + group.size <= room else None


def pack_in_order(groups: Sequence[Value]) -> tuple[int, list[int]]:
    """Size of the arena and an offset per group: along the schedule, best fit among the pieces free at that time."""
    free, offsets = FreeList(), [0] * len(groups)
    ends: list[tuple[int, int]] = []                        # (last, number) of what is alive: a heap
    for number in sorted(range(len(groups)), key=lambda n: (groups[n].first, -groups[n].size)):
        while ends and ends[0][0] < groups[number].first:
            dead = heapq.heappop(ends)[1]
            free.give(offsets[dead], align(groups[dead].size))
        offsets[number] = free.take(align(groups[number].size))
        heapq.heappush(ends, (groups[number].last, number))
    return free.top, offsets


def pack_by_size(groups: Sequence[Value]) -> tuple[int, list[int]]:
    """The same, the largest group first: each into the tightest gap between those that live at its time. It finds the
    least possible arena nearly always, but compares all with all."""
    offsets, top = [0] * len(groups), 0
    placed: list[Placed] = []
    for number in sorted(range(len(groups)), key=lambda n: (-groups[n].size, groups[n].first)):
        group, size = groups[number], align(groups[number].size)
        offsets[number] = _tightest(placed, group, size) or 0
        bisect.insort(placed, Placed(offsets[number], offsets[number] + size, group.first, group.last))
        top = max(top, offsets[number] + size)
    return top, offsets


class FreeList:
    """Free pieces of an arena that grows at its top: `take` the smallest that fits, `give` back and merge."""

    def __init__(self) -> None:
        self.top = 0
        self._by_size: list[tuple[int, int]] = []           # (size, offset), sorted
        self._by_start: dict[int, int] = {}                 # offset -> size
        self._by_end: dict[int, int] = {}                   # end -> offset

    def take(self, size: int) -> int:
        place = bisect.bisect_left(self._by_size, (size, -1))
        if place < len(self._by_size):
            length, offset = self._by_size[place]
            self._remove(offset, length)
            if length > size:
                self._insert(offset + size, length - size)
            return offset
        offset = self.top
        last = self._by_end.get(self.top)                   # a free piece at the top needs only the rest
        if last is not None:
            self._remove(last, self._by_start[last])
            offset = last
        self.top = offset + size
        return offset

    def give(self, offset: int, size: int) -> None:
        before = self._by_end.get(offset)
        if before is not None:
            length = self._by_start[before]
            self._remove(before, length)
            offset, size = before, size + length
        after = self._by_start.get(offset + size)
        if after is not None:
            self._remove(offset + size, after)
            size += after
        self._insert(offset, size)

    def _insert(self, offset: int, size: int) -> None:
        bisect.insort(self._by_size, (size, offset))
        self._by_start[offset] = size
        self._by_end[offset + size] = offset

    def _remove(self, offset: int, size: int) -> None:
        del self._by_size[bisect.bisect_left(self._by_size, (size, offset))]
        del self._by_start[offset]
        del self._by_end[offset + size]
