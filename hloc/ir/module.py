"""The HLO IR: Module > Computation > Instruction.

A computation is a list of instructions in a valid order (operands before users); the list is also the schedule once
`is_scheduled` holds. Instructions are mutable objects compared by identity; shapes, attributes and literals are
immutable values that may be shared. There are no stored user lists: passes walk forward and map old to new
(hloc/passes/rewriter.py), or ask `users(computation)` once.

    module.entry.root.operands[0].shape
"""
from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np

from hloc.errors import HlocError, Source, Span
from hloc.ir.attributes import WindowDim
from hloc.ir.shapes import Shape, leaves
from hloc.source_lines import Frame, frames

Node = TypeVar("Node", bound=Hashable)


class Instruction:
    """One HLO operation.

    name        unique in its computation, without %
    opcode      XLA's text opcode, e.g. "dynamic-update-slice"; async sugar keeps its own ("all-gather-start")
    shape       of the result
    operands    the instructions whose results it reads
    attributes  key in the text -> value (hloc/ir/attributes.py); control-predecessors is kept in its own field
    parameter_number   for parameter
    literal     for constant: an ndarray of shape.dimensions, a (nested) tuple of them for a tuple constant, or None
                where the text elides it ({...})
    """

    __slots__ = ("name", "opcode", "shape", "operands", "attributes", "parameter_number", "literal",
                 "control_predecessors", "span")

    def __init__(self, name: str, opcode: str, shape: Shape, operands: Iterable[Instruction] = (),
                 attributes: dict[str, Any] | None = None, *, parameter_number: int | None = None,
                 literal: np.ndarray | tuple | None = None, span: Span | None = None):
        self.name = name
        self.opcode = opcode
        self.shape = shape
        self.operands: list[Instruction] = list(operands)
        self.attributes: dict[str, Any] = attributes if attributes is not None else {}
        self.parameter_number = parameter_number
        self.literal = literal
        self.control_predecessors: tuple[Instruction, ...] = ()
        self.span = span

    def __repr__(self) -> str:
        return f"<{self.shape.to_string(False)} {self.opcode} {self.name}>"

    def get(self, key: str, default: Any = None) -> Any:
        """The attribute `key`, or `default`."""
        return self.attributes.get(key, default)

    def written_at(self) -> tuple[Frame, ...]:
        """The frames of the user's program that made it, the innermost first, by its metadata; of a fusion without
        metadata, those of its last instruction with some."""
        text = str(self.attributes.get("metadata", ""))
        found = frames(text, self.span.source.tables if self.span is not None else "")
        if not found and self.opcode == "fusion":
            inside = reversed(self.called_computations[0].instructions)
            found = next((f for f in (i.written_at() for i in inside if i.opcode != "fusion") if f), ())
        return found

    @property
    def array_literal(self) -> np.ndarray | None:
        """The literal of an array constant; None for a tuple, where the text omits it, and for other opcodes."""
        return None if isinstance(self.literal, tuple) else self.literal

    @property
    def elements(self) -> np.ndarray:
        """The literal of an array constant that is known to have one."""
        literal = self.array_literal
        assert literal is not None, f"{self.name} has no array"
        return literal

    @property
    def number(self) -> int:
        """The number of a parameter."""
        assert self.parameter_number is not None, f"{self.name} is no parameter"
        return self.parameter_number

    @property
    def line(self) -> int | str | None:
        """Its line in the text it came from (its byte in a proto); None for one that a pass made."""
        return self.span.source.line(self.span.start) if self.span is not None else None

    @property
    def called_computations(self) -> tuple[Computation, ...]:
        """Every computation this instruction refers to, in the order of its attributes."""
        found: list[Computation] = []
        for value in self.attributes.values():
            if isinstance(value, Computation):
                found.append(value)
            elif type(value) is tuple and value and isinstance(value[0], Computation):
                found.extend(value)
        return tuple(found)

    def copy(self, **changes: Any) -> Instruction:
        """A new instruction with some fields replaced: copy(operands=[...], shape=..., name=...)."""
        new = Instruction(self.name, self.opcode, self.shape, self.operands, dict(self.attributes),
                          parameter_number=self.parameter_number, literal=self.literal, span=self.span)
        new.control_predecessors = self.control_predecessors
        for key, value in changes.items():
            setattr(new, key, value)
        return new


class Computation:
    """A function: parameters are instructions with opcode `parameter`, the result is `root`."""

    __slots__ = ("name", "instructions", "root", "attributes", "span")

    def __init__(self, name: str, instructions: Iterable[Instruction] = (), root: Instruction | None = None,
                 attributes: dict[str, Any] | None = None, span: Span | None = None):
        self.name = name
        self.instructions: list[Instruction] = list(instructions)
        last = self.instructions[-1] if self.instructions else None
        self.root: Instruction = root or last         # type: ignore[assignment]      # none while it is being built
        self.attributes: dict[str, Any] = attributes if attributes is not None else {}   # execution_thread
        self.span = span

    def __repr__(self) -> str:
        return f"<computation {self.name}: {len(self.instructions)} instructions>"

    @property
    def parameters(self) -> list[Instruction]:
        """Parameters by number."""
        return sorted((i for i in self.instructions if i.opcode == "parameter"), key=lambda i: i.parameter_number or 0)


class Module:
    """A whole program. `computations` are ordered callees first, as in the text; `entry` is one of them."""

    __slots__ = ("name", "computations", "entry", "attributes", "tables", "source", "is_scheduled",
                 "default_inputs", "faults")

    def __init__(self, name: str, computations: Iterable[Computation], entry: Computation,
                 attributes: dict[str, Any] | None = None, tables: str = "", source: Source | None = None):
        self.name = name
        self.computations: list[Computation] = list(computations)
        self.entry = entry
        self.attributes: dict[str, Any] = attributes if attributes is not None else {}   # header, Verbatim mostly
        self.tables = tables          # FileNames ... StackFrames, verbatim
        self.source = source
        if source is not None:
            source.tables = tables    # errors resolve metadata by them
        self.is_scheduled = False
        self.default_inputs: tuple[np.ndarray, ...] | None = None      # flattened arguments from the module's file
        self.faults: tuple[HlocError, ...] = ()        # of the verifier, if it was not refused (hloc/verify)

    def __repr__(self) -> str:
        count = len(self.computations)
        return f"<module {self.name}: {count} computation{'' if count == 1 else 's'}>"

    def __str__(self) -> str:
        from hloc.ir.printer import print_module
        return print_module(self)

    def _repr_html_(self) -> str:
        """A summary and the graph, for notebooks."""
        from hloc.ir.html import Row, drawing, summary
        count = sum(len(c.instructions) for c in self.computations)
        results = [Row(f"result.{i}", s) for i, s in enumerate(leaves(self.entry.root.shape))]
        return summary(f"module {self.name}: {len(self.computations)} computation(s), {count:,} instruction(s)",
                       [("parameters", self.entry.parameters), ("results", results)]) + drawing(self)

    def instructions(self) -> Iterator[Instruction]:
        """Every instruction of every computation, callees first."""
        for computation in self.computations:
            yield from computation.instructions


def window_of(instruction: Instruction) -> tuple[WindowDim, ...]:
    """The window's dimensions; () without a window attribute (scalars, no spatial dimensions)."""
    window = instruction.get("window")
    return window.dimensions if window is not None else ()


def users(computation: Computation) -> dict[Instruction, list[Instruction]]:
    """The users of each instruction (once per operand slot), for all instructions of a computation."""
    table: dict[Instruction, list[Instruction]] = {i: [] for i in computation.instructions}
    for instruction in computation.instructions:
        for operand in instruction.operands:
            table[operand].append(instruction)
    return table


def topological_order(starts: Iterable[Node], before: Callable[[Node], Iterable[Node]]) -> list[Node]:
    """`starts` and all nodes that `before` reaches from them, in post-order: the nodes of `before`, in order, then the
    node itself. Without recursion, for any nesting."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(node, False) for node in reversed(list(starts))]
    while stack:
        node, finished = stack.pop()
        if finished:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((n, False) for n in reversed(list(before(node))) if n not in seen)
    return order


def reachable_computations(entry: Computation) -> list[Computation]:
    """`entry` and all it calls, callees first."""
    return topological_order([entry], _callees)


def _callees(computation: Computation) -> Iterator[Computation]:
    for instruction in computation.instructions:
        if not instruction.attributes:                      # most have no computation: check before building lists
            continue
        for value in instruction.attributes.values():
            kind = type(value)
            if kind is Computation or kind is tuple and value and type(value[0]) is Computation:
                yield from instruction.called_computations
                break


def post_order(root: Instruction) -> list[Instruction]:
    """`root` and everything it reads, operands first."""
    return topological_order([root], lambda instruction: instruction.operands)
