"""Replaces arrays without elements by empty constants.

    z = f32[0,4] negate(x)        =>   z = f32[0,4] constant({})
"""
from __future__ import annotations

import numpy as np

from hloc.analysis.effects import has_side_effect
from hloc.ir import Instruction, Module, numpy_dtype
from hloc.passes.context import PassContext
from hloc.passes.rewriter import Rewriter, rewrite_module


def zero_sized_hlo_elimination(module: Module, context: PassContext) -> bool:
    """Replace empty arrays by constants. True if there was one."""
    return rewrite_module(module, make_empty_constant)


def make_empty_constant(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    shape = instruction.shape
    if not shape.is_array or 0 not in shape.dimensions or shape.dynamic_dimensions:
        return None
    if instruction.opcode in ("constant", "parameter") or has_side_effect(instruction):
        return None
    return rewriter.add("constant", shape, literal=np.empty(shape.dimensions, numpy_dtype(shape.element_type)))
