"""From one sharding of an array to another: which steps, and what each device sends for them.

    f32[8,8]  {x along 0}  ->  {x along 1}             exchange (all-to-all) of x from dimension 0 to 1
    f32[8,8]  {x along 0}  ->  {y along 0}, both 2     permute: as many parts, other devices
    f32[8,8]  {}           ->  {x along 0}             slice
    f32[8,8]  {x along 0}  ->  {}                      gather

Slices come as early as they can: what follows is smaller then. Along a dimension that does not divide evenly, before or
after, all parts are gathered and cut anew.
"""
from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from hloc.sharding.meshes import Axes, DeviceMesh


class Step(NamedTuple):
    """kind: slice, gather, exchange or permute, of `axes` along `dimension`; an exchange puts them behind the axes of
    dimension `onto`. sharding: the axes along all dimensions afterwards. sent: elements, by each device."""

    kind: str
    dimension: int
    axes: Axes
    sharding: tuple[Axes, ...]
    sent: float = 0.0
    onto: int = -1


def steps_between(sizes: Sequence[int], source: Sequence[Axes], target: Sequence[Axes],
                  mesh: DeviceMesh) -> tuple[Step, ...]:
    """The steps from `source` to `target` of an array of such sizes."""
    if source == target:
        return ()
    return _steps(tuple(sizes), tuple(source), tuple(target), mesh)


@lru_cache(maxsize=4096)
def _steps(sizes: tuple[int, ...], source: tuple[Axes, ...], target: tuple[Axes, ...],
           mesh: DeviceMesh) -> tuple[Step, ...]:
    return tuple(_Resharding(sizes, source, target, mesh).steps()) if source != target else ()


def elements_sent(steps: Sequence[Step]) -> float:
    return sum(step.sent for step in steps)


class _Resharding:
    def __init__(self, sizes: Sequence[int], source: Sequence[Axes], target: Sequence[Axes], mesh: DeviceMesh):
        self.sizes, self.now, self.target, self.mesh = sizes, list(source), list(target), mesh
        self.uneven = [a != b and (n % mesh.count(a) > 0 or n % mesh.count(b) > 0)
                       for n, a, b in zip(sizes, source, target)]
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
            product *= -(-size // self.mesh.count(axes))
        return product

    def _take(self, kind: str, dimension: int, axes: Axes, sent: float = 0.0, onto: int = -1) -> None:
        self.found.append(Step(kind, dimension, axes, tuple(self.now), sent, onto))

    def _slice(self) -> None:
        used = {a for axes in self.now for a in axes}
        for d, (now, target) in enumerate(zip(self.now, self.target)):
            if target[:len(now)] != now or self.uneven[d] and now:
                continue
            more: list[int] = []
            for axis in target[len(now):]:
                if axis in used:
                    break
                more.append(axis)
            if more and not (self.uneven[d] and (*now, *more) != target):
                self.now[d] = (*now, *more)
                used.update(more)
                self._take("slice", d, tuple(more))

    def _permute(self) -> bool:
        """Where each device's part has its size already, though another device has it."""
        if any(self.uneven) or any(self.mesh.count(a) != self.mesh.count(b) for a, b in zip(self.now, self.target)):
            return False
        self.now = list(self.target)
        self._take("permute", -1, (), float(self._local()))
        return True

    def _exchange(self) -> bool:
        for i, now in enumerate(self.now):
            tail = self._tail(i)
            for start in range(len(now) - len(tail), len(now)):
                moved = now[start:]
                for j, there in enumerate(self.now):
                    if j != i and not self.uneven[i] and not self.uneven[j] and \
                            self.target[j][:len(there) + len(moved)] == (*there, *moved):
                        parts = self.mesh.count(moved)
                        sent = self._local() * (parts - 1) / parts
                        self.now[i], self.now[j] = now[:start], (*there, *moved)
                        self._take("exchange", i, moved, sent, onto=j)
                        return True
        return False

    def _gather(self) -> None:
        d = next(d for d in range(len(self.now)) if self._tail(d))
        axes = self._tail(d)
        parts = self.mesh.count(axes)
        sent = float(self._local() * (parts - 1))
        self.now[d] = self.now[d][:len(self.now[d]) - len(axes)]
        self._take("gather", d, axes, sent)

    def _tail(self, d: int) -> Axes:
        """The axes that cannot stay along dimension d: those behind what the target has, too."""
        now, target = self.now[d], self.target[d]
        if now == target:
            return ()
        common = 0
        while not self.uneven[d] and common < min(len(now), len(target)) and now[common] == target[common]:
            common += 1
        return now[common:]
