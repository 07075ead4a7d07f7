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

from hloc.analysis.attention import Attention, attention_in, multiply_adds
from hloc.analysis.fusible import in_place_operands
from hloc.errors import UnsupportedError
from hloc.ir import ELEMENT_TYPES, Instruction, row_major
from hloc.kernels.attention.new_lines import NewLines, new_lines
from hloc.kernels.attention.walks import (
    OPERATIONS_OF_SOFTMAX,
    Operand,
    Walk,
    common,
    features_of,
    flat_position,
    merged,
    one_walk,
    operands_of,
    places,
    reader_of,
    strides_of_result,
    values_of,
    walks_of_product,
    walks_of_weights,
)
from hloc.kernels.elemental.updates import update_kernel
from hloc.kernels.group import Group, KernelCall, Lowered, Outline, buffers_of
from hloc.kernels.ir import Buffer, Cost, Let, Stmt, Tile, Update
from hloc.kernels.products.operands import OperandKernels
from hloc.machine import Machine

NAMES = ("query", "key", "value")
# indices of the steps of a Walk, one per array; at the end for each NewLines two: of the dot's operands (key), of
# them and the result (value)
QUERY, KEY, VALUE, RESULT, LARGEST, SUM, FIRST_LINES = range(7)


def lower_attention(group: Group, machine: Machine) -> Lowered:
    """A fusion of two dots with a softmax between them."""
    attention = attention_in(group.instruction.get("calls"))
    if attention is None:
        raise UnsupportedError("two matmuls that are not an attention, in one fusion", group.instruction.span)
    return _Lowering(group, machine, attention).lowered()


class _Lowering:
    """The kernels of one attention."""

    def __init__(self, group: Group, machine: Machine, attention: Attention):
        self.in_place = in_place_operands(group.instruction)
        self.group = group = replace(group, stored={group.roots[leaf]: leaf for leaf, _ in self.in_place})
        self.machine = machine
        self.attention = attention
        self.first, self.second = attention.scores, attention.output
        self.key_side = attention.side
        self.slot = attention.slot
        self.walks = attention.walks
        self.operands = OperandKernels(group, machine)
        self.root = next(r for r in group.roots
                         if r not in (attention.largest, attention.sum) and r not in group.stored)
        self.new: list[NewLines] = []                       # what the tile stores itself

    def lowered(self) -> Lowered:
        query, key = operands_of(self.first, self.key_side, self.walks[self.first], self.operands)
        value = values_of(self.second, self.slot, self.walks[self.attention.weights], self.operands)
        if self.machine.kind == "gpu" and not self.operands.calls:
            self.new = new_lines(self.group, self.attention, {"key": key, "value": value})
        levels = merged(self.levels(query, key, value))
        rows = [n for n in levels if n.steps[KEY] == n.steps[VALUE] == 0]
        row = max(rows, key=lambda n: n.size, default=Walk(1, 0, (0,) * (FIRST_LINES + 2 * len(self.new))))
        tile = self.tile([query, key, value], row, [n for n in levels if n is not row])
        stored = {lines.stored.update for lines in self.new}
        before = [update_kernel(self.group, self.machine, [leaf], "_update")
                  for update, leaf in self.group.stored.items() if update not in stored]
        return Lowered((*before, *self.operands.calls, tile), tuple(self.operands.scratch),
                       in_place=tuple((leaf, operand, 0) for leaf, operand in self.in_place))

    # -- dimensions

    def levels(self, query: Operand, key: Operand, value: Operand) -> list[Walk]:
        """The dimensions of the scores except the keys', outermost first, split as finely as both products need."""
        weights = self.walks[self.attention.weights]
        return common([
            walks_of_product(self.first, self.key_side, self.walks[self.first], query, key),
            walks_of_weights(self.second, self.slot, weights, value, self.result_strides()),
            *(self.walks_of_state(reduce) for reduce in (self.attention.largest, self.attention.sum)),
            *(walks_of_product(self.first, self.key_side, self.walks[self.first], query, lines.operand)
              if lines.array == "key" else
              walks_of_weights(self.second, self.slot, weights, lines.operand, self.result_strides())
              for lines in self.new)])

    def walks_of_state(self, reduce: Instruction) -> list[Walk]:
        """The rows: steps in the arrays of row states."""
        walk = self.walks[reduce.operands[0]]
        kept = [d for d in range(len(walk)) if d not in reduce.get("dimensions")]
        return [Walk(*walk[d], (s,)) for d, s in zip(kept, row_major(reduce.shape.dimensions))]

    def result_strides(self) -> list[int]:
        """The stride of the result along each dimension of the second dot."""
        return strides_of_result(self.group, self.second, self.root)

    # -- the tile

    def tile(self, sides: list[Operand], row: Walk, others: list[Walk]) -> KernelCall:
        query, key, value = sides
        outline = Outline(self.group)
        score = self.score(outline, row, others)
        stored = outline.result_buffer(self.group.roots.index(self.root))
        states = tuple(
            (outline.result_buffer(self.group.roots.index(reduce)), what, row.steps[n],
             tuple(k.steps[n] for k in others))
            for what, n, reduce in (("largest", LARGEST, self.attention.largest), ("sum", SUM, self.attention.sum))
            if reduce in self.group.roots)
        updates = self.updates(others)
        buffers, arguments = buffers_of([outline, *(o for o, _ in updates)])
        columns, feature = self.attention.keys[0], one_walk(features_of(self.second, self.slot, self.result_strides()))
        sizes = (row.size, columns, query.size(2), value.size(2))
        parameters = (
            ("types", tuple(s.access.type for s in sides)),
            ("weights", self.second.operands[self.slot].shape.element_type), ("sizes", sizes),
            ("batches", tuple(n.size for n in others)),
            ("query", (query.access.offset, row.steps[QUERY], query.stride(2), tuple(n.steps[QUERY] for n in others))),
            ("key", (key.access.offset, key.stride(1), key.stride(2), tuple(n.steps[KEY] for n in others))),
            ("value", (value.access.offset, value.stride(1), value.stride(2), tuple(n.steps[VALUE] for n in others))),
            ("result", (row.steps[RESULT], feature, tuple(n.steps[RESULT] for n in others))),
            *((("states", states),) if states else ()), *((("stored", stored),) if stored != "out0" else ()))
        written = {lines.array for lines in self.new}
        operands = tuple(Buffer(name, s.access.type, s.access.size, "update" if name in written else "read")
                         for name, s in zip(NAMES, sides)) + tuple(lines.buffer for lines in self.new)
        moved = sum(b.size * ELEMENT_TYPES[b.type].bytes for b in (*operands, *buffers))
        work = 2 * (multiply_adds(self.first) + multiply_adds(self.second))
        work += OPERATIONS_OF_SOFTMAX * self.first.shape.num_elements
        tile = Tile(self.group.kernel_name, "attention", operands + buffers, parameters, score,
                    cost=Cost(moved, work), origin=self.group.origin, updates=tuple(u for _, u in updates))
        given = [*sides, *(lines.operand for lines in self.new)]
        return KernelCall(tile, (*(s.access.stored_at for s in given), *arguments))

    def updates(self, others: list[Walk]) -> list[tuple[Outline, Update]]:
        """What the tile stores, and what the statements for it read."""
        found = []
        for n, lines in enumerate(self.new):
            outline, step = Outline(self.group), FIRST_LINES + 2 * n + (lines.array == "key")
            found.append((outline, lines.update(outline, tuple(k.steps[step] for k in others))))
        return found

    def score(self, outline: Outline, row: Walk, others: list[Walk]) -> tuple[Stmt, ...]:
        """Statements that compute a score from Var("acc")."""
        scores, score = self.first, self.attention.score
        position = flat_position(row, self.attention.keys, others)
        outline.elements.sources[scores] = reader_of(scores, "acc", self.walks[scores], position)
        value = outline.elements.value(score, places(position, self.walks[score], scores.shape.num_elements))
        return (*outline.builder.body(), Let("score", value))
