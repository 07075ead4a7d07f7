"""Which translation units, and which kernels in them, take the C compiler longest.

    times: list[UnitTime] = []
    with timed(times, "kernels", functions): compile them

The compiler reports no time per function: a kernel's part of its unit is estimated (unit_costs.py), but for one that
stands alone.
"""
from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from hloc.targets.c_function import CFunction
from hloc.targets.cpu.building.unit_costs import kernel_cost


class KernelTime(NamedTuple):
    """A C function. about: the instruction that it computes ("" for one that kernels call); seconds: estimated, see
    above."""

    name: str
    about: str
    seconds: float


class UnitTime(NamedTuple):
    """One call of the C compiler. name: what it compiled; kernels: what the unit holds, the slowest first."""

    name: str
    seconds: float
    kernels: tuple[KernelTime, ...]


@contextmanager
def timed(times: list[UnitTime], name: str, functions: Sequence[CFunction] = ()) -> Iterator[None]:
    """Adds what is done inside to `times`. functions: of the unit."""
    start = time.perf_counter()
    yield
    times.append(unit_time(name, time.perf_counter() - start, functions))


def unit_time(name: str, seconds: float, functions: Sequence[CFunction]) -> UnitTime:
    """The seconds of a unit, dealt out to its kernels."""
    costs = [kernel_cost(f) for f in functions]
    each = [KernelTime(f.name, f.about, seconds * cost / sum(costs)) for f, cost in zip(functions, costs)]
    return UnitTime(name, seconds, tuple(sorted(each, key=lambda k: -k.seconds)))
