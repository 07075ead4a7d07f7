"""A small module, with inputs, on which a check fails for the same reason.

In: a verified module, its arrays and a function `shows(module, arrays) -> bool` that returns True for them. Out: a Case
that the edits below made small while `shows` stays True (delta debugging: large edits first, then smaller ones).

    case = reduce_module(module, arrays, shows)         case.module, case.arrays

Edits: inline calls, fusions and loops (a loop becomes one iteration); make another instruction the root; replace many
instructions at once by parameters with the values that the evaluator computed; replace an instruction by an operand of
its shape. Unused instructions are then removed. Only smaller candidates that the verifier accepts are tested.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from hloc.analysis.effects import has_side_effect
from hloc.errors import HlocError
from hloc.ir import Computation, Instruction, Module
from hloc.ir.clone import clone_module
from hloc.ops.values import Value, flatten
from hloc.passes.call_inliner import call_inliner
from hloc.passes.context import PassContext
from hloc.passes.dce import dce
from hloc.passes.defuser import defuser
from hloc.passes.optimization_barrier_expander import optimization_barrier_expander
from hloc.tools.entry_values import entry_values
from hloc.verify import verify

KEPT_HEADER = frozenset({"replica_count", "num_partitions"})      # the rest describes an entry that has changed


class Case(NamedTuple):
    """A module, and one array per flattened parameter."""

    module: Module
    arrays: tuple[np.ndarray, ...]

    @property
    def size(self) -> int:
        """The size to reduce: instructions, with those that compute something counted twice."""
        return sum(1 if i.opcode in ("parameter", "constant") else 2 for i in self.module.instructions())


Shows = Callable[[Module, Sequence[np.ndarray]], bool]
Edit = Callable[[Computation, list[Instruction]], bool]      # of a copy's entry; False if it does not apply


def reduce_module(module: Module, arrays: Sequence[np.ndarray], shows: Shows,
                  report: Callable[[str, int, int], None] = lambda stage, done, total: None) -> Case:
    """The smallest case found. `report` is called with (stage, instructions left, instructions at first)."""
    search = _Search(Case(module, tuple(arrays)), shows, report)
    size = None
    while size != search.best.size:
        size = search.best.size
        search.write_out()
        search.move_root()
        search.cut()
        search.bypass()
    return search.best


class _Search:
    def __init__(self, case: Case, shows: Shows, report: Callable[[str, int, int], None]):
        self.shows, self.report = shows, report
        self.first = len(case.module.entry.instructions)
        self.best = case
        self.values: list[Value] | None = None            # of the best entry's instructions, by position

    def accept(self, candidate: Module, sources: dict[Instruction, Value], may_grow: bool = False) -> bool:
        """Make the candidate the best case if it is valid, smaller, and still fails."""
        dce(candidate, PassContext())
        arrays = _with_parameters(candidate, sources)
        if arrays is None:
            return False
        case = Case(candidate, arrays)
        try:
            verify(candidate)
        except HlocError:
            return False
        if (case.size >= self.best.size and not may_grow) or not self.shows(*case):
            return False
        self.best, self.values = case, None
        self.report("reduce", len(candidate.entry.instructions), self.first)
        return True

    def attempt(self, edit: Edit) -> bool:
        """Apply an edit to a copy of the best case, and keep it if it succeeds."""
        copy = clone_module(self.best.module)
        before = list(copy.entry.instructions)
        if not edit(copy.entry, before):
            return False
        return self.accept(copy, dict(zip(before, self.best_values())))

    def best_values(self) -> list[Value]:
        if self.values is None:
            table = entry_values(*self.best, partial=True)
            self.values = [table.get(i) for i in self.best.module.entry.instructions]
        return self.values

    # -- the edits -----------------------------------------------------------------------------------------------------

    def write_out(self) -> None:
        """Inline calls, fusions and loops of the entry."""
        for opcode in ("fusion", "call", "while", "conditional", "opt-barrier"):
            count = sum(i.opcode == opcode for i in self.best.module.entry.instructions)
            for number in reversed(range(count)):
                self.inline(opcode, number)

    def inline(self, opcode: str, number: int) -> None:
        """Inlining makes a module longer at first: it is kept if later edits make it smaller than before."""
        copy = clone_module(self.best.module)
        chosen = [i for i in copy.entry.instructions if i.opcode == opcode]
        if number >= len(chosen):
            return
        values = {i.parameter_number: v for i, v in zip(self.best.module.entry.instructions, self.best_values())
                  if i.opcode == "parameter"}
        _called_once(chosen[number])
        for expand in (defuser, call_inliner, optimization_barrier_expander):
            expand(copy, PassContext())
        before = self.best, self.values
        if self.accept(copy, {p: values[p.parameter_number] for p in copy.entry.parameters}, may_grow=True):
            self.move_root()
            self.cut()
            if self.best.size >= before[0].size:
                self.best, self.values = before

    def move_root(self) -> None:
        """Make an earlier instruction the result, the earliest first; of a tuple, one element."""
        step = len(self.best.module.entry.instructions)
        while step:
            while self.attempt(partial(_root_before, step=step)):
                pass
            step //= 2
        count = len(self.best.module.entry.root.operands)
        for number in range(count):
            if self.attempt(partial(_root_operand, number=number)):
                return

    def cut(self) -> None:
        """Replace ranges of instructions by parameters: all, half of them, a quarter ..."""
        chunk = len(self.best.module.entry.instructions)
        while chunk:
            at = 0
            while at < len(self.best.module.entry.instructions):
                if not self.attempt(partial(_cut, first=at, count=chunk)):
                    at += chunk
            chunk //= 2

    def bypass(self) -> None:
        """Replace instructions by an operand of the same shape."""
        at = len(self.best.module.entry.instructions) - 1
        while at >= 0:
            for number in range(2):
                if self.attempt(partial(_bypass, at=at, number=number)):
                    break
            at = min(at, len(self.best.module.entry.instructions)) - 1


def _called_once(instruction: Instruction) -> None:
    """Replace a loop by a call of its body, a conditional by a call of its first branch."""
    if instruction.opcode == "while":
        body = instruction.attributes["body"]
        instruction.opcode, instruction.attributes = "call", {"to_apply": body}
    elif instruction.opcode == "conditional":
        branch = instruction.called_computations[0]
        instruction.opcode, instruction.attributes = "call", {"to_apply": branch}
        instruction.operands = [instruction.operands[1]]


def _root_before(entry: Computation, places: list[Instruction], step: int) -> bool:
    at = places.index(entry.root) - step
    if at < 0 or places[at].opcode in ("parameter", "constant"):
        return False
    entry.root = places[at]
    return True


def _root_operand(entry: Computation, places: list[Instruction], number: int) -> bool:
    if number >= len(entry.root.operands):
        return False
    entry.root = entry.root.operands[number]
    return True


def _cut(entry: Computation, places: list[Instruction], first: int, count: int) -> bool:
    """Replace `count` instructions by parameters (numbered later), except the root and those with side effects."""
    done = False
    place = {instruction: number for number, instruction in enumerate(entry.instructions)}
    for instruction in places[first:first + count]:
        if instruction is not entry.root and instruction.opcode not in ("parameter", "constant") \
                and not has_side_effect(instruction) and "token[]" not in instruction.shape.to_string(False):
            instruction.opcode, instruction.operands, instruction.attributes = "parameter", [], {}
            instruction.control_predecessors = ()
            instruction.parameter_number = len(place) + place[instruction]
            done = True
    return done


def _bypass(entry: Computation, places: list[Instruction], at: int, number: int) -> bool:
    if at >= len(places) or number >= len(places[at].operands):
        return False
    old, new = places[at], places[at].operands[number]
    if new.shape != old.shape:
        return False
    for instruction in entry.instructions:
        instruction.operands = [new if o is old else o for o in instruction.operands]
        instruction.control_predecessors = tuple(p for p in instruction.control_predecessors if p is not old)
    if entry.root is old:
        entry.root = new
    return True


def _with_parameters(module: Module, values: dict[Instruction, Value]) -> tuple[np.ndarray, ...] | None:
    """Number the entry's parameters that are read, drop the others, and return their arrays; None if the evaluator did
    not reach one of them."""
    entry = module.entry
    read = {o for i in entry.instructions for o in i.operands} | {entry.root}
    entry.instructions = [i for i in entry.instructions if i.opcode != "parameter" or i in read]
    parameters = entry.parameters
    for number, parameter in enumerate(parameters):
        parameter.parameter_number = number
    module.attributes = {k: v for k, v in module.attributes.items() if k in KEPT_HEADER}
    if any(values.get(p) is None for p in parameters):
        return None
    return tuple(part for p in parameters for part in flatten(values[p]))
