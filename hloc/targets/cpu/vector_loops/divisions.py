"""Divisions of positions in VECTOR loops, in 32 bits: compilers make vectors of those, and loops over 64-bit ones stay
scalar.

In: a Kernel. Out: the kernel with such divisions by constants rewritten, where the dividend is known to fit.

    i / 12   ->   convert(divide(convert(i, u32), 12), index)
"""
from __future__ import annotations

from collections.abc import Iterable

from hloc.kernels.ir import INDEX, VECTOR, Apply, Const, Expr, For, If, Kernel, Let, Stmt
from hloc.kernels.walks import with_expressions, with_parts
from hloc.targets.ranges import Interval, Unknown, value_of

Known = dict[str, Interval]


def narrow_divisions(kernel: Kernel) -> Kernel:
    """The kernel with 32-bit divisions in its VECTOR loops."""
    return kernel._replace(body=_statements(kernel.body, {}, False))


def _statements(statements: Iterable[Stmt], known: Known, in_vector: bool) -> tuple[Stmt, ...]:
    return tuple(_statement(s, known, in_vector) for s in statements)


def _statement(s: Stmt, known: Known, in_vector: bool) -> Stmt:
    """`known` learns the interval of what is named."""
    if isinstance(s, For):
        inner = dict(known)
        if isinstance(s.extent, int):
            inner[s.name] = (0, max(0, s.extent - 1))
        elif _interval(s.extent, known):
            inner[s.name] = (0, max(0, _interval(s.extent, known)[1] - 1))
        return s._replace(body=_statements(s.body, inner, in_vector or s.kind == VECTOR))
    if isinstance(s, Let) and s.value.type == INDEX and _interval(s.value, known):
        known[s.name] = _interval(s.value, known)
    if isinstance(s, If):
        condition = _narrow(s.condition, known) if in_vector else s.condition
        return If(condition, _statements(s.then, dict(known), in_vector),
                  _statements(s.otherwise, dict(known), in_vector))
    return with_expressions(s, lambda e: _narrow(e, known)) if in_vector else s


def _interval(expr: Expr, known: Known) -> Interval | None:
    try:
        return value_of(expr, known)
    except Unknown:
        return None


def _narrow(expr: Expr, known: Known) -> Expr:
    inner = with_parts(expr, lambda part: _narrow(part, known))
    if isinstance(expr, Apply) and expr.type == INDEX and expr.op in ("divide", "remainder") \
            and isinstance(expr.arguments[1], Const):
        range_of = _interval(expr.arguments[0], known)
        if range_of and range_of[0] >= 0:
            divisor = Const(expr.arguments[1].value, "u32")
            narrow = Apply(expr.op, (Apply("convert", inner.arguments[:1], "u32"), divisor), "u32")
            return Apply("convert", (narrow,), INDEX)
    return inner
