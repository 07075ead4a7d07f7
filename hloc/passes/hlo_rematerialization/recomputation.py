"""One array, or some of the arrays of one kernel, computed again before their next reader.

    found = recomputation(profile, wanted, {0, 2}, place, after, seconds, clones)       None if it is impossible
    undo = found.apply(names, clones)

The kernel runs a second time as it is, whatever else it computes: the results are the same, bit for bit.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hloc.analysis.aliasing import FORWARDING
from hloc.analysis.control_flow import is_control_flow
from hloc.analysis.effects import has_side_effect
from hloc.analysis.fusible import in_place_operands
from hloc.ir import Computation, Instruction
from hloc.passes.hlo_rematerialization.profile import NOT_OURS, Profile
from hloc.passes.hlo_rematerialization.readers import VIEWS, redirect
from hloc.passes.rewriter import Names

LONGEST_CHAIN = 16               # kernels


class Saved(NamedTuple):
    """An array that does not stay in memory until its reader. how: "computed again" or "kept on the host"; size in
    bytes; kernels: that run again; seconds: what that takes, roughly."""

    how: str
    instruction: Instruction
    reader: Instruction
    size: int
    kernels: int
    seconds: float


class Clones:
    """Which instructions compute the same: the copies of each instruction."""

    def __init__(self) -> None:
        self._original: dict[Instruction, Instruction] = {}
        self._copies: dict[Instruction, list[Instruction]] = {}

    def add(self, clone: Instruction, old: Instruction) -> None:
        original = self._original[clone] = self.original(old)
        self._copies.setdefault(original, []).append(clone)

    def original(self, instruction: Instruction) -> Instruction:
        """What an instruction is a copy of, or itself."""
        return self._original.get(instruction, instruction)

    def drop(self, clone: Instruction) -> None:
        self._copies[self._original.pop(clone)].remove(clone)

    def between(self, instruction: Instruction, profile: Profile, first: int, last: int) -> Instruction | None:
        """A copy of the instruction that stands behind `first` and before `last`, and has its values until then."""
        copies = self._copies.get(self.original(instruction), ())
        return next((c for c in copies if first < profile.position.get(c, first) < last
                     and all(profile.overwritten.get(v, last) >= last for v in profile.values[c])), None)

    def groups(self, profile: Profile) -> list[list[Instruction]]:
        """The copies of each instruction of which a computation has several, in its order."""
        position = profile.position
        found = (sorted((c for c in copies if c in position), key=position.__getitem__)
                 for copies in self._copies.values())
        return [copies for copies in found if len(copies) > 1]


class Recomputation(NamedTuple):
    """Compute `chain` again before position `before` of the computation: those arrays (leaves) of its last kernel,
    `wanted`, have readers there and later. reused: earlier copies that the chain reads. saved: bytes at the peak."""

    computation: Computation
    wanted: Instruction
    leaves: frozenset[int]
    chain: tuple[Instruction, ...]
    reused: dict[Instruction, Instruction]
    before: int
    saved: int
    seconds: float

    @property
    def key(self) -> tuple[object, ...]:
        return self.wanted, self.computation.instructions[self.before], self.leaves

    @property
    def saved_memory(self) -> Saved:
        """What a report says."""
        kernels = sum(i.opcode not in FORWARDING for i in self.chain)
        return Saved("computed again", self.wanted, self.computation.instructions[self.before], self.saved, kernels,
                     self.seconds)

    def apply(self, names: Names, clones: Clones) -> Callable[[], None]:
        """Insert the chain; later readers read the new arrays. Returns what undoes it."""
        made = dict(self.reused)
        new = []
        for old in self.chain:
            made[old] = old.copy(name=names.fresh(f"{clones.original(old).name}.remat"), control_predecessors=(),
                                 operands=[made.get(o, o) for o in old.operands])
            new.append(made[old])
            clones.add(made[old], old)
        replaced = {self.wanted: made[self.wanted]}
        undo_readers = redirect(self.computation, self.before, new, replaced, names, self.leaves)

        def undo() -> None:
            undo_readers()
            for clone in new:
                clones.drop(clone)
        return undo


def recomputation(profile: Profile, wanted: Instruction, leaves: frozenset[int], place: int, before: int,
                  seconds: Callable[[Instruction], float], clones: Clones) -> Recomputation | None:
    """How to compute leaves of `wanted`, which are live at `place` and not read there, again for a reader at `before`.
    None if it is impossible. seconds: of one run of an instruction."""
    found: dict[Instruction, None] = {}
    reused: dict[Instruction, Instruction] = {}
    waiting = [wanted]
    while waiting:
        instruction = waiting.pop()
        if instruction in found or instruction in reused:
            continue
        copy = clones.between(instruction, profile, place, before) if instruction is not wanted else None
        if copy is not None and instruction.opcode not in FORWARDING:
            reused[instruction] = copy
            continue
        found[instruction] = None
        if sum(i.opcode not in FORWARDING for i in found) > LONGEST_CHAIN or not is_repeatable(instruction):
            return None
        for operand in instruction.operands:
            values = profile.values[operand]
            if any(profile.overwritten.get(v, before) < before for v in values):
                return None
            if operand.opcode not in NOT_OURS and not all(profile.is_alive(v, place) for v in values):
                waiting.append(operand)
    chain = tuple(sorted(found, key=profile.position.__getitem__))
    saved = sum(v.size for v in profile.values[wanted] if v.leaf in leaves)
    return Recomputation(profile.computation, wanted, leaves, chain, reused, before, saved,
                         sum(seconds(i) for i in chain if i.opcode not in FORWARDING))


def is_repeatable(instruction: Instruction) -> bool:
    """Whether it has no effects, arrays as results, and overwrites nothing."""
    if instruction.opcode in FORWARDING:
        return instruction.opcode in VIEWS and instruction.shape.is_array
    shape = instruction.shape
    return ((shape.is_array or shape.is_tuple and all(s.is_array for s in shape.tuple_shapes))
            and not is_control_flow(instruction) and not has_side_effect(instruction)
            and not in_place_operands(instruction) and instruction.opcode not in NOT_OURS
            and instruction.opcode not in ("sort", "custom-call", "partition-id", "replica-id"))
