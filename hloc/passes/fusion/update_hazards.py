"""Producers that must not move into a kernel that runs after an in-place update of the array that they read.

    row = dynamic-slice(x, i); y = dynamic-update-slice(x, u, j); z = add(row, dynamic-slice(y, k))

Inside z's kernel, `row` would read x after y has been written: all of x would have to be copied first. It stays a
separate kernel if its result is smaller than the array. The same holds if two updates would each read the array that
the other one writes.
"""
from __future__ import annotations

from collections.abc import Mapping

from hloc.analysis.aliasing import Values, in_place
from hloc.ir import Computation, Instruction
from hloc.passes.fusion.group import Group

MOST_LOOKED_AT = 256            # instructions between a kernel and the update before it
REASON = "it reads an array that is updated in place before this kernel runs"
CROSSED = "each of two kernels would read the array that the other one updates in place"


class Overwritten:
    """The arrays of one computation that are updated in place. callees: how bodies and branches use their parameters;
    homes: the current groups of instructions."""

    def __init__(self, computation: Computation, values: Values, callees: tuple):
        self.values = values
        self.callees = callees
        self.homes: Mapping[Instruction, list[Group]] = {}
        self.position = {i: n for n, i in enumerate(computation.instructions)}
        self.writers: dict = {}
        for instruction in computation.instructions:
            for _, slot, leaf in in_place(instruction, values, *callees):
                target = values[instruction.operands[slot]][leaf]
                self.writers.setdefault(target, []).append(instruction)

    def obstacle(self, producer: Instruction, group: Group) -> str:
        """Why the producer must not join the group; empty if it may."""
        for operand in producer.operands:
            for value in self.values.get(operand, ()):
                writers = [w for w in self.writers.get(value, ()) if w not in group.members]
                if not writers or 2 * producer.shape.num_bytes > value.size:
                    continue
                if self.runs_behind(group, writers):
                    return REASON
                if group.updates and self.is_read_by(writers, group):
                    return CROSSED
        return ""

    def is_read_by(self, writers: list[Instruction], group: Group) -> bool:
        """Whether the kernel of a writer reads what the group updates."""
        targets = {self.values[update.operands[slot]][leaf] for update in group.updates
                   for _, slot, leaf in in_place(update, self.values, *self.callees)}
        return any(not targets.isdisjoint(self.values[p]) for w in writers for g in self.homes.get(w, ())
                   for p in g.parameters)

    def runs_behind(self, group: Group, writers: list[Instruction]) -> bool:
        """Whether the group depends on one of the writers, within MOST_LOOKED_AT instructions."""
        first = min(self.position[w] for w in writers)
        stack, seen = list(group.members), set(group.members)
        while stack and len(seen) <= MOST_LOOKED_AT:
            new = [o for o in stack.pop().operands if o not in seen and self.position.get(o, first) >= first]
            if any(o in writers for o in new):
                return True
            seen.update(new)
            stack.extend(new)
        return False
