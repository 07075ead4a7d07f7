"""Converts to narrower types before, and to wider types after, operations that only move elements.

    t = f32[3,2] transpose(x), dimensions={1,0}      // x: f32[2,3]
    c = bf16[3,2] convert(t)
    =>
    c = bf16[3,2] transpose(bf16[2,3] convert(x)), dimensions={1,0}

A narrowing convert that meets updates of a widened array moves into these (converted_updates.py).
"""
from __future__ import annotations

from functools import partial

from hloc.ir import Instruction, Module
from hloc.ir.types import ELEMENT_TYPES
from hloc.passes.context import PassContext
from hloc.passes.converted_updates import narrow_updates
from hloc.passes.rewriter import Rewriter, rewrite_module

MOVING = frozenset({"reshape", "transpose", "slice", "reverse", "dynamic-slice"})


def convert_mover(module: Module, context: PassContext) -> bool:
    """Move converts to where the data is smallest. True if a convert moved."""
    return rewrite_module(module, partial(move_convert, module), opcodes=MOVING | {"convert"})


def move_convert(module: Module, instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    if instruction.shape.dynamic_dimensions:
        return None
    if instruction.opcode == "convert":
        return narrow_updates(module, instruction, rewriter) or narrow_earlier(instruction, rewriter)
    return widen_later(instruction, rewriter)


def bits(instruction: Instruction) -> int:
    return ELEMENT_TYPES[instruction.shape.element_type].bits


def narrow_earlier(convert: Instruction, rewriter: Rewriter) -> Instruction | None:
    """convert(move(x)) => move(convert(x)) to a narrower type, where the move does not make x smaller"""
    move = convert.operands[0]
    if move.opcode not in MOVING or bits(convert) >= bits(move) or rewriter.uses(move) > 1:
        return None
    x = move.operands[0]
    if x.shape.num_elements != move.shape.num_elements:
        return None
    narrow = rewriter.add("convert", x.shape.with_element_type(convert.shape.element_type), [x])
    return rewriter.change(move, operands=[narrow, *move.operands[1:]], shape=convert.shape)


def widen_later(move: Instruction, rewriter: Rewriter) -> Instruction | None:
    """move(convert(x)) => convert(move(x)) from a narrower type"""
    convert = move.operands[0]
    if convert.opcode != "convert" or rewriter.uses(convert) > 1:
        return None
    x = convert.operands[0]
    if bits(x) >= bits(convert):
        return None
    narrow = rewriter.change(move, operands=[x, *move.operands[1:]],
                             shape=move.shape.with_element_type(x.shape.element_type))
    return rewriter.add("convert", move.shape, [narrow])
