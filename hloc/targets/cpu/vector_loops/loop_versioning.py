"""Loop versioning: two versions of a VECTOR loop with functions that have a vector form for usual arguments only.

In: a Kernel after loop_schedules. Out: the same with such loops (hloc/kernels/operations.py: NEAR), as those of complex
numbers, behind a loop that looks at their arguments. Where all are usual the loop with the vector forms runs, else one
that calls libm. Without them the compiler vectorizes nothing in the loop.

    for i < 50 (VECTOR):  out[i] = exp(a[i] * a[i]) / (b[i] + 2)

    for i < 50 (VECTOR):  far |= !exp_is_near(a[i] * a[i])
    if far == 0:  for i < 50 (VECTOR):  out[i] = exp_near(a[i] * a[i]) / (b[i] + 2)
    else:         for i < 50 (SERIAL):  out[i] = exp_far(a[i] * a[i]) / (b[i] + 2)
"""
from __future__ import annotations

import itertools
from typing import TypeGuard

from hloc.kernels.ir import SERIAL, Apply, Assign, Const, Expr, For, If, Kernel, Let, Load, Mutable, Stmt, Store, Var
from hloc.kernels.operations import PARTS, has_near
from hloc.kernels.walks import (
    assigned,
    expressions,
    needed,
    parts,
    rebuilt,
    stores,
    walk,
    with_all_parts,
    with_expressions,
    with_vector_loops,
)
from hloc.machine import Machine

MOST_CALLS = 16


def loop_versioning(kernel: Kernel, machine: Machine) -> Kernel:
    """The kernel with two versions of such loops; the same kernel if there are none."""
    if not any(_is_call(e) for s in walk(kernel.body) for e in parts(expressions(s))):
        return kernel
    numbers = itertools.count()
    return kernel._replace(body=with_vector_loops(
        kernel.body, lambda loop: _versions(loop, f"{loop.name}_far{next(numbers)}") if _can_look(loop) else (loop,)))


def _is_call(expr: Expr) -> TypeGuard[Apply]:
    return isinstance(expr, Apply) and has_near(expr.op, expr.type)


def _can_look(loop: For) -> bool:
    """Whether the arguments of all calls may be computed before the loop: they read nothing that it stores, nothing
    that only a condition allows to be read, and no accumulators. Arrays with two names share memory only if each
    element is read before it is stored."""
    if not all(isinstance(s, (Let, Store, Assign, Mutable)) for s in loop.body):
        return False
    inside = [e for s in loop.body for e in parts(expressions(s))]
    calls = dict.fromkeys(e for e in inside if _is_call(e))
    guarded = {e for c in inside if isinstance(c, Apply) and c.op == "select" for e in parts(c.arguments[1:])}
    read = parts([*(s.value for s in loop.body if isinstance(s, Let)), *(a for c in calls for a in c.arguments)])
    stored, changing = {s.buffer for s in stores(loop.body)}, assigned(loop.body)
    return 0 < len(calls) <= MOST_CALLS and not any(
        isinstance(e, Load) and e.buffer in stored or isinstance(e, Var) and e.name in changing for e in read) \
        and not any(isinstance(e, Load) for c in calls if c in guarded for e in parts(c.arguments))


def _versions(loop: For, flag: str) -> tuple[Stmt, ...]:
    """The loop that looks, and the two others. A call has a name in the first two: arguments may hold calls."""
    calls: dict[Apply, Let] = {}
    lets: list[Let] = []

    def named(expr: Expr) -> Expr:
        if not _is_call(expr):
            return expr
        if expr not in calls:
            calls[expr] = Let(f"{flag}_{len(calls)}", expr._replace(op=f"{expr.op}_near"))
            lets.append(calls[expr])
        return Var(calls[expr].name, expr.type)
    near: list[Stmt] = []
    for s in loop.body:
        first, changed = len(lets), with_expressions(s, lambda e: rebuilt(e, named))
        near += [*lets[first:], changed]
        lets += [changed] if isinstance(changed, Let) else []
    type = "s64" if all(c.type in ("f64", "c128") for c in calls) else "s32"                # no narrower lanes
    far, zero, one = Var(flag, type), Const(0, type), Const(1, type)
    asked = [Apply(f"{c.op}_is_near", c.arguments, "pred") for c in calls]
    looks = [Assign(flag, Apply("or", (far, Apply("select", (a, zero, one), type)), type)) for a in asked]
    exact = loop._replace(kind=SERIAL, body=with_all_parts(loop.body, _far))
    return (Mutable(flag, zero, "or"), loop._replace(body=(*needed(lets, asked), *looks)),
            If(Apply("compare_eq", (far, zero), "pred"), (loop._replace(body=tuple(near)),), (exact,)))


def _far(expr: Expr) -> Expr:
    """Functions of complex numbers are shared by all loops that call them."""
    return expr._replace(op=f"{expr.op}_far") if _is_call(expr) and expr.type in PARTS else expr
