"""Divisions whose results are rounded to bf16: by the device's quick division of f32.

In: a loop Kernel. Out: the same, with convert(divide(a, b)) as convert(quotient(a, b)). The quick one is wrong by two
units in f32's last place at most, a third of the instructions; a quotient of two bf16 numbers is never so near to the
middle between two others that this could matter (of two f16 numbers it may be).
"""
from __future__ import annotations

from hloc.kernels.ir import Apply, Expr, For, If, Kernel, Stmt, While
from hloc.kernels.walks import with_expressions, with_parts


def with_quotients(kernel: Kernel) -> Kernel:
    return kernel._replace(body=_all(kernel.body))


def _all(statements: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    return tuple(_statement(s) for s in statements)


def _statement(statement: Stmt) -> Stmt:
    if isinstance(statement, If):
        return If(_changed(statement.condition), _all(statement.then), _all(statement.otherwise))
    if isinstance(statement, (For, While)):
        return statement._replace(body=_all(statement.body))
    return with_expressions(statement, _changed)


def _changed(expr: Expr) -> Expr:
    expr = with_parts(expr, _changed)
    if isinstance(expr, Apply) and expr.op == "convert" and expr.type == "bf16":
        (inner,) = expr.arguments
        if isinstance(inner, Apply) and inner.op == "divide" and inner.type == "f32":
            return expr._replace(arguments=(inner._replace(op="quotient"),))
    return expr
