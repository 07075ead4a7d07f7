"""Replaces what has no elements by an empty constant.

    z = f32[0,4] negate(x)        =>   z = f32[0,4] constant({})
"""
from __future__ import annotations

import numpy as np

from hloc.analysis.effects import has_side_effect
from hloc.ir import Instruction, Module, numpy_dtype
from hloc.passes.context import PassContext
from hloc.passes.rewriter import Rewriter, rewrite_module


def zero_sized_hlo_elimination(module: Module, context: PassContext) -> bool:
    """Make empty arrays constants. True if there was something without elements."""
    return rewrite_module(module, make_empty_constant)


def make_empty_constant(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    shape = instruction.shape
    if not shape.is_array or 0 not in shape.dimensions or shape.dynamic_dimensions:
        return None
    if instruction.opcode in ("constant", "parameter") or has_side_effect(instruction):
        return None
    return rewriter.add("constant", shape, literal=np.empty(shape.dimensions, numpy_dtype(shape.element_type)))
