"""The iteration space of a pointwise kernel: its dimensions, and the stride of every access along each.

In: a loop Kernel with one element per iteration. Out: a Space, or None for kernels that are not pointwise.

    for i0 of 20000: out[i0] = in[i0 % 100 * 200 + i0 / 100]
      -> dimensions 100 and 200 (the fastest first); out: (1, 100); in: (200, 1)
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hloc.kernels.affine import Affine, affine, forms
from hloc.kernels.ir import INDEX, PARALLEL, VECTOR, Apply, Const, Expr, For, Kernel, Let, Load, Store, Var
from hloc.kernels.walks import are_lets_and_stores, loads, stores


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
    loop = parallel_loop(kernel)
    if loop is None or len(kernel.body) > 1:
        return None
    inner, count = inner_vector(loop), elements_of(loop)
    statements = inner.body if inner else loop.body
    if not are_lets_and_stores(statements):
        return None
    pieces = {loop.name: Dimension(inner.trip_count if inner else 1, loop.trip_count)}
    if inner:
        pieces[inner.name] = Dimension(1, inner.trip_count)
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
    inner = inner_vector(loop)
    if inner is None:
        return [f"const {index} {loop.name} = {element};"]
    return [f"const {index} thread = {element};",
            f"const {index} {loop.name} = thread / {inner.extent}, {inner.name} = thread % {inner.extent};"]


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




def is_along(access: Access, width: int, along: int = 0) -> bool:
    """Whether adjacent elements of a dimension are contiguous in memory, and every vector of them is aligned."""
    others = (s for n, s in enumerate(access.steps) if n != along)
    return access.steps[along] == 1 and access.constant % width == 0 and not any(s % width for s in others)


def inside(kernel: Kernel, load: Load, access: Access, dimensions: tuple[Dimension, ...]) -> bool:
    """Whether every position is inside the buffer, so that it may be read even if its value is not used."""
    size = next((b.size for b in kernel.buffers if b.name == load.buffer), 0)
    reach = [step * (d.size - 1) for step, d in zip(access.steps, dimensions)]
    return access.constant + sum(min(s, 0) for s in reach) >= 0 and \
        access.constant + sum(max(s, 0) for s in reach) < size


def _piece(value: Expr, pieces: Mapping[str, Dimension]) -> Dimension | None:
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
    return Dimension(outer.divisor * (size if is_quotient else 1), outer.size // size if is_quotient else size)


def _dimensions(pieces: Mapping[str, Dimension], count: int) -> tuple[Dimension, ...] | None:
    """The dimensions of which every piece is composed."""
    bounds = sorted({1, count, *(p.divisor for p in pieces.values()),
                     *(p.divisor * p.size for p in pieces.values())})
    if any(b % a for a, b in zip(bounds, bounds[1:])):
        return None
    return tuple(Dimension(a, b // a) for a, b in zip(bounds, bounds[1:])) or (Dimension(1, 1),)


def _access(form: Affine, pieces: Mapping[str, Dimension], dimensions: tuple[Dimension, ...]) -> Access | None:
    """The access of a position; None if it depends on anything but the pieces."""
    factors = form.factors
    if factors is None or not factors.keys() <= pieces.keys():
        return None
    steps = [0] * len(dimensions)
    for name, factor in factors.items():
        piece = pieces[name]
        for n, dimension in enumerate(dimensions):
            if piece.divisor <= dimension.divisor < piece.divisor * piece.size:
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
