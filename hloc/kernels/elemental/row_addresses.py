"""Positions in loops over rows: which loops an expression depends on, and which positions are contiguous over all rows.

In: nested loops, the innermost of which, a VECTOR loop over columns, stores elements. Out: for an expression the loops
that change it; for a position its start, if its stride is one element per column, and one row per row. NotContiguous if
there is no such answer.

    for row < 64:  for c < 5 (VECTOR):  out[5 row + c + 7]             along(5 row + c + 7) = 7
"""
from __future__ import annotations

from collections.abc import Iterable

from hloc.kernels.affine import affine, forms
from hloc.kernels.ir import VECTOR, Expr, For, Let, Load, Var
from hloc.kernels.walks import are_lets, are_lets_and_stores, parts


class NotContiguous(Exception):
    """Elements of these rows are not contiguous, or need values that no table holds."""


class RowAddresses:
    """One or two loops over rows that contain only Lets and the next loop. before: Lets of a row; inner: Lets of an
    element, by name; length: columns."""

    def __init__(self, loops: list[For]):
        columns = loops[-1].body[-1] if loops[-1].body else None
        before = [s for loop in loops for s in loop.body[:-1]]
        if not (isinstance(columns, For) and columns.kind == VECTOR and isinstance(columns.extent, int)
                and all(isinstance(loop.extent, int) for loop in loops) and are_lets(before)
                and are_lets_and_stores(columns.body)):
            raise NotContiguous
        self.loops, self.columns, self.length = loops, columns, columns.trip_count
        self.statements = columns.body
        self.before: dict[str, Expr] = {s.name: s.value for s in before}
        self.inner: dict[str, Expr] = {s.name: s.value for s in columns.body if isinstance(s, Let)}
        self.forms = forms([*before, *columns.body])
        self.known: dict[str, frozenset[str]] = {}

    def depends(self, expr: Expr) -> frozenset[str]:
        """The loops whose iterations change an expression."""
        return frozenset().union(*(self.name_depends(e.name) for e in parts([expr]) if isinstance(e, Var)))

    def name_depends(self, name: str) -> frozenset[str]:
        if name in self.steps:
            return frozenset([name])
        value = self.before.get(name, self.inner.get(name))
        if value is None:
            return frozenset()
        if name not in self.known:
            self.known[name] = self.depends(value)
        return self.known[name]

    @property
    def steps(self) -> dict[str, int]:
        """Stride in elements of each loop."""
        *outer, rows = self.loops
        return {**{loop.name: rows.trip_count * self.length for loop in outer}, rows.name: self.length,
                self.columns.name: 1}

    def place(self, position: Expr) -> tuple[dict[str, int], Expr]:
        """A position as strides of the loops and the rest. NotContiguous if the rest changes with the loops."""
        form = affine(position, self.forms)
        rest = form.without(*self.steps)
        if any(map(self.depends, rest.terms)):
            raise NotContiguous
        return {n: step for n in self.steps if (step := form.factor(n))}, rest.expression()

    def along(self, position: Expr) -> Expr | None:
        """The start of a position that is contiguous over all elements; None for others."""
        try:
            steps, rest = self.place(position)
        except NotContiguous:
            return None
        own = {n: step for n, step in self.steps.items() if self.extent_of(n) > 1}
        return rest if {n: step for n, step in steps.items() if n in own} == own else None

    def extent_of(self, name: str) -> int:
        return next(loop.trip_count for loop in (*self.loops, self.columns) if loop.name == name)

    def everything(self, values: Iterable[Expr]) -> Iterable[Expr]:
        """Expressions, and those that their names stand for."""
        stack, seen = list(values), set()
        while stack:
            for e in parts([stack.pop()]):
                yield e
                if isinstance(e, Var) and e.name in self.inner and e.name not in seen:
                    seen.add(e.name)
                    stack.append(self.inner[e.name])

    def needed(self, expr: Expr) -> tuple[Let, ...]:
        """The Lets of an element that an expression reads, in order."""
        names = {e.name for e in self.everything([expr]) if isinstance(e, Var)}
        return tuple(Let(n, v) for n, v in self.inner.items() if n in names)

    def is_gathered(self, load: Load) -> bool:
        """Whether the position of a load depends on data for each element: such loads are vectorized as gathers."""
        return self.columns.name in self.depends(load.position) and any(
            isinstance(e, Load) for e in self.everything([load.position]))
