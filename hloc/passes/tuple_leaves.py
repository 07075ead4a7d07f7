"""Replaces single leaves of tuples.

In: an instruction and the numbers of some leaves (arrays of its flattened shape). Out: an instruction of the same shape
in which those leaves are copies.

    t = (f32[4], s32[]) tuple(a, n), leaves [0]      =>   c = copy(a); u = tuple(c, n)
"""
from __future__ import annotations

from collections.abc import Collection

from hloc.analysis.aliasing import leaf_count
from hloc.ir import Instruction, Shape
from hloc.passes.rewriter import Names


class TupleLeaves:
    """Makes the new instructions for one computation; `names` are its names."""

    def __init__(self, names: Names):
        self.names = names

    def with_copies(self, instruction: Instruction, copied: Collection[int], made: list[Instruction]) -> Instruction:
        """`instruction` with the leaves `copied` replaced by copies; new instructions are appended to `made`."""
        wanted = set(copied)
        done: list[Instruction] = []
        work: list[tuple] = [("visit", instruction, 0)]
        while work:
            action, item, first = work.pop()
            if action == "build":
                count = len(item.shape.tuple_shapes)
                parts = done[len(done) - count:]
                del done[len(done) - count:]
                done.append(self._add("tuple", Shape.tuple(p.shape for p in parts), parts, {}, item, made))
            elif not wanted.intersection(range(first, first + leaf_count(item.shape))):
                done.append(item)
            elif not item.shape.is_tuple:
                done.append(self._add("copy", item.shape, [item], {}, item, made))
            else:
                work.append(("build", item, first))
                work.extend(reversed(self._parts(item, first, made)))
        return done[0]

    def _parts(self, item: Instruction, first: int, made: list[Instruction]) -> list[tuple]:
        """Work items for the elements of a tuple."""
        parts: list[tuple] = []
        for index, shape in enumerate(item.shape.tuple_shapes):
            if item.opcode == "tuple":
                part = item.operands[index]
            else:
                part = self._add("get-tuple-element", shape, [item], {"index": index}, item, made)
            parts.append(("visit", part, first))
            first += leaf_count(shape)
        return parts

    def _add(self, opcode: str, shape: Shape, operands: list[Instruction], attributes: dict, like: Instruction,
             made: list[Instruction]) -> Instruction:
        new = Instruction(self.names.fresh(opcode), opcode, shape, operands, attributes, span=like.span)
        made.append(new)
        return new
