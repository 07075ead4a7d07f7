"""Replaces a matmul of complex matrices by two real matmuls.

    y = c64[64,64] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        =>   k = [real(a), imag(a)]                                       along the contracting dimension
             y = complex(k @ [real(b), -imag(b)], k @ [imag(b), real(b)])

The number of multiplications is the same, but the kernels for real numbers use all vector lanes. Small matmuls stay
loops. The CPU has library kernels for complex matmuls, which need fewer copies.
"""
from __future__ import annotations

import math

from hloc.ir import Instruction, Module, array
from hloc.passes.context import PassContext
from hloc.passes.expressions import ALL_BITS, Expressions
from hloc.passes.rewriter import Rewriter, rewrite_module

PARTS = {"c64": "f32", "c128": "f64"}
SMALLEST = 4096                     # multiply-adds from which a real matmul has a library kernel


def complex_dot_rewriter(module: Module, context: PassContext) -> bool:
    """True if there was a matmul of complex matrices."""
    return context.target != "cpu" and rewrite_module(module, visit, revisit=False, opcodes=("dot",))


def visit(dot: Instruction, rewriter: Rewriter) -> Instruction | None:
    if len({o.shape.element_type for o in dot.operands} | {dot.shape.element_type}) > 1 or len(dot.operands) != 2:
        return None
    part = PARTS.get(dot.shape.element_type)
    along, across = (dot.get(f"{side}_contracting_dims", ()) for side in ("lhs", "rhs"))
    if part is None or not along or dot.get("sparsity") is not None:
        return None
    if dot.shape.num_elements * math.prod(dot.operands[0].shape.dimensions[d] for d in along) < SMALLEST:
        return None
    e = Expressions(rewriter, dot.span)
    (a, b), (c, d) = ((e.op("real", x), e.op("imag", x)) for x in dot.operands)
    left = e.op("concatenate", a, b, dimensions=(along[0],))

    def product(first: Instruction, second: Instruction) -> Instruction:
        right = e.op("concatenate", first, second, dimensions=(across[0],))
        attributes = {**dot.attributes, "operand_precision": ALL_BITS}          # for f32 alone less may be enough
        return e.op("dot", left, right, shape=array(part, *dot.shape.dimensions), **attributes)
    return e.op("complex", product(c, e.op("negate", d)), product(d, c), shape=dot.shape)
