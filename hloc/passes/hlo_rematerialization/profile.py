"""The live bytes at each position of a scheduled computation, and which arrays wait there for a later reader.

    profile.peak, profile.busiest           the most bytes in use at once, and the first position at which they are
    list(profile.idle(profile.busiest))     values that are not read or written there, each with its next reader
"""
from __future__ import annotations

import itertools
from collections.abc import Iterator

from hloc.analysis.aliasing import Invariants, Origins, Value, Values, in_place
from hloc.analysis.liveness import reads
from hloc.analysis.packing import Life, reuse_result_memory
from hloc.ir import Computation

LEAST_BYTES = 1 << 10            # smaller arrays are not worth a kernel
NOT_OURS = frozenset(["parameter", "constant"])


class Profile:
    """The live arrays of one scheduled computation. Arrays that must share memory count once."""

    def __init__(self, computation: Computation, values: Values, callees: tuple[Invariants, Origins],
                 inner: dict[Computation, int], is_entry: bool, counts_host: bool = True):
        self.counts_host = counts_host                      # False where the host's memory is another one
        self.computation, self.values = computation, values
        self.position = {i: n for n, i in enumerate(computation.instructions)}
        self.leader: dict[Value, Value] = {}
        self.overwritten: dict[Value, int] = {}             # memory -> the first position that writes over it
        self.uses: dict[Value, list[int]] = {}
        for n, instruction in enumerate(computation.instructions):
            for value in dict.fromkeys(reads(instruction, values)):
                self.uses.setdefault(value, []).append(n)
            for leaf, slot, operand_leaf in in_place(instruction, values, *callees):
                target = values[instruction.operands[slot]][operand_leaf]
                self.overwritten.setdefault(target, n)
                self.leader[values[instruction][leaf]] = self.memory(target)
        self.callees = {c for i in computation.instructions for c in i.called_computations}
        self.kept = set(values[computation.root])           # read by whoever reads the result
        self.live = self._live(is_entry)
        self.total = [now + max((inner.get(c, 0) for c in i.called_computations), default=0)
                      for now, i in zip(self.live, computation.instructions)]
        self.peak = max(self.total, default=0)

    def memory(self, value: Value) -> Value:
        return self.leader.get(value, value)

    def _live(self, is_entry: bool) -> list[int]:
        """Live bytes at each position. Results of the entry have their own memory, which holds other arrays until they
        are written."""
        lives = self._lives()
        if is_entry:
            outside = {self.memory(v) for v in self.kept}
            results = [life for m, life in lives.items() if m in outside]
            arrays = [life for m, life in lives.items() if m not in outside]
            lent = reuse_result_memory(results, arrays)
            ours = [life for n, life in enumerate(arrays) if n not in lent]
        else:
            ours = list(lives.values())
        end = len(self.position)
        change = [0] * (end + 1)
        for size, first, last in ours:
            change[first] += size
            change[last + 1] -= size
        return list(itertools.accumulate(change))[:end]

    def _lives(self) -> dict[Value, Life]:
        """The live ranges of memory, except of parameters and constants."""
        end = len(self.position)
        found: dict[Value, Life] = {}
        for instruction, n in self.position.items():
            for value in self.values[instruction]:
                memory = self.memory(value)
                if value.instruction is not instruction or memory.instruction.opcode in NOT_OURS \
                        or self.is_elsewhere(memory):
                    continue
                last = end - 1 if value in self.kept else max(self.uses.get(value, [n])[-1], n)
                life = found.get(memory, Life(memory.size, n, last))
                found[memory] = life._replace(last=max(life.last, last))
        return found

    def is_elsewhere(self, memory: Value) -> bool:
        """Whether it is in a host's memory that does not count."""
        return not self.counts_host and memory.instruction.opcode == "copy" and memory.instruction.shape.on_host

    @property
    def busiest(self) -> int:
        return self.total.index(self.peak)

    def is_alive(self, value: Value, place: int) -> bool:
        """Whether a value is live at `place`, or always."""
        if value.instruction.opcode in NOT_OURS or value in self.kept:
            return True
        uses = self.uses.get(value, [])
        return self.position[value.instruction] <= place and bool(uses) and uses[-1] >= place

    def idle(self, place: int) -> Iterator[tuple[Value, int]]:
        """Values that are live at `place` but not read or written there, each with its next reader's position."""
        for value, uses in self.uses.items():
            made = self.position[value.instruction]
            if made >= place or value.size < LEAST_BYTES or value in self.kept or value in self.leader \
                    or self.is_elsewhere(value):
                continue
            after = next((n for n in uses if n >= place), None)
            if after is not None and after > place:
                yield value, after
