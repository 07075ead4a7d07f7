"""Narrow elements that several results or pieces of a kernel only move stay in storage form.

In: statements of a kernel. Out: the same, without names for narrow elements in computation form that are only converted
back.

    t = f32(x[i]); out[i] = bf16(t); other[i] = bf16(t)     =>     t = x[i]; out[i] = t; other[i] = t
"""
from __future__ import annotations

from collections import Counter
from typing import TypeGuard

from hloc.kernels.ir import INDEX, Apply, Expr, Let, Stmt, Var
from hloc.kernels.scalars import is_narrow
from hloc.kernels.walks import expressions, parts, walk, with_all_expressions, with_parts


def without_conversions(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """The statements, with such names in storage form."""
    widened = {s.name: s.value.arguments[0] for s in walk(body) if isinstance(s, Let) and _is_widening(s.value)}
    if not widened:
        return body
    found = [e for s in walk(body) for e in parts(expressions(s))]
    reads = Counter(e.name for e in found if isinstance(e, Var))
    backs = Counter(name for e in found if (name := _converted_back(e, widened)))
    moved = {name: widened[name] for name, count in backs.items() if count == reads[name]}

    def change(expr: Expr) -> Expr:
        name = _converted_back(expr, moved)
        return Var(name, expr.type) if name else with_parts(expr, change)
    return with_all_expressions(body, change, lambda s: Let(s.name, with_parts(moved[s.name], change))
                                if isinstance(s, Let) and s.name in moved else None) if moved else body


def _is_widening(value: Expr) -> TypeGuard[Apply]:
    if not isinstance(value, Apply) or value.op != "convert" or value.arguments[0].type == INDEX:
        return False
    return is_narrow(value.arguments[0].type)


def _converted_back(expr: Expr, widened: dict[str, Expr]) -> str:
    """The name that an expression converts back to its source type; '' for other expressions."""
    if not isinstance(expr, Apply) or expr.op != "convert" or not isinstance(expr.arguments[0], Var):
        return ""
    name = expr.arguments[0].name
    return name if name in widened and widened[name].type == expr.type else ""
