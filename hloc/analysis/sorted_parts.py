"""Sorts that are only read in part: the first, last or middle elements of each sorted row.

In: a sort and the users of instructions. Out: SortedParts, if only slices read it, which omit most of it; then a kernel
sorts the needed part and stores the slices.

    s = f32[4,1000] sort(x), dimensions={1}
    ROOT t = f32[4,8] slice(s), slice={[0:4], [0:8]}            parts: (t, operand 0, elements 0 to 8)

The same within a fusion: sorted_parts_in(fusion.calls).
"""
from __future__ import annotations

from typing import NamedTuple

from hloc.ir import Computation, Instruction, users

LEAST_LEFT_OUT = 2               # all slices together hold at most one in this many of an operand's elements


class Part(NamedTuple):
    """slice: stores elements first .. last - 1 of each sorted row of this operand."""

    slice: Instruction
    operand: int
    first: int
    last: int


class SortedParts(NamedTuple):
    """between: the get-tuple-elements from the sort to the slices."""

    sort: Instruction
    between: tuple[Instruction, ...]
    parts: tuple[Part, ...]

    @property
    def members(self) -> tuple[Instruction, ...]:
        return (self.sort, *self.between, *(p.slice for p in self.parts))


def sorted_parts(sort: Instruction, readers: dict[Instruction, list[Instruction]],
                 root: Instruction | None = None) -> SortedParts | None:
    """The slices that read a sort; None if it has other users, or if they omit too little. root: of the computation,
    None within a fusion."""
    elements = [sort] if sort.shape.is_array else list(dict.fromkeys(readers[sort]))
    if root in elements or root is sort or any(e.opcode != "get-tuple-element" for e in elements if e is not sort):
        return None
    parts: list[Part] = []
    for element in elements:
        operand = 0 if element is sort else element.get("index")
        for reader in dict.fromkeys(readers[element]):
            part = _part(reader, operand, sort.get("dimensions")[0])
            if part is None:
                return None
            parts.append(part)
    size = sort.operands[0].shape.num_elements
    for operand in {p.operand for p in parts}:
        if LEAST_LEFT_OUT * sum(p.slice.shape.num_elements for p in parts if p.operand == operand) > size:
            return None
    between = tuple(e for e in elements if e is not sort)
    return SortedParts(sort, between, tuple(parts)) if parts else None


def sorted_parts_in(computation: Computation) -> SortedParts | None:
    """The sort of a fusion that is one, with the slices that are its results."""
    sort = next((i for i in computation.instructions if i.opcode == "sort"), None)
    return None if sort is None else sorted_parts(sort, users(computation))


def _part(reader: Instruction, operand: int, dimension: int) -> Part | None:
    """The part that a slice along the sorted dimension alone takes."""
    if reader.opcode != "slice" or reader.shape.is_dynamic:
        return None
    shape, bounds = reader.operands[0].shape, reader.get("slice")
    for d, (first, last, step) in enumerate(bounds):
        if step != 1 or d != dimension and (first, last) != (0, shape.dimensions[d]):
            return None
    first, last, _ = bounds[dimension]
    return Part(reader, operand, first, last) if last > first else None
