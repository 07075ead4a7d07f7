"""Whether 32 bits are enough for every position and counter of a kernel: 64-bit division is slow on a GPU.

In: a Kernel, and its CUDA C with `long` positions. Out: the text with `int` ones, where all values that they and their
parts can have are known to fit; positions that depend on data stay 64 bits wide.

    fits(kernel)  ->  every INDEX expression lies within +-2**30, by interval arithmetic over the loops' extents
"""
from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable

from hloc.kernels.ir import INDEX, PARALLEL, VECTOR, Apply, Const, Expr, For, If, Kernel, Let, Load, Stmt, Var, While
from hloc.targets.cuda import linear

LIMIT = 1 << 30                 # a grid's step may be added before a loop ends
WIDE = re.compile(r"\(long\)|(?<!unsigned )(?<!long )\blong\b(?! long)|(?<=\d)L\b")

Interval = tuple[int, int]


class _Unknown(Exception):
    """A value that depends on data, or may be too large."""


def fits(kernel: Kernel) -> bool:
    """All INDEX values of the kernel are known to be small."""
    if any(b.size >= LIMIT for b in kernel.buffers):
        return False
    try:
        _statements(kernel.body, {}, 1)
    except _Unknown:
        return False
    return True


def narrowed(text: str) -> str:
    """CUDA C with `int` where it had `long`; comments stay."""
    return "\n".join(line if line.startswith("/*") else
                     WIDE.sub(lambda m: "int" if m.group() == "long" else "", line) for line in text.split("\n"))


def _statements(statements: Iterable[Stmt], known: dict[str, Interval], around: int) -> None:
    for statement in statements:
        if isinstance(statement, For):
            last = statement.extent - 1 if isinstance(statement.extent, int) else _value(statement.extent, known)[1]
            _small((0, max(0, last)))
            inner = around * max(1, last + 1) if statement.kind in (PARALLEL, VECTOR) else around
            if inner >= LIMIT:                                              # the counters of both may become one
                raise _Unknown
            _statements(statement.body, {**known, statement.name: (0, max(0, last))}, inner)
            continue
        for expr in linear.expressions(statement):
            _look(expr, known)
        if isinstance(statement, Let) and statement.value.type == INDEX:
            known[statement.name] = _value(statement.value, known)
        elif isinstance(statement, If):
            _statements(statement.then, dict(known), around)
            _statements(statement.otherwise, dict(known), around)
        elif isinstance(statement, While) or getattr(getattr(statement, "initial", None), "type", "") == INDEX:
            raise _Unknown


def _look(expr: Expr, known: dict[str, Interval]) -> None:
    """Every INDEX expression inside of any expression."""
    if expr.type == INDEX:
        _value(expr, known)
    elif isinstance(expr, Load):
        _value(expr.position, known)
    elif isinstance(expr, Apply):
        for argument in expr.arguments:
            _look(argument, known)


def _value(expr: Expr, known: dict[str, Interval]) -> Interval:
    if isinstance(expr, Const):
        return _small((int(expr.value), int(expr.value)))
    if isinstance(expr, Var):
        if expr.name not in known:
            raise _Unknown
        return known[expr.name]
    if not isinstance(expr, Apply) or expr.op not in RULES:
        raise _Unknown
    if expr.op == "select":
        _look(expr.arguments[0], known)
        return _union(*(_value(a, known) for a in expr.arguments[1:]))
    return _small(RULES[expr.op](*(_value(a, known) for a in expr.arguments)))


def _small(interval: Interval) -> Interval:
    if interval[0] <= -LIMIT or interval[1] >= LIMIT:
        raise _Unknown
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
        raise _Unknown
    return _corners(lambda x, y: math.trunc(x / y))(a, b)


def _remainder(a: Interval, b: Interval) -> Interval:
    if b[0] <= 0:
        raise _Unknown
    most = b[1] - 1
    return (0 if a[0] >= 0 else -most), (min(a[1], most) if a[0] >= 0 else most)


RULES: dict[str, Callable] = {
    "add": _corners(lambda x, y: x + y), "subtract": _corners(lambda x, y: x - y),
    "multiply": _corners(lambda x, y: x * y), "minimum": _corners(min), "maximum": _corners(max),
    "divide": _quotient, "remainder": _remainder, "select": _union,
}
