"""Replaces scaled-dot by multiplications by the scales and a dot.

    y = bf16[8,8] scaled-dot(a, b, s, t)     =>   dot(a * broadcast(s), b * broadcast(t)), in f32, converted to bf16

An operand of f64 or complex numbers is multiplied by its scale in f64, or in complex numbers.

A scale belongs to a block of elements: s[i, j] to those of a[i * m : (i + 1) * m, j * n : (j + 1) * n].
"""
from __future__ import annotations

from hloc.ir import Instruction, Module, array
from hloc.ops.products import scaled_type, sum_type
from hloc.passes.context import PassContext
from hloc.passes.expressions import PRECISION, Expressions
from hloc.passes.rewriter import Rewriter, rewrite_module


def scaled_dot_rewriter(module: Module, context: PassContext) -> bool:
    """True if there was a scaled-dot."""
    return rewrite_module(module, visit, revisit=False, opcodes=("scaled-dot",), expands=True)


def visit(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    if instruction.opcode != "scaled-dot":
        return None
    e = Expressions(rewriter, instruction.span)
    lhs, rhs, lhs_scale, rhs_scale = instruction.operands
    attributes = {k: v for k, v in instruction.attributes.items() if k.endswith("_dims") or k in PRECISION}
    types = scaled_type(instruction, 0), scaled_type(instruction, 1)
    shape = array(sum_type(*types, instruction.shape.element_type), *instruction.shape.dimensions)
    product = e.op("dot", scaled(e, lhs, lhs_scale, types[0]), scaled(e, rhs, rhs_scale, types[1]), shape=shape,
                   **attributes)
    return e.convert(product, instruction.shape.element_type)


def scaled(e: Expressions, x: Instruction, scale: Instruction, type: str) -> Instruction:
    """Every element times the scale of its block."""
    factor = e.convert(scale, type)
    if scale.shape.rank:
        sizes = [n for d, s in zip(x.shape.dimensions, scale.shape.dimensions) for n in (s, d // s)]
        factor = e.broadcast(factor, range(0, len(sizes), 2), sizes)
        factor = e.reshape(factor, *x.shape.dimensions)
    else:
        factor = e.broadcast(factor, (), x.shape.dimensions)
    return e.op("multiply", e.convert(x, type), factor)
