"""The forward walk that nearly every pass uses.

In: a computation and `visit(instruction, rewriter)`, called once for each instruction, operands before users, with its
operands already replaced. It returns None (keep it) or the instruction to use instead: an earlier one, or a new one
made with `rewriter.add`. Out: the computation rewritten, its dead instructions dropped; True if anything changed.

    def visit(instruction, rewriter):           # negate(negate(x)) => x
        if instruction.opcode == "negate" and instruction.operands[0].opcode == "negate":
            return instruction.operands[0].operands[0]

    changed = rewrite(computation, visit)

New instructions are visited too, in the order in which they were made, so that rules compose within one walk. There
are no user lists: `rewriter.uses(x)` counts users as of the start of the walk, and is updated during it. The walk is
linear in the instructions that it visits.
"""
from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from hloc.analysis.effects import has_side_effect
from hloc.ir import (
    Computation,
    Instruction,
    Module,
    Shape,
    array,
    element_type_of,
    numpy_dtype,
    reachable_computations,
)
from hloc.ops.collectives import EXCHANGES

Visit = Callable[[Instruction, "Rewriter"], "Instruction | None"]
Opcodes = Collection[str]

# More new instructions per old one than this are not visited: a guard against rules that undo each other.
VISITED_PER_INSTRUCTION = 8


class Names:
    """Fresh instruction names for one computation: opcode, dot, number."""

    def __init__(self, taken: Iterable[str]):
        self.taken = set(taken)
        self.next_number: dict[str, int] = {}

    def fresh(self, stem: str) -> str:
        """`stem.N` with the least N not handed out before."""
        number = self.next_number.get(stem, 0)
        name = f"{stem}.{number}"
        while name in self.taken:
            number += 1
            name = f"{stem}.{number}"
        self.next_number[stem] = number + 1
        self.taken.add(name)
        return name

    def unique(self, name: str) -> str:
        """`name` itself where it is free, else a fresh one with the same stem."""
        if name not in self.taken:
            self.taken.add(name)
            return name
        stem, dot, number = name.rpartition(".")
        return self.fresh(stem if dot and number.isdigit() else name)


class Channels:
    """Numbers of channels that the module does not have yet."""

    def __init__(self, module: Module):
        self.last = max((int(i.get("channel_id") or 0) for i in module.instructions()), default=0)

    def next(self) -> int:
        self.last += 1
        return self.last

    def renumber(self, made: Mapping[Instruction, Instruction]) -> None:
        """Give copies of collectives, by their originals, channels of their own. The two ends of a transfer keep the
        one that they share."""
        for old, new in made.items():
            if old.opcode in EXCHANGES and new is not old and new.get("channel_id") is not None:
                new.attributes = {**new.attributes, "channel_id": self.next()}


class Rewriter:
    """The state of one walk over one computation. Passes use `add`, `constant`, `uses` and `computation`."""

    def __init__(self, computation: Computation):
        self.computation = computation
        self.pending: list[Instruction] = []          # made by the current visit
        self.replacements: dict[Instruction, Instruction] = {}
        self.changed = False
        self.visits_left = len(computation.instructions) * (1 + VISITED_PER_INSTRUCTION) + 64
        self._like: Instruction | None = None         # the currently visited instruction

    # Most walks change nothing: state that only changes need is made at the first one.

    @cached_property
    def names(self) -> Names:
        return Names(i.name for i in self.computation.instructions)

    @cached_property
    def _uses(self) -> dict[Instruction, int]:
        return count_uses(self.computation)

    @cached_property
    def _bitcasts(self) -> bool:
        return any(i.opcode == "bitcast" for i in self.computation.instructions)

    def add(self, opcode: str, shape: Shape, operands: Iterable[Instruction] = (),
            attributes: dict[str, Any] | None = None, *, literal: np.ndarray | tuple | None = None) -> Instruction:
        """Add an instruction before the visited one; it inherits that one's span and metadata."""
        like = self._like
        merged = dict(attributes) if attributes else {}
        if like is not None:
            inherit_annotations(merged, like, shape)
        new = Instruction(self.names.fresh(opcode), opcode, shape, operands, merged, literal=literal,
                          span=like.span if like is not None else None)
        for operand in new.operands:
            self._uses[operand] = self._uses.get(operand, 0) + 1
        self.pending.append(new)
        return new

    def adopt(self, instruction: Instruction, operands: Iterable[Instruction]) -> Instruction:
        """A copy of an instruction of another computation, reading `operands`; it keeps its name if that is free."""
        new = instruction.copy(operands=list(operands), control_predecessors=(),
                               name=self.names.unique(instruction.name))
        self.visits_left += 1 + VISITED_PER_INSTRUCTION
        for operand in new.operands:
            self._uses[operand] = self._uses.get(operand, 0) + 1
        self.pending.append(new)
        return new

    def change(self, instruction: Instruction, *, operands: Iterable[Instruction] | None = None,
               shape: Shape | None = None, **attributes: Any) -> Instruction:
        """A new instruction of the same opcode with other operands, shape or attributes (None removes one)."""
        merged = {**instruction.attributes, **attributes}
        merged = {key: value for key, value in merged.items() if value is not None}
        return self.add(instruction.opcode, shape or instruction.shape,
                        instruction.operands if operands is None else operands, merged, literal=instruction.literal)

    def constant(self, value: Any, element_type: str | None = None) -> Instruction:
        """A constant of NumPy value `value`; `element_type` if a Python number does not determine it."""
        literal = np.asarray(value, numpy_dtype(element_type) if element_type else None)
        name = element_type or element_type_of(literal.dtype)
        return self.add("constant", array(name, *literal.shape), literal=literal)

    def uses(self, instruction: Instruction) -> int:
        """How many operand slots read `instruction`, the root counting as one; never too small."""
        return self._uses.get(instruction, 0)

    def run(self, visit: Visit, revisit: bool = True, opcodes: Opcodes | None = None, expands: bool = False) -> bool:
        """Walk the computation with `visit`, then drop what is dead. True if anything changed.

        revisit=False leaves new instructions unvisited: for expanders, which make many out of one.
        expands: instructions with control dependencies are visited, too, since targets do not know their opcodes. Their
        replacements get the same control dependencies.
        opcodes, where given, are the only ones that are visited."""
        computation = self.computation
        pinned = control_dependent(computation)
        result: list[Instruction] = []
        work = computation.instructions[::-1]
        replacements = self.replacements
        while work:
            instruction = work.pop()
            if replacements:
                self.replace_operands(instruction)
            if instruction.control_predecessors:
                self.replace_predecessors(instruction)
            if (opcodes is not None and instruction.opcode not in opcodes) or self.visits_left <= 0 \
                    or instruction in pinned and not expands:
                result.append(instruction)
                continue
            self.visits_left -= 1
            self._like = instruction
            new = visit(instruction, self)
            if new is None or new is instruction:
                if self.pending:
                    self.forget_pending()
                result.append(instruction)
                continue
            self.replace(instruction, self.with_layout_of(instruction, new))
            if instruction in pinned:
                for made in self.pending:
                    made.control_predecessors = instruction.control_predecessors
                    pinned.add(made)
            if revisit:
                work.extend(reversed(self.pending))
            else:
                result.extend(self.pending)
            self.pending.clear()
        return self.finish(result)

    def replace_operands(self, instruction: Instruction) -> None:
        for slot, operand in enumerate(instruction.operands):
            if operand in self.replacements:
                instruction.operands[slot] = self.resolve(operand)

    def replace_predecessors(self, instruction: Instruction) -> None:
        """Move an instruction's control dependencies to its replacement."""
        found: dict[Instruction, None] = {}
        for predecessor in instruction.control_predecessors:
            if predecessor in self.replacements:
                found.update(dict.fromkeys((self.resolve(predecessor), *predecessor.control_predecessors)))
            else:
                found[predecessor] = None
        instruction.control_predecessors = tuple(found)

    def replace(self, old: Instruction, new: Instruction) -> None:
        """Replace `old` by `new` from here on."""
        self.changed = True
        self.replacements[old] = new
        self._uses[new] = self._uses.get(new, 0) + self._uses.get(old, 0)
        for operand in old.operands:
            self._uses[operand] -= 1

    def forget_pending(self) -> None:
        """Drop unused instructions of a visit."""
        for instruction in self.pending:
            for operand in instruction.operands:
                self._uses[operand] -= 1
        self.pending.clear()

    def with_layout_of(self, old: Instruction, new: Instruction) -> Instruction:
        """`new`, or a copy of it in the layout of `old` if a user may depend on the layout."""
        depends = self._bitcasts or old is self.computation.root
        if not depends or not old.shape.is_array or old.shape == new.shape:
            return new
        return self.add("copy", old.shape, [new])

    def resolve(self, instruction: Instruction) -> Instruction:
        """The current replacement of `instruction`; the path to it is compressed."""
        last = instruction
        while last in self.replacements:
            last = self.replacements[last]
        while instruction is not last:
            self.replacements[instruction], instruction = last, self.replacements[instruction]
        return last

    def finish(self, result: list[Instruction]) -> bool:
        computation = self.computation
        if not self.changed:
            return False
        computation.root = self.resolve(computation.root)
        computation.instructions = result
        remove_dead(computation)
        return True


def inherit_annotations(attributes: dict[str, Any], like: Instruction, shape: Shape) -> None:
    """Give `attributes` the metadata of `like`, and its sharding where the shapes agree."""
    source = like.attributes
    for key in ("metadata", "frontend_attributes"):
        if key in source and key not in attributes:
            attributes[key] = source[key]
    if "sharding" in source and "sharding" not in attributes and like.shape.compatible(shape):
        attributes["sharding"] = source["sharding"]


def rewrite(computation: Computation, visit: Visit, revisit: bool = True, opcodes: Opcodes | None = None,
            expands: bool = False) -> bool:
    """Walk one computation; see the module docstring and Rewriter.run."""
    if opcodes is not None and not any(i.opcode in opcodes for i in computation.instructions):
        return False
    return Rewriter(computation).run(visit, revisit, opcodes, expands)


def rewrite_module(module: Module, visit: Visit, revisit: bool = True, opcodes: Opcodes | None = None,
                   fused: bool = False, expands: bool = False) -> bool:
    """Walk every computation that the entry reaches, callees first; bodies of fusions too if `fused`.

    A fusion has no dead parts, so that a rule which makes a parameter useless may not work inside of one.
    """
    changed = False
    for computation in reachable_computations(module.entry) if fused else unfused_computations(module):
        changed |= rewrite(computation, visit, revisit, opcodes, expands)
    return changed


def unfused_computations(module: Module) -> list[Computation]:
    """Every computation that the entry reaches and that no fusion calls, callees first."""
    reachable = reachable_computations(module.entry)
    bodies = {i.get("calls") for c in reachable for i in c.instructions if i.opcode == "fusion"}
    return [c for c in reachable if c not in bodies]


def count_uses(computation: Computation) -> dict[Instruction, int]:
    """How many operand slots read each instruction; the root counts as read once more."""
    counts = dict.fromkeys(computation.instructions, 0)
    for instruction in computation.instructions:
        for operand in instruction.operands:
            counts[operand] += 1
    counts[computation.root] += 1
    return counts


def control_dependent(computation: Computation) -> set[Instruction]:
    """Instructions with control dependencies, in either direction."""
    pinned: set[Instruction] = set()
    for instruction in computation.instructions:
        if instruction.control_predecessors:
            pinned.add(instruction)
            pinned.update(instruction.control_predecessors)
    return pinned


def remove_dead(computation: Computation, replaced: Collection[Instruction] = ()) -> bool:
    """Drop instructions without users and effects, and those without users whose effects others have by now (replaced);
    parameters always remain. True if there were any."""
    live: set[Instruction] = {computation.root} | control_dependent(computation)
    kept: list[Instruction] = []
    for instruction in reversed(computation.instructions):
        if instruction in live or instruction.opcode == "parameter" or (
                has_side_effect(instruction) and instruction not in replaced):
            live.update(instruction.operands)
            kept.append(instruction)
    if len(kept) == len(computation.instructions):
        return False
    kept.reverse()
    computation.instructions = kept
    return True
