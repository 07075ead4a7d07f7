"""Scatters on the GPU without atomics: each warp owns some elements of the result and applies the updates of these.

In: a Kernel that updates windows one after the other (updates.py). Out: the same updates in a Scan (teams.py) for each
owner, or the kernel itself. An owner is a warp. It looks at 64 updates at a time, finds those that overlap its
elements, and applies them in order. So each element gets its updates in their order: results do not depend on the GPU.

Windows that cannot overlap are owned as a whole, by their number. If windows may overlap, an owner has a contiguous
range of the array:

    for i: p = index[i]; if (ok) for j: out[p * 64 + j] += update[i * 64 + j]
    ->  parallel for owner: scan i: p = index[i]; if (ok & p % 1056 == owner) for j: ...

    for i: p = index[i]; if (ok) for j: out[p + j] += update[i * 5 + j]                            (of 1,000 elements)
    ->  parallel for owner: scan i: p = index[i]; if (ok & p + 4 >= owner * 10 & p < owner * 10 + 10)
            for j: if (p + j >= owner * 10 & p + j < owner * 10 + 10) ...
"""
from __future__ import annotations

import math

from hloc.kernels.affine import of_names
from hloc.kernels.indexing import index_apply
from hloc.kernels.ir import INDEX, PARALLEL, Apply, Const, Expr, For, If, Kernel, Let, Stmt, Var
from hloc.kernels.walks import walk
from hloc.machine import Machine
from hloc.targets.cuda.loops.rows import Own, Scan
from hloc.targets.cuda.loops.updates import Place, Updates, place_of, updates_of

WARPS_PER_SM = 8
FEWEST = 4                          # with fewer owners the kernel does not change
SHARE = 32                          # the fewest elements of an array that one owner has
OWNER, WORK, FROM, TO = (Var(name, INDEX) for name in ("owner", "work", "own_from", "own_to"))


def with_scatter_owners(kernel: Kernel, gpu: Machine) -> Kernel:
    """The kernel distributed over owners, if its form allows that."""
    updates = updates_of(kernel)
    place = place_of(updates, kernel) if updates else None
    if updates is None or place is None:
        return kernel
    around = updates.outer.trip_count if updates.outer else 1
    number = _window(updates, place)
    most = updates.total if number is not None else place.size // SHARE
    count = min(most, gpu.cores * WARPS_PER_SM // around)
    if count < FEWEST:
        return kernel
    lets, mine, then = _by_number(number, count) if number is not None else _by_range(place, count)
    guard = updates.guard
    condition = Apply("and", (guard.condition, mine), "pred")
    scan: Own = Scan(updates.counters, (*updates.lets, If(condition, then(guard.then))))
    if updates.outer is None:
        return updates.at(kernel, For(OWNER.name, count, PARALLEL, (*lets, scan)))
    own = Let(OWNER.name, Apply("remainder", (WORK, Const(count, INDEX)), INDEX))
    outer = Let(updates.outer.name, index_apply("divide", WORK, Const(count, INDEX)))
    body = (outer, own, *updates.outer_lets, *lets, scan)
    return updates.at(kernel, For(WORK.name, around * count, PARALLEL, body))


def _window(updates: Updates, place: Place) -> Expr | None:
    """The number of an update's window among those of one PARALLEL iteration; None if windows may overlap."""
    fixed = {s.name for s in (*updates.before, *updates.outer_lets)}
    if updates.outer:
        fixed.add(updates.outer.name)
    base = place.base.without(*fixed).factors or {}
    step = math.gcd(*base.values()) if base else 0
    return of_names({name: f // step for name, f in base.items()}).expression() if place.span < step else None


def _by_number(number: Expr, count: int):
    """Ownership by window number: Lets, the condition of an owner, and a rewrite of an update's statements."""
    remainder = Apply("remainder", (number, Const(count, INDEX)), INDEX)
    return (), Apply("compare_eq", (remainder, OWNER), "pred"), lambda statements: statements


def _by_range(place: Place, count: int):
    """The same for ownership by a range of the array's elements."""
    share = -(-place.size // count)
    lets = (Let(FROM.name, index_apply("multiply", OWNER, Const(share, INDEX))),
            Let(TO.name, index_apply("add", FROM, Const(share, INDEX))))
    first = place.base.expression()
    meets = _both(Apply("compare_ge", (index_apply("add", first, Const(place.span, INDEX)), FROM), "pred"),
                  Apply("compare_lt", (first, TO), "pred"))
    position = place.form.expression()
    own = _both(Apply("compare_ge", (position, FROM), "pred"), Apply("compare_lt", (position, TO), "pred"))

    def only_own(statements: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        if any(isinstance(s, For) for s in walk(statements)):
            return tuple(s._replace(body=only_own(s.body)) if isinstance(s, For) else s for s in statements)
        return (If(own, statements),)
    return lets, meets, only_own


def _both(a: Expr, b: Expr) -> Expr:
    return Apply("and", (a, b), "pred")
