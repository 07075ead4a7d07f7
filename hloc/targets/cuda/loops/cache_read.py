"""Elements that several loops of a row read are loaded from memory once, and kept in registers for the later loops.

In: a loop Kernel and the number of lanes that compute one of its rows (teams.py). Out: the same kernel, with a Local
array for each operand that two or more of the row's loops read at the same positions, as in softmax and layer norm.
teams.py distributes the array over the lanes. No lane holds more than REGISTERS.

    for i VECTOR: m = max(m, x[r * 4096 + i])              for i: x0 = x[r * 4096 + i]; cached0[i] = x0; m = max(m, x0)
    for j VECTOR: s += exp(x[r * 4096 + j] - m)        ->  for j: s += exp(cached0[j] - m)
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels import ir
from hloc.kernels.affine import Affine, affine, forms
from hloc.kernels.walks import assigned, defined, expressions, loads, parts, walk, with_expressions, with_parts

REGISTERS = 64                      # the most that one lane uses for all its arrays
LARGEST_BLOCK, REGISTERS_OF_LARGEST = 1024, 32
COUNTER = "#"                       # replaces the counters of all loops when places are compared


class Place(NamedTuple):
    """A buffer, and a position in it that loops share, as an affine form of the row and COUNTER."""

    buffer: str
    type: str
    factors: tuple[tuple[str, int], ...]
    constant: int


def with_cache_read(kernel: ir.Kernel, lanes: int) -> ir.Kernel:
    """The kernel with kept rows; the kernel itself if nothing is read twice, or rows are too long."""
    row = next((s for s in kernel.body if isinstance(s, ir.For) and s.kind == ir.PARALLEL), None)
    body = _kept(row.body if row else kernel.body, kernel, lanes)
    if body is None:
        return kernel
    whole = tuple(s._replace(body=body) if s is row else s for s in kernel.body) if row else body
    return kernel._replace(body=whole)


def _kept(body: tuple[ir.Stmt, ...], kernel: ir.Kernel, lanes: int) -> tuple[ir.Stmt, ...] | None:
    """A row's new statements, or None if they do not change."""
    known = forms(kernel.body)
    written = {s.buffer for s in walk(kernel.body) if isinstance(s, (ir.Store, ir.Atomic))}
    changing = {s.name for s in walk(kernel.body) if isinstance(s, ir.Mutable)}
    sums = {s.name for s in walk(kernel.body) if isinstance(s, ir.Mutable) and s.reassociable}
    readable = {b.name for b in kernel.buffers} - written
    rows = [s for s in body if isinstance(s, ir.For) and s.kind == ir.VECTOR and isinstance(s.extent, int)
            and assigned(s.body) & changing <= sums]
    left = (REGISTERS if lanes < LARGEST_BLOCK else REGISTERS_OF_LARGEST) - \
        sum(_registers(s, lanes) for s in body if isinstance(s, ir.Local))
    arrays: list[ir.Local] = []
    for extent in dict.fromkeys(s.extent for s in rows):
        found = _Row([s for s in rows if s.extent == extent], known, readable, changing)
        for place, loops in found.readers():
            array = ir.Local(f"cached{len(arrays)}", place.type, found.loops[0].trip_count)
            if len(loops) > 1 and _registers(array, lanes) <= left:
                left -= _registers(array, lanes)
                arrays.append(array)
                body = found.keep(body, place, loops, array)
    return (*arrays, *body) if arrays else None


def _registers(array: ir.Local, lanes: int) -> int:
    return -(-array.size // lanes) * max(1, ELEMENT_TYPES[array.type].bytes // 4)


class _Row:
    """The loops of one extent, in order. Their counters identify them."""

    def __init__(self, loops: list[ir.For], known: dict[str, Affine], readable: set[str], changing: set[str]):
        self.loops, self.known, self.readable, self.changing = loops, known, readable, changing

    def place(self, load: ir.Load, loop: ir.For) -> Place | None:
        """The place that a loop reads, or None if its position is not an affine form of the row and the counter."""
        form = affine(load.position, self.known)
        factors = form.factors if load.buffer in self.readable else None
        if not factors or not factors.get(loop.name) or (defined(loop.body) | self.changing) & factors.keys():
            return None
        factors = {COUNTER if name == loop.name else name: n for name, n in factors.items()}
        return Place(load.buffer, load.type, tuple(sorted(factors.items())), form.constant)

    def readers(self) -> list[tuple[Place, list[str]]]:
        """Places with the counters of the loops that read them, in descending order of the number of loops. The first
        loop of each reads its place unconditionally; earlier loops of the row still read memory."""
        found: dict[Place, list[str]] = {}
        for loop in self.loops:
            always = {self.place(p, loop) for s in loop.body for p in unconditional(expressions(s))}
            for place in dict.fromkeys(self.place(p, loop) for p in loads(loop.body)):
                if place is not None and (place in found or place in always):
                    found.setdefault(place, []).append(loop.name)
        return sorted(found.items(), key=lambda item: -len(item[1]))

    def keep(self, body: tuple[ir.Stmt, ...], place: Place, loops: list[str], array: ir.Local) -> tuple[ir.Stmt, ...]:
        """The row with a place stored in the array by the first of these loops, and read from it by the others."""
        return tuple(s if not isinstance(s, ir.For) or s.name not in loops else
                     self._first(s, place, array) if s.name == loops[0] else self._later(s, place, array) for s in body)

    def _first(self, loop: ir.For, place: Place, array: ir.Local) -> ir.For:
        value = ir.Var(f"{array.name}_now", place.type)
        done: list[ir.Stmt] = []
        for statement in loop.body:
            load = next((p for p in unconditional(expressions(statement)) if self.place(p, loop) == place), None)
            if load is not None and ir.Let(value.name, load) not in done:
                done += [ir.Let(value.name, load), ir.Store(array.name, ir.Var(loop.name, ir.INDEX), value)]
            seen = any(isinstance(s, ir.Let) and s.name == value.name for s in done)
            done.append(self._replaced(statement, loop, place, value) if seen else statement)
        return loop._replace(body=tuple(done))

    def _later(self, loop: ir.For, place: Place, array: ir.Local) -> ir.For:
        value = ir.Load(array.name, ir.Var(loop.name, ir.INDEX), place.type)
        return loop._replace(body=tuple(self._replaced(s, loop, place, value) for s in loop.body))

    def _replaced(self, statement: ir.Stmt, loop: ir.For, place: Place, value: ir.Expr) -> ir.Stmt:
        def change(expr: ir.Expr) -> ir.Expr:
            if isinstance(expr, ir.Load) and self.place(expr, loop) == place:
                return value
            return with_parts(expr, change)
        return _everywhere(statement, change)


def _everywhere(statement: ir.Stmt, change: Callable[[ir.Expr], ir.Expr]) -> ir.Stmt:
    """A statement with all its expressions changed, also those in its body."""
    if isinstance(statement, ir.If):
        return ir.If(change(statement.condition), tuple(_everywhere(s, change) for s in statement.then),
                  tuple(_everywhere(s, change) for s in statement.otherwise))
    if isinstance(statement, ir.While):
        return ir.While(change(statement.condition), tuple(_everywhere(s, change) for s in statement.body))
    if isinstance(statement, ir.For):
        extent = statement.extent if isinstance(statement.extent, int) else change(statement.extent)
        return statement._replace(body=tuple(_everywhere(s, change) for s in statement.body), extent=extent)
    if isinstance(statement, ir.Last):
        return statement._replace(position=change(statement.position),
                                  body=tuple(_everywhere(s, change) for s in statement.body))
    return with_expressions(statement, change)


def unconditional(roots: Iterable[ir.Expr]) -> Iterable[ir.Load]:
    """Loads that are always executed: not those in the branches of a select."""
    stack = list(roots)
    while stack:
        top = stack.pop()
        if isinstance(top, ir.Load):
            yield top
        if not isinstance(top, ir.Apply) or top.op != "select":
            stack.extend(list(parts([top]))[1:] if isinstance(top, ir.Load) else getattr(top, "arguments", ()))
        else:
            stack.append(top.arguments[0])
