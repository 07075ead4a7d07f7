"""Computes divisions of positions in VECTOR loops in 32 bits.

Compilers vectorize these, but leave loops with 64-bit divisions scalar.

In: a Kernel. Out: the kernel with divisions by constants rewritten if the dividend is known to fit into 32 bits.

    i / 12   ->   convert(divide(convert(i, u32), 12), index)
"""
from __future__ import annotations

from hloc.kernels.intervals import Known, interval, with_intervals
from hloc.kernels.ir import INDEX, Apply, Const, Expr, If, Kernel, Stmt
from hloc.kernels.walks import operation, with_expressions, with_parts
from hloc.machine import Machine


def division_narrowing(kernel: Kernel, machine: Machine) -> Kernel:
    """The kernel with 32-bit divisions in its VECTOR loops."""
    return kernel._replace(body=with_intervals(kernel.body, _statement))


def _statement(s: Stmt, known: Known, in_vector: bool) -> tuple[Stmt, ...]:
    if not in_vector:
        return (s,)
    if isinstance(s, If):
        return (s._replace(condition=_narrow(s.condition, known)),)
    return (with_expressions(s, lambda e: _narrow(e, known)),)


def _narrow(expr: Expr, known: Known) -> Expr:
    inner = with_parts(expr, lambda part: _narrow(part, known))
    if isinstance(expr, Apply) and expr.type == INDEX and expr.op in ("divide", "remainder") \
            and isinstance(expr.arguments[1], Const):
        range_of = interval(expr.arguments[0], known)
        if range_of and range_of[0] >= 0:
            divisor = Const(expr.arguments[1].value, "u32")
            narrow = Apply(expr.op, (Apply("convert", operation(inner).arguments[:1], "u32"), divisor), "u32")
            return Apply("convert", (narrow,), INDEX)
    return inner
