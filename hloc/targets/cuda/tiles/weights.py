"""Weights that tensor cores round to 16 bits: how attention_gradient_group.cuh computes them.

In: the epilogue of an "attention_gradient" Tile, whose last statements are Lets of "weight0", "weight1". Out:
statements of the same weights, in fewer instructions and without branches, so that sums of products keep their
registers: exponentials and quotients by the special function unit, with a relative error of about 2^-20; no rounding
that the tensor cores' operand repeats; both choices of a select are computed first, if all that they load is there.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from hloc.kernels.affine import Interval, Unknown, range_of
from hloc.kernels.ir import Apply, Const, Expr, Let, Load, Stmt, Var
from hloc.kernels.walks import expressions, parts, with_all_parts, with_parts

FAST = {"exp": "exp_fast", "divide": "divide_fast"}


def fast_weights(weights: Sequence[Stmt], narrow: str, sizes: Mapping[str, int], extents: Mapping[str, int]
                 ) -> tuple[Stmt, ...]:
    """narrow: the type that the weights are rounded to; sizes: elements of the buffers; extents: of the Vars "batch",
    "row" and "column"."""
    read = Counter(e.name for s in weights for e in parts(expressions(s)) if isinstance(e, Var))
    given = {s.value.name for s in weights if isinstance(s, Let) and s.name.startswith("weight")
             and isinstance(s.value, Var) and read[s.value.name] == 1}
    rounded_once = (s._replace(value=_unrounded(s.value, narrow)) if isinstance(s, Let) and s.name in given else s
                    for s in weights)
    choices = _Choices(sizes, {name: (0, extent - 1) for name, extent in extents.items()})
    return tuple(new for s in with_all_parts(rounded_once, _fast) for new in choices.statement(s))


def _unrounded(value: Expr, narrow: str) -> Expr:
    """x of a value that is x rounded to the type `narrow` and converted to f32."""
    inner = value.arguments[0] if isinstance(value, Apply) and value.op == "convert" and value.type == "f32" else None
    if isinstance(inner, Apply) and inner.op == "convert" and inner.type == narrow and inner.arguments[0].type == "f32":
        return inner.arguments[0]
    return value


def _fast(expr: Expr) -> Expr:
    if isinstance(expr, Apply) and expr.type == "f32" and expr.op in FAST:
        return expr._replace(op=FAST[expr.op])
    return expr


class _Choices:
    """Names the choices of selects of f32, which C would compute in branches."""

    def __init__(self, sizes: Mapping[str, int], known: Mapping[str, Interval]) -> None:
        self.sizes, self.known, self.count = sizes, known, 0

    def statement(self, statement: Stmt) -> tuple[Stmt, ...]:
        if not isinstance(statement, Let):
            return (statement,)
        named: list[Stmt] = []
        value = self.expression(statement.value, named)
        return (*named, statement._replace(value=value))

    def expression(self, expr: Expr, named: list[Stmt]) -> Expr:
        expr = with_parts(expr, lambda part: self.expression(part, named))
        if isinstance(expr, Apply) and expr.op == "select" and expr.type == "f32":
            condition, *choices = expr.arguments
            return expr._replace(arguments=(condition, *(self.name(c, named) for c in choices)))
        return expr

    def name(self, choice: Expr, named: list[Stmt]) -> Expr:
        loads = [e for e in parts([choice]) if isinstance(e, Load)]
        if isinstance(choice, (Const, Var)) or not all(map(self.is_inside, loads)):
            return choice
        self.count += 1
        named.append(Let(f"choice{self.count}", choice))
        return Var(f"choice{self.count}", choice.type)

    def is_inside(self, load: Load) -> bool:
        try:
            low, high = range_of(load.position, self.known)
        except Unknown:
            return False
        return 0 <= low and high < self.sizes.get(load.buffer, 0)
