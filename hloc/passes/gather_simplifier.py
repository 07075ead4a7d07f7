"""Replaces a gather of one slice by dynamic-slice and reshape.

    g = f32[4] gather(x, i), offset_dims={0}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=0,
        slice_sizes={1,4}                                     // x: f32[8,4], i: s32[1]
    =>
    g = f32[4] reshape(f32[1,4] dynamic-slice(x, i, 0))

Both clamp the start, so they mean the same.
"""
from __future__ import annotations

import math

from hloc.ir import Instruction, Module, SliceDim
from hloc.passes.context import PassContext
from hloc.passes.patterns import full, reshape
from hloc.passes.rewriter import Rewriter, rewrite_module


def gather_simplifier(module: Module, context: PassContext) -> bool:
    """Replace gathers of one slice by dynamic-slice. True if there was one."""
    return rewrite_module(module, simplify_gather, opcodes=("gather",))


def simplify_gather(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    if instruction.shape.dynamic_dimensions or 0 in instruction.shape.dimensions:
        return None
    x, indices = instruction.operands
    starts_at = instruction.get("start_index_map")
    sizes = instruction.get("slice_sizes")
    if indices.shape.num_elements != len(starts_at) or instruction.shape.num_elements != math.prod(sizes):
        return None                                                          # several slices
    zero = None
    starts: list[Instruction] = []
    for dimension in range(x.shape.rank):
        if dimension in starts_at:
            starts.append(element(rewriter, indices, starts_at.index(dimension)))
        else:
            zero = zero or full(rewriter, 0, indices.shape.with_dimensions(()))
            starts.append(zero)
    taken = rewriter.add("dynamic-slice", x.shape.with_dimensions(sizes), [x, *starts],
                         {"dynamic_slice_sizes": tuple(sizes)})
    return reshape(rewriter, taken, instruction.shape)


def element(rewriter: Rewriter, vector: Instruction, number: int) -> Instruction:
    """Element `number` of an array, as a scalar, counting in row-major order."""
    count = vector.shape.num_elements
    scalar = vector.shape.with_dimensions(())
    if count == 1:
        return reshape(rewriter, vector, scalar)
    flat = reshape(rewriter, vector, vector.shape.with_dimensions((count,)))
    one = rewriter.add("slice", vector.shape.with_dimensions((1,)), [flat], {"slice": (SliceDim(number, number + 1),)})
    return rewriter.add("reshape", scalar, [one])
