"""Programs timed in turn on the same inputs.

    found = bench([Contestant("a", call_a), Contestant("b", call_b)], Effort(seconds=3))
    found.times[1]                  seconds of b, one per round
    found.against_first(1)          Comparison: b by a, with the interval of the ratio
"""
from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hloc.tools.timings import Comparison, Summary, compare_times

FEWEST_ROUNDS, MOST_ROUNDS = 10, 20_000


class Contestant(NamedTuple):
    """call: one run from start to finish, with its inputs."""

    name: str
    call: Callable[[], Any]


class Effort(NamedTuple):
    """rounds: this number, else as many as fit into `seconds`, within the bounds above; warm_up: untimed rounds."""

    seconds: float = 3.0
    rounds: int | None = None
    warm_up: int = 3

    def is_enough(self, done: int, since: float) -> bool:
        if self.rounds is not None:
            return done >= self.rounds
        return done >= MOST_ROUNDS or (done >= FEWEST_ROUNDS and time.perf_counter() - since >= self.seconds)


class Found(NamedTuple):
    """times: of each contestant, one per round, in order; warm_up: the same for the untimed rounds."""

    times: tuple[list[float], ...]
    warm_up: tuple[list[float], ...]

    @property
    def summaries(self) -> list[Summary]:
        return [Summary.of(own) for own in self.times]

    def against_first(self, number: int) -> Comparison:
        return compare_times(self.times[0], self.times[number])


def bench(contestants: Sequence[Contestant], effort: Effort, report: Callable[..., None] = lambda *_: None) -> Found:
    """Run all in turn, every other round in reverse order. A program that runs twice in a row finds its data in the
    caches and its threads awake; with alternating order both get this advantage equally."""
    warm_up: tuple[list[float], ...] = tuple([] for _ in contestants)
    times: tuple[list[float], ...] = tuple([] for _ in contestants)
    report("warm up")
    for number in range(effort.warm_up):
        _round(contestants, warm_up, number)
    start, done = time.perf_counter(), 0
    while not effort.is_enough(done, start):
        report("run", done, effort.rounds or 0)
        _round(contestants, times, done)
        done += 1
    return Found(times, warm_up)


def _round(contestants: Sequence[Contestant], times: Sequence[list[float]], number: int) -> None:
    order = range(len(contestants))
    for place in order if number % 2 == 0 else reversed(order):
        start = time.perf_counter()
        contestants[place].call()
        times[place].append(time.perf_counter() - start)
