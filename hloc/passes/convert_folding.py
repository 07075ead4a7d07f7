"""Lets a dot read two narrow operands without converting them first.

    a = f32[2,3] convert(x)  b = f32[3,4] convert(y)          // x: bf16[2,3], y: bf16[3,4]
    d = f32[2,4] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    =>
    d = f32[2,4] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}

The same for s8 or s16 converted to s32 or u32, in which sums wrap. Products of two bf16 or two f16 numbers are exact in
f32, so the result is the same; tensor cores multiply them. JAX writes such dots for gradients of dots with a preferred
type.
"""
from __future__ import annotations

from hloc.ir import Instruction, Module
from hloc.passes.context import PassContext
from hloc.passes.rewriter import Rewriter, rewrite_module

NARROW = {"f32": {"bf16", "f16"}, "s32": {"s8", "s16"}, "u32": {"s8", "s16"}}


def convert_folding(module: Module, context: PassContext) -> bool:
    """Let dots read narrow operands. True if conversions went into a dot."""
    return rewrite_module(module, fold_into_dot, revisit=False, opcodes=("dot",))


def fold_into_dot(dot: Instruction, rewriter: Rewriter) -> Instruction | None:
    """dot(convert(x), convert(y)) => dot(x, y)"""
    type = dot.shape.element_type
    if type not in NARROW or len(dot.operands) != 2 or dot.get("sparsity") is not None \
            or dot.get("algorithm") is not None or any(o.opcode != "convert" for o in dot.operands):
        return None
    given = [o.operands[0] for o in dot.operands]
    types = {x.shape.element_type for x in given}
    if len(types) != 1 or not types <= NARROW[type] or any(o.shape.element_type != type for o in dot.operands):
        return None
    return rewriter.change(dot, operands=given)
