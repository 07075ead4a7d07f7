"""Scatters on the GPU: one loop over the updates, in order, becomes many, each for the windows that it owns.

In: a Kernel that is one serial loop whose stores lie in windows that do not overlap. Out: the same loop in each
iteration of a PARALLEL one, which passes over the updates of others' windows; or the kernel itself. Each window sees
its updates in their order: results do not depend on the GPU, and nothing is atomic.

    for i: p = index[i]; if (ok) for j: out[p * 64 + j] += update[i * 64 + j]
    ->  parallel for owner: for i: p = index[i]; if (ok & p * 64 / 64 % 1056 == owner) for j: ...
"""
from __future__ import annotations

import math

from hloc.kernels.ir import INDEX, PARALLEL, SERIAL, Apply, Const, Expr, For, If, Kernel, Let, Stmt, Var
from hloc.kernels.walks import parts, walk
from hloc.machine import Machine
from hloc.targets.cuda import linear
from hloc.targets.cuda.linear import Form

WARPS_PER_SM = 8
FEWEST = 64                         # updates that are worth it
OWNER = Var("owner", INDEX)


def with_owners(kernel: Kernel, gpu: Machine) -> Kernel:
    """The kernel dealt out to owners, where its form allows that."""
    lets, loop = kernel.body[:-1], kernel.body[-1] if kernel.body else None
    if not isinstance(loop, For) or loop.kind != SERIAL or not isinstance(loop.extent, int) or loop.extent < FEWEST \
            or not loop.body or not all(isinstance(s, Let) for s in (*lets, *loop.body[:-1])):
        return kernel
    guard = loop.body[-1]
    if not isinstance(guard, If) or guard.otherwise or not all(isinstance(s, (Let, For)) or hasattr(s, "buffer")
                                                               for s in walk(guard.then)):
        return kernel
    home = _window(guard.then, linear.lets((*lets, *loop.body), {}))
    if home is None or not _names(home) <= {loop.name, *(s.name for s in (*lets, *loop.body[:-1]))}:
        return kernel
    count = min(loop.extent, gpu.cores * WARPS_PER_SM)
    mine = Apply("compare_eq", (Apply("remainder", (home, Const(count, INDEX)), INDEX), OWNER), "pred")
    own = guard._replace(condition=Apply("and", (guard.condition, mine), "pred"))
    body = loop._replace(body=(*loop.body[:-1], own))
    return kernel._replace(body=(*lets, For(OWNER.name, count, PARALLEL, (body,))))


def _window(statements: tuple[Stmt, ...], known: dict[str, Form]) -> Expr | None:
    """The number of the window that all stores lie in; None where windows may overlap, or where others' are read."""
    stores, found = linear.stores(statements), None
    extents = {s.name: s.extent for s in walk(statements) if isinstance(s, For)}
    written = {s.buffer for s in stores}
    positions = [s.position for s in stores] + [x.position for x in linear.loads(statements) if x.buffer in written]
    if not stores or not all(isinstance(n, int) for n in extents.values()):
        return None
    for position in positions:
        form = linear.linear(position, known)
        if form is None or min(form.factors.values(), default=0) < 0 or form.constant < 0:
            return None
        base = {name: factor for name, factor in form.factors.items() if name not in extents}
        size = math.gcd(*base.values()) if base else 0
        span = form.constant + sum((extents[n] - 1) * f for n, f in form.factors.items() if n in extents)
        if span >= size or found not in (None, (base, size)):
            return None
        found = base, size
    return _sum(*found)


def _names(expr: Expr) -> set[str]:
    return {p.name for p in parts([expr]) if isinstance(p, Var)}


def _sum(base: dict[str, int], size: int) -> Expr:
    terms = [Apply("multiply", (Var(name, INDEX), Const(factor // size, INDEX)), INDEX) if factor != size
             else Var(name, INDEX) for name, factor in sorted(base.items())]
    total = terms[0]
    for term in terms[1:]:
        total = Apply("add", (total, term), INDEX)
    return total
