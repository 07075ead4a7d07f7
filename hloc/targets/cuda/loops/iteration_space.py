"""The iteration space of a pointwise kernel: its elements as a nest of axes, along which accesses have strides.

In: a loop Kernel with one element per iteration. Out: a Space, or None for kernels that are not pointwise.

    for i0 of 20000: out[i0] = in[i0 % 100 * 200 + i0 / 100]
      -> for d1 of 200: for d0 of 100: i0 = 100 d1 + d0; out[100 d1 + d0] = in[200 d0 + d1]
"""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hloc.kernels.affine import affine, constant_of, factor_of, factors_of, forms, of_names
from hloc.kernels.indexing import delinearize, floor_divide, modulo, strided, to_expr, variable
from hloc.kernels.ir import INDEX, PARALLEL, Apply, Const, Expr, For, Kernel, Let, Load, Store, Var
from hloc.kernels.walks import (
    are_lets_and_stores,
    expressions,
    lets_of,
    loads,
    needed,
    stores,
    with_expressions,
    with_values,
)


class Piece(NamedTuple):
    """element / divisor % size, of the linear index of an element."""

    divisor: int
    size: int


class Space(NamedTuple):
    """counters: the axes with their extents, the fastest last; before: names of values that all elements share; body:
    of an element. Positions that are affine in the axes, as those of all stores are, have no other names."""

    counters: tuple[tuple[str, int], ...]
    before: tuple[Let, ...]
    body: tuple[Let | Store, ...]

    @property
    def sizes(self) -> dict[str, int]:
        return dict(self.counters)


def space_of(kernel: Kernel) -> Space | None:
    """The space of a pointwise kernel. Its axes are what quotients and remainders of the linear index are made of;
    adjacent ones are merged if they are contiguous in all accesses."""
    loop = parallel_loop(kernel)
    before = lets_of([s for s in kernel.body if s is not loop])
    if loop is None or before is None or not are_lets_and_stores(loop.body):
        return None
    body, count, pieces = loop.body, loop.trip_count, {loop.name: Piece(1, loop.trip_count)}
    for s in body:
        if isinstance(s, Let) and s.value.type == INDEX and (piece := _piece(s.value, pieces)) is not None:
            pieces[s.name] = piece
    bounds = [1, *sorted({b for p in pieces.values() for b in (p.divisor, p.divisor * p.size)} - {1, count}), count]
    if any(b % a for a, b in zip(bounds, bounds[1:])):
        return None
    finest = _axes(bounds)
    known = forms(body, {name: _value(piece, finest) for name, piece in pieces.items()})
    found: list[Load | Store] = [*loads(body), *stores(body)]
    accesses = {a: form for a in found if (factors := factors_of(form := affine(a.position, known))) is not None
                and factors.keys() <= finest.keys()}
    if any(s not in accesses for s in stores(body)):
        return None
    split = [axis for n, axis in enumerate(finest) if not n or any(
        factor_of(form, axis) != factor_of(form, f"d{n - 1}") * finest[f"d{n - 1}"].size for form in accesses.values())]
    axes = _axes([*(finest[axis].divisor for axis in split), count])
    lets = {name: Let(name, _value(piece, axes)) for name, piece in pieces.items()}
    places = {a: of_names({new: factor_of(form, old) for new, old in zip(axes, split)}, constant_of(form))
              for a, form in accesses.items()}
    moved = {a: a._replace(position=place) for a, place in places.items() if isinstance(a, Load)}
    changed: list[Let | Store] = [lets[loop.name]]
    for s in body:
        new = lets.get(s.name, s) if isinstance(s, Let) else s._replace(position=places[s])
        changed.append(with_expressions(new, lambda e: with_values(e, moved)))
    used = {s.name for s in needed(changed, [e for s in changed if isinstance(s, Store) for e in expressions(s)])}
    return Space(tuple(reversed([(axis, at.size) for axis, at in axes.items()])), before,
                 tuple(s for s in changed if isinstance(s, Store) or s.name in used))


def _axes(bounds: list[int]) -> dict[str, Piece]:
    """The axes between numbers, each of which divides the next."""
    return {f"d{n}": Piece(a, b // a) for n, (a, b) in enumerate(zip(bounds, bounds[1:]))}


def _value(piece: Piece, axes: Mapping[str, Piece]) -> Expr:
    """A piece of the linear index of the elements that have these axes."""
    element = strided([variable(axis, at.size) for axis, at in axes.items()], [at.divisor for at in axes.values()])
    return to_expr(modulo(floor_divide(element, piece.divisor), piece.size))


def counters_of(number: str, nest: Sequence[tuple[str, int]]) -> list[Let]:
    """The counters of a nest of loops, the innermost last, from the number of the iteration."""
    extents = [n for _, n in nest]
    places = delinearize(variable(number, math.prod(extents)), extents)
    return [Let(name, to_expr(place)) for (name, _), place in zip(nest, places)]


def parallel_loop(kernel: Kernel) -> For | None:
    return next((s for s in kernel.body if isinstance(s, For) and s.kind == PARALLEL), None)


def _piece(value: Expr, pieces: Mapping[str, Piece]) -> Piece | None:
    """x / c or x % c of a piece x, if that is a piece; else None."""
    if not isinstance(value, Apply) or value.op not in ("divide", "remainder"):
        return None
    whole, by = value.arguments
    if not isinstance(whole, Var) or whole.name not in pieces or not isinstance(by, Const):
        return None
    outer, size = pieces[whole.name], by.integer
    if size <= 0 or outer.size % size:
        return None
    is_quotient = value.op == "divide"
    return Piece(outer.divisor * (size if is_quotient else 1), outer.size // size if is_quotient else size)
