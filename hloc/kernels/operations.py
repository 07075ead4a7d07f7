"""The types of the loop IR's operations: the result type of Apply(op, arguments).

In: the name of an operation and the types of its arguments. Out: the type of its result.

    result_type("add", ("f32", "f32"))           "f32"
    result_type("compare_lt", ("f32", "f32"))    "pred"
    result_type("convert", ("f32",))             None: the Apply itself says to which type

Besides the scalar functions of the op table there are a few that kernel passes create: see MADE_BY_PASSES.
"""
from __future__ import annotations

from collections.abc import Sequence

from hloc.kernels.vectors import ACROSS_LANES, compared, element_of, is_vector, lanes_of, vector
from hloc.ops.table import SCALARS

# The type is part of the operation: it cannot be derived from the arguments.
CONVERSIONS = frozenset(["convert", "convert_held", "bitcast", "stochastic_convert", "widen", "narrow"])
# Operations on elements of a storage type (bf16, f16, f8 ...) without conversion.
OF_STORED = CONVERSIONS | {"select"}
# The meaning of these operations: tests and hloc/kernels/text/interpreter.py check the C functions against it.
MADE_BY_PASSES = {
    "convert_held": "convert to bf16 of a value whose NaN, if it is one, has no bits that bf16 cannot hold",
    "widen": "convert f16 to f32, of neighbouring elements",
    "narrow": "convert f32 to f16, of neighbouring elements",
    "opaque": "the INDEX itself, hidden from the C compiler",
    "sin_near": "sin where sin_is_near holds of the arguments (so for every function that has the two)",
    "sin_far": "sin of any argument",
    "called_sin": "sin by a call, not written out (so for every function of many instructions)",
}
HEAVY = frozenset(name for name, row in SCALARS.items() if row.cost >= 10)       # functions of many instructions
OF_COMPLEX = frozenset(["exp", "expm1", "logistic", "sinh", "cosh", "sin", "cos", "tan", "tanh", "power"])
# Functions with a form without branches and calls for their usual arguments, by type.
NEAR = {"f32": frozenset(["remainder"]), "f64": frozenset(["sin", "cos", "tan", "remainder"]),
        "c64": OF_COMPLEX, "c128": OF_COMPLEX}
PARTS = {"c64": "f32", "c128": "f64"}
WHOLES = {part: whole for whole, part in PARTS.items()}


def result_type(op: str, arguments: Sequence[str]) -> str | None:
    """The result type of an operation for arguments of these types; None if it cannot be derived from them."""
    first = arguments[0]
    if is_vector(first) or op in ACROSS_LANES:
        return _vector_result(op, arguments)
    op = op.removeprefix("called_")
    if op in CONVERSIONS:
        return None
    if op.startswith("compare_") or op.endswith("_is_near") or op == "is_finite":
        return "pred"
    if op == "select":
        return arguments[1]
    if op in ("real", "imag", "abs"):
        return PARTS.get(first, first)
    if op == "complex":
        return WHOLES.get(first)
    return first


def has_near(op: str, type: str) -> bool:
    """Whether a function has a form for its usual arguments (sin_near), and a test of these (sin_is_near)."""
    return op in NEAR.get(type, ())


def _vector_result(op: str, arguments: Sequence[str]) -> str | None:
    """The same for vectors: a comparison gives a mask, and what goes across lanes says its type, but for a lane."""
    first = arguments[0]
    if op == "lane":
        return vector(element_of(first), 1)
    if op in ACROSS_LANES:
        return None
    if op == "select":
        return arguments[1]
    element = result_type(op, [element_of(a) for a in arguments])
    if element == "pred" and element_of(first) != "pred":
        return compared(first)
    return None if element is None else vector(element, lanes_of(first))


def takes_stored(op: str) -> bool:
    """Whether an operation takes elements in their stored type; others compute in a computation type."""
    return op in OF_STORED
