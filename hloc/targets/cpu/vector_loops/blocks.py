"""Strip-mining: a loop over blocks, so that arrays between several loops stay in the nearest cache.

In: a VECTOR loop, the loops over the elements of a block that replace it, and the arrays between them. Out: these
loops, inside a loop over blocks; a loop of at most BLOCK iterations is one block, whose arrays have its length.

    for i < 1000                     for i_block < 8:
      ...                      ->      float a[128];
                                       for i_lane < min(128, 1000 - i_block * 128):  i = i_block * 128 + i_lane; ...
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping

from hloc.kernels.indexing import index_apply
from hloc.kernels.ir import INDEX, SERIAL, Apply, Const, Expr, For, If, Let, Local, Stmt, Var
from hloc.kernels.walks import expressions, parts, walk

BLOCK = 128                     # elements


def is_short(loop: For) -> bool:
    return isinstance(loop.extent, int) and loop.extent <= BLOCK


def lane_of(loop: For) -> Var:
    """The position of an element within its block."""
    return Var(loop.name if is_short(loop) else f"{loop.name}_lane", INDEX)


def over_blocks(loop: For, arrays: Mapping[str, str], loops: Iterable[Stmt]) -> tuple[Stmt, ...]:
    """The arrays, by name and element type, and the loops; inside a loop over blocks if more than one is needed. The
    counters of the loops are lanes, with any name."""
    count = loop.extent
    locals = [Local(name, type, loop.trip_count if is_short(loop) else BLOCK) for name, type in arrays.items()]
    if is_short(loop):
        return (*locals, *(_within(loop, s, None, count) for s in loops))
    total = Const(count, INDEX) if isinstance(count, int) else count
    first = Let(f"{loop.name}_first",
                index_apply("multiply", Var(f"{loop.name}_block", INDEX), Const(BLOCK, INDEX)))
    start = Var(first.name, INDEX)
    left: int | Expr = BLOCK
    if not isinstance(count, int) or count % BLOCK:
        left = Apply("minimum", (Const(BLOCK, INDEX), index_apply("subtract", total, start)), INDEX)
    rounded = index_apply("divide", index_apply("add", total, Const(BLOCK - 1, INDEX)), Const(BLOCK, INDEX))
    blocks = -(-count // BLOCK) if isinstance(count, int) else rounded
    return (For(f"{loop.name}_block", blocks, SERIAL, (*locals, first,
                                                                *(_within(loop, s, start, left) for s in loops))),)


def _within(loop: For, s: Stmt, start: Var | None, extent: int | Expr) -> Stmt:
    """A loop over a block whose first element is `start`; the element's number gets a name if it is read."""
    if isinstance(s, If):
        return If(s.condition, tuple(_within(loop, inner, start, extent) for inner in s.then))
    if not isinstance(s, For) or s.name == loop.name:
        return s
    lane = Var(s.name, INDEX)
    here = Let(loop.name, index_apply("add", start, lane) if start else lane)
    is_read = any(isinstance(e, Var) and e.name == loop.name for b in walk(s.body) for e in parts(expressions(b)))
    return s._replace(extent=extent, body=(here, *s.body) if is_read else s.body)
