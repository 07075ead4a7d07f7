"""RowNest -> loop IR: which loops go around which parts, arrays of what they leave to each other, tables.

In: a RowNest after its steps. Out: the statements that replace its loop.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.affine import affine, factor_of, flat, forms, plus, without
from hloc.kernels.indexing import index_apply
from hloc.kernels.ir import (
    INDEX,
    SERIAL,
    VECTOR,
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
from hloc.kernels.schedule.lanes import ROW, part_name
from hloc.kernels.schedule.row_nest import Part, RowNest
from hloc.kernels.schedule.row_tables import one_loop
from hloc.kernels.schedule.steps import Refused
from hloc.kernels.walks import assigned, defined, expressions, parts, walk, with_expressions, with_parts

MOST_BYTES = 512 << 10          # of all arrays of a block
Env = dict[str, Expr]
Body = Callable[[Env], list[Stmt]]


def lower_rows(nest: RowNest, names: Iterator[int]) -> tuple[Stmt, ...]:
    """The statements of a row nest. names: numbers for new names, unique in the kernel. Raises Refused."""
    if not (nest.fused or nest.is_apart):
        return (nest.loop,)
    done = _Rows(nest, names).statements() if nest.is_apart else one_loop(nest, names)
    if sum(s.size * ELEMENT_TYPES[s.type].bytes for s in done if isinstance(s, Local)) > MOST_BYTES:
        raise Refused("arrays of a block take too much of the stack, and of the caches")
    return done


class _Rows:
    """arrays: of what parts leave to others, and of each row's own ones, by their names; out: the statements."""

    def __init__(self, nest: RowNest, names: Iterator[int]) -> None:
        self.nest, self.names, self.row = nest, names, nest.loop.name
        self.known = forms(nest.loop.body)
        self.arrays: dict[str, str] = {}
        self.sizes = {a.name: a.size for a in nest.arrays}
        self.begins = {s.name: s for p in nest.parts if not p.chain for s in p.body if isinstance(s, (Let, Mutable))}
        self.positions = [s for p in nest.parts if not p.chain for s in p.body
                          if isinstance(s, Let) and s.value.type == INDEX]
        self.tables: dict[tuple, str] = {}
        self.out: list[Stmt] = []
        self.after: list[Stmt] = []

    def statements(self) -> tuple[Stmt, ...]:
        parts_ = [self.staged(p) for p in self.nest.parts]
        for a in self.nest.arrays:
            self.arrays[a.name] = self.array(a.name, a.type, a.size * self.nest.iterations)
        if self.nest.has_lanes and all(
                p.is_plain and math.prod(n for _, n in p.chain) <= self.nest.at_once for p in parts_):
            parts_ = [self.written_out(parts_)]
        self.expand(parts_)
        for part in parts_:
            self.part(part)
        return (*self.out, *self.after)

    def fresh(self, name: str) -> str:
        first, _, number = name.rpartition(f"_{ROW}")           # of the value that a part was a part of
        return part_name(first if number.isdigit() else name, ROW, self.names)

    def array(self, name: str, type: str, size: int) -> str:
        new = self.fresh(name)
        self.out.append(Local(new, type, size))
        return new

    # -- what one part leaves to another

    def expand(self, parts_: list[Part]) -> None:
        """Arrays for the values and variables that several parts use."""
        used = [self.used(p.body) for p in parts_]
        for number, part in enumerate(parts_):
            elsewhere = set().union(*used[:number], *used[number + 1:])
            for s in part.body if not part.chain else ():
                if isinstance(s, (Let, Mutable)) and type_of(s) != INDEX and s.name in elsewhere:
                    self.arrays[s.name] = self.array(s.name, type_of(s), self.nest.iterations)

    def part(self, part: Part) -> None:
        """The statements of one part for all rows."""
        if part.chain and self.nest.has_lanes:
            self.lanes(part)
            return
        row = self.fresh(self.row)
        body = self.around(part, part.chain, part.kind, lambda env: self.guarded(
            part, env, lambda: self.copy(part.body, env, not part.chain)))
        self.out.append(self.rows(part, row, SERIAL if part.chain else VECTOR, body, {}))

    def rows(self, part: Part, row: str, kind: str, body: Body, outer: Env) -> For:
        """A part for all rows: what it reads of other parts, itself, and what it leaves to them. outer: counters."""
        here, own, changed = Var(row, INDEX), defined(part.body), assigned(part.body)
        env: Env = outer | {self.row: here}
        before: list[Stmt] = []
        for name in sorted(self.used(part.body) & set(self.arrays) - own - set(self.sizes)):
            begin = self.begins[name]
            load, new = Load(self.arrays[name], here, type_of(begin)), self.fresh(name)
            before.append(Mutable(new, load, begin.reassociable) if isinstance(begin, Mutable) and kind == SERIAL
                          else Let(new, load))
            env[name] = Var(new, load.type)
        before += self.known_positions(part.body, env)
        inside = body(env)
        if kind == VECTOR and not self.sizes and not any(isinstance(s, (For, Assign)) for s in inside):
            inside.sort(key=lambda s: isinstance(s, Store))     # compilers do not know that rows read nothing written
        left = sorted(n for n in (changed | own) & set(self.arrays) - set(self.sizes) if n in env)
        after = [Store(self.arrays[n], here, env[n]) for n in left]
        return For(row, self.nest.loop.extent, kind, (*before, *inside, *after))

    def known_positions(self, body: Sequence[Stmt], env: Env) -> list[Stmt]:
        """Positions that other parts name."""
        wanted = self.used(body) - defined(body) - set(env)
        return self.copy([s for s in self.positions if s.name in wanted], env, True)

    def guarded(self, part: Part, env: Env, inside: Callable[[], list[Stmt]]) -> list[Stmt]:
        """Statements that run if the conditions of a part hold."""
        if not (part.guards or part.named):
            return inside()
        named = [*self.known_positions(part.named, env), *self.copy(part.named, env, True)]
        body = inside()
        for condition in reversed(part.guards):
            body = [If(self.changed(condition, env), tuple(body))]
        return [*named, *body]

    def used(self, body: Sequence[Stmt]) -> set[str]:
        """The names that statements read or change, and those that positions need which they read."""
        wanted = _used(body)
        for s in reversed(self.positions):
            if s.name in wanted:
                wanted |= _used([s])
        return wanted

    # -- loops along rows

    def around(self, part: Part, chain: Sequence[tuple[str, int]], kind: str, body: Body) -> Body:
        """Loops of a part around statements. kind: of the innermost one."""
        def inside(env: Env) -> list[Stmt]:
            if not chain:
                return body(env)
            (name, extent), *inner = chain
            new, limit = self.fresh(name), dict(part.limits).get(name)
            count = extent if limit is None else self.changed(limit, env)
            env[name] = Var(new, INDEX)
            return [For(new, count, SERIAL if inner else kind, tuple(self.around(part, inner, kind, body)(env)))]
        return inside

    def lanes(self, part: Part) -> None:
        """Loops along rows, with the loop over the rows in them."""
        *outer, (name, extent) = part.chain
        count = 1 if part.guards else min(self.nest.at_once, extent)
        limit = dict(part.limits).get(name)

        def several(first: Expr, count: int) -> Body:
            def inside(env: Env) -> list[Stmt]:
                found: list[Stmt] = []
                for k in range(count):
                    env[name] = index_apply("add", first, Const(k, INDEX))
                    found += self.copy(part.body, env, True)
                return found
            return inside

        def group(first: Expr, count: int, env: Env) -> list[Stmt]:
            """`count` iterations, from one on."""
            inner = env | {name: first}
            return self.guarded(part, inner, lambda: [
                self.rows(part, self.fresh(self.row), VECTOR, several(first, count), inner)])

        def groups_of(begin: Expr, groups: int | Expr, count: int, env: Env) -> list[Stmt]:
            """Groups of `count` iterations, from one on."""
            if groups == 1:
                return group(begin, count, env)
            new = self.fresh(name)
            first = index_apply("add", begin, index_apply("multiply", Var(new, INDEX), Const(count, INDEX)))
            return [For(new, groups, SERIAL, tuple(group(first, count, env)))]

        def loops(env: Env) -> list[Stmt]:
            if limit is None:
                rest = extent % count
                found = groups_of(Const(0, INDEX), extent // count, count, env)
                return found + (group(Const(extent - rest, INDEX), rest, env) if rest else [])
            length = self.changed(limit, env)
            whole = index_apply("divide", length, Const(count, INDEX))
            found = groups_of(Const(0, INDEX), whole, count, env)
            if count > 1:
                begin = index_apply("multiply", whole, Const(count, INDEX))
                found += groups_of(begin, index_apply("subtract", length, begin), 1, env)
            return found
        self.out += self.around(part, outer, SERIAL, loops)({})

    def written_out(self, parts_: Sequence[Part]) -> Part:
        """All parts as one, without loops."""
        body: list[Stmt] = []
        for part in parts_:
            for places in product(*(range(n) for _, n in part.chain)):
                env: Env = {name: Const(k, INDEX) for (name, _), k in zip(part.chain, places)}
                body += self.copy(part.body, env, False) if part.chain else part.body
        return Part(tuple(body))

    # -- copies of statements

    def copy(self, body: Sequence[Stmt], env: Env, is_straight: bool) -> list[Stmt]:
        """Statements with new names, which `env` holds afterwards. is_straight: whether variables become names of their
        values."""
        found: list[Stmt] = []

        def change(e: Expr) -> Expr:
            return self.changed(e, env)
        for s in body:
            if isinstance(s, Let) or is_straight and isinstance(s, (Mutable, Assign)):
                value = change(s.initial if isinstance(s, Mutable) else s.value)
                if isinstance(value, (Const, Var)) and value.type != INDEX and not isinstance(s, Let):
                    env[s.name] = value
                    continue
                new = self.fresh(s.name)
                found.append(Let(new, value))
                env[s.name] = Var(new, value.type)
            elif isinstance(s, Assign):
                target = env.get(s.name, Var(s.name, s.value.type))
                assert isinstance(target, Var)
                found.append(Assign(target.name, change(s.value)))
            else:
                assert isinstance(s, Store)             # as row_nest_of has it
                found.append(Store(*self.place(s.buffer, change(s.position), env), change(s.value)))
        return found

    def changed(self, e: Expr, env: Env) -> Expr:
        if isinstance(e, Var):
            return env.get(e.name, e)
        e = with_parts(e, lambda a: self.changed(a, env))
        return Load(*self.place(e.buffer, e.position, env), e.type) if isinstance(e, Load) else e

    def place(self, buffer: str, position: Expr, env: Env) -> tuple[str, Expr]:
        """Where an element is: one of an array of a row among those of all rows."""
        if buffer not in self.sizes:
            return buffer, position
        row = env.get(self.row, Var(self.row, INDEX))
        return self.arrays[buffer], plus(row, position, self.nest.iterations) if self.nest.has_lanes \
            else plus(position, row, self.sizes[buffer])

    # -- tables

    def staged(self, part: Part) -> Part:
        """A part that reads and writes tables instead of buffers, which it fills, or copies back in the end."""
        if not part.chain or not self.nest.staged:
            return part

        def change(e: Expr) -> Expr:
            if isinstance(e, Load) and self.is_staged(part, e):
                return Load(self.table(part, e.buffer, e.position, e.type, False), self.inside(part), e.type)
            return with_parts(e, change)
        body: list[Stmt] = []
        for s in part.body:
            s = with_expressions(s, change)
            if isinstance(s, Store) and self.is_staged(part, s):
                s = Store(self.table(part, s.buffer, s.position, s.value.type, True), self.inside(part), s.value)
            body.append(s)
        return part._replace(body=tuple(body))

    def is_staged(self, part: Part, one: Load | Store) -> bool:
        return one.buffer in self.nest.staged and self.nest.is_strided(part, one, self.known)

    def inside(self, part: Part) -> Expr:
        """The position in a table."""
        return flat((*part.chain, (self.row, self.nest.iterations)))

    def table(self, part: Part, buffer: str, position: Expr, type: str, is_result: bool) -> str:
        """The table of a buffer's elements at these positions."""
        form = affine(position, self.known)
        levels = tuple((factor_of(form, n), extent) for n, extent in part.chain)
        rest = without(form, self.row, *(n for n, _ in part.chain))
        key = buffer, levels, factor_of(form, self.row), rest, is_result
        if key not in self.tables:
            name = self.array(buffer, type, self.nest.iterations * math.prod(n for _, n in part.chain))
            self.tables[key] = name
            self.move(part, buffer, form, name, type, is_result)
        return self.tables[key]

    def move(self, part: Part, buffer: str, there: Expr, table: str, type: str, is_result: bool) -> None:
        """Copies rows to a table, or back."""
        here, row = self.inside(part), self.fresh(self.row)
        one = Store(table, here, Load(buffer, there, type))
        if is_result:
            one = Store(buffer, there, Load(table, here, type))
        *outer, last = part.chain
        copies = self.around(part, [last], SERIAL, lambda env: self.copy([one], env, True))

        def rows(env: Env) -> list[Stmt]:
            return [For(row, self.nest.loop.extent, SERIAL, tuple(copies(env | {self.row: Var(row, INDEX)})))]
        (self.after if is_result else self.out).extend(self.around(part, outer, SERIAL, rows)({}))


def type_of(s: Let | Mutable | Load | Store) -> str:
    """The type of what is named, loaded or stored."""
    if isinstance(s, Load):
        return s.type
    return s.initial.type if isinstance(s, Mutable) else s.value.type


def _used(body: Sequence[Stmt]) -> set[str]:
    """The names of values that statements read or change."""
    return {e.name for s in walk(body) for e in parts(expressions(s)) if isinstance(e, Var)} | assigned(body)

