"""Keys and values that an attention stores into the arrays that it reads, as a decoder's cache.

In: a fusion of an attention with updates of its keys and values (hloc/analysis/attention_updates.py). Out: those that
the tile does itself, as Updates of the Tile, and kernels before it for the others.

A tile does an update if the array and the new lines are both read in place, by strides: it then reads the new lines
where they come from, and no thread waits for another one's store.
"""
from __future__ import annotations

from typing import NamedTuple

from hloc.analysis.attention import Attention
from hloc.analysis.attention_updates import StoredLines, stored_lines
from hloc.ir import Instruction, row_major
from hloc.kernels.attention.walks import Operand
from hloc.kernels.group import Arg, Group, Outline
from hloc.kernels.ir import Buffer, Let, Update
from hloc.kernels.products.operands import Access, strided
from hloc.kernels.rules.indexing import start_indices


class NewLines(NamedTuple):
    """array: "key" or "value"; operand: the new lines, with the dimensions of the array as the dot reads it."""

    array: str
    stored: StoredLines
    operand: Operand

    @property
    def buffer(self) -> Buffer:
        return Buffer(f"{self.array}_lines", self.operand.access.type, self.operand.access.size)

    def update(self, outline: Outline, batches: tuple[int, ...]) -> Update:
        """For the tile. batches: the strides of the lines along the dimensions of the batch; the outline gets the
        statements that compute where they go."""
        update = self.stored.update
        sizes = update.operands[1].shape.dimensions
        limits = [n - m for n, m in zip(update.shape.dimensions, sizes)]
        starts = outline.elements.drive(start_indices(outline.elements, update.operands[2:], limits))
        first = outline.builder.position(starts[self.stored.dimension])
        line, element = (self.operand.stride(n) or 0 for n in (1, 2))
        return Update(self.array, self.buffer.name, sizes[self.stored.dimension],
                      (self.operand.access.offset, line, element, batches),
                      (*outline.builder.body(), Let("first", first)))


def new_lines(group: Group, attention: Attention, arrays: dict[str, Operand]) -> list[NewLines]:
    """The updates that the tile can do. arrays: its keys and its values."""
    reads = [o for m in group.members for o in m.operands]
    found = []
    for name, lines in zip(arrays, stored_lines(attention)):
        if lines is None or lines.update not in group.stored or reads.count(lines.update) > 1 \
                or any(reads.count(v) > 1 for v in lines.views):
            continue
        operand = _as_operand(group, lines.update, arrays[name])
        if operand is not None:
            found.append(NewLines(name, lines, operand))
    return found


def _as_operand(group: Group, update: Instruction, array: Operand) -> Operand | None:
    """What an update stores, with the dimensions of the array; None if one of them is not read in place."""
    source = strided(group, update.operands[1], array.access.type)
    in_place = array.access.argument == Arg("result", 0, group.stored[update]) and array.access.offset == 0
    if source is None or not in_place:
        return None
    sizes = update.shape.dimensions
    whole = row_major(sizes)
    steps = []
    for size, stride in zip(array.dimensions, array.strides):
        home = next((d for d, n in enumerate(sizes) if n > 1 and stride % whole[d] == 0
                     and stride * size <= whole[d] * n), None)
        if size > 1 and stride and home is None:
            return None
        steps.append(stride // whole[home] * source.strides[home] if size > 1 and stride and home is not None else 0)
    access = Access(source.argument, source.type, source.size, source.offset, tuple(steps))
    return array._replace(access=access)
