"""Loop fission over blocks of rows: the scalar work of many rows is computed at once, in vectors, before the rows.

In: a kernel over rows of few elements, such as a gather of short windows: per row some scalar work computes the start
of the window. Out: the same, with that work in a VECTOR loop over a block of rows; or the unchanged kernel.

    for row:                                         for block of 256 rows:
      p = clamp(convert(index[row]))                   for row (VECTOR):  start[row] = clamp(convert(index[row]))
      for c < 4 (VECTOR): out[4 row + c] = x[p + c]    for row:  for c < 4 (VECTOR): out[4 row + c] = x[start[row] + c]
"""
from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hloc.kernels import ir
from hloc.kernels.indexing import index_apply
from hloc.kernels.walks import are_lets, expressions, parts, walk

BLOCK = 256                     # rows: their Local arrays stay in the L1 cache
LONGEST = 64                    # elements of a row: copying longer ones hides the scalar work
LEAST_WORK = 5                  # minimum operations per row


class Row(NamedTuple):
    """The work of one row: `lets` before its loop. The loop reads the `kept` ones, which are expensive; `cheap` ones
    are positions that follow from the counters."""

    lets: tuple[ir.Let, ...]
    kept: frozenset[str]
    cheap: frozenset[str]
    loop: ir.For


def with_row_fission(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel with the scalar work of its short rows vectorized, if there is any."""
    body = tuple(_statement(s) for s in kernel.body)
    return kernel if body == kernel.body else kernel._replace(body=body)


def _statement(s: ir.Stmt) -> ir.Stmt:
    if not isinstance(s, ir.For) or s.kind == ir.VECTOR or not isinstance(s.extent, int):
        return s
    row = _row_of(s)
    if row is not None and s.extent >= 2 * BLOCK:
        return _blocks(s, row)
    return s._replace(body=tuple(_statement(inner) for inner in s.body))


def _row_of(rows: ir.For) -> Row | None:
    """The parts of a loop whose body is Lets and one short VECTOR loop; None for others, and for little work."""
    *lets, loop = rows.body
    if not (isinstance(loop, ir.For) and loop.kind == ir.VECTOR
            and isinstance(loop.extent, int) and loop.extent <= LONGEST):
        return None
    if not are_lets(lets):
        return None
    cheap = {rows.name}
    for let in lets:
        if _is_place(let.value, cheap):
            cheap.add(let.name)
    read = {e.name for e in parts(e for s in walk((loop,)) for e in expressions(s)) if isinstance(e, ir.Var)}
    kept = frozenset(let.name for let in lets if let.name in read and let.name not in cheap)
    work = sum(isinstance(e, ir.Apply) and not _is_place(e, cheap)
               for e in parts(let.value for let in lets if let.name not in cheap))
    return Row(tuple(lets), kept, frozenset(cheap), loop) if kept and work >= LEAST_WORK else None


def _is_place(value: ir.Expr, cheap: set[str]) -> bool:
    """Whether this is a position that follows from the loop counters."""
    return all(isinstance(e, ir.Const) or (isinstance(e, ir.Var) and e.name in cheap)
               or (isinstance(e, ir.Apply) and e.type == ir.INDEX and e.op != "convert") for e in parts([value]))


def _blocks(rows: ir.For, row: Row) -> ir.For:
    """The loop over blocks: a vector loop that fills Local arrays, and the rows, which read them."""
    block = ir.Var(f"{rows.name}_block", ir.INDEX)
    start = index_apply("multiply", block, ir.Const(BLOCK, ir.INDEX))
    extent = rows.trip_count
    rest = index_apply("subtract", ir.Const(extent, ir.INDEX), start)
    place = ir.Var(f"{rows.name}_place", ir.INDEX)
    here = ir.Let(rows.name, index_apply("add", start, place))
    values = {let.name: _stored(let.value) for let in row.lets if let.name in row.kept}
    arrays = [ir.Local(f"{name}_row", value.type, BLOCK) for name, value in values.items()]
    fill = [ir.Store(f"{name}_row", place, value) for name, value in values.items()]
    first = [let for let in row.lets if let.name not in values or _is_read(let.name, row.lets)]
    again = [let._replace(value=_loaded(let, values[let.name], place)) if let.name in values else let
             for let in row.lets if let.name in values or let.name in row.cheap]
    last = ir.Let(f"{rows.name}_count", ir.Apply("minimum", (ir.Const(BLOCK, ir.INDEX), rest), ir.INDEX))
    is_even = extent % BLOCK == 0
    count: int | ir.Expr = BLOCK if is_even else ir.Var(last.name, ir.INDEX)
    return ir.For(block.name, -(-extent // BLOCK), rows.kind, (
        *(() if is_even else (last,)), *arrays, ir.For(place.name, count, ir.VECTOR, (here, *first, *fill)),
        ir.For(place.name, count, ir.SERIAL, (here, *again, row.loop))))


def _stored(value: ir.Expr) -> ir.Expr:
    """The value that a Local array stores: a converted index before its conversion, which is half as wide."""
    if isinstance(value, ir.Apply) and value.op == "convert" \
            and value.type == ir.INDEX and value.arguments[0].type != ir.INDEX:
        return value.arguments[0]
    return value


def _loaded(let: ir.Let, stored: ir.Expr, place: ir.Var) -> ir.Expr:
    load = ir.Load(f"{let.name}_row", place, stored.type)
    return load if stored is let.value else ir.Apply("convert", (load,), let.value.type)


def _is_read(name: str, lets: Iterable[ir.Let]) -> bool:
    return any(isinstance(e, ir.Var) and e.name == name for e in parts(let.value for let in lets))
