"""A part of a module, around one instruction, as a module of its own that runs.

    part = extract(module, "dot.7", radius=2)          part.module, part.parameters, part.results
    arrays = part.arrays(inputs)                        the values of its parameters, by the evaluator

The part holds all instructions at most `radius` steps away, from operand to user or back. An operand outside the part
becomes a parameter of the same name, unless it is a constant. An instruction with users outside, or without users,
becomes a result. `loop/dot.7` is the instruction of that name in the computation `loop`: bodies of loops and fusions
work in the same way.
"""
from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hloc.errors import UnsupportedError, UsageError
from hloc.evaluate import Evaluator, Options
from hloc.ir import Computation, Instruction, Module, Shape, reachable_computations, users
from hloc.ir.clone import clone_module
from hloc.ops.values import Value, flatten, unflatten
from hloc.passes.rewriter import Names
from hloc.tools.reduce import KEPT_HEADER
from hloc.verify import verify


class Part(NamedTuple):
    """module: the part; results: names of the instructions that are its results; whole: the module it was taken from;
    kept: its instructions there; cut: the instructions there whose values its parameters take, in order."""

    module: Module
    results: tuple[str, ...]
    whole: Module
    kept: frozenset[Instruction]
    cut: tuple[Instruction, ...]

    def arrays(self, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """One array per flattened parameter: its value in the first run of the part in the whole module. Raises
        UsageError if the part does not run."""
        rest = iter(inputs)
        values: dict[Instruction, Value] = {p: unflatten(p.shape, rest) for p in self.whole.entry.parameters}
        missing = set(self.kept)

        def observe(instruction: Instruction, operands: Sequence[Value], _: Value) -> None:
            if instruction in missing:
                missing.discard(instruction)
                for operand, value in zip(instruction.operands, operands):
                    values.setdefault(operand, value)

        Evaluator(self.whole, options=Options(observer=observe)).run(inputs)
        absent = [i.name for i in self.cut if i not in values]
        if absent:
            raise UsageError(f"with these inputs the part does not run: {absent[0]} is never read")
        return tuple(part for i in self.cut for part in flatten(values[i]))


def extract(module: Module, name: str, radius: int) -> Part:
    """Raises UsageError for an unknown or ambiguous name, UnsupportedError if a parameter would be a token."""
    around, home = _found(module, name)
    kept = _near(home, around, radius)
    copy = clone_module(module)
    copies = {old: new for f, g in zip(module.computations, copy.computations)
              for old, new in zip(f.instructions, g.instructions)}
    cut = [o for i in home.instructions if i in kept for o in i.operands if o not in kept and o.opcode != "constant"]
    cut += [i for i in home.instructions if i in kept and i.opcode == "parameter"]
    cut = [i for i in dict.fromkeys(cut) if not i.shape.is_token]
    results = _results(home, kept)
    entry = _entry(home, kept, cut, results, copies)
    header = {k: v for k, v in module.attributes.items() if k in KEPT_HEADER}
    part = Module(f"{module.name}_part", reachable_computations(entry), entry, header, module.tables, module.source)
    verify(part)
    return Part(part, tuple(i.name for i in results), module, frozenset(kept), tuple(cut))


def _found(module: Module, name: str) -> tuple[Instruction, Computation]:
    """The instruction, and its computation."""
    place, _, own = name.lstrip("%").rpartition("/")
    found = [(i, c) for c in module.computations for i in c.instructions
             if i.name == own and place in ("", c.name)]
    if len(found) == 1:
        return found[0]
    if found:
        entry = [f for f in found if f[1] is module.entry]
        if entry and not place:
            return entry[0]
        raise UsageError(f"{len(found)} computations hold an instruction {own}: "
                         f"{', '.join(c.name for _, c in found[:8])}", hint=f"write {found[0][1].name}/{own}")
    near = difflib.get_close_matches(own, [i.name for i in module.instructions()], n=3)
    raise UsageError(f"no instruction {name!r} in {module.name}",
                     hint=f"did you mean {', '.join(near)}?" if near else "hloc opt --passes= prints the module")


def _near(home: Computation, around: Instruction, radius: int) -> set[Instruction]:
    """The instructions at most `radius` steps away; asynchronous starts and their ends stay together."""
    readers = users(home)
    kept, edge = {around}, [around]
    for _ in range(radius):
        edge = [n for i in edge for n in (*i.operands, *readers[i]) if n not in kept]
        kept.update(edge)
        if not edge:
            break
    edge = list(kept)
    while edge:
        edge = [n for i in edge for n in _partners(i, readers) if n not in kept]
        kept.update(edge)
    return kept


def _partners(instruction: Instruction, readers: dict[Instruction, list[Instruction]]) -> list[Instruction]:
    """The instructions that must stay with an asynchronous one, and those that give it a token among other values."""
    opcode = instruction.opcode
    before = instruction.operands[:1] if opcode.endswith(("-done", "-update")) else []
    before += [o for o in instruction.operands if _holds_token(o.shape) and not o.shape.is_token]
    starts = opcode.endswith(("-start", "-update")) or opcode in ("send", "recv")
    return [*before, *((r for r in readers[instruction] if r.opcode.endswith(("-done", "-update"))) if starts else ())]


def _results(home: Computation, kept: set[Instruction]) -> list[Instruction]:
    """The part's results, in order: instructions with users outside or without users; none if all are tokens."""
    readers = users(home)
    found = [i for i in home.instructions
             if i in kept and not _holds_token(i.shape) and i.opcode not in ("parameter", "constant")
             and (i is home.root or not readers[i] or any(r not in kept for r in readers[i]))]
    return found or [i for i in home.instructions if i in kept and not _holds_token(i.shape)][-1:]


def _holds_token(shape: Shape) -> bool:
    return shape.is_token or any(map(_holds_token, shape.tuple_shapes))


def _entry(home: Computation, kept: set[Instruction], cut: Sequence[Instruction], results: Sequence[Instruction],
           copies: dict[Instruction, Instruction]) -> Computation:
    """The new entry, of copies."""
    order: list[Instruction] = []
    for number, instruction in enumerate(cut):
        if _holds_token(instruction.shape):
            raise UnsupportedError(f"{instruction.name} holds a token: it cannot become a parameter", instruction.span)
        parameter = copies[instruction]
        parameter.opcode, parameter.operands, parameter.parameter_number = "parameter", [], number
        parameter.attributes = {k: v for k, v in parameter.attributes.items() if k == "metadata"}
        parameter.control_predecessors, parameter.literal = (), None
        order.append(parameter)
    there = kept | set(cut)
    for instruction in home.instructions:
        if instruction in kept and copies[instruction].opcode != "parameter":
            order += _outside(instruction, there, copies)
            order.append(copies[instruction])
    inside = set(order)
    for instruction in order:
        instruction.control_predecessors = tuple(p for p in instruction.control_predecessors if p in inside)
    roots = [copies[i] for i in results]
    if len(roots) != 1:                                # none: the part only sends
        names = Names(i.name for i in order)
        order.append(Instruction(names.fresh("tuple"), "tuple", Shape.tuple(r.shape for r in roots), roots))
        roots = order[-1:]
    return Computation(home.name, order, roots[0])


def _outside(instruction: Instruction, there: set[Instruction],
             copies: dict[Instruction, Instruction]) -> list[Instruction]:
    """Copy the constants and tokens from outside that an instruction reads."""
    made = []
    for operand in dict.fromkeys(instruction.operands):
        if operand in there:
            continue
        there.add(operand)
        if operand.shape.is_token:
            token = copies[operand]
            token.opcode, token.operands, token.attributes, token.control_predecessors = "after-all", [], {}, ()
        made.append(copies[operand])
    return made
