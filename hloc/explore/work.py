"""A text as a module, and what the passes of each target make of it; computed once for all panes of a request.

    work = Work.of(text);  work.on("h100", wanted=["end", "fusion:1"]).program

States between passes are named after the runs that changed something: "fusion:1" is the module after the first such
run of fusion; "input" is the module as it was written, "end" what the last pass left.
"""
from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from hloc import api
from hloc.errors import HlocError, Span, UsageError
from hloc.ir import Instruction, Module
from hloc.ir.clone import clone_module
from hloc.kernels.group import LONGEST_ORIGIN, Group
from hloc.kernels.plan import Launch, Program, all_steps
from hloc.passes.context import PassContext
from hloc.passes.pipelines import pipeline_for
from hloc.passes.runner import Timing, run_passes
from hloc.targets import find
from hloc.targets.target import Target
from hloc.tools.report.lines import instruction_keys
from hloc.verify.unverified import blaming_faults

INPUT, END = "input", "end"
MOST_PROBLEMS = 100


class Change(NamedTuple):
    """A run of a pass that changed the module. instructions: after it."""

    state: str
    name: str
    instructions: int


@dataclass
class Optimized:
    """A module after all passes of a target. states: those that were wanted, each with the module before it."""

    target: Target
    module: Module
    original: Module
    changes: list[Change] = field(default_factory=list)
    states: dict[str, tuple[Module, Module]] = field(default_factory=dict)

    def after(self, state: str) -> Module:
        """Raises UsageError for a state that this module has not."""
        return self._state(state)[1]

    def around(self, state: str) -> tuple[Module, Module]:
        """The modules before and after; of "end" those of all passes together."""
        return self._state(state)

    def _state(self, state: str) -> tuple[Module, Module]:
        if state == INPUT:
            return self.original, self.original
        if state == END:
            return self.original, self.module
        if state not in self.states:
            name, _, number = state.partition(":")
            runs = sum(c.name == name for c in self.changes)
            told = f"changes this module {runs} times only" if runs else "does not change this module"
            raise UsageError(f"{name} {told} on target {self.target.machine.name}", hint=f"asked for run {number}")
        return self.states[state]

    @cached_property
    def program(self) -> Program:
        """The kernels and steps. Raises what planning raises."""
        with blaming_faults(self.module, "the planner"):
            return api.plan(self.module, self.target)

    @cached_property
    def owners(self) -> list[list[Instruction]]:
        """Of each kernel of the program, the instructions that it computes."""
        found: list[list[Instruction]] = [[] for _ in self.program.kernels]
        for step in all_steps(self.program.steps):
            if isinstance(step, Launch) and step.instruction is not None:
                found[step.kernel].append(step.instruction)
        return found

    def kernel_lines(self, kernel: int) -> frozenset[int]:
        """The lines of the text that a kernel computes."""
        return frozenset().union(*map(lines_of, self.owners[kernel]))

    def origin_lines(self, kernel: int) -> list[frozenset[int]]:
        """Of each line of a kernel's origin (hloc/kernels/ir.py), the lines of the text."""
        found: list[frozenset[int]] = []
        for n in range(len(self.program.kernels[kernel].origin)):
            found.append(frozenset().union(*(_origin_line(i, n) for i in self.owners[kernel])))
        return found


    def keyed_lines(self, kernel: int) -> dict[str, frozenset[int]]:
        """Which lines of the text the names in a kernel's code stand for (hloc/tools/report/lines.py); of what it
        reads, the line that made it."""
        found: dict[str, frozenset[int]] = {}
        for owner in self.owners[kernel]:
            for i, keys in instruction_keys(owner, self.program.kernels[kernel]).items():
                inner = i.opcode == "parameter" and owner.opcode == "fusion"
                lines = own_line(owner.operands[i.parameter_number or 0] if inner else i)
                for key in keys:
                    found[key] = found.get(key, frozenset()) | lines
        return found


def _origin_line(instruction: Instruction, number: int) -> frozenset[int]:
    members = Group.of(instruction).members if instruction.opcode == "fusion" else []
    if number == 0:
        return own_line(instruction)
    if number - 1 < len(members) and number < LONGEST_ORIGIN:
        return own_line(members[number - 1])
    return frozenset().union(*map(own_line, members[number - 1:]))


@dataclass
class Work:
    """problems: what is wrong with the text, as the editor shows it; parsed: None where it cannot be read."""

    text: str
    name: str
    parsed: Module | None = None
    problems: list[dict[str, Any]] = field(default_factory=list)
    _done: dict[str, Optimized] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str, name: str = "module.hlo") -> Work:
        work = cls(text, name)
        try:
            work.parsed = api.load(text if "\n" in text else text + "\n", name=name, broken_rules="ignore",
                                   warn=work._warn)
        except HlocError as error:
            work.problems.append(problem(error.message, error.span, "error", error.hint))
            return work
        work.problems += [problem(f"{fault.message} (it cannot run)", fault.span, "error", fault.hint)
                          for fault in work.module.faults[:MOST_PROBLEMS] if isinstance(fault, HlocError)]
        return work

    @property
    def module(self) -> Module:
        """Of a text that can be read."""
        assert self.parsed is not None
        return self.parsed

    def _warn(self, message: str, span: Span | None) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(problem(message, span, "warning"))

    def on(self, target: str, wanted: Collection[str] = ()) -> Optimized:
        """The module after the passes of a target; `wanted` counts where the target is asked for first."""
        if target not in self._done:
            self._done[target] = _optimized(self.module, find(target), wanted)
        return self._done[target]


def problem(message: str, span: Span | None, severity: str, hint: str | None = None) -> dict[str, Any]:
    """A diagnostic: offsets are characters of the text; line and column count from 1, 0 where there is no place."""
    line, column = span.source.position(span.start) if span is not None else (0, 0)
    start, end = (span.start, max(span.end, span.start + 1)) if span is not None else (0, 0)
    return {"severity": severity, "message": message, "hint": hint or "", "line": line, "column": column,
            "length": end - start}


def _optimized(module: Module, target: Target, wanted: Collection[str]) -> Optimized:
    done = Optimized(target, clone_module(module), module)
    done.module.faults = module.faults
    names = {state.partition(":")[0] for state in wanted}
    timings: list[Timing] = []
    runs: dict[str, int] = {}
    before: list[Module] = []

    def watch(when: str, name: str) -> None:
        if when == "before":
            before[:] = [clone_module(done.module)] if name in names else []
        elif timings[-1].changed:
            runs[name] = runs.get(name, 0) + 1
            state = f"{name}:{runs[name]}"
            done.changes.append(Change(state, name, timings[-1].instructions))
            if state in wanted:
                done.states[state] = before[0], clone_module(done.module)

    context = PassContext(target.machine, target.name, {})
    with api.without_collections():
        run_passes(done.module, pipeline_for(target.name), context, timings=timings, verify=False, watch=watch)
    return done


# -- lines of the text -------------------------------------------------------------------------------------------------

def own_line(instruction: Instruction) -> frozenset[int]:
    line = instruction.line
    return frozenset([line]) if isinstance(line, int) else frozenset()


def lines_of(instruction: Instruction) -> frozenset[int]:
    """The line of an instruction; of a fusion, also of all that is inside."""
    found = own_line(instruction)
    if instruction.opcode == "fusion":
        found = found.union(*(lines_of(i) for i in instruction.get("calls").instructions))
    return found
