"""From one sharding of an array to another: which steps, and what each device sends for them.

    f32[8,8]  {x along 0}  ->  {x along 1}             exchange (all-to-all) of x from dimension 0 to 1
    f32[8,8]  {x along 0}  ->  {y along 0}, both 2     permute: as many parts, other devices
    f32[8,8]  {}           ->  {x along 0}             slice
    f32[8,8]  {x along 0}  ->  {}                      gather

Slices come as early as they can: what follows is smaller then. Where several steps send, a search over shardings in
between finds those that send least. A dimension that does not divide evenly has its padding in the parts, so it is a
longer one that does: it gets the padding while it is whole, and loses it when it is whole again. Where the parts before
and after begin at other elements, it is gathered and cut anew.
"""
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from typing import NamedTuple

from hloc.analysis.communication import sent_by_each
from hloc.sharding.meshes import Axes, DeviceMesh

MOST_STATES = 200                 # shardings that a search for the cheapest steps looks at


class Step(NamedTuple):
    """kind: slice, gather, exchange or permute, of `axes` along `dimension`; an exchange puts them behind the axes of
    dimension `onto`. Or resize: a dimension that is whole has `size` elements from now on, with its padding or without.
    sharding: the axes along all dimensions afterwards. sent: elements, by each device."""

    kind: str
    dimension: int
    axes: Axes
    sharding: tuple[Axes, ...]
    sent: float = 0.0
    onto: int = -1
    size: int = -1


def steps_between(sizes: Sequence[int], source: Sequence[Axes], target: Sequence[Axes],
                  mesh: DeviceMesh) -> tuple[Step, ...]:
    """The steps from `source` to `target` of an array of such sizes."""
    source, target = tuple(source), tuple(target)
    return () if source == target else _steps(tuple(sizes), source, target, mesh)


@lru_cache(maxsize=4096)
def _steps(sizes: tuple[int, ...], source: tuple[Axes, ...], target: tuple[Axes, ...],
           mesh: DeviceMesh) -> tuple[Step, ...]:
    before, after = ([padded(n, a, mesh) for n, a in zip(sizes, axes)] for axes in (source, target))
    if any(a and b and m != n for a, b, m, n in zip(source, target, before, after)):
        used = {a for axes in source for a in axes}
        middle = tuple(() if a and b and m != n else b if b[:len(a)] == a and not used & set(b[len(a):]) else a
                       for a, b, m, n in zip(source, target, before, after))
        return _steps(sizes, source, middle, mesh) + _steps(sizes, middle, target, mesh)
    even = tuple(map(max, before, after))
    found: Sequence[Step] = _Resharding(even, source, target, mesh).steps()
    if sum(step.sent > 0 for step in found) > 1:
        found = _cheapest(even, source, target, mesh, elements_sent(found)) or found
    return tuple(_resized(found, sizes, even, source, target))


def padded(size: int, axes: Axes, mesh: DeviceMesh) -> int:
    """Elements of all parts along such axes, padding among them."""
    count = mesh.count(axes)
    return -(-size // count) * count


def _resized(steps: Sequence[Step], sizes: Sequence[int], even: Sequence[int], source: tuple[Axes, ...],
             target: tuple[Axes, ...]) -> list[Step]:
    """The steps, and where dimensions get padding, as late as they can, or lose it, as early as they can."""
    made = list(steps)
    for d, (size, longer) in enumerate(zip(sizes, even)):
        if size == longer:
            continue
        divided = [n for n, step in enumerate(made) if step.sharding[d]]           # after these steps
        if not target[d]:
            last = divided[-1] + 1 if divided else 0                               # the step that makes it whole
            made.insert(last + 1, Step("resize", d, (), made[last].sharding, size=size))
        if not source[d]:
            now = made[divided[0] - 1].sharding if divided[0] else source
            made.insert(divided[0], Step("resize", d, (), now, size=longer))
    return made


def _cheapest(sizes: tuple[int, ...], source: tuple[Axes, ...], target: tuple[Axes, ...], mesh: DeviceMesh,
              most: float) -> tuple[Step, ...] | None:
    """The steps that send least, less than `most`: axes may lie along other dimensions in between. None where none
    send less, or none were found among MOST_STATES shardings."""
    waiting: list[tuple[float, int, tuple[Step, ...], tuple[Axes, ...]]] = [(0.0, 0, (), source)]
    seen: set[tuple[Axes, ...]] = set()
    number = 0
    while waiting and len(seen) < MOST_STATES:
        sent, _, steps, now = heappop(waiting)
        if now == target:
            return steps
        if now in seen:
            continue
        seen.add(now)
        for step in _steps_from(sizes, now, target, mesh):
            if sent + step.sent < most:
                number += 1
                heappush(waiting, (sent + step.sent, number, (*steps, step), step.sharding))
    return None


def _steps_from(sizes: tuple[int, ...], now: tuple[Axes, ...], target: tuple[Axes, ...],
                mesh: DeviceMesh) -> Iterator[Step]:
    """All steps from one sharding, of dimensions that divide evenly."""
    local = math.prod(n // mesh.count(a) for n, a in zip(sizes, now))
    used = {a for axes in now for a in axes}
    if all(mesh.count(a) == mesh.count(b) for a, b in zip(now, target)):
        yield Step("permute", -1, (), target, sent_by_each("collective-permute", local, 1))

    def changed(*pairs: tuple[int, Axes]) -> tuple[Axes, ...]:
        new = dict(pairs)
        return tuple(new.get(d, axes) for d, axes in enumerate(now))
    for d, axes in enumerate(now):
        more = target[d][len(axes):]
        if target[d][:len(axes)] == axes and more and not used & set(more):
            yield Step("slice", d, more, changed((d, target[d])))
        for start in range(len(axes)):
            moved = axes[start:]
            parts = mesh.count(moved)
            yield Step("gather", d, moved, changed((d, axes[:start])), sent_by_each("all-gather", local, parts))
            for onto, there in enumerate(now):
                if onto != d and sizes[onto] % mesh.count((*there, *moved)) == 0:
                    yield Step("exchange", d, moved, changed((d, axes[:start]), (onto, (*there, *moved))),
                               sent_by_each("all-to-all", local, parts), onto)


def elements_sent(steps: Sequence[Step]) -> float:
    return sum(step.sent for step in steps)


class _Resharding:
    """The steps that come to mind first, of dimensions that divide evenly."""

    def __init__(self, sizes: Sequence[int], source: Sequence[Axes], target: Sequence[Axes], mesh: DeviceMesh):
        self.sizes, self.now, self.target, self.mesh = sizes, list(source), list(target), mesh
        self.found: list[Step] = []

    def steps(self) -> list[Step]:
        while True:
            self._slice()
            if self.now == self.target:
                return self.found
            if not (self._permute() or self._exchange()):
                self._gather()

    def _local(self) -> int:
        """Elements of a device's part."""
        product = 1
        for size, axes in zip(self.sizes, self.now):
            product *= size // self.mesh.count(axes)
        return product

    def _take(self, kind: str, dimension: int, axes: Axes, sent: float = 0.0, onto: int = -1) -> None:
        self.found.append(Step(kind, dimension, axes, tuple(self.now), sent, onto))

    def _slice(self) -> None:
        used = {a for axes in self.now for a in axes}
        for d, (now, target) in enumerate(zip(self.now, self.target)):
            if target[:len(now)] != now:
                continue
            more: list[int] = []
            for axis in target[len(now):]:
                if axis in used:
                    break
                more.append(axis)
            if more:
                self.now[d] = (*now, *more)
                used.update(more)
                self._take("slice", d, tuple(more))

    def _permute(self) -> bool:
        """Where each device's part has its size already, though another device has it."""
        if any(self.mesh.count(a) != self.mesh.count(b) for a, b in zip(self.now, self.target)):
            return False
        self.now = list(self.target)
        self._take("permute", -1, (), sent_by_each("collective-permute", self._local(), 1))
        return True

    def _exchange(self) -> bool:
        for i, now in enumerate(self.now):
            tail = self._tail(i)
            for start in range(len(now) - len(tail), len(now)):
                moved = now[start:]
                for j, there in enumerate(self.now):
                    if j != i and self.target[j][:len(there) + len(moved)] == (*there, *moved):
                        sent = sent_by_each("all-to-all", self._local(), self.mesh.count(moved))
                        self.now[i], self.now[j] = now[:start], (*there, *moved)
                        self._take("exchange", i, moved, sent, onto=j)
                        return True
        return False

    def _gather(self) -> None:
        d = next(d for d in range(len(self.now)) if self._tail(d))
        axes = self._tail(d)
        sent = sent_by_each("all-gather", self._local(), self.mesh.count(axes))
        self.now[d] = self.now[d][:len(self.now[d]) - len(axes)]
        self._take("gather", d, axes, sent)

    def _tail(self, d: int) -> Axes:
        """The axes that cannot stay along dimension d: those behind what the target has, too."""
        now, target = self.now[d], self.target[d]
        if now == target:
            return ()
        common = 0
        while common < min(len(now), len(target)) and now[common] == target[common]:
            common += 1
        return now[common:]
