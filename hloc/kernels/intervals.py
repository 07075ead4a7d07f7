"""Bounds of INDEX expressions by interval arithmetic.

In: an expression, and the intervals of the variables in it. Out: its interval; Unknown if it depends on data, or if it
or one of its parts may leave +-2**30.

    value_of(i + 4, {"i": (0, 9)})      ->  (4, 13)
"""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from hloc.kernels.ir import INDEX, SUM, Apply, Const, Expr, Load, Var

LIMIT = 1 << 30                 # a grid's step may be added before a loop ends

Interval = tuple[int, int]


class Unknown(Exception):
    """A value that depends on data, or may be too large."""


def value_of(expr: Expr, known: Mapping[str, Interval]) -> Interval:
    if isinstance(expr, Const):
        return small((expr.integer, expr.integer))
    if isinstance(expr, Var):
        if expr.name not in known:
            raise Unknown
        return known[expr.name]
    if isinstance(expr, Apply) and expr.op == SUM:
        return _sum(expr, known)
    if not isinstance(expr, Apply) or expr.op not in RULES:
        raise Unknown
    if expr.op == "select":
        look(expr.arguments[0], known)
        return _union(*(value_of(a, known) for a in expr.arguments[1:]))
    return small(RULES[expr.op](*(value_of(a, known) for a in expr.arguments)))


def _sum(expr: Apply, known: Mapping[str, Interval]) -> Interval:
    """Of all parts of a sum that a compiler may compute on its way."""
    *factors, constant = expr.immediate
    low, high = small((constant, constant))
    for atom, factor in zip(expr.arguments, factors):
        ends = sorted(end * factor for end in value_of(atom, known))
        low, high = low + ends[0], high + ends[1]
        small((min(ends[0], low), max(ends[1], high)))
    return low, high


def look(expr: Expr, known: Mapping[str, Interval]) -> None:
    """Visit every INDEX expression inside of any expression."""
    if expr.type == INDEX:
        value_of(expr, known)
    elif isinstance(expr, Load):
        value_of(expr.position, known)
    elif isinstance(expr, Apply):
        for argument in expr.arguments:
            look(argument, known)


def small(interval: Interval) -> Interval:
    if interval[0] <= -LIMIT or interval[1] >= LIMIT:
        raise Unknown
    return interval


def _union(a: Interval, b: Interval) -> Interval:
    return min(a[0], b[0]), max(a[1], b[1])


def _corners(op: Callable[[int, int], int]) -> Callable[[Interval, Interval], Interval]:
    def rule(a: Interval, b: Interval) -> Interval:
        found = [op(x, y) for x in a for y in b]
        return min(found), max(found)
    return rule


def _quotient(a: Interval, b: Interval) -> Interval:
    if b[0] <= 0:
        raise Unknown
    return _corners(lambda x, y: math.trunc(x / y))(a, b)


def _remainder(a: Interval, b: Interval) -> Interval:
    if b[0] <= 0:
        raise Unknown
    most = b[1] - 1
    return (0 if a[0] >= 0 else -most), (min(a[1], most) if a[0] >= 0 else most)


RULES: dict[str, Callable] = {
    "multiply": _corners(lambda x, y: x * y), "minimum": _corners(min), "maximum": _corners(max),
    "divide": _quotient, "remainder": _remainder, "select": _union,
}
