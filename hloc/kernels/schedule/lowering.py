"""Nest -> loop IR: vectors, tails, accumulators and how they are joined are decided here, once.

In: a Nest after its steps. Out: the statements that replace its loop.

    vectorize(i1,16)     the last 16 of 1000 iterations, the first 8 of which are ignored: var t1_a0 = ...
                         serial i1_g < 62 { ... t1_a0 = t1_a0 + ... }
                         t1 = t1 + ..., lanes joined by halves
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator

from hloc.kernels.indexing import index_apply
from hloc.kernels.ir import INDEX, SERIAL, Apply, Assign, Const, Expr, For, Let, Mutable, Stmt, Var
from hloc.kernels.monoids import identity
from hloc.kernels.schedule.lanes import ACCUMULATOR, GROUP, PLACE, VALUE, Piece, in_all_lanes, part_name, piece
from hloc.kernels.schedule.nest import Nest
from hloc.kernels.vectors import bits_of, bytes_of, element_of, lanes_of, vector
from hloc.kernels.walks import operation

LEAST_BYTES = 16                # of a register


def lower(nest: Nest, names: Iterator[int]) -> tuple[Stmt, ...]:
    """The statements of a nest. names: numbers for new names, unique in the kernel."""
    return _Lowering(nest, names).statements() if nest.lanes else (nest.loop._replace(kind=SERIAL),)


def fewest_lanes(nest: Nest) -> int:
    """The lanes that are worth it: half a register, or a whole one if they are converted from one type to another (gcc
    does that lane by lane for less)."""
    sizes = {bits_of(t) // 8 for t in nest.types}
    return (LEAST_BYTES if len(sizes) > 1 else LEAST_BYTES // 2) // min(sizes)


class _Lowering:
    """lanes; copies: vectors of one iteration of the loop, each of which has accumulators of its own.

    totals: the variables of each accumulator, one for each copy."""

    def __init__(self, nest: Nest, names: Iterator[int]) -> None:
        self.nest, self.names = nest, names
        self.lanes, self.copies = nest.lanes, nest.copies
        self.updates = {s.name: operation(s.value).op for s in nest.loop.body if isinstance(s, Assign)}
        self.totals: dict[str, list[Var]] = {name: [] for name in self.updates}
        self.out: list[Stmt] = []

    def statements(self) -> tuple[Stmt, ...]:
        extent = self.nest.loop.extent
        if not isinstance(extent, int):
            self.of_unknown_extent(extent)
            return tuple(self.out)
        whole, rest = divmod(extent, self.lanes)
        moved_back: Piece | None = None
        is_moved_back = whole > 0 and (self.nest.reduces or not self.nest.in_place)
        if rest and is_moved_back:                          # first: a store may be to what it reads
            moved_back, = self.pieces([Const(extent - self.lanes, INDEX)])
            self.take(moved_back, 0, self.lanes - rest)
        groups = whole // self.copies
        if groups > 1:
            self.loop(groups)
        done = groups * self.copies if groups > 1 else 0
        for n, made in enumerate(self.pieces(Const(n * self.lanes, INDEX) for n in range(done, whole))):
            self.take(made, (done + n) % self.copies)
            self.out += made.stores
        if moved_back is not None:
            self.out += moved_back.stores
        elif rest and whole:
            self.shorter(whole * self.lanes, rest)
        elif rest:
            self.masked(Const(0, INDEX), Const(rest, INDEX))
        for name in self.updates:
            self.join(name)
        return tuple(self.out)

    def of_unknown_extent(self, extent: Expr) -> None:
        """Loops over whole vectors, and over the one that is not filled, if any."""
        groups = index_apply("divide", extent, Const(self.lanes, INDEX))
        self.loop(groups)
        done = self.place(index_apply("multiply", groups, Const(self.lanes, INDEX)))
        left, before = self.place(index_apply("subtract", extent, done)), self.out
        self.out = []
        self.masked(done, left)
        rest, self.out = For(part_name(self.nest.loop.name, GROUP, self.names),
                             Apply("minimum", (Const(1, INDEX), left), INDEX), SERIAL, tuple(self.out)), before
        self.out.append(rest)

    def place(self, value: Expr) -> Var:
        """An INDEX with a name."""
        let = Let(part_name(self.nest.loop.name, PLACE, self.names), value)
        self.out.append(let)
        return Var(let.name, INDEX)

    def masked(self, start: Expr, count: Expr) -> None:
        """The iterations that fill no vector, in a part of its lanes."""
        made = piece(self.nest, start, self.lanes, self.names, count)
        self.out += [*made.values, *made.stores]

    def shorter(self, start: int, rest: int) -> None:
        """The iterations that fill no vector, in shorter vectors, and single ones at the end."""
        lanes = self.lanes
        while rest:
            lanes = lanes // 2 if lanes // 2 >= fewest_lanes(self.nest) else 1
            for _ in range(rest // lanes):
                made = piece(self.nest, Const(start, INDEX), lanes, self.names)
                self.out += [*made.values, *made.stores]
                start += lanes
            rest %= lanes

    def pieces(self, starts: Iterable[Expr]) -> list[Piece]:
        """Several vectors, each of which does a step before the next step begins."""
        made = [piece(self.nest, start, self.lanes, self.names) for start in starts]
        self.out += [s for step in zip(*(one.values for one in made)) for s in step]
        return made

    def take(self, made: Piece, copy: int, skipped: int = 0, before: list[Stmt] | None = None) -> None:
        """Combine terms with the variables of a copy; those of the first `skipped` lanes are left out. before: the
        statements in front of the loop, if this is in one."""
        for name, term in made.taken.items():
            term = in_all_lanes(term, self.lanes)
            neutral = Apply("splat", (identity(self.updates[name], vector(element_of(term.type), 1)),), term.type)
            if skipped:
                places = tuple(self.lanes + n if n < skipped else n for n in range(self.lanes))
                term = Apply("shuffle", (term, neutral), term.type, places)
            own, is_first = self.totals[name], copy == len(self.totals[name])
            if is_first:
                own.append(Var(part_name(name, ACCUMULATOR, self.names), term.type))
                begin = Mutable(own[copy].name, term if before is None else neutral)
                (self.out if before is None else before).append(begin)
            if not is_first or before is not None:
                self.out.append(Assign(own[copy].name, Apply(self.updates[name], (own[copy], term), term.type)))

    def loop(self, groups: int | Expr) -> None:
        """The loop over groups of vectors."""
        before, self.out = self.out, []
        counter, at = (part_name(self.nest.loop.name, kind, self.names) for kind in (GROUP, PLACE))
        start = Let(at, index_apply("multiply", Var(counter, INDEX), Const(self.lanes * self.copies, INDEX)))
        pieces = self.pieces(index_apply("add", Var(at, INDEX), Const(copy * self.lanes, INDEX))
                             for copy in range(self.copies))
        for copy, made in enumerate(pieces):
            self.take(made, copy, before=before)
            self.out += made.stores
        body, self.out = (start, *self.out), before
        self.out.append(For(counter, groups, SERIAL, body))

    # -- joining

    def named(self, name: str, value: Expr) -> Var:
        let = Let(part_name(name, VALUE, self.names), value)
        self.out.append(let)
        return Var(let.name, value.type)

    def join(self, name: str) -> None:
        """Combine all variables of an accumulator with it: as a tree, then its halves, while they fill registers."""
        op, values = self.updates[name], list[Expr](self.totals[name])
        while len(values) > 1:
            values = [self.named(name, Apply(op, tuple(values[n:n + 2]), values[n].type)) if n + 1 < len(values)
                      else values[n] for n in range(0, len(values), 2)]
        value, = values
        while bytes_of(value.type) > LEAST_BYTES:
            lanes = lanes_of(value.type) // 2
            half = vector(element_of(value.type), lanes)
            ends = tuple(Apply("shuffle", (value, value), half, tuple(range(n, n + lanes))) for n in (0, lanes))
            value = self.named(name, Apply(op, ends, half))
        total = self.lanes_joined(name, value)
        self.out.append(Assign(name, Apply(op, (Var(name, total.type), total), total.type)))

    def lanes_joined(self, name: str, value: Expr) -> Expr:
        """The combination of the lanes of one register: the other half is moved over. Of floats the last two lanes are
        combined as scalars, which they are in their register; integers would have to leave it."""
        lanes, op = lanes_of(value.type), self.updates[name]
        distance, is_float = lanes // 2, element_of(value.type) in ("f32", "f64")
        while distance > is_float:
            moved = Apply("shuffle", (value, value), value.type, tuple((n + distance) % lanes for n in range(lanes)))
            value = self.named(name, Apply(op, (value, moved), value.type))
            distance //= 2
        scalar = vector(element_of(value.type), 1)
        ends = tuple(Apply("lane", (value,), scalar, (n,)) for n in range(1 + is_float))
        return self.named(name, Apply(op, ends, scalar) if is_float else ends[0])
