"""Bounds of INDEX expressions by interval arithmetic, and a traversal that tracks the intervals of names.

In: an expression, and the intervals of the variables in it. Out: its interval; Unknown if it depends on data, or if it
or one of its parts may leave +-2**30.

    value_of(i + 4, {"i": (0, 9)})      ->  (4, 13)
    with_intervals(body, change)        ->  what change(statement, known, in_vector) makes of each statement
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from hloc.kernels.indexing import sum_of, sum_parts
from hloc.kernels.ir import INDEX, SUM, VECTOR, Apply, Const, Expr, For, If, Last, Let, Load, Stmt, Var, While

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


# -- statements --------------------------------------------------------------------------------------------------------

class Known(dict[str, Interval]):
    """The intervals of names. lesser: for a name that is a minimum, its operands; sums: the intervals of whole
    expressions."""

    def __init__(self, other: Known | None = None) -> None:
        super().__init__(other or {})
        self.lesser: dict[str, tuple[Expr, ...]] = dict(other.lesser) if other else {}
        self.sums: dict[Expr, Interval] = dict(other.sums) if other else {}

    def learn(self, let: Let) -> None:
        """Record what the name of a position implies."""
        found = interval(let.value, self)
        if found:
            self[let.name] = found
        if isinstance(let.value, Apply) and let.value.op == "minimum":
            self.lesser[let.name] = let.value.arguments

    def count(self, loop: For) -> None:
        """Record what is known inside of a loop: its counter i is less than its extent. If the extent is the minimum of
        a value and n - first (the last of several pieces is shorter), first + i is less than n."""
        last = _last(loop.extent, self)
        if last is not None:
            self[loop.name] = (0, max(0, last - 1))
        for most in self.lesser.get(loop.extent.name, ()) if isinstance(loop.extent, Var) else ():
            terms, constant = sum_parts(most)
            terms = tuple(terms)
            behind = [(atom, factor) for atom, factor in terms if factor > 0]
            before = [(atom, -factor) for atom, factor in terms if factor < 0]
            whole, first = interval(sum_of(behind, constant), self), interval(sum_of(before, 0), self)
            if before and whole and first:
                place = sum_of([*before, (Var(loop.name, INDEX), 1)], 0)
                self.sums[place] = (first[0], max(first[0], whole[1] - 1))


Change = Callable[[Stmt, Known, bool], tuple[Stmt, ...]]


def with_intervals(statements: Iterable[Stmt], change: Change, known: Known | None = None,
                   in_vector: bool = False) -> tuple[Stmt, ...]:
    """The statements, each replaced by the result of `change`. known: intervals of counters, named positions and sums
    of them at that point, updated with the names of the statements; bodies of loops and conditions are changed first.
    """
    known = Known() if known is None else known
    return tuple(new for s in statements for new in change(_inside(s, change, known, in_vector), known, in_vector))


def interval(expr: Expr, known: Known) -> Interval | None:
    """The interval; None if it depends on data, or may be too large."""
    try:
        return known.sums.get(expr) or value_of(expr, known)
    except Unknown:
        return None


def _inside(s: Stmt, change: Change, known: Known, in_vector: bool) -> Stmt:
    if isinstance(s, For):
        inner = Known(known)
        inner.count(s)
        return s._replace(body=with_intervals(s.body, change, inner, in_vector or s.kind == VECTOR))
    if isinstance(s, If):
        return If(s.condition, *(with_intervals(b, change, Known(known), in_vector) for b in (s.then, s.otherwise)))
    if isinstance(s, (While, Last)):
        return s._replace(body=with_intervals(s.body, change, Known(known), in_vector))
    if isinstance(s, Let) and s.value.type == INDEX:
        known.learn(s)
    return s


def _last(extent: int | Expr, known: Known) -> int | None:
    if isinstance(extent, int):
        return extent
    found = interval(extent, known)
    return found[1] if found else None
