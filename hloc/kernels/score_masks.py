"""What the score of an attention says about its mask.

In: the epilogue of an attention Tile (hloc/kernels/lower_attention.py). Out: the mask's condition, where the score is
one of two values by it, so that targets can pass over what it leaves out; and what of the epilogue it needs.

    t0 = in3[column]; score = select(t0, acc * 0.125, -1e30)   ->   (t0, -1e30); needed: t0
"""
from __future__ import annotations

from hloc.kernels.ir import Apply, Const, Expr, Let, Load, Stmt, Var


def mask_of(statements: tuple) -> tuple[Expr, float] | None:
    """(condition, value elsewhere) where the score is select(condition, anything, constant) and the condition does not
    depend on the sum."""
    lets = {s.name: s.value for s in statements if isinstance(s, Let)}
    if len(lets) != len(statements):
        return None
    value = statements[-1].value
    while isinstance(value, Var) and value.name in lets:
        value = lets[value.name]
    if not isinstance(value, Apply) or value.op != "select":
        return None
    condition, _, other = value.arguments
    while isinstance(other, Var) and other.name in lets:
        other = lets[other.name]
    if not isinstance(other, Const) or "acc" in names_in(condition, lets):
        return None
    return condition, float(other.value)


def is_needed(statement: Let, statements: tuple, condition: Expr) -> bool:
    """Whether a condition depends on a statement."""
    return statement.name in names_in(condition, {s.name: s.value for s in statements})


def names_in(value: Expr, lets: dict[str, Expr]) -> set[str]:
    """Everything that a value depends on, through Lets."""
    found: set[str] = set()
    stack = [value]
    while stack:
        top = stack.pop()
        if isinstance(top, Var) and top.name not in found:
            found.add(top.name)
            stack += [lets[top.name]] if top.name in lets else []
        elif isinstance(top, Apply):
            stack += top.arguments
        elif isinstance(top, Load):
            stack.append(top.position)
    return found


def loads_of(statements: tuple[Stmt, ...]) -> list[Load]:
    """All reads of memory."""
    found, stack = [], [s.value for s in statements if isinstance(s, Let)]
    while stack:
        top = stack.pop()
        if isinstance(top, Load):
            found.append(top)
        elif isinstance(top, Apply):
            stack += top.arguments
    return found
