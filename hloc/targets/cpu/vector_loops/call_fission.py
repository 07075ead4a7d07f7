"""Loop fission: operations without a vector form get loops of their own, so that the rest stays vectorized.

In: a Kernel. Out: the same kernel with VECTOR loops split at f64 functions of libm, at divisions of 64-bit integers
among many operations, at loads of preds beside 64-bit numbers, and at loads of 8, 16 and 64 bits from data-dependent
positions. With one of these in a loop the compiler vectorizes nothing in it: thirty fused multiplications and divisions
would take longer than in separate kernels.

    for i < 50 (VECTOR):  out[i] = sin(a[i] * a[i]) / (b[i] + 2)

    for i < 50 (VECTOR):  x[i] = a[i] * a[i]
    for i < 50 (SERIAL):  f[i] = sin(x[i])
    for i < 50 (VECTOR):  out[i] = f[i] / (b[i] + 2)

Preds are first read as s32. Longer loops are split into blocks. Values that two of the loops need are computed in
both.

Some functions have vector forms for the usual range of their arguments: remainders, also of f32, with a small quotient;
sines of f64 with a small angle; functions of complex numbers with a small angle and no infinite part. A block with an
argument outside of that range is computed by libm.

    for i < 50 (VECTOR):  f[i] = remainder_near(x[i], y[i]); far |= !is_near(x[i], y[i])
    if far:  for i < 50 (SERIAL):  f[i] = remainder(x[i], y[i])

Nested functions, as in tanh(log1p(exp(x))), are split into stages, too. In one loop, each waits for the one before,
and fewer vectors fit into the CPU's out-of-order window (stages take 0.4 to 0.6 of the time). A function among many
roundings to bf16 is split likewise (0.6 to 0.75).

    for i < 128 (VECTOR):  e[i] = exp(x[i])
    for i < 128 (VECTOR):  l[i] = log1p(e[i])
    for i < 128 (VECTOR):  out[i] = tanh(l[i])

CPUs gather 32-bit elements, and not under the condition of a select. Elements of 8 and 16 bits, or at positions
computed in 16 bits, are loaded one by one, from positions stored in an array. So are 64-bit elements, whose gathers are
slower (such loops take 0.81 to 0.98 of the time), and 8- and 16-bit elements with a large stride, as in a column.
"""
from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeGuard

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.affine import Along
from hloc.kernels.ir import (
    INDEX,
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
from hloc.kernels.operations import HEAVY
from hloc.kernels.scalars import is_narrow
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
OF_COMPLEX = frozenset(["exp", "expm1", "logistic", "sinh", "cosh", "sin", "cos", "tan", "tanh", "power"])
NEAR = {"f64": frozenset(["sin", "cos", "tan"]), "c64": OF_COMPLEX, "c128": OF_COMPLEX}     # besides remainders
SHORTEST_STAGES = 64            # iterations: several vectors must go through a stage
LEAST_WORK = 3                  # operations besides the calls that justify separate loops
MANY_ROUNDINGS = 5              # besides a function: they take as long as another function
MOST_REPEATED = 16              # operations shared by a function's argument and its uses: computed twice
LONG_WORK = 8                   # operations of a function; and iterations that fill a vector
LEAST_BESIDE_GATHERS = 2        # operations besides loads from data-dependent positions
MOST_INTERLEAVED = 4            # largest stride in elements that compilers vectorize by interleaving
MOST_CALLS = 16
DIVIDED, LONG_BESIDE = frozenset(["divide", "remainder"]), 24   # 64-bit integers, among at least so many operations
FEW = 16                        # elements whose preds are read one by one: a wide load after narrow stores stalls
FLOATS = ("f32", "f64")
NUMBERS = ("f64", "s64", "u64")
SHORT = ("s8", "u8", "s16", "u16")
LARGEST_DIVISOR = {"f32": 2.0**126, "f64": 2.0**1022}       # of constants whose reciprocal is normal


def _far(call: Store) -> Store:
    """The call of a function of complex numbers that its loops share."""
    value = operation(call.value)
    if value.op not in NEAR.get(value.type, ()) or value.type == "f64":
        return call
    return call._replace(value=value._replace(op=f"{value.op}_far"))


def is_called(expr: Expr) -> bool:
    return isinstance(expr, Apply) and expr.op in CALLED and expr.type == "f64" or has_near(expr)


def divisions_among(everything: list[Expr]) -> frozenset[Expr]:
    """Divisions of 64-bit integers among many other operations, as in random number generators."""
    done = {e for e in everything if isinstance(e, Apply) and e.type != INDEX}
    return frozenset(e for e in done if e.op in DIVIDED and e.type in ("s64", "u64") and len(done) >= LONG_BESIDE)


def has_near(expr: Expr) -> bool:
    """Whether a function has a vector form for its usual arguments, besides the general form."""
    return is_remainder(expr) or isinstance(expr, Apply) and expr.op in NEAR.get(expr.type, ())


def is_remainder(expr: Expr) -> bool:
    """Whether this is a remainder; not by 2^127 or 2^1023: C compilers would multiply by the reciprocal, which is
    subnormal."""
    return isinstance(expr, Apply) and expr.op == "remainder" and expr.type in LARGEST_DIVISOR \
        and not (isinstance(expr.arguments[1], Const) and abs(expr.arguments[1].value) > LARGEST_DIVISOR[expr.type])


def is_function(expr: Expr) -> TypeGuard[Apply]:
    """Whether this is a function of many instructions, each of which depends on the one before."""
    return isinstance(expr, Apply) and expr.op in HEAVY and expr.type in FLOATS


def is_rounding(expr: Expr) -> bool:
    """Whether this rounds to a narrow type by several instructions, each of which depends on the one before."""
    return isinstance(expr, Apply) and expr.op == "convert" and expr.type != INDEX and is_narrow(expr.type)


def bits_of(expr: Expr) -> int:
    return ELEMENT_TYPES[expr.type].bits


def is_data(expr: Expr, named: Mapping[str, Expr]) -> bool:
    """Whether an expression reads memory."""
    return any(isinstance(e, Load) or isinstance(e, Var) and e.name in named and is_data(named[e.name], named)
               for e in parts([expr]))


def is_mask(expr: Expr) -> TypeGuard[Load]:
    return isinstance(expr, Load) and expr.type == "pred"


def call_fission(kernel: Kernel, machine: Machine) -> Kernel:
    """The kernel with its loops split; the same kernel if there is nothing to split."""
    if not any(isinstance(e, Apply) and (e.type in NUMBERS or e.op in HEAVY) or isinstance(e, Load) and bits_of(e) < 32
               for s in walk(kernel.body) for e in parts(expressions(s))):
        return kernel
    numbers = itertools.count()
    return kernel._replace(body=with_vector_loops(
        kernel.body, lambda loop: _Cut(loop, f"{loop.name}_{next(numbers)}").loops() or (loop,)))


def arguments_of(call: Apply | Load) -> tuple[Expr, ...]:
    """The values that a call needs from the loop before it; for a load, the position."""
    return call.arguments if isinstance(call, Apply) else (Apply("convert", (call.position,), "s32"),)


def with_arguments(call: Apply | Load, new: tuple[Expr, ...]) -> Apply | Load:
    if isinstance(call, Apply):
        return call._replace(arguments=new)
    return call._replace(position=Apply("convert", new, INDEX))


@dataclass
class _Cut:
    """One VECTOR loop. prefix: of array names, since adjacent loops may have counters of the same name; levels: calls
    by their nesting depth; depths: the same for names; stages: calls with vector forms; masks, arrays, results: the
    arrays of preds as s32, of the calls' arguments and of their results."""

    loop: For
    prefix: str
    named: dict[str, Expr] = field(default_factory=dict)
    levels: dict[Apply | Load, int] = field(default_factory=dict)
    masks: dict[Load, str] = field(default_factory=dict)
    arrays: dict[Expr, str] = field(default_factory=dict)
    results: dict[Apply | Load, str] = field(default_factory=dict)
    gathers: dict[Load, None] = field(default_factory=dict)
    stages: set[Expr] = field(default_factory=set)
    divisions: frozenset[Expr] = frozenset()
    depths: dict[str, int] = field(default_factory=dict)
    has_masks: bool = False

    def loops(self) -> tuple[Stmt, ...]:
        """The loops that replace it; none if it must stay."""
        if not all(isinstance(s, (Let, Store, Assign, Mutable)) for s in self.loop.body):
            return ()
        self.named = {s.name: s.value for s in self.loop.body if isinstance(s, Let)}
        everything = [e for s in self.loop.body for e in parts(expressions(s))]
        self.gathers = self.fetched_loads(everything)
        self.stages = self.inner_functions(everything)
        self.divisions = divisions_among(everything)
        calls = dict.fromkeys(filter(self.is_called, everything))
        work = [e for e in everything if isinstance(e, Apply) and e.type in NUMBERS and not is_called(e)]
        is_worth = sum(LONG_WORK if e.op in HEAVY else 1 for e in work) >= LEAST_WORK
        is_few = isinstance(self.loop.extent, int) and self.loop.extent <= FEW
        masks = dict.fromkeys(e for e in everything if is_worth and not is_few and is_mask(e))
        must = self.gathers or self.stages or self.divisions or any(map(has_near, calls))
        if not 0 < len(calls) + len(masks) <= MOST_CALLS or not (is_worth or must):
            return ()
        self.has_masks = len(masks) > 0
        if not all(map(self.may_move, self.loop.body)):
            return ()
        for call in calls:
            self.level(call)
        self.masks = {mask: f"{self.prefix}_m{n}" for n, mask in enumerate(masks)}
        return self.in_blocks(self.cut())

    def is_called(self, expr: Expr) -> TypeGuard[Apply | Load]:
        return is_called(expr) or expr in self.gathers or expr in self.stages or expr in self.divisions

    def inner_functions(self, everything: list[Expr]) -> set[Expr]:
        """Functions with vector forms that are arguments of functions, or stand among many roundings, in loops of
        several vectors."""
        if isinstance(self.loop.extent, int) and self.loop.extent < SHORTEST_STAGES:
            return set()
        functions: set[Expr] = {e for e in everything if is_function(e) and not is_called(e)}
        before = self.computed([a for e in everything if is_function(e) for a in e.arguments], set())
        found = functions & before
        if found or len({e for e in everything if is_rounding(e)}) < MANY_ROUNDINGS:
            return found
        after = self.computed([e for s in self.loop.body if not isinstance(s, Let) for e in expressions(s)], functions)
        return functions if len(before & after) <= MOST_REPEATED else set()

    def computed(self, values: Iterable[Expr], known: set[Expr]) -> set[Expr]:
        """All operations that the values need, except those needed by `known` ones."""
        stack, named = list(values), set()
        found: set[Expr] = set()
        while stack:
            e = stack.pop()
            if e in known or e in found:
                continue
            if isinstance(e, Apply):
                found.add(e)
                stack += e.arguments
            elif isinstance(e, Load):
                stack.append(e.position)
            elif isinstance(e, Var) and e.name in self.named and e.name not in named:
                named.add(e.name)
                stack.append(self.named[e.name])
        return found

    def fetched_loads(self, everything: list[Expr]) -> dict[Load, None]:
        """Loads that CPUs gather slowly or not at all, or narrow ones with a large stride, if enough other operations
        stand beside them."""
        beside = {e for e in everything if isinstance(e, Apply) and e.type != INDEX}
        are_many = len(beside) >= LONG_WORK and not (isinstance(self.loop.extent, int) and self.loop.extent < LONG_WORK)
        found = dict.fromkeys(e for e in everything if isinstance(e, Load) and self.is_fetched(e) and (
            is_data(e.position, self.named) or are_many and bits_of(e) == 16 and self.is_far(e.position)))
        return found if len(beside) >= LEAST_BESIDE_GATHERS else {}

    @cached_property
    def along(self) -> Along:
        return Along(self.loop)

    def is_far(self, position: Expr) -> bool:
        """Whether the stride of a position in the loop is larger than compilers interleave."""
        step = self.along.step(position)
        return step is None or not 0 <= step <= MOST_INTERLEAVED

    def is_fetched(self, gather: Load) -> bool:
        """Whether a load from a data-dependent position is faster alone: its element has 8, 16 or 64 bits, or its
        position is computed in few bits."""
        stack: list[Expr] = [gather.position]
        while stack and bits_of(gather) == 32:
            for e in parts([stack.pop()]):
                if isinstance(e, Apply) and e.type in SHORT:
                    return True
                if isinstance(e, Var) and e.name in self.named:
                    stack.append(self.named[e.name])
        return bits_of(gather) in (8, 16, 64)

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
        for load in inside:
            if isinstance(load, Load) and (load in self.gathers or self.has_masks and is_mask(load)) \
                    and (load.buffer in stored or load in guarded):
                return False
        for call in inside:
            for e in parts(arguments_of(call)) if self.is_called(call) else ():
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
        if self.is_called(expr):
            depth += 1
            self.levels[expr] = depth
        return depth

    def cut(self) -> tuple[Stmt, ...]:
        """The loops over the elements of a block."""
        made: list[Stmt] = []
        if self.masks:
            masks, self.masks = self.masks, {}
            stores = tuple(Store(name, self.place, Apply("convert", (m,), "s32")) for m, name in masks.items())
            made.append(For(self.counter, self.loop.extent, VECTOR, (*self.needed(stores), *stores)))
            self.masks = masks
        for depth in sorted(set(self.levels.values())):
            calls = [c for c, level in self.levels.items() if level == depth and c not in self.stages]
            arguments = dict.fromkeys(a for c in calls for a in arguments_of(c) if not isinstance(a, Const))
            results = {c: f"{self.prefix}_f{len(self.results) + n}"
                       for n, c in enumerate(c for c, level in self.levels.items() if level == depth)}
            stores = tuple(Store(self.array(a), self.place, self.value(a)) for a in arguments)
            stores += tuple(Store(results[c], self.place, self.value(c)) for c in results if c in self.stages)
            made.append(For(self.counter, self.loop.extent, VECTOR, (*self.needed(stores), *stores)))
            loads: dict[Expr, Expr] = {a: Load(self.arrays[a], self.place, a.type) for a in arguments}
            self.results.update(results)
            made += self.made([with_arguments(c, tuple(loads.get(a, a) for a in arguments_of(c))) for c in calls],
                              [self.results[c] for c in calls])
        last = tuple(self.changed(s) for s in self.loop.body)
        return (*made, For(self.counter, self.loop.extent, VECTOR, last))

    def made(self, calls: list[Apply | Load], names: list[str]) -> tuple[Stmt, ...]:
        """The loop that makes the calls; if there are two forms, the fast one comes first."""
        exact = [Store(name, self.place, call) for call, name in zip(calls, names)]
        near = [s for s in exact if has_near(s.value)]
        fast = [(s, operation(s.value)) for s in near]
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
        return over_blocks(self.loop, arrays | dict.fromkeys(self.masks.values(), "s32"), loops)

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
        if expr in self.masks:
            return Apply("compare_ne", (Load(self.masks[expr], self.place, "s32"), Const(0, "s32")), "pred")
        return with_parts(expr, self.value)
