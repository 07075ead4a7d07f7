"""Converts single numbers between f16 and f32 by the CPU's instructions.

Compilers do not select these; in VECTOR loops, which are left to them, they vectorize conversions by integers.

In: a Kernel. Out: the kernel with `widen` and `narrow` for conversions outside of VECTOR loops, printed as
hloc_widen_f16 and hloc_narrow_f32 of runtime/half_rows.h.

    out[0] = f16(f32(x[0]) * 2)   ->   out[0] = narrow(widen(x[0]) * 2)
"""
from __future__ import annotations

from collections.abc import Iterable

from hloc.kernels.ir import VECTOR, Apply, Expr, For, If, Kernel, Stmt, While
from hloc.kernels.walks import with_expressions, with_parts
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
        return If(_by_instructions(s.condition), *map(with_scalar_conversions, (s.then, s.otherwise)))
    if isinstance(s, While):
        return While(_by_instructions(s.condition), with_scalar_conversions(s.body))
    return with_expressions(s, _by_instructions)


def _by_instructions(expr: Expr) -> Expr:
    changed = with_parts(expr, _by_instructions)
    if not isinstance(changed, Apply) or changed.op != "convert":
        return changed
    return changed._replace(op=SINGLE.get((changed.arguments[0].type, changed.type), changed.op))
