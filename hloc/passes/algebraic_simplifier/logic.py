"""Rules for and, or, xor, not, compare, and shifts."""
from __future__ import annotations

from hloc.analysis.integer_ranges import interval
from hloc.ir import Instruction
from hloc.ir.types import ELEMENT_TYPES
from hloc.passes.algebraic_simplifier.arithmetic import constant_to_the_right, fold_constants_of_a_chain
from hloc.passes.patterns import full, highest, is_constant, is_float, is_integer, is_splat, lowest, splat
from hloc.passes.rewriter import Rewriter

OPPOSITE = {"EQ": "NE", "NE": "EQ", "LT": "GE", "GE": "LT", "GT": "LE", "LE": "GT"}
MIRRORED = {"EQ": "EQ", "NE": "NE", "LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}


def all_ones(element_type: str) -> int | bool:
    """The value with all bits set: true, -1, UINT_MAX."""
    kind = ELEMENT_TYPES[element_type].kind
    return -1 if kind == "signed" else highest(element_type)


def combine_with_itself(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """x & x => x, x | x => x, x ^ x => 0"""
    x, y = instruction.operands
    if x is not y:
        return None
    return full(rewriter, 0, instruction.shape) if instruction.opcode == "xor" else x


def combine_with_bits(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """x & 0 => 0, x & ~0 => x, x | 0 => x, x | ~0 => ~0, x ^ 0 => x, x ^ ~0 => ~x"""
    x, y = instruction.operands
    if splat(y) is None:
        return None
    opcode = instruction.opcode
    if is_splat(y, 0):
        return y if opcode == "and" else x
    if not is_splat(y, all_ones(x.shape.element_type)):
        return None
    if opcode == "xor":
        return rewriter.add("not", instruction.shape, [x])
    return x if opcode == "and" else y


def combine_with_opposite(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """x & ~x => 0, x | ~x => ~0"""
    x, y = instruction.operands
    if not (x.opcode == "not" and x.operands[0] is y or y.opcode == "not" and y.operands[0] is x):
        return None
    value = 0 if instruction.opcode == "and" else all_ones(x.shape.element_type)
    return full(rewriter, value, instruction.shape)


def and_of_comparisons(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """(x < y) & (x != y) => x < y, as in the remainder that has the divisor's sign; not in the total order, in which
    -0 < 0 although they are equal"""
    if any(o.opcode != "compare" for o in instruction.operands):
        return None
    for a, b in (instruction.operands, instruction.operands[::-1]):
        alike = a.operands == b.operands and (a.get("type") != "TOTALORDER" or b.get("type") == "TOTALORDER")
        if alike and a.get("direction") in ("LT", "GT") and b.get("direction") == "NE":
            return a
    return None


def not_twice(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """~~x => x"""
    x = instruction.operands[0]
    return x.operands[0] if x.opcode == "not" else None


def not_compare(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """~(x < y) => x >= y, for integers and for EQ and NE; with NaN both x < y and x >= y are false"""
    x = instruction.operands[0]
    if x.opcode != "compare" or rewriter.uses(x) > 1:
        return None
    direction = x.get("direction")
    if direction not in ("EQ", "NE") and not is_ordered_exactly(x.operands[0]):
        return None
    return rewriter.change(x, direction=OPPOSITE[direction])


def is_ordered_exactly(x: Instruction) -> bool:
    return is_integer(x) or x.shape.element_type == "pred"


def compare_constant_to_the_right(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """c < x => x > c"""
    x, y = instruction.operands
    if not is_constant(x) or is_constant(y):
        return None
    return rewriter.change(instruction, operands=[y, x], direction=MIRRORED[instruction.get("direction")])


def compare_with_itself(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """x == x, x <= x => true; x < x, x != x => false; for integers, since NaN != NaN"""
    x, y = instruction.operands
    if x is not y or not is_ordered_exactly(x):
        return None
    return full(rewriter, instruction.get("direction") in ("EQ", "LE", "GE"), instruction.shape)


def compare_with_bound(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """x < least => false, x >= least => true, x > greatest => false, x <= greatest => true; for integers"""
    x, y = instruction.operands
    if splat(y) is None or not is_ordered_exactly(x):
        return None
    direction = instruction.get("direction")
    element_type = x.shape.element_type
    if direction in ("LT", "GE") and is_splat(y, lowest(element_type)):
        return full(rewriter, direction == "GE", instruction.shape)
    if direction in ("GT", "LE") and is_splat(y, highest(element_type)):
        return full(rewriter, direction == "LE", instruction.shape)
    return None


def compare_truth(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """p == true => p, p != false => p, p == false => ~p, p != true => ~p"""
    x, y = instruction.operands
    direction = instruction.get("direction")
    value = splat(y)
    if x.shape.element_type != "pred" or value is None or direction not in ("EQ", "NE"):
        return None
    return x if bool(value) == (direction == "EQ") else rewriter.add("not", instruction.shape, [x])


def compare_converted_truth(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """convert(p) != 0 => p, convert(p) == 0 => ~p"""
    x, y = instruction.operands
    direction = instruction.get("direction")
    if x.opcode != "convert" or x.operands[0].shape.element_type != "pred" or not is_splat(y, 0):
        return None
    if direction == "NE":
        return x.operands[0]
    return rewriter.add("not", instruction.shape, x.operands) if direction == "EQ" else None


def compare_sign(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """sign(x) < 0 => x < 0, sign(x) == 1 => x > 0, sign(x) != 1 => x <= 0; for integers"""
    x, y = instruction.operands
    value = splat(y)
    if x.opcode != "sign" or value is None or not is_ordered_exactly(x):
        return None
    x, direction = x.operands[0], instruction.get("direction")
    if value != 0:
        direction = {(1, "EQ"): "GT", (1, "NE"): "LE", (-1, "EQ"): "LT", (-1, "NE"): "GE"}.get((int(value), direction))
    if direction is None:
        return None
    return rewriter.add("compare", instruction.shape, [x, full(rewriter, 0, y.shape)], {"direction": direction})


def compare_iota_with_bound(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """iota < n => true if n is at least the number of values, iota < 0 => false; the same for >="""
    x, y = instruction.operands
    value = splat(y)
    direction = instruction.get("direction")
    if x.opcode != "iota" or value is None or is_float(x) or direction not in ("LT", "GE"):
        return None
    length = x.shape.dimensions[x.get("iota_dimension")]
    if length > highest(x.shape.element_type):
        return None
    if int(value) >= length:
        return full(rewriter, direction == "LT", instruction.shape)
    return full(rewriter, direction == "GE", instruction.shape) if int(value) <= 0 else None


def compare_intervals(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """max(x, 0) < 0 => false, min(x, 7) <= 7 => true: integers whose intervals do not overlap"""
    x, y = instruction.operands
    if splat(y) is None or not is_integer(x):
        return None
    (x_low, x_high), (y_low, y_high) = interval(x), interval(y)
    certain = {"LT": (x_high < y_low, x_low >= y_high), "GE": (x_low >= y_high, x_high < y_low),
               "GT": (x_low > y_high, x_high <= y_low), "LE": (x_high <= y_low, x_low > y_high)}
    true, false = certain.get(instruction.get("direction"), (False, False))
    return full(rewriter, true, instruction.shape) if true or false else None


def shift_by_zero(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """x << 0 => x, x >> 0 => x"""
    x, amount = instruction.operands
    return x if is_splat(amount, 0) else None


BITWISE = (constant_to_the_right, combine_with_itself, combine_with_bits, combine_with_opposite,
           fold_constants_of_a_chain)
RULES = {
    "and": (*BITWISE, and_of_comparisons),
    "or": BITWISE,
    "xor": BITWISE[:3] + BITWISE[4:],
    "not": (not_twice, not_compare),
    "compare": (compare_constant_to_the_right, compare_with_itself, compare_with_bound, compare_truth,
                compare_converted_truth, compare_sign, compare_iota_with_bound, compare_intervals),
    **dict.fromkeys(("shift-left", "shift-right-logical", "shift-right-arithmetic"), (shift_by_zero,)),
}
