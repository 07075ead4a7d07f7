"""Which matmuls with a softmax between them become one kernel, and why others do not.

In: a computation. Out: the attentions (hloc/analysis/attention.py) that fusion makes groups of first, with the
kernels of their gradients (gradients.py), and for the others a reason, which is given for the remaining edges: scores
-> softmax -> second matmul.
"""
from __future__ import annotations

from collections.abc import Container
from math import prod
from typing import NamedTuple

from hloc.analysis.attention import (
    RENAMES,
    Attention,
    attention_of,
    contracting,
    free,
    free_of_side,
    tail_of,
)
from hloc.analysis.attention_updates import StoredLines, stored_lines
from hloc.analysis.prologues import is_limited_by_mma, multiply_adds
from hloc.ir import ELEMENT_TYPES, Computation, Instruction
from hloc.machine import Machine
from hloc.passes.fusion.gradients import KEPT, Readers, gradient_kernels
from hloc.passes.fusion.whole import ATTENTION, WholeKernel, in_order

LEAST_PRODUCT = 2048             # multiply-adds of a matmul: smaller ones are faster as loops
# Of a CPU:
LEAST_DEPTH = 16                 # numbers of a query, or of a value
FEW_QUERIES = 8                  # too few to fill vectors: each matmul reads keys, or values, once
TARGETS = frozenset(["cpu", "cuda"])    # those that have a kernel for it
WITH_GRADIENTS = frozenset(["cuda"])    # and for its gradients; on a CPU recomputing scores takes longer


class Attentions(NamedTuple):
    """found: the last output of a kernel -> the kernel, also of other kinds; refused: the second dot -> reason;
    between: the first dot -> reason; order: of the instructions, with all users of a kernel's outputs after the last
    output; shared: members with users outside."""

    found: dict[Instruction, WholeKernel]
    refused: dict[Instruction, str]
    between: dict[Instruction, str]
    order: list[Instruction]
    shared: frozenset[Instruction] = frozenset()

    def reason(self, operand: Instruction, readers: Container[Instruction]) -> str | None:
        """Why an edge from `operand` to a kernel with these instructions is not inside an attention."""
        if operand in self.between:
            return self.between[operand]
        return next((why for dot, why in self.refused.items() if dot in readers and operand in _read_for(dot, readers)),
                    None)


def _read_for(dot: Instruction, members: Container[Instruction]) -> set[Instruction]:
    """What a kernel with these members reads for the operands of a dot, which may be prologues, and these operands."""
    found: set[Instruction] = set()
    waiting = list(dot.operands)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.operands if node in members else ()
    return found


def find_attentions(computation: Computation, readers: Readers, pinned: set[Instruction], machine: Machine,
                    gradients: bool = False, others: list[WholeKernel] | None = None) -> Attentions:
    """All attentions of a computation that become one kernel, and with `gradients` the kernels of their gradients; the
    order is also valid for `others`."""
    search = _Search(computation, readers, pinned, machine)
    search.run(gradients, updates=machine.kind == "gpu")
    others = others or []
    order = in_order(computation, [*search.kernels, *others])
    if order is None:                                   # kernels of several results that depend on each other
        search = _Search(computation, readers, pinned, machine)
        search.run(False, updates=False)
        order = in_order(computation, [*search.kernels, *others])
    assert order is not None                            # with one result no kernel depends on another one's inside
    place = {i: n for n, i in enumerate(order)}
    found = {max(k.outputs, key=place.__getitem__): k for k in (*search.kernels, *others)}
    shared = frozenset(s for k in search.kernels for s in k.shared)
    return Attentions(found, search.refused, search.between, order, shared)


class _Search:
    """What find_attentions finds."""

    def __init__(self, computation: Computation, readers: Readers, pinned: set[Instruction], machine: Machine):
        self.computation, self.readers, self.pinned, self.machine = computation, readers, pinned, machine
        self.kernels: list[WholeKernel] = []
        self.refused: dict[Instruction, str] = {}
        self.between: dict[Instruction, str] = {}
        self.taken: set[Instruction] = set()

    def run(self, gradients: bool, updates: bool) -> None:
        """Find all kernels; gradients, updates: with those of gradients, with updates of keys and values."""
        sums: dict[Instruction, list[Instruction]] = {}
        for instruction in self.computation.instructions:
            if instruction.opcode == "reduce" and not instruction.shape.is_tuple:
                sums.setdefault(_unrenamed(instruction.operands[0]), []).append(instruction)
        for output in self.computation.instructions:
            if output.opcode != "dot":
                continue
            near = [s for o in output.operands for s in sums.get(_unrenamed(o), ())]
            attention = attention_of(output, near)
            if isinstance(attention, str):
                self.refused[output] = attention
            elif attention is not None:
                kernels = self.kernels_of(attention, gradients, updates)
                if isinstance(kernels, str):
                    self.between[attention.scores] = self.refused[output] = kernels
                else:
                    self.kernels += kernels
                    self.taken.update(m for k in kernels for m in k.members)

    def kernels_of(self, attention: Attention, gradients: bool, updates: bool) -> list[WholeKernel] | str:
        """An attention's kernel, and those of its gradients; or the reason against them."""
        members = _members(attention, self.computation, self.readers)
        if isinstance(members, str):
            return members
        kernels: list[WholeKernel] | str
        if _is_alone(members, self.computation, self.readers):
            stored = self.stored(attention, members) if updates else []
            first = [m for lines in stored for m in (lines.update, *reversed(lines.views))]
            outputs = (*(lines.update for lines in stored), members[-1])
            kernels = [WholeKernel(ATTENTION, attention.scores, (*first, *members), outputs)]
        elif gradients:
            kernels = gradient_kernels(attention, members, self.computation, self.readers, self.pinned)
        else:
            kernels = KEPT
        if isinstance(kernels, str):
            return kernels
        if any(m in self.pinned for k in kernels for m in k.members):
            return "a control dependency fixes its place in the schedule"
        if any(m in self.taken for k in kernels for m in k.members):
            return "its matmuls belong to another attention kernel"
        return slower(attention, self.machine) or kernels

    def stored(self, attention: Attention, members: tuple[Instruction, ...]) -> list[StoredLines]:
        """The updates of keys and values that are part of the kernel: those that only the two matmuls read inside, of
        arrays that it does not read otherwise. An attention that is limited by its matmuls takes longer if its
        operands are not copied as they are."""
        arrays = [*attention.scores.operands, attention.output.operands[1 - attention.slot], members[-1]]
        operations = 2 * (multiply_adds(attention.scores) + multiply_adds(attention.output))
        width = ELEMENT_TYPES[arrays[0].shape.element_type].bytes
        if is_limited_by_mma(operations, sum(a.shape.num_bytes for a in arrays), width, self.machine):
            return []
        inside = {*members, *(m for lines in stored_lines(attention) if lines for m in (*lines.views, lines.update))}
        reads = [o for m in inside for o in m.operands]
        return [lines for lines in stored_lines(attention) if lines is not None
                and self.is_free(lines) and reads.count(lines.update.operands[0]) == 1
                and reads.count(lines.update) == 1 and all(reads.count(v) == 1 for v in lines.views)]

    def is_free(self, lines: StoredLines) -> bool:
        """Whether its views have no other readers, and no other kernel has taken the update."""
        return lines.update not in self.taken and lines.update not in self.pinned \
            and all(len(self.readers[v]) == 1 and v is not self.computation.root for v in lines.views)


def _unrenamed(node: Instruction) -> Instruction:
    while node.opcode in RENAMES:
        node = node.operands[0]
    return node


def _members(attention: Attention, computation: Computation, readers: Readers) -> tuple[Instruction, ...] | str:
    """All members of an attention, its result last; or why it cannot be one kernel."""
    tail = tail_of(attention, readers, computation.root)
    if tail is None:
        return "the weights are not divided by their sum directly after the second matmul"
    return tuple(dict.fromkeys([*attention.members, *tail]))


def _is_alone(members: tuple[Instruction, ...], computation: Computation, readers: Readers) -> bool:
    """Whether only the result has users outside."""
    inside = set(members)
    return all(m is not computation.root and all(r in inside for r in readers[m]) for m in members[:-1])


def slower(attention: Attention, machine: Machine) -> str:
    """Why two matmuls and a softmax take less time than one kernel; empty if they do not."""
    scores, output, side = attention.scores, attention.output, attention.side
    if min(multiply_adds(scores), multiply_adds(output)) <= LEAST_PRODUCT:
        return "its matmuls are so small that plain loops compute them"
    if machine.kind == "gpu":
        return ""
    queries = min(prod(dot.operands[n].shape.dimensions[d] for d in free(dot, n))      # of the same keys and values
                  for dot, n in ((scores, 1 - side), (output, attention.slot)))
    depth = prod(scores.operands[side].shape.dimensions[d] for d in contracting(scores, side))
    features = prod(output.shape.dimensions[d] for d in free_of_side(output, 1 - attention.slot))
    if min(depth, features) < LEAST_DEPTH:
        return f"vectors of {min(depth, features)} are too short for an attention kernel"
    return "with so few queries, separate matmuls are faster" if queries <= FEW_QUERIES else ""
