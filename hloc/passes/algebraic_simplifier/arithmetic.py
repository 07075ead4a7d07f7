"""Rules for add, subtract, multiply, divide, remainder, power, negate, abs, maximum, minimum, and rounding."""
from __future__ import annotations

from typing import Any

import numpy as np

from hloc.ir import Instruction
from hloc.ir.types import ELEMENT_TYPES
from hloc.passes.patterns import (
    full,
    highest,
    is_constant,
    is_float,
    is_integer,
    is_splat,
    lowest,
    splat,
)
from hloc.passes.rewriter import Rewriter

# The bounds below and above which the exponential of a number is zero and infinite.
EXPONENTS = {"f32": (-103.97208, 88.72283), "f64": (-745.1332191019412, 709.782712893384)}


def constant_to_the_right(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """op(c, x) => op(x, c) for commutative op"""
    left, right = instruction.operands
    if is_constant(left) and not is_constant(right):
        return rewriter.change(instruction, operands=[right, left])
    return None


def fold_constants_of_a_chain(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """op(op(x, c1), c2) => op(x, op(c1, c2)) for integers, for which it is exact"""
    inner, outer_constant = instruction.operands
    if inner.opcode != instruction.opcode or not is_integer_or_pred(instruction):
        return None
    x, inner_constant = inner.operands
    if is_constant(x) or not is_constant(inner_constant) or not is_constant(outer_constant):
        return None
    both = rewriter.add(instruction.opcode, instruction.shape, [inner_constant, outer_constant])
    return rewriter.change(instruction, operands=[x, both])


def is_integer_or_pred(instruction: Instruction) -> bool:
    return is_integer(instruction) or instruction.shape.element_type == "pred"


def add_zero(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """x + 0 => x"""
    x, y = instruction.operands
    return x if is_splat(y, 0) else y if is_splat(x, 0) else None


def add_negated(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """x + -y => x - y, -x + y => y - x"""
    x, y = instruction.operands
    if y.opcode == "negate":
        return rewriter.add("subtract", instruction.shape, [x, y.operands[0]])
    if x.opcode == "negate":
        return rewriter.add("subtract", instruction.shape, [y, x.operands[0]])
    return None


def subtract_zero(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """x - 0 => x"""
    x, y = instruction.operands
    return x if is_splat(y, 0) else None


def subtract_itself(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """x - x => 0 for integers"""
    x, y = instruction.operands
    return full(rewriter, 0, instruction.shape) if x is y and is_integer(x) else None


def subtract_from_zero(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """0 - x => -x for integers; 0.0 - 0.0 is 0.0, but -(0.0) is -0.0"""
    x, y = instruction.operands
    return rewriter.add("negate", instruction.shape, [y]) if is_integer(x) and is_splat(x, 0) else None


def subtract_negated(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """x - -y => x + y"""
    x, y = instruction.operands
    return rewriter.add("add", instruction.shape, [x, y.operands[0]]) if y.opcode == "negate" else None


def subtract_constant(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """x - c => x + -c"""
    x, y = instruction.operands
    value = splat(y)
    negated = None if value is None or splat(x) is not None else negative(value)
    if negated is None:
        return None
    return rewriter.add("add", instruction.shape, [x, full(rewriter, negated, instruction.shape)])


def negative(value: Any) -> np.ndarray | None:
    """-value in its own type (modulo 2^n for integers), or None if the type cannot represent it."""
    array = np.asarray(value)
    if array.dtype == np.bool_:
        return None
    with np.errstate(all="ignore"):
        negated = np.negative(array)
        return negated if np.negative(negated) == array else None


def multiply_one(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """x * 1 => x"""
    x, y = instruction.operands
    return x if is_splat(y, 1) else y if is_splat(x, 1) else None


def multiply_zero(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """x * 0 => 0 for integers; a float x may be NaN or infinite"""
    x, y = instruction.operands
    if not is_integer(x):
        return None
    return y if is_splat(y, 0) else x if is_splat(x, 0) else None


def multiply_minus_one(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """x * -1 => -x"""
    x, y = instruction.operands
    return rewriter.add("negate", instruction.shape, [x]) if is_splat(y, -1) else None


def multiply_negated(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """-x * -y => x * y, -x * c => x * -c"""
    x, y = instruction.operands
    if x.opcode != "negate":
        return None
    if y.opcode == "negate":
        return rewriter.change(instruction, operands=[x.operands[0], y.operands[0]])
    value = splat(y)
    negated = None if value is None else negative(value)
    if negated is None:
        return None
    return rewriter.change(instruction, operands=[x.operands[0], full(rewriter, negated, instruction.shape)])


def multiply_absolutes(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """|x| * |x| => x * x for real x"""
    x, y = instruction.operands
    if x is y and x.opcode == "abs" and x.operands[0].shape.element_type == x.shape.element_type:
        return rewriter.change(instruction, operands=[x.operands[0]] * 2)
    return None


def divide_by_one(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """x / 1 => x"""
    x, y = instruction.operands
    return x if is_splat(y, 1) else None


def divide_by_power_of_two(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """x / c => x * (1 / c) for floats if 1 / c is exact; x / 2^n => x >> n for unsigned integers"""
    x, y = instruction.operands
    value = splat(y)
    if value is None or splat(x) is not None:
        return None
    if is_float(x):
        inverse = exact_inverse(value)
        if inverse is not None:
            return rewriter.add("multiply", instruction.shape, [x, full(rewriter, inverse, instruction.shape)])
        return divide_by_largest_power(instruction, rewriter, value)
    exponent = power_of_two(value) if is_unsigned(x) else None
    if exponent is None:
        return None
    return rewriter.add("shift-right-logical", instruction.shape, [x, full(rewriter, exponent, instruction.shape)])


def divide_by_largest_power(instruction: Instruction, rewriter: Rewriter, value: Any) -> Instruction | None:
    """x / 2^127 => (x * 0.5) / 2^126: C compilers multiply by the inverse, which is subnormal and flushed to zero"""
    x, _ = instruction.operands
    largest = {"f32": 2.0**127, "bf16": 2.0**127, "f64": 2.0**1023}.get(instruction.shape.element_type)
    if abs(float(np.asarray(value))) != largest:
        return None
    half = rewriter.add("multiply", instruction.shape, [x, full(rewriter, 0.5, instruction.shape)])
    divisor = np.asarray(value) * np.asarray(0.5, np.asarray(value).dtype)
    return rewriter.add("divide", instruction.shape, [half, full(rewriter, divisor, instruction.shape)])


def exact_inverse(value: Any) -> np.ndarray | None:
    """1 / value if value is a power of two and both are normal numbers of its type, else None."""
    array = np.asarray(value)
    number = float(array)
    if not np.isfinite(number) or number == 0 or abs(np.frexp(number)[0]) != 0.5:
        return None
    with np.errstate(all="ignore"):
        inverse = np.asarray(1.0 / number).astype(array.dtype)
    return inverse if float(inverse) == 1.0 / number and abs(np.log2(abs(number))) < 100 else None


def power_of_two(value: Any) -> int | None:
    number = int(value)
    return number.bit_length() - 1 if number > 0 and number & (number - 1) == 0 else None


def is_unsigned(instruction: Instruction) -> bool:
    return ELEMENT_TYPES[instruction.shape.element_type].kind == "unsigned"


def divide_by_root(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """x / broadcast(sqrt(y)) => x * broadcast(rsqrt(y)): one division per row instead of one per element"""
    x, y = instruction.operands
    if y.opcode != "broadcast" or y.operands[0].opcode != "sqrt" or not is_float(x):
        return None
    root = y.operands[0]
    if rewriter.uses(y) > 1 or rewriter.uses(root) > 1:
        return None
    inverse = rewriter.add("rsqrt", root.shape, root.operands)
    return rewriter.add("multiply", instruction.shape, [x, rewriter.change(y, operands=[inverse])])


def remainder_by_power_of_two(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """x % 1 => 0 for integers, x % 2^n => x & (2^n - 1) for unsigned ones"""
    x, y = instruction.operands
    value = splat(y)
    if value is None or not is_integer(x):
        return None
    if value == 1:
        return full(rewriter, 0, instruction.shape)
    if not is_unsigned(x) or power_of_two(value) is None:
        return None
    return rewriter.add("and", instruction.shape, [x, full(rewriter, int(value) - 1, instruction.shape)])


def power_small(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """x ^ 0 => 1, x ^ 1 => x, x ^ 2 => x * x, x ^ 3 => x * x * x, x ^ -1 => 1 / x for floats; x ^ -2, 0.5, 1.5 ..."""
    x, y = instruction.operands
    value = splat(y)
    if value is None or ELEMENT_TYPES[x.shape.element_type].kind == "complex":
        return None
    if value == 0:
        return full(rewriter, 1, instruction.shape)
    if value == 1:
        return x
    if value == 2:
        return rewriter.add("multiply", instruction.shape, [x, x])
    if value == 3:
        square = rewriter.add("multiply", instruction.shape, [x, x])
        return rewriter.add("multiply", instruction.shape, [square, x])
    if value == -1 and is_float(x):
        return rewriter.add("divide", instruction.shape, [full(rewriter, 1, instruction.shape), x])
    if value == -2 and instruction.shape.element_type in ("f32", "f64"):         # the square of x may underflow
        inverse = rewriter.add("divide", instruction.shape, [full(rewriter, 1, instruction.shape), x])
        return rewriter.add("multiply", instruction.shape, [inverse, inverse])
    if abs(value) == 0.5 and instruction.shape.element_type in ("f32", "f64", "bf16", "f16"):
        return power_half(x, value > 0, rewriter)
    if abs(value) == 1.5 and instruction.shape.element_type in ("f32", "f64"):
        return power_three_halves(x, value > 0, rewriter)
    return None


def power_of_exponential(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """exp(x) ^ c => exp(c * x) for a constant c, f32 and f64; if exp(x) is infinite or zero, so is the power."""
    inner, y = instruction.operands
    value, type = splat(y), instruction.shape.element_type
    if inner.opcode != "exponential" or type not in EXPONENTS or value is None or not np.isfinite(value) or value == 0:
        return None
    x, shape = inner.operands[0], instruction.shape
    for bound, limit, direction in zip(EXPONENTS[type], (-np.inf, np.inf), ("LT", "GT")):
        is_beyond = rewriter.add("compare", shape.with_element_type("pred"), [x, full(rewriter, bound, shape)],
                                 {"direction": direction})
        x = rewriter.add("select", shape, [is_beyond, full(rewriter, limit, shape), x])
    return rewriter.add("exponential", shape, [rewriter.add("multiply", shape, [x, y])])


def power_half(x: Instruction, is_positive: bool, rewriter: Rewriter) -> Instruction:
    """|sqrt(x)|, or |rsqrt(x)|: powers of -0 have no sign."""
    root = rewriter.add("sqrt" if is_positive else "rsqrt", x.shape, [x])
    return power_at_least(x, rewriter.add("abs", x.shape, [root]), is_positive, rewriter)


def power_three_halves(x: Instruction, is_positive: bool, rewriter: Rewriter) -> Instruction:
    """sqrt(x) * x, or rsqrt(x) / x: a tenth of the time of a power. It is rounded up to three times, which is visible
    in types of low precision."""
    root = rewriter.add("sqrt" if is_positive else "rsqrt", x.shape, [x])
    power = rewriter.add("multiply" if is_positive else "divide", x.shape, [root, x])
    return power_at_least(x, power, is_positive, rewriter)


def power_at_least(x: Instruction, power: Instruction, is_positive: bool, rewriter: Rewriter) -> Instruction:
    """The power of x, which for -inf is inf or 0, not NaN."""
    limit = full(rewriter, np.inf if is_positive else 0, x.shape)
    least = full(rewriter, -np.inf, x.shape)
    is_least = rewriter.add("compare", x.shape.with_element_type("pred"), [x, least], {"direction": "EQ"})
    return rewriter.add("select", x.shape, [is_least, limit, power])


def negate_twice(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """--x => x"""
    x = instruction.operands[0]
    return x.operands[0] if x.opcode == "negate" else None


def negate_difference(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """-(x - y) => y - x for integers; for floats the sign of zero would change"""
    x = instruction.operands[0]
    if x.opcode != "subtract" or not is_integer(x):
        return None
    return rewriter.add("subtract", x.shape, x.operands[::-1])


def abs_of_nonnegative(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """|x| => x if x cannot be negative, | |x| | => |x|, |-x| => |x|"""
    x = instruction.operands[0]
    if x.shape.element_type != instruction.shape.element_type:
        return None
    if x.opcode in ("abs", "exponential", "logistic") or is_unsigned(x):
        return x
    if x.opcode == "multiply" and x.operands[0] is x.operands[1] and is_float(x):
        return x
    return rewriter.change(instruction, operands=x.operands) if x.opcode == "negate" else None


def extremum_of_itself(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """max(x, x) => x, min(x, x) => x"""
    x, y = instruction.operands
    return x if x is y else None


def extremum_with_bound(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """max(x, least) => x, min(x, greatest) => x; max(x, greatest) => greatest for integers"""
    x, y = instruction.operands
    kind = ELEMENT_TYPES[x.shape.element_type].kind
    if kind == "complex" or splat(y) is None:
        return None
    neutral, absorbing = lowest(x.shape.element_type), highest(x.shape.element_type)
    if instruction.opcode == "minimum":
        neutral, absorbing = absorbing, neutral
    if is_splat(y, neutral):
        return x
    return y if kind != "float" and is_splat(y, absorbing) else None


def extremum_twice(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """max(max(x, y), y) => max(x, y), and the same for min"""
    inner, y = instruction.operands
    return inner if inner.opcode == instruction.opcode and any(o is y for o in inner.operands) else None


def round_twice(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """f(g(x)) => g(x) if f and g round to whole numbers; f(convert(integer)) => convert(integer)"""
    x = instruction.operands[0]
    if x.opcode in WHOLE or (x.opcode == "convert" and is_integer_or_pred(x.operands[0]) and is_float(x)):
        return x
    return None


def complex_parts(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """real(complex(a, b)) => a, imag(complex(a, b)) => b"""
    x = instruction.operands[0]
    if x.opcode != "complex":
        return None
    return x.operands[0 if instruction.opcode == "real" else 1]


def complex_of_parts(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """complex(real(z), imag(z)) => z"""
    a, b = instruction.operands
    if a.opcode != "real" or b.opcode != "imag" or a.operands[0] is not b.operands[0]:
        return None
    z = a.operands[0]
    return z if z.shape.element_type == instruction.shape.element_type else None


WHOLE = ("floor", "ceil", "round-nearest-afz", "round-nearest-even")
EXTREMUM = (constant_to_the_right, fold_constants_of_a_chain, extremum_of_itself, extremum_with_bound, extremum_twice)
RULES = {
    "add": (constant_to_the_right, add_zero, fold_constants_of_a_chain, add_negated),
    "subtract": (subtract_zero, subtract_itself, subtract_from_zero, subtract_negated, subtract_constant),
    "multiply": (constant_to_the_right, multiply_one, multiply_zero, fold_constants_of_a_chain, multiply_minus_one,
                 multiply_negated, multiply_absolutes),
    "divide": (divide_by_one, divide_by_power_of_two, divide_by_root),
    "remainder": (remainder_by_power_of_two,),
    "power": (power_small, power_of_exponential),
    "negate": (negate_twice, negate_difference),
    "abs": (abs_of_nonnegative,),
    "maximum": EXTREMUM,
    "minimum": EXTREMUM,
    "real": (complex_parts,),
    "imag": (complex_parts,),
    "complex": (complex_of_parts,),
    **dict.fromkeys(WHOLE, (round_twice,)),
}
