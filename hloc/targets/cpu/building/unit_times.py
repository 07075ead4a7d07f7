"""Which translation units, and which kernels in them, take the C compiler longest.

    times: list[UnitTime] = []
    with timed(times, "kernels", kernels=texts): compile them

The compiler reports no time per function: a kernel's part of its unit is estimated (unit_costs.py), but for one that
stands alone.
"""
from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from hloc.targets.cpu.building.unit_costs import kernel_cost

_DEFINED = re.compile(r"^(?:\w+ )*void (\w+)\([^;{]*\{", re.MULTILINE)
_ABOUT = re.compile(r"^/\* (.*) \*/$", re.MULTILINE)


class KernelTime(NamedTuple):
    """A function of C. about: the instruction that it computes, as the comment above it names it ("" for one that
    kernels call); seconds: estimated, see above."""

    name: str
    about: str
    seconds: float


class UnitTime(NamedTuple):
    """One call of the C compiler. name: what it compiled; kernels: what the unit holds, the slowest first."""

    name: str
    seconds: float
    kernels: tuple[KernelTime, ...]


@contextmanager
def timed(times: list[UnitTime], name: str, kernels: Sequence[str] = ()) -> Iterator[None]:
    """Adds what is done inside to `times`. kernels: the C texts of the unit's functions."""
    start = time.perf_counter()
    yield
    times.append(unit_time(name, time.perf_counter() - start, kernels))


def unit_time(name: str, seconds: float, kernels: Sequence[str]) -> UnitTime:
    """The seconds of a unit, dealt out to its kernels."""
    costs = [kernel_cost(text) for text in kernels]
    each = [KernelTime(_name(text), _about(text), seconds * cost / sum(costs)) for text, cost in zip(kernels, costs)]
    return UnitTime(name, seconds, tuple(sorted(each, key=lambda k: -k.seconds)))


def _name(text: str) -> str:
    found = _DEFINED.search(text)
    return found[1] if found else "(functions)"


def _about(text: str) -> str:
    found = _ABOUT.search(text)
    return found[1] if found else ""
