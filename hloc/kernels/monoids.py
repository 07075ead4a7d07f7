"""Reducers that may be reassociated: the op and its identity; and those that choose a value and its place.

In: a reduce's to_apply. Out: "add", "maximum" ... if it is one binary operation of its two parameters that may be done
in any order; None for everything else, which then keeps one chain of updates, unless it is a `choice` (argmax).
"""
from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hloc.ir import ELEMENT_TYPES, Computation, Instruction
from hloc.kernels.ir import Const
from hloc.kernels.scalars import computation_type, literal
from hloc.ops.combiners import plain_opcode

MONOIDS = frozenset(["add", "multiply", "maximum", "minimum", "and", "or", "xor"])
FIRST, LAST = "first", "last"
COMPARISONS = {"EQ": operator.eq, "NE": operator.ne, "LT": operator.lt, "LE": operator.le, "GT": operator.gt,
               "GE": operator.ge}
LOGIC: dict[str, Callable[..., bool]] = {"and": operator.and_, "or": operator.or_, "xor": operator.xor,
                                         "not": operator.not_}


def monoid(computation: Computation) -> str | None:
    """The op, if the reducer is op(parameter 0, parameter 1) in either order, apart from conversions that keep all
    numbers of the parameters."""
    opcode = plain_opcode(computation)
    return opcode if opcode in MONOIDS and computation.root.opcode != "tuple" else None


def identity(op: str, element_type: str) -> Const:
    """The identity of op, in computation form."""
    type = computation_type(element_type)
    kind = ELEMENT_TYPES[type].kind
    if op == "multiply" or (op in ("and", "minimum") and kind == "pred"):
        return Const({"pred": True, "float": 1.0, "complex": 1 + 0j}.get(kind, 1), type)
    if op in ("maximum", "minimum") and kind == "float":
        return Const(-math.inf if op == "maximum" else math.inf, type)
    if op in ("maximum", "minimum") and kind in ("signed", "unsigned"):
        limits = np.iinfo(ELEMENT_TYPES[type].dtype)
        return Const(int(limits.min if op == "maximum" else limits.max), type)
    if op == "and":
        return Const(-1 if kind == "signed" else int(np.iinfo(ELEMENT_TYPES[type].dtype).max), type)
    return Const({"pred": False, "float": 0.0, "complex": 0j}.get(kind, 0), type)


def is_identity(initial: Instruction, op: str) -> bool:
    """Whether the initial value is a literal equal to the identity of op, so that it can be omitted."""
    if initial.opcode != "constant" or initial.literal is None or initial.shape.num_elements != 1:
        return False
    return literal(initial.literal, initial.shape.element_type) == identity(op, initial.shape.element_type)


class Choice(NamedTuple):
    """Which of the pairs (value, place) a reducer gives: the one of the largest or smallest value. op: "maximum" or
    "minimum"; value, place: of equal values, whether it gives the FIRST or the LAST one's; first_nan: whether it gives
    the first NaN, if there is one; if not, what it gives depends on where NaNs are."""

    op: str
    value: str
    place: str
    first_nan: bool


class _Item(NamedTuple):
    """A parameter of such a reducer, in one case. side: FIRST or LAST, as the pairs are in order."""

    side: str
    is_place: bool
    number: float


def choice(reduce: Instruction) -> Choice | None:
    """What a reducer of pairs chooses; None if it does anything but compare and select. It is evaluated for each order
    of two values, the first of which has the lower place."""
    root = reduce.get("to_apply").root
    kind = ELEMENT_TYPES[reduce.operands[0].shape.element_type].kind
    if len(reduce.operands) != 4 or root.opcode != "tuple" or kind not in ("float", "signed", "unsigned"):
        return None
    above, below, equal, *nans = [_chosen(reduce.get("to_apply"), a, b) for a, b in (
        (1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (math.nan, 0.0), (0.0, math.nan), (math.nan, math.nan))]
    first, last = (FIRST, FIRST), (LAST, LAST)
    if equal is None or (above, below) not in ((first, last), (last, first)):
        return None
    first_nan = nans[:2] == [first, last] and nans[2] is not None and nans[2][1] == FIRST
    return Choice("maximum" if above == first else "minimum", *equal, first_nan)


def _chosen(reducer: Computation, a: float, b: float) -> tuple[str, str] | None:
    """Whose value and whose place a reducer gives for the pairs (a, 0) and (b, 1)."""
    items = [_Item(FIRST, False, a), _Item(FIRST, True, 0), _Item(LAST, False, b), _Item(LAST, True, 1)]
    known: dict[Instruction, _Item | bool] = dict(zip(reducer.parameters, items))
    for node in reducer.instructions:
        given = [known.get(o) for o in node.operands]
        items = [g for g in given if isinstance(g, _Item)]
        if node.opcode == "compare" and len(items) == 2 and items[0].is_place == items[1].is_place \
                and node.get("type") != "TOTALORDER":
            known[node] = COMPARISONS[node.get("direction")](items[0].number, items[1].number)
        elif node.opcode == "select" and isinstance(given[0], bool):
            taken = node.operands[2 - given[0]]
            known |= {node: known[taken]} if taken in known else {}
        elif node.opcode in LOGIC and all(isinstance(g, bool) for g in given):
            known[node] = LOGIC[node.opcode](*given)
    value, place = [known.get(o) for o in reducer.root.operands]
    if not isinstance(value, _Item) or not isinstance(place, _Item) or value.is_place or not place.is_place:
        return None
    return value.side, place.side


def can_reassociate(op: str | None, element_type: str) -> bool:
    """Whether a VECTOR loop can keep one partial result per lane."""
    return op is not None and ELEMENT_TYPES[element_type].kind != "complex"
