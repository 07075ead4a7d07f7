"""Rules for select and clamp."""
from __future__ import annotations

from hloc.ir import Instruction
from hloc.passes.patterns import highest, is_float, is_splat, lowest, spread
from hloc.passes.rewriter import Rewriter


def select_known(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """select(true, a, b) => a, select(false, a, b) => b"""
    predicate, a, b = instruction.operands
    return a if is_splat(predicate, 1) else b if is_splat(predicate, 0) else None


def select_same(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """select(p, a, a) => a"""
    _, a, b = instruction.operands
    return a if a is b else None


def select_by_opposite(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """select(~p, a, b) => select(p, b, a)"""
    predicate, a, b = instruction.operands
    return rewriter.change(instruction, operands=[predicate.operands[0], b, a]) if predicate.opcode == "not" else None


def select_truths(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """On preds: select(p, true, false) => p, select(p, false, true) => ~p, select(p, a, false) => p & a,
    select(p, true, b) => p | b"""
    predicate, a, b = instruction.operands
    if instruction.shape.element_type != "pred":
        return None
    if is_splat(a, 0) and is_splat(b, 1):
        return rewriter.add("not", instruction.shape, [spread(rewriter, predicate, instruction.shape)])
    if is_splat(b, 0):
        return rewriter.add("and", instruction.shape, [spread(rewriter, predicate, instruction.shape), a])
    if is_splat(a, 1):
        return rewriter.add("or", instruction.shape, [spread(rewriter, predicate, instruction.shape), b])
    return None


def select_nested(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """select(p, select(p, a, b), c) => select(p, a, c), select(p, a, select(p, b, c)) => select(p, a, c)"""
    predicate, a, b = instruction.operands
    if a.opcode == "select" and a.operands[0] is predicate:
        return rewriter.change(instruction, operands=[predicate, a.operands[1], b])
    if b.opcode == "select" and b.operands[0] is predicate:
        return rewriter.change(instruction, operands=[predicate, a, b.operands[2]])
    return None


def clamp_bounds(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """clamp(least, x, greatest) => x; clamp(least, x, h) => min(x, h), clamp(l, x, greatest) => max(l, x)"""
    low, x, high = instruction.operands
    if is_float(x) or x.shape.kind == "complex":
        return None                       # clamp and max may treat NaN differently; complex numbers have no order
    free_below = is_splat(low, lowest(x.shape.element_type))
    free_above = is_splat(high, highest(x.shape.element_type))
    if free_below and free_above:
        return x
    if free_below:
        return rewriter.add("minimum", instruction.shape, [x, spread(rewriter, high, instruction.shape)])
    return rewriter.add("maximum", instruction.shape, [x, spread(rewriter, low, instruction.shape)]) \
        if free_above else None


def clamp_twice(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """clamp(l, clamp(l, x, h), h) => clamp(l, x, h)"""
    low, x, high = instruction.operands
    return x if x.opcode == "clamp" and x.operands[0] is low and x.operands[2] is high else None


RULES = {
    "select": (select_known, select_same, select_by_opposite, select_truths, select_nested),
    "clamp": (clamp_bounds, clamp_twice),
}
