"""Hoisting: values per column that many rows share are computed once for a block of rows.

In: a kernel over rows with the same columns, in which an element needs a value that depends on its column and on a
slowly changing number, such as the mean and the variance of its group in its image. Out: the same, with such values in
Local arrays that a VECTOR loop fills once per block of rows; None if there are none.

    for row:  p = row / 256                               for block of 32 rows:  p = 32 block / 256
      for c < 96 (VECTOR):                                  for c < 96 (VECTOR):  t[c] = rsqrt(v[8 p + c / 12])
        out[96 row + c] = x[96 row + c]              =>     for row:
                          * rsqrt(v[8 p + c / 12])            for c < 96 (VECTOR):
                                                                out[96 row + c] = x[96 row + c] * t[c]
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import gcd

from hloc.kernels import ir
from hloc.kernels.indexing import index_apply
from hloc.kernels.scalars import is_narrow
from hloc.kernels.walks import parts, with_expressions, with_parts
from hloc.ops.table import SCALARS

LONGEST = 1024                  # columns: the arrays stay in the L1 cache
MOST_TABLES = 6
FEWEST_ROWS = 4                 # minimum rows of a block
PIECES_PER_CORE = 4             # blocks, at least
COSTLY = frozenset(name for name, row in SCALARS.items() if row.cost >= SCALARS["divide"].cost)


def with_blocks_of_rows(kernel: ir.Kernel, cores: int) -> ir.Kernel | None:
    """The kernel with tables for blocks of its PARALLEL loop, if that loop contains rows and tables save work."""
    rows = kernel.body[-1] if kernel.body else None
    if not isinstance(rows, ir.For) or rows.kind != ir.PARALLEL or (columns := columns_of(rows)) is None:
        return None
    before = _lets_of(rows)
    alike = equal_rows(rows.name, rows.trip_count, before)
    block = block_of(alike, rows.trip_count, cores)
    tables = Tables(rows, columns, alike)
    if block < FEWEST_ROWS or not tables.are_worth():
        return None
    return kernel._replace(body=(*kernel.body[:-1], tables.blocks(rows, before, block)))


def columns_of(rows: ir.For) -> ir.For | None:
    """The VECTOR loop over the columns of one row, if only Lets precede it."""
    *before, columns = rows.body or (None,)
    if not (isinstance(columns, ir.For) and columns.kind == ir.VECTOR and isinstance(columns.extent, int)):
        return None
    simple = all(isinstance(s, ir.Let) for s in before) and all(isinstance(s, (ir.Let, ir.Store)) for s in columns.body)
    return columns if simple and columns.extent <= LONGEST else None


def _lets_of(rows: ir.For) -> list[ir.Let]:
    """What stands before the loop over the columns."""
    return [s for s in rows.body[:-1] if isinstance(s, ir.Let)]


def equal_rows(row: str, extent: int, lets: Iterable[ir.Let]) -> int:
    """How many consecutive rows have the same quotients by which `lets` divide the row's number; all, if none does."""
    divisors = [d for let in lets for d in _divisors(let.value, row)]
    return gcd(extent, *divisors)


def block_of(alike: int, extent: int, cores: int) -> int:
    """Rows per block: a divisor of `alike` that gives enough blocks for all cores."""
    most = extent // (PIECES_PER_CORE * cores)
    return max((n for n in range(1, alike + 1) if alike % n == 0 and n <= most), default=0) if most else 0


def _divisors(value: ir.Expr, row: str) -> Iterator[int]:
    for e in parts([value]):
        if isinstance(e, ir.Apply) and e.op == "divide" and _is_row(e.arguments[0], row) \
                and isinstance(e.arguments[1], ir.Const):
            yield e.arguments[1].integer


def _is_row(value: ir.Expr, row: str) -> bool:
    return isinstance(value, ir.Var) and value.name == row


class Tables:
    """Values that depend on the column but not on the row. `fast`: the names that change from row to row; `moving`:
    those that change from column to column. alike: rows with the same quotient of the row's number by it."""

    def __init__(self, rows: ir.For, columns: ir.For, alike: int):
        self.row, self.alike, self.columns, self.column = rows.name, alike, columns, ir.Var(columns.name, ir.INDEX)
        self.fast = {rows.name}
        self.written = {s.buffer for s in columns.body if isinstance(s, ir.Store)}
        for let in _lets_of(rows):
            if self.is_fast(let.value):
                self.fast.add(let.name)
        self.inner: dict[str, ir.Expr] = {}                # Lets of the columns' loop that are the same for all rows
        self.moving = {columns.name}
        for s in columns.body:
            if isinstance(s, ir.Let) and self.is_fast(s.value):
                self.fast.add(s.name)
            elif isinstance(s, ir.Let):
                self.inner[s.name] = s.value
                self.moving.add(s.name)
        self.values: dict[ir.Expr, str] = {}
        self.body = [with_expressions(s, self.looked_up) for s in columns.body
                     if isinstance(s, (ir.Let, ir.Store)) and not (isinstance(s, ir.Let) and s.name in self.inner)]

    def are_worth(self) -> bool:
        return 0 < len(self.values) <= MOST_TABLES

    def is_fast(self, value: ir.Expr) -> bool:
        """Whether an expression changes from row to row; the row's number divided by enough rows does not."""
        stack = [value]
        while stack:
            e = stack.pop()
            if isinstance(e, ir.Var):
                if e.name in self.fast:
                    return True
            elif isinstance(e, ir.Load):
                if e.buffer in self.written:
                    return True
                stack.append(e.position)
            elif isinstance(e, ir.Apply):
                stack.extend(() if self.is_slow(e) else e.arguments)
        return False

    def is_slow(self, value: ir.Apply) -> bool:
        """Whether this is the row's number divided by so many rows that it is constant within a block."""
        return value.op == "divide" and any(d % self.alike == 0 for d in _divisors(value, self.row))

    def looked_up(self, value: ir.Expr) -> ir.Expr:
        """The expression with loads from tables in place of the largest subexpressions that are worth one."""
        if value.type != ir.INDEX and not is_narrow(value.type) and not self.is_fast(value) and self.is_worth(value):
            name = self.values.setdefault(value, f"{self.column.name}_table{len(self.values)}")
            return ir.Load(name, self.column, value.type)
        return with_parts(value, self.looked_up)

    def is_worth(self, value: ir.Expr) -> bool:
        """Whether this changes from column to column, and takes a division or more."""
        found, moves = False, False
        stack = [value]
        while stack:
            for e in parts([stack.pop()]):
                if isinstance(e, ir.Apply):
                    found |= e.op in COSTLY
                elif isinstance(e, ir.Var) and e.name in self.moving:
                    moves = True
                    if e.name in self.inner:
                        stack.append(self.inner[e.name])
        return found and moves

    def blocks(self, rows: ir.For, lets: Sequence[ir.Let], block: int) -> ir.For:
        """The loop over blocks: the tables, and then the rows."""
        number, place = ir.Var(f"{rows.name}_block", ir.INDEX), ir.Var(f"{rows.name}_place", ir.INDEX)
        start = ir.Let(f"{rows.name}_first", index_apply("multiply", number, ir.Const(block, ir.INDEX)))
        slow = [with_expressions(let, lambda e: _with_row(e, rows.name, ir.Var(start.name, ir.INDEX)))
                for let in lets if let.name not in self.fast]
        here = ir.Let(rows.name, index_apply("add", ir.Var(start.name, ir.INDEX), place))
        each: tuple[ir.Stmt, ...] = (here, *(let for let in lets if let.name in self.fast), self.reading())
        body: tuple[ir.Stmt, ...] = (start, *slow, *self.locals(), self.filling(),
                                     ir.For(place.name, block, ir.SERIAL, each))
        return rows._replace(name=number.name, extent=rows.trip_count // block, body=body)

    def locals(self) -> list[ir.Local]:
        return [ir.Local(name, value.type, self.columns.trip_count) for value, name in self.values.items()]

    def filling(self) -> ir.For:
        """The loop that computes the tables."""
        fill = (ir.Store(name, self.column, value) for value, name in self.values.items())
        return self.columns._replace(body=(*(ir.Let(name, value) for name, value in self.inner.items()), *fill))

    def reading(self) -> ir.For:
        """The columns' loop with loads from the tables."""
        return self.columns._replace(body=(*self.needed(), *self.body))

    def needed(self) -> tuple[ir.Let, ...]:
        """The Lets of the columns' loop that its rows still read."""
        values = [e for s in self.body for e in (s.value, *([s.position] if isinstance(s, ir.Store) else []))]
        kept: list[ir.Let] = []
        for let in reversed([ir.Let(name, value) for name, value in self.inner.items()]):
            if any(isinstance(e, ir.Var) and e.name == let.name for e in parts([*values, *(k.value for k in kept)])):
                kept.append(let)
        return tuple(reversed(kept))


def _with_row(value: ir.Expr, row: str, other: ir.Var) -> ir.Expr:
    return other if _is_row(value, row) else with_parts(value, lambda part: _with_row(part, row, other))
