"""Loops that copy elements: their source and target positions as affine forms of the counters.

In: statements of a loop. Out: affine forms, which transpose_calls.py, streaming_store_calls.py and pixel_calls.py turn
into calls.

    place(p + j, named_positions([Let p = 32 i]))  ->  32 i + j
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeGuard

from hloc.kernels.affine import Affine, affine, forms
from hloc.kernels.ir import INDEX, Const, Expr, For, Let, Load, Stmt, Store
from hloc.targets.c_expressions import ExpressionPrinter


def is_copy(s: Stmt | None) -> TypeGuard[Store]:
    """Whether a statement only moves an element to another buffer."""
    return isinstance(s, Store) and isinstance(s.value, Load) and s.buffer != s.value.buffer


def copied_by(s: Store) -> Load:
    """The element that a copy moves."""
    assert isinstance(s.value, Load)
    return s.value


class NestedCopy(NamedTuple):
    """Two nested loops around one copy: forms of the positions, and the extent of the inner loop, outside of both."""

    store: Store
    target: Affine
    source: Affine
    inner: For
    length: int | Expr


def nested_copy(loop: For) -> NestedCopy | None:
    """The copy that a loop in a loop does; None for other loops."""
    inner = loop.body[-1] if loop.body else None
    if not isinstance(inner, For) or not inner.body:
        return None
    store, known = inner.body[-1], named_positions((*loop.body[:-1], *inner.body[:-1]))
    if known is None or not is_copy(store):
        return None
    target, source = place(store.position, known), place(copied_by(store).position, known)
    length = length_of(inner, loop, known)
    if target is None or source is None or length is None:
        return None
    return NestedCopy(store, target, source, inner, length)


def named_positions(statements: Sequence[Stmt]) -> dict[str, Affine] | None:
    """The forms of names; None if there is anything but names for sums of other names."""
    known = forms(statements)
    if not all(isinstance(s, Let) and s.name in known and known[s.name].factors is not None for s in statements):
        return None
    return known


def place(position: Expr, known: Mapping[str, Affine]) -> Affine | None:
    """The form of a position; None if it is not a sum of names."""
    form = affine(position, known)
    return form if form.factors is not None else None


def length_of(inner: For, outer: For, known: Mapping[str, Affine]) -> int | Expr | None:
    """The extent of a loop, computed outside of the surrounding one; None if it depends on that loop."""
    if isinstance(inner.extent, int):
        return inner.extent
    form = place(inner.extent, known)
    return form.expression() if form is not None and not form.factor(outer.name) else None


def pointer(buffer: str, form: Affine, printer: ExpressionPrinter) -> str:
    """The C expression for that position in a buffer."""
    place = form.expression()
    return buffer if place == Const(0, INDEX) else f"{buffer} + {printer.expression(place)}"
