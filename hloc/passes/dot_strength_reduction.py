"""Replaces dots of vectors by multiply and reduce.

    y = f32[] dot(a: f32[1000000], b: f32[1000000])
        =>   y = reduce(multiply(a, b)), to_apply=add

    both operands have no free dimension       a reduction reads them once, on all cores; their producers fuse into it
    one has none, and numbers are complex      the same, except on the CPU, which has library kernels for them

Other products of a matrix and a vector have kernels, and small ones are loops. For these the CPU has the vector first:
the result is a row, along which the following elementwise operations are vectorized.

    y = f32[500] dot(x: f32[500,20], w: f32[20])   =>   y = f32[500] dot(w, x)
"""
from __future__ import annotations

import math
from typing import NamedTuple

from hloc.ir import Instruction, Module
from hloc.passes.algebraic_simplifier.converts import holds
from hloc.passes.algebraic_simplifier.products import free_dimensions
from hloc.passes.context import PassContext
from hloc.passes.expressions import Expressions
from hloc.passes.patterns import reshape
from hloc.passes.rewriter import Rewriter, rewrite_module

SMALLEST = 4096                     # multiply-adds from which it is faster
SHALLOWEST = 64                     # elements in each sum; shorter ones stay loops
SUMS = {"bf16": "f32", "f16": "f32", **dict.fromkeys(("s8", "u8", "s16", "u16"), "s32"),    # integers wrap at the end
        **{t: t for t in ("f32", "f64", "c64", "c128", "s32", "u32", "s64", "u64")}}


class Side(NamedTuple):
    """An operand of a dot, and its dimensions."""

    operand: Instruction
    batch: tuple[int, ...]
    contracting: tuple[int, ...]
    free: tuple[int, ...]

    @staticmethod
    def of(dot: Instruction, number: int) -> Side:
        operand, name = dot.operands[number], ("lhs", "rhs")[number]
        batch, contracting = dot.get(f"{name}_batch_dims", ()), dot.get(f"{name}_contracting_dims", ())
        return Side(operand, batch, contracting, free_dimensions(operand, batch, contracting))

    @property
    def is_vector(self) -> bool:
        return all(self.operand.shape.dimensions[d] == 1 for d in self.free)


def dot_strength_reduction(module: Module, context: PassContext) -> bool:
    """True if there was a dot with a vector that became a reduction."""
    def visit(dot: Instruction, rewriter: Rewriter) -> Instruction | None:
        if len(dot.operands) != 2 or dot.get("sparsity") is not None or dot.get("algorithm") is not None:
            return None
        sides = Side.of(dot, 0), Side.of(dot, 1)
        type = SUMS.get(dot.shape.element_type)
        if type is None or not all(holds(type, s.operand.shape.element_type) for s in sides):
            return None
        if not _pays(dot, sides, context):
            return _with_vector_first(dot, sides, rewriter) if context.target == "cpu" else None
        return _added_up(module, Expressions(rewriter, dot.span), dot, sides, type)
    return rewrite_module(module, visit, revisit=False, opcodes=("dot",))


def _pays(dot: Instruction, sides: tuple[Side, Side], context: PassContext) -> bool:
    left = sides[0]
    depth = math.prod(left.operand.shape.dimensions[d] for d in left.contracting)
    if depth < 2 or depth * dot.shape.num_elements < SMALLEST:
        return False
    if dot.shape.element_type in ("c64", "c128") and context.target != "cpu":
        return any(s.is_vector for s in sides)
    return depth >= SHALLOWEST and all(s.is_vector for s in sides)


def _with_vector_first(dot: Instruction, sides: tuple[Side, Side], rewriter: Rewriter) -> Instruction | None:
    left, right = sides
    types = {s.operand.shape.element_type for s in sides}
    if left.batch or left.is_vector or not right.is_vector or len(types) > 1 or types & {"c64", "c128"}:
        return None
    row = [s.operand.shape.dimensions[d] for s in (right, left) for d in s.free]
    turned = rewriter.change(
        dot, operands=[right.operand, left.operand], shape=dot.shape.with_dimensions(row),
        lhs_contracting_dims=right.contracting, rhs_contracting_dims=left.contracting)
    return reshape(rewriter, turned, dot.shape)


def _added_up(module: Module, e: Expressions, dot: Instruction, sides: tuple[Side, Side], type: str) -> Instruction:
    """The sums, in the dimensions of the operand that is a matrix, then in the dot's."""
    matrix, vector = sides if sides[1].is_vector else sides[::-1]
    kept = [d for d in range(vector.operand.shape.rank) if d not in vector.free]
    place = dict(zip((*vector.batch, *vector.contracting), (*matrix.batch, *matrix.contracting)))
    x = e.convert(matrix.operand, type)
    v = e.reshape(e.convert(vector.operand, type), *(vector.operand.shape.dimensions[d] for d in kept))
    product = e.op("multiply", x, e.placed(v, [place[d] for d in kept], x.shape.dimensions))
    total = e.reduce(module, product, "add", matrix.contracting, 0)
    left = [d for d in range(x.shape.rank) if d not in matrix.contracting]
    order = tuple(left.index(d) for d in (*matrix.batch, *matrix.free))
    if order != tuple(range(len(order))):
        total = e.op("transpose", total, dimensions=order)
    return e.reshape(e.convert(total, dot.shape.element_type), *dot.shape.dimensions)
