"""Moves reshapes and transposes below elementwise operations, so that they meet and cancel, or reach a dot.

    a = f32[6] reshape(x)           // x, y: f32[2,3]
    b = f32[6] reshape(y)
    s = f32[6] add(a, b)            =>   s = f32[6] reshape(f32[2,3] add(x, y))

It moves them only if every operand is such a reshape without other users, a scalar, or one broadcast value, so that no
reshape is added. Converts between widths are left to convert_mover.
"""
from __future__ import annotations

from typing import Any

from hloc.ir import Instruction, Module
from hloc.ir.types import ELEMENT_TYPES
from hloc.ops.table import OPS
from hloc.passes.context import PassContext
from hloc.passes.patterns import scalar_source, spread
from hloc.passes.rewriter import Rewriter, rewrite_module

ELEMENTWISE = frozenset(op.opcode for op in OPS.values() if op.is_elementwise)
REARRANGING = ("reshape", "transpose")


def reshape_mover(module: Module, context: PassContext) -> bool:
    """Move reshapes and transposes below elementwise operations. True if one moved."""
    return rewrite_module(module, move_below, opcodes=ELEMENTWISE)


def move_below(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """op(reshape(x), reshape(y), ...) => reshape(op(x, y, ...))"""
    moved = next((o for o in instruction.operands if o.opcode in REARRANGING), None)
    if moved is None or changes_width(instruction):
        return None
    if instruction.shape.dynamic_dimensions:
        return None
    if not all(fits(operand, moved, instruction, rewriter) for operand in set(instruction.operands)):
        return None
    inner_shape = moved.operands[0].shape.with_element_type(instruction.shape.element_type)
    operands = [operand_before(operand, moved, rewriter) for operand in instruction.operands]
    new = rewriter.change(instruction, operands=operands, shape=inner_shape, sharding=None)
    return rewriter.add(moved.opcode, instruction.shape, [new], form(moved))


def changes_width(instruction: Instruction) -> bool:
    if instruction.opcode != "convert":
        return False
    before, after = instruction.operands[0].shape.element_type, instruction.shape.element_type
    return ELEMENT_TYPES[before].bits != ELEMENT_TYPES[after].bits


def form(moved: Instruction) -> dict[str, Any]:
    return {"dimensions": moved.get("dimensions")} if moved.opcode == "transpose" else {}


def fits(operand: Instruction, moved: Instruction, instruction: Instruction, rewriter: Rewriter) -> bool:
    """Whether `operand` is available in the dimensions before `moved` at no cost."""
    if not operand.shape.dimensions and moved.shape.dimensions:
        return True
    if scalar_source(operand) is not None:
        return True
    if operand.opcode != moved.opcode or operand.get("dimensions") != moved.get("dimensions"):
        return False
    if operand.operands[0].shape.dimensions != moved.operands[0].shape.dimensions:
        return False
    return rewriter.uses(operand) == instruction.operands.count(operand)      # multiply(r, r) reads it twice


def operand_before(operand: Instruction, moved: Instruction, rewriter: Rewriter) -> Instruction:
    if operand.opcode == moved.opcode and scalar_source(operand) is None:
        return operand.operands[0]
    source = scalar_source(operand)
    return spread(rewriter, source if source is not None else operand, moved.operands[0].shape)
