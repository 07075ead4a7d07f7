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
from hloc.ir import Instruction
from hloc.ir.narrowing import all_known
from hloc.kernels import indexing
from hloc.kernels.attention.walks import Operand
from hloc.kernels.group import Arg, Group, Outline
from hloc.kernels.ir import Let, Update
from hloc.kernels.products.operands import strided
from hloc.kernels.rules.indexing import start_indices


class NewLines(NamedTuple):
    """array: "key" or "value"; operand: the new lines, with the dimensions of the array as the dot reads it."""

    array: str
    stored: StoredLines
    operand: Operand

    @property
    def name(self) -> str:
        """Of the buffer of the lines."""
        return f"{self.array}_lines"

    def update(self, outline: Outline, batches: tuple[int, ...]) -> Update:
        """For the tile. batches: the strides of the lines along the dimensions of the batch; the outline gets the
        statements that compute where they go."""
        update = self.stored.update
        sizes = update.operands[1].shape.dimensions
        limits = [n - m for n, m in zip(update.shape.dimensions, sizes)]
        starts = outline.elements.drive(start_indices(outline.elements, update.operands[2:], limits))
        first = outline.builder.position(starts[self.stored.dimension])
        line, element = (self.operand.stride(n) or 0 for n in (1, 2))
        return Update(self.array, self.name, sizes[self.stored.dimension],
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
    in_place = array.access.argument == Arg("result", group.stored[update]) and array.access.offset == 0
    if source is None or not in_place:
        return None
    names = [f"d{n}" for n in range(len(array.dimensions))]
    place = indexing.strided(map(indexing.variable, names, array.dimensions), array.strides)
    line = indexing.strided(indexing.delinearize(place, update.shape.dimensions), source.strides)
    steps = [indexing.coefficient_of(line, name) for name in names]
    return array._replace(access=source._replace(strides=tuple(steps))) if all_known(steps) else None
