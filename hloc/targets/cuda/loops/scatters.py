"""Scatters on the GPU: updates that run one after the other, shared by threads, with results that no order changes.

In: a Kernel that updates windows one after the other (Updates). Out: the same updates by atomic operations if they
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
from typing import NamedTuple

from hloc.kernels.affine import affine, constant_of, factor_of, factors_of, forms, of_names, without
from hloc.kernels.indexing import index_apply
from hloc.kernels.ir import INDEX, PARALLEL, SERIAL, Apply, Atomic, Const, Expr, For, If, Kernel, Let, Load, Store, Var
from hloc.kernels.schedule.nest import most_iterations
from hloc.kernels.walks import defined, expressions, lets_of, loads, parts, stores, walk
from hloc.machine import Machine
from hloc.targets.cuda.loops.iteration_space import counters_of
from hloc.targets.cuda.loops.rows import Own, Scan

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


class Updates(NamedTuple):
    """A kernel of loops, one condition, and what it guards:

        parallel for b: for i: for j: p = index[i * 9 + j]; if (0 <= p & p < 100) for c: out[p * 64 + c] += update[...]
          -> outer: b, counters: ((i, 7), (j, 9)), lets: (p = ...), guard: if (0 <= p ...) for c: ...

    outer: the PARALLEL loop, if any; fixed: Lets around the others; counters: of the serial loop nest, with their
    extents; lets: of an update; guard: the If whose body applies the update."""

    outer: For | None
    fixed: tuple[Let, ...]
    counters: tuple[tuple[str, int], ...]
    lets: tuple[Let, ...]
    guard: If

    @property
    def total(self) -> int:
        return math.prod(extent for _, extent in self.counters)


def updates_of(kernel: Kernel) -> Updates | None:
    """The Updates of a kernel that consists of loops, Lets, one condition, and Stores under it; else None."""
    outer, fixed, counters, lets = None, list[Let](), list[tuple[str, int]](), list[Let]()
    statements = kernel.body
    while statements and (found := lets_of(statements[:-1])) is not None:
        (lets if counters else fixed).extend(found)
        last = statements[-1]
        if isinstance(last, For) and last.kind == PARALLEL and not (outer or counters):
            outer = last
        elif isinstance(last, For) and last.kind == SERIAL and isinstance(last.extent, int):
            counters.append((last.name, last.extent))
        else:
            is_plain = isinstance(last, If) and counters and not last.otherwise \
                and all(isinstance(s, (Let, For, Store)) for s in walk(last.then))
            return Updates(outer, tuple(fixed), tuple(counters), tuple(lets), last) \
                if is_plain and isinstance(last, If) else None
        statements = last.body
    return None


def _parallel(kernel: Kernel, updates: Updates, name: str, counters: Sequence[tuple[str, int]],
              body: tuple[Own, ...]) -> Kernel:
    """The kernel with one PARALLEL loop for that of the updates and these, the innermost last."""
    before, inside = ((), updates.fixed) if updates.outer else (updates.fixed, ())
    nest = [*((loop.name, loop.trip_count) for loop in (updates.outer,) if loop), *counters]
    return kernel._replace(body=(*before, For(name, math.prod(n for _, n in nest), PARALLEL,
                                              (*counters_of(name, nest), *inside, *body))))


# -- atomic operations -------------------------------------------------------------------------------------------------

def _with_atomics(kernel: Kernel, updates: Updates) -> Kernel | None:
    """A thread for each element of the updates, if their results do not depend on the order."""
    loops, inside = list(updates.counters), updates.guard.then
    while len(inside) == 1 and isinstance(loop := inside[0], For) and isinstance(loop.extent, int):
        loops, inside = [*loops, (loop.name, loop.extent)], loop.body
    lets, atomic = lets_of(inside[:-1]), _atomic(inside)
    if lets is None or atomic is None:
        return None
    return _parallel(kernel, updates, "element", loops,
                     (*updates.lets, If(updates.guard.condition, (*lets, atomic))))


def _atomic(statements: Sequence[Own]) -> Atomic | None:
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

class Place(NamedTuple):
    """The position that updates store to, the same for all arrays. form: its affine form; inner: counters of the
    window, with their maximum extents; size: elements of each array."""

    form: Expr
    inner: dict[str, int]
    size: int

    @property
    def base(self) -> Expr:
        """The position of a window's first element."""
        return without(self.form, *self.inner)

    @property
    def span(self) -> int:
        """The distance from the first to the last element of a window."""
        return sum((extent - 1) * factor_of(self.form, name) for name, extent in self.inner.items())


def place_of(updates: Updates, kernel: Kernel) -> Place | None:
    """The place of updates; None if positions are not affine, or a stored array is read at another position."""
    inside = updates.guard.then
    others = (*updates.fixed, *updates.lets, Let("", updates.guard.condition))
    known, stored = forms((*others, *inside)), stores(inside)
    written = {s.buffer for s in stored}
    positions = [s.position for s in stored] + [x.position for x in loads(inside) if x.buffer in written]
    if not stored or any(x.buffer in written for x in loads(others)):
        return None
    places = [affine(position, known) for position in positions]
    factors, values = factors_of(places[0]), {s.name: s.value for s in walk(inside) if isinstance(s, Let)}
    inner = {s.name: most_iterations(s.extent, values) for s in walk(inside) if isinstance(s, For)}
    sizes = {b.size for b in kernel.buffers if b.name in written}
    if factors is None or any(p != places[0] for p in places) or 0 in inner.values() or len(sizes) != 1 \
            or (defined(inside) - inner.keys()) & factors.keys() \
            or min(factors.values(), default=0) < 0 or constant_of(places[0]) < 0:
        return None
    return Place(places[0], inner, sizes.pop())


def _with_owners(kernel: Kernel, updates: Updates, gpu: Machine) -> Kernel | None:
    """A warp for some elements of the result, if positions are affine, and there are enough owners."""
    place = place_of(updates, kernel)
    if place is None:
        return None
    number, guard = _window(updates, place), updates.guard
    most = updates.total if number is not None else place.size // SHARE
    count = min(most, gpu.cores * WARPS_PER_SM // (updates.outer.trip_count if updates.outer else 1))
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
    return _parallel(kernel, updates, "work", [(OWNER.name, count)], (*lets, scan))


def _window(updates: Updates, place: Place) -> Expr | None:
    """The number of an update's window among those of one PARALLEL iteration; None if windows may overlap."""
    fixed = {s.name for s in updates.fixed} | ({updates.outer.name} if updates.outer else set())
    base = factors_of(without(place.base, *fixed)) or {}
    step = math.gcd(*base.values()) if base else 0
    return of_names({name: f // step for name, f in base.items()}) if place.span < step else None


def _in_range(last: Expr, first: Expr) -> Expr:
    """Whether positions up to `last`, from `first` on, meet an owner's range."""
    return Apply("and", (Apply("compare_ge", (last, FROM), "pred"), Apply("compare_lt", (first, TO), "pred")), "pred")


def _guarded(statements: tuple[Own, ...], condition: Expr) -> tuple[Own, ...]:
    """The statements, the innermost of which run if a condition is true."""
    if any(isinstance(s, For) for s in walk(statements)):
        return tuple(s._replace(body=_guarded(s.body, condition)) if isinstance(s, For) else s for s in statements)
    return (If(condition, statements),)
