"""The computations of a module while they are read: their names and instructions.

In: instructions one by one. Out: Computations, with unique names and parameters numbered from 0.

Instructions nest (operands, computations written inline) thousands deep in hostile text; `run` drives the readers of
nested things, which are generators, with a stack of its own:

    run(reader.instructions(trees, scope))
"""
from __future__ import annotations

import difflib
from collections.abc import Generator
from typing import Any

from hloc.errors import ParseError, Span
from hloc.ir.module import Computation, Instruction

Steps = Generator["Steps", Any, Any]


def run(steps: Steps) -> Any:
    """The return value of a generator that yields the generators whose values it wants sent back."""
    stack, value = [steps], None
    while stack:
        try:
            stack.append(stack[-1].send(value))
            value = None
        except StopIteration as done:
            stack.pop()
            value = done.value
    return value


class Scope:
    """A computation while it is read."""

    def __init__(self, name: str, span: Span, creates_parameters: bool = False):
        self.name, self.span = name, span
        self.by_name: dict[str, Instruction] = {}
        self.instructions: list[Instruction] = []
        self.root: Instruction | None = None
        self.creates_parameters = creates_parameters    # operands with a shape and an unknown name become parameters
        self.created = 0                                # of these, so far
        self.anonymous: dict[str, int] = {}             # by opcode: how many operands were named here


class Computations:
    """The computations of a module read so far."""

    def __init__(self) -> None:
        self.computations: list[Computation] = []
        self.computation_by_name: dict[str, Computation] = {}
        self.inline: list[Computation] = []

    def find_computation(self, name: str, span: Span) -> Computation:
        found = self.computation_by_name.get(name)
        if found is None:
            near = difflib.get_close_matches(name, list(self.computation_by_name)[-1000:], n=1)
            raise ParseError(f"the computation {name} is not defined before this use", span, did_you_mean(near))
        return found

    def finish_computation(self, scope: Scope) -> Computation:
        numbers = sorted(i.parameter_number for i in scope.instructions if i.parameter_number is not None)
        if numbers != list(range(len(numbers))):
            self.wrong_parameters(scope, numbers)
        return Computation(scope.name, scope.instructions, scope.root, span=scope.span)

    def wrong_parameters(self, scope: Scope, numbers: list[int]) -> None:
        seen: set[int] = set()
        for instruction in scope.instructions:
            if instruction.parameter_number is not None:
                if instruction.parameter_number in seen:
                    raise ParseError(f"a second parameter({instruction.parameter_number})", instruction.span)
                seen.add(instruction.parameter_number)
        missing = next(i for i in range(len(numbers)) if i not in seen)
        raise ParseError(f"the computation {scope.name} has {len(numbers)} parameters, but no parameter({missing})",
                         scope.span)

    def add_computation(self, computation: Computation) -> None:
        if computation.name in self.computation_by_name:
            raise ParseError(f"a second computation called {computation.name}", computation.span)
        self.computation_by_name[computation.name] = computation
        self.computations.append(computation)

    def name_inline_computations(self) -> None:
        """Computations that are written inline get the names _, _.1 ... at the end, where all others are known."""
        taken, number = set(self.computation_by_name), 0
        for computation in self.inline:
            while (name := f"_.{number}" if number else "_") in taken:
                number += 1
            taken.add(name)
            computation.name = name


def did_you_mean(near: list[str]) -> str | None:
    """A hint with the nearest name, or None."""
    return f"did you mean {near[0]}?" if near else None
