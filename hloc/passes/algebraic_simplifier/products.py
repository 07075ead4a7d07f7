"""Rules for dot, and for the transpose of one."""
from __future__ import annotations

import re

from hloc.ir import Instruction
from hloc.passes.algebraic_simplifier.converts import holds
from hloc.passes.patterns import reshape
from hloc.passes.rewriter import Rewriter


def free_dimensions(operand: Instruction, batch: tuple[int, ...], contracting: tuple[int, ...]) -> tuple[int, ...]:
    """The dimensions of a dot's operand that are neither batch nor contracting, in order."""
    return tuple(d for d in range(operand.shape.rank) if d not in batch and d not in contracting)


def dot_without_sum(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """dot(x, y) => broadcast(x) * broadcast(y) if the contracting dimensions have size 1: each sum has one term"""
    x, y = instruction.operands[:2]
    if len(instruction.operands) != 2 or any(x.shape.dimensions[d] != 1 for d in
                                             instruction.get("lhs_contracting_dims", ())):
        return None
    result = instruction.shape.element_type
    if not holds(result, x.shape.element_type) or not holds(result, y.shape.element_type):
        return None
    batch = len(instruction.get("lhs_batch_dims", ()))
    left = spread_operand(instruction, rewriter, "lhs", batch)
    right = spread_operand(instruction, rewriter, "rhs", instruction.shape.rank - free_rank(instruction, "rhs"))
    return rewriter.add("multiply", instruction.shape, [left, right])


def free_rank(instruction: Instruction, side: str) -> int:
    x = instruction.operands[0 if side == "lhs" else 1]
    return x.shape.rank - len(instruction.get(f"{side}_batch_dims", ())) \
        - len(instruction.get(f"{side}_contracting_dims", ()))


def spread_operand(instruction: Instruction, rewriter: Rewriter, side: str, first_free: int) -> Instruction:
    """One operand of a dot in the result's dimensions: batch dimensions first, free ones starting at `first_free`."""
    x = instruction.operands[0 if side == "lhs" else 1]
    batch = instruction.get(f"{side}_batch_dims", ())
    contracting = instruction.get(f"{side}_contracting_dims", ())
    place = {d: n for n, d in enumerate(batch)}
    place.update({d: first_free + n for n, d in enumerate(free_dimensions(x, batch, contracting))})
    kept = sorted(place)
    x = reshape(rewriter, x, x.shape.with_dimensions(x.shape.dimensions[d] for d in kept))
    if x.shape.element_type != instruction.shape.element_type:
        x = rewriter.add("convert", x.shape.with_element_type(instruction.shape.element_type), [x])
    order = sorted(range(len(kept)), key=lambda n: place[kept[n]])
    if order != list(range(len(kept))):
        x = rewriter.add("transpose", x.shape.with_dimensions(x.shape.dimensions[n] for n in order), [x],
                         {"dimensions": tuple(order)})
    return rewriter.add("broadcast", instruction.shape, [x], {"dimensions": tuple(sorted(place.values()))})


def transpose_of_dot(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """transpose(dot(x, y)) => dot(y, x) if it swaps the free dimensions of x and y, and keeps batch dimensions"""
    dot = instruction.operands[0]
    if dot.opcode != "dot" or len(dot.operands) != 2 or rewriter.uses(dot) > 1 \
            or len(set(re.findall(r"\w+", str(dot.get("operand_precision", ""))))) > 1:
        return None
    batch = len(dot.get("lhs_batch_dims", ()))
    middle = batch + free_rank(dot, "lhs")
    rank = dot.shape.rank
    if instruction.get("dimensions") != (*range(batch), *range(middle, rank), *range(batch, middle)):
        return None
    swapped = {f"{a}_{what}": dot.get(f"{b}_{what}") for what in ("batch_dims", "contracting_dims")
               for a, b in (("lhs", "rhs"), ("rhs", "lhs"))}
    return rewriter.change(dot, operands=dot.operands[::-1], shape=instruction.shape, **swapped)


RULES = {
    "dot": (dot_without_sum,),
    "transpose": (transpose_of_dot,),
}
