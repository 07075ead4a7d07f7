"""Addresses of arrays, so that arrays with overlapping live ranges do not overlap in memory.

In: arrays with a size in bytes and a live range: the first and the last position on one timeline at which each is
needed. Out: offsets in bytes, multiples of ALIGNMENT, and the size of an arena that holds all.

    pack_by_size([Life(100, 0, 1), Life(50, 1, 2), Life(60, 2, 3)])     -> (192, [0, 128, 0])
"""
from __future__ import annotations

import bisect
import heapq
from collections.abc import Sequence
from typing import NamedTuple, Protocol

ALIGNMENT = 64                                  # bytes
LEAST_HOST, LEAST_GUEST = 1 << 16, 1 << 12      # bytes of results whose memory arrays use before, and of those arrays
MOST_LENT = 1 << 17                             # examined pairs of such results and groups


class Array(Protocol):
    """The input of `reuse_result_memory` and of the packing algorithms: a size and a live range."""

    @property
    def size(self) -> int: ...

    @property
    def first(self) -> int: ...

    @property
    def last(self) -> int: ...


class Life(NamedTuple):
    """An array with only these."""

    size: int
    first: int
    last: int


def align(size: int) -> int:
    """`size` rounded up to ALIGNMENT, at least ALIGNMENT, so that every array has an address."""
    return max(ALIGNMENT, (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT)


def reuse_result_memory(results: Sequence[Array], arrays: Sequence[Array]) -> dict[int, tuple[int, int]]:
    """Place large arrays in the memory of results that are written after their live range: number of the array ->
    (number of the result, offset). The largest first, each into the smallest result with enough room."""
    hosts = sorted((n for n, r in enumerate(results) if r.size >= LEAST_HOST), key=lambda n: results[n].size)
    guests = sorted((n for n, a in enumerate(arrays) if a.size >= LEAST_GUEST), key=lambda n: -arrays[n].size)
    placed: dict[int, list[Placed]] = {host: [] for host in hosts}
    found: dict[int, tuple[int, int]] = {}
    for number in guests[:MOST_LENT // max(1, len(hosts))]:
        guest = arrays[number]
        for host in hosts:
            if guest.size > results[host].size or guest.last >= results[host].first:
                continue
            offset = _tightest(placed[host], guest, align(guest.size), results[host].size)
            if offset is not None:
                found[number] = host, offset
                bisect.insort(placed[host], Placed(offset, offset + align(guest.size), guest.first, guest.last))
                break
    return found


class Placed(NamedTuple):
    """A piece of memory and its live range."""

    offset: int
    end: int
    first: int
    last: int


def _tightest(placed: Sequence[Placed], group: Array, size: int, room: int | None = None) -> int | None:
    """The offset of the tightest gap between pieces that are live at the group's time, else after them; None if `room`
    is not enough. placed: by offset."""
    best, tightest, at = -1, 0, 0
    for offset, end, first, last in placed:
        if first <= group.last and group.first <= last:
            if size <= offset - at and (best < 0 or offset - at < tightest):
                best, tightest = at, offset - at
            at = max(at, end)
    if best >= 0:
        return best
    return at if room is None or at + group.size <= room else None


def pack_in_order(groups: Sequence[Array]) -> tuple[int, list[int]]:
    """Size of the arena and an offset per group: along the schedule, best fit among the pieces free at that time."""
    free, offsets = FreeList(), [0] * len(groups)
    ends: list[tuple[int, int]] = []                        # (last, number) of live groups: a heap
    for number in sorted(range(len(groups)), key=lambda n: (groups[n].first, -groups[n].size)):
        while ends and ends[0][0] < groups[number].first:
            dead = heapq.heappop(ends)[1]
            free.give(offsets[dead], align(groups[dead].size))
        offsets[number] = free.take(align(groups[number].size))
        heapq.heappush(ends, (groups[number].last, number))
    return free.top, offsets


def pack_by_size(groups: Sequence[Array]) -> tuple[int, list[int]]:
    """The same, the largest group first: each into the tightest gap between groups live at its time. It nearly always
    finds the smallest possible arena, but compares all groups of one time with each other."""
    offsets, top = [0] * len(groups), 0
    timeline = Timeline(max((g.last for g in groups), default=0))
    for number in sorted(range(len(groups)), key=lambda n: (-groups[n].size, groups[n].first)):
        group, size = groups[number], align(groups[number].size)
        offsets[number] = _tightest(timeline.near(group), group, size) or 0
        timeline.add(Placed(offsets[number], offsets[number] + size, group.first, group.last))
        top = max(top, offsets[number] + size)
    return top, offsets


class Timeline:
    """The placed groups, by offset, in total and by slices of time: most live ranges are in one or two."""

    SLICES, FEW = 32, 3

    def __init__(self, end: int):
        self._width = end // self.SLICES + 1
        self._slices: list[list[Placed]] = [[] for _ in range(self.SLICES)]
        self._all: list[Placed] = []

    def near(self, group: Array) -> list[Placed]:
        """All groups live at the group's time, and possibly others, by offset."""
        touched = self._touched(group.first, group.last)
        if len(touched) == 1:
            return touched[0]
        return self._all if len(touched) > self.FEW else sorted({piece for pieces in touched for piece in pieces})

    def add(self, piece: Placed) -> None:
        for pieces in (self._all, *self._touched(piece.first, piece.last)):
            bisect.insort(pieces, piece)

    def _touched(self, first: int, last: int) -> list[list[Placed]]:
        return self._slices[first // self._width:last // self._width + 1]


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
        last = self._by_end.get(self.top)                   # a free piece at the top needs only the difference
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
