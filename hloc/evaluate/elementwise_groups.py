"""Elementwise instructions on large arrays, run together block by block: a result is still in the processor's caches
when the next instruction reads it, and a result that only they read is never a whole array.

    x = f32[32,196,3072] multiply(a, b)   y = tanh(x)   z = add(y, a)   ->   per 32,768 elements: x, y, z; z is kept

In: the steps of a plan (hloc/evaluate). Out: its parts, which are runs of steps, and groups of steps. Each op acts
by its own row, on parts of the arrays, so values are those of the steps one by one.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hloc.errors import HlocError
from hloc.ir import Instruction
from hloc.ops.blocks import BLOCK, blocks
from hloc.ops.numerics import WIDER
from hloc.ops.table import OPS
from hloc.ops.values import Value

# Steps that may be between those of a group, if they read none of them: views and small arrays.
VIEWS = frozenset({"broadcast", "reshape", "get-tuple-element"})


class Member(NamedTuple):
    """ufunc: NumPy's function for the step, if its result is a new array. over: the slot of an operand that is such an
    array and dies here, so that the result may use its memory."""

    step: Any
    ufunc: np.ufunc | None
    over: int | None


class Group(NamedTuple):
    """steps: in order; read: slots of arrays from outside; kept: those of its steps that are read later; dead: slots
    from outside that are not read afterwards."""

    members: tuple[Member, ...]
    read: tuple[int, ...]
    kept: tuple[Any, ...]
    dead: tuple[int, ...]

    @property
    def steps(self) -> tuple[Any, ...]:
        return tuple(m.step for m in self.members)

    def run(self, evaluator, values: list[Value]) -> None:
        """Fills the slots of the steps that are kept."""
        if not self._in_blocks(evaluator, values):
            evaluator.run_steps(self.steps, values)                  # gives the error, if there is one
        for slot in self.dead:
            values[slot] = None

    def _in_blocks(self, evaluator, values: list[Value]) -> bool:
        """False if arrays are smaller than their shapes, or a step fails."""
        shape = self.members[0].step.dimensions
        if any(values[s].ndim and values[s].shape != shape for s in self.read):
            return False
        try:
            results = [np.empty(shape, s.dtype) for s in self.kept]
            for block in blocks(shape):
                part = {s: values[s][block] if values[s].ndim else values[s] for s in self.read}
                for step, ufunc, over in self.members:
                    operands = [part[s] for s in step.sources]
                    if ufunc is not None:
                        value = ufunc(*operands, out=part.get(over) if over is not None else None)
                    else:
                        value = step.function(evaluator, step.instruction, *operands)
                    part[step.target] = value
                    if value.dtype != step.dtype:
                        return False
                    for slot in step.dead:
                        del part[slot]                               # its cached memory is free for the next one
                for result, step in zip(results, self.kept):
                    result[block] = part[step.target]
        except (HlocError, ValueError, MemoryError):
            return False
        for result, step in zip(results, self.kept):
            values[step.target] = result
        return True


def parts_of(steps: Sequence[Any]) -> tuple[Group | tuple, ...] | None:
    """The steps in an order with groups, or None if there are none."""
    runs: list[list] = []               # of more than one step: a group
    pending: list = []
    targets: set[int] = set()           # of the pending steps
    for step in steps:
        if pending and _joins(step, pending):
            pending.append(step)
            targets.add(step.target)
        elif pending and _is_small_or_view(step.instruction) and targets.isdisjoint(step.sources):
            runs.append([step])
        else:
            runs.append(pending)
            pending, targets = [step], {step.target}
            if not _is_large(step.instruction):
                runs.append(pending)
                pending, targets = [], set()
    runs.append(pending)
    return _with_lifetimes([r for r in runs if r], steps) if any(len(r) > 1 for r in runs) else None


def _joins(step, pending: Sequence) -> bool:
    return step.dimensions == pending[0].dimensions and _is_large(step.instruction)


def _is_large(instruction: Instruction) -> bool:
    """Whether it is elementwise, on arrays of which a block is a small part."""
    shape = instruction.shape
    return OPS[instruction.opcode].is_elementwise and shape.is_array and shape.num_elements > 2 * BLOCK and \
        all(o.shape.dimensions in (shape.dimensions, ()) for o in instruction.operands)


def _is_small_or_view(instruction: Instruction) -> bool:
    if instruction.opcode in VIEWS:
        return True
    return OPS[instruction.opcode].is_elementwise and instruction.shape.is_array and \
        instruction.shape.num_elements <= BLOCK


def _members(run: Sequence) -> tuple[Member, ...]:
    """The operand whose memory a result may use. A step without a ufunc may return its operand, which must stay."""
    ufuncs = {s.target: _ufunc(s) for s in run}
    shared = {slot for s in run if ufuncs[s.target] is None for slot in s.sources}
    types = {s.target: s.dtype for s in run}

    def over(step) -> int | None:
        return next((slot for slot in step.sources if slot in step.dead and slot not in shared
                     and ufuncs.get(slot) is not None and types[slot] == step.dtype), None)
    return tuple(Member(s, ufuncs[s.target], over(s) if ufuncs[s.target] is not None else None) for s in run)


def _ufunc(step) -> np.ufunc | None:
    """Whether NumPy computes in the type of the operands and the result."""
    instruction = step.instruction
    same = {o.shape.element_type for o in instruction.operands} == {instruction.shape.element_type}
    return getattr(step.function, "ufunc", None) if same and step.dtype not in WIDER else None


def _with_lifetimes(runs: Sequence[Sequence], steps: Sequence[Any]) -> tuple[Group | tuple, ...]:
    """Values are freed after their last use in the new order."""
    may_die = {slot for step in steps for slot in step.dead}
    read_later = {step.target for step in steps} - may_die           # the root
    parts: list[Group | list] = []
    for run in reversed(runs):
        targets = {s.target for s in run}
        read = tuple(dict.fromkeys(s for step in run for s in step.sources if s not in targets))
        dead = tuple(s for s in read if s in may_die and s not in read_later)
        if len(run) > 1:
            kept = tuple(s for s in run if s.target in read_later)
            parts.append(Group(_members(run), read, kept, dead))
        else:
            (step,) = run
            dead += (step.target,) * (step.target not in read_later)
            last = parts[-1] if parts else None
            if isinstance(last, list):
                last.append(step._replace(dead=dead))
            else:
                parts.append([step._replace(dead=dead)])
        read_later.update(read)
    return tuple(part if isinstance(part, Group) else tuple(reversed(part)) for part in reversed(parts))
