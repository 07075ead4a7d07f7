"""The iteration space of a pointwise kernel: its elements as a nest of axes, along which accesses have strides.

In: a loop Kernel with one element per iteration. Out: a Space, or None for kernels that are not pointwise.

    for i0 of 20000: out[i0] = in[i0 % 100 * 200 + i0 / 100]
      -> for d1 of 200: for d0 of 100: i0 = 100 d1 + d0; out[100 d1 + d0] = in[200 d0 + d1]
"""
from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from hloc.kernels.affine import affine, constant_of, factor_of, factors_of, forms, of_names, without
from hloc.kernels.indexing import index_apply
from hloc.kernels.ir import INDEX, PARALLEL, VECTOR, Apply, Const, Expr, For, Kernel, Let, Load, Store, Var
from hloc.kernels.walks import are_lets_and_stores, loads, stores


class Piece(NamedTuple):
    """element / divisor % size, of the linear index of an element."""

    divisor: int
    size: int


class Space(NamedTuple):
    """counters: the axes with their extents, the fastest last; body: of an element; loads: those whose positions are
    affine in the axes; stores: all stores, likewise."""

    counters: tuple[tuple[str, int], ...]
    body: tuple[Let | Store, ...]
    loads: dict[Load, Expr]
    stores: dict[Store, Expr]

    @property
    def elements(self) -> int:
        return math.prod(self.sizes.values())

    @property
    def sizes(self) -> dict[str, int]:
        return dict(self.counters)


def space_of(kernel: Kernel) -> Space | None:
    """The space of a pointwise kernel. Its axes are what quotients and remainders of the linear index are made of;
    adjacent ones are merged if they are contiguous in all accesses."""
    loop = parallel_loop(kernel)
    if loop is None or len(kernel.body) > 1:
        return None
    inner, count = inner_vector(loop), elements_of(loop)
    body = inner.body if inner else loop.body
    if not are_lets_and_stores(body):
        return None
    pieces = {loop.name: Piece(inner.trip_count if inner else 1, loop.trip_count)}
    if inner:
        pieces[inner.name] = Piece(1, inner.trip_count)
    outside = list(pieces)
    for s in body:
        if isinstance(s, Let) and s.value.type == INDEX and (piece := _piece(s.value, pieces)) is not None:
            pieces[s.name] = piece
    bounds = [1, *sorted({b for p in pieces.values() for b in (p.divisor, p.divisor * p.size)} - {1, count}), count]
    if any(b % a for a, b in zip(bounds, bounds[1:])):
        return None
    finest = _axes(bounds)
    known = forms(body, {name: _form(piece, finest) for name, piece in pieces.items()})
    found: list[Load | Store] = [*loads(body), *stores(body)]
    accesses = {a: form for a in found if (factors := factors_of(form := affine(a.position, known))) is not None
                and factors.keys() <= finest.keys()}
    if any(s not in accesses for s in stores(body)):
        return None
    split = [axis for n, axis in enumerate(finest) if not n or any(
        factor_of(form, axis) != factor_of(form, f"d{n - 1}") * finest[f"d{n - 1}"].size for form in accesses.values())]
    axes = _axes([*(finest[axis].divisor for axis in split), count])
    element, ends = _form(Piece(1, count), axes), {count, *(at.divisor for at in axes.values())}
    lets = {name: Let(name, _form(p, axes) if {p.divisor, p.divisor * p.size} <= ends
                      else _part(element, p, count)) for name, p in pieces.items()}
    moved = {a: of_names({new: factor_of(form, old) for new, old in zip(axes, split)}, constant_of(form))
             for a, form in accesses.items()}
    return Space(tuple(reversed([(axis, at.size) for axis, at in axes.items()])),
                 (*(lets[name] for name in outside),
                  *(lets[s.name] if isinstance(s, Let) and s.name in lets else s for s in body)),
                 {a: form for a, form in moved.items() if isinstance(a, Load)},
                 {a: form for a, form in moved.items() if isinstance(a, Store)})


def _axes(bounds: list[int]) -> dict[str, Piece]:
    """The axes between numbers, each of which divides the next."""
    return {f"d{n}": Piece(a, b // a) for n, (a, b) in enumerate(zip(bounds, bounds[1:]))}


def _form(piece: Piece, axes: Mapping[str, Piece]) -> Expr:
    """A piece that consists of whole axes."""
    return of_names({axis: at.divisor // piece.divisor for axis, at in axes.items()
                     if piece.divisor <= at.divisor < piece.divisor * piece.size})


def _part(element: Expr, piece: Piece, count: int) -> Expr:
    """A piece of the linear index of `count` elements."""
    whole = index_apply("divide", element, Const(piece.divisor, INDEX))
    is_last = piece.divisor * piece.size == count
    return whole if is_last else Apply("remainder", (whole, Const(piece.size, INDEX)), INDEX)


def parallel_loop(kernel: Kernel) -> For | None:
    return next((s for s in kernel.body if isinstance(s, For) and s.kind == PARALLEL), None)


def inner_vector(loop: For) -> For | None:
    """The VECTOR loop that is the whole body of a PARALLEL one: the printer collapses them."""
    inner = loop.body[0]
    is_inner = len(loop.body) == 1 and isinstance(inner, For) and inner.kind == VECTOR and isinstance(inner.extent, int)
    return inner if is_inner else None      # type: ignore[return-value]    # which is a For


def elements_of(loop: For) -> int:
    """The iterations of a PARALLEL loop, collapsed."""
    inner = inner_vector(loop)
    return loop.trip_count * (inner.trip_count if inner else 1)


def vectors_along(form: Expr, axis: str, width: int) -> Expr | None:
    """The position of the first element along an axis, if its vectors are contiguous in memory and aligned."""
    start = without(form, axis)
    factors = factors_of(start)
    is_aligned = factors is not None and not any(n % width for n in (constant_of(start), *factors.values()))
    return start if is_aligned and factor_of(form, axis) == 1 else None


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
