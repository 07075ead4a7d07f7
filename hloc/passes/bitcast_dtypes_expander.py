"""Replaces width-changing bitcast-converts by bitcasts, or by shifts if elements are smaller than a byte.

    b = s8[4,4] bitcast-convert(f32[4] x)     =>   b = s8[4,4] bitcast(x), the same bytes
    n = u4[8,2] bitcast-convert(u8[8] x)      =>   both halves: x and x >> 4, converted to u4, side by side
"""
from __future__ import annotations

from hloc.ir import ELEMENT_TYPES, Instruction, Module
from hloc.passes.context import PassContext
from hloc.passes.expressions import Expressions, combiner
from hloc.passes.rewriter import Rewriter, rewrite_module


def bitcast_dtypes_expander(module: Module, context: PassContext) -> bool:
    """True if there was a bitcast-convert between types of different width."""
    def visit(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
        if instruction.opcode != "bitcast-convert":
            return None
        before, after = (ELEMENT_TYPES[s.element_type].bits for s in (instruction.operands[0].shape, instruction.shape))
        if before == after:
            return None
        if not (instruction.operands[0].shape.has_default_layout and instruction.shape.has_default_layout):
            return None                                          # a bitcast would be about the memory's order
        if before % 8 == 0 and after % 8 == 0:
            return rewriter.add("bitcast", instruction.shape, instruction.operands)
        e = Expressions(rewriter, instruction.span)
        return (parts_of if before > after else whole_of)(module, e, instruction, before, after)
    return rewrite_module(module, visit, revisit=False, expands=True)


def parts_of(module: Module, e: Expressions, instruction: Instruction, before: int, after: int) -> Instruction:
    """Each element as several narrow ones, the lowest bits first."""
    wide = e.bits(instruction.operands[0], f"u{before}")
    dimensions = instruction.shape.dimensions
    spread = e.broadcast(wide, range(wide.shape.rank), dimensions)
    shifts = e.op("multiply", e.iota(f"u{before}", dimensions, wide.shape.rank), e.full(after, spread.shape))
    low = e.op("and", e.op("shift-right-logical", spread, shifts), e.like((1 << after) - 1, spread))
    return e.bits(e.convert(low, f"u{after}"), instruction.shape.element_type)


def whole_of(module: Module, e: Expressions, instruction: Instruction, before: int, after: int) -> Instruction:
    """Several narrow elements as one wide, the first in the lowest bits."""
    wide = e.convert(e.bits(instruction.operands[0], f"u{before}"), f"u{after}")
    last = wide.shape.rank - 1
    shifts = e.op("multiply", e.iota(f"u{after}", wide.shape.dimensions, last), e.like(before, wide))
    placed = e.op("shift-left", wide, shifts)
    joined = e.op("reduce", placed, e.constant(0, f"u{after}"), dimensions=(last,),
                  to_apply=combiner(module, "or", f"u{after}", instruction.span))
    return e.bits(joined, instruction.shape.element_type)
