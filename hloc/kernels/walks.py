"""Traversal of loop IR: statements, their expressions, and subexpressions.

    [p for s in walk(kernel.body) for p in parts(expressions(s))]      every expression of a kernel, nested ones too
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from operator import is_
from typing import Any, TypeGuard, TypeVar

from hloc.kernels import ir
from hloc.kernels.indexing import sum_of

S = TypeVar("S", bound=ir.Stmt)
EXPRESSIONS = ir.Const, ir.Var, ir.Load, ir.Apply
VALUES = "value", "initial", "position", "condition", "extent"          # the fields of statements that hold them
BODIES = "then", "otherwise", "body"                                    # and those that hold statements


def operation(expr: ir.Expr) -> ir.Apply:
    """An expression that is known to be an operation."""
    assert isinstance(expr, ir.Apply), expr
    return expr


def lets_of(statements: Sequence[ir.Stmt]) -> tuple[ir.Let, ...] | None:
    """The statements, if all are Lets."""
    return tuple(statements) if are_lets(statements) else None


def are_lets(statements: Sequence[ir.Stmt]) -> TypeGuard[Sequence[ir.Let]]:
    return all(isinstance(s, ir.Let) for s in statements)


def are_lets_and_stores(statements: Sequence[ir.Stmt]) -> TypeGuard[Sequence[ir.Let | ir.Store]]:
    return all(isinstance(s, (ir.Let, ir.Store)) for s in statements)


def walk(statements: Iterable[ir.Stmt]) -> list[ir.Stmt]:
    """All statements, outer before inner, in order."""
    found: list[ir.Stmt] = []
    for s in statements:
        found.append(s)
        kind: type = type(s)
        for _, n in _fields(kind, BODIES):                  # this is asked most: no list of bodies
            found += walk(s[n])                             # type: ignore[arg-type]    # which hold these
    return found


@cache
def _fields(kind: type, names: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    """Which of these fields statements of a type have, and where; also of statements of one target alone."""
    fields = getattr(kind, "_fields", ())
    return tuple((name, fields.index(name)) for name in names if name in fields)


def _with_fields(statement: S, names: tuple[str, ...], change: Callable[[Any], Any]) -> S:
    kind: type = type(statement)
    changed: dict[str, Any] = {name: change(statement[n]) for name, n in _fields(kind, names)}
    return statement._replace(**changed) if changed else statement      # type: ignore[return-value]   # the same type


def bodies(statement: ir.Stmt) -> list[tuple[ir.Stmt, ...]]:
    """The statements in a loop, or in the branches of a condition; none for other statements."""
    kind: type = type(statement)
    return [statement[n] for _, n in _fields(kind, BODIES)]       # type: ignore[misc]    # which hold these


def with_bodies(statement: S, change: Callable[[tuple[ir.Stmt, ...]], tuple[ir.Stmt, ...]]) -> S:
    """A statement with its bodies changed."""
    return _with_fields(statement, BODIES, change)


def expressions(statement: ir.Stmt) -> list[ir.Expr]:
    """The expressions of a statement itself, not of its body."""
    kind: type = type(statement)
    return [e for _, n in _fields(kind, VALUES) if isinstance(e := statement[n], EXPRESSIONS)]


def parts(roots: Iterable[ir.Expr]) -> list[ir.Expr]:
    """Expressions and all their subexpressions."""
    found: list[ir.Expr] = []
    stack = list(roots)
    while stack:
        e = stack.pop()
        found.append(e)
        kind = type(e)
        if kind is ir.Apply:
            stack += e.arguments            # type: ignore[union-attr]
        elif kind is ir.Load:
            stack.append(e.position)        # type: ignore[union-attr]
    return found


def loads(statements: Iterable[ir.Stmt]) -> list[ir.Load]:
    """All loads of statements, nested ones too."""
    return [e for s in walk(statements) for e in parts(expressions(s)) if isinstance(e, ir.Load)]


def stores(statements: Iterable[ir.Stmt]) -> list[ir.Store]:
    """All stores of statements, nested ones too."""
    return [s for s in walk(statements) if isinstance(s, ir.Store)]


def defined(statements: Iterable[ir.Stmt]) -> set[str]:
    """The names of Lets, Mutables and counters that statements define."""
    return {s.name for s in walk(statements) if isinstance(s, (ir.Let, ir.Mutable, ir.For))}


def assigned(statements: Iterable[ir.Stmt]) -> set[str]:
    """The names of the Mutables that statements assign, nested ones too."""
    return {s.name for s in walk(statements) if isinstance(s, ir.Assign)}


def varying(statements: Iterable[ir.Stmt]) -> set[str]:
    """The names that may have another value in each iteration of a loop over these statements: those that they define,
    and those that they assign to."""
    return defined(statements) | assigned(statements)


def all_parts(roots: Iterable[ir.Expr], lets: Mapping[str, ir.Expr]) -> Iterator[ir.Expr]:
    """Expressions and all their subexpressions, also through Lets; lets: their values."""
    stack, seen = list(roots), set[str]()
    while stack:
        for e in parts([stack.pop()]):
            yield e
            if isinstance(e, ir.Var) and e.name in lets and e.name not in seen:
                seen.add(e.name)
                stack.append(lets[e.name])


def names_in(roots: Iterable[ir.Expr], lets: Mapping[str, ir.Expr]) -> set[str]:
    """All names that expressions depend on, also through Lets; lets: their values."""
    return {e.name for e in all_parts(roots, lets) if isinstance(e, ir.Var)}


def needed(statements: Iterable[ir.Stmt], roots: Iterable[ir.Expr]) -> tuple[ir.Let, ...]:
    """The Lets among these statements that expressions depend on, in order."""
    lets = [s for s in statements if isinstance(s, ir.Let)]
    names = names_in(roots, {s.name: s.value for s in lets})
    return tuple(s for s in lets if s.name in names)


def taken_in(s: ir.Assign) -> ir.Expr | None:
    """The term of an accumulator that is updated by one operation of itself and the term; None for other updates."""
    if not isinstance(s.value, ir.Apply) or len(s.value.arguments) != 2:
        return None
    others = [a for a in s.value.arguments if not (isinstance(a, ir.Var) and a.name == s.name)]
    itself = any(isinstance(e, ir.Var) and e.name == s.name for e in parts(others))
    return others[0] if len(others) == 1 and not itself else None


def with_parts(expr: ir.Expr, change: Callable[[ir.Expr], ir.Expr]) -> ir.Expr:
    """An expression with changed operands: the position of a Load, the arguments of an Apply; itself if none differs.
    """
    if isinstance(expr, ir.Load):
        position = change(expr.position)
        return expr if position is expr.position else ir.Load(expr.buffer, position, expr.type)
    if not isinstance(expr, ir.Apply):
        return expr
    arguments = tuple(map(change, expr.arguments))
    if all(map(is_, arguments, expr.arguments)):
        return expr
    if expr.op == ir.SUM:
        return sum_of(zip(arguments, expr.immediate), expr.immediate[-1])
    return ir.Apply(expr.op, arguments, expr.type, expr.immediate)


def rebuilt(expr: ir.Expr, change: Callable[[ir.Expr], ir.Expr]) -> ir.Expr:
    """An expression whose parts are changed, inner ones first, and then itself."""
    return change(with_parts(expr, lambda part: rebuilt(part, change)))


def replaced(expr: ir.Expr, change: Callable[[ir.Expr], ir.Expr | None]) -> ir.Expr:
    """An expression whose largest parts for which `change` gives another one are that one."""
    return change(expr) or with_parts(expr, lambda part: replaced(part, change))


def with_values(expr: ir.Expr, values: Mapping[Any, ir.Expr]) -> ir.Expr:
    """An expression with values for these Vars and Loads."""
    return replaced(expr, lambda e: values.get(e) if isinstance(e, (ir.Var, ir.Load)) else None)


def with_expressions(statement: S, change: Callable[[ir.Expr], ir.Expr]) -> S:
    """A statement with its own expressions changed, the position before the value; the extents of loops stay."""
    return _with_fields(statement, VALUES[-2::-1], change)


def with_all_expressions(statements: Iterable[ir.Stmt], change: Callable[[ir.Expr], ir.Expr],
                         leaf: Callable[[ir.Stmt], ir.Stmt | None] = lambda _: None) -> tuple[ir.Stmt, ...]:
    """The statements with the expressions of all of them changed, in bodies too; the extents of loops stay. leaf: what
    takes the place of a statement, if it is not None."""
    def inside(body: Iterable[ir.Stmt]) -> tuple[ir.Stmt, ...]:
        return tuple(leaf(s) or with_bodies(with_expressions(s, change), inside) for s in body)
    return inside(statements)


def with_all_parts(statements: Iterable[ir.Stmt], change: Callable[[ir.Expr], ir.Expr],
                   leaf: Callable[[ir.Stmt], ir.Stmt | None] = lambda _: None) -> tuple[ir.Stmt, ...]:
    """with_all_expressions, each of which is `rebuilt`."""
    return with_all_expressions(statements, lambda e: rebuilt(e, change), leaf)


def with_vector_loops(statements: Iterable[ir.Stmt],
                      change: Callable[[ir.For], tuple[ir.Stmt, ...]]) -> tuple[ir.Stmt, ...]:
    """The statements with every VECTOR loop, at any depth, replaced by the result of `change`."""
    return with_loops(statements, lambda loop: change(loop) if loop.kind == ir.VECTOR else None)


def with_loops(statements: Iterable[ir.Stmt],
               change: Callable[[ir.For], tuple[ir.Stmt, ...] | None]) -> tuple[ir.Stmt, ...]:
    """The statements with the outermost loops for which `change` gives others replaced by these."""
    result: list[ir.Stmt] = []
    for s in statements:
        others = change(s) if isinstance(s, ir.For) else None
        result += (with_bodies(s, lambda body: with_loops(body, change)),) if others is None else others
    return tuple(result)
