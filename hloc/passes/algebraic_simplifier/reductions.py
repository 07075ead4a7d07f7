"""Rules for reduce and reduce-window of one array by add, multiply, maximum, minimum, and, or."""
from __future__ import annotations

import math

from hloc.ir import Instruction, window_of
from hloc.passes.patterns import full, identity_of, is_splat, monoid_of, reshape, spread
from hloc.passes.rewriter import Rewriter

IDEMPOTENT = ("maximum", "minimum", "and", "or")


def starts_neutral(instruction: Instruction, monoid: str) -> bool:
    """True if the initial value does not change the result."""
    neutral = identity_of(monoid, instruction.operands[1].shape.element_type)
    return neutral is not None and is_splat(instruction.operands[1], neutral)


def reduce_of_ones(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """reduce(x, init) => reshape(x) op init if the reduced dimensions have size 1"""
    monoid = monoid_of(instruction)
    x, init = instruction.operands[:2]
    if monoid is None or any(x.shape.dimensions[d] != 1 for d in instruction.get("dimensions")):
        return None
    x = reshape(rewriter, x, instruction.shape)
    if starts_neutral(instruction, monoid):
        return x
    return rewriter.add(monoid, instruction.shape, [x, spread(rewriter, init, instruction.shape)])


def reduce_of_nothing(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """reduce(x, init) => broadcast(init) if x has no elements"""
    if len(instruction.operands) != 2 or instruction.operands[0].shape.num_elements != 0:
        return None
    return spread(rewriter, instruction.operands[1], instruction.shape)


def reduce_twice(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """reduce(reduce(x, dimensions={1}), dimensions={0}) => reduce(x, dimensions={0,1}) of the same operation"""
    monoid = monoid_of(instruction)
    inner = instruction.operands[0]
    if monoid is None or inner.opcode != "reduce" or monoid_of(inner) != monoid or rewriter.uses(inner) > 1:
        return None
    if not starts_neutral(inner, monoid):
        return None
    x = inner.operands[0]
    kept = [d for d in range(x.shape.rank) if d not in inner.get("dimensions")]
    dimensions = sorted((*inner.get("dimensions"), *(kept[d] for d in instruction.get("dimensions"))))
    return rewriter.change(instruction, operands=[x, instruction.operands[1]], dimensions=tuple(dimensions))


def reduce_of_transpose(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """reduce(transpose(x)) => reduce(x) if the remaining dimensions are in order"""
    monoid = monoid_of(instruction)
    inner = instruction.operands[0]
    if monoid is None or inner.opcode != "transpose":
        return None
    order = inner.get("dimensions")
    kept = [order[d] for d in range(len(order)) if d not in instruction.get("dimensions")]
    if kept != sorted(kept):
        return None
    dimensions = tuple(sorted(order[d] for d in instruction.get("dimensions")))
    return rewriter.change(instruction, operands=[inner.operands[0], instruction.operands[1]], dimensions=dimensions)


def reduce_of_reshaped_ones(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """reduce(reshape(x)) => reduce(x) if the reshape only adds dimensions of size 1 and those are reduced"""
    monoid = monoid_of(instruction)
    inner = instruction.operands[0]
    if monoid is None or inner.opcode != "reshape":
        return None
    before, after = inner.operands[0].shape.dimensions, inner.shape.dimensions
    reduced = set(instruction.get("dimensions"))
    left = [d for d in range(len(after)) if not (d in reduced and after[d] == 1)]
    if len(left) == len(after) or tuple(after[d] for d in left) != before:
        return None
    dimensions = tuple(n for n, d in enumerate(left) if d in reduced)
    return rewriter.change(instruction, operands=[inner.operands[0], instruction.operands[1]], dimensions=dimensions)


def reduce_of_broadcast(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """reduce(broadcast(x)) => broadcast(x) if only dimensions added by the broadcast are reduced, by max, min, and, or;
    => broadcast(x) * n by add"""
    monoid = monoid_of(instruction)
    inner = instruction.operands[0]
    if monoid is None or inner.opcode != "broadcast" or not starts_neutral(instruction, monoid):
        return None
    reduced = instruction.get("dimensions")
    if any(d in reduced for d in inner.get("dimensions")) or inner.shape.num_elements == 0:
        return None
    kept = [d for d in range(inner.shape.rank) if d not in reduced]
    dimensions = tuple(kept.index(d) for d in inner.get("dimensions"))
    count = math.prod(inner.shape.dimensions[d] for d in reduced)
    if monoid not in IDEMPOTENT and not (monoid == "add" and counts_exactly(count, instruction)):
        return None
    result = rewriter.add("broadcast", instruction.shape, inner.operands, {"dimensions": dimensions})
    if monoid in IDEMPOTENT:
        return result
    return rewriter.add("multiply", instruction.shape, [result, full(rewriter, count, instruction.shape)])


def counts_exactly(count: int, instruction: Instruction) -> bool:
    """True if the instruction's type represents `count`."""
    largest = {"f32": 1 << 24, "f64": 1 << 53, "s32": 1 << 31, "u32": 1 << 32, "s64": 1 << 63, "u64": 1 << 64}
    return count < largest.get(instruction.shape.element_type, 0)


def window_of_one(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """reduce-window(x) => x if the window has one element and stride 1"""
    monoid = monoid_of(instruction)
    if monoid is None or not starts_neutral(instruction, monoid):
        return None
    x = instruction.operands[0]
    still = all((d.size, d.stride, d.padding_low, d.padding_high, d.base_dilation) == (1, 1, 0, 0, 1)
                for d in window_of(instruction))
    return x if still and x.shape.dimensions == instruction.shape.dimensions else None


RULES = {
    "reduce": (reduce_of_nothing, reduce_of_ones, reduce_twice, reduce_of_transpose, reduce_of_reshaped_ones,
               reduce_of_broadcast),
    "reduce-window": (window_of_one,),
}
