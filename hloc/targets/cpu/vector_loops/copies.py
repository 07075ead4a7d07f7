"""Loops that copy elements: where they read and write, as sums of counters times constants.

In: statements of a loop. Out: Terms, of which transpose_calls.py and streaming_store_calls.py make calls.

    named_positions([Let p = 32 i]), terms_of(p + j, named)  ->  {"i": 32, "j": 1}
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from hloc.kernels.indexing import index_apply
from hloc.kernels.ir import INDEX, Apply, Const, Expr, Let, Load, Stmt, Store, Var
from hloc.kernels.walks import with_parts
from hloc.targets.printer import expression

Terms = Mapping[str | None, int]        # what each name is multiplied by; None: the constant


def plain(expr: Expr, named: Mapping[str, Expr]) -> Expr:
    """A position without the names."""
    if isinstance(expr, Var) and expr.name in named:
        return plain(named[expr.name], named)
    return with_parts(expr, lambda part: plain(part, named))


def is_copy(s: Stmt | None) -> bool:
    """Whether a statement only moves an element to another buffer."""
    return isinstance(s, Store) and isinstance(s.value, Load) and s.buffer != s.value.buffer


def named_positions(lets: Sequence[Stmt]) -> dict[str, Expr] | None:
    """What the names of positions stand for; None where there are other statements."""
    if not all(isinstance(s, Let) and s.value.type == INDEX for s in lets):
        return None
    return {s.name: s.value for s in lets}


def terms_of(expr: Expr, named: Mapping[str, Expr]) -> Terms | None:
    """A position as a sum; None where it is none."""
    if isinstance(expr, Const):
        return {None: expr.value}
    if isinstance(expr, Var):
        return terms_of(named[expr.name], named) if expr.name in named else {expr.name: 1}
    if not isinstance(expr, Apply) or expr.op not in ("add", "subtract", "multiply"):
        return None
    a, b = (terms_of(e, named) for e in expr.arguments)
    if a is None or b is None:
        return None
    if expr.op == "multiply":
        factor, terms = (b, a) if set(b) == {None} else (a, b)
        return {name: n * factor[None] for name, n in terms.items()} if set(factor) == {None} else None
    sign = 1 if expr.op == "add" else -1
    total = {name: a.get(name, 0) + sign * b.get(name, 0) for name in {**a, **b}}
    return {name: n for name, n in total.items() if n or name is None}


def pointer(buffer: str, place: Terms) -> str:
    """The C expression for that place of a buffer."""
    result: Expr = Var(buffer, INDEX)
    for name, factor in sorted(place.items(), key=lambda item: (item[0] is None, item[0])):
        term = Const(factor, INDEX) if name is None else index_apply("multiply", Var(name, INDEX), Const(factor, INDEX))
        result = index_apply("add", result, term)
    return expression(result)
