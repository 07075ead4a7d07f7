"""The scratch memory of one step: of the calling thread, and of each thread.

    Scratch.of(first=1000, own=50, threads=4)      Scratch(first=1024, second=0, third=0, own=64, threads=4)
"""
from __future__ import annotations

from typing import NamedTuple

from hloc.analysis.packing import ALIGNMENT
from hloc.machine import Machine


def aligned(size: int) -> int:
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def busy_threads(pieces: int, grain: int, machine: Machine) -> int:
    """Threads that may have a task of hloc_parallel(..., pieces, grain): one if all pieces are one range."""
    return machine.cores if pieces > grain else 1


class Scratch(NamedTuple):
    """Bytes of the slots of hloc_scratch (runtime/pool.h): HLOC_FIRST, HLOC_SECOND, HLOC_THIRD, and HLOC_OWN of
    each thread."""

    first: int = 0
    second: int = 0
    third: int = 0
    own: int = 0
    threads: int = 0

    @staticmethod
    def of(*, first: int = 0, second: int = 0, third: int = 0, own: int = 0, threads: int = 1) -> Scratch:
        """A Scratch with all sizes aligned, so that adjacent slots are aligned."""
        return Scratch(aligned(first), aligned(second), aligned(third), aligned(own), threads if own else 0)

    @property
    def bytes(self) -> int:
        return self.first + self.second + self.third + self.own * self.threads

    def joined(self, other: Scratch) -> Scratch:
        """Enough memory for either."""
        return Scratch(*map(max, self, other))


def constants_text(decisions: NamedTuple) -> str:
    """The decisions of a plan in C: {.batches = 1, .m = 64, ...}; what is zero is left out."""
    given = {name: value for name, value in decisions._asdict().items() if value}
    return "{" + (", ".join(f".{name} = {int(value)}" for name, value in given.items()) or "0") + "}"


NOTHING = Scratch()
