"""Scatters by atomic operations: one thread per element of the updates, if their order cannot change the result.

In: a Kernel that updates windows one after the other (updates.py). Out: a PARALLEL loop over all elements of the
updates with an Atomic, if it computes sums of integers, or maxima or minima of integers or f32. Else the kernel itself:
scatter_owners.py handles it.

    for i: p = index[i]; if (ok) for j: out[p + j] += update[i * 5 + j]
    ->  parallel for element: i = element / 5; j = element % 5; p = index[i]
            if (ok) atomic out[p + j] += update[i * 5 + j]
"""
from __future__ import annotations

import math

from hloc.kernels.indexing import index_apply
from hloc.kernels.ir import INDEX, PARALLEL, Apply, Atomic, Const, Expr, For, If, Kernel, Let, Load, Stmt, Store, Var
from hloc.kernels.walks import lets_of
from hloc.targets.cuda.loops.updates import updates_of

INTEGER = frozenset(["add", "minimum", "maximum", "and", "or", "xor"])
OPS = {**dict.fromkeys(("s32", "u32", "s64", "u64"), INTEGER), "f32": frozenset(["minimum", "maximum"])}
ELEMENT = Var("element", INDEX)
MOST = 1 << 40
Counters = tuple[tuple[str, int], ...]


def with_atomics(kernel: Kernel) -> Kernel:
    """The kernel with Atomics, if their results do not depend on the order."""
    updates = updates_of(kernel)
    window = _window(updates.guard.then, ()) if updates else None
    if updates is None or window is None:
        return kernel
    loops, lets, store = window
    atomic = _atomic(lets, store)
    outer = [(updates.outer.name, updates.outer.trip_count)] if updates.outer else []
    counters = (*outer, *updates.counters, *loops)
    total = math.prod(extent for _, extent in counters)
    if atomic is None or total > MOST:
        return kernel
    body: tuple[Stmt, ...] = (
            *_counters(counters, total), *updates.outer_lets, *updates.lets,
            If(updates.guard.condition, (*lets, atomic)))
    return updates.at(kernel, For(ELEMENT.name, total, PARALLEL, body))


def _window(statements: tuple[Stmt, ...], loops: Counters) -> tuple[Counters, tuple[Let, ...], Store] | None:
    """The loops over a window's elements, and the statements of one element: Lets and a Store."""
    lets, last = lets_of(statements[:-1]), statements[-1]
    if isinstance(last, For) and not lets and isinstance(last.extent, int):
        return _window(last.body, (*loops, (last.name, last.extent)))
    return (loops, lets, last) if isinstance(last, Store) and lets is not None else None


def _atomic(lets: tuple[Let, ...], store: Store) -> Atomic | None:
    """x[p] = op(x[p], value) as one Atomic."""
    values = {s.name: s.value for s in lets}
    old = Load(store.buffer, store.position, store.value.type)
    joined = _resolved(store.value, values)
    if not isinstance(joined, Apply) or joined.op not in OPS.get(joined.type, ()) or joined.type != store.value.type:
        return None
    sides = [_resolved(a, values) for a in joined.arguments]
    if sides.count(old) != 1:
        return None
    value = joined.arguments[1 - sides.index(old)]
    if any(isinstance(x, Load) and x.buffer == store.buffer for x in _reads(value, values)):
        return None
    return Atomic(joined.op, store.buffer, store.position, value)


def _resolved(expr: Expr, values: dict[str, Expr]) -> Expr:
    """The expression with the names of these Lets replaced by their values."""
    while isinstance(expr, Var) and expr.name in values:
        expr = values[expr.name]
    return expr


def _reads(expr: Expr, values: dict[str, Expr]):
    """All subexpressions of an expression, also in the values of these Lets."""
    stack = [expr]
    while stack:
        top = _resolved(stack.pop(), values)
        yield top
        if isinstance(top, Load):
            stack.append(top.position)
        elif isinstance(top, Apply):
            stack.extend(top.arguments)


def _counters(counters: tuple[tuple[str, int], ...], total: int) -> list[Let]:
    """The counters of all loops, computed from the element's linear index."""
    lets, rest = [], total
    for name, extent in counters:
        outer, rest = rest, rest // extent
        value: Expr = ELEMENT
        if outer != total:
            value = Apply("remainder", (value, Const(outer, INDEX)), INDEX)
        if rest > 1:
            value = index_apply("divide", value, Const(rest, INDEX))
        lets.append(Let(name, value))
    return lets
