"""Which producers had better not move into a kernel that runs behind an update of the array that they read.

    row = dynamic-slice(x, i); y = dynamic-update-slice(x, u, j); z = add(row, dynamic-slice(y, k))

Inside of z's kernel, `row` would read x when y has been written: all of x would be copied first. It stays a kernel of
its own, where what it makes is smaller than the array. So it does where two updates would each read the array that the
other one writes.
"""
from __future__ import annotations

from collections.abc import Mapping

from hloc.analysis.aliasing import Values, in_place
from hloc.ir import Computation, Instruction
from hloc.passes.fusion.group import UPDATE, Group

MOST_LOOKED_AT = 256            # instructions between a kernel and the update before it
REASON = "it reads an array that is updated in place before this kernel runs"
CROSSED = "each of two kernels would read the array that the other one updates in place"


class Overwritten:
    """The arrays of one computation that are updated in place. callees: what bodies and branches do with theirs;
    homes: the groups that instructions are in so far."""

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
        """Why the producer stays out of the group; empty if nothing forbids it."""
        for operand in producer.operands:
            for value in self.values.get(operand, ()):
                writers = [w for w in self.writers.get(value, ()) if w not in group.members]
                if not writers or 2 * producer.shape.num_bytes > value.size:
                    continue
                if self.runs_behind(group, writers):
                    return REASON
                if group.kind == UPDATE and self.is_read_by(writers, group):
                    return CROSSED
        return ""

    def is_read_by(self, writers: list[Instruction], group: Group) -> bool:
        """Whether the kernel of a writer reads what the group updates."""
        update = group.first
        targets = {self.values[update.operands[slot]][leaf]
                   for _, slot, leaf in in_place(update, self.values, *self.callees)}
        return any(not targets.isdisjoint(self.values[p]) for w in writers for g in self.homes.get(w, ())
                   for p in g.parameters)

    def runs_behind(self, group: Group, writers: list[Instruction]) -> bool:
        """Whether something in the group needs the result of one of the writers, as far as is looked."""
        first = min(self.position[w] for w in writers)
        stack, seen = list(group.members), set(group.members)
        while stack and len(seen) <= MOST_LOOKED_AT:
            new = [o for o in stack.pop().operands if o not in seen and self.position.get(o, first) >= first]
            if any(o in writers for o in new):
                return True
            seen.update(new)
            stack.extend(new)
        return False
