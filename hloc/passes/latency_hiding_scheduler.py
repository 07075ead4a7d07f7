"""Orders a schedule so that collectives run beside other work.

    s = all-reduce-start(g)                  s = all-reduce-start(g)
    r = all-reduce-done(s)            =>     y = dot(x, w)
    y = dot(x, w)                            r = all-reduce-done(s)

Each computation is scheduled from its end to its beginning. A done stands as late as it may; its start follows, in this
direction, once the work between them takes as long as the collective. Of several dones the one whose start can begin
last comes first; of other instructions the one that the present schedule has last, or, which is tried, too, first those
that need a collective: then other work is left to run beside it. Of each kind one collective is under way at a time,
which bounds the memory. What overwrites an array stays behind those who read it. The present order stays if the cost
model says that no new one takes less time, or if those break the memory limit. Source of the method:
xla/service/latency_hiding_scheduler.cc.

context.seconds gives the times; without it they are rough (analysis.timeline.rough_seconds).
"""
from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from hloc.analysis.aliasing import branch_origins, leaf_values, module_invariants
from hloc.analysis.asynchronous import base_of, is_done, is_start, started
from hloc.analysis.control_flow import executed_computations, is_control_flow
from hloc.analysis.liveness import peak_bytes
from hloc.analysis.timeline import Seconds, replay, rough_seconds
from hloc.ir import Computation, Instruction, Module
from hloc.ops.collectives import EXCHANGES
from hloc.passes.context import PassContext
from hloc.passes.hlo_memory_scheduler import Scheduler

SHORTER = 1 - 1e-9                  # of the time: less is a matter of rounding


def latency_hiding_scheduler(module: Module, context: PassContext) -> bool:
    """True if an order changed. The module must be scheduled."""
    if not module.is_scheduled:
        return False
    seconds = context.seconds or rough_seconds(module, context.machine)
    invariants = module_invariants(module)
    callees = (invariants, branch_origins(module, invariants))
    executed = executed_computations(module)
    bodies = {i.get("body") for c in executed for i in c.instructions if i.opcode == "while"}
    limit = context.option("memory_limit")
    changed = False
    for computation in executed:
        if not any(is_start(i) and base_of(i) in EXCHANGES for i in computation.instructions):
            continue
        values = leaf_values(computation, invariants)
        rules = Scheduler(computation, values, callees, computation in bodies, computation is module.entry)
        before = _in_order(rules.predecessors, computation)
        orders = [_Backward(computation, before, seconds, unlocking).order() for unlocking in (False, True)]
        fitting = [o for o in orders if limit is None or peak_bytes(o, computation.root, values) <= limit]
        best = min(fitting, key=lambda o: _total(o, computation, seconds), default=computation.instructions)
        if _total(best, computation, seconds) < _total(computation.instructions, computation, seconds) * SHORTER:
            computation.instructions = best
            changed = True
    return changed


def _in_order(predecessors: Mapping[Instruction, Sequence[Instruction]],
              computation: Computation) -> dict[Instruction, list[Instruction]]:
    """What must come before each instruction, without what the present schedule does not keep to."""
    position = {i: n for n, i in enumerate(computation.instructions)}
    return {i: [p for p in before if position[p] < position[i]] for i, before in predecessors.items()}


def _total(order: list[Instruction], computation: Computation, seconds: Seconds) -> float:
    return replay(Computation(computation.name, order, computation.root), seconds).total


class _Backward:
    """One computation, from its end. Times run backward: `now` is the time between an instruction and the end.
    unlocking: those that need a collective first."""

    def __init__(self, computation: Computation, predecessors: Mapping[Instruction, Sequence[Instruction]],
                 seconds: Seconds, unlocking: bool):
        self.computation, self.seconds = computation, seconds
        self.predecessors = {i: [p for p in before if p.opcode != "parameter"] for i, before in predecessors.items()
                             if i.opcode != "parameter"}               # parameters stay in front
        self.position = {i: n for n, i in enumerate(computation.instructions)}
        self.left = dict.fromkeys(self.predecessors, 0)                # followers that are not placed
        for before in self.predecessors.values():
            for other in before:
                self.left[other] += 1
        self.soonest: dict[Instruction, float] = {}                    # of a start, as its done is placed
        self.duration = {i: self._duration(i) for i in computation.instructions}
        self.earliest = self._earliest()
        self.unlocking = self._behind_collectives() if unlocking else set()
        self.now = 0.0
        self.ready: list[tuple[bool, int, Instruction]] = []           # `unlocking`, then the present schedule's last
        self.starts: list[tuple[float, int, Instruction]] = []         # by the time from when on it may be placed
        self.held: list[Instruction] = []                              # dones that may be placed, one of a kind at once
        self.under_way: set[str] = set()
        self.placed: list[Instruction] = []

    def order(self) -> list[Instruction]:
        for instruction, count in self.left.items():
            if not count:
                self.release(instruction)
        while len(self.placed) < len(self.left):
            self.place(self.choose())
        return [i for i in self.computation.instructions if i.opcode == "parameter"] + self.placed[::-1]

    def _earliest(self) -> dict[Instruction, float]:
        """Seconds from the beginning before which each cannot begin, were there room for everything at once."""
        found: dict[Instruction, float] = {}
        for instruction in filter(self.predecessors.__contains__, self.computation.instructions):
            found[instruction] = max((found[p] + self.duration[p] for p in self.predecessors[instruction]), default=0.0)
        return found

    def _behind_collectives(self) -> set[Instruction]:
        """Instructions that may run only after the end of a collective."""
        found: set[Instruction] = set()
        for instruction in filter(self.predecessors.__contains__, self.computation.instructions):
            if any(p in found or self.is_pair(p) and is_done(p) for p in self.predecessors[instruction]):
                found.add(instruction)
        return found

    def _duration(self, instruction: Instruction) -> float:
        """Of what is no collective; of one from its start to its done."""
        if is_control_flow(instruction):
            return replay(Computation("", [instruction], instruction), self.seconds).total
        return 0.0 if self.is_pair(instruction) and not is_start(instruction) else self.seconds(instruction)

    def release(self, instruction: Instruction) -> None:
        """All that follows it is placed."""
        key = -self.position[instruction]
        if self.is_pair(instruction) and is_done(instruction):
            self.held.append(instruction)
        elif instruction in self.soonest:
            heapq.heappush(self.starts, (self.soonest[instruction], key, instruction))
        else:
            heapq.heappush(self.ready, (instruction not in self.unlocking, key, instruction))

    def is_pair(self, instruction: Instruction) -> bool:
        base = base_of(instruction)
        return base in EXCHANGES and base != instruction.opcode

    def choose(self) -> Instruction:
        if self.starts and self.starts[0][0] <= self.now:
            return heapq.heappop(self.starts)[2]
        free = [done for done in self.held if base_of(done) not in self.under_way]
        if free:
            done = max(free, key=lambda d: (self.earliest[started(d)], self.position[d]))
            self.held.remove(done)
            return done
        if self.ready:
            return heapq.heappop(self.ready)[2]
        self.now = max(self.now, self.starts[0][0])                    # nothing else to do: wait
        return heapq.heappop(self.starts)[2]

    def place(self, instruction: Instruction) -> None:
        self.placed.append(instruction)
        if self.is_pair(instruction):
            self.place_pair(instruction)
        else:
            self.now += self.duration[instruction]
        for other in self.predecessors[instruction]:
            self.left[other] -= 1
            if not self.left[other]:
                self.release(other)

    def place_pair(self, instruction: Instruction) -> None:
        base = base_of(instruction)
        if is_start(instruction):
            self.under_way.discard(base)
        elif is_done(instruction):
            self.under_way.add(base)
            start = started(instruction)
            self.soonest[start] = self.now + self.duration[start]
