"""Positions as linear forms: which iterations of a loop touch which elements.

In: INDEX expressions and the Lets they are made from. Out: {name: factor} plus a constant, or None where an expression
is not linear. Decides whether iterations are independent (teams.py).

    linear(i0 * 768 + p3, {"p3": Form({"i1": 1}, 4)})  ->  Form({"i0": 768, "i1": 1}, 4)
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hloc.kernels.ir import INDEX, Apply, Const, Expr, For, Let, Load, Mutable, Stmt, Store, Var
from hloc.kernels.walks import expressions, parts, walk


class Form(NamedTuple):
    """sum(factor * name) + constant; names without an entry have factor 0."""

    factors: Mapping[str, int]
    constant: int = 0


def linear(expr: Expr, known: Mapping[str, Form]) -> Form | None:
    """The linear form of an INDEX expression; `known` resolves names, others stand for themselves."""
    if isinstance(expr, Const):
        return Form({}, int(expr.value))
    if isinstance(expr, Var):
        return known.get(expr.name, Form({expr.name: 1}))
    if not isinstance(expr, Apply) or expr.type != INDEX or expr.op not in ("add", "subtract", "multiply"):
        return None
    left, right = (linear(a, known) for a in expr.arguments)
    if left is None or right is None:
        return None
    if expr.op == "multiply":
        if left.factors and right.factors:
            return None
        moving, factor = (left, right.constant) if left.factors else (right, left.constant)
        return _sum(moving, factor, Form({}), 0)
    return _sum(left, 1, right, 1 if expr.op == "add" else -1)


def _sum(a: Form, by: int, b: Form, times: int) -> Form:
    factors = {name: f * by for name, f in a.factors.items()}
    for name, f in b.factors.items():
        factors[name] = factors.get(name, 0) + f * times
    return Form({n: f for n, f in factors.items() if f}, a.constant * by + b.constant * times)


def lets(statements: Iterable[Stmt], known: Mapping[str, Form]) -> dict[str, Form]:
    """`known` with the linear INDEX Lets of these statements, nested ones too."""
    found = dict(known)
    for statement in walk(statements):
        if isinstance(statement, Let) and statement.value.type == INDEX:
            form = linear(statement.value, found)
            if form is not None:
                found[statement.name] = form
    return found


def loads(statements: Iterable[Stmt]) -> Iterable[Load]:
    for statement in walk(statements):
        for part in parts(expressions(statement)):
            if isinstance(part, Load):
                yield part


def stores(statements: Iterable[Stmt]) -> list[Store]:
    return [s for s in walk(statements) if isinstance(s, Store)]


def defined(statements: Iterable[Stmt]) -> set[str]:
    """Names of Lets, Mutables and counters that statements define."""
    return {s.name for s in walk(statements) if isinstance(s, (Let, Mutable, For))}


def injective(form: Form, extents: Mapping[str, int]) -> bool:
    """Different values of the counters (name -> number of values) give different positions."""
    reach = 0
    for factor, extent in sorted((abs(form.factors.get(name, 0)), n) for name, n in extents.items() if n > 1):
        if factor <= reach:
            return False
        reach += factor * (extent - 1)
    return True
