"""Sequential updates in place: matches the kernel of a scatter, for scatters.py.

In: a loop Kernel. Out: its Updates, or None if it has another form.

    parallel for b: for i: for j: p = index[i * 9 + j]; if (0 <= p & p < 100) for c: out[p * 64 + c] += update[...]
      -> outer: b, counters: ((i, 7), (j, 9)), lets: (p = ...), guard: if (0 <= p ...) for c: ...
"""
from __future__ import annotations

import math
from typing import NamedTuple

from hloc.kernels.affine import affine, constant_of, factor_of, factors_of, forms, without
from hloc.kernels.ir import PARALLEL, SERIAL, Expr, For, If, Kernel, Let, Store
from hloc.kernels.schedule.nest import most_iterations
from hloc.kernels.walks import defined, lets_of, loads, stores, walk


class Updates(NamedTuple):
    """outer: the PARALLEL loop, if any; fixed: Lets around the others; counters: of the serial loop nest, with their
    extents; lets: of an update; guard: the If whose body applies the update."""

    outer: For | None
    fixed: tuple[Let, ...]
    counters: tuple[tuple[str, int], ...]
    lets: tuple[Let, ...]
    guard: If

    @property
    def total(self) -> int:
        return math.prod(extent for _, extent in self.counters)


def updates_of(kernel: Kernel) -> Updates | None:
    """The Updates of a kernel that consists of loops, Lets, one condition, and Stores under it; else None."""
    outer, fixed, counters, lets = None, list[Let](), list[tuple[str, int]](), list[Let]()
    statements = kernel.body
    while statements and (found := lets_of(statements[:-1])) is not None:
        (lets if counters else fixed).extend(found)
        last = statements[-1]
        if isinstance(last, For) and last.kind == PARALLEL and not (outer or counters):
            outer = last
        elif isinstance(last, For) and last.kind == SERIAL and isinstance(last.extent, int):
            counters.append((last.name, last.extent))
        else:
            is_plain = isinstance(last, If) and counters and not last.otherwise \
                and all(isinstance(s, (Let, For, Store)) for s in walk(last.then))
            return Updates(outer, tuple(fixed), tuple(counters), tuple(lets), last) \
                if is_plain and isinstance(last, If) else None
        statements = last.body
    return None


class Place(NamedTuple):
    """The position that updates store to, the same for all arrays. form: its affine form; inner: counters of the
    window, with their maximum extents; size: elements of each array."""

    form: Expr
    inner: dict[str, int]
    size: int

    @property
    def base(self) -> Expr:
        """The position of a window's first element."""
        return without(self.form, *self.inner)

    @property
    def span(self) -> int:
        """The distance from the first to the last element of a window."""
        return sum((extent - 1) * factor_of(self.form, name) for name, extent in self.inner.items())


def place_of(updates: Updates, kernel: Kernel) -> Place | None:
    """The place of updates; None if positions are not affine, or a stored array is read at another position."""
    inside = updates.guard.then
    others = (*updates.fixed, *updates.lets, Let("", updates.guard.condition))
    known, stored = forms((*others, *inside)), stores(inside)
    written = {s.buffer for s in stored}
    positions = [s.position for s in stored] + [x.position for x in loads(inside) if x.buffer in written]
    if not stored or any(x.buffer in written for x in loads(others)):
        return None
    places = [affine(position, known) for position in positions]
    factors, values = factors_of(places[0]), {s.name: s.value for s in walk(inside) if isinstance(s, Let)}
    inner = {s.name: most_iterations(s.extent, values) for s in walk(inside) if isinstance(s, For)}
    sizes = {b.size for b in kernel.buffers if b.name in written}
    if factors is None or any(p != places[0] for p in places) or 0 in inner.values() or len(sizes) != 1 \
            or (defined(inside) - inner.keys()) & factors.keys() \
            or min(factors.values(), default=0) < 0 or constant_of(places[0]) < 0:
        return None
    return Place(places[0], inner, sizes.pop())
