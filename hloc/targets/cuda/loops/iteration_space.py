"""The iteration space of a pointwise kernel: its dimensions, and the stride of every access along each.

In: a loop Kernel with one element per iteration. Out: a Space, or None for kernels that are not pointwise.

    for i0 of 20000: out[i0] = in[i0 % 100 * 200 + i0 / 100]
      -> dimensions 100 and 200 (the fastest first); out: (1, 100); in: (200, 1)
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hloc.kernels.affine import Affine, affine, forms
from hloc.kernels.ir import INDEX, PARALLEL, VECTOR, Apply, Const, Expr, For, Kernel, Let, Load, Stmt, Store, Var
from hloc.kernels.walks import are_lets_and_stores, loads, stores, with_parts


class Piece(NamedTuple):
    """index / divisor % modulus, for the linear index of an element."""

    divisor: int
    modulus: int


class Dimension(NamedTuple):
    """index / divisor % size, for the linear index of an element."""

    divisor: int
    size: int


class Access(NamedTuple):
    """The strides of a position along the dimensions, and its offset."""

    steps: tuple[int, ...]
    constant: int


class Space(NamedTuple):
    """loads: those whose positions are affine in the dimensions; stores: all stores, likewise."""

    dimensions: tuple[Dimension, ...]
    statements: tuple[Let | Store, ...]
    loads: dict[Load, Access]
    stores: dict[Store, Access]
    elements: int


def space_of(kernel: Kernel) -> Space | None:
    """The space of a pointwise kernel; adjacent dimensions are merged if they are contiguous in all accesses."""
    loop = kernel.body[0] if len(kernel.body) == 1 else None
    if not isinstance(loop, For) or loop.kind != PARALLEL:
        return None
    statements, pieces, count = _elements(loop)
    if not are_lets_and_stores(statements):
        return None
    for statement in statements:
        if isinstance(statement, Let) and statement.value.type == INDEX:
            piece = _piece(statement.value, pieces)
            if piece is not None:
                pieces[statement.name] = piece
    known = forms(statements)
    dimensions = _dimensions(pieces, count)
    if dimensions is None:
        return None
    found: list[Load | Store] = [*loads(statements), *stores(statements)]
    accesses = {a: _access(affine(a.position, known), pieces, dimensions) for a in found}
    if any(accesses[s] is None for s in stores(statements)):
        return None
    dimensions, moved = _merged(dimensions, {a: access for a, access in accesses.items() if access is not None})
    return Space(dimensions, tuple(statements), {a: k for a, k in moved.items() if isinstance(a, Load)},
                 {a: k for a, k in moved.items() if isinstance(a, Store)}, count)


def counters(loop: For, element: str, index: str) -> list[str]:
    """The loop's counters in C, computed from the linear index of the element. index: their C type."""
    inner = loop.body[0] if len(loop.body) == 1 else None
    if isinstance(inner, For):
        return [f"const {index} thread = {element};",
                f"const {index} {loop.name} = thread / {inner.extent}, {inner.name} = thread % {inner.extent};"]
    return [f"const {index} {loop.name} = {element};"]


def replaced(statement: Let | Store, places: Mapping[Load, Expr]) -> Let | Store:
    """The statement with its loads replaced."""
    return statement._replace(value=with_loads(statement.value, places))


def with_loads(expr: Expr, places: Mapping[Load, Expr]) -> Expr:
    """The expression with its loads replaced."""
    if isinstance(expr, Load):
        return places.get(expr, expr)
    return with_parts(expr, lambda part: with_loads(part, places))


def is_along(access: Access, width: int) -> bool:
    """Whether adjacent elements are contiguous in memory, and every vector of them is aligned."""
    return access.steps[0] == 1 and access.constant % width == 0 and not any(s % width for s in access.steps[1:])


def inside(kernel: Kernel, load: Load, access: Access, dimensions: tuple[Dimension, ...]) -> bool:
    """Whether every position is inside the buffer, so that it may be read even if its value is not used."""
    size = next((b.size for b in kernel.buffers if b.name == load.buffer), 0)
    reach = [step * (d.size - 1) for step, d in zip(access.steps, dimensions)]
    return access.constant + sum(min(s, 0) for s in reach) >= 0 and \
        access.constant + sum(max(s, 0) for s in reach) < size


def _elements(loop: For) -> tuple[tuple[Stmt, ...], dict[str, Piece], int]:
    """The statements of one element, the counters as pieces of its linear index, and the number of elements."""
    inner = loop.body[0] if len(loop.body) == 1 else None
    if isinstance(inner, For) and inner.kind == VECTOR and isinstance(inner.extent, int):
        pieces = {loop.name: Piece(inner.extent, loop.trip_count), inner.name: Piece(1, inner.extent)}
        return inner.body, pieces, loop.trip_count * inner.extent
    return loop.body, {loop.name: Piece(1, loop.trip_count)}, loop.trip_count


def _piece(value: Expr, pieces: Mapping[str, Piece]) -> Piece | None:
    """x / c or x % c of a piece x, if that is a piece; else None."""
    if not isinstance(value, Apply) or value.op not in ("divide", "remainder"):
        return None
    whole, by = value.arguments
    if not isinstance(whole, Var) or whole.name not in pieces or not isinstance(by, Const):
        return None
    outer, size = pieces[whole.name], by.integer
    if size <= 0 or outer.modulus % size:
        return None
    return Piece(outer.divisor * size, outer.modulus // size) if value.op == "divide" else Piece(outer.divisor, size)


def _dimensions(pieces: Mapping[str, Piece], count: int) -> tuple[Dimension, ...] | None:
    """The dimensions of which every piece is composed."""
    bounds = sorted({1, count, *(p.divisor for p in pieces.values()),
                     *(p.divisor * p.modulus for p in pieces.values())})
    if any(b % a for a, b in zip(bounds, bounds[1:])):
        return None
    return tuple(Dimension(a, b // a) for a, b in zip(bounds, bounds[1:])) or (Dimension(1, 1),)


def _access(form: Affine, pieces: Mapping[str, Piece], dimensions: tuple[Dimension, ...]) -> Access | None:
    """The access of a position; None if it depends on anything but the pieces."""
    factors = form.factors
    if factors is None or not factors.keys() <= pieces.keys():
        return None
    steps = [0] * len(dimensions)
    for name, factor in factors.items():
        piece = pieces[name]
        for n, dimension in enumerate(dimensions):
            if piece.divisor <= dimension.divisor < piece.divisor * piece.modulus:
                steps[n] += factor * (dimension.divisor // piece.divisor)
    return Access(tuple(steps), form.constant)


def _merged(dimensions: tuple[Dimension, ...], accesses: dict) -> tuple[tuple[Dimension, ...], dict]:
    """Adjacent dimensions merged into one if they are contiguous in every access."""
    kept, steps = [dimensions[0]], [[a.steps[0]] for a in accesses.values()]
    for n in range(1, len(dimensions)):
        if all(a.steps[n] == own[-1] * kept[-1].size for a, own in zip(accesses.values(), steps)):
            kept[-1] = Dimension(kept[-1].divisor, kept[-1].size * dimensions[n].size)
        else:
            kept.append(dimensions[n])
            for a, own in zip(accesses.values(), steps):
                own.append(a.steps[n])
    return tuple(kept), {key: Access(tuple(own), a.constant) for (key, a), own in zip(accesses.items(), steps)}
