"""Rows: what the lanes of a team may share of the iterations of a kernel's PARALLEL loop, whatever number they are.

In: a Kernel. Out: its Rows: which loops of a row have independent iterations (Spread), and where its Local arrays lie.

    for i0 PARALLEL: v0 = 0; for i1 VECTOR: v0 += x[i0 * 768 + i1]; out[i0] = v0       spreads: i1 of 768: v0 += ...

A Local array that every loop reads and writes only at the index of its iteration is split over the lanes, so that it
fits into registers. Any other Local of a row is in shared memory.
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels import ir
from hloc.kernels.affine import affine, factors_of, flat, forms, injective
from hloc.kernels.walks import assigned, bodies, defined, expressions, loads, operation, parts, stores, taken_in, walk
from hloc.targets.cuda.loops.iteration_space import parallel_loop

Own = Any      # a statement of the loop IR, or a Spread, Total or Scan; loops, too, hold these before they are printed


class Packs(NamedTuple):
    """Adjacent elements that a thread loads, computes and stores at once. loads, stores: those that are one access to
    memory, with its position in terms of the counter along the elements, and of names outside of the loop."""

    width: int
    loads: Mapping[ir.Load, ir.Expr]
    stores: Mapping[ir.Store, ir.Expr]


class Spread(NamedTuple):
    """The loops of `counters` fused into one, with its iterations distributed over the lanes. slots: iterations of one
    lane, if they are unrolled, as where the body indexes split Local arrays by `slot`; else 0; packs: its vector
    accesses, if it has any (vector_accesses.py); inside: the condition of those iterations that there are, if not all:
    the same for a whole vector."""

    counters: tuple[tuple[str, int | ir.Expr], ...]
    body: tuple[ir.Stmt, ...]
    slots: int = 0
    packs: Packs | None = None
    inside: ir.Expr | None = None

    @property
    def iterations(self) -> int:
        """The number of vectors, or of elements."""
        return math.prod(n for _, n in self.counters if isinstance(n, int)) // (self.packs.width if self.packs else 1)


class Scan(NamedTuple):
    """The serial loops of `counters` fused into one, for a warp: lanes test LOOKED_AT iterations at once. The body ends
    in an If; the iterations that meet its condition are executed by all lanes together, one after the other."""

    counters: tuple[tuple[str, int], ...]
    body: tuple[ir.Stmt, ...]


class Rows:
    """A kernel's rows. before: statements around them; body: of one row, named by `counter`; spreads: id of a For ->
    its Spread; loaded: buffers that a row reads; mutables, locals: those that are declared where all lanes run them;
    split: locals that are dealt out to the lanes; a team shares the others."""

    def __init__(self, kernel: ir.Kernel) -> None:
        loop = parallel_loop(kernel)
        self.before = tuple(s for s in kernel.body if s is not loop) if loop else ()
        self.body = loop.body if loop else kernel.body
        self.counter, self.count = (loop.name, loop.trip_count) if loop else ("", 1)
        self.known, self.buffers = forms((*self.before, *self.body)), {b.name for b in kernel.buffers}
        self.scans, self.joins = (any(isinstance(s, kind) for s in self.body) for kind in (Scan, ir.Last))
        self.spreads: dict[int, Spread] = {}
        self.mutables: dict[str, ir.Mutable] = {}
        self.locals: dict[str, ir.Local] = {}
        self.loaded = {load.buffer for load in loads(self.body)}
        for s in self.row_level(self.body):
            if isinstance(s, ir.Mutable):
                self.mutables[s.name] = s
            elif isinstance(s, ir.Local):
                self.locals[s.name] = s
            elif isinstance(s, ir.For) and (spread := self._spread(s)) is not None:
                self.spreads[id(s)] = spread
        self.split = {name for name in self.locals if self._is_split(name)}

    def row_level(self, statements: tuple[ir.Stmt, ...]) -> Iterator[ir.Stmt]:
        """The statements that all lanes run, outer before inner, in order; of distributed loops, not what is inside."""
        for s in statements:
            yield s
            for body in bodies(s) if id(s) not in self.spreads else ():
                yield from self.row_level(body)

    def _spread(self, loop: ir.For) -> Spread | None:
        """The deepest loop nest from this loop on with independent iterations, as one loop; None if there is none."""
        if loop.kind == ir.VECTOR:
            sums = assigned(loop.body) & self.mutables.keys()
            apart = all(self.mutables[name].reassociable for name in sums)
            return Spread(((loop.name, loop.extent),), loop.body) if apart else None
        chain, moved = [loop], []
        while len(inner := [s for s in chain[-1].body if isinstance(s, ir.For)]) == 1 \
                and all(isinstance(s, (ir.Let, ir.For)) for s in chain[-1].body):
            moved.append(tuple(s for s in chain[-1].body if isinstance(s, ir.Let)))
            chain.append(inner[0])
        for length in range(len(chain), 0, -1):
            nest = chain[:length]
            if all(isinstance(s.extent, int) for s in nest) and self._independent(nest):
                lets = tuple(s for part in moved[:length - 1] for s in part)
                return Spread(tuple((s.name, s.extent) for s in nest), lets + nest[-1].body)
        return None

    def _independent(self, nest: list[ir.For]) -> bool:
        """Whether no iteration of the nest reads what another writes, except accumulators to be reduced later."""
        body = nest[0].body
        inside = {s.name for s in walk(body) if isinstance(s, (ir.Mutable, ir.Local))}
        if any(isinstance(s, (ir.Atomic, ir.Barrier, ir.Shared)) for s in walk(body)):
            return False
        if not all(self.only_accumulated(name, body) for name in assigned(body) - inside):
            return False
        written = [(s, around) for s, around in _with_loops(nest[:1]) if s.buffer not in inside]
        moving = defined(body) - {s.name for s in walk(nest[:1]) if isinstance(s, ir.For)}
        places: dict[str, ir.Expr] = {}
        for store, around in written:
            place = affine(store.position, self.known)
            factors, extents = factors_of(place), {s.name: s.extent for s in around if isinstance(s.extent, int)}
            if factors is None or moving & factors.keys() or places.setdefault(store.buffer, place) != place \
                    or len(extents) < len(around) or not injective(factors, extents):
                return False
        return all(affine(load.position, self.known) == places[load.buffer]
                   for load in loads(body) if load.buffer in places)

    def only_accumulated(self, name: str, statements: tuple[ir.Stmt, ...]) -> bool:
        """Whether this is a reassociable Mutable that these statements only combine with terms."""
        everything, op = walk(statements), self.mutables[name].reassociable if name in self.mutables else ""
        updates = [s for s in everything if isinstance(s, ir.Assign) and s.name == name]
        uses = sum(isinstance(e, ir.Var) and e.name == name for s in everything for e in parts(expressions(s)))
        return bool(op) and uses == len(updates) \
            and all(taken_in(s) is not None and operation(s.value).op == op for s in updates)

    # -- Local arrays ----------------------------------------------------------------------------------------------

    def _is_split(self, name: str) -> bool:
        """Whether distributed loops, and nothing else, access an array at the index of their iteration."""
        spreads = [s for s in self.spreads.values() if name in touched_by(s.body)]
        return bool(spreads) and all(self._own(name, s) for s in spreads) and not any(
            name in touched_by((s,)) for s in self.row_level(self.body) if not bodies(s))

    @property
    def shared_bytes(self) -> int:
        return sum(bytes_of(s) for name, s in self.locals.items() if name not in self.split)

    def _own(self, name: str, spread: Spread) -> bool:
        """Whether every access in the loop is at the index of its iteration."""
        own = flat([(counter, n if isinstance(n, int) else 1) for counter, n in spread.counters])
        positions = [s.position for s in stores(spread.body) if s.buffer == name]
        positions += [load.position for load in loads(spread.body) if load.buffer == name]
        return all(affine(p, self.known) == own for p in positions)


rows_of = lru_cache(maxsize=32)(Rows)       # which schedules of different lanes share


def bytes_of(array: ir.Local | ir.Shared) -> int:
    return array.size * ELEMENT_TYPES[array.type].bytes


def _with_loops(statements: Iterable[Own],
                around: tuple[ir.For, ...] = ()) -> Iterator[tuple[ir.Store, tuple[ir.For, ...]]]:
    """All stores, each with the loops around it."""
    for s in statements:
        if isinstance(s, ir.Store):
            yield s, around
        for body in bodies(s):
            yield from _with_loops(body, (*around, s) if isinstance(s, ir.For) else around)


def touched_by(statements: tuple[ir.Stmt, ...]) -> set[str]:
    """The buffers that statements read or write."""
    return {load.buffer for load in loads(statements)} | {s.buffer for s in stores(statements)}
