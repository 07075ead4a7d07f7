"""Row nests: a loop over rows, each of which has loops along it; schedules say how rows go together.

In: a SERIAL loop of the loop IR whose iterations are independent. Out: a RowNest, or Refused with the reason why there
is none; after steps, the statements that replace the loop.

    serial i < 128 {                            fission(i) vectorize(i) stage(in0)
      var m = f32(-inf)                         serial i: serial c: table[c * 128 + i] = in0[i * 10 + c]
      vector c < 10 {                           vector i: m_r[i] = f32(-inf)
        m = maximum(m, in0[i * 10 + c])         serial c: vector i: m_r[i] = maximum(m_r[i], table[c * 128 + i])
      }                                         vector i: out0[i] = m_r[i]
      out0[i] = m
    }

Steps of row nests:

    fission(i)       the loop over rows goes around each part of the body by itself; what one part leaves to another is
                     in an array that has an element for each row
    vectorize(i)     after fission: rows are lanes, so that the loop over rows is the innermost one
    unroll(n)        after vectorize: n iterations of loops along rows at once; loops of no more are written out, and if
                     all are, there is one part
    stage(buffer)    after vectorize: rows of a buffer are transposed by way of a table, as they lie in memory
    fuse(c,d)        of rows that reduce nothing: the loops along them are one, or fuse(i,c,d): they and the rows; see
                     row_tables.py
"""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.affine import affine, atoms, constant_of, factor_of, forms, injective, plus, without
from hloc.kernels.indexing import sum_parts
from hloc.kernels.ir import (
    INDEX,
    SERIAL,
    Apply,
    Assign,
    Const,
    Expr,
    For,
    If,
    Let,
    Load,
    Local,
    Mutable,
    Stmt,
    Store,
    Var,
)
from hloc.kernels.schedule.nest import most_iterations
from hloc.kernels.schedule.steps import Refused
from hloc.kernels.vectors import is_vector
from hloc.kernels.walks import assigned, defined, loads, names_in, parts, stores, varying, walk

MOST_WRITTEN_OUT = 64           # copies of the body of a loop
MOST_BYTES = 128 << 10          # of a table: it lies on the stack, and in the L2 cache
NOTHING: Mapping[str, Expr] = {}


class Part(NamedTuple):
    """Straight-line statements, and the loops (counter, most iterations) around them, which may be none. kind: of the
    innermost loop; limits: iterations of those that only the run knows; guards: conditions inside of all loops, the
    same for all rows; named: positions that these need."""

    body: tuple[Stmt, ...]
    chain: tuple[tuple[str, int], ...] = ()
    kind: str = SERIAL
    limits: tuple[tuple[str, Expr], ...] = ()
    guards: tuple[Expr, ...] = ()
    named: tuple[Stmt, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether all elements of its loops are there."""
        return not (self.limits or self.guards)


class RowNest(NamedTuple):
    """loop: over the rows, at most `iterations`; parts: of its body, in order; arrays: of one row. times: iterations
    of the loop around; different: the names that have another value in each of them.

    Steps set the others: is_apart: after fission; has_lanes: rows are lanes; at_once: iterations along a row that are
    written out; staged: buffers with tables; fused: loops that are one."""

    loop: For
    iterations: int
    parts: tuple[Part, ...]
    arrays: tuple[Local, ...]
    times: int = 1
    different: frozenset[str] = frozenset()
    is_apart: bool = False
    has_lanes: bool = False
    at_once: int = 1
    staged: frozenset[str] = frozenset()
    fused: tuple[str, ...] = ()

    @property
    def key(self) -> tuple:
        """Equal for nests with the same schedules."""
        return self.loop, self.parts, self.iterations, self.times, self.different

    @property
    def loops(self) -> list[Part]:
        """The parts that are loops along rows."""
        return [p for p in self.parts if p.chain]

    @property
    def measured(self) -> RowNest:
        """The nest with all iterations that there may be, without conditions, by which it is costed."""
        most = {n: extent for p in self.parts for n, extent in p.chain}

        def plain(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
            return tuple(one for s in body for one in (
                plain(s.then) if isinstance(s, If) else
                (s._replace(extent=most.get(s.name, s.extent), body=plain(s.body)),) if isinstance(s, For) else (s,)))
        return self._replace(loop=self.loop._replace(extent=self.iterations, body=plain(self.loop.body)),
                             parts=tuple(p._replace(limits=(), guards=()) for p in self.parts))

    @property
    def reduces(self) -> bool:
        return any(isinstance(s, Assign) for s in walk(self.loop.body))

    @property
    def strided(self) -> dict[str, list[tuple[str, int]]]:
        """The buffers whose elements of adjacent rows are not adjacent, in loops along rows; of each access the type,
        and how many there are in a row."""
        known, found = forms(self.loop.body), dict[str, list[tuple[str, int]]]()
        for part in self.parts:
            for one in accesses(part.body) if part.chain else ():
                if self.is_strided(part, one, known):
                    type = one.type if isinstance(one, Load) else one.value.type
                    found.setdefault(one.buffer, []).append((type, math.prod(n for _, n in part.chain)))
        return found

    def fits(self, buffer: str) -> bool:
        """Whether tables of a buffer are not too large."""
        return all(n * self.iterations * ELEMENT_TYPES[t].bytes <= MOST_BYTES for t, n in self.strided[buffer])

    def is_strided(self, part: Part, one: Load | Store, known: Mapping[str, Expr]) -> bool:
        """Whether an access is to other than adjacent elements for adjacent rows, which may be transposed."""
        form = affine(one.position, known)
        return (part.is_plain and abs(factor_of(form, self.loop.name)) > 1 and is_fixed(form, self, part)
                and one.buffer not in {a.name for a in self.arrays})


# -- from a loop -------------------------------------------------------------------------------------------------------

def row_nest_of(loop: For, most: int, times: int = 1, different: frozenset[str] = frozenset(),
                around: Mapping[str, Expr] = NOTHING) -> RowNest:
    """The nest of a loop over rows, of which there are at most `most`. times, different: of the loop around, if any;
    around: values of names before the loop. Raises Refused."""
    if loop.kind != SERIAL or most < 2:
        raise Refused("not a loop over several rows")
    found: list[Part] = []
    arrays: list[Local] = []
    straight: list[Stmt] = []
    for s in loop.body:
        if isinstance(s, Local):
            arrays.append(s)
        elif isinstance(s, For):
            found += [Part(tuple(straight)), _part(s, loop, around)]
            straight = []
        elif isinstance(s, Let) and (value := _found(s.value)) is not None:
            straight += [Let(f"{s.name}_found", value),
                         Let(s.name, Apply("convert", (Var(f"{s.name}_found", value.type),), INDEX))]
        elif isinstance(s, (Let, Mutable, Assign, Store)):
            straight.append(s)
        else:
            raise Refused("the body is not straight-line code and loops")
    if not found:
        raise Refused("no loops along rows")
    nest = RowNest(loop, most, tuple(p for p in (*found, Part(tuple(straight))) if p.body), tuple(arrays), times,
                   different)
    _refuse_dependence(nest)
    return nest


def _found(position: Expr) -> Expr | None:
    """What a position that depends on data is converted from; None for others, and for a name."""
    if not isinstance(position, Apply) or position.op != "convert" or position.type != INDEX:
        return None
    return None if isinstance(position.arguments[0], (Var, Const)) else position.arguments[0]


def _part(loop: For, rows: For, named_before: Mapping[str, Expr]) -> Part:
    """The part of a perfect nest, whose conditions are the same for all rows; positions that are named between its
    loops are named in the innermost one."""
    chain: list[tuple[str, int]] = []
    named: list[Let] = []
    limits: list[tuple[str, Expr]] = []
    guards: list[Expr] = []
    inner: Stmt = loop
    while isinstance(inner, For) or isinstance(inner, If) and not inner.otherwise:
        if isinstance(inner, If):
            guards, body = [*guards, inner.condition], inner.then
        else:
            most = most_iterations(inner.extent, named_before)
            own = {rows.name, *defined(rows.body)}
            if not most or not isinstance(inner.extent, int) and any(
                    isinstance(e, Var) and e.name in own for e in parts([inner.extent])):
                raise Refused("the extent of a loop along rows is no constant, and no length of a block")
            chain.append((inner.name, most))
            limits += [] if isinstance(inner.extent, int) else [(inner.name, inner.extent)]
            kind, body = inner.kind, inner.body
        inner = body[-1]
        if isinstance(inner, (For, If)):
            named += [s for s in body[:-1] if isinstance(s, Let)]
            if not all(isinstance(s, Let) for s in body[:-1]):
                raise Refused("loops along rows are no perfect nest")
    if not all(isinstance(s, (Let, Assign, Store)) for s in body) or any(
            isinstance(s, Store) and is_vector(s.value.type) for s in body):
        raise Refused("a loop along rows is not straight-line code of scalars")
    needed = _needed(guards, named, rows) if guards else set()
    return Part((*(s for s in named if s.name not in needed), *body), tuple(chain), kind, tuple(limits), tuple(guards),
                tuple(s for s in named if s.name in needed))


def _needed(guards: Sequence[Expr], named: Sequence[Let], rows: For) -> set[str]:
    """The names that conditions need. Raises Refused where they differ for rows."""
    needed = names_in(guards, {s.name: s.value for s in (*rows.body, *named) if isinstance(s, Let)})
    if rows.name in needed:
        raise Refused("a condition differs for rows")
    return needed


def _refuse_dependence(nest: RowNest) -> None:
    """Refuse rows that depend on each other."""
    body, known = nest.loop.body, forms(nest.loop.body)
    if assigned(body) - defined(body):
        raise Refused("rows change one variable")
    private = {a.name for a in nest.arrays}
    if any(factor_of(affine(one.position, known), nest.loop.name) for one in accesses(body) if one.buffer in private):
        raise Refused("an array of one row is read at positions of many")
    written = {s.buffer for s in stores(body)} - private
    if written & {load.buffer for load in loads(body)}:
        raise Refused("what is written is read")
    ranges: dict[str, list[tuple[Expr, int]]] = {}
    for part in nest.parts:
        extents = dict(part.chain) | {nest.loop.name: nest.iterations}
        for s in part.body:
            if isinstance(s, Store) and s.buffer not in private:
                form = affine(s.position, known)
                steps = {n: factor_of(form, n) for n in extents}
                if not is_fixed(form, nest, part) or not injective(steps, extents):
                    raise Refused(f"rows may write to the same elements of {s.buffer}")
                along = {n: steps[n] * (extent - 1) for n, extent in part.chain}
                low = plus(without(form, *along), sum(min(0, n) for n in along.values()))
                ranges.setdefault(s.buffer, []).append((low, sum(map(abs, along.values()))))
    for buffer, found in ranges.items():
        first, last = (pick(constant_of(low) + n for low, length in found for n in (0, length)) for pick in (min, max))
        if len(found) > 1 and (len({tuple(sum_parts(low)[0]) for low, _ in found}) > 1
                               or last - first >= abs(factor_of(found[0][0], nest.loop.name))):
            raise Refused(f"rows may write to the same elements of {buffer}")


def accesses(body: Sequence[Stmt]) -> list[Load | Store]:
    """All loads and stores of statements."""
    return [*loads(body), *stores(body)]


def is_fixed(form: Expr, nest: RowNest, part: Part) -> bool:
    """Whether a position is a sum of counters and of what is the same for all rows."""
    counters = {nest.loop.name, *(name for name, _ in part.chain)}
    inner = varying(nest.loop.body) | counters
    return all(isinstance(a, Var) and a.name in counters or not any(
        isinstance(e, Load) or isinstance(e, Var) and e.name in inner for e in parts([a])) for a in atoms(form))


# -- steps -------------------------------------------------------------------------------------------------------------

def fission(nest: RowNest, rows: str) -> RowNest:
    """Each part of the body for all rows, before the next."""
    _check(nest, rows)
    return nest._replace(is_apart=True)


def vectorize(nest: RowNest, rows: str) -> RowNest:
    """Rows are lanes."""
    _check(nest, rows)
    if not nest.is_apart:
        raise Refused("rows are lanes after their fission")
    return nest._replace(has_lanes=True)


def unroll(nest: RowNest, n: int) -> RowNest:
    """n iterations along rows at once."""
    if not nest.has_lanes or not 2 <= n <= MOST_WRITTEN_OUT:
        raise Refused(f"2 to {MOST_WRITTEN_OUT} iterations are written out, where rows are lanes")
    return nest._replace(at_once=n)


def stage(nest: RowNest, buffer: str) -> RowNest:
    """Rows of a buffer are transposed."""
    if not nest.has_lanes or buffer not in nest.strided:
        raise Refused(f"{buffer} is not transposed: rows are no lanes, or it has adjacent elements for them")
    if not nest.fits(buffer):
        raise Refused(f"a table of {buffer} has more than {MOST_BYTES >> 10} KiB")
    return nest._replace(staged=nest.staged | {buffer})


def fuse(nest: RowNest, *counters: str) -> RowNest:
    """The loops along rows are one, or these and the one over rows."""
    first, *others = nest.loops
    along = tuple(n for n, _ in first.chain)
    if nest.is_apart or others or nest.reduces or not first.is_plain or len(counters) < 2 \
            or counters not in (along, (nest.loop.name, *along)):
        raise Refused("not the counters of nested loops that reduce nothing")
    return nest._replace(fused=counters)


def _check(nest: RowNest, rows: str) -> None:
    if rows != nest.loop.name:
        raise Refused(f"no loop {rows} over rows: it is {nest.loop.name}")


ROW_STEPS: dict[str, Callable[..., RowNest]] = {
    f.__name__: f for f in (fission, vectorize, unroll, stage, fuse)}
