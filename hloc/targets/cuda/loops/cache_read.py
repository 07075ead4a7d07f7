"""Elements that several loops of a row read are loaded from memory once, and kept in registers for the later loops.

In: a loop Kernel, the number of lanes that compute one of its rows (teams.py), and buffers that two or more of the
row's loops read at the same positions, as in softmax and layer norm. Out: the same kernel, with a Local array for each.
teams.py distributes the array over the lanes. No lane holds more than REGISTERS.

    for i VECTOR: m = max(m, x[r * 4096 + i])              for i: x0 = x[r * 4096 + i]; cached0[i] = x0; m = max(m, x0)
    for j VECTOR: s += exp(x[r * 4096 + j] - m)        ->  for j: s += exp(cached0[j] - m)
"""
from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels import ir
from hloc.kernels.affine import Affine, affine, forms
from hloc.kernels.schedule.nest import Refused
from hloc.kernels.walks import assigned, defined, expressions, loads, parts, walk, with_all_expressions, with_parts
from hloc.targets.cuda.loops.iteration_space import parallel_loop
from hloc.targets.cuda.loops.nest import LARGEST_BLOCK

REGISTERS = 64                      # the most that one lane uses for all its arrays
REGISTERS_OF_LARGEST = 32            # of a lane of the largest block
COUNTER = "#"                       # replaces the counters of all loops when places are compared


class Place(NamedTuple):
    """A buffer, and a position in it that loops share, as an affine form of the row and COUNTER."""

    buffer: str
    type: str
    factors: tuple[tuple[str, int], ...]
    constant: int


def with_cache_read(kernel: ir.Kernel, lanes: int, buffers: tuple[str, ...]) -> ir.Kernel:
    """The kernel with kept rows of these buffers. Raises Refused if one is not read twice, or rows are too long."""
    changed, arrays = _with_kept(kernel, buffers)
    most = REGISTERS if lanes < LARGEST_BLOCK else REGISTERS_OF_LARGEST
    if sum(registers(a.type, a.size, lanes) for a in arrays) > most:
        raise Refused(f"{lanes} lanes have no registers for {', '.join(buffers)}")
    return changed


@lru_cache(maxsize=32)
def _with_kept(kernel: ir.Kernel, buffers: tuple[str, ...]) -> tuple[ir.Kernel, list[ir.Local]]:
    """The kernel with kept rows of these buffers, and the arrays of its rows. Raises Refused."""
    row = parallel_loop(kernel)
    body: tuple[ir.Stmt, ...] = row.body if row else kernel.body
    arrays: list[ir.Local] = []
    kept: set[str] = set()
    for found in _rows_of(kernel):
        for place, loops in found.readers():
            if place.buffer in buffers:
                arrays.append(ir.Local(f"cached{len(arrays)}", place.type, found.loops[0].trip_count))
                body, kept = found.keep(body, place, loops, arrays[-1]), kept | {place.buffer}
    if kept != set(buffers):
        raise Refused(f"read once, or at other places: {', '.join(set(buffers) - kept)}")
    body = (*arrays, *body)
    changed = tuple(s._replace(body=body) if s is row else s for s in kernel.body) if row else body
    return kernel._replace(body=changed), [s for s in body if isinstance(s, ir.Local)]


def read_again(kernel: ir.Kernel) -> list[str]:
    """The buffers that several loops of a row read at the same positions, those that most read first."""
    found = [(place.buffer, len(loops)) for row in _rows_of(kernel) for place, loops in row.readers()]
    return list(dict.fromkeys(buffer for buffer, _ in sorted(found, key=lambda one: -one[1])))


def _rows_of(kernel: ir.Kernel) -> list[_Row]:
    """The loops of a row by their extents."""
    row, known = parallel_loop(kernel), forms(kernel.body)
    written = {s.buffer for s in walk(kernel.body) if isinstance(s, (ir.Store, ir.Atomic))}
    changing = {s.name for s in walk(kernel.body) if isinstance(s, ir.Mutable)}
    sums = {s.name for s in walk(kernel.body) if isinstance(s, ir.Mutable) and s.reassociable}
    readable = {b.name for b in kernel.buffers} - written
    rows = [s for s in (row.body if row else kernel.body) if isinstance(s, ir.For) and s.kind == ir.VECTOR
            and isinstance(s.extent, int) and assigned(s.body) & changing <= sums]
    return [_Row([s for s in rows if s.extent == extent], known, readable, changing)
            for extent in dict.fromkeys(s.extent for s in rows)]


def registers(type: str, size: int, lanes: int) -> int:
    """The registers of a lane for its part of an array."""
    return -(-size // lanes) * max(1, ELEMENT_TYPES[type].bytes // 4)


class _Row:
    """The loops of one extent, in order. Their counters identify them."""

    def __init__(self, loops: list[ir.For], known: dict[str, Affine], readable: set[str], changing: set[str]):
        self.loops, self.known, self.readable, self.changing = loops, known, readable, changing
        self.varying = {s.name: defined(s.body) | changing for s in loops}
        self.places: dict[tuple[ir.Load, str], Place | None] = {}

    def place(self, load: ir.Load, loop: ir.For) -> Place | None:
        """The place that a loop reads, or None if its position is not an affine form of the row and the counter."""
        key = load, loop.name
        if key not in self.places:
            self.places[key] = self._place(load, loop)
        return self.places[key]

    def _place(self, load: ir.Load, loop: ir.For) -> Place | None:
        form = affine(load.position, self.known)
        factors = form.factors if load.buffer in self.readable else None
        if not factors or not factors.get(loop.name) or self.varying[loop.name] & factors.keys():
            return None
        factors = {COUNTER if name == loop.name else name: n for name, n in factors.items()}
        return Place(load.buffer, load.type, tuple(sorted(factors.items())), form.constant)

    def readers(self) -> list[tuple[Place, list[str]]]:
        """Places that several loops read, with the counters of these. The first loop of each reads its place
        unconditionally; earlier loops of the row still read memory."""
        found: dict[Place, list[str]] = {}
        for loop in self.loops:
            always = {self.place(p, loop) for s in loop.body for p in unconditional(expressions(s))}
            for place in dict.fromkeys(self.place(p, loop) for p in loads(loop.body)):
                if place is not None and (place in found or place in always):
                    found.setdefault(place, []).append(loop.name)
        return [(place, loops) for place, loops in found.items() if len(loops) > 1]

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
        return with_all_expressions([statement], change)[0]


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
