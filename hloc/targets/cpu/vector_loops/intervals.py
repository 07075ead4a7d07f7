"""Going through a kernel with the least and the greatest values of its positions in hand.

In: statements. Out: the statements with each replaced by what `change(statement, known, in_vector)` makes of it; known:
the intervals of counters, named positions and sums of them there; the bodies of loops and conditions have been changed
before.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable

from hloc.kernels.ir import INDEX, VECTOR, Apply, Expr, For, If, Let, Stmt, Var, While
from hloc.targets.ranges import Interval, Unknown, value_of


class Known(dict[str, Interval]):
    """The intervals of names. lesser: of a name that is a minimum, the values it is the least of; sums: the intervals
    of whole expressions."""

    def __init__(self, other: Known | None = None) -> None:
        super().__init__(other or {})
        self.lesser: dict[str, tuple[Expr, ...]] = dict(other.lesser) if other else {}
        self.sums: dict[Expr, Interval] = dict(other.sums) if other else {}

    def learn(self, let: Let) -> None:
        """What a position's name tells."""
        found = interval(let.value, self)
        if found:
            self[let.name] = found
        if isinstance(let.value, Apply) and let.value.op == "minimum":
            self.lesser[let.name] = let.value.arguments

    def count(self, loop: For) -> None:
        """What is known inside of a loop: its counter i is less than its extent; so, where that is the lesser of
        something and n - first (the last of several pieces is shorter), first + i is less than n."""
        last = _last(loop.extent, self)
        if last is not None:
            self[loop.name] = (0, max(0, last - 1))
        for most in self.lesser.get(loop.extent.name, ()) if isinstance(loop.extent, Var) else ():
            if isinstance(most, Apply) and most.op == "subtract":
                whole, first = interval(most.arguments[0], self), interval(most.arguments[1], self)
                if whole and first:
                    place = Apply("add", (most.arguments[1], Var(loop.name, INDEX)), INDEX)
                    self.sums[place] = (first[0], max(first[0], whole[1] - 1))


Change = Callable[[Stmt, Known, bool], tuple[Stmt, ...]]


def with_intervals(statements: Iterable[Stmt], change: Change, known: Known | None = None,
                   in_vector: bool = False) -> tuple[Stmt, ...]:
    """The changed statements. `known` learns what they name."""
    known = Known() if known is None else known
    return tuple(new for s in statements for new in change(_inside(s, change, known, in_vector), known, in_vector))


def interval(expr: Expr, known: Known) -> Interval | None:
    """None: it depends on data, or may be too large."""
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
    if isinstance(s, While):
        return s._replace(body=with_intervals(s.body, change, Known(known), in_vector))
    if isinstance(s, Let) and s.value.type == INDEX:
        known.learn(s)
    return s


def _last(extent: int | Expr, known: Known) -> int | None:
    if isinstance(extent, int):
        return extent
    found = interval(extent, known)
    return found[1] if found else None
