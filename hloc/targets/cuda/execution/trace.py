"""When each step of a program ran on a GPU: the records of a StepClock as a RunTrace.

In: the clock of a finished run, and how many iterations of each loop stay separate. Out: the trace of that run. The
clocks of the device and of the host have no common origin: the first step begins when the host enqueued it.

    trace_of(clock, 20, live).slices
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hloc.ir import Instruction
from hloc.run_trace import CALL, FOLDED, ITERATION, LOOP, STEP, RunTrace, Slice, Sum, in_order
from hloc.targets.cuda.execution.step_clock import Mark, StepClock

HOST, STREAM, COMMUNICATION = 0, 1, 2
TRACKS = {HOST: "calls", STREAM: "stream"}


class Interval(NamedTuple):
    """Consecutive spans: of a loop, of an iteration, or, if folded, of all iterations from `count` on."""

    kind: str
    loop: int
    first: int
    last: int
    rounds: int


def trace_of(clock: StepClock, iterations: int, live: Mapping[Instruction, int]) -> RunTrace:
    """The last run. iterations: iterations of each loop that are separate slices; live: see RunTrace."""
    times = _times(clock)
    intervals = _intervals(clock.marks, len(times), iterations)
    folded = sorted((s.first, s.last) for s in intervals if s.kind == FOLDED)
    slices, place = [], 0
    for number, (begin, end) in enumerate(times):
        while place < len(folded) and folded[place][1] <= number:
            place += 1
        if place == len(folded) or number < folded[place][0]:
            step = clock.spans[number].number
            slices.append(Slice(STEP, COMMUNICATION if step in clock.of_communication else STREAM, begin, end, step))
    for interval in intervals:
        if interval.first < interval.last:
            begin, end = times[interval.first][0], times[interval.last - 1][1]
            sums = _sums(clock, times, interval) if interval.kind == FOLDED else ()
            slices.append(Slice(interval.kind, STREAM, begin, end, interval.loop, interval.rounds, sums))
    slices.append(Slice(CALL, HOST, clock.began, max(clock.ended, times[-1][1] if times else 0)))
    steps = tuple(row._replace(runs=0, seconds=0.0) for row in clock.rows)
    tracks = TRACKS | ({COMMUNICATION: "communication"} if clock.of_communication else {})
    return RunTrace(in_order(slices), tracks, steps, tuple(loop.instruction for loop in clock.loops), clock.lost, live)


def _times(clock: StepClock) -> list[tuple[int, int]]:
    """Begin and end of each span. Events have a resolution of half a microsecond: a span that would overlap the one
    before on its stream begins later."""
    found: list[tuple[int, int]] = []
    ends = {False: clock.started, True: clock.started}
    for span in clock.spans:
        stream = span.number in clock.of_communication
        begin = max(ends[stream], clock.started + round(span.start * 1e9))
        ends[stream] = max(begin, clock.started + round((span.start + span.seconds) * 1e9))
        found.append((begin, ends[stream]))
    return found


def _intervals(marks: Sequence[Mark], count: int, iterations: int) -> list[Interval]:
    """Loops and their iterations; those after the first `iterations` are one interval, which contains no other
    intervals."""
    found: list[Interval] = []
    loops: list[list[int]] = []                          # first span, begin of the iteration, iterations
    folds = 0                                            # open loops with folded iterations
    for what, loop, span in marks:
        place = min(span, count)
        if what == "begin":
            loops.append([place, place, 0])
            continue
        first, begun, done = loops[-1]
        if 0 < done <= iterations and not folds:
            found.append(Interval(ITERATION, loop, begun, place, done - 1))
        if what == "iteration":
            folds += done == iterations
            loops[-1] = [first, place if done <= iterations else begun, done + 1]
            continue
        loops.pop()
        folds -= done > iterations
        if not folds:
            found += [Interval(FOLDED, loop, begun, place, done - iterations)] if done > iterations else []
            found.append(Interval(LOOP, loop, first, place, done))
    return found


def _sums(clock: StepClock, times: Sequence[tuple[int, int]], interval: Interval) -> tuple[Sum, ...]:
    found: dict[int, list[int]] = {}
    for number in range(interval.first, interval.last):
        row = found.setdefault(clock.spans[number].number, [0, 0])
        row[0] += 1
        row[1] += times[number][1] - times[number][0]
    return tuple(Sum(step, runs, spent * 1e-9) for step, (runs, spent) in sorted(found.items()))
