"""Times each step of a program on a GPU by the device's clock, with events before and after it on the stream.

In: the steps of a plan (StepTimes without times). Out: their times, and when each ran in the last run.

    clock = StepClock(steps, timed, loops);  CudaBackend(packed, {}, clock)(arrays);  clock.times(), clock.spans

A program with a clock runs kernel by kernel, not as a CUDA graph. The time of a kernel includes its launch on the
device, a few microseconds. Host calls are timed by the host.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from hloc.kernels.plan import Collective, HostCall, Step, WhileLoop
from hloc.run_trace import StepTime

MOST_PENDING = 4096                 # the most pairs of events in use at once
MOST_SPANS = 1 << 20                # the most of one run


class Span(NamedTuple):
    """One run of a step. number: of the step in `times()`; start: seconds since the first step of this run began."""

    number: int
    start: float
    seconds: float


class Mark(NamedTuple):
    """An event of a loop before the span of this number: "begin", "iteration" (of an iteration) or "end"."""

    what: str
    loop: int
    span: int


class StepClock:
    """steps: the timed steps of the plan, by object identity; rows: a StepTime of each, with runs and seconds 0;
    loops: of the plan, also by identity. `cuda` is PyCUDA's driver module; only its Event is used.
    of_communication: numbers of the steps on the other stream, where collectives run.

    began, ended    nanoseconds of CLOCK_MONOTONIC, of the last run; started: when its first step was enqueued
    """

    def __init__(self, steps: Sequence[Step], rows: Sequence[StepTime], loops: Sequence[WhileLoop] = ()):
        self.numbers = {id(step): number for number, step in enumerate(steps)}
        self.rows = tuple(rows)
        self.loops = tuple(loops)
        self.loop_numbers = {id(loop): number for number, loop in enumerate(loops)}
        self.on_host = frozenset(number for number, step in enumerate(steps) if isinstance(step, HostCall))
        self.of_communication = frozenset(number for number, step in enumerate(steps)
                                          if isinstance(step, Collective) and not step.is_done)
        self.spans: list[Span] = []
        self.marks: list[Mark] = []
        self.began = self.started = self.ended = self.lost = 0
        self._runs, self._seconds = [0] * len(rows), [0.0] * len(rows)
        self._pending: list[tuple[int, Any, Any]] = []
        self._idle: list[Any] = []
        self._first: Any = None

    def begin(self) -> None:
        """Called at the begin of a run."""
        self.spans, self.marks, self._first = [], [], None
        self.began = self.started = self.ended = time.monotonic_ns()
        self.lost = 0

    def end(self) -> None:
        """Called at the end of a run; waits for the timed steps."""
        self.collect()
        self.ended = time.monotonic_ns()

    @contextmanager
    def loop(self, step: WhileLoop) -> Iterator[Callable[[], None]]:
        """Records a loop; gives a function that is to be called at the begin of each iteration."""
        number = self.loop_numbers[id(step)]
        self._mark("begin", number)
        yield lambda: self._mark("iteration", number)
        self._mark("end", number)

    def _mark(self, what: str, loop: int) -> None:
        if len(self.marks) < MOST_SPANS:
            self.marks.append(Mark(what, loop, len(self.spans) + len(self._pending)))

    @contextmanager
    def around(self, step: Step, cuda: Any, stream: Any) -> Iterator[None]:
        """Times the operations that the with block enqueues on the stream."""
        before, after = self._event(cuda), self._event(cuda)
        if not self.spans and not self._pending:
            self.started = time.monotonic_ns()
        before.record(stream)
        yield
        after.record(stream)
        self._pending.append((self.numbers[id(step)], before, after))
        if len(self._pending) >= MOST_PENDING:
            self.collect()

    @contextmanager
    def around_host(self, step: Step) -> Iterator[None]:
        """Times the host's work in the with block; the stream is idle before and after it."""
        self.collect()
        start = time.perf_counter()
        yield
        seconds, number = time.perf_counter() - start, self.numbers[id(step)]
        begun = max((s.start + s.seconds for s in self.spans[-1:]), default=0.0)
        if not self.spans:
            self.started = time.monotonic_ns() - int(seconds * 1e9)
        self._count(Span(number, begun, seconds))

    def collect(self) -> None:
        """Waits for the steps that were timed, and adds their times."""
        if not self._pending:
            return
        for _, _, after in self._pending[-1:] if not self.of_communication else self._pending:
            after.synchronize()                              # those of two streams end in any order
        if self._first is None:
            self._first = self._pending[0][1]
        for number, before, after in self._pending:
            self._count(Span(number, before.time_since(self._first) * 1e-3, after.time_since(before) * 1e-3))
            self._idle += [event for event in (before, after) if event is not self._first]
        self._pending.clear()

    def times(self) -> tuple[StepTime, ...]:
        """The times of the steps since the last call of this method."""
        told = tuple(row._replace(runs=runs, seconds=seconds)
                     for row, runs, seconds in zip(self.rows, self._runs, self._seconds))
        self._runs, self._seconds = [0] * len(self.rows), [0.0] * len(self.rows)
        return told

    def _count(self, span: Span) -> None:
        self._runs[span.number] += 1
        self._seconds[span.number] += span.seconds
        if len(self.spans) < MOST_SPANS:
            self.spans.append(span)
        else:
            self.lost += 1

    def _event(self, cuda: Any) -> Any:
        return self._idle.pop() if self._idle else cuda.Event()
