"""Traversal of loop IR: statements, their expressions, and subexpressions.

    [p for s in walk(kernel.body) for p in parts(expressions(s))]      every expression of a kernel, nested ones too
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeGuard, TypeVar

from hloc.kernels.indexing import sum_of
from hloc.kernels.ir import (
    SUM,
    VECTOR,
    Apply,
    Assign,
    Const,
    Expr,
    For,
    If,
    Last,
    Let,
    Load,
    Mutable,
    Stmt,
    Store,
    Var,
    While,
)

S = TypeVar("S", bound=Stmt)


def operation(expr: Expr) -> Apply:
    """An expression that is known to be an operation."""
    assert isinstance(expr, Apply), expr
    return expr


def lets_of(statements: Sequence[Stmt]) -> tuple[Let, ...] | None:
    """The statements, if all are Lets."""
    return tuple(statements) if are_lets(statements) else None


def are_lets(statements: Sequence[Stmt]) -> TypeGuard[Sequence[Let]]:
    return all(isinstance(s, Let) for s in statements)


def are_lets_and_stores(statements: Sequence[Stmt]) -> TypeGuard[Sequence[Let | Store]]:
    return all(isinstance(s, (Let, Store)) for s in statements)


def walk(statements: Iterable[Stmt]) -> Iterable[Stmt]:
    """All statements, outer before inner, in order."""
    stack = [iter(statements)]
    while stack:
        statement = next(stack[-1], None)
        if statement is None:
            stack.pop()
            continue
        yield statement
        if isinstance(statement, If):
            stack.append(iter(statement.then + statement.otherwise))
        elif (body := getattr(statement, "body", None)) is not None:      # also of statements of one target alone
            stack.append(iter(body))


def expressions(statement: Stmt) -> list[Expr]:
    """The expressions of a statement itself, not of its body."""
    found = [getattr(statement, name, None) for name in ("value", "initial", "position", "condition", "extent")]
    return [e for e in found if isinstance(e, (Const, Var, Load, Apply))]


def parts(roots: Iterable[Expr]) -> Iterable[Expr]:
    """Expressions and all their subexpressions."""
    stack = list(roots)
    while stack:
        top = stack.pop()
        yield top
        if isinstance(top, Load):
            stack.append(top.position)
        elif isinstance(top, Apply):
            stack.extend(top.arguments)


def loads(statements: Iterable[Stmt]) -> Iterable[Load]:
    """All loads of statements, nested ones too."""
    for statement in walk(statements):
        for part in parts(expressions(statement)):
            if isinstance(part, Load):
                yield part


def stores(statements: Iterable[Stmt]) -> list[Store]:
    """All stores of statements, nested ones too."""
    return [s for s in walk(statements) if isinstance(s, Store)]


def defined(statements: Iterable[Stmt]) -> set[str]:
    """The names of Lets, Mutables and counters that statements define."""
    return {s.name for s in walk(statements) if isinstance(s, (Let, Mutable, For))}


def assigned(statements: Iterable[Stmt]) -> set[str]:
    """The names of the Mutables that statements assign, nested ones too."""
    return {s.name for s in walk(statements) if isinstance(s, Assign)}


def varying(statements: Iterable[Stmt]) -> set[str]:
    """The names that may have another value in each iteration of a loop over these statements: those that they define,
    and those that they assign to."""
    return defined(statements) | assigned(statements)


def taken_in(s: Assign) -> Expr | None:
    """The term of an accumulator that is updated by one operation of itself and the term; None for other updates."""
    if not isinstance(s.value, Apply) or len(s.value.arguments) != 2:
        return None
    others = [a for a in s.value.arguments if not (isinstance(a, Var) and a.name == s.name)]
    itself = any(isinstance(e, Var) and e.name == s.name for e in parts(others))
    return others[0] if len(others) == 1 and not itself else None


def term_taken_in(s: Assign) -> Expr:
    """taken_in, of an accumulator that is known to have a term."""
    term = taken_in(s)
    assert term is not None
    return term


def with_parts(expr: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """An expression with changed operands: the position of a Load, the arguments of an Apply."""
    if isinstance(expr, Load):
        return expr._replace(position=change(expr.position))
    if isinstance(expr, Apply) and expr.op == SUM:
        return sum_of(zip(map(change, expr.arguments), expr.immediate), expr.immediate[-1])
    if isinstance(expr, Apply):
        return expr._replace(arguments=tuple(map(change, expr.arguments)))
    return expr


def with_expressions(statement: S, change: Callable[[Expr], Expr]) -> S:
    """A statement without a body, with its expressions changed."""
    if isinstance(statement, (Let, Assign)):
        return statement._replace(value=change(statement.value))     # type: ignore[return-value]    # of the same type
    if isinstance(statement, Mutable):
        return statement._replace(initial=change(statement.initial))
    if isinstance(statement, Store):
        return statement._replace(position=change(statement.position), value=change(statement.value))
    return statement


def with_all_expressions(statements: Iterable[Stmt], change: Callable[[Expr], Expr]) -> tuple[Stmt, ...]:
    """The statements with the expressions of all of them changed, in bodies too; the extents of loops stay."""
    def one(s: Stmt) -> Stmt:
        if isinstance(s, If):
            return If(change(s.condition), *(with_all_expressions(b, change) for b in (s.then, s.otherwise)))
        if isinstance(s, While):
            return s._replace(condition=change(s.condition), body=with_all_expressions(s.body, change))
        if isinstance(s, For):
            return s._replace(body=with_all_expressions(s.body, change))
        if isinstance(s, Last):
            return s._replace(position=change(s.position), body=with_all_expressions(s.body, change))
        return with_expressions(s, change)
    return tuple(map(one, statements))


def with_vector_loops(statements: Iterable[Stmt], change: Callable[[For], tuple[Stmt, ...]]) -> tuple[Stmt, ...]:
    """The statements with every VECTOR loop, at any depth, replaced by the result of `change`."""
    result: list[Stmt] = []
    for s in statements:
        if isinstance(s, For) and s.kind == VECTOR:
            result += change(s)
        elif isinstance(s, (For, While, Last)):
            result.append(s._replace(body=with_vector_loops(s.body, change)))
        elif isinstance(s, If):
            result.append(s._replace(then=with_vector_loops(s.then, change),
                                     otherwise=with_vector_loops(s.otherwise, change)))
        else:
            result.append(s)
    return tuple(result)
