"""Which products with a softmax between them become one kernel, and why others do not.

In: a computation. Out: the attentions (hloc/analysis/attention.py) that fusion makes groups of before anything else,
and for the others a reason, which stands at the edges that remain: scores -> softmax -> second product.
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
    multiply_adds,
    tail_of,
)
from hloc.ir import Computation, Instruction
from hloc.machine import Machine

LEAST_PRODUCT = 2048             # multiply-adds of a product below which plain loops do better
# Of a CPU:
LEAST_DEPTH = 16                 # numbers of a query, or of a value
FEW_QUERIES = 5, 8               # more than memory's speed hides, too few to fill vectors with
MANY_KEYS = 512                  # with fewer, both products find them in a cache
TARGETS = frozenset(["cpu", "cuda"])    # those that have a kernel for it

Readers = dict[Instruction, list[Instruction]]


class Attentions(NamedTuple):
    """found: root -> (attention, members, what the tail adds included); refused: the second dot -> reason; between: the
    first dot -> reason."""

    found: dict[Instruction, tuple[Attention, tuple[Instruction, ...]]]
    refused: dict[Instruction, str]
    between: dict[Instruction, str]

    def reason(self, operand: Instruction, readers: Container[Instruction]) -> str | None:
        """Why an edge from `operand` to a kernel with these instructions is not inside of an attention."""
        if operand in self.between:
            return self.between[operand]
        return next((why for dot, why in self.refused.items() if operand in dot.operands and dot in readers), None)


def find_attentions(computation: Computation, readers: Readers, pinned: set[Instruction], machine: Machine
                    ) -> Attentions:
    """All attentions of a computation that are to be one kernel."""
    result = Attentions({}, {}, {})
    taken: set[Instruction] = set()
    sums: dict[Instruction, list[Instruction]] = {}
    for instruction in computation.instructions:
        if instruction.opcode == "reduce" and not instruction.shape.is_tuple:
            sums.setdefault(_unrenamed(instruction.operands[0]), []).append(instruction)
    for output in computation.instructions:
        if output.opcode != "dot":
            continue
        near = [s for o in output.operands for s in sums.get(_unrenamed(o), ())]
        attention = attention_of(output, near)
        if attention is None:
            continue
        if isinstance(attention, Attention):
            members = _members(attention, computation, readers, pinned)
            if not isinstance(members, str):
                members = slower(attention, machine) or members
            if not isinstance(members, str) and not taken.intersection(members):
                taken.update(members)
                result.found[members[-1]] = attention, members
                continue
            reason = members if isinstance(members, str) else "its products belong to another attention kernel"
            result.between[attention.scores] = reason
        else:
            reason = attention
        result.refused[output] = reason
    return result


def _unrenamed(node: Instruction) -> Instruction:
    while node.opcode in RENAMES:
        node = node.operands[0]
    return node


def _members(attention: Attention, computation: Computation, readers: Readers, pinned: set[Instruction]
             ) -> tuple[Instruction, ...] | str:
    """Everything in one kernel, its result last; or why it cannot be."""
    tail = tail_of(attention, readers, computation.root)
    if tail is None:
        return "the weights are not divided by their sum right behind the second product"
    members = tuple(dict.fromkeys([*attention.members, *tail]))
    inside = set(members)
    if inside & pinned:
        return "a control dependency fixes its place"
    root = members[-1]
    for member in members:
        if member is root:
            continue
        if member is computation.root or not all(r in inside for r in readers[member]):
            return "others read what the attention kernel would not store, as a backward pass does"
    return members


def slower(attention: Attention, machine: Machine) -> str:
    """Why two products and a softmax take less time than one kernel; empty where they do not."""
    scores, output, side = attention.scores, attention.output, attention.side
    if min(multiply_adds(scores), multiply_adds(output)) <= LEAST_PRODUCT:
        return "its products are so small that plain loops do them"
    if machine.kind == "gpu":
        return ""
    queries = prod(scores.operands[1 - side].shape.dimensions[d] for d in free(scores, 1 - side))
    depth = prod(scores.operands[side].shape.dimensions[d] for d in contracting(scores, side))
    features = prod(output.shape.dimensions[d] for d in free_of_side(output, 1 - attention.slot))
    if min(depth, features) < LEAST_DEPTH:
        return f"vectors of {min(depth, features)} are too short for an attention kernel"
    few = FEW_QUERIES[0] <= queries <= FEW_QUERIES[1]
    return "so few queries and keys are faster as products" if few and attention.keys[0] <= MANY_KEYS else ""
