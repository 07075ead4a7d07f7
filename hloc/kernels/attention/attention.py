"""Attention: a Tile of the library kernel "attention" for two dots with a softmax between them.

In: a kCustom fusion with two dots (hloc/analysis/attention.py). Out: the tile; before it a kernel for each operand that
is not a strided view.

Tile "attention": for every batch b, row i (a query) and feature f
    z[j] = score(sum over d of Q[b, i, d] K[b, j, d])          for every column j (a key)
    e[j] = exp(z[j] - max z)
    out[b, i, f] = sum over j of e[j] V[b, j, f]  /  sum of e
all in f32. Rows without any finite score follow from that: they are NaN. Buffers: "query", "key", "value", what the
score reads, then "out0". Parameters (strides in elements; offsets are of the first element; `batch strides`: one per
dimension of the batch, outermost first):
    types      element types of query, key, value; those are f32, bf16 or f16, and so is out0's
    weights    type to which HLO rounds the weights, e over its sum, before they are multiplied
    sizes      (rows, columns, depth, features)
    batches    (size, ...) of the batch's dimensions; b counts through them, the last fastest
    query      (offset, row, depth, (batch strides))
    key        (offset, column, depth, (batch strides))
    value      (offset, column, feature, (batch strides))
    result     (row, feature, (batch strides)) of "out0"
    states     for a backward pass: ((name, what, row, (batch strides)), ...), the buffers of the "largest" score and
               the "sum" of e of each row
    stored     the name of the buffer of the result, if it is not "out0": with states, and with updates
Epilogue, the score: statements over the INDEX Vars "batch", "row", "column" and Var("acc", "f32"), the sum; the last is
a Let of "score", f32. It stores nothing, and may be asked for any element, in any order, more than once.
Updates: lines that the kernel stores into "key" or "value" and reads as if they had been there (new_lines.py).
"""
from __future__ import annotations

from dataclasses import replace

from hloc.analysis.attention import Attention, attention_in
from hloc.analysis.attention_gradient import Weighted
from hloc.analysis.fusible import in_place_operands
from hloc.errors import UnsupportedError
from hloc.ir import row_major
from hloc.kernels import indexing
from hloc.kernels.attention.new_lines import NewLines, new_lines
from hloc.kernels.attention.walks import Level, Matmuls
from hloc.kernels.elemental.updates import update_kernel
from hloc.kernels.group import Group, KernelCall, Lowered, Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import Let, Stmt, Update
from hloc.kernels.products.epilogues import call_of
from hloc.machine import Machine

NAMES = ("query", "key", "value")
QUERY, KEY, VALUE, RESULT, LARGEST, SUM, FIRST_LINES = range(7)     # steps of a Level; at the end one of each NewLines


def lower_attention(group: Group, machine: Machine) -> Lowered:
    """A fusion of two dots with a softmax between them."""
    attention = attention_in(group.instruction.get("calls"))
    if attention is None:
        raise UnsupportedError("two matmuls that are not an attention, in one fusion", group.instruction.span)
    stored = {group.roots[leaf]: leaf for leaf, _ in in_place_operands(group.instruction)}
    return _Lowering(replace(group, stored=stored), machine, attention).lowered()


class _Lowering(Matmuls):
    """The kernels of one attention. new: what the tile stores itself."""

    def __init__(self, group: Group, machine: Machine, attention: Attention):
        self.attention = attention
        super().__init__(group, machine, attention.walks, attention.keys, (attention.scores,),
                         (Weighted(attention.output, attention.slot),))
        (self.query, self.key), self.value = self.factors[0], self.values[0]
        self.new: list[NewLines] = []
        if machine.kind == "gpu" and not self.operands.calls:
            self.new = new_lines(group, attention, {"key": self.key, "value": self.value})

    def lowered(self) -> Lowered:
        tile = self.tile(*self.levels(self.other_positions))
        stored = {lines.stored.update for lines in self.new}
        before = [update_kernel(self.group, self.operands.machine, [leaf], "_update")
                  for update, leaf in self.group.stored.items() if update not in stored]
        return Lowered((*before, *self.operands.calls, tile), tuple(self.operands.scratch),
                       in_place_operands(self.group.instruction))

    def other_positions(self, place: Index) -> list[Index]:
        """In the arrays of row states, and in the lines that the tile stores."""
        found = []
        for reduce in (self.attention.largest, self.attention.sum):
            index = self.index(place, reduce.operands[0])
            kept = [i for d, i in enumerate(index) if d not in reduce.get("dimensions")]
            found.append(indexing.strided(kept, row_major(reduce.shape.dimensions)))
        for lines in self.new:
            array = self.attention.scores if lines.array == "key" else self.attention.weights
            found.append(lines.operand.position(0, self.batches(place, array)))
        return found

    # -- the tile

    def tile(self, row: Level, others: list[Level]) -> KernelCall:
        outline = Outline(self.group)
        score = self.score(outline, row, others)
        stored = outline.result_buffer(self.group.roots.index(self.roots[0]))
        steps = [(row.steps[n], tuple(k.steps[n] for k in others)) for n in range(len(row.steps))]
        states = tuple((outline.result_buffer(self.group.roots.index(reduce)), what, *steps[n])
                       for what, n, reduce in (("largest", LARGEST, self.attention.largest),
                                               ("sum", SUM, self.attention.sum)) if reduce in self.group.roots)
        updates = self.updates([batches for _, batches in steps[FIRST_LINES:]])
        sides = (self.query, self.key, self.value)
        given = [(side.access.offset, first, side.stride(2), steps[n][1]) for side, n, first in (
            (self.query, QUERY, row.steps[QUERY]), (self.key, KEY, self.key.stride(1)),
            (self.value, VALUE, self.value.stride(1)))]
        parameters = (
            ("types", tuple(s.access.type for s in sides)), ("weights", self.attention.weights.shape.element_type),
            ("sizes", (row.size, self.columns[0], self.query.size(2), self.value.size(2))),
            ("batches", tuple(n.size for n in others)), *zip(NAMES, given),
            ("result", (row.steps[RESULT], self.feature(0), steps[RESULT][1])),
            *((("states", states),) if states else ()), *((("stored", stored),) if stored != "out0" else ()))
        arrays = [*zip(NAMES, (s.access for s in sides)), *((n.name, n.operand.access) for n in self.new)]
        return call_of(self.group, "attention", arrays, [outline, *(o for o, _ in updates)], parameters, score,
                       self.multiply_adds, updates=tuple(u for _, u in updates))

    def updates(self, batches: list[tuple[int, ...]]) -> list[tuple[Outline, Update]]:
        """What the tile stores, and what the statements for it read."""
        outlines = [Outline(self.group) for _ in self.new]
        return [(outline, lines.update(outline, strides))
                for outline, lines, strides in zip(outlines, self.new, batches)]

    def score(self, outline: Outline, row: Level, others: list[Level]) -> tuple[Stmt, ...]:
        """Statements that compute a score from Var("acc")."""
        scores, position = self.attention.scores, self.flat_position(row, others)
        outline.elements.sources[scores] = self.reader(scores, "acc", position)
        value = outline.elements.value(self.attention.score, self.index(position, self.attention.score))
        return (*outline.builder.body(), Let("score", value))
