"""Whole arrays that a loop copies, or rewrites to change a part, in each iteration, and why.

In: the plan of an optimized module. Out: the copies of each while loop of MOST_IGNORED bytes or more.

    for loop in loop_copies(module, program):    loop.size, loop.copies[0].cause, loop.copies[0].reader

A copy is needed where a value must have memory of its own: an instruction overwrites the array that is still read, or
the body returns the old value, or one value twice. A carried array is rewritten by a select between it and another, or
by a concatenation or pad of a part of it.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hloc.analysis.aliasing import FORWARDING
from hloc.analysis.control_flow import executed_computations
from hloc.ir import Computation, Instruction, Module, users
from hloc.kernels.plan import Branch, Copy, Launch, Program, Step, WhileLoop, all_steps

MOST_IGNORED = 4096             # bytes per iteration of one copy: the nearest cache makes less cheap


class LoopCopy(NamedTuple):
    """One copy or one rewritten array ("rewrites"). source: the array; cause: the instruction that overwrites it (None:
    the loop's next iteration); reader: a later reader, if known."""

    kind: str
    size: int
    instruction: Instruction
    source: Instruction
    cause: Instruction | None
    reader: Instruction | None


class CopyingLoop(NamedTuple):
    """A loop with its copies, the largest first; without those of inner loops."""

    instruction: Instruction
    trip_count: int | None
    copies: tuple[LoopCopy, ...]

    @property
    def size(self) -> int:
        """Bytes per iteration."""
        return sum(c.size for c in self.copies)


def loop_copies(module: Module, program: Program) -> tuple[CopyingLoop, ...]:
    """The loops that copy whole arrays, the most bytes per iteration first."""
    homes = {i: c for c in executed_computations(module) for i in c.instructions}
    found = []
    for step in all_steps(program.steps):
        if isinstance(step, WhileLoop) and step.instruction is not None:
            body = step.instruction.get("body")
            copies = [_explained(i, size, homes[i]) for i, size in _copied(step.condition + step.body)]
            copies += _rewritten(body)
            copies = [c for c in copies if c.size >= MOST_IGNORED]
            if copies:
                found.append(CopyingLoop(step.instruction, step.trip_count,
                                         tuple(sorted(copies, key=lambda c: -c.size))))
    return tuple(sorted(found, key=lambda loop: -loop.size))


def _copied(steps: Iterable[Step]) -> Iterator[tuple[Instruction, int]]:
    """Instructions that copy, and their bytes, also inside branches."""
    for step in steps:
        if isinstance(step, Branch):
            for branch in step.branches:
                yield from _copied(branch)
        elif isinstance(step, Copy) and step.instruction is not None:
            yield step.instruction, step.source.size
        elif isinstance(step, Launch) and step.instruction is not None and step.instruction.opcode == "copy":
            yield step.instruction, step.instruction.shape.num_bytes


def _explained(instruction: Instruction, size: int, home: Computation) -> LoopCopy:
    if instruction.opcode != "copy":                      # a copy by the planner, for this instruction
        return LoopCopy("copies", size, instruction, instruction.operands[0] if instruction.operands else instruction,
                        instruction, None)
    readers, place = users(home), {i: n for n, i in enumerate(home.instructions)}
    source = instruction.operands[0]
    own = [r for r in readers[instruction] if r.opcode not in FORWARDING]
    cause = own[0] if own else None
    behind = [r for r in readers[source] if r is not instruction and place[r] > place[cause or instruction]]
    return LoopCopy("copies", size, instruction, source, cause, next(iter(behind), None))


def _rewritten(body: Computation) -> Iterator[LoopCopy]:
    """Carried arrays whose new value keeps a part of the old one."""
    for leaf, new in enumerate(body.root.operands if body.root.opcode == "tuple" else ()):
        old = [i for i in body.instructions if i.opcode == "get-tuple-element" and i.get("index") == leaf
               and i.operands[0].opcode == "parameter"]
        changed, kept = _parts(new.operands[0] if new.opcode == "copy" else new)
        if any(k in old for k in kept):
            yield LoopCopy("rewrites", new.shape.num_bytes, new, old[0], changed, None)


def _parts(instruction: Instruction) -> tuple[Instruction, list[Instruction]]:
    """The select, concatenation or padding that an instruction or fusion ends with, and the arrays that it keeps parts
    of."""
    root, given = instruction, {}
    maker = instruction.operands[0] if instruction.opcode == "get-tuple-element" else instruction
    if maker.opcode == "fusion":
        inside = maker.get("calls")
        root = inside.root if maker is instruction else inside.root.operands[instruction.get("index")]
        given = dict(zip(inside.parameters, maker.operands))
    kept = {"select": slice(1, 3), "concatenate": slice(None), "pad": slice(1)}.get(root.opcode, slice(0))
    operands = root.operands[kept]
    whole = [o.operands[0] if o.opcode == "slice" else o for o in operands]
    return root, [given.get(o, o) for o in whole]
