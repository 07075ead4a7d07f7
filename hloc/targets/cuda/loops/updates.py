"""Updates in place, one after the other: the form of a scatter's kernel, taken apart for owners.py and atomics.py.

In: a loop Kernel. Out: its Updates, or None where it is something else.

    parallel for b: for i: for j: p = index[i * 9 + j]; if (0 <= p & p < 100) for c: out[p * 64 + c] += update[...]
      -> before: (), outer: (b, ...), counters: ((i, 7), (j, 9)), lets: (p = ...), guard: if (0 <= p ...) for c: ...
"""
from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from hloc.kernels.ir import INDEX, PARALLEL, SERIAL, Apply, Const, Expr, For, If, Kernel, Let, Stmt, Store, Var
from hloc.kernels.walks import walk
from hloc.targets.cuda.loops import linear
from hloc.targets.cuda.loops.linear import Form


class Updates(NamedTuple):
    """before: Lets of the kernel; outer: the PARALLEL loop around all, with the Lets in it; counters: of the serial
    nest, with their extents; lets: of an update; guard: what is done where it fits."""

    before: tuple[Stmt, ...]
    outer: For | None
    outer_lets: tuple[Stmt, ...]
    counters: tuple[tuple[str, int], ...]
    lets: tuple[Stmt, ...]
    guard: If

    @property
    def count(self) -> int:
        return math.prod(extent for _, extent in self.counters)

    def at(self, kernel: Kernel, loop: For) -> Kernel:
        """The kernel with another PARALLEL loop in the place of everything but the first Lets."""
        return kernel._replace(body=(*self.before, loop))


def updates_of(kernel: Kernel) -> Updates | None:
    """Only loops, Lets, one condition, and Stores in it."""
    before, loop = _lets_and(kernel.body, For)
    outer, outer_lets = None, ()
    if loop is not None and loop.kind == PARALLEL:
        outer = loop
        outer_lets, loop = _lets_and(outer.body, For)
    counters, lets = [], ()
    while loop is not None and loop.kind == SERIAL and isinstance(loop.extent, int):
        counters.append((loop.name, loop.extent))
        more, last = _lets_and(loop.body, For, If)
        lets += more
        if isinstance(last, If):
            plain = all(isinstance(s, (Let, For, Store)) for s in walk(last.then))
            found = Updates(before, outer, outer_lets, tuple(counters), lets, last)
            return found if plain and not last.otherwise else None
        loop = last
    return None


def _lets_and(statements: tuple[Stmt, ...], *kinds: type) -> tuple[tuple[Stmt, ...], Stmt | None]:
    """The Lets of a body, and the one statement of these kinds after them."""
    if not statements or not isinstance(statements[-1], kinds) or not all(isinstance(s, Let) for s in statements[:-1]):
        return (), None
    return statements[:-1], statements[-1]


class Place(NamedTuple):
    """Where updates store: the same position for all arrays. form: of it; inner: counters of the window, with their
    greatest extents; size: elements of each array."""

    form: Form
    inner: dict[str, int]
    size: int

    @property
    def base(self) -> dict[str, int]:
        """Factors of all that is fixed within a window."""
        return {name: factor for name, factor in self.form.factors.items() if name not in self.inner}

    @property
    def span(self) -> int:
        """From the first to the last element of a window."""
        return sum((extent - 1) * self.form.factors.get(name, 0) for name, extent in self.inner.items())


def place_of(updates: Updates, kernel: Kernel) -> Place | None:
    """None where positions are not linear, or what is stored is read at another place."""
    inside = updates.guard.then
    known = linear.lets((*updates.before, *updates.outer_lets, *updates.lets, *inside), {})
    values = {s.name: s.value for s in walk(inside) if isinstance(s, Let)}
    stores = linear.stores(inside)
    written = {s.buffer for s in stores}
    positions = [s.position for s in stores] + [x.position for x in linear.loads(inside) if x.buffer in written]
    others = (*updates.before, *updates.outer_lets, *updates.lets, Let("", updates.guard.condition))
    if not stores or any(x.buffer in written for x in linear.loads(others)):
        return None
    forms = [linear.linear(position, known) for position in positions]
    inner = {s.name: _greatest(s.extent, values) for s in walk(inside) if isinstance(s, For)}
    sizes = {b.size for b in kernel.buffers if b.name in written}
    if forms[0] is None or any(f != forms[0] for f in forms) or 0 in inner.values() or len(sizes) != 1 \
            or (linear.defined(inside) - inner.keys()) & forms[0].factors.keys() \
            or min(forms[0].factors.values(), default=0) < 0 or forms[0].constant < 0:
        return None
    return Place(forms[0], inner, sizes.pop())


def _greatest(extent: int | Expr, values: dict[str, Expr]) -> int:
    """Of a loop whose extent is a number, or at most one; 0: unknown."""
    if isinstance(extent, int):
        return extent
    value = values.get(extent.name) if isinstance(extent, Var) else extent
    if isinstance(value, Apply) and value.op == "minimum":
        return next((int(a.value) for a in value.arguments if isinstance(a, Const)), 0)
    return 0


def sum_of(factors: Iterable[tuple[str, int]], constant: int = 0) -> Expr:
    """An INDEX expression: constant + sum(factor * name)."""
    terms: list[Expr] = [_scaled(name, factor) for name, factor in sorted(factors)]
    if constant or not terms:
        terms.append(Const(constant, INDEX))
    total = terms[0]
    for term in terms[1:]:
        total = Apply("add", (total, term), INDEX)
    return total


def _scaled(name: str, factor: int) -> Expr:
    return Var(name, INDEX) if factor == 1 else Apply("multiply", (Var(name, INDEX), Const(factor, INDEX)), INDEX)
