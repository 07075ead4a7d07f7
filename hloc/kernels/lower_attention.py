"""Attention: a Tile of the routine "attention" for two dots with a softmax between them.

In: a kCustom fusion with two dots (hloc/analysis/attention.py). Out: the tile; before it a kernel per operand that no
strides can describe.

Tile "attention": for every batch b, row i (a query) and feature f
    z[j] = score(sum over d of Q[b, i, d] K[b, j, d])          for every column j (a key)
    e[j] = exp(z[j] - max z)
    out[b, i, f] = sum over j of e[j] V[b, j, f]  /  sum of e
all in f32. Rows without any finite score follow from that: they are NaN. Buffers: "query", "key", "value", what the
score reads, then "out0". Parameters (strides in elements; offsets are of the first element; `batch strides`: one per
dimension of the batch, outermost first):
    types      element types of query, key, value; those are f32, bf16 or f16, and so is out0's
    sizes      (rows, columns, depth, features)
    batches    (size, ...) of the batch's dimensions; b counts through them, the last fastest
    query      (offset, row, depth, (batch strides))
    key        (offset, column, depth, (batch strides))
    value      (offset, column, feature, (batch strides))
    result     (row, feature, (batch strides)) of "out0"
    states     where a backward pass reads them: ((name, what, row, (batch strides)), ...), the buffers into which the
               "largest" score of each row and the "sum" of e go; "out0" is then another: ("stored", name) says which
Epilogue, the score: statements over the INDEX Vars "batch", "row", "column" and Var("acc", "f32"), the sum; the last is
a Let of "score", f32. It stores nothing, and may be asked for any element, in any order, more than once.
"""
from __future__ import annotations

import math
from typing import NamedTuple

from hloc.analysis.attention import (
    Attention,
    attention_in,
    batch,
    contracting,
    free,
    free_of_side,
    multiply_adds,
)
from hloc.errors import UnsupportedError
from hloc.ir import ELEMENT_TYPES, Instruction
from hloc.kernels import indexing
from hloc.kernels.elements import Indices
from hloc.kernels.group import Group, KernelCall, Lowered, Outline, kernel_name, origin_lines
from hloc.kernels.ir import Buffer, Cost, Expr, Let, Stmt, Tile, Var
from hloc.kernels.operands import Access, OperandKernels
from hloc.kernels.rules_loops import product_result
from hloc.machine import Machine

BATCH, ROW, COLUMN, SCORE = "batch", "row", "column", "score"
NAMES = ("query", "key", "value")
OPERATIONS_OF_SOFTMAX = 20      # per score


class Level(NamedTuple):
    """A dimension of the scores that is not the keys': its size, and the stride of a step along it in the scores and in
    each array."""

    size: int
    scores: int
    query: int
    key: int
    value: int
    result: int
    largest: int = 0
    sum: int = 0


def lower_attention(group: Group, machine: Machine) -> Lowered:
    """A fusion of two dots with a softmax between them."""
    attention = attention_in(group.instruction.get("calls"))
    if attention is None:
        raise UnsupportedError("two products that are no attention, in one fusion", group.instruction.span)
    return _Lowering(group, machine, attention).lowered()


class _Lowering:
    """The kernels of one attention."""

    def __init__(self, group: Group, machine: Machine, attention: Attention):
        self.group = group
        self.attention = attention
        self.first, self.second = attention.scores, attention.output
        self.key_side = attention.side
        self.slot = attention.slot
        self.operands = OperandKernels(group, machine)
        self.root = next(r for r in group.roots if r not in (attention.largest, attention.sum))

    def lowered(self) -> Lowered:
        sides = [self.access(*o) for o in self.orders()]
        levels = merged(self.levels(*sides))
        nothing = Level(*[1, *[0] * (len(Level._fields) - 1)])
        row = max((n for n in levels if n.key == n.value == 0), key=lambda n: n.size, default=nothing)
        tile = self.tile(sides, row, [n for n in levels if n is not row])
        return Lowered((*self.operands.calls, tile), tuple(self.operands.scratch))

    def orders(self) -> list[tuple[Instruction, tuple[tuple[int, ...], ...]]]:
        """The operands with their dimensions, in the order that suits where they must be copied: of the batch, of the
        queries or keys, of the depth; of the values: batch, keys, features."""
        q, k, v = 1 - self.key_side, self.key_side, 1 - self.slot
        depth = sorted(zip(contracting(self.first, k), contracting(self.first, q)))
        walk = self.attention.walks[self.attention.weights]
        summed = sorted(zip(contracting(self.second, self.slot), contracting(self.second, v)),
                        key=lambda pair: -walk[pair[0]][1])
        return [
            (self.first.operands[q], (batch(self.first, q), free(self.first, q), tuple(d for _, d in depth))),
            (self.first.operands[k], (batch(self.first, k), free(self.first, k), tuple(d for d, _ in depth))),
            (self.second.operands[v], (batch(self.second, v), tuple(d for _, d in summed), free(self.second, v)))]

    def access(self, operand: Instruction, parts: tuple[tuple[int, ...], ...]) -> Operand:
        """An operand in memory, with its depth, keys and features one stride each."""
        type = operand.shape.element_type
        order = tuple(d for part in parts for d in part)
        given = Operand(self.operands.access(operand, type, order), operand.shape.dimensions, parts)
        if operand is self.first.operands[1 - self.key_side]:
            alone = [given.stride(2)]
        else:
            alone = [given.stride(1), given.stride(2)]
        return given if None not in alone else given._replace(access=self.operands.in_order(operand, type, order))

    # -- dimensions

    def levels(self, query: Operand, key: Operand, value: Operand) -> list[Level]:
        """The dimensions of the scores but the keys', outermost first, each as fine as both products see it."""
        walks = [self.walks(query, key), self.walks_of_weights(value)]
        walks += [self.walks_of_state(reduce) for reduce in (self.attention.largest, self.attention.sum)]
        return [Level(w.size, w.distance, *w.steps) for w in common(walks)]

    def walks(self, query: Operand, key: Operand) -> list[Walk]:
        """The first dot's dimensions without the keys: steps in query and in key."""
        dimensions = self.first.shape.dimensions
        strides = indexing.row_major_strides(dimensions)
        found = [Walk(dimensions[n], strides[n], (query.strides[q], key.strides[k]))
                 for n, (q, k) in enumerate(zip(query.parts[0], key.parts[0]))]
        places = free_of_side(self.first, 1 - self.key_side)
        found += [Walk(dimensions[n], strides[n], (query.strides[q], 0)) for n, q in zip(places, query.parts[1])]
        return found

    def walks_of_weights(self, value: Operand) -> list[Walk]:
        """The same of the second dot's weights: steps in value and in the result."""
        weights, results = self.attention.walks[self.attention.weights], self.result_strides()
        found = [Walk(*weights[d], (value.strides[v], results[n]))
                 for n, (d, v) in enumerate(zip(batch(self.second, self.slot), value.parts[0]))]
        found += [Walk(*weights[d], (0, results[n]))
                  for d, n in zip(free(self.second, self.slot), free_of_side(self.second, self.slot))]
        return found

    def walks_of_state(self, reduce: Instruction) -> list[Walk]:
        """The rows: steps in what is found for each of them."""
        walk = self.attention.walks[reduce.operands[0]]
        kept = [d for d in range(len(walk)) if d not in reduce.get("dimensions")]
        return [Walk(*walk[d], (s,)) for d, s in zip(kept, indexing.row_major_strides(reduce.shape.dimensions))]

    def result_strides(self) -> list[int]:
        """How far the result is apart along each dimension of the second dot."""
        return strides_of_result(self.group, self.second, self.root)

    # -- the tile

    def tile(self, sides: list[Operand], row: Level, others: list[Level]) -> KernelCall:
        query, key, value = sides
        outline = Outline(self.group)
        score = self.score(outline, row, others)
        stored = outline.result_buffer(self.group.roots.index(self.root))
        states = tuple(
            (outline.result_buffer(self.group.roots.index(reduce)), what, getattr(row, what),
             tuple(getattr(n, what) for n in others))
            for what, reduce in (("largest", self.attention.largest), ("sum", self.attention.sum))
            if reduce in self.group.roots)
        buffers, arguments = outline.buffers()
        columns, feature = self.attention.keys[0], one_walk(self.features())
        sizes = (row.size, columns, query.size(2), value.size(2))
        parameters = (
            ("types", tuple(s.access.type for s in sides)), ("sizes", sizes),
            ("batches", tuple(n.size for n in others)),
            ("query", (query.access.offset, row.query, query.stride(2), tuple(n.query for n in others))),
            ("key", (key.access.offset, key.stride(1), key.stride(2), tuple(n.key for n in others))),
            ("value", (value.access.offset, value.stride(1), value.stride(2), tuple(n.value for n in others))),
            ("result", (row.result, feature, tuple(n.result for n in others))),
            *((("states", states), ("stored", stored)) if states else ()))
        operands = tuple(Buffer(name, s.access.type, s.access.size) for name, s in zip(NAMES, sides))
        moved = sum(b.size * ELEMENT_TYPES[b.type].bytes for b in (*operands, *buffers))
        work = 2 * (multiply_adds(self.first) + multiply_adds(self.second))
        work += OPERATIONS_OF_SOFTMAX * self.first.shape.num_elements
        tile = Tile(kernel_name(self.group), "attention", operands + buffers, parameters, score,
                    cost=Cost(moved, work), origin=origin_lines(self.group))
        return KernelCall(tile, (*(s.access.argument for s in sides), *arguments))

    def features(self) -> list[tuple[int, int]]:
        """(size, step in the result) of the features' dimensions."""
        results = self.result_strides()
        return [(self.second.shape.dimensions[n], results[n]) for n in free_of_side(self.second, 1 - self.slot)]

    def score(self, outline: Outline, row: Level, others: list[Level]) -> tuple[Stmt, ...]:
        """Statements that make a score of Var("acc")."""
        scores, score = self.first, self.attention.score
        counted = indexing.variable(BATCH, math.prod(n.size for n in others))
        parts = zip(indexing.delinearize(counted, [n.size for n in others]), others)
        position = indexing.scale(indexing.variable(ROW, row.size), row.scores)
        position = indexing.add(position, indexing.scale(
            indexing.variable(COLUMN, self.attention.keys[0]), self.attention.keys[1]))
        for index, level in parts:
            position = indexing.add(position, indexing.scale(index, level.scores))

        def read(index: Indices) -> Expr:
            if indexing.linearize(index, scores.shape.dimensions) != position:
                raise UnsupportedError("a product read at another position than the one being computed", scores.span)
            return product_result(Var("acc", "f32"), scores.shape.element_type)
        outline.elements.sources[scores] = read
        value = outline.elements.value(score, places(position, self.attention.walks[score], scores.shape.num_elements))
        return (*outline.builder.body(), Let(SCORE, value))


# -- dimensions --------------------------------------------------------------------------------------------------------

def strides_of_result(group: Group, dot: Instruction, root: Instruction) -> list[int]:
    """How far a result, made of a dot by conversions and transpositions, is apart along each dimension of the dot."""
    names = [f"d{n}" for n in range(dot.shape.rank)]
    index = tuple(indexing.variable(n, size) for n, size in zip(names, dot.shape.dimensions))
    for node in reversed(tail_of_result(group, dot, root)):
        if node.opcode == "transpose":
            index = tuple(index[d] for d in node.get("dimensions"))
        elif node.opcode in ("reshape", "bitcast"):
            index = indexing.reshape(index, node.operands[0].shape.dimensions, node.shape.dimensions)
    position = indexing.linearize(index, root.shape.dimensions)
    strides = [indexing.coefficient_of(position, n) for n in names]
    if None in strides:
        raise UnsupportedError("the result of an attention lies by no strides", group.instruction.span)
    return strides


def tail_of_result(group: Group, dot: Instruction, root: Instruction) -> list[Instruction]:
    """From the root back to a dot, without it."""
    depends = {dot}
    for member in group.members:
        if any(o in depends for o in member.operands):
            depends.add(member)
    node, found = root, []
    while node is not dot:
        found.append(node)
        node = next(o for o in node.operands if o in depends)
    return found


class Walk(NamedTuple):
    """A dimension: its size, how far its elements are apart in the flat scores, and in other arrays."""

    size: int
    distance: int
    steps: tuple[int, ...]

    def split(self, inner: int) -> tuple[Walk, Walk]:
        """As an outer dimension and an inner one of that size."""
        outer = Walk(self.size // inner, self.distance * inner, tuple(s * inner for s in self.steps))
        return outer, self._replace(size=inner)


class Operand(NamedTuple):
    """An operand where it lies, and its dimensions in three parts."""

    access: Access
    dimensions: tuple[int, ...]
    parts: tuple[tuple[int, ...], ...]

    @property
    def strides(self) -> tuple[int, ...]:
        return self.access.strides

    def stride(self, part: int) -> int | None:
        """Of all dimensions of one part walked as one; None where no stride does."""
        return one_walk([(self.dimensions[d], self.strides[d]) for d in self.parts[part]])

    def size(self, part: int) -> int:
        return math.prod(self.dimensions[d] for d in self.parts[part])


def one_walk(dimensions: list[tuple[int, int]]) -> int | None:
    """The stride by which dimensions (size, stride), outermost first, are walked as one; None where there is none."""
    whole = [d for d in dimensions if d[0] > 1]
    for outer, inner in zip(whole, whole[1:]):
        if outer[1] != inner[0] * inner[1]:
            return None
    return whole[-1][1] if whole else 0


def places(position: indexing.Index, walk: tuple[tuple[int, int], ...], elements: int) -> Indices:
    """The multi-index, in an array that walks so, of a flat position in the scores. Step by step from the innermost
    dimension, so that divisions cancel."""
    result = [indexing.ZERO] * len(walk)
    rest, divided = position, 1
    for d in sorted((d for d, (size, _) in enumerate(walk) if size > 1), key=lambda d: walk[d][1]):
        size, distance = walk[d]
        rest, divided = indexing.floor_divide(rest, distance // divided), distance
        result[d] = rest if size * distance == elements else indexing.modulo(rest, size)
    return tuple(result)


def common(lists: list[list[Walk]]) -> list[Walk]:
    """Lists of dimensions of the same elements as one list, outermost first: those that differ in size are split.
    UnsupportedError where they do not divide one another."""
    first = _inner_first(lists[0])
    for walks in lists[1:]:
        first = _common(first, _inner_first(walks))
    return first[::-1]


def _inner_first(walks: list[Walk]) -> list[Walk]:
    return sorted((w for w in walks if w.size > 1), key=lambda w: w.distance)


def _common(left: list[Walk], right: list[Walk]) -> list[Walk]:
    left, right, found = [*left], [*right], []
    while left and right:
        a, b = left.pop(0), right.pop(0)
        inner = math.gcd(a.size, b.size)
        if a.distance != b.distance or inner != min(a.size, b.size):
            raise UnsupportedError("the products of an attention disagree on its dimensions")
        if a.size > inner:
            outer, a = a.split(inner)
            left.insert(0, outer)
        if b.size > inner:
            outer, b = b.split(inner)
            right.insert(0, outer)
        found.append(Walk(inner, a.distance, a.steps + b.steps))
    return found


def merged(levels: list[Level]) -> list[Level]:
    """Neighbours that all arrays walk through as one dimension, joined."""
    result: list[Level] = []
    for level in levels:
        if result and all(outer == level.size * inner for outer, inner in zip(result[-1][1:], level[1:])):
            result[-1] = level._replace(size=level.size * result[-1].size)
        else:
            result.append(level)
    return result
