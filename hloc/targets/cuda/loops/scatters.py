"""Scatters on the GPU: updates that run one after the other, shared by threads, with results that no order changes.

In: a Kernel that updates windows one after the other (updates.py). Out: the same updates by atomic operations if they
are sums of integers, or maxima or minima of integers or f32: a thread for each element of the updates. Others by
owners: a warp owns some elements of the result. It looks at 64 updates at a time (Scan, rows.py), finds those that
overlap its elements, and applies them in order. Or the kernel itself, of any other form.

Windows that cannot overlap are owned as a whole, by their number. If windows may overlap, an owner has a contiguous
range of the array:

    for i: p = index[i]; if (ok) for j: out[p * 64 + j] += update[i * 64 + j]
    ->  parallel for owner: scan i: p = index[i]; if (ok & p % 1056 == owner) for j: ...

    for i: p = index[i]; if (ok) for j: out[p + j] += update[i * 5 + j]                            (of 1,000 elements)
    ->  parallel for owner: scan i: p = index[i]; if (ok & p + 4 >= owner * 10 & p < owner * 10 + 10)
            for j: if (p + j >= owner * 10 & p + j < owner * 10 + 10) ...

    the same, of integers
    ->  parallel for element: i = element / 5; j = element % 5; p = index[i]; if (ok) atomic out[p + j] += ...
"""
from __future__ import annotations

import math
from collections.abc import Sequence

from hloc.kernels.affine import factors_of, of_names, without
from hloc.kernels.indexing import index_apply
from hloc.kernels.ir import INDEX, PARALLEL, Apply, Atomic, Const, Expr, For, If, Kernel, Let, Load, Stmt, Store, Var
from hloc.kernels.walks import expressions, lets_of, parts, walk
from hloc.machine import Machine
from hloc.targets.cuda.loops.iteration_space import counters_of
from hloc.targets.cuda.loops.rows import Own, Scan
from hloc.targets.cuda.loops.updates import Place, Updates, place_of, updates_of

INTEGER = frozenset(["add", "minimum", "maximum", "and", "or", "xor"])
OPS = {**dict.fromkeys(("s32", "u32", "s64", "u64"), INTEGER), "f32": frozenset(["minimum", "maximum"])}
WARPS_PER_SM = 8
FEWEST = 4                          # with fewer owners the kernel does not change
SHARE = 32                          # the fewest elements of an array that one owner has
OWNER, FROM, TO = (Var(name, INDEX) for name in ("owner", "own_from", "own_to"))


def with_shared_scatters(kernel: Kernel, gpu: Machine) -> Kernel:
    """The kernel with Atomics or owners, if its form allows that."""
    updates = updates_of(kernel)
    return (_with_atomics(kernel, updates) or _with_owners(kernel, updates, gpu) or kernel) if updates else kernel


def _parallel(kernel: Kernel, updates: Updates, name: str, counters: Sequence[tuple[str, int]],
              body: tuple[Own, ...]) -> Kernel:
    """The kernel with one PARALLEL loop for these, the innermost last."""
    before, inside = ((), updates.fixed) if updates.outer else (updates.fixed, ())
    return kernel._replace(body=(*before, For(name, math.prod(n for _, n in counters), PARALLEL,
                                              (*counters_of(name, counters), *inside, *body))))


# -- atomic operations -------------------------------------------------------------------------------------------------

def _with_atomics(kernel: Kernel, updates: Updates) -> Kernel | None:
    """A thread for each element of the updates, if their results do not depend on the order."""
    outer = [(updates.outer.name, updates.outer.trip_count)] if updates.outer else []
    loops, inside = [*outer, *updates.counters], updates.guard.then
    while len(inside) == 1 and isinstance(loop := inside[0], For) and isinstance(loop.extent, int):
        loops, inside = [*loops, (loop.name, loop.extent)], loop.body
    lets, atomic = lets_of(inside[:-1]), _atomic(inside)
    if lets is None or atomic is None:
        return None
    return _parallel(kernel, updates, "element", loops,
                     (*updates.lets, If(updates.guard.condition, (*lets, atomic))))


def _atomic(statements: Sequence[Stmt]) -> Atomic | None:
    """The last of these, x[p] = op(x[p], value), as one Atomic."""
    store, values = statements[-1], {s.name: s.value for s in statements if isinstance(s, Let)}
    if not isinstance(store, Store):
        return None

    def named(e: Expr) -> Expr:
        return named(values[e.name]) if isinstance(e, Var) and e.name in values else e
    joined, old = named(store.value), Load(store.buffer, store.position, store.value.type)
    if not isinstance(joined, Apply) or joined.op not in OPS.get(joined.type, ()):
        return None
    sides, used = [named(a) for a in joined.arguments], [e for s in statements for e in parts(expressions(s))]
    is_read_once = sum(isinstance(e, Load) and e.buffer == store.buffer for e in used) == 1 \
        and sum(isinstance(e, Var) and named(e) == old for e in used) <= 1
    return Atomic(joined.op, store.buffer, store.position, joined.arguments[1 - sides.index(old)]) \
        if sides.count(old) == 1 and is_read_once else None


# -- owners ------------------------------------------------------------------------------------------------------------

def _with_owners(kernel: Kernel, updates: Updates, gpu: Machine) -> Kernel | None:
    """A warp for some elements of the result, if positions are affine, and there are enough owners."""
    place = place_of(updates, kernel)
    if place is None:
        return None
    outer = (updates.outer.name, updates.outer.trip_count) if updates.outer else ("", 1)
    number, guard = _window(updates, place), updates.guard
    most = updates.total if number is not None else place.size // SHARE
    count = min(most, gpu.cores * WARPS_PER_SM // outer[1])
    if count < FEWEST:
        return None
    lets, then = list[Let](), guard.then
    if number is not None:
        mine: Expr = Apply("compare_eq", (Apply("remainder", (number, Const(count, INDEX)), INDEX), OWNER), "pred")
    else:
        share, first, position = -(-place.size // count), place.base, place.form
        lets = [Let(FROM.name, index_apply("multiply", OWNER, Const(share, INDEX))),
                Let(TO.name, index_apply("add", FROM, Const(share, INDEX)))]
        mine = _in_range(index_apply("add", first, Const(place.span, INDEX)), first)
        then = _guarded(then, _in_range(position, position))
    scan: Own = Scan(updates.counters, (*updates.lets, If(Apply("and", (guard.condition, mine), "pred"), then)))
    counters = [outer, (OWNER.name, count)] if updates.outer else [(OWNER.name, count)]
    return _parallel(kernel, updates, "work", counters, (*lets, scan))


def _window(updates: Updates, place: Place) -> Expr | None:
    """The number of an update's window among those of one PARALLEL iteration; None if windows may overlap."""
    fixed = {s.name for s in updates.fixed} | ({updates.outer.name} if updates.outer else set())
    base = factors_of(without(place.base, *fixed)) or {}
    step = math.gcd(*base.values()) if base else 0
    return of_names({name: f // step for name, f in base.items()}) if place.span < step else None


def _in_range(last: Expr, first: Expr) -> Expr:
    """Whether positions up to `last`, from `first` on, meet an owner's range."""
    return Apply("and", (Apply("compare_ge", (last, FROM), "pred"), Apply("compare_lt", (first, TO), "pred")), "pred")


def _guarded(statements: tuple[Stmt, ...], condition: Expr) -> tuple[Stmt, ...]:
    """The statements, the innermost of which run if a condition is true."""
    if any(isinstance(s, For) for s in walk(statements)):
        return tuple(s._replace(body=_guarded(s.body, condition)) if isinstance(s, For) else s for s in statements)
    return (If(condition, statements),)
