"""Kernels whose members are determined before the walk: attentions, their gradients, and sorts with slices.

    WholeKernel(SORT, sort, members=(sort, slice), outputs=(slice,))

They may have several results. The walk places such a kernel at its last result: in_order orders the instructions so
that all users of any result come after the last one.
"""
from __future__ import annotations

from typing import NamedTuple

from hloc.ir import Computation, Instruction, topological_order

ATTENTION, SORT = "attention", "sort"       # kinds of groups (group.py)


class WholeKernel(NamedTuple):
    """first: the instruction over whose elements the kernel runs; members, outputs: operands before users; shared:
    members that other kernels recompute from the outputs."""

    kind: str
    first: Instruction
    members: tuple[Instruction, ...]
    outputs: tuple[Instruction, ...]
    shared: tuple[Instruction, ...] = ()


def in_order(computation: Computation, kernels: list[WholeKernel]) -> list[Instruction] | None:
    """The instructions, ordered so that all users of a kernel's outputs come after its last output; None if kernels
    depend on each other."""
    outputs = {o: k.outputs for k in kernels for o in k.outputs}
    members: dict[Instruction, set[Instruction]] = {}
    reads: dict[Instruction, list[Instruction]] = {}
    for kernel in kernels:
        inside = set(kernel.members)
        read = [o for m in kernel.members for o in m.operands if o not in inside]
        for output in kernel.outputs:
            members[output], reads[output] = inside, list(dict.fromkeys([*output.operands, *read]))
        for one in kernel.shared:
            outputs[one], members[one] = (*kernel.outputs, one), inside

    def before(node: Instruction) -> list[Instruction]:
        found = list(node.control_predecessors)
        for operand in reads.get(node, node.operands):
            found += outputs[operand] if operand in outputs and node not in members[operand] else (operand,)
        return found
    order = topological_order(computation.instructions, before)
    place = {i: n for n, i in enumerate(order)}
    if any(place[b] > place[i] for i in order for b in before(i)) or len(order) != len(computation.instructions):
        return None
    return order
