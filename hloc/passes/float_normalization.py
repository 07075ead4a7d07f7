"""Makes operations that only move elements keep their type: a separate convert rounds or widens floats.

    c = bf16[4] copy(f32[4] x)        =>   y = bf16[4] convert(x);  c = bf16[4] copy(y)

XLA allows moves that convert, and its compiler for TPUs writes them.
"""
from __future__ import annotations

from hloc.ir import Instruction, Module
from hloc.passes.context import PassContext
from hloc.passes.rewriter import Rewriter, rewrite_module

MOVED: dict[str, slice] = {                     # opcode -> the operands whose elements make up the result
    **dict.fromkeys(("copy", "reshape", "transpose", "broadcast", "slice", "reverse", "dynamic-slice", "gather",
                     "set-dimension-size", "dynamic-reshape"), slice(1)),
    **dict.fromkeys(("pad", "dynamic-update-slice"), slice(2)),
    "concatenate": slice(None),
    "select": slice(1, None),
}


def float_normalization(module: Module, context: PassContext) -> bool:
    """True if a move changed the type of its elements."""
    return rewrite_module(module, visit, opcodes=tuple(MOVED), fused=True)


def visit(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    taken = MOVED.get(instruction.opcode)
    if taken is None or not instruction.shape.is_array or instruction.shape.kind != "float":
        return None
    type_, operands = instruction.shape.element_type, list(instruction.operands)
    if all(o.shape.element_type == type_ for o in operands[taken]):
        return None
    operands[taken] = [o if o.shape.element_type == type_ or o.shape.kind != "float" else
                       rewriter.add("convert", o.shape.with_element_type(type_), [o]) for o in operands[taken]]
    return rewriter.add(instruction.opcode, instruction.shape, operands, dict(instruction.attributes))
