"""Writes cuDNN's attention calls as the products and the softmax that they stand for (hloc/ops/attention_calls.py).

    (bf16[2,4,8,16], u8[0]) custom-call(q, k, v), custom_call_target="__cudnn$fmhaSoftmax"
        =>   tuple(dot(softmax(scale * dot(q, k)), v), 0)          in f32, rounded once
"""
from __future__ import annotations

import math

from hloc.ir import Instruction, Module, array
from hloc.ops.attention_calls import Attention, attention_of
from hloc.ops.library_configs import dot_attributes
from hloc.ops.products import DotDimensions
from hloc.passes.expressions import Expressions


def forward(module: Module, e: Expressions, instruction: Instruction) -> list[Instruction]:
    """out and, where it is a result, the logarithms."""
    call = attention_of(instruction)
    q, k, v, *bias = (e.convert(o, "f32") for o in instruction.operands)
    scores = scores_of(e, call, q, k, bias)
    largest = over_rows(module, e, scores, "maximum", -math.inf)
    parts = e.op("exponential", e.op("subtract", scores, spread(e, largest, scores)))
    sums = over_rows(module, e, parts, "add", 0)
    made = [product(e, e.op("divide", parts, spread(e, sums, scores)), v, call.values)]
    if len(instruction.shape.tuple_shapes) == 3:
        made.append(e.op("add", largest, e.op("log", sums)))
    return made


def backward(module: Module, e: Expressions, instruction: Instruction) -> list[Instruction]:
    """The gradients of q, k and v."""
    call = attention_of(instruction)
    q, k, v, logarithms, gradient, *bias, out = (e.convert(o, "f32") for o in instruction.operands)
    scores = scores_of(e, call, q, k, bias)
    weights = e.op("exponential", e.op("subtract", scores, spread(e, logarithms, scores)))
    taken = spread(e, product(e, gradient, out, call.sums), scores)
    inner = e.op("subtract", product(e, gradient, v, call.scores), taken)
    change = e.op("multiply", e.op("multiply", weights, inner), e.like(call.scale, inner))
    return [product(e, change, k, call.rows), product(e, change, q, call.columns),
            product(e, weights, gradient, call.values)]


def scores_of(e: Expressions, call: Attention, q: Instruction, k: Instruction, bias: list[Instruction]) -> Instruction:
    scores = product(e, q, k, call.scores)
    scores = e.op("multiply", scores, e.like(call.scale, scores))
    sizes = scores.shape.dimensions
    if bias:
        kept = [d for d, n in enumerate(bias[0].shape.dimensions) if n == sizes[d]]
        part = e.reshape(bias[0], *(sizes[d] for d in kept))
        scores = e.op("add", scores, e.broadcast(part, kept, sizes))
    if call.causal:
        row, column = (e.iota("s32", sizes, d) for d in (2, 3))
        scores = e.chosen(e.compare(row, "GE", column), scores, e.like(-math.inf, scores))
    return scores


def product(e: Expressions, a: Instruction, b: Instruction, dims: DotDimensions) -> Instruction:
    """Batch dimensions, then what is left of a, then of b."""
    sizes = [a.shape.dimensions[d] for d in dims.lhs_batch]
    for x, batch, contracting in ((a, dims.lhs_batch, dims.lhs_contracting), (b, dims.rhs_batch, dims.rhs_contracting)):
        sizes += [n for d, n in enumerate(x.shape.dimensions) if d not in (*batch, *contracting)]
    return e.op("dot", a, b, shape=array("f32", *sizes), **dot_attributes(dims))


def over_rows(module: Module, e: Expressions, x: Instruction, opcode: str, start: float) -> Instruction:
    return e.reduce(module, x, opcode, (3,), start)


def spread(e: Expressions, rows: Instruction, like: Instruction) -> Instruction:
    """A number for each row, put at all of its elements."""
    return e.broadcast(rows, (0, 1, 2), like.shape.dimensions)
