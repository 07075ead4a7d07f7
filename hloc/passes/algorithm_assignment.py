"""Gives each f32 matmul and convolution the algorithm by which tensor cores compute it.

    d = f32[8,8] dot(x, y)                                     =>  d = f32[8,8] dot(x, y), algorithm=dot_tf32_tf32_f32
    d = f32[8,8] dot(x, y), operand_precision={high,high}      =>  ... algorithm=dot_tf32_tf32_f32_x3
    d = f32[8,8] dot(x, y), operand_precision={highest,highest}    stays: all bits are multiplied

XLA:GPU multiplies f32 as TF32 by default, too: 8 bits of exponent and 10 of mantissa, sums in f32. Three products of
two parts of each operand keep 21 bits. The option "f32": "exact" (or HLOC_F32=exact) leaves all as they are. HLO knows
the attribute for dots; hloc reads it from convolutions, too.
"""
from __future__ import annotations

from hloc.ir import Instruction, Module
from hloc.passes.context import PassContext
from hloc.passes.precision import PRODUCTS, precision_asked
from hloc.passes.rewriter import Rewriter, rewrite_module

ALGORITHMS = {"default": "dot_tf32_tf32_f32", "high": "dot_tf32_tf32_f32_x3"}


def algorithm_assignment(module: Module, context: PassContext) -> bool:
    """True if a product got an algorithm."""
    if context.option("f32") == "exact":
        return False
    return rewrite_module(module, visit, revisit=False, opcodes=PRODUCTS, expands=True)


def visit(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    algorithm = ALGORITHMS.get(precision_asked(instruction))
    types = {o.shape.element_type for o in instruction.operands[:2]}
    if algorithm is None or instruction.get("algorithm") or types != {"f32"}:
        return None
    return rewriter.change(instruction, algorithm=algorithm)
