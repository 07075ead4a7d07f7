"""Costs of a Tile's epilogue and prologues, for tile_work.py.

In: a Tile and the sizes of its product. Out: Sizes, and the number of operations of statements.
"""
from __future__ import annotations

from collections.abc import Sequence

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import Apply, Expr, Load, Stmt, Store, Tile
from hloc.kernels.walks import expressions, parts, walk
from hloc.targets.cuda.costs.tile_work import Sizes


def sizes_of(tile: Tile, rows: int, columns: int, depth: int, count: int) -> Sizes:
    """The Sizes of the product that a Tile computes."""
    outputs = rows * columns * count
    own = [b for b in tile.buffers if b.name not in ("lhs", "rhs")]
    memory = sum(b.size * ELEMENT_TYPES[b.type].bytes for b in tile.buffers)
    sizes_of = {b.name: b.size for b in own}
    each = sum(min(outputs, b.size) / outputs * ELEMENT_TYPES[b.type].bytes for b in own)
    inside = [p for s in walk(tile.epilogue) for p in parts(expressions(s))]
    far = any(isinstance(p, Load) and sizes_of.get(p.buffer, 0) * 2 > outputs for p in inside)
    chosen = any(is_choice(p) for p in inside)                  # these loads wait for the condition
    return Sizes(rows, columns, depth, count, memory, operations(tile.epilogue) + 2, each, far * (1 + chosen))


def operations(statements: Sequence[Stmt]) -> float:
    """Operations per element of an epilogue or a prologue, including loads and stores."""
    found = 0.0
    for s in walk(statements):
        found += 2 * isinstance(s, Store)
        found += sum(2 if isinstance(p, Load) else 1 if isinstance(p, Apply) else 0 for p in parts(expressions(s)))
    return found


def is_choice(part: Expr) -> bool:
    """Whether this is a select with a load in one of its branches."""
    return isinstance(part, Apply) and part.op == "select" and \
        any(isinstance(p, Load) for p in parts(part.arguments[1:]))
