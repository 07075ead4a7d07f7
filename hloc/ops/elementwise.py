"""Rows of the ops that compute each element of the result from the same element of the operands.

    OPS["add"].infer(instruction)                       -> the operands' shape
    OPS["add"].evaluate(evaluator, instruction, a, b)   -> a + b, rounded to the instruction's type

Source: xla/service/elemental_ir_emitter.cc, and the operation semantics at https://openxla.org/xla/operation_semantics.
"""
from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from hloc.ir import Instruction, Shape
from hloc.ir.types import ARRAY_TYPES, COMPLEX, FLOATING, INTEGRAL, SIGNED
from hloc.ops import numerics
from hloc.ops.blocks import in_blocks
from hloc.ops.checks import array_operand, fail, text
from hloc.ops.numerics import WIDER, double, narrow, result_type, widen, with_complex
from hloc.ops.op import Evaluate, Op
from hloc.ops.rules import elementwise_shape, merge, predicate_shape, real_shape, same_sizes, same_type_family

PRED = frozenset({"pred"})
NUMBERS = INTEGRAL | FLOATING | COMPLEX
ORDERED = INTEGRAL | FLOATING | PRED
BITS = INTEGRAL | PRED
ACCURACY = ("result_accuracy",)
COMPARE = {"EQ": operator.eq, "NE": operator.ne, "LT": operator.lt, "LE": operator.le, "GT": operator.gt,
           "GE": operator.ge}


def wide(function: Callable[..., np.ndarray]) -> Evaluate:
    """Evaluate by a NumPy function on widened operands, brought back to the result's type."""
    return Widened(function)


class Widened:
    """ufunc: the function, if it is one of NumPy's that compute in the type of their operands."""

    def __init__(self, function: Callable[..., np.ndarray]):
        self.function = function
        self.ufunc = function if isinstance(function, np.ufunc) else None

    def __call__(self, evaluator: Any, instruction: Instruction, *operands: np.ndarray) -> np.ndarray:
        dtype = result_type(instruction)
        if self.ufunc is not None and not any(o.dtype in WIDER for o in operands):
            return narrow(self.ufunc(*operands), dtype)
        return in_blocks(lambda *parts: narrow(self.function(*map(widen, parts)), dtype), operands, dtype)


def as_stored(function) -> Evaluate:
    """Evaluate by a function of the bits, with operands in their own types."""
    def evaluate(evaluator, instruction, *operands):
        dtype = result_type(instruction)
        return in_blocks(lambda *parts: narrow(function(*parts), dtype), operands, dtype)
    return evaluate


def by_kind(for_pred, for_others):
    """One function for pred arrays, which are logical values, and one for numbers."""
    return lambda *operands: (for_pred if operands[0].dtype == np.bool_ else for_others)(*operands)


def _compare(evaluator, instruction, a, b):
    direction = instruction.attributes["direction"]
    if instruction.get("type") == "TOTALORDER":
        common = a.dtype if a.dtype == b.dtype else np.result_type(widen(a), widen(b))
        a, b = (numerics.total_order_key(v.astype(common, copy=False)) for v in (a, b))
    compare = COMPARE[direction]
    return in_blocks(lambda a, b: np.asarray(compare(widen(a), widen(b))), (a, b), np.dtype(np.bool_))


def _compare_shape(instruction: Instruction) -> Shape:
    shape = predicate_shape(instruction)
    direction, written = instruction.get("direction"), instruction.get("type")
    if direction is not None and direction not in COMPARE:
        fail(instruction, f"direction={direction} is none of {', '.join(COMPARE)}")
    kind = instruction.operands[0].shape.kind
    types = {"pred": ("UNSIGNED",), "unsigned": ("UNSIGNED",), "signed": ("SIGNED",), "complex": ("FLOAT",)}
    wanted = types.get(kind, ("FLOAT", "TOTALORDER"))
    operand = text(instruction.operands[0].shape)
    if kind == "complex" and direction not in (None, "EQ", "NE"):
        fail(instruction, f"complex numbers have no order: direction={direction} of {operand}")
    if written is not None and written not in wanted:
        fail(instruction, f"type={written} does not fit operands {operand}: it must be {' or '.join(wanted)}")
    return shape


def _scalar_or_same(instruction: Instruction, index: int, shape: Shape) -> None:
    operand = array_operand(instruction, index)
    if operand.rank and not same_sizes(operand, shape):
        fail(instruction, f"operand {index} must be a scalar or have the dimensions of {text(shape)}, "
                          f"is {text(operand)}")


def _clamp_shape(instruction: Instruction) -> Shape:
    shape = array_operand(instruction, 1)
    for index in (0, 2):
        _scalar_or_same(instruction, index, shape)
        bound = instruction.operands[index].shape
        if not same_type_family(bound, shape):
            fail(instruction, f"operands differ in element type: {text(bound)} and {text(shape)}")
    return shape


def _select_shape(instruction: Instruction) -> Shape:
    shape = merge(instruction, array_operand(instruction, 1), array_operand(instruction, 2))
    _scalar_or_same(instruction, 0, shape)
    if instruction.operands[0].shape.element_type != "pred":
        fail(instruction, f"operand 0 must be pred, is {text(instruction.operands[0].shape)}")
    return shape


def _complex_shape(instruction: Instruction) -> Shape:
    shape = elementwise_shape(instruction)
    result = {"f32": "c64", "f64": "c128"}.get(shape.element_type)
    return shape.with_element_type(result) if result else fail(
        instruction, f"takes f32 or f64 operands, not {text(shape)}")


def _make_complex(real, imaginary):
    result = np.empty(np.broadcast_shapes(real.shape, imaginary.shape), np.result_type(real, imaginary, np.complex64))
    result.real, result.imag = real, imaginary
    return result


def _imaginary(value):
    return value.imag if value.dtype.kind == "c" else np.zeros_like(value)


def _unary(opcode, function, scalar, domain, infer=elementwise_shape, **facts) -> Op:
    return Op(opcode, 1, infer, wide(function), scalar, domain, **facts)


def _function(opcode, function, scalar, domain=FLOATING, **facts) -> Op:
    """A transcendental function: in double precision, rounded once."""
    return Op(opcode, 1, elementwise_shape, wide(double(function)), scalar, domain, optional=ACCURACY, **facts)


def _complex_function(opcode, function, scalar, **facts) -> Op:
    """The same, with a function of its own for complex numbers."""
    function = with_complex(opcode, double(function))
    return Op(opcode, 1, elementwise_shape, wide(function), scalar, FLOATING | COMPLEX, optional=ACCURACY, **facts)


def _binary(opcode, function, domain, scalar=None, **facts) -> Op:
    return Op(opcode, 2, elementwise_shape, wide(function), scalar or opcode, domain, **facts)


ARITHMETIC = (
    _binary("add", np.add, ARRAY_TYPES, keeps_nans=True),
    _binary("subtract", np.subtract, NUMBERS, keeps_nans=True),
    _binary("multiply", np.multiply, ARRAY_TYPES, keeps_nans=True),
    _binary("divide", with_complex("divide", numerics.divide), NUMBERS, cost=4, gpu_cost=8, keeps_nans=True),
    _binary("remainder", numerics.remainder, INTEGRAL | FLOATING, cost=12, rounds=False),
    _binary("power", with_complex("power", numerics.power), NUMBERS, cost=30, gpu_cost=40, keeps_nans=True),
    _binary("maximum", numerics.maximum, ORDERED, rounds=False, keeps_nans=True),
    _binary("minimum", numerics.minimum, ORDERED, rounds=False, keeps_nans=True),
    Op("mulhi", 2, elementwise_shape, as_stored(numerics.multiply_high), "mulhi", INTEGRAL),
    _unary("abs", np.abs, "abs", SIGNED | FLOATING | COMPLEX, real_shape, rounds=False, keeps_nans=True),
    _unary("negate", np.negative, "negate", NUMBERS, rounds=False, keeps_nans=True),
    _unary("sign", with_complex("sign", numerics.sign), "sign", SIGNED | FLOATING | COMPLEX,
           rounds=False, keeps_nans=True),
    Op("clamp", 3, _clamp_shape, wide(numerics.clamp), "clamp", ORDERED, rounds=False, keeps_nans=True),
)

ROUNDING = (
    _unary("floor", np.floor, "floor", FLOATING, rounds=False, keeps_nans=True),
    _unary("ceil", np.ceil, "ceil", FLOATING, rounds=False, keeps_nans=True),
    _unary("round-nearest-afz", numerics.round_away, "round_nearest_afz", FLOATING,
           cost=3, rounds=False, keeps_nans=True),
    _unary("round-nearest-even", np.rint, "round_nearest_even", FLOATING, cost=2, rounds=False, keeps_nans=True),
)

FUNCTIONS = (
    _complex_function("sqrt", np.sqrt, "sqrt", cost=4, gpu_cost=8, keeps_nans=True),
    _complex_function("rsqrt", numerics.reciprocal_square_root, "rsqrt", cost=5, gpu_cost=6, keeps_nans=True),
    _function("cbrt", np.cbrt, "cbrt", cost=20, keeps_nans=True),
    _complex_function("exponential", np.exp, "exp", cost=10, gpu_cost=4, keeps_nans=True),
    _complex_function("exponential-minus-one", np.expm1, "expm1", cost=14, gpu_cost=16, keeps_nans=True),
    _complex_function("log", np.log, "log", cost=12, gpu_cost=8, keeps_nans=True),
    _complex_function("log-plus-one", np.log1p, "log1p", cost=14, gpu_cost=16, keeps_nans=True),
    _complex_function("logistic", numerics.logistic, "logistic", cost=14, gpu_cost=10, keeps_nans=True),
    _complex_function("sine", np.sin, "sin", cost=20, gpu_cost=24, keeps_nans=True),
    _complex_function("cosine", np.cos, "cos", cost=20, gpu_cost=24, keeps_nans=True),
    _complex_function("tan", np.tan, "tan", cost=25, gpu_cost=30, keeps_nans=True),
    _function("asin", np.arcsin, "asin", FLOATING | COMPLEX, cost=20),
    _function("acos", np.arccos, "acos", FLOATING | COMPLEX, cost=20),
    _complex_function("sinh", np.sinh, "sinh", cost=20),
    _complex_function("cosh", np.cosh, "cosh", cost=20),
    _complex_function("tanh", np.tanh, "tanh", cost=16, gpu_cost=4, keeps_nans=True),
    _function("asinh", np.arcsinh, "asinh", FLOATING | COMPLEX, cost=25),
    _function("acosh", np.arccosh, "acosh", FLOATING | COMPLEX, cost=25),
    _function("atanh", np.arctanh, "atanh", FLOATING | COMPLEX, cost=25),
    _function("erf", numerics.erf, "erf", cost=16, gpu_cost=24, keeps_nans=True),
    _binary("atan2", with_complex("atan2", double(np.arctan2)), FLOATING | COMPLEX,
            cost=25, gpu_cost=40, keeps_nans=True),
)

LOGICAL = (
    _unary("not", by_kind(np.logical_not, np.invert), "not", BITS),
    _binary("and", np.bitwise_and, BITS),
    _binary("or", np.bitwise_or, BITS),
    _binary("xor", np.bitwise_xor, BITS),
    Op("shift-left", 2, elementwise_shape, as_stored(numerics.shift_left), "shift_left", INTEGRAL),
    Op("shift-right-logical", 2, elementwise_shape, as_stored(numerics.shift_right_logical), "shift_right_logical",
       INTEGRAL),
    Op("shift-right-arithmetic", 2, elementwise_shape, as_stored(numerics.shift_right_arithmetic),
       "shift_right_arithmetic", INTEGRAL),
    Op("popcnt", 1, elementwise_shape, as_stored(numerics.population_count), "popcnt", INTEGRAL, cost=4),
    Op("count-leading-zeros", 1, elementwise_shape, as_stored(numerics.count_leading_zeros), "count_leading_zeros",
       INTEGRAL, cost=4),
)

CHOICES = (
    Op("compare", 2, _compare_shape, _compare, "compare", required=("direction",), optional=("type",), rounds=False),
    Op("select", 3, _select_shape, wide(np.where), "select", rounds=False),
    _unary("is-finite", np.isfinite, "is_finite", FLOATING, predicate_shape, rounds=False),
)

PARTS = (
    Op("complex", 2, _complex_shape, wide(_make_complex), "complex", frozenset({"f32", "f64"}), rounds=False),
    _unary("real", np.real, "real", FLOATING | COMPLEX, real_shape, rounds=False),
    _unary("imag", _imaginary, "imag", FLOATING | COMPLEX, real_shape, rounds=False),
)

ROWS = (*ARITHMETIC, *ROUNDING, *FUNCTIONS, *LOGICAL, *CHOICES, *PARTS)
