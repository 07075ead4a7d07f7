"""Sequential updates in place: matches the kernel of a scatter and gives its parts to scatter_owners.py and atomics.py.

In: a loop Kernel. Out: its Updates, or None if it has another form.

    parallel for b: for i: for j: p = index[i * 9 + j]; if (0 <= p & p < 100) for c: out[p * 64 + c] += update[...]
      -> before: (), outer: (b, ...), counters: ((i, 7), (j, 9)), lets: (p = ...), guard: if (0 <= p ...) for c: ...
"""
from __future__ import annotations

import math
from typing import NamedTuple

from hloc.kernels.affine import Affine, affine, forms
from hloc.kernels.ir import PARALLEL, SERIAL, Apply, Const, Expr, For, If, Kernel, Let, Stmt, Store, Var
from hloc.kernels.walks import defined, lets_of, loads, stores, walk


class Updates(NamedTuple):
    """before: Lets of the kernel; outer: the outermost PARALLEL loop, with its Lets; counters: of the serial loop nest,
    with their extents; lets: of an update; guard: the If whose body applies the update."""

    before: tuple[Let, ...]
    outer: For | None
    outer_lets: tuple[Let, ...]
    counters: tuple[tuple[str, int], ...]
    lets: tuple[Let, ...]
    guard: If

    @property
    def total(self) -> int:
        return math.prod(extent for _, extent in self.counters)

    def at(self, kernel: Kernel, loop: For) -> Kernel:
        """The kernel with this PARALLEL loop in place of everything except the first Lets."""
        return kernel._replace(body=(*self.before, loop))


def updates_of(kernel: Kernel) -> Updates | None:
    """The Updates of a kernel that consists of loops, Lets, one condition, and Stores under it; else None."""
    before, loop = _lets_and(kernel.body, For)
    outer: For | None = None
    outer_lets: tuple[Let, ...] = ()
    if isinstance(loop, For) and loop.kind == PARALLEL:
        outer = loop
        outer_lets, loop = _lets_and(outer.body, For)
    counters: list[tuple[str, int]] = []
    lets: tuple[Let, ...] = ()
    while isinstance(loop, For) and loop.kind == SERIAL and isinstance(loop.extent, int):
        counters.append((loop.name, loop.extent))
        more, last = _lets_and(loop.body, For, If)
        lets += more
        if isinstance(last, If):
            plain = all(isinstance(s, (Let, For, Store)) for s in walk(last.then))
            found = Updates(before, outer, outer_lets, tuple(counters), lets, last)
            return found if plain and not last.otherwise else None
        loop = last
    return None


def _lets_and(statements: tuple[Stmt, ...], *kinds: type) -> tuple[tuple[Let, ...], Stmt | None]:
    """The Lets of a body, and the one statement of these kinds after them."""
    lets = lets_of(statements[:-1])
    if not statements or lets is None or not isinstance(statements[-1], kinds):
        return (), None
    return lets, statements[-1]


class Place(NamedTuple):
    """The position that updates store to, the same for all arrays. form: its affine form; inner: counters of the
    window, with their maximum extents; size: elements of each array."""

    form: Affine
    inner: dict[str, int]
    size: int

    @property
    def base(self) -> Affine:
        """The position of a window's first element."""
        return self.form.without(*self.inner)

    @property
    def span(self) -> int:
        """The distance from the first to the last element of a window."""
        return sum((extent - 1) * self.form.factor(name) for name, extent in self.inner.items())


def place_of(updates: Updates, kernel: Kernel) -> Place | None:
    """The place of updates; None if positions are not affine, or a stored array is read at another position."""
    inside = updates.guard.then
    known = forms((*updates.before, *updates.outer_lets, *updates.lets, *inside))
    values = {s.name: s.value for s in walk(inside) if isinstance(s, Let)}
    stored = stores(inside)
    written = {s.buffer for s in stored}
    positions = [s.position for s in stored] + [x.position for x in loads(inside) if x.buffer in written]
    others = (*updates.before, *updates.outer_lets, *updates.lets, Let("", updates.guard.condition))
    if not stored or any(x.buffer in written for x in loads(others)):
        return None
    places = [affine(position, known) for position in positions]
    factors = places[0].factors
    inner = {s.name: _greatest(s.extent, values) for s in walk(inside) if isinstance(s, For)}
    sizes = {b.size for b in kernel.buffers if b.name in written}
    if factors is None or any(p != places[0] for p in places) or 0 in inner.values() or len(sizes) != 1 \
            or (defined(inside) - inner.keys()) & factors.keys() \
            or min(factors.values(), default=0) < 0 or places[0].constant < 0:
        return None
    return Place(places[0], inner, sizes.pop())


def _greatest(extent: int | Expr, values: dict[str, Expr]) -> int:
    """The maximum extent of a loop: a constant, or an expression with a constant bound; 0: unknown."""
    if isinstance(extent, int):
        return extent
    value = values.get(extent.name) if isinstance(extent, Var) else extent
    if isinstance(value, Apply) and value.op == "minimum":
        return next((a.integer for a in value.arguments if isinstance(a, Const)), 0)
    return 0
