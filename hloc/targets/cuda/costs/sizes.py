"""Costs of a Tile's epilogue and prologues, for tile_work.py.

In: a Tile and the sizes of its product. Out: Sizes, and the number of operations of statements.
"""
from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import INDEX, Apply, Expr, Let, Load, Prologue, Stmt, Store, Tile
from hloc.kernels.walks import expressions, parts, walk
from hloc.targets.cuda.costs.tile_work import Sizes
from hloc.targets.cuda.tiles.finish import Finish


def sizes_of(tile: Tile, rows: int, columns: int, depth: int, count: int, finish: Finish | None = None) -> Sizes:
    """The Sizes of the product that a Tile computes. finish: how its epilogue is computed, if for several columns at
    once."""
    outputs = rows * columns * count
    own = [b for b in tile.buffers if b.name not in ("lhs", "rhs")]
    memory = sum(b.size * ELEMENT_TYPES[b.type].bytes for b in tile.buffers)
    sizes_of = {b.name: b.size for b in own}
    each = sum(min(outputs, b.size) / outputs * ELEMENT_TYPES[b.type].bytes for b in own)
    inside = [p for s in walk(tile.epilogue) for p in parts(expressions(s))]
    far = any(isinstance(p, Load) and sizes_of.get(p.buffer, 0) * 2 > outputs for p in inside)
    early = finish.loads if finish else {}
    chosen = any(is_choice(p, early) for p in inside)           # these loads wait for the condition
    found = Sizes(rows, columns, depth, count, memory, operations(tile.epilogue) + 2, each, far * (1 + chosen))
    return found._replace(wide=finish.width, instructions=_wide(finish) + 2) if finish else found


def share_read(c: Mapping[str, int]) -> float:
    """The share of an image that the windows of a convolution cover: a quarter for 1x1 with strides of 2."""
    keys = ("SIZE", "OUT", "STRIDE", "WINDOW", "DILATION", "LOW", "BASE")
    return math.prod(_positions_read(*(c[f"{key}{d}"] for key in keys)) / max(1, c[f"SIZE{d}"]) for d in range(3))


@lru_cache(maxsize=1024)
def _positions_read(size: int, outputs: int, stride: int, window: int, dilation: int, low: int, base: int) -> int:
    """Positions of one dimension that some output reads."""
    places = (o * stride + w * dilation - low for o in range(outputs) for w in range(window))
    return len({p for p in places if p % base == 0 and 0 <= p // base < size})


def _wide(finish: Finish) -> float:
    """Operations per element of an epilogue that is computed for several columns at once."""
    if not finish.stores:
        return operations(finish.body)
    places = [*finish.loads.values(), *finish.stores.values()]
    accesses = sum(2 + sum(isinstance(p, Apply) for p in parts([place])) for place in places)
    waiting, own = [s.value for s in finish.body if isinstance(s, (Let, Store)) and s.value.type != INDEX], 0.0
    while waiting:
        part = waiting.pop()
        if isinstance(part, Load) and part not in finish.loads:
            own += 2
            waiting.append(part.position)
        elif isinstance(part, Apply):
            own += 1
            waiting += part.arguments
    return own + accesses / finish.width


def operations(statements: Sequence[Stmt]) -> float:
    """Operations per element of statements, including loads and stores."""
    found = 0.0
    for s in walk(statements):
        found += 2 * isinstance(s, Store)
        found += sum(2 if isinstance(p, Load) else 1 if isinstance(p, Apply) else 0 for p in parts(expressions(s)))
    return found


def operations_of_prologue(prologue: Prologue) -> float:
    """Operations per element of an operand that is computed."""
    return operations((*prologue.statements, Let("", prologue.value)))


def is_choice(part: Expr, early: Collection[Load] = ()) -> bool:
    """Whether this is a select with a load in one of its branches. early: loads that come before it in any case."""
    return isinstance(part, Apply) and part.op == "select" and \
        any(isinstance(p, Load) and p not in early for p in parts(part.arguments[1:]))
