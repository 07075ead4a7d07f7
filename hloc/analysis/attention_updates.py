"""Keys and values that are written into an array in place before an attention reads it, as a decoder does.

In: an attention. Out: for its keys and its values the dynamic-update-slice whose result they are a view of, if it
writes whole keys or values.

    c = f32[2,96,64] dynamic-update-slice(cache, new, zero, position, zero)         new: f32[2,1,64]
    s = f32[2,1,96] dot(q, c), ...                  StoredLines(c, views=(), dimension=1)
"""
from __future__ import annotations

from typing import NamedTuple

from hloc.analysis.attention import Attention, contracting, free
from hloc.analysis.fusible import RESHAPES
from hloc.analysis.strides import behind, whole
from hloc.ir import Instruction, row_major

MOVES = RESHAPES | {"transpose", "broadcast"}


class StoredLines(NamedTuple):
    """update: the dynamic-update-slice; views: what is between it and the dot, the dot's operand first; dimension: of
    the array, along which keys (or values) follow each other and which the update covers in part."""

    update: Instruction
    views: tuple[Instruction, ...]
    dimension: int


def stored_lines(attention: Attention) -> list[StoredLines | None]:
    """Of the keys, and of the values."""
    scores, output = attention.scores, attention.output
    keys, values = attention.side, 1 - attention.slot
    return [_behind(scores.operands[keys], free(scores, keys)),
            _behind(output.operands[values], contracting(output, values))]


def _behind(operand: Instruction, columns: tuple[int, ...]) -> StoredLines | None:
    """The update behind a dot's operand, whose dimensions `columns` count keys."""
    node, views = operand, []
    view = whole(operand.shape.dimensions)
    while node.opcode in MOVES:
        found = behind(node, view)
        if found is None:
            return None
        view = found
        views.append(node)
        node = node.operands[0]
    if node.opcode != "dynamic-update-slice":
        return None
    array, new = node.shape.dimensions, node.operands[1].shape.dimensions
    covered = [d for d, (n, m) in enumerate(zip(array, new)) if n != m]
    sized = [d for d, n in enumerate(operand.shape.dimensions) if n != 1]
    along = [view[sized.index(d)] for d in columns if d in sized]
    if len(covered) != 1 or 0 in new or along != [(array[covered[0]], row_major(array)[covered[0]])]:
        return None
    return StoredLines(node, tuple(views), covered[0])
