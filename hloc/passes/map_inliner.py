"""Replaces maps by elementwise operations.

    f { x = f32[] parameter(0)  y = f32[] parameter(1)  ROOT s = f32[] add(x, y) }
    m = f32[4] map(a, b), dimensions={0}, to_apply=f        =>   m = f32[4] add(a, b)
"""
from __future__ import annotations

from hloc.ir import Instruction, Module
from hloc.passes.context import PassContext
from hloc.passes.patterns import is_elementwise, spread
from hloc.passes.rewriter import Rewriter, rewrite_module


def map_inliner(module: Module, context: PassContext) -> bool:
    """Replace maps by elementwise operations. True if there was one; maps of other operations remain."""
    return rewrite_module(module, inline_map, opcodes=("map",), expands=True)


def inline_map(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    if not instruction.shape.is_array:
        return None
    body = instruction.get("to_apply")
    types = [p.shape.element_type for p in body.parameters]
    if any(o.shape.element_type != t for o, t in zip(instruction.operands, types)):      # floats of other precision
        return rewriter.change(instruction, operands=[
            _converted(o, t, rewriter) for o, t in zip(instruction.operands, types)])
    if not all(is_elementwise(i) or i.opcode in ("parameter", "constant") for i in body.instructions):
        return None
    made: dict[Instruction, Instruction] = {}
    for scalar in body.instructions:
        if scalar.opcode == "parameter":
            made[scalar] = instruction.operands[scalar.parameter_number]
            continue
        new = rewriter.adopt(scalar, [made[o] for o in scalar.operands])
        if scalar.opcode == "constant":
            made[scalar] = spread(rewriter, new, instruction.shape)
        else:
            new.shape = instruction.shape.with_element_type(scalar.shape.element_type)
            made[scalar] = new
    return _converted(made[body.root], instruction.shape.element_type, rewriter)


def _converted(value: Instruction, element_type: str, rewriter: Rewriter) -> Instruction:
    if value.shape.element_type == element_type:
        return value
    return rewriter.add("convert", value.shape.with_element_type(element_type), [value])
