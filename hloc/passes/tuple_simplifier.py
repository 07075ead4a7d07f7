"""Replaces elements of tuples by their operands.

    t = (f32[4], f32[2]) tuple(a, b)
    x = f32[4] get-tuple-element(t), index=0        =>   x is a

    a = f32[4] get-tuple-element(t), index=0
    b = f32[2] get-tuple-element(t), index=1
    u = (f32[4], f32[2]) tuple(a, b)                =>   u is t

    c = (f32[4]) tuple-select(p, t, u)              =>   c = tuple(select(p, element 0 of t, element 0 of u))
"""
from __future__ import annotations

from hloc.ir import Instruction, Module
from hloc.passes.context import PassContext
from hloc.passes.expressions import Expressions
from hloc.passes.rewriter import Rewriter, rewrite_module


def tuple_simplifier(module: Module, context: PassContext) -> bool:
    """Replace elements of tuples by operands. True if a tuple or a get-tuple-element was removed, or a select of tuples
    became selects of their elements."""
    changed = rewrite_module(module, choices_of_elements, opcodes=("tuple-select",), expands=True)
    return rewrite_module(module, simplify_tuple, opcodes=("tuple", "get-tuple-element")) or changed


def simplify_tuple(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    if instruction.opcode == "get-tuple-element":
        return element_of_tuple(instruction)
    if instruction.opcode == "tuple":
        return tuple_of_all_elements(instruction)
    return None


def choices_of_elements(instruction: Instruction, rewriter: Rewriter) -> Instruction:
    """tuple-select(p, t, u) => tuple(select(p, t.0, u.0), ...); tuples in it are chosen likewise, tokens are joined."""
    e = Expressions(rewriter, instruction.span)
    chosen, *sides = instruction.operands
    parts = []
    for index, shape in enumerate(instruction.shape.tuple_shapes):
        yes, no = (e.op("get-tuple-element", side, index=index) for side in sides)
        if shape.is_array:
            parts.append(e.chosen(e.spread(chosen, shape), yes, no))
        else:
            parts.append(e.op("after-all", yes, no) if shape.is_token else e.op("tuple-select", chosen, yes, no))
    return e.op("tuple", *parts)


def element_of_tuple(instruction: Instruction) -> Instruction | None:
    """get-tuple-element(tuple(x0, x1, ...), index=i) => xi"""
    source = instruction.operands[0]
    return source.operands[instruction.get("index")] if source.opcode == "tuple" else None


def tuple_of_all_elements(instruction: Instruction) -> Instruction | None:
    """tuple(get-tuple-element(t, 0), get-tuple-element(t, 1), ... all of them) => t"""
    operands = instruction.operands
    if not operands or operands[0].opcode != "get-tuple-element":
        return None
    source = operands[0].operands[0]
    if len(source.shape.tuple_shapes) != len(operands) or not source.shape.compatible(instruction.shape):
        return None
    for index, operand in enumerate(operands):
        if operand.opcode != "get-tuple-element" or operand.operands[0] is not source or operand.get("index") != index:
            return None
    return source
