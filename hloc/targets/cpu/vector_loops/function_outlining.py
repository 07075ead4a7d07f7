"""Outlining: if a kernel has many long functions, as a chain of sines has, they are called instead of inlined.

In: a Kernel. Out: if it has more than MOST_INLINED of them, the kernel with VECTOR loops split into blocks: arguments
are stored in rows, a call computes a row of results, and loops between the calls do the rest.

    for i < 1000 (VECTOR):  out[i] = sin(sin(... sin(x[i] * 2)))

    for block < 8:
      for lane < 128 (VECTOR):  a[lane] = x[block * 128 + lane] * 2
      for lane < 128 (SERIAL):  b[lane] = row_sin(a[lane])               printed as hloc_row_sin_f32(b, a, 128)
      for lane < 128 (SERIAL):  a[lane] = row_sin(b[lane])
      ...

A C compiler takes 10 to 25 ms for each inlined function. The calls run as fast: if one function depends on another,
separate loops are faster than one. A use of a result is computed when a function needs it, or when many rows are
pending; rows are reused after their last read. Roundings among many functions become calls, too. Outside of VECTOR
loops, functions are calls for one number (`called_sin`), if these alone exceed MOST_INLINED.
"""
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from hloc.kernels import ir
from hloc.kernels.scalars import is_narrow
from hloc.kernels.walks import assigned, expressions, operation, parts, with_expressions, with_parts
from hloc.machine import Machine
from hloc.targets.cpu.vector_loops.blocks import lane_of, over_blocks
from hloc.targets.functions import functions_in, is_called, with_calls

MOST_INLINED = 16               # functions of a kernel, and of everything outside of loops
MOST_WAITING = 24               # rows of results that may be pending before their uses are computed
MOST_ROWS = 256                 # of one loop, with elements of 8 bytes: a quarter of a thread's stack
ROW, ROUND = "row_", "round_to_"


def function_outlining(kernel: ir.Kernel, machine: Machine) -> ir.Kernel:
    """The kernel with calls, if it has many functions."""
    if functions_in(kernel.body) <= MOST_INLINED:
        return kernel
    outside = set(filter(is_called, _outside(kernel.body)))
    change = with_calls if len(outside) > MOST_INLINED else lambda e: e
    return kernel._replace(body=tuple(_changed(kernel.body, change, itertools.count())))


def _rounding(expr: ir.Expr) -> ir.Apply | None:
    """A rounding to a narrow type and back, as one function; None for anything else."""
    inner = expr.arguments[0] if isinstance(expr, ir.Apply) and expr.op == "convert" and expr.type == "f32" else None
    if not isinstance(inner, ir.Apply) or inner.op != "convert" or not is_narrow(inner.type):
        return None
    return ir.Apply(f"{ROUND}{inner.type}", inner.arguments, "f32") if inner.arguments[0].type == "f32" else None


def _outside(statements: Iterable[ir.Stmt]) -> Iterator[ir.Expr]:
    """The expressions outside of VECTOR loops."""
    for s in statements:
        if not (isinstance(s, ir.For) and s.kind == ir.VECTOR):
            yield from parts(expressions(s))
            yield from _outside(s.then + s.otherwise if isinstance(s, ir.If) else getattr(s, "body", ()))


def _changed(statements: Iterable[ir.Stmt], change: Callable[[ir.Expr], ir.Expr],
             numbers: Iterator[int]) -> Iterator[ir.Stmt]:
    for s in statements:
        if isinstance(s, ir.For) and s.kind == ir.VECTOR:
            yield from _Rows(s, f"{s.name}_{next(numbers)}").loops() or (s,)
        elif isinstance(s, ir.If):
            yield ir.If(change(s.condition), *(tuple(_changed(b, change, numbers)) for b in (s.then, s.otherwise)))
        elif isinstance(s, (ir.For, ir.While)):
            s = s._replace(condition=change(s.condition)) if isinstance(s, ir.While) else s
            yield s._replace(body=tuple(_changed(s.body, change, numbers)))
        else:
            yield with_expressions(s, change)


@dataclass
class _Rows:
    """One VECTOR loop.

    values   the values of its names, in order; a value contains no function, unless it is one (`calls`)
    last     what stays in the last loop: stores, sums, and what depends on these
    needs    the names that a value reads
    in_rows  names that are arguments
    number   of the next loop
    steps    names to compute in a loop, and calls after it
    place    the rows of names; free: rows that are not read any more
    """

    loop: ir.For
    prefix: str
    values: dict[str, ir.Expr] = field(default_factory=dict)
    calls: set[str] = field(default_factory=set)
    last: list[ir.Stmt] = field(default_factory=list)
    needs: dict[str, list[str]] = field(default_factory=dict)
    in_rows: set[str] = field(default_factory=set)
    steps: list[tuple[list[str], list[str]]] = field(default_factory=list)
    number: int = 0
    place: dict[str, str] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    free: dict[str, list[str]] = field(default_factory=dict)

    def loops(self) -> tuple[ir.Stmt, ...]:
        """The loops that replace it; none if it has no functions, or must stay."""
        is_straight = all(isinstance(s, (ir.Let, ir.Store, ir.Assign)) for s in self.loop.body)
        if not is_straight or not self.name_functions():
            return ()
        self.schedule()
        loops = self.made()
        return over_blocks(self.loop, self.types, loops) if len(self.types) <= MOST_ROWS else ()

    # -- values and functions --------------------------------------------------------------------------------------

    def name_functions(self) -> bool:
        """Find values and functions. False if there are none, or if the order of the body matters: loads from an array
        that was stored before, functions of values that are carried between iterations."""
        names: dict[ir.Expr, str] = {}
        changing, stored = assigned(self.loop.body), set()
        for s in self.loop.body:
            inside = list(parts(expressions(s)))
            is_late = any(isinstance(e, ir.Var) and e.name in changing for e in inside)
            if is_late and any(map(is_called, inside)):
                return False
            if any(isinstance(e, ir.Load) and e.buffer in stored for e in inside):
                return False
            guarded = {load for e in inside if isinstance(e, ir.Apply) and e.op == "select"
                       for load in parts(e.arguments[1:]) if isinstance(load, ir.Load)}
            s = with_expressions(s, partial(self.named, guarded=guarded, names=names))
            if isinstance(s, ir.Let) and not is_late:
                self.values[s.name] = s.value
                continue
            self.last.append(s)
            if isinstance(s, ir.Store):
                stored.add(s.buffer)
            elif isinstance(s, ir.Let):
                changing.add(s.name)
        self.needs = {name: self.read([value]) for name, value in self.values.items()}
        return any(is_called(self.values[name]) for name in self.calls)

    def named(self, expr: ir.Expr, guarded: set[ir.Load], names: dict[ir.Expr, str]) -> ir.Expr:
        """An expression with names for its functions, except functions of loads that only a condition allows."""
        value = self.values.get(expr.name) if isinstance(expr, ir.Var) else None
        if isinstance(value, ir.Var):
            return value
        expr = with_parts(expr, lambda e: self.named(e, guarded, names))
        call: ir.Apply | None = expr if is_called(expr) else _rounding(expr)
        if call is None or any(e in guarded for e in parts([expr])):
            return expr
        expr = call._replace(arguments=tuple(map(self.argument, call.arguments)))
        if expr not in names:
            names[expr] = self.new(expr)
            self.calls.add(names[expr])
        return ir.Var(names[expr], expr.type)

    def argument(self, expr: ir.Expr) -> ir.Expr:
        """A row, or a value that is the same for all elements."""
        if isinstance(expr, ir.Const) or isinstance(expr, ir.Var) and expr.name not in self.values:
            return expr
        name = expr.name if isinstance(expr, ir.Var) else self.new(expr)
        self.in_rows.add(name)
        return ir.Var(name, expr.type)

    def new(self, value: ir.Expr) -> str:
        name = f"{self.prefix}_v{len(self.values)}"
        self.values[name] = value
        return name

    def read(self, values: Iterable[ir.Expr]) -> list[str]:
        return list(dict.fromkeys(e.name for e in parts(values) if isinstance(e, ir.Var) and e.name in self.values))

    def is_repeated(self, name: str) -> bool:
        """Whether a value is recomputed at each use: positions, and loads from memory."""
        value = self.values[name]
        return name not in self.in_rows and (value.type == ir.INDEX or isinstance(value, (ir.Load, ir.Const, ir.Var)))

    def behind(self, names: Iterable[str], done: set[str]) -> list[str]:
        """Names and all that they need, in order, up to functions and names that are done."""
        found: set[str] = set()
        stack = [name for name in names if name not in done]
        while stack:
            name = stack.pop()
            if name not in found:
                found.add(name)
                stack += [n for n in self.needs[name] if n not in self.calls and n not in done]
        return sorted(found, key=self.order.__getitem__)

    # -- the step that computes each value -------------------------------------------------------------------------

    def schedule(self) -> None:
        """Schedule the functions in order, each with the values that it needs and that are not computed yet."""
        self.order = {name: place for place, name in enumerate(self.values)}
        users = dict.fromkeys(self.values, 0)
        for name in itertools.chain(self.read_last(), *self.needs.values()):
            users[name] += 1
        before: list[str] = []                                     # of this step
        pending: list[str] = []                                    # results
        waiting: set[str] = set()
        done: set[str] = set()

        def flush() -> None:
            self.steps.append((list(before), list(pending)))
            waiting.update(pending)
            before.clear()
            pending.clear()

        def compute(names: Iterable[str], call: tuple[str, ...] = ()) -> None:
            needed = [n for n in self.behind(names, done) if n not in self.calls]
            if not set(pending).isdisjoint(n for name in (*needed, *call) for n in self.needs[name]):
                flush()
            before.extend(n for n in needed if not self.is_repeated(n))
            pending.extend(call)
            for name in (*needed, *call):
                if name in self.calls or not self.is_repeated(name):
                    done.add(name)
                    for n in self.needs[name]:
                        users[n] -= 1
                        if not users[n]:
                            waiting.discard(n)

        passed = 0
        everything = list(self.values)
        for name in filter(self.calls.__contains__, everything):
            if len(waiting) + len(pending) >= MOST_WAITING:
                flush()
                compute(n for n in everything[passed:self.order[name]]
                        if n not in self.calls and users[n] and not self.is_repeated(n))
                passed = self.order[name]
            compute([n for n in self.needs[name] if n not in self.calls], (name,))
        flush()
        final = self.behind(self.read_last(), done | self.calls)
        self.steps.append(([n for n in final if not self.is_repeated(n)], []))

    def read_last(self) -> list[str]:
        return self.read(e for s in self.last for e in expressions(s))

    # -- rows ------------------------------------------------------------------------------------------------------

    def made(self) -> list[ir.For]:
        """The loops over the lanes of a block."""
        until: dict[str, int] = {}                      # the last step that reads a row
        computed: list[list[str]] = []                  # the names that each step's loop computes
        done: set[str] = set()
        for n, (before, calls) in enumerate(self.steps):
            last = self.read_last() if n == len(self.steps) - 1 else []
            computed.append(self.behind([*before, *last], done | self.calls))
            done.update(before)
            for name in (*last, *calls, *computed[n]):
                until.update(dict.fromkeys(self.needs[name], n))
            until.update(dict.fromkeys(last, n))
        loops: list[ir.For] = []
        for n, (before, calls) in enumerate(self.steps):
            stored = [name for name in before if until.get(name, n) > n or name in self.in_rows]
            stores = [ir.Store(self.row(name), self.lane, self.kept(ir.Var(name, self.values[name].type)))
                      for name in stored]
            body = [*self.lets(computed[n], stored, n), *stores, *(self.last if n == len(self.steps) - 1 else ())]
            if stores or n == len(self.steps) - 1:
                loops.append(self.loop_of(ir.VECTOR, body))
            for name in calls:
                loops.append(self.loop_of(ir.SERIAL, [self.call(name)]))
            for name in [name for name in self.place if until.get(name, -1) <= n]:
                row = self.place.pop(name)
                self.free.setdefault(self.types[row], []).append(row)
        return loops

    @property
    def lane(self) -> ir.Var:
        """The counter of the next loop: later passes name arrays after the counters of their loops."""
        return ir.Var(f"{lane_of(self.loop).name}_{self.number}", ir.INDEX)

    def loop_of(self, kind: str, body: Iterable[ir.Stmt]) -> ir.For:
        loop = ir.For(self.lane.name, self.loop.extent, kind, tuple(body))
        self.number += 1
        return loop

    def lets(self, computed: list[str], stored: list[str], step: int) -> list[ir.Let]:
        """Lets for the rows that a loop reads, and for the values that it computes."""
        last = self.read_last() if step == len(self.steps) - 1 else []
        read = dict.fromkeys(n for name in computed for n in self.needs[name]) | dict.fromkeys(last)
        in_rows = [n for n in read if n not in computed]
        return [*(ir.Let(n, self.from_row(n)) for n in in_rows), *(ir.Let(n, self.values[n]) for n in computed)]

    def row(self, name: str) -> str:
        """A row for a value."""
        type = self.values[name].type
        type = "s32" if type == "pred" else type         # bytes among wider numbers are not vectorized
        free = self.free.get(type)
        row = free.pop() if free else f"{self.prefix}_r{len(self.types)}"
        self.types[row] = type
        self.place[name] = row
        return row

    @staticmethod
    def kept(value: ir.Expr) -> ir.Expr:
        return ir.Apply("convert", (value,), "s32") if value.type == "pred" else value

    def from_row(self, name: str) -> ir.Expr:
        load = ir.Load(self.place[name], self.lane, self.types[self.place[name]])
        is_pred = self.values[name].type == "pred"
        return ir.Apply("compare_ne", (load, ir.Const(0, "s32")), "pred") if is_pred else load

    def call(self, name: str) -> ir.Store:
        call = operation(self.values[name])
        arguments = tuple(self.from_row(a.name) if isinstance(a, ir.Var) and a.name in self.values else a
                          for a in call.arguments)
        return ir.Store(self.row(name), self.lane, call._replace(op=ROW + call.op, arguments=arguments))
