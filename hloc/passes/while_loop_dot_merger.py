"""Merges small dots of the same rows inside a loop into one.

    body { h = f32[8,64], u = f32[64,64] and v = f32[64,32] never change
           a = f32[8,64] dot(h, u)  b = f32[8,32] dot(h, v) ... }
    =>
    w = f32[64,96] concatenate(u, v) is computed before the loop, and
    body { ... c = f32[8,96] dot(h, w)  a = f32[8,64] slice(c)  b = f32[8,32] slice(c) ... }

Gates of recurrent networks are such dots. One matmul uses more cores than a small one, and reads the rows once. Larger
ones use all cores alone, and fuse with more of their users. Outside of loops the weights would have to be copied for
one matmul, which costs more than it gains. With a memory limit nothing is merged.
"""
from __future__ import annotations

from typing import NamedTuple

from hloc.analysis.while_loops import Loop, element_read, invariant_elements
from hloc.ir import Computation, Instruction, Module, SliceDim, array
from hloc.passes.context import PassContext
from hloc.passes.loop_rewriter import carrying, rewrite_loops
from hloc.passes.rewriter import Names, Rewriter, control_dependent, remove_dead

MOST_WORK = 3 << 17             # multiplications of a product, unless its rows are few
FEW_ROWS = 4
MOST_BYTES = 2 << 20            # of the weights of a loop that are copied


class Member(NamedTuple):
    """side: the operand (0 or 1) that is the rows; weight: which element of the loop's state the other one is; free:
    the dimension of it that is not summed over."""

    dot: Instruction
    side: int
    weight: int
    free: int

    @property
    def matrix(self) -> Instruction:
        return self.dot.operands[1 - self.side]

    @property
    def key(self) -> tuple:
        """The properties that merged dots must share."""
        attributes = {k: str(v) for k, v in self.dot.attributes.items() if k not in ("metadata", "sharding")}
        return (self.side, self.dot.operands[self.side], self.dot.shape.element_type, self.matrix.shape.element_type,
                *sorted(attributes.items()))


def while_loop_dot_merger(module: Module, context: PassContext) -> bool:
    """Merge small dots of the same rows in loops. True if any were merged."""
    if context.option("memory_limit") is not None:
        return False
    return rewrite_loops(module, change)


def change(loop: Loop, rewriter: Rewriter) -> Instruction | None:
    found = mergeable(loop)
    return merge(loop, found, rewriter) if found else None


def mergeable(loop: Loop) -> list[list[Member]]:
    """The dots of the body to merge, by group."""
    same, pinned = invariant_elements(loop), control_dependent(loop.body)
    groups: dict[tuple, list[Member]] = {}
    for dot in loop.body.instructions:
        member = member_of(dot, loop.body, same) if dot.opcode == "dot" and dot not in pinned else None
        if member is not None:
            groups.setdefault(member.key, []).append(member)
    found, left = [], MOST_BYTES
    for group in groups.values():
        size = sum(m.matrix.shape.num_bytes for m in group)
        if len(group) > 1 and size <= left:
            found.append(group)
            left -= size
    return found


def member_of(dot: Instruction, body: Computation, same: set[int]) -> Member | None:
    """The dot, where it is a small one of some rows with a matrix that is one of the loop's elements `same`."""
    if dot.get("lhs_batch_dims") or dot.get("rhs_batch_dims"):
        return None
    for side, contracting in ((0, "rhs_contracting_dims"), (1, "lhs_contracting_dims")):
        rows, matrix = dot.operands[side].shape, dot.operands[1 - side].shape
        weight = element_read(dot.operands[1 - side], body)
        summed: tuple[int, ...] = dot.get(contracting) or ()
        if weight not in same or matrix.rank != 2 or len(summed) != 1:
            continue
        count = rows.num_elements // max(1, matrix.dimensions[summed[0]])
        if count <= FEW_ROWS or count * matrix.num_elements <= MOST_WORK:
            return Member(dot, side, weight, 1 - summed[0])
    return None


def merge(loop: Loop, groups: list[list[Member]], rewriter: Rewriter) -> Instruction:
    """The loop after the joined matrices, in a tuple of the old shape."""
    new, carries = carrying(loop, [joined(group, loop, rewriter) for group in groups], rewriter)
    names = Names(i.name for i in loop.body.instructions)
    for group, matrix in zip(groups, carries):
        multiply_concatenated(group, matrix, loop.body, names)
    remove_dead(loop.body)
    return new


def joined(group: list[Member], loop: Loop, rewriter: Rewriter) -> Instruction:
    """The matrices side by side."""
    matrices, free = [loop.initial[m.weight] for m in group], group[0].free
    sizes = list(matrices[0].shape.dimensions)
    sizes[free] = sum(m.shape.dimensions[free] for m in matrices)
    shape = array(matrices[0].shape.element_type, *sizes)
    return rewriter.add("concatenate", shape, matrices, {"dimensions": (free,)})


def multiply_concatenated(group: list[Member], matrix: Instruction, body: Computation, names: Names) -> None:
    """One dot at the position of the first one; the old dots are slices of it."""
    first = group[0]
    along = first.dot.shape.rank - 1 if first.side == 0 else 0
    sizes = list(first.dot.shape.dimensions)
    sizes[along] = matrix.shape.dimensions[first.free]
    operands = list(first.dot.operands)
    operands[1 - first.side] = matrix
    attributes = {k: v for k, v in first.dot.attributes.items() if k != "sharding"}
    product = Instruction(names.fresh("dot"), "dot", array(first.dot.shape.element_type, *sizes), operands, attributes,
                          span=first.dot.span)
    body.instructions.insert(body.instructions.index(first.dot), product)
    start = 0
    for dot, *_ in group:
        taken = [SliceDim(0, size, 1) for size in dot.shape.dimensions]
        taken[along] = SliceDim(start, start + dot.shape.dimensions[along], 1)
        start += dot.shape.dimensions[along]
        dot.opcode, dot.operands = "slice", [product]
        dot.attributes = {k: v for k, v in dot.attributes.items() if k == "metadata"} | {"slice": tuple(taken)}
