"""Inserts copies where an array would be overwritten while its old value is still needed.

    u = f32[9] dynamic-update-slice(x, v, i)          c = f32[9] copy(x)
    ROOT r = f32[9] add(x, u)                     =>  u = f32[9] dynamic-update-slice(c, v, i)
                                                      ROOT r = f32[9] add(x, u)

Works on the schedule. Afterwards
- an op that works in place overwrites an array without later readers, and never an entry parameter (unless
  input_output_alias donates it), a constant or a parameter of a condition or called computation;
- each carried leaf of a while can live in one piece of memory: its initial value, the body's parameter, the body's
  result and the loop's result; leaves that the body returns unchanged are not copied;
- the same holds for an array that a branch of a conditional returns or updates, its parameter in each branch and the
  conditional's result, if the array has no later readers; a branch overwrites no other parameter;
- each other result of a branch, and each of the entry and of a called computation, is an array of its own.
Callers are processed first: they determine which arrays their branches may overwrite, if they are the only callers
(hloc/passes/flatten_call_graph.py). Linear in instructions and leaves.
"""
from __future__ import annotations

import re
from collections import Counter

from hloc.analysis.aliasing import Value, Values, branch_origins, in_place, invariant_leaves, leaf_values
from hloc.analysis.control_flow import branches, executed_computations
from hloc.analysis.liveness import last_reads, reads
from hloc.analysis.reads import reads_own_position
from hloc.ir import Computation, Instruction, Module
from hloc.passes.context import PassContext
from hloc.passes.rewriter import Names, remove_dead
from hloc.passes.tuple_leaves import TupleLeaves

ENTRY, BODY, CONDITION, CALLEE = "entry", "body", "condition", "callee"


def copy_insertion(module: Module, context: PassContext) -> bool:
    """Insert the copies that sharing of memory requires. True if there were any."""
    facts = Facts(module)
    changed = [CopyInserter(computation, facts).run() for computation in reversed(executed_computations(module))]
    return any(changed)


class Facts:
    """How the computations of a module use their parameters, and which they may overwrite.

    invariants  of each loop body: the leaves that it returns unchanged
    origins     of each branch: the parameter leaf in whose memory each of its results may be
    homes       of each branch: result leaf -> the parameter leaf in whose memory it must be. Callers fill it in.
    shared      branches that are called from several places
    """

    def __init__(self, module: Module):
        self.roles = computation_roles(module)
        self.donated = donations(module)
        self.invariants: dict[Computation, frozenset[int]] = {}
        for computation, roles in self.roles.items():
            if roles == {BODY}:
                values = leaf_values(computation, self.invariants)
                self.invariants[computation] = invariant_leaves(computation, values)
        self.origins = branch_origins(module, self.invariants)
        self.homes: dict[Computation, dict[int, int]] = {}
        sites = Counter(c for f in self.roles for i in f.instructions for c in i.called_computations)
        self.shared = {c for c, count in sites.items() if count > 1}


def computation_roles(module: Module) -> dict[Computation, set[str]]:
    """The use of each computation: entry, while body, or one whose parameters must not change."""
    computations = executed_computations(module)
    roles: dict[Computation, set[str]] = {c: set() for c in computations}
    roles[module.entry].add(ENTRY)
    for instruction in (i for c in computations for i in c.instructions):
        for callee in instruction.called_computations:
            if callee in roles:
                roles[callee].add(role_in(instruction, callee))
    return roles


def role_in(caller: Instruction, callee: Computation) -> str:
    if callee is caller.get("body"):
        return BODY
    return CONDITION if callee is caller.get("condition") else CALLEE


def donations(module: Module) -> dict[int, int]:
    """Flattened entry parameter leaf -> flattened result leaf, from input_output_alias={ {0}: (1, {}, may-alias) }.

    Only entries whose indices name one leaf of a flat parameter and a flat result are taken.
    """
    text = str(module.attributes.get("input_output_alias", ""))
    found: dict[int, int] = {}
    flat = module.entry.root.shape.tuple_shapes or (module.entry.root.shape,)
    parameters = module.entry.parameters
    if any(s.is_tuple for s in flat) or any(p.shape.is_tuple for p in parameters):
        return found
    for result, parameter in re.findall(r"\{\s*(\d*)\s*\}\s*:\s*\(\s*(\d+)\s*,\s*\{\s*\}", text):
        found[int(parameter)] = int(result or 0)
    return found


class CopyInserter:
    """The copies of one computation."""

    def __init__(self, computation: Computation, facts: Facts):
        self.computation = computation
        self.facts = facts
        self.roles = facts.roles[computation]
        self.donated = facts.donated if ENTRY in self.roles else {}
        self.homes = facts.homes.get(computation, {})
        self.values: Values = leaf_values(computation, facts.invariants)
        self.position = {i: n for n, i in enumerate(computation.instructions)}
        self.last = last_reads(computation, self.values)
        self.leader: dict[Value, Value] = {}            # a value -> the first one in the same memory
        self.tuples = TupleLeaves(Names(i.name for i in computation.instructions))
        self.wanted: dict[Instruction, dict[int, list[int]]] = {}      # operand slot -> leaves to copy before the op

    def run(self) -> bool:
        for instruction in self.computation.instructions:
            self.protect_operands(instruction)
        tail = self.results()
        if not tail and not self.wanted:
            return False
        order: list[Instruction] = []
        for instruction in self.computation.instructions:
            order.extend(self.copy_operands(instruction))
            order.append(instruction)
        order.extend(tail)
        self.computation.instructions = order
        remove_dead(self.computation)
        return True

    def copy_operands(self, instruction: Instruction) -> list[Instruction]:
        """Replace operands by their copies; returns the new instructions, which precede the user."""
        made: list[Instruction] = []
        for slot, leaves in self.wanted.get(instruction, {}).items():
            instruction.operands[slot] = self.tuples.with_copies(instruction.operands[slot], leaves, made)
        return made

    def results(self) -> list[Instruction]:
        """The instructions that put the results where the callers need them."""
        if self.roles == {BODY}:
            return self.results_at_home(list(self.values[self.computation.parameters[0]]))
        if BODY in self.roles:
            return self.twice_copied_results()
        if self.homes:
            parameter = self.values[self.computation.parameters[0]]
            places = [self.homes.get(n) for n in range(len(self.values[self.computation.root]))]
            return self.results_at_home([None if n is None else parameter[n] for n in places])
        return [] if self.roles == {CONDITION} else self.fresh_results()

    # -- memory shared by several values -------------------------------------------------------------------------------

    def memory(self, value: Value) -> Value:
        """The first value that had the memory of `value`."""
        return self.leader.get(value, value)

    def is_writable(self, value: Value) -> bool:
        owner = self.memory(value)
        opcode = owner.instruction.opcode
        if opcode == "constant":
            return False
        if opcode != "parameter":
            return True
        if ENTRY in self.roles:
            return owner.instruction.parameter_number in self.donated
        return self.roles == {BODY} or owner.leaf in self.homes.values()

    # -- ops that overwrite an operand ---------------------------------------------------------------------------------

    def protect_operands(self, instruction: Instruction) -> None:
        """Copy the arrays that `instruction` would overwrite and that are still needed."""
        pairs = in_place(instruction, self.values, self.facts.invariants, self.facts.origins)
        if instruction.opcode == "conditional":
            self.share_with_branches(instruction, pairs)
            return
        if not pairs:
            return
        taken: dict[Value, int] = {}
        for value in reads(instruction, self.values):
            taken[value] = taken.get(value, 0) + 1
        for result, slot, leaf in pairs:
            value = self.values[instruction.operands[slot]][leaf]
            if taken[value] > 1 or self.last[value] > self.position[instruction] or not self.is_writable(value):
                taken[value] -= 1
                self.wanted.setdefault(instruction, {}).setdefault(slot, []).append(leaf)
            else:
                self.leader[self.values[instruction][result]] = self.memory(value)

    def share_with_branches(self, conditional: Instruction, pairs: list[tuple[int, int, int]]) -> None:
        """Record for the branches which of their operands they may overwrite, and with which result."""
        callees = branches(conditional)
        if not self.facts.shared.isdisjoint(callees):
            return
        given = [self.values[o] for o in conditional.operands[1:]]
        for result, slot, leaf in pairs:
            value = given[slot - 1][leaf]
            if self.last[value] > self.position[conditional] or not self.is_writable(value) \
                    or any(leaves.count(value) > 1 for leaves in given):
                continue
            self.leader[self.values[conditional][result]] = self.memory(value)
            for callee, leaves in zip(callees, given):
                if value in leaves:
                    self.facts.homes.setdefault(callee, {})[result] = leaves.index(value)

    # -- results -------------------------------------------------------------------------------------------------------

    def fresh_results(self) -> list[Instruction]:
        """Copies that give each result leaf its own array."""
        seen: set[Value] = set()
        copied: list[int] = []
        for leaf, value in enumerate(self.values[self.computation.root]):
            owner = self.memory(value)
            opcode = owner.instruction.opcode
            given = opcode == "parameter" and self.donated.get(owner.instruction.number, -1) == leaf
            if owner in seen or (opcode in ("parameter", "constant") and not given):
                copied.append(leaf)
            seen.add(owner)
        made: list[Instruction] = []
        self.copy_results(copied, made)
        return made

    def copy_results(self, copied: list[int], made: list[Instruction]) -> None:
        self.computation.root = self.tuples.with_copies(self.computation.root, copied, made)

    def twice_copied_results(self) -> list[Instruction]:
        """For the rare computation that is both a loop body and a branch: correct for both, with more copies."""
        every = list(range(len(self.values[self.computation.root])))
        made: list[Instruction] = []
        self.copy_results(every, made)
        self.copy_results(every, made)
        return made

    def results_at_home(self, old: list[Value | None]) -> list[Instruction]:
        """Copies so that each new value can use the memory of an old one: of a carried leaf, or of an array that a
        branch may overwrite. None: it has its own memory.

        Leaves that take another leaf's value are copied first, the others after all those reads.
        """
        new = self.values[self.computation.root]
        moves, copies = self.sort_results(old, new)
        made: list[Instruction] = []
        self.copy_results(moves, made)
        self.copy_results(copies + self.clashing_moves(moves, old, new), made)
        return made

    def sort_results(self, old: list[Value | None], new: tuple[Value, ...]) -> tuple[list[int], list[int]]:
        """Leaves to copy: those whose new value is in another leaf's memory, and those that are written too early."""
        home = {v: n for n, v in enumerate(old) if v is not None}
        ends = self.memory_ends(home, new)
        moves, copies = [], []
        taken: set[Value] = set()
        for leaf, (before, after) in enumerate(zip(old, new)):
            owner = self.memory(after)
            if owner is not before:
                if owner in home:
                    moves.append(leaf)
                elif owner in taken or owner.instruction.opcode in ("parameter", "constant"):
                    copies.append(leaf)
                elif before is not None and not self.comes_after(owner, before, ends):
                    copies.append(leaf)
            taken.add(owner)
        return moves, copies

    def memory_ends(self, home: dict[Value, int], new: tuple[Value, ...]) -> dict[Value, int]:
        """The last read of each memory. A move reads at the end; a result that stays in its own leaf is no read."""
        ends: dict[Value, int] = {}
        for position, instruction in enumerate(self.computation.instructions):
            for value in reads(instruction, self.values):
                ends[self.memory(value)] = position
        for leaf, value in enumerate(new):
            owner = self.memory(value)
            if home.get(owner, leaf) != leaf:
                ends[owner] = len(self.position)
        return ends

    def comes_after(self, owner: Value, before: Value, ends: dict[Value, int]) -> bool:
        """Whether the memory `owner` is first written after the last read of the old value."""
        definition, end = self.position[owner.instruction], ends.get(before, -1)
        if definition != end:
            return definition > end
        maker = owner.instruction
        slots = [n for n, o in enumerate(maker.operands) if any(self.memory(v) is before for v in self.values[o])]
        return all(reads_own_position(maker, n) for n in slots)

    def clashing_moves(self, moves: list[int], old: list[Value | None], new: tuple[Value, ...]) -> list[int]:
        """Moves whose target leaf is read by a later move: they need a second copy, after all reads."""
        clashing: list[int] = []
        read_later: set[Value] = set()
        for leaf in reversed(moves):
            if old[leaf] in read_later:
                clashing.append(leaf)
            read_later.add(self.memory(new[leaf]))
        return clashing
