"""What the steps of a program took, when they ran, and where: what a profile or a trace leaves, on any target.

    exe = hloc.compile(module, "cpu", options=hloc.Options(trace=20));  exe(x);  exe.trace().slices

hloc/tools/trace_events.py makes Chrome trace events of it.
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hloc.ir import Instruction

CALL, STEP, LOOP, ITERATION, CHECK, FOLDED = "call", "step", "loop", "iteration", "check", "folded"
PIECE, WAIT = "piece", "wait"


class StepTime(NamedTuple):
    """The total time of one step of a program, over all its runs.

    kernel        the generated function (kernels of the same structure share one), "copy", or a Python function's name
    instruction   of the optimized module, that the step computes
    bytes, flops  of one run, as the cost model counts them from the kernel's loops
    predicted     seconds of one run by the cost model of GPUs, or None
    """

    kernel: str
    instruction: Instruction
    bytes: int
    flops: int
    runs: int
    seconds: float
    predicted: float | None = None


class Sum(NamedTuple):
    """What the runs of a step in folded iterations took together."""

    step: int
    runs: int
    seconds: float


class Slice(NamedTuple):
    """A stretch of time on one track; those of a track nest.

    kind        call: a whole run; step; loop; iteration: one of its iterations; check: its condition, when that
                ends it;
                folded: the other iterations, in one; piece: what a thread did of a step; wait: for the threads that
                work on it
    track       a key of RunTrace.tracks
    begin, end  nanoseconds of CLOCK_MONOTONIC
    number      of the step or loop
    count       of a loop: iterations; of an iteration: which, from 0; folded: how many; of a piece: ranges of the loop
    sums        of folded: what its steps took, in their order
    """

    kind: str
    track: int
    begin: int
    end: int
    number: int = 0
    count: int = 0                # type: ignore[assignment]      # tuples have a method of that name
    sums: tuple[Sum, ...] = ()


class RunTrace(NamedTuple):
    """slices: in the order in which they begin, outer ones first; tracks: number -> name; steps: what they are, without
    times; loops: the while instructions; lost: events that found no room; live: bytes of the arena in use at each
    instruction that has a step."""

    slices: tuple[Slice, ...]
    tracks: Mapping[int, str]
    steps: tuple[StepTime, ...]
    loops: tuple[Instruction | None, ...]
    lost: int
    live: Mapping[Instruction, int]


def in_order(slices: list[Slice]) -> tuple[Slice, ...]:
    """By track and time; of those that begin together the longer ones first. slices: inner ones before outer ones."""
    return tuple(sorted(reversed(slices), key=lambda s: (s.track, s.begin, -s.end)))
