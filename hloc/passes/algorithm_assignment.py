"""Gives each f32 matmul and convolution the algorithm by which tensor cores compute it.

    d = f32[8,8] dot(x, y)                                     =>  d = f32[8,8] dot(x, y), algorithm=dot_tf32_tf32_f32
    d = f32[8,8] dot(x, y), operand_precision={high,high}      =>  ... algorithm=dot_tf32_tf32_f32_x3
    d = f32[8,8] dot(x, y), operand_precision={highest,highest}    stays: all bits are multiplied

XLA:GPU multiplies f32 as TF32 by default, too: 8 bits of exponent and 10 of mantissa, sums in f32. Three products of
two parts of each operand keep 21 bits. The option "f32": "exact" (or HLOC_F32=exact) leaves all as they are.
hloc/ops/algorithm.py says where convolutions and ragged dots hold it.
"""
from __future__ import annotations

from hloc.ir import Instruction, Module, reachable_computations
from hloc.ops.algorithm import ALGORITHMS, algorithm_of, with_algorithm
from hloc.passes.context import PassContext
from hloc.passes.precision import PRODUCTS, precision_asked


def algorithm_assignment(module: Module, context: PassContext) -> bool:
    """True if a product got an algorithm."""
    if context.option("f32") == "exact":
        return False
    found = [i for c in reachable_computations(module.entry) for i in c.instructions if i.opcode in PRODUCTS]
    return sum([assign(i) for i in found]) > 0


def assign(product: Instruction) -> bool:
    """Whether a product gets an algorithm; it keeps its name."""
    algorithm = ALGORITHMS.get(precision_asked(product))
    types = {o.shape.element_type for o in product.operands[:2]}
    if algorithm is None or algorithm_of(product) or types != {"f32"}:
        return False
    product.attributes = with_algorithm(product, algorithm)
    return True
