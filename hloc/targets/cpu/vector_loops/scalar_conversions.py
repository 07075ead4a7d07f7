"""Converts single numbers between f16 and f32 by the CPU's instructions.

Compilers do not select these; in VECTOR loops, which are left to them, they vectorize conversions by integers.

In: a Kernel. Out: the kernel with `widen` and `narrow` for conversions outside of VECTOR loops, printed as
hloc_widen_f16 and hloc_narrow_f32 of runtime/half_rows.h.

    out[0] = f16(f32(x[0]) * 2)   ->   out[0] = narrow(widen(x[0]) * 2)
"""
from __future__ import annotations

from collections.abc import Iterable

from hloc.kernels.ir import VECTOR, Apply, Expr, For, If, Kernel, Stmt, While
from hloc.kernels.walks import rebuilt, with_expressions
from hloc.machine import Machine

SINGLE = {("f16", "f32"): "widen", ("f32", "f16"): "narrow"}


def scalar_conversions(kernel: Kernel, machine: Machine) -> Kernel:
    """The kernel with such conversions."""
    return kernel._replace(body=with_scalar_conversions(kernel.body))


def with_scalar_conversions(statements: Iterable[Stmt]) -> tuple[Stmt, ...]:
    """Statements with such conversions."""
    return tuple(map(_statement, statements))


def _statement(s: Stmt) -> Stmt:
    if isinstance(s, For):
        return s if s.kind == VECTOR else s._replace(body=with_scalar_conversions(s.body))
    if isinstance(s, If):
        return If(rebuilt(s.condition, _by_instruction), *map(with_scalar_conversions, (s.then, s.otherwise)))
    if isinstance(s, While):
        return While(rebuilt(s.condition, _by_instruction), with_scalar_conversions(s.body))
    return with_expressions(s, lambda e: rebuilt(e, _by_instruction))


def _by_instruction(expr: Expr) -> Expr:
    if not isinstance(expr, Apply) or expr.op != "convert":
        return expr
    return expr._replace(op=SINGLE.get((expr.arguments[0].type, expr.type), expr.op))
