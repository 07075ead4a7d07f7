"""Lets a dot read transposed operands in place.

    t = f32[3,2] transpose(x), dimensions={1,0}
    d = f32[3,4] dot(t, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    =>
    d = f32[3,4] dot(x, y), lhs_contracting_dims={0}, rhs_contracting_dims={0}

There may be a convert between the transpose and the dot. The result keeps its dimensions, so the transpose must not
change the order of the free dimensions.
"""
from __future__ import annotations

from typing import Any

from hloc.ir import Instruction, Module
from hloc.passes.algebraic_simplifier.products import free_dimensions
from hloc.passes.context import PassContext
from hloc.passes.rewriter import Rewriter, rewrite_module


def transpose_folding(module: Module, context: PassContext) -> bool:
    """Let dots read transposed operands in place. True if a transpose went into a dot."""
    return rewrite_module(module, fold_into_dot, opcodes=("dot",))


def fold_into_dot(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """dot(transpose(x), y) => dot(x, y) with other dimension numbers; the same for y"""
    if len(instruction.operands) != 2:
        return None
    return fold_side(instruction, 0, "lhs", rewriter) or fold_side(instruction, 1, "rhs", rewriter)


def fold_side(instruction: Instruction, slot: int, side: str, rewriter: Rewriter) -> Instruction | None:
    operand = instruction.operands[slot]
    through_convert = operand.opcode == "convert" and rewriter.uses(operand) == 1
    transpose = operand.operands[0] if through_convert else operand
    if transpose.opcode != "transpose":
        return None
    order = transpose.get("dimensions")
    batch = instruction.get(f"{side}_batch_dims", ())
    contracting = instruction.get(f"{side}_contracting_dims", ())
    free = [order[d] for d in free_dimensions(operand, batch, contracting)]
    if free != sorted(free):
        return None
    source = transpose.operands[0]
    if through_convert:
        source = rewriter.change(operand, operands=[source],
                                 shape=source.shape.with_element_type(operand.shape.element_type), sharding=None)
    operands = list(instruction.operands)
    operands[slot] = source
    dimensions: dict[str, Any] = {f"{side}_batch_dims": tuple(order[d] for d in batch) or None,
                  f"{side}_contracting_dims": tuple(order[d] for d in contracting)}
    return rewriter.change(instruction, operands=operands, **dimensions)
