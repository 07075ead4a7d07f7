"""Writes a scatter that overwrites one slice at a known place as dynamic-update-slice.

    s = f32[8,4] scatter(x, constant({2}), u), update_window_dims={0}, inserted_window_dims={0},
        scatter_dims_to_operand_dims={0}, index_vector_dim=0, to_apply=f          // f returns its second parameter
    =>
    s = f32[8,4] dynamic-update-slice(x, f32[1,4] reshape(u), 2, 0)

The place must be known: a scatter outside the array does nothing, a dynamic-update-slice moves inside.
"""
from __future__ import annotations

import numpy as np

from hloc.ir import Instruction, Module
from hloc.passes.context import PassContext
from hloc.passes.patterns import reshape, splat
from hloc.passes.rewriter import Rewriter, rewrite_module


def scatter_simplifier(module: Module, context: PassContext) -> bool:
    """Write a scatter to one known place as dynamic-update-slice. True if a scatter went."""
    return rewrite_module(module, simplify_scatter, opcodes=("scatter",))


def simplify_scatter(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    if len(instruction.operands) != 3 or not overwrites(instruction):
        return None
    x, indices, update = instruction.operands
    place = instruction.get("scatter_dims_to_operand_dims")
    known = constant_values(indices)
    if known is None or len(known) != len(place) or instruction.shape.dynamic_dimensions:
        return None
    window = window_sizes(instruction)
    starts = [0] * x.shape.rank
    for dimension, start in zip(place, known):
        starts[dimension] = int(start)
    if any(s < 0 or s + w > size for s, w, size in zip(starts, window, x.shape.dimensions)):
        return None
    update = reshape(rewriter, update, update.shape.with_dimensions(window))
    scalars = [rewriter.constant(s, "s32" if max(starts) < 1 << 31 else "s64") for s in starts]
    return rewriter.add("dynamic-update-slice", instruction.shape, [x, update, *scalars])


def overwrites(instruction: Instruction) -> bool:
    """True where the combining computation returns the update."""
    root = instruction.get("to_apply").root
    return root.opcode == "parameter" and root.parameter_number == 1


def constant_values(indices: Instruction) -> np.ndarray | None:
    """The indices as a flat array where they are known, else None."""
    if indices.opcode == "constant" and indices.literal is not None:
        return indices.literal.reshape(-1)
    value = splat(indices)
    return None if value is None else np.full(indices.shape.num_elements, value)


def window_sizes(instruction: Instruction) -> list[int]:
    """The size of the updated slice in every dimension of the operand."""
    x, _, update = instruction.operands
    window = [update.shape.dimensions[d] for d in instruction.get("update_window_dims", ())]
    dropped = {*instruction.get("inserted_window_dims", ()), *instruction.get("input_batching_dims", ())}
    sizes = iter(window)
    return [1 if d in dropped else next(sizes) for d in range(x.shape.rank)]
