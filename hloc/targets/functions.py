"""Calls of long functions instead of inlining them each time.

    x = sin(y)      ->      x = called_sin(y)           printed as hloc_called_sin_f32(y)

In: a Kernel. Out: the same with calls; `definition`: the called C or CUDA C function.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeGuard

from hloc.kernels.ir import INDEX, Apply, Expr, Kernel, Stmt, Var
from hloc.kernels.operations import HEAVY
from hloc.kernels.vectors import is_vector
from hloc.kernels.walks import expressions, parts, walk, with_all_parts
from hloc.targets.c_expressions import ExpressionPrinter, c_type
from hloc.targets.vectors import called

CALLED = "called_"
HEAVY_OF_COMPLEX = frozenset(["abs", "divide", "rsqrt", "sign", "sqrt"])


def is_function(expr: Apply) -> bool:
    """Whether a function has many instructions."""
    op = expr.op.removesuffix("_near")
    return op in HEAVY or op in HEAVY_OF_COMPLEX and expr.arguments[0].type in ("c64", "c128")


def is_called(expr: Expr) -> TypeGuard[Apply]:
    """Whether a scalar function is called if a kernel has many."""
    return isinstance(expr, Apply) and expr.type != INDEX and not is_vector(expr.type) and is_function(expr)


def with_calls(kernel: Kernel, most: int) -> Kernel:
    """The kernel with calls of the scalar functions of which it has the most copies, if more than `most` would be
    inlined."""
    found = called(Counter(_key(e) for s in walk(kernel.body) for e in parts(expressions(s)) if is_called(e)), most)

    def change(expr: Expr) -> Expr:
        return expr._replace(op=CALLED + expr.op) if is_called(expr) and _key(expr) in found else expr
    return kernel._replace(body=with_all_parts(kernel.body, change)) if found else kernel


def _key(expr: Apply) -> tuple[str, ...]:
    return expr.op, *(a.type for a in expr.arguments), expr.type


def definitions(statements: Iterable[Stmt], printer: ExpressionPrinter) -> list[str]:
    """The functions that statements call, each once, printed by this printer."""
    calls = dict.fromkeys((e.op, tuple(a.type for a in e.arguments), e.type) for s in walk(statements)
                          for e in parts(expressions(s)) if isinstance(e, Apply) and e.op.startswith(CALLED))
    return [_definition(printer, *call) for call in calls]


def _definition(printer: ExpressionPrinter, op: str, types: tuple[str, ...], result: str) -> str:
    arguments = tuple(Var(f"a{n}", type) for n, type in enumerate(types))
    parameters = ", ".join(f"{c_type(a.type)} {a.name}" for a in arguments)
    value = printer.expression(Apply(op.removeprefix(CALLED), arguments, result))
    name = f"hloc_{op}_{types[-1]}"
    return guarded(name, f"HLOC_CALLED {c_type(result)} {name}({parameters}) {{ return {value}; }}")


def guarded(name: str, text: str) -> str:
    """The definition, which several kernels of one unit may contain."""
    return f"#ifndef {name.upper()}\n#define {name.upper()}\n{text}\n#endif"
