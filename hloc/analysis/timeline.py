"""When each instruction of a schedule runs on one device: kernels on one track, collectives on another.

In: a computation in its order of execution, and the seconds of its instructions. Out: a Timeline.

    a = all-reduce-start(x)       the track of communication is busy from here
    y = dot(z, w)                 at the same time
    b = all-reduce-done(a)        waits for what is left: that much is exposed

A collective that is no pair is exposed as a whole. Collectives run one after the other. A loop is replayed once, and
counts as often as it runs; of a conditional the branch that takes longest counts. Kernels are taken to be as fast
beside a collective as they are alone.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from hloc.analysis.asynchronous import base_of, is_done, is_start, started
from hloc.analysis.communication import counts_of, exchange_of, rounds_of
from hloc.analysis.control_flow import branches
from hloc.analysis.cost import predicted_seconds
from hloc.analysis.links import plain_network
from hloc.ir import Computation, Instruction, Module
from hloc.machine import Machine
from hloc.ops.collectives import EXCHANGES

Seconds = Callable[[Instruction], float]
KERNEL, TRANSFER, WAIT, LOOP, REST = "kernel", "transfer", "wait", "loop", "rest"


class Slice(NamedTuple):
    """A stretch of time, in seconds since the start. kind: kernel; transfer: a collective; wait: for one; loop: all of
    it; rest: its other iterations, of which there are `times`."""

    kind: str
    begin: float
    end: float
    instruction: Instruction
    times: int = 1

    @property
    def title(self) -> str:
        """For a chart or a trace."""
        name = self.instruction.name
        if self.kind == WAIT:
            return f"wait for {name}"
        return f"{name}: {self.times:,} more iterations" if self.kind == REST else name


@dataclass
class Transferred:
    """A collective: how often it runs, its seconds in all, and those of them in which the device waits for it."""

    instruction: Instruction
    runs: int = 0
    seconds: float = 0.0
    exposed: float = 0.0


@dataclass
class Timeline:
    """Seconds: of the whole; of kernels; collectives by instruction (the start of a pair)."""

    total: float = 0.0
    kernels: float = 0.0
    transfers: dict[Instruction, Transferred] = field(default_factory=dict)
    slices: list[Slice] = field(default_factory=list)

    @property
    def communication(self) -> float:
        """Seconds in which something is sent."""
        return sum(t.seconds for t in self.transfers.values())

    @property
    def exposed(self) -> float:
        """Seconds in which the device only waits for collectives."""
        return sum(t.exposed for t in self.transfers.values())


def replay(computation: Computation, seconds: Seconds) -> Timeline:
    """seconds: of one run of an instruction; of a collective, or its start, while nothing else is sent."""
    walk = _Replay(seconds, {})
    walk.run(computation, 1)
    walk.made.total = walk.now
    return walk.made


def rough_seconds(module: Module, machine: Machine) -> Seconds:
    """Of kernels by their operations and bytes, of collectives on a network that is named nowhere."""
    counts = counts_of(module)
    levels = plain_network(machine.kind, counts.devices)

    def seconds(instruction: Instruction) -> float:
        if base_of(instruction) in EXCHANGES:
            return exchange_of(started(instruction), levels, counts).seconds
        return predicted_seconds(instruction, machine)
    return seconds


class _Replay:
    def __init__(self, seconds: Seconds, known: dict[Computation, float]):
        self.seconds, self.known = seconds, known          # known: seconds of branches
        self.made = Timeline()
        self.now = self.free = 0.0                         # free: from when on nothing is sent
        self.ends: dict[Instruction, float] = {}

    def run(self, computation: Computation, times: int) -> None:
        """times: how often all of this runs."""
        for instruction in computation.instructions:
            self.step(instruction, times)

    def step(self, instruction: Instruction, times: int) -> None:
        opcode = instruction.opcode
        if opcode == "while":
            self.loop(instruction, times)
        elif opcode == "conditional":
            self.run(max(branches(instruction), key=self.alone), times)
        elif opcode == "call":
            self.run(instruction.get("to_apply"), times)
        elif base_of(instruction) not in EXCHANGES:
            self.kernel(instruction, times)
        elif is_done(instruction):
            self.wait(started(instruction), times)
        elif not opcode.endswith("-update"):
            self.send(instruction, times)
            if not is_start(instruction):
                self.wait(instruction, times)

    def kernel(self, instruction: Instruction, times: int) -> None:
        spent = self.seconds(instruction)
        if spent:
            self.made.slices.append(Slice(KERNEL, self.now, self.now + spent, instruction))
            self.made.kernels += spent * times
            self.now += spent

    def send(self, instruction: Instruction, times: int) -> None:
        spent = self.seconds(instruction)
        begin = max(self.now, self.free)
        self.ends[instruction] = self.free = begin + spent
        one = self.made.transfers.setdefault(instruction, Transferred(instruction))
        one.runs += times
        one.seconds += spent * times
        self.made.slices.append(Slice(TRANSFER, begin, begin + spent, instruction))

    def wait(self, instruction: Instruction, times: int) -> None:
        end = self.ends.pop(instruction, self.now)
        if end > self.now:
            self.made.slices.append(Slice(WAIT, self.now, end, instruction))
            self.made.transfers[instruction].exposed += (end - self.now) * times
            self.now = end

    def loop(self, instruction: Instruction, times: int) -> None:
        trips, begin = rounds_of(instruction), self.now
        place = len(self.made.slices)
        self.run(instruction.get("condition"), times * trips)
        self.run(instruction.get("body"), times * trips)
        if trips > 1:
            self.rest(instruction, trips - 1, self.now - begin)
        self.made.slices.insert(place, Slice(LOOP, begin, self.now, instruction, trips))

    def rest(self, instruction: Instruction, trips: int, once: float) -> None:
        """The iterations of a loop behind the first, of `once` seconds each."""
        end = self.now + once * trips
        self.made.slices.append(Slice(REST, self.now, end, instruction, trips))
        if self.free > self.now:                           # what the last iteration sends goes on behind it
            self.free = max(self.free, end)
        self.now = end

    def alone(self, computation: Computation) -> float:
        """Seconds of a branch, with nothing before it."""
        if computation not in self.known:
            walk = _Replay(self.seconds, self.known)
            walk.run(computation, 1)
            self.known[computation] = walk.now
        return self.known[computation]
