"""Gives a dot or convolution a result type that can hold its sums, and converts the result.

    r = s32[2,2] dot(f32[2,4] a, f32[4,2] b)   =>   p = f32[2,2] dot(a, b);  r = s32[2,2] convert(p)

Kernels multiply and add in the result's type (floats of less than 32 bits in f32). Where that type cannot hold the
operands' numbers (integers of floats, pred of integers, real of complex, 32 bits of 64), they would be lost before the
multiplication. f8e8m0fnu has no zero to begin a sum with. XLA's pass of this name does the same.
"""
from __future__ import annotations

from hloc.ir import ELEMENT_TYPES, Instruction, Module
from hloc.ops.products import sum_type
from hloc.passes.context import PassContext
from hloc.passes.rewriter import Rewriter, rewrite_module

PRODUCTS = ("dot", "convolution", "ragged-dot")


def result_caster(module: Module, context: PassContext) -> bool:
    """True if a dot or convolution got another result type."""
    return rewrite_module(module, visit, revisit=False, opcodes=PRODUCTS, fused=True)


def visit(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    if instruction.opcode not in PRODUCTS:
        return None
    result = instruction.shape.element_type
    lhs, rhs = (o.shape.element_type for o in instruction.operands[:2])
    wanted = sum_type(lhs, rhs, result)
    if result != "f8e8m0fnu" and (wanted == result or (wanted == "f32" and ELEMENT_TYPES[result].kind == "float")):
        return None
    product = rewriter.add(instruction.opcode, instruction.shape.with_element_type(wanted), list(instruction.operands),
                           dict(instruction.attributes))
    return rewriter.add("convert", instruction.shape, [product])
