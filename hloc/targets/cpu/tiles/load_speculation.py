"""Loads of a product's or convolution's epilogue that a select may skip, before it.

Compilers have no conditional loads of 8 and 16 bits before AVX-512, nor do they vectorize loads under a mask of what
all columns of a row share; these are then loaded before the loop over the columns (epilogues.py).

In: a Tile. Out: its epilogue with a name before the statement for each such load, if its position is inside the array
whatever the condition is. In padded arrays it may be outside.

    out[i] = p[i] ? 1 : f32(x[i]) / 2    ->    t = f32(x[i]);  out[i] = p[i] ? 1 : t / 2
"""
from __future__ import annotations

from collections.abc import Mapping

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.intervals import Known, interval, with_intervals
from hloc.kernels.ir import Apply, Expr, For, If, Let, Load, Stmt, Tile, Var, While
from hloc.kernels.walks import parts, with_expressions, with_parts


def epilogue_with_loads_first(tile: Tile, extents: Mapping[str, int]) -> tuple[Stmt, ...]:
    """The epilogue of a tile with such loads named. extents: of `batch`, `row` and `column`."""
    sizes = {b.name: b.size for b in tile.buffers if b.access == "read"}
    loads = _Loads(sizes)
    known = Known()
    known.update({name: (0, extent - 1) for name, extent in extents.items()})
    return with_intervals(tile.epilogue, loads.statement, known, in_vector=True)


class _Loads:
    """sizes: elements of the arrays; count: names given so far."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self.count = 0

    def statement(self, s: Stmt, known: Known, in_vector: bool) -> tuple[Stmt, ...]:
        if not in_vector or isinstance(s, (For, If, While)):
            return (s,)
        named: dict[Expr, Let] = {}
        changed = with_expressions(s, lambda e: self.expression(e, known, named, False))
        return (*named.values(), changed)

    def expression(self, expr: Expr, known: Known, named: dict[Expr, Let], chosen: bool) -> Expr:
        """chosen: the expression is a branch of a select."""
        load = _narrow_load(expr) or _shared_load(expr) if chosen else None
        if load is not None and self.is_inside(load, known):
            if expr not in named:
                named[expr] = Let(f"u{self.count}", expr)
                self.count += 1
            return Var(named[expr].name, expr.type)
        if isinstance(expr, Apply) and expr.op == "select":
            condition, *choices = expr.arguments
            return expr._replace(arguments=(self.expression(condition, known, named, chosen),
                                            *(self.expression(c, known, named, True) for c in choices)))
        return with_parts(expr, lambda part: self.expression(part, known, named, chosen))

    def is_inside(self, load: Load, known: Known) -> bool:
        found = interval(load.position, known)
        return found is not None and 0 <= found[0] and found[1] < self.sizes.get(load.buffer, 0)


def _narrow_load(expr: Expr) -> Load | None:
    """The load of a narrow element, unchanged or widened; None for other expressions."""
    load = expr.arguments[0] if isinstance(expr, Apply) and expr.op == "convert" else expr
    return load if isinstance(load, Load) and ELEMENT_TYPES[load.type].bits <= 16 else None


def _shared_load(expr: Expr) -> Load | None:
    """The load of an element that all columns of an epilogue's row share; None for other expressions."""
    if not isinstance(expr, Load):
        return None
    is_shared = all(part.name in ("batch", "row") if isinstance(part, Var) else not isinstance(part, Load)
                    for part in parts([expr.position]))
    return expr if is_shared else None
