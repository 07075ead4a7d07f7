"""Loops along rows as one, fuse(g,c), or rows with them, fuse(i,c). What does not go on evenly, such as a bias, is in
tables, and so is what takes a division or more and is the same for several elements.

In: the statements of a row and of its elements. Out: the loops that fill tables, and the one loop, which reads them.

    serial i < 64 {                                  fuse(i,c)
      let s = v[i]                                   serial i: let s = v[i]: vector c < 5: t[5 i + c] = s
      vector c < 5 {                                 vector j < 320: y[j] = x[j] * t[j]
        y[5 i + c] = x[5 i + c] * s } }
"""
from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from hloc.kernels.affine import affine, atoms, factor_of, flat, forms, plus, without
from hloc.kernels.indexing import index_apply
from hloc.kernels.ir import INDEX, SERIAL, VECTOR, Apply, Const, Expr, For, Let, Load, Local, Stmt, Store, Var
from hloc.kernels.schedule.lanes import ROW, part_name
from hloc.kernels.schedule.row_nest import RowNest
from hloc.kernels.schedule.steps import Refused
from hloc.kernels.walks import all_parts, are_lets, defined, expressions, names_in, with_expressions, with_parts
from hloc.ops.table import SCALARS

COSTLY = frozenset(name for name, row in SCALARS.items() if row.cost >= SCALARS["divide"].cost)
Chain = tuple[tuple[str, int], ...]
Fresh = Callable[[str], str]


class _Tables:
    """Values that iterations share, or whose positions are elsewhere. chain: the loops (counter, extent) that become
    one, of the first of which there are `count` iterations; before: statements of such an iteration; body: of an
    element; then of one of the one loop; outer: names that differ in a loop around, before which tables are filled.
    values: what the tables hold, and their names; lets: names that stand for expressions in them."""

    def __init__(self, before: Sequence[Let], body: Sequence[Stmt], chain: Chain, count: int | Expr,
                 fresh: Fresh, outer: Collection[str]) -> None:
        self.chain, self.fresh, self.count, self.row, self.outer = chain, fresh, count, chain[0][0], outer
        self.known = forms((*before, *body))
        self.written = {s.buffer for s in body if isinstance(s, Store)}
        self.values: dict[Expr, str] = {}
        self.lets = {s.name: s.value for s in (*before, *body) if isinstance(s, Let)}
        self.before = {s.name for s in before}
        self.of_rows = self.before | {name for name, value in self.lets.items() if self.depends(value) <= {self.row}}
        changed, used = list[Stmt](), set[str]()
        for s in reversed(body):
            if isinstance(s, Store) or isinstance(s, Let) and s.name in used:
                changed.insert(0, with_expressions(s, self.read) if isinstance(s, Let)
                               else s._replace(value=self.read(s.value)))
                used |= names_in(expressions(changed[0]), {})
        self.body = tuple(changed)

    @property
    def place(self) -> Expr:
        """The position in a table."""
        return flat(self.chain)

    def table(self, e: Expr) -> Load:
        if e not in self.values:
            self.values[e] = self.fresh("table")
        return Load(self.values[e], self.place, e.type)

    def depends(self, e: Expr) -> set[str]:
        """The counters that change an expression."""
        return names_in([e], self.lets) & {name for name, _ in self.chain}

    def needed(self, body: Iterable[Stmt]) -> list[Let]:
        """The names that statements read."""
        names = names_in((e for s in body for e in expressions(s)), self.lets)
        return [Let(name, value) for name, value in self.lets.items() if name in names]

    def is_costly(self, e: Expr) -> bool:
        """Whether this takes a division or more."""
        return any(isinstance(p, Apply) and p.op in COSTLY for p in all_parts([e], self.lets))

    def is_even(self, e: Expr) -> bool:
        return not isinstance(e, Load) or goes_on(affine(e.position, self.known), self.chain)

    def read(self, e: Expr) -> Expr:
        """An expression in the one loop."""
        is_less = len(self.depends(e)) < len(self.chain) or self.outer and not self.differs(e)
        if is_less and self.is_costly(e):
            return self.shared(e)
        if isinstance(e, Var) and e.name in self.before or not self.is_even(e) or isinstance(e, Apply) and (
                any(a.type == INDEX for a in e.arguments) or e.op == "select" and not all(      # what is not selected
                    map(self.is_even, all_parts(e.arguments[1:], self.lets)))):             # may not be loaded
            return self.shared(e)
        return e if isinstance(e, Load) else with_parts(e, self.read)

    def shared(self, e: Expr) -> Expr:
        """The value in a table; the expression itself if it is the same for all elements."""
        if not self.depends(e):
            return e
        if e.type == INDEX or self.differs(e) or any(
                isinstance(p, Load) and p.buffer in self.written for p in all_parts([e], self.lets)):
            raise Refused("what differs between elements is a position, is written, or differs in the loop around")
        if e.type == "pred":
            return Apply("compare_ne", (self.shared(Apply("convert", (e,), "s32")), Const(0, "s32")), "pred")
        return self.table(e)

    def differs(self, e: Expr) -> bool:
        """Whether an expression has other values in the loop around."""
        return not names_in([e], self.lets).isdisjoint(self.outer)

    def filling(self) -> tuple[Stmt, ...]:
        """The tables, and the loops that fill them; those of columns first, which all blocks may share."""
        found = list[Stmt]()
        for is_of_rows, count in ((False, self.chain[0][1]), (True, self.count)):
            own = {e: name for e, name in self.values.items() if (self.row in self.depends(e)) == is_of_rows}
            named = {e: Let(self.fresh("value"), e) for e in own if self.depends(e) == {self.row}}
            stores = [Store(name, self.place, Var(named[e].name, e.type) if e in named else e)
                      for e, name in own.items()]
            lets = self.needed([*named.values(), *stores])
            rows = (*(s for s in lets if s.name in self.of_rows), *named.values(),
                    *around(self.chain[1:], (*(s for s in lets if s.name not in self.of_rows), *stores)))
            found += [Local(name, e.type, size_of(self.chain)) for e, name in own.items()]
            found += [For(self.row, count, SERIAL, rows)] if own else []
        return tuple(found)


def one_loop(nest: RowNest, names: Iterator[int]) -> tuple[Stmt, ...]:
    """Loops along rows as one, or rows and these. Raises Refused."""
    part, = nest.loops
    before = [s for p in nest.parts if not p.chain for s in p.body]

    def fresh(name: str) -> str:
        return part_name(name, ROW, names)
    if nest.fused[0] != nest.loop.name:
        tables = _Tables((), part.body, part.chain, part.chain[0][1], fresh, {nest.loop.name} | defined(before))
        one = fused(tables, size_of(part.chain))
        return (*tables.filling(), nest.loop._replace(body=(*before, one)))
    if not are_lets(before):
        raise Refused("rows are one loop with those along them if they compute only names before")
    chain, rows = ((nest.loop.name, nest.iterations), *part.chain), nest.loop.extent
    tables = _Tables(before, part.body, chain, rows, fresh, ())
    length = size_of(part.chain)
    count = rows * length if isinstance(rows, int) else index_apply("multiply", rows, Const(length, INDEX))
    one = fused(tables, count)
    return (*tables.filling(), one)


def size_of(chain: Chain) -> int:
    return math.prod(n for _, n in chain)


def around(chain: Chain, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Loops, the innermost of which is a VECTOR loop."""
    for counter, extent in reversed(chain):
        body = (For(counter, extent, VECTOR if counter == chain[-1][0] else SERIAL, body),)
    return body


def goes_on(form: Expr, chain: Chain) -> bool:
    """Whether a position goes on evenly from one loop of a chain to the next."""
    step, counters = factor_of(form, chain[-1][0]), {name for name, _ in chain}
    one = flat(chain)
    others = [a for a in atoms(form) if not isinstance(a, Var)]
    return all(factor_of(form, n) == step * factor_of(one, n) for n in counters) and not names_in(others, {}) & counters


def fused(tables: _Tables, count: int | Expr) -> For:
    """The one loop. Raises Refused where a position does not go on evenly, or something else depends on the counters.
    """
    chain, name = tables.chain, tables.fresh(tables.chain[-1][0])
    inner = {n for n, _ in chain}
    inner |= {n for n, value in tables.lets.items() if value.type == INDEX and tables.depends(value)}

    def moved(position: Expr) -> Expr:
        form = affine(position, tables.known)
        rest = without(form, *(n for n, _ in chain))
        if not goes_on(form, chain) or names_in([rest], {}) & inner:
            raise Refused("positions do not go on evenly from one loop to the next")
        return plus(rest, Var(name, INDEX), factor_of(form, chain[-1][0]))

    def change(e: Expr) -> Expr:
        if isinstance(e, Var) and e.name in inner:
            raise Refused("counters are values")
        return e._replace(position=moved(e.position)) if isinstance(e, Load) else with_parts(e, change)
    kept = [s for s in tables.body if not (isinstance(s, Let) and s.name in inner)]
    return For(name, count, VECTOR, tuple(
        s._replace(position=moved(s.position), value=change(s.value)) if isinstance(s, Store)
        else with_expressions(s, change) for s in kept))
