"""Loop fission: functions without a vector form get loops of their own, so that the rest stays vectorized.

In: a Kernel after loop_schedules. Out: the same with VECTOR loops split at functions of libm, and at functions with a
vector form for usual arguments only (hloc/kernels/operations.py: NEAR), as those of complex numbers. With one of these
in a loop the compiler vectorizes nothing in it. A block with an argument that is not usual is computed by libm.

    for i < 50 (VECTOR):  out[i] = exp(a[i] * a[i]) / (b[i] + 2)

    for i < 50 (VECTOR):  x[i] = a[i] * a[i]
    for i < 50 (VECTOR):  f[i] = exp_near(x[i]); far |= !exp_is_near(x[i])
    if far:  for i < 50 (SERIAL):  f[i] = exp_far(x[i])
    for i < 50 (VECTOR):  out[i] = f[i] / (b[i] + 2)

Longer loops are split into blocks. Values that two of the loops need are computed in both.
"""
from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeGuard

from hloc.kernels.ir import (
    SERIAL,
    VECTOR,
    Apply,
    Assign,
    Const,
    Expr,
    For,
    If,
    Kernel,
    Let,
    Load,
    Mutable,
    Stmt,
    Store,
    Var,
)
from hloc.kernels.operations import HEAVY, PARTS, has_near
from hloc.kernels.walks import (
    S,
    assigned,
    expressions,
    operation,
    parts,
    walk,
    with_expressions,
    with_parts,
    with_vector_loops,
)
from hloc.machine import Machine
from hloc.targets.cpu.vector_loops.blocks import lane_of, over_blocks

CALLED = frozenset(["sin", "cos", "tan", "remainder", "sinh", "cosh", "asinh", "acosh", "atanh", "round_nearest_afz"])
LEAST_WORK = 3                  # operations besides the calls that justify separate loops
LONG_WORK = 8                   # operations of a function
MOST_CALLS = 16
NUMBERS = ("f64", "c64", "c128")


def _far(call: Store) -> Store:
    """The call of a function of complex numbers that its loops share."""
    value = operation(call.value)
    return call._replace(value=value._replace(op=f"{value.op}_far")) if value.type in PARTS else call


def is_called(expr: Expr) -> TypeGuard[Apply]:
    return isinstance(expr, Apply) and (expr.op in CALLED and expr.type == "f64" or has_near(expr.op, expr.type))


def call_fission(kernel: Kernel, machine: Machine) -> Kernel:
    """The kernel with its loops split; the same kernel if there is nothing to split."""
    if not any(is_called(e) for s in walk(kernel.body) for e in parts(expressions(s))):
        return kernel
    numbers = itertools.count()
    return kernel._replace(body=with_vector_loops(
        kernel.body, lambda loop: _Cut(loop, f"{loop.name}_{next(numbers)}").loops() or (loop,)))


@dataclass
class _Cut:
    """One VECTOR loop. prefix: of array names, since adjacent loops may have counters of the same name; levels: calls
    by their nesting depth; depths: the same for names; arrays, results: the arrays of the calls' arguments and of their
    results."""

    loop: For
    prefix: str
    named: dict[str, Expr] = field(default_factory=dict)
    levels: dict[Apply, int] = field(default_factory=dict)
    arrays: dict[Expr, str] = field(default_factory=dict)
    results: dict[Expr, str] = field(default_factory=dict)
    depths: dict[str, int] = field(default_factory=dict)

    def loops(self) -> tuple[Stmt, ...]:
        """The loops that replace it; none if it must stay."""
        if not all(isinstance(s, (Let, Store, Assign, Mutable)) for s in self.loop.body):
            return ()
        self.named = {s.name: s.value for s in self.loop.body if isinstance(s, Let)}
        everything = [e for s in self.loop.body for e in parts(expressions(s))]
        calls = dict.fromkeys(e for e in everything if is_called(e))
        work = [e for e in everything if isinstance(e, Apply) and e.type in NUMBERS and not is_called(e)]
        is_worth = sum(LONG_WORK if e.op in HEAVY else 1 for e in work) >= LEAST_WORK
        if not 0 < len(calls) <= MOST_CALLS or not (is_worth or any(has_near(c.op, c.type) for c in calls)):
            return ()
        if not all(map(self.may_move, self.loop.body)):
            return ()
        for call in calls:
            self.level(call)
        return self.in_blocks(self.cut())

    def may_move(self, s: Stmt) -> bool:
        """Whether the calls of a statement may be moved before all stores of the loop: their arguments read nothing
        that an earlier statement stores, nothing that only a condition allows to be read, and no accumulators. Arrays
        with two names share memory only if each element is read before it is stored."""
        before = self.loop.body[:self.loop.body.index(s)]
        stored = {b.buffer for b in before if isinstance(b, Store)}
        inside = list(parts(expressions(s)))
        if isinstance(s, Let) and any(isinstance(e, Load) and e.buffer in stored for e in inside):
            return False
        changing = assigned(self.loop.body)
        guarded = {c for e in inside if isinstance(e, Apply) and e.op == "select" for c in parts(e.arguments[1:])}
        for call in inside:
            for e in parts(call.arguments) if is_called(call) else ():
                if isinstance(e, Load) and (e.buffer in stored or call in guarded) \
                        or isinstance(e, Var) and e.name in changing:
                    return False
        return not (isinstance(s, Let) and any(isinstance(e, Var) and e.name in changing for e in inside))

    def level(self, expr: Expr) -> int:
        """The nesting depth of calls in an expression; the calls are recorded."""
        if isinstance(expr, Var):
            if expr.name not in self.depths:
                self.depths[expr.name] = self.level(self.named[expr.name]) if expr.name in self.named else 0
            return self.depths[expr.name]
        inner = expr.arguments if isinstance(expr, Apply) else (expr.position,) if isinstance(expr, Load) else ()
        depth = max(map(self.level, inner), default=0)
        if is_called(expr):
            depth += 1
            self.levels[expr] = depth
        return depth

    def cut(self) -> tuple[Stmt, ...]:
        """The loops over the elements of a block."""
        made: list[Stmt] = []
        for depth in sorted(set(self.levels.values())):
            calls = [c for c, level in self.levels.items() if level == depth]
            arguments = dict.fromkeys(a for c in calls for a in c.arguments if not isinstance(a, Const))
            stores = tuple(Store(self.array(a), self.place, self.value(a)) for a in arguments)
            made.append(For(self.counter, self.loop.extent, VECTOR, (*self.needed(stores), *stores)))
            loads: dict[Expr, Expr] = {a: Load(self.arrays[a], self.place, a.type) for a in arguments}
            results: dict[Expr, str] = {c: f"{self.prefix}_f{len(self.results) + n}" for n, c in enumerate(calls)}
            self.results.update(results)
            made += self.made([
                Store(results[c], self.place, c._replace(arguments=tuple(loads.get(a, a) for a in c.arguments)))
                for c in calls])
        last = tuple(self.changed(s) for s in self.loop.body)
        return (*made, For(self.counter, self.loop.extent, VECTOR, last))

    def made(self, exact: list[Store]) -> tuple[Stmt, ...]:
        """The loop that makes the calls; if there are two forms, the fast one comes first."""
        fast = [(s, operation(s.value)) for s in exact if has_near(operation(s.value).op, s.value.type)]
        near = [s for s, _ in fast]
        serial = tuple(s for s in exact if s not in near)
        loops: tuple[Stmt, ...] = (For(self.counter, self.loop.extent, SERIAL, serial),) if serial else ()
        if not near:
            return loops
        type = "s64" if all(s.value.type in ("f64", "c128") for s in near) else "s32"       # no narrower lanes
        far, zero, one = Var(f"{near[0].buffer}_far", type), Const(0, type), Const(1, type)
        is_near = [Apply(f"{call.op}_is_near", call.arguments, "pred") for _, call in fast]
        quick: tuple[Stmt, ...] = (
                 *(s._replace(value=call._replace(op=f"{call.op}_near")) for s, call in fast),
                 *(Assign(far.name, Apply("or", (far, Apply("select", (e, zero, one), type)), type)) for e in is_near))
        start = Mutable(far.name, zero, "or")
        return (*loops, start, For(self.counter, self.loop.extent, VECTOR, quick),
                If(Apply("compare_ne", (far, zero), "pred"),
                   (For(self.counter, self.loop.extent, SERIAL, tuple(map(_far, near))),)))

    def in_blocks(self, loops: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """The arrays, and the loops; inside a loop over blocks if more than one is needed."""
        arrays = {name: a.type for a, name in self.arrays.items()}
        arrays |= {name: call.type for call, name in self.results.items()}
        return over_blocks(self.loop, arrays, loops)

    @property
    def counter(self) -> str:
        return self.place.name

    @property
    def place(self) -> Var:
        return lane_of(self.loop)

    def array(self, argument: Expr) -> str:
        return self.arrays.setdefault(argument, f"{self.prefix}_x{len(self.arrays)}")

    def needed(self, stores: Iterable[Store]) -> tuple[Let, ...]:
        """The Lets that the stores read, directly or through other Lets."""
        names: set[str] = set()
        stack = [e for s in stores for e in expressions(s)]
        while stack:
            for e in parts([stack.pop()]):
                if isinstance(e, Var) and e.name in self.named and e.name not in names:
                    names.add(e.name)
                    stack.append(self.value(self.named[e.name]))
        return tuple(self.changed(s) for s in self.loop.body if isinstance(s, Let) and s.name in names)

    def changed(self, s: S) -> S:
        return with_expressions(s, self.value)

    def value(self, expr: Expr) -> Expr:
        """The expression with the results of the calls that were moved."""
        if expr in self.results:
            return Load(self.results[expr], self.place, expr.type)
        return with_parts(expr, self.value)
