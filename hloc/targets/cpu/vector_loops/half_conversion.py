"""Converts f16 in VECTOR loops block by block with the CPU's conversion instructions.

Compilers do not select these instructions.

In: a Kernel, on a CPU that has such instructions. Out: the kernel with VECTOR loops over f16 split into blocks:
contiguous loads are widened into Local arrays, contiguous stores are narrowed from others. The loops that only convert
are printed as calls of runtime/half_rows.h (`rows_as_calls`).

    for i < n (VECTOR):  out[p + i] = f16(tanh(f32(x[q + i])))

    for blocks of 256:   for i (VECTOR): a[i] = f32(x[q + start + i])          hloc_widen_row_f16(x + ..., a, count)
                         for i (VECTOR): b[i] = tanh(a[i])
                         for i (VECTOR): out[p + start + i] = f16(b[i])        hloc_narrow_row_f16(b, out + ..., count)

Loops that reduce have schedules, whose vectors convert by instructions of their own (reduction_schedules.py).

Outside of VECTOR loops, and in those of one or two iterations, single numbers are converted by these instructions, too:
widen(x), narrow(x) are hloc_widen_f16, hloc_narrow_f32.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hloc.kernels.affine import Along
from hloc.kernels.indexing import index_apply
from hloc.kernels.ir import (
    INDEX,
    SERIAL,
    VECTOR,
    Apply,
    Buffer,
    Const,
    Expr,
    For,
    If,
    Kernel,
    Let,
    Load,
    Local,
    Stmt,
    Store,
    Var,
    While,
)
from hloc.kernels.operations import HEAVY
from hloc.kernels.schedule.nest import is_nest
from hloc.kernels.walks import (
    assigned,
    expressions,
    operation,
    parts,
    walk,
    with_all_expressions,
    with_expressions,
    with_parts,
)
from hloc.machine import Machine
from hloc.targets.c_expressions import ExpressionPrinter
from hloc.targets.cpu.vector_loops.conversion_calls import row_call
from hloc.targets.cpu.vector_loops.half_rounding_groups import LANES, in_groups, is_rounding, rounded_by, whole_groups

BLOCK = 256                     # elements: several Local arrays of this size fit into the L1 cache
SHORTEST = 8                    # iterations of a loop that is converted by rows
FEW = (1, 2)                    # iterations of a loop that converts one number at a time
MOST_ARRAYS = 32                # of one loop
FEW_ROUNDINGS = 4               # of a loop that may be emitted twice


def half_conversion(kernel: Kernel, machine: Machine) -> Kernel:
    """The kernel with its f16 converted by rows."""
    arrays: list[Buffer | Local] = [*kernel.buffers, *(s for s in walk(kernel.body) if isinstance(s, Local))]
    halves = frozenset(a.name for a in arrays if a.type == "f16")
    return kernel._replace(body=_statements(kernel.body, halves)) if halves else kernel


def by_numbers(statements: Iterable[Stmt], halves: frozenset[str]) -> tuple[Stmt, ...]:
    """Statements outside of VECTOR loops, with f16 converted one number at a time."""
    return _statements(statements, halves)


def row_in_groups(loop: For, halves: frozenset[str]) -> tuple[Stmt, ...]:
    """A VECTOR loop of whole groups, with the f16 of the buffers `halves` converted by rows."""
    return _statement(loop, halves)


def part_of_group(loop: For, halves: frozenset[str], rows: frozenset[str], most: int) -> tuple[Stmt, ...]:
    """The same for a VECTOR loop of at most `most` elements. It computes a whole group if it accesses only rows: those
    of f16, and the Local arrays `rows`, which it reads at its counter."""
    return _Loop(loop._replace(body=_converted_where_stored(loop.body)), halves, most=most, given=rows).rewritten()


def _statements(statements: Iterable[Stmt], halves: frozenset[str]) -> tuple[Stmt, ...]:
    return tuple(new for s in statements for new in _statement(s, halves))


def _statement(s: Stmt, halves: frozenset[str]) -> tuple[Stmt, ...]:
    if isinstance(s, For) and s.kind == VECTOR and (s.extent in FEW or _is_short(s, halves)):
        return (s._replace(kind=SERIAL, body=_statements(s.body, halves)),)
    if isinstance(s, For) and s.kind == VECTOR and is_nest(s):
        return (s,)
    if isinstance(s, For) and s.kind == VECTOR:
        return _Loop(s._replace(body=_converted_where_stored(s.body)), halves).rewritten()
    if isinstance(s, (For, While)):
        return (s._replace(body=_statements(s.body, halves)),)
    if isinstance(s, If):
        return (If(s.condition, _statements(s.then, halves), _statements(s.otherwise, halves)),)
    return (with_expressions(s, _by_instructions),)


def _is_short(loop: For, halves: frozenset[str]) -> bool:
    """Whether a loop has no rows of f16, and no function that is worth vectors of less than a row."""
    inside = [e for s in walk(loop.body) for e in parts(expressions(s))]
    return isinstance(loop.extent, int) and loop.extent < SHORTEST \
        and not any(isinstance(e, Apply) and e.op in HEAVY for e in inside) \
        and any(isinstance(e, Load) and e.buffer in halves for e in inside)


def _by_instructions(expr: Expr) -> Expr:
    """An expression outside of VECTOR loops, with single conversions of f16."""
    changed = with_parts(expr, _by_instructions)
    if not isinstance(expr, Apply) or expr.op != "convert":
        return changed
    op = {("f16", "f32"): "widen", ("f32", "f16"): "narrow"}.get((expr.arguments[0].type, expr.type))
    return operation(changed)._replace(op=op) if op else changed


def _converted_where_stored(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """A body in which names for f16 that is only stored, as in kernels of several results, are names for f32; except
    for elements that are moved unchanged."""
    body = _widened_where_read(_without_second_names(body))
    stored = [s.value for s in body if isinstance(s, Store)]
    named = [s.name for s in body if isinstance(s, Let) and _is_conversion(s.value, "f32", "f16")]
    read = [e.name for s in walk(body) for e in parts(expressions(s)) if isinstance(e, Var) and e.name in named]
    only = {name for name in named if read.count(name) == stored.count(Var(name, "f16"))}

    widened = {s.name: inner for s in body if isinstance(s, Let)
               and isinstance(inner := _converted(s.value, "f16", "f32"), Load)}
    exact = {s.name: operation(s.value).arguments[0] for s in body if isinstance(s, Let) and s.name in only}
    moved = {name: widened[value.name] for name, value in exact.items()
             if isinstance(value, Var) and value.name in widened}

    def change(s: Stmt) -> Stmt:
        if isinstance(s, Let) and s.name in moved:
            return Let(s.name, moved[s.name])
        if isinstance(s, Let) and s.name in only:
            return Let(s.name, exact[s.name])
        if isinstance(s, Store) and isinstance(s.value, Var) and s.value.name in only and s.value.name not in moved:
            return s._replace(value=Apply("convert", (Var(s.value.name, "f32"),), "f16"))
        return s
    return _without_unread(_with_first_store_computed(tuple(map(change, body))))


def _with_first_store_computed(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """A body whose first store contains the value itself, if its name is read nowhere else: the row that it goes to
    then needs no rounding, as narrowing rounds. Later stores may change the operands of the value."""
    first = next((s for s in body if isinstance(s, Store)), None)
    exact = _converted(first.value, "f32", "f16") if first is not None else None
    if not isinstance(exact, Var):
        return body
    name = exact.name
    reads = [e for s in walk(body) for e in parts(expressions(s)) if isinstance(e, Var) and e.name == name]
    value = next((s.value for s in body if isinstance(s, Let) and s.name == name), None)
    if value is None or len(reads) > 1:
        return body
    return tuple(s._replace(value=Apply("convert", (value,), "f16")) if s is first else s for s in body)


def _without_second_names(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """A body where each named f16 value has only one name."""
    changing = assigned(body)
    first: dict[str, Expr] = {}

    def renamed(expr: Expr) -> Expr:
        return first.get(expr.name, expr) if isinstance(expr, Var) else with_parts(expr, renamed)
    made: list[Stmt] = []
    for s in body:
        if isinstance(s, Let) and isinstance(s.value, Var) and s.value.type == "f16" and s.value.name not in changing:
            first[s.name] = renamed(s.value)
        else:
            made += with_all_expressions([s], renamed)
    return tuple(made)


def _widened_where_read(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """A body whose names for f16 in memory are names for f32, if they are only widened: rows are widened the same
    way."""
    read = [e for s in walk(body) for e in parts(expressions(s))]
    used = [e.name for e in read if isinstance(e, Var)]
    widened = [inner.name for e in read if isinstance(inner := _converted(e, "f16", "f32"), Var)]
    names = {s.name for s in body if isinstance(s, Let) and isinstance(s.value, Load) and s.value.type == "f16"
             and used.count(s.name) == widened.count(s.name)}

    def in_f32(expr: Expr) -> Expr:
        inner = _converted(expr, "f16", "f32")
        if isinstance(inner, Var):
            return Var(inner.name, "f32") if inner.name in names else expr
        return with_parts(expr, in_f32)

    def named_in_f32(s: Stmt) -> Stmt:
        return Let(s.name, Apply("convert", (s.value,), "f32")) if isinstance(s, Let) and s.name in names else s
    return with_all_expressions(map(named_in_f32, body), in_f32) if names else body


def _without_unread(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """A body without unused names of f32."""
    read = {e.name for s in walk(body) for e in parts(expressions(s)) if isinstance(e, Var)}
    return tuple(s for s in body if not (isinstance(s, Let) and s.name not in read and s.value.type == "f32"))


# -- one loop ----------------------------------------------------------------------------------------------------------

@dataclass
class _Loop:
    """One VECTOR loop. read, written: (buffer, start of a row in it, stride of its elements) -> the array of f32 that
    replaces the row; moved_to: the same key -> the f16 stored there unchanged, a constant or the buffer and row that it
    comes from; most: elements, of a loop that is not a block of another; given: Local arrays of whole groups."""

    loop: For
    halves: frozenset[str]
    most: int = 0
    given: frozenset[str] = frozenset()
    read: dict[tuple[str, Expr, int], str] = field(default_factory=dict)
    written: dict[tuple[str, Expr, int], str] = field(default_factory=dict)
    moved_to: dict[tuple[str, Expr, int], Const | tuple[str, Expr, int]] = field(default_factory=dict)

    def rewritten(self) -> tuple[Stmt, ...]:
        """The loops that replace it; the loop itself if it has no rows of f16, or only converts one."""
        loop = self.loop
        if isinstance(loop.extent, int) and (loop.extent < SHORTEST or row_call(loop, ExpressionPrinter())):
            return (loop,)
        self.along = Along(loop)
        body = tuple(self.statement(s) for s in loop.body if not self.moves(s))
        count = len(self.read) + len(self.written)
        return self.blocks(body) if 0 < count <= MOST_ARRAYS and not self.clashes() else (loop,)

    def clashes(self) -> bool:
        """Whether an array is written by rows, and also accessed in another way."""
        stores = [s for s in walk(self.loop.body) if isinstance(s, Store)]
        loads = [e for s in walk(self.loop.body) for e in parts(expressions(s)) if isinstance(e, Load)]
        for buffer in {buffer for buffer, _, _ in self.written}:
            rows = [row for row in (*self.written, *self.moved_to) if row[0] == buffer]
            accesses: list[Store | Load] = [*stores, *loads]
            places = [(buffer, *(self.row_of(x.position) or ("", 0))) for x in accesses if x.buffer == buffer]
            if any(place not in rows for place in places) or len({step for _, _, step in rows}) > 1:
                return True
        return False

    def moves(self, s: Stmt) -> bool:
        """Whether a statement stores f16 unchanged with a stride: then it is moved after the body, unless the body may
        change the value before."""
        if not isinstance(s, Store) or s.buffer not in self.halves or not isinstance(s.value, (Const, Load)):
            return False
        row, value = self.row_of(s.position), s.value
        source: Const | tuple[str, Expr, int] | None = value if isinstance(value, Const) else None
        if isinstance(value, Load):
            stored = {other.buffer for other in walk(self.loop.body) if isinstance(other, Store)}
            is_read = value.buffer in self.halves - stored
            from_row = self.row_of(value.position) if is_read else None
            source = (value.buffer, *from_row) if from_row is not None else None
        if row is None or row[1] == 1 or source is None:
            return False
        self.moved_to[(s.buffer, *row)] = source
        return True

    def statement(self, s: Stmt) -> Stmt:
        """A statement of the body with rows in place of f16."""
        value = _converted(s.value, "f32", "f16") if isinstance(s, Store) and s.buffer in self.halves else None
        if isinstance(s, Store) and value is not None:
            row = self.row_of(s.position)
            if row is not None:
                name = self.written.setdefault((s.buffer, *row), f"{self.loop.name}_narrow{len(self.written)}")
                return Store(name, Var(self.loop.name, INDEX), self.expression(rounded_by(value) or value))
        return s if isinstance(s, If) else with_expressions(s, self.expression)

    def expression(self, expr: Expr) -> Expr:
        """An expression with widened rows; loads that a select may skip stay unchanged."""
        load = _converted(expr, "f16", "f32")
        if isinstance(load, Load):
            row = self.row_of(load.position) if load.buffer in self.halves else None
            if row is not None:
                name = self.read.setdefault((load.buffer, *row), f"{self.loop.name}_wide{len(self.read)}")
                return Load(name, Var(self.loop.name, INDEX), "f32")
        if isinstance(expr, Apply) and expr.op == "select":
            return expr._replace(arguments=(self.expression(expr.arguments[0]), *expr.arguments[1:]))
        return with_parts(expr, self.expression) if isinstance(expr, Apply) else expr

    def row_of(self, position: Expr) -> tuple[Expr, int] | None:
        """The position at counter 0, and its stride in the loop; None if that is large or zero."""
        step = self.along.step(position)
        return (self.along.start(position), step) if step is not None and step > 0 else None

    def blocks(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """Widening loops, the loop itself, and narrowing loops; all of them inside a loop over blocks if there are
        several."""
        loop, counter, size = self.loop, Var(self.loop.name, INDEX), self.block_size()
        if self.most:
            return self.pass_over(Const(0, INDEX), counter, loop.extent, body)
        if isinstance(loop.extent, int):
            whole = self.in_groups(Const(0, INDEX), counter, loop.extent, body) or self.groups_and_rest(body)
            if whole or loop.extent <= size:
                return whole or self.pass_over(Const(0, INDEX), counter, loop.extent, body)
        block, place = f"{loop.name}_block", Var(f"{loop.name}_place", INDEX)
        start = index_apply("multiply", Var(block, INDEX), Const(size, INDEX))
        extent = Const(loop.extent, INDEX) if isinstance(loop.extent, int) else loop.extent
        rest = index_apply("subtract", extent, start)
        last = Let(f"{loop.name}_count", Apply("minimum", (Const(size, INDEX), rest), INDEX))
        is_even = isinstance(loop.extent, int) and loop.extent % size == 0
        count: int | Expr = size if is_even else Var(last.name, INDEX)
        blocks = index_apply("divide", index_apply("add", extent, Const(size - 1, INDEX)), Const(size, INDEX))
        moved = self.moved(body, start, place)
        inner = self.in_groups(start, place, count, moved) or self.pass_over(start, place, count, moved)
        return (For(block, blocks.integer if isinstance(blocks, Const) else blocks, SERIAL,
                    (*(() if is_even else (last,)), *inner)),)

    def groups_and_rest(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """The same in registers, except for a remainder that is not a whole group; none if that is too much code."""
        loop, roundings = self.loop, sum(is_rounding(e) for s in body for e in parts(expressions(s)))
        whole = loop.trip_count // LANES * LANES
        if not 0 < whole < loop.trip_count or roundings > FEW_ROUNDINGS:
            return ()
        start, place = Const(whole, INDEX), Var(f"{loop.name}_place", INDEX)
        groups = self.in_groups(Const(0, INDEX), Var(loop.name, INDEX), whole, body)
        rest = self.pass_over(start, place, loop.trip_count - whole, self.moved(body, start, place))
        return (*groups, *rest) if groups else ()

    def moved(self, body: tuple[Stmt, ...], start: Expr, place: Var) -> tuple[Stmt, ...]:
        """The loop's statements for the element `place` after `start`."""
        counter = Var(self.loop.name, INDEX)
        return (Let(counter.name, index_apply("add", start, place)),
                *(_at(s, self.arrays, counter, place) for s in body))

    @property
    def arrays(self) -> frozenset[str]:
        """The rows of f32."""
        return frozenset([*self.read.values(), *self.written.values()])

    def block_size(self) -> int:
        return self.most or BLOCK

    def longest(self) -> int:
        size = self.block_size()
        return whole_groups(min(size, self.loop.extent)) if isinstance(self.loop.extent, int) else size

    def pass_over(self, start: Expr, counter: Var, count: int | Expr, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """Widening loops, the loop itself, in groups if it rounds, and narrowing loops."""
        widening, narrowing = self.conversions(start, counter, count)
        loop = For(counter.name, count, VECTOR, body)
        computing = in_groups(loop, self.arrays | self.given, self.longest()) or (loop,)
        return (*self.locals(self.longest()), *widening, *computing, *narrowing)

    def in_groups(self, start: Expr, counter: Var, count: int | Expr, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """The same without rows: each group of elements is widened, computed, rounded and narrowed in registers."""
        def around(group: Expr, lane: Var, lanes: int) -> tuple[list[Stmt], list[Stmt]]:
            widening, narrowing = self.conversions(index_apply("add", start, group), lane, lanes)
            return [*self.locals(lanes), *widening], narrowing
        return in_groups(For(counter.name, count, VECTOR, body), self.arrays, self.longest(), around)

    def locals(self, size: int) -> list[Local]:
        """The arrays: of f32, and of f16 beside those whose elements are not contiguous."""
        rows = [*self.read.items(), *self.written.items()]
        return [*(Local(name, "f32", size) for _, name in rows),
                *(Local(f"{name}_halves", "f16", size) for (_, _, step), name in rows if step > 1)]

    def conversions(self, start: Expr, counter: Var, count: int | Expr) -> tuple[list[Stmt], list[Stmt]]:
        """The loops that widen and that narrow `count` elements from `start` on."""
        def conversion(target: str, at: Expr, source: str, place: Expr, type: str) -> For:
            value = Apply("convert", (Load(source, place, "f16" if type == "f32" else "f32"),), type)
            return For(counter.name, count, VECTOR, (Store(target, at, value),))

        def along(row: Expr, step: int) -> Expr:
            first, place = (index_apply("multiply", e, Const(step, INDEX)) for e in (start, counter))
            return index_apply("add", index_apply("add", row, first), place)

        def moves(pairs: list[Store]) -> list[Stmt]:
            return [For(counter.name, count, VECTOR, tuple(pairs))] if pairs else []
        picked = [Store(f"{name}_halves", counter, Load(buffer, along(row, step), "f16"))
                  for (buffer, row, step), name in self.read.items() if step > 1]
        spread = [Store(buffer, along(row, step), Load(f"{name}_halves", counter, "f16"))
                  for (buffer, row, step), name in self.written.items() if step > 1]
        spread += [Store(buffer, along(row, step), source if isinstance(source, Const) else
                         Load(source[0], along(*source[1:]), "f16"))
                   for (buffer, row, step), source in self.moved_to.items()]
        widening = [conversion(name, counter, f"{name}_halves", counter, "f32") if step > 1 else
                    conversion(name, counter, buffer, along(row, 1), "f32")
                    for (buffer, row, step), name in self.read.items()]
        narrowing = [conversion(f"{name}_halves", counter, name, counter, "f16") if step > 1 else
                     conversion(buffer, along(row, 1), name, counter, "f16")
                     for (buffer, row, step), name in self.written.items()]
        return [*moves(picked), *widening], [*narrowing, *moves(spread)]


def _is_conversion(expr: Expr, source: str, target: str) -> bool:
    return _converted(expr, source, target) is not None


def _converted(expr: Expr, source: str, target: str) -> Expr | None:
    """The operand of a conversion from `source` to `target`; None for other expressions."""
    if not isinstance(expr, Apply) or expr.op != "convert" or expr.type != target or expr.arguments[0].type != source:
        return None
    return expr.arguments[0]


def _at(s: Stmt, arrays: frozenset[str], counter: Var, place: Var) -> Stmt:
    """A statement whose rows are read and written at `place` instead of at `counter`."""
    def change(expr: Expr) -> Expr:
        if isinstance(expr, Load) and expr.buffer in arrays:
            return expr._replace(position=place)
        return with_parts(expr, change)
    if isinstance(s, Store):
        return Store(s.buffer, place if s.buffer in arrays else change(s.position), change(s.value))
    return s if isinstance(s, If) else with_expressions(s, change)
