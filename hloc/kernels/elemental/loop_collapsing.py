"""Loop collapsing: short rows that are contiguous in memory are processed as one long row.

In: a kernel over rows of a few elements, which are not whole vectors. Out: the same over blocks of rows, each of which
is one VECTOR loop. Values that rows or columns share, such as a bias or a scale, and values at other positions in
memory, are first expanded into Local arrays (tables); None if a kernel has no such rows, or they compute too little.

    for row < 4096:                                    for c < 5:  pattern[c] = b[c]
      s = y[row]                                       for r < 64:  for k < 16: columns[5 r + k] = pattern[k]
      for c < 5 (VECTOR):                          =>  for blocks of 64 rows:
        out[5 row + c] = tanh(x[5 row + c] * s           for r < 64:  s = y[row];  for k < 16: rows[5 r + k] = s
                              + b[c])                    for j < 320 (VECTOR):  out[p + j] = tanh(x[p + j] * rows[j]
                                                                                                  + columns[j])

Rows of tables are written as whole vectors, whose ends the next rows overwrite. If elements are expensive, rows need
not be contiguous, as in pieces of concatenated arrays: they are then copied to their positions.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import gcd, prod
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.elemental.row_addresses import NotContiguous, RowAddresses
from hloc.kernels.indexing import index_apply
from hloc.kernels.ir import (
    INDEX,
    SERIAL,
    VECTOR,
    Apply,
    Const,
    Expr,
    For,
    Kernel,
    Let,
    Load,
    Local,
    Stmt,
    Store,
    Var,
)
from hloc.kernels.operations import HEAVY
from hloc.kernels.scalars import is_narrow
from hloc.kernels.walks import expressions, parts, with_parts

LANES = 16                      # of the widest vectors
LONGEST = 3 * LANES             # of rows
SHORTEST = 24                   # elements of all rows
ELEMENTS = 256                  # of a block, approximately: tables stay in the L1 cache
MOST_TABLES, WORK_OF_TABLE = 6, 8       # more if each has at least so many operations
LEAST_WORK = 4                  # operations per element that are worth tables,
FUNCTION, ROUNDING = 10, 10     # those of a function, and to round to a narrow type


def with_collapsed_rows(kernel: Kernel) -> Kernel | None:
    """The kernel with its short rows collapsed; None if there are none."""
    body = _statements(kernel.body)
    return None if body == kernel.body else kernel._replace(body=body)


def _statements(statements: Iterable[Stmt]) -> tuple[Stmt, ...]:
    found: list[Stmt] = []
    for s in statements:
        if isinstance(s, For) and s.kind != VECTOR:
            joined = next(_joined(s), None)
            if joined is not None:
                found += joined
                continue
            s = s._replace(body=_statements(s.body))
        found.append(s)
    return tuple(found)


def _joined(outer: For) -> Iterator[list[Stmt]]:
    """The replacement of loops over rows: of two nested ones, if they are short, or of one."""
    rows = outer.body[-1] if outer.body else None
    nests = [[outer, rows]] if isinstance(rows, For) and rows.kind == SERIAL else []
    for loops in (*nests, [outer]):
        try:
            yield _Rows(loops).joined()
        except NotContiguous:
            continue


class Result(NamedTuple):
    """A result that is not contiguous: the array of a block of it, the store, its start, and its stride in the outer
    loop."""

    name: str
    store: Store
    step: int
    rest: Expr


class _Rows(RowAddresses):
    """tables: the expressions that they store, and their names; results: those copied to their positions after the long
    row."""

    def __init__(self, loops: list[For]):
        super().__init__(loops)
        total = prod(loop.trip_count for loop in loops) * self.length
        if not 1 < self.length <= LONGEST or self.length % LANES == 0 or total < SHORTEST:
            raise NotContiguous
        if len(loops) > 1 and loops[-1].trip_count * self.length > ELEMENTS:
            raise NotContiguous
        are_bytes = all(ELEMENT_TYPES[s.value.type].bits <= 8 for s in self.columns.body if isinstance(s, Store))
        least = 1 if are_bytes else FUNCTION if self.length % (LANES // 2) == 0 else LEAST_WORK
        if _work(self.columns.body) < least:
            raise NotContiguous
        self.written = {s.buffer for s in self.columns.body if isinstance(s, Store)}
        self.tables: dict[Expr, str] = {}
        self.results: list[Result] = []

    # -- one element -------------------------------------------------------------------------------------------------

    def long_row(self) -> tuple[Stmt, ...]:
        """The statements of an element, without names that only tables need."""
        names: set[str] = set()
        kept: list[Stmt] = []
        for s in reversed(self.statements):
            if isinstance(s, Store) or s.name in names:
                kept.append(self.statement(s))
                names.update(e.name for e in parts(expressions(kept[-1])) if isinstance(e, Var))
        return tuple(kept[::-1])

    def statement(self, s: Let | Store) -> Let | Store:
        if isinstance(s, Let):
            return Let(s.name, self.value(s.value))
        start = self.along(s.position)
        if start is not None:
            return Store(s.buffer, index_apply("add", start, self.element), self.value(s.value))
        result = Result(f"{self.columns.name}_long{len(self.results)}", s, *self.spread(s.position))
        self.results.append(result)
        return Store(result.name, self.lane, self.value(s.value))

    def spread(self, position: Expr) -> tuple[int, Expr]:
        """The stride in the outer loop of a position that is otherwise contiguous, and the rest."""
        if _work(self.columns.body) < FUNCTION:
            raise NotContiguous
        steps, rest = self.place(position)
        step = steps.pop(self.outer.name, 0)
        if steps != {n: own for n, own in self.steps.items() if n != self.outer.name}:
            raise NotContiguous
        return step, rest

    def value(self, expr: Expr) -> Expr:
        """An expression in the long row."""
        if isinstance(expr, Var):
            return self.table(expr) if expr.name in self.before else expr
        if isinstance(expr, Load):
            start = self.along(expr.position)
            if start is None:
                return self.table(expr)
            return expr._replace(position=index_apply("add", start, self.element))
        if not isinstance(expr, Apply):
            return expr
        if expr.type == INDEX or any(a.type == INDEX for a in expr.arguments) or self.is_from_elsewhere(expr):
            return self.table(expr)
        return with_parts(expr, self.value)

    def is_from_elsewhere(self, expr: Apply) -> bool:
        """Whether this is converted from a table's value, or selected with one: it may be invalid to load it if it is
        not selected. f16 is converted in the long row, by whole vectors."""
        if expr.op == "convert":
            inner = expr.arguments[0]
            if inner.type == "f16" and self.columns.name in self.depends(inner):
                return False
            return (isinstance(inner, Load) and self.along(inner.position) is None
                    or isinstance(inner, Var) and inner.name in self.before)
        if expr.op != "select":
            return False
        return any(isinstance(e, Load) and self.along(e.position) is None for e in self.everything(expr.arguments[1:]))

    def table(self, expr: Expr) -> Expr:
        """The value of an expression's table at an element; the expression itself if it is the same for all."""
        if not self.depends(expr):
            return expr
        loads = [e for e in self.everything([expr]) if isinstance(e, Load)]
        if expr.type == INDEX or any(e.buffer in self.written or self.is_gathered(e) for e in loads):
            raise NotContiguous
        if expr.type == "pred":
            kept = Apply("convert", (expr,), "s32")
            return Apply("compare_ne", (self.table(kept), Const(0, "s32")), "pred")
        name = self.tables.setdefault(expr, f"{self.columns.name}_flat{len(self.tables)}")
        if len(self.tables) > max(MOST_TABLES, _work(self.columns.body) // WORK_OF_TABLE):
            raise NotContiguous
        return Load(name, self.lane, expr.type)

    # -- the loops ---------------------------------------------------------------------------------------------------

    @property
    def lane(self) -> Var:
        return Var(f"{self.columns.name}_lane", INDEX)

    @property
    def outer(self) -> For:
        """The loop that is split into blocks."""
        return self.loops[0]

    @property
    def within(self) -> int:
        """Rows in an iteration of it."""
        return self.loops[1].trip_count if len(self.loops) > 1 else 1

    @property
    def first(self) -> Var:
        return Var(f"{self.outer.name}_first", INDEX)

    @property
    def element(self) -> Expr:
        """The number of an element, from the first of all rows on."""
        start = index_apply("multiply", self.first, Const(self.within * self.length, INDEX))
        return index_apply("add", start if self.has_blocks else Const(0, INDEX), self.lane)

    @property
    def block(self) -> int:
        """Iterations of the outer loop per block: whole groups of vectors."""
        step = self.within * self.length
        least = 4 * LANES // gcd(4 * LANES, step)
        return min(self.outer.trip_count, least * max(1, ELEMENTS // (least * step)))

    @property
    def has_blocks(self) -> bool:
        return self.outer.kind != SERIAL or self.outer.trip_count > self.block

    @property
    def width(self) -> int:
        """The written length of a row of a table: whole vectors, of which there are shorter ones."""
        return next((n for n in (LANES // 4, LANES // 2) if self.length <= n), -(-self.length // LANES) * LANES)

    def joined(self) -> list[Stmt]:
        """The statements that replace the loops."""
        main = self.long_row()
        size = self.block * self.within * self.length + self.width
        alike = {e: name for e, name in self.tables.items() if self.outer.name not in self.depends(e)}
        others = {e: name for e, name in self.tables.items() if e not in alike}
        before: list[Stmt] = [Local(name, e.type, size) for e, name in alike.items()]
        of_columns = {e: name for e, name in alike.items() if self.depends(e) == {self.columns.name}}
        for expr, name in of_columns.items():
            row = Var(f"{name}_r", INDEX)
            copies = For(row.name, self.block * self.within, SERIAL, (self.copy(expr, name, row),))
            before += [*self.pattern(expr, name), copies]
        before += self.filling({e: name for e, name in alike.items() if e not in of_columns}, self.block, is_first=True)
        arrays = [Local(name, e.type, size) for e, name in others.items()]
        number, lets = Var(f"{self.outer.name}_block", INDEX), []
        count: int | Expr = self.block
        if self.has_blocks:
            lets = [Let(self.first.name, index_apply("multiply", number, Const(self.block, INDEX)))]
        if self.outer.trip_count % self.block:
            rest = index_apply("subtract", Const(self.outer.trip_count, INDEX), self.first)
            lets.append(Let(f"{self.outer.name}_count", Apply("minimum", (Const(self.block, INDEX), rest), INDEX)))
            count = Var(lets[-1].name, INDEX)
        step = self.within * self.length
        elements = count * step if isinstance(count, int) else index_apply("multiply", count, Const(step, INDEX))
        arrays += [Local(r.name, r.store.value.type, size) for r in self.results]
        body = (*lets, *arrays, *self.filling(others, count), For(self.lane.name, elements, VECTOR, main),
                *self.spreading(count))
        if not self.has_blocks:
            return [*before, *body]
        return [*before, For(number.name, -(-self.outer.trip_count // self.block), self.outer.kind, body)]

    def pattern(self, expr: Expr, name: str) -> list[Stmt]:
        """A row of a table that is the same for several rows."""
        pattern = f"{name}_row"
        return [Local(pattern, expr.type, self.width), For(self.columns.name, self.length, SERIAL, (
            *self.needed(expr), Store(pattern, Var(self.columns.name, INDEX), expr)))]

    def copy(self, expr: Expr, name: str, row: Expr) -> For:
        """Copy a pattern to a row of the table."""
        lane = Var(f"{name}_k", INDEX)
        return For(lane.name, self.width, VECTOR, (
            Store(name, self.at(row, lane), Load(f"{name}_row", lane, expr.type)),))

    def at(self, row: Expr, column: Expr) -> Expr:
        """A position in a table."""
        return index_apply("add", index_apply("multiply", row, Const(self.length, INDEX)), column)

    def filling(self, tables: dict[Expr, str], count: int | Expr, is_first: bool = False) -> list[Stmt]:
        """Fill the tables that change from row to row, for the rows of a block; is_first: before the loop over all
        blocks."""
        if not tables:
            return []
        place = Var(f"{self.outer.name}_place", INDEX)
        has_first = self.has_blocks and not is_first
        here = Let(self.outer.name, index_apply("add", self.first, place) if has_first else place)
        rows = self.loops[-1]
        if len(self.loops) == 1 and _work(rows.body[:-1]) >= FUNCTION \
                and not any(self.columns.name in self.depends(e) for e in tables):
            return self.filling_by_vectors(tables, count, here)
        first_row = index_apply("multiply", place, Const(rows.trip_count, INDEX))
        row = place if len(self.loops) == 1 else index_apply("add", first_row, Var(rows.name, INDEX))
        body: list[Stmt] = []
        for expr, name in tables.items():
            if self.columns.name in self.depends(expr):
                column = Var(self.columns.name, INDEX)
                body.append(For(column.name, self.length, SERIAL, (
                    *self.needed(expr), Store(name, self.at(row, column), expr))))
            else:
                lane, value = Var(f"{name}_k", INDEX), Var(f"{name}_value", expr.type)
                body += [*self.needed(expr), Let(value.name, expr), For(lane.name, self.width, VECTOR, (
                    Store(name, self.at(row, lane), value),))]
        if len(self.loops) == 1:
            return [For(place.name, count, SERIAL, (here, *rows.body[:-1], *body))]
        return [For(place.name, count, SERIAL, (
            here, *self.outer.body[:-1], For(rows.name, rows.extent, SERIAL, (*rows.body[:-1], *body))))]

    def filling_by_vectors(self, tables: dict[Expr, str], count: int | Expr, here: Let) -> list[Stmt]:
        """The same if rows compute much: the values of each row are first computed for all rows of a block."""
        place, row = Var(f"{self.outer.name}_place", INDEX), Var(f"{self.outer.name}_row", INDEX)
        lets = (*self.outer.body[:-1], *dict.fromkeys(s for e in tables for s in self.needed(e)))
        found = For(place.name, count, VECTOR, (
            here, *lets, *(Store(f"{name}_rows", place, e) for e, name in tables.items())))
        copies: list[Stmt] = []
        for expr, name in tables.items():
            lane, value = Var(f"{name}_k", INDEX), Var(f"{name}_value", expr.type)
            copies += [Let(value.name, Load(f"{name}_rows", row, expr.type)), For(lane.name, self.width, VECTOR, (
                Store(name, self.at(row, lane), value),))]
        return [*(Local(f"{name}_rows", e.type, self.block) for e, name in tables.items()), found,
                For(row.name, count, SERIAL, tuple(copies))]

    def spreading(self, count: int | Expr) -> list[Stmt]:
        """Copy results that are not contiguous to their positions."""
        place, step = Var(f"{self.outer.name}_place", INDEX), self.within * self.length
        here = index_apply("add", self.first, place) if self.has_blocks else place
        body: list[Stmt] = []
        for r in self.results:
            lane = Var(f"{r.name}_k", INDEX)
            start = index_apply("add", r.rest, index_apply("multiply", here, Const(r.step, INDEX)))
            kept = index_apply("add", index_apply("multiply", place, Const(step, INDEX)), lane)
            body.append(For(lane.name, step, VECTOR, (
                Store(r.store.buffer, index_apply("add", start, lane), Load(r.name, kept, r.store.value.type)),)))
        return [For(place.name, count, SERIAL, tuple(body))] if body else []


def _work(statements: Iterable[Stmt]) -> int:
    """Operations per element."""
    done = [e for s in statements for e in parts(expressions(s)) if isinstance(e, Apply) and e.type != INDEX]
    narrow = sum(ROUNDING for e in done if e.op == "convert" and is_narrow(e.type))
    return narrow + sum(FUNCTION if e.op in HEAVY else 1 for e in done if e.op != "convert")
