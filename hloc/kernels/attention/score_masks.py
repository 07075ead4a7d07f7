"""Extracts the mask of an attention's score.

In: the epilogue of an attention Tile (hloc/kernels/attention/attention.py). Out: the mask's condition, if the score is
one of two values by it, so that targets can skip masked elements.

    t0 = in3[column]; score = select(t0, acc * 0.125, -1e30)   ->   Mask(t0, -1e30, needed = the Let of t0)
"""
from __future__ import annotations

from typing import NamedTuple

from hloc.kernels.ir import Apply, Const, Expr, Let, Var
from hloc.kernels.walks import names_in


class Mask(NamedTuple):
    """value: of masked elements; needed: the statements of the epilogue that the condition needs."""

    condition: Expr
    value: float
    needed: tuple[Let, ...]


def mask_of(statements: tuple) -> Mask | None:
    """The mask if the score is select(condition, anything, constant), or select(not condition, constant, anything),
    and the condition does not depend on the sum."""
    lets = {s.name: s.value for s in statements if isinstance(s, Let)}
    value = _followed(statements[-1].value, lets) if len(lets) == len(statements) else None
    if not isinstance(value, Apply) or value.op != "select":
        return None
    condition, on, off = value.arguments
    on, off = _followed(on, lets), _followed(off, lets)
    if isinstance(on, Const) and not isinstance(off, Const):
        condition, off = Apply("not", (condition,), "pred"), on
    used = names_in([condition], lets)
    if not isinstance(off, Const) or "acc" in used:
        return None
    return Mask(condition, float(off.real), tuple(s for s in statements if s.name in used))


def _followed(value: Expr, lets: dict[str, Expr]) -> Expr:
    """The value of a name."""
    while isinstance(value, Var) and value.name in lets:
        value = lets[value.name]
    return value
