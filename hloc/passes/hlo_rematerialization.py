"""Recomputes arrays instead of storing them, if that is nearly free or if a run would exceed the memory limit.

    a = f32[1000] broadcast(x)          a = f32[1000] broadcast(x)
    b = f32[1000] exponential(a)   =>   b = f32[1000] exponential(a)
    ... the peak ...                    ... the peak, without a ...
    c = f32[1000] add(b, a)             a.1 = f32[1000] broadcast(x)
                                        c = f32[1000] add(b, a.1)

Runs on a scheduled module. Candidates are arrays that are live at the peak but not used there; they are recomputed
before their next reader. Their operands must be live at the peak anyway, or are recomputed, too (at most LONGEST_CHAIN
instructions). A change that makes the peak larger is undone.

Without options, those large arrays of the entry are recomputed that free most bytes per second of recomputation, as
long as all recomputation takes at most SPARE_TIME of the estimated run: a normalized row, a softmax whose exponentials
are stored.

The option "memory_limit" gives a number of bytes: parameters, results, constants and live arrays at the peak. While
that is exceeded, the best candidate is recomputed, at any cost. Loops and branches count with their own peaks, and
arrays inside of them are candidates as well. Each step costs time in proportion to the module.
"""
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from hloc.analysis.aliasing import (
    FORWARDING,
    Invariants,
    Origins,
    Value,
    Values,
    branch_origins,
    in_place,
    leaf_values,
    module_invariants,
)
from hloc.analysis.control_flow import executed_computations, is_control_flow
from hloc.analysis.cost import bytes_accessed, flops, operations_per_second, seconds_of_launch, seconds_of_traffic
from hloc.analysis.effects import has_side_effect
from hloc.analysis.fusible import in_place_operands
from hloc.analysis.liveness import reads
from hloc.analysis.packing import Life, reuse_result_memory
from hloc.ir import Computation, Instruction, Module, leaves
from hloc.machine import Machine
from hloc.passes.context import PassContext
from hloc.passes.rewriter import Names, remove_dead

LONGEST_CHAIN = 12
MOST_STEPS = 20_000
LEAST_BYTES = 1 << 10            # smaller arrays are not worth a kernel
SPARE_TIME = 1 / 300             # of a run, for recomputation without a limit
SPARE_ROUNDS = 4                 # each looks at one peak
LEAST_PEAK = 4 << 20             # bytes: a smaller peak is not reduced
LEAST_SHARE = 1 / 200            # of the peak, that an array must take
NOT_OURS = frozenset(["parameter", "constant"])


def hlo_rematerialization(module: Module, context: PassContext) -> bool:
    """Lower the peak to the limit, or as far as possible; without a limit, as far as it is nearly free.

    True if anything is computed again."""
    limit = context.option("memory_limit")
    if limit is None:
        return Rematerializer(module, context.machine, 0).recompute_in_gaps()
    return Rematerializer(module, context.machine, limit - bytes_outside(module)).run()


def bytes_outside(module: Module) -> int:
    """Parameters, results and constants: what a run needs whatever the schedule."""
    signature = [*(p.shape for p in module.entry.parameters), module.entry.root.shape]
    constants = [i.shape for c in executed_computations(module) for i in c.instructions if i.opcode == "constant"]
    return sum(leaf.num_bytes for shape in signature + constants for leaf in leaves(shape))


class Candidate(NamedTuple):
    """Recompute `chain` before position `before` of a computation; its last element replaces the old array."""

    profile: Profile
    chain: tuple[Instruction, ...]
    before: int
    saved: int
    seconds: float


class Profile:
    """The live arrays of one scheduled computation. Arrays that must share memory count once."""

    def __init__(self, computation: Computation, values: Values, callees: tuple[Invariants, Origins],
                 inner: dict[Computation, int], is_entry: bool):
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
                if value.instruction is not instruction or memory.instruction.opcode in NOT_OURS:
                    continue
                last = end - 1 if value in self.kept else max(self.uses.get(value, [n])[-1], n)
                life = found.get(memory, Life(memory.size, n, last))
                found[memory] = life._replace(last=max(life.last, last))
        return found

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
            if made >= place or value.size < LEAST_BYTES or value in self.kept or value in self.leader:
                continue
            after = next((n for n in uses if n >= place), None)
            if after is not None and after > place:
                yield value, after


class Rematerializer:
    """Lowers the peak of a module step by step."""

    def __init__(self, module: Module, machine: Machine, budget: int):
        self.module, self.machine, self.budget = module, machine, budget
        self.refused: set[tuple[Instruction, Instruction]] = set()
        self.invariants = module_invariants(module)
        self.callees = self.invariants, branch_origins(module, self.invariants)
        self.names = {c: Names(i.name for i in c.instructions) for c in executed_computations(module)}

    def run(self) -> bool:
        changed = False
        profiles = self.profiles({}, None)
        for _ in range(MOST_STEPS):
            if profiles[self.module.entry].peak <= self.budget:
                break
            candidate = self.best(profiles)
            if candidate is None:
                break
            undo = self.apply(candidate)
            after = self.profiles(profiles, candidate.profile.computation)
            if self.worse(after, profiles):
                undo()
                self.refused.add(self.key(candidate))
            else:
                changed, profiles = True, after
        for computation in profiles if changed else ():
            remove_dead(computation)
        return changed

    def recompute_in_gaps(self) -> bool:
        """Recompute cheap large arrays of the entry, several at each peak."""
        entry, changed = self.module.entry, False
        profiles = self.profiles({}, None)
        if profiles[entry].peak < LEAST_PEAK:
            return False
        left = SPARE_TIME * sum(self.seconds(i) for i in entry.instructions if i.opcode not in NOT_OURS)
        for _ in range(SPARE_ROUNDS):
            chosen = self.cheapest(profiles[entry], left)
            undos = [self.apply(c) for c in sorted(chosen, key=lambda c: -c.before)]    # places before stay the same
            after = self.profiles(profiles, entry) if chosen else profiles
            if after[entry].peak >= profiles[entry].peak:
                for undo in reversed(undos):
                    undo()
                break
            changed, profiles, left = True, after, left - sum(c.seconds for c in chosen)
        if changed:
            remove_dead(entry)
        return changed

    def cheapest(self, profile: Profile, seconds: float) -> list[Candidate]:
        """The best large candidates within a number of seconds, none of which is an operand of another."""
        chosen: list[Candidate] = []
        copied: set[Instruction] = set()
        needed: set[Instruction] = set()
        for candidate in sorted(self.candidates(profile), key=lambda c: c.seconds / c.saved):
            used = {o for i in candidate.chain for o in i.operands}
            if (candidate.saved >= LEAST_SHARE * profile.peak and candidate.seconds <= seconds
                    and needed.isdisjoint(candidate.chain) and copied.isdisjoint(used)):
                chosen.append(candidate)
                copied.update(candidate.chain)
                needed |= used
                seconds -= candidate.seconds
        return chosen

    def worse(self, after: dict, before: dict) -> bool:
        """Whether the peak grew, or is the same at as many places."""
        new, old = after[self.module.entry], before[self.module.entry]
        return new.peak > old.peak or (new.peak == old.peak and new.total.count(new.peak) >= old.total.count(old.peak)
                                       and not any(after[c].peak < before[c].peak for c in after))

    def profiles(self, known: dict[Computation, Profile], changed: Computation | None) -> dict[Computation, Profile]:
        """A profile per computation, callees first; known ones are recomputed only if a change affects them."""
        found: dict[Computation, Profile] = {}
        peaks: dict[Computation, int] = {}
        moved = {changed}
        for computation in executed_computations(self.module):
            profile = known.get(computation)
            if profile is None or moved & {computation, *profile.callees}:
                values = leaf_values(computation, self.invariants)
                profile = Profile(computation, values, self.callees, peaks, computation is self.module.entry)
                moved.add(computation)
            found[computation], peaks[computation] = profile, profile.peak
        return found

    def best(self, profiles: dict[Computation, Profile]) -> Candidate | None:
        """The candidate that frees most bytes per second, at the peak of the entry and of the computations running
        there."""
        found: list[Candidate] = []
        computation: Computation | None = self.module.entry
        while computation is not None:
            profile = profiles[computation]
            found.extend(self.candidates(profile))
            busy = profile.computation.instructions[profile.busiest]
            called = busy.called_computations if is_control_flow(busy) else ()
            computation = max(called, key=lambda c: profiles[c].peak, default=None)
        return max(found, key=lambda c: c.saved / c.seconds, default=None)

    def candidates(self, profile: Profile) -> Iterator[Candidate]:
        place = profile.busiest
        for value, after in profile.idle(place):
            reader = profile.computation.instructions[after]
            if (value.instruction, reader) in self.refused:
                continue
            chain = self.chain(value.instruction, profile, place, after)
            if chain:
                seconds = sum(self.seconds(i) for i in chain)
                yield Candidate(profile, chain, after, value.size, seconds)

    def chain(self, wanted: Instruction, profile: Profile, place: int, after: int) -> tuple[Instruction, ...]:
        """The instructions to recompute `wanted` before `after`, in order; () if impossible."""
        found: dict[Instruction, None] = {}
        waiting = [wanted]
        while waiting:
            instruction = waiting.pop()
            if instruction in found:
                continue
            found[instruction] = None
            if len(found) > LONGEST_CHAIN or not is_repeatable(instruction):
                return ()
            for operand in instruction.operands:
                for value in profile.values[operand]:
                    if profile.overwritten.get(value, after) < after:
                        return ()
                if operand.opcode in NOT_OURS:
                    continue
                lives = all(profile.is_alive(v, place) for v in profile.values[operand])
                if operand.opcode in FORWARDING or not lives:
                    waiting.append(operand)
        return tuple(sorted(found, key=profile.position.__getitem__))

    def seconds(self, instruction: Instruction) -> float:
        size = bytes_accessed(instruction)
        return (flops(instruction) / operations_per_second(self.machine) + seconds_of_traffic(size, self.machine)
                + seconds_of_launch(size, self.machine))

    def key(self, candidate: Candidate) -> tuple[Instruction, Instruction]:
        return candidate.chain[-1], candidate.profile.computation.instructions[candidate.before]

    def apply(self, candidate: Candidate) -> Callable[[], None]:
        """Recompute the chain before the reader; later readers read the new array. Returns what undoes it."""
        computation = candidate.profile.computation
        order, operands = computation.instructions, {}
        made: dict[Instruction, Instruction] = {}
        for old in candidate.chain:
            made[old] = old.copy(name=self.names[computation].fresh(old.name), control_predecessors=(),
                                 operands=[made.get(o, o) for o in old.operands])
        for reader in order[candidate.before:]:
            if reader.opcode in FORWARDING and len(reader.operands) == 1:
                continue                                    # copied with its readers
            anew = [self.replaced(o, candidate.chain[-1], made, computation) for o in reader.operands]
            if anew != reader.operands:
                operands[reader], reader.operands = reader.operands, anew
        computation.instructions = [*order[:candidate.before], *made.values(), *order[candidate.before:]]

        def undo() -> None:
            computation.instructions = order
            for reader, old in operands.items():
                reader.operands = old
        return undo


    def replaced(self, operand: Instruction, wanted: Instruction, made: dict[Instruction, Instruction],
                 computation: Computation) -> Instruction:
        """The replacement of `operand`: the new array, if it is the wanted one or a reshape of it."""
        views: list[Instruction] = []
        source = operand
        while source is not wanted and source.opcode in ("bitcast", "reshape"):
            views.append(source)
            source = source.operands[0]
        if source is not wanted:
            return operand
        for view in reversed(views):
            if view not in made:
                made[view] = view.copy(name=self.names[computation].fresh(view.name), control_predecessors=(),
                                       operands=[made[view.operands[0]]])
        return made[operand]


def is_repeatable(instruction: Instruction) -> bool:
    """Whether it has no effects, one array as result, and overwrites nothing."""
    if instruction.opcode in FORWARDING:
        return instruction.opcode in ("bitcast", "reshape", "get-tuple-element") and instruction.shape.is_array
    return (instruction.shape.is_array and not is_control_flow(instruction) and not has_side_effect(instruction)
            and not in_place_operands(instruction) and instruction.opcode not in NOT_OURS
            and instruction.opcode not in ("sort", "custom-call", "partition-id", "replica-id"))
