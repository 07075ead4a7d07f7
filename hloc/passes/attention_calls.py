"""Writes cuDNN's attention calls (hloc/ops/vendors/cudnn_attention.py) as the products and the softmax that they are.

    (bf16[2,4,8,16], u8[0]) custom-call(q, k, v), custom_call_target="__cudnn$fmhaSoftmax"
        =>   tuple(dot(softmax(scale * dot(q, k)), v), 0)          in f32, rounded once
"""
from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from hloc.ir import Instruction, Module, array
from hloc.ops.products import DotDimensions
from hloc.ops.vendors.cudnn_attention import Attention, attention_of
from hloc.ops.vendors.library_configs import dot_attributes
from hloc.passes.expressions import Expressions

UNSEEN = -1e30              # a score whose weight is zero beside any other


def forward(module: Module, e: Expressions, instruction: Instruction) -> list[Instruction]:
    """The output and, if it is a result, the logarithms."""
    call = attention_of(instruction)
    count = 3 + call.bias
    q, k, v, *bias = (e.convert(o, "f32") for o in instruction.operands[:count])
    k, v = for_each_head(e, call, k, call.scores), for_each_head(e, call, v, call.values)
    scores = scores_of(e, call, q, k, bias)
    seen = seen_at(e, call, scores, instruction.operands[count:])
    if seen is not None:
        scores = e.chosen(seen, scores, e.like(UNSEEN if may_be_blind(call) else -math.inf, scores))
    largest = over_rows(module, e, scores, "maximum", -math.inf)
    parts = e.op("exponential", e.op("subtract", scores, spread(e, largest, scores)))
    sums = over_rows(module, e, parts, "add", 0)
    made = [product(e, e.op("divide", parts, spread(e, sums, scores)), v, call.values)]
    if len(instruction.shape.tuple_shapes) == 3:
        made.append(e.op("add", largest, e.op("log", sums)))
    if not may_be_blind(call):
        return made
    sees = sees_anything(e, call, scores, instruction.operands[count:])
    return [e.chosen(spread(e, sees, made[0]), made[0], e.like(0, made[0])),
            *(e.chosen(sees, m, e.like(-math.inf, m)) for m in made[1:])]


def backward(module: Module, e: Expressions, instruction: Instruction) -> list[Instruction]:
    """The gradients of q, k and v, and of the bias if it is a result."""
    call = attention_of(instruction)
    assert call.sums is not None and call.rows is not None and call.columns is not None      # of a backward call
    count = 6 + call.bias
    q, k, v, logarithms, gradient, *bias, out = (e.convert(o, "f32") for o in instruction.operands[:count])
    k, v = for_each_head(e, call, k, call.scores), for_each_head(e, call, v, call.scores)
    scores = scores_of(e, call, q, k, bias)
    seen = seen_at(e, call, scores, instruction.operands[count:])
    weights = e.op("exponential", e.op("subtract", scores, spread(e, logarithms, scores)))
    weights = weights if seen is None else e.chosen(seen, weights, e.like(0, weights))
    taken = spread(e, product(e, gradient, out, call.sums), scores)
    inner = e.op("multiply", weights, e.op("subtract", product(e, gradient, v, call.scores), taken))
    change = e.op("multiply", inner, e.like(call.scale, inner))
    made = [product(e, change, k, call.rows), of_each_group(module, e, call, product(e, change, q, call.columns)),
            of_each_group(module, e, call, product(e, weights, gradient, call.values))]
    if call.bias_gradient:
        summed = tuple(d for d, n in enumerate(bias[0].shape.dimensions) if n == 1)
        made.append(e.reduce(module, inner, "add", summed, 0) if summed else inner)
    return made


def may_be_blind(call: Attention) -> bool:
    """Whether a row may have only masked scores."""
    return call.padding or call.window > 0


def seen_at(e: Expressions, call: Attention, scores: Instruction, lengths: Sequence[Instruction]) -> Instruction | None:
    """The mask of allowed scores; None if all are."""
    sizes = scores.shape.dimensions
    row, column = (e.iota("s32", sizes, d) for d in (2, 3))
    parts = [e.compare(row, "GE", column)] if call.causal else []
    if call.window:
        parts.append(e.compare(column, "GT", e.op("subtract", row, e.like(call.window, row))))
    if call.padding:
        parts += [e.compare(place, "LT", e.broadcast(e.convert(length, "s32"), (0,), sizes))
                  for place, length in zip((row, column), lengths)]
    return functools.reduce(lambda a, b: e.op("and", a, b), parts) if parts else None


def sees_anything(e: Expressions, call: Attention, scores: Instruction, lengths: Sequence[Instruction]) -> Instruction:
    """The range of allowed keys of each row."""
    *sizes, columns = scores.shape.dimensions
    row = e.iota("s32", sizes, 2)
    first, end = e.like(0, row), e.like(columns, row)
    if call.window:
        first = e.op("maximum", first, e.op("subtract", row, e.like(call.window - 1, row)))
    if call.causal:
        end = e.op("minimum", end, e.op("add", row, e.like(1, row)))
    if not call.padding:
        return e.compare(first, "LT", end)
    rows, keys = (e.broadcast(e.convert(length, "s32"), (0,), sizes) for length in lengths)
    return e.op("and", e.compare(first, "LT", e.op("minimum", end, keys)), e.compare(row, "LT", rows))


def for_each_head(e: Expressions, call: Attention, x: Instruction, dims: DotDimensions) -> Instruction:
    """Keys or values with as many heads as the queries."""
    if call.groups == 1:
        return x
    head, sizes = dims.rhs_batch[1], x.shape.dimensions
    split = (*sizes[:head + 1], call.groups, *sizes[head + 1:])
    wide = e.broadcast(x, [d for d in range(5) if d != head + 1], split)
    return e.reshape(wide, *sizes[:head], sizes[head] * call.groups, *sizes[head + 1:])


def of_each_group(module: Module, e: Expressions, call: Attention, x: Instruction) -> Instruction:
    """Gradients of keys or values, summed over the heads of the queries they serve."""
    if call.groups == 1:
        return x
    batch, heads, *rest = x.shape.dimensions
    return e.reduce(module, e.reshape(x, batch, heads // call.groups, call.groups, *rest), "add", (2,), 0)


def scores_of(e: Expressions, call: Attention, q: Instruction, k: Instruction, bias: list[Instruction]) -> Instruction:
    scores = product(e, q, k, call.scores)
    scores = e.op("multiply", scores, e.like(call.scale, scores))
    sizes = scores.shape.dimensions
    if bias:
        kept = [d for d, n in enumerate(bias[0].shape.dimensions) if n == sizes[d]]
        part = e.reshape(bias[0], *(sizes[d] for d in kept))
        scores = e.op("add", scores, e.broadcast(part, kept, sizes))
    return scores


def product(e: Expressions, a: Instruction, b: Instruction, dims: DotDimensions) -> Instruction:
    """A dot: batch dimensions, then the free ones of a, then of b."""
    sizes = [a.shape.dimensions[d] for d in dims.lhs_batch]
    for x, batch, contracting in ((a, dims.lhs_batch, dims.lhs_contracting), (b, dims.rhs_batch, dims.rhs_contracting)):
        sizes += [n for d, n in enumerate(x.shape.dimensions) if d not in (*batch, *contracting)]
    return e.op("dot", a, b, shape=array("f32", *sizes), **dot_attributes(dims))


def over_rows(module: Module, e: Expressions, x: Instruction, opcode: str, start: float) -> Instruction:
    return e.reduce(module, x, opcode, (3,), start)


def spread(e: Expressions, rows: Instruction, like: Instruction) -> Instruction:
    """A number of each row, broadcast to its elements."""
    return e.broadcast(rows, (0, 1, 2), like.shape.dimensions)
