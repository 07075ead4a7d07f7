"""Going through a kernel with the least and the greatest values of its positions in hand.

In: statements. Out: the statements with each replaced by what `change(statement, known, in_vector)` makes of it; known:
the intervals of counters and named positions there; the bodies of loops and conditions have been changed before.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable

from hloc.kernels.ir import INDEX, VECTOR, Expr, For, If, Let, Stmt, While
from hloc.targets.ranges import Interval, Unknown, value_of

Known = dict[str, Interval]
Change = Callable[[Stmt, Known, bool], tuple[Stmt, ...]]


def with_intervals(statements: Iterable[Stmt], change: Change, known: Known | None = None,
                   in_vector: bool = False) -> tuple[Stmt, ...]:
    """The changed statements. `known` learns what they name."""
    known = {} if known is None else known
    return tuple(new for s in statements for new in change(_inside(s, change, known, in_vector), known, in_vector))


def interval(expr: Expr, known: Known) -> Interval | None:
    """None: it depends on data, or may be too large."""
    try:
        return value_of(expr, known)
    except Unknown:
        return None


def _inside(s: Stmt, change: Change, known: Known, in_vector: bool) -> Stmt:
    if isinstance(s, For):
        inner, last = dict(known), _last(s.extent, known)
        if last is not None:
            inner[s.name] = (0, max(0, last - 1))
        return s._replace(body=with_intervals(s.body, change, inner, in_vector or s.kind == VECTOR))
    if isinstance(s, If):
        return If(s.condition, *(with_intervals(b, change, dict(known), in_vector) for b in (s.then, s.otherwise)))
    if isinstance(s, While):
        return s._replace(body=with_intervals(s.body, change, dict(known), in_vector))
    if isinstance(s, Let) and s.value.type == INDEX and (found := interval(s.value, known)):
        known[s.name] = found
    return s


def _last(extent: int | Expr, known: Known) -> int | None:
    if isinstance(extent, int):
        return extent
    found = interval(extent, known)
    return found[1] if found else None
