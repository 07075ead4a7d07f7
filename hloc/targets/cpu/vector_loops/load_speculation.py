"""Speculates loads of 8 and 16 bits that a select may skip, if they are safe.

Compilers have no conditional loads of these before AVX-512, and lanes are loaded together without a condition only
(loop_schedules.py).

In: a Kernel. Out: the kernel with a name before the statement for each load that a select in a VECTOR loop may skip, if
its position is inside the array whatever the condition is. In padded arrays it may be outside.

    out[i] = p[i] ? 1 : f32(x[i]) / 2    ->    t = f32(x[i]);  out[i] = p[i] ? 1 : t / 2
    out[i] = p[i] ? x[i] : 0             ->    t = x[i];       out[i] = p[i] ? t : 0

In the epilogue of a product or convolution, so are elements of any type that all columns of a row share; they are then
loaded before the loop over the columns (tiles/epilogues.py).
"""
from __future__ import annotations

from collections.abc import Callable, Mapping

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.intervals import Known, interval, with_intervals
from hloc.kernels.ir import Apply, Expr, For, If, Kernel, Let, Load, Local, Stmt, Tile, Var, While
from hloc.kernels.walks import parts, walk, with_expressions, with_parts
from hloc.machine import Machine


def load_speculation(kernel: Kernel, machine: Machine) -> Kernel:
    """The kernel with such loads named."""
    sizes = {b.name: b.size for b in kernel.buffers}
    sizes |= {s.name: s.size for s in walk(kernel.body) if isinstance(s, Local)}
    loads = _Loads(sizes, narrow_load)
    return kernel._replace(body=with_intervals(kernel.body, loads.statement))


def epilogue_with_loads_first(tile: Tile, extents: Mapping[str, int]) -> tuple[Stmt, ...]:
    """The epilogue of a tile with such loads named, and also loads that all columns share: compilers do not vectorize
    these under a mask either. extents: of `batch`, `row` and `column`."""
    sizes = {b.name: b.size for b in tile.buffers if b.access == "read"}
    loads = _Loads(sizes, lambda expr: narrow_load(expr) or _shared_load(expr))
    known = Known()
    known.update({name: (0, extent - 1) for name, extent in extents.items()})
    return with_intervals(tile.epilogue, loads.statement, known, in_vector=True)


class _Loads:
    """sizes: elements of the arrays; load_of: expression -> the load that it is, or None; count: names given so far."""

    def __init__(self, sizes: Mapping[str, int], load_of: Callable[[Expr], Load | None]) -> None:
        self.sizes, self.load_of = sizes, load_of
        self.count = 0

    def statement(self, s: Stmt, known: Known, in_vector: bool) -> tuple[Stmt, ...]:
        if not in_vector or isinstance(s, (For, If, While)):
            return (s,)
        named: dict[Expr, Let] = {}
        changed = with_expressions(s, lambda e: self.expression(e, known, named, False))
        return (*named.values(), changed)

    def expression(self, expr: Expr, known: Known, named: dict[Expr, Let], chosen: bool) -> Expr:
        """chosen: the expression is a branch of a select."""
        load = self.load_of(expr) if chosen else None
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


def narrow_load(expr: Expr) -> Load | None:
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
