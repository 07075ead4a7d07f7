"""Nest -> loop IR: vectors, tails, accumulators and how they are joined are decided here, once.

In: a Nest after its steps. Out: the statements that replace its loop.

    split(i1,16,peel) vectorize(i1i,16)     var t1_a0 = splat:f32x16(f32(0.0))
                                            serial i1_g < 62 { ... t1_a0 = t1_a0 + ... }
                                            the last 8 iterations in a vector of 8
                                            t1 = t1 + ..., lanes joined by halves
"""
from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from hloc.kernels.indexing import index_apply
from hloc.kernels.ir import INDEX, SERIAL, Apply, Assign, Const, Expr, For, Let, Mutable, Stmt, Var
from hloc.kernels.monoids import identity
from hloc.kernels.schedule.lanes import ACCUMULATOR, GROUP, PLACE, VALUE, Piece, in_all_lanes, part_name, piece
from hloc.kernels.schedule.nest import MASK, OVERLAP, Nest
from hloc.kernels.schedule.steps import Refused
from hloc.kernels.vectors import bits_of, bytes_of, element_of, is_vector, lanes_of, vector
from hloc.kernels.walks import operation

LEAST_BYTES = 16                # of a register
MOST_SINGLE = 8                 # iterations without lanes that are written one after the other


def lower(nest: Nest, names: Iterator[int]) -> tuple[Stmt, ...]:
    """The statements of a nest. names: numbers for new names, unique in the kernel. Raises Refused."""
    if not nest.block:
        return (nest.loop._replace(kind=SERIAL),)
    if not nest.has_lanes:
        raise Refused("the inner axis of a split has lanes")
    return _Lowering(nest, names).statements()


def enough_bytes(types: Collection[str], lanes: int) -> bool:
    """Whether vectors of these element types are worth it: half a register, or a whole one if they are converted from
    one to another (gcc does that lane by lane for less)."""
    sizes = {bits_of(t) // 8 for t in types}
    return min(sizes) * lanes >= (LEAST_BYTES if len(sizes) > 1 else LEAST_BYTES // 2)


class _Lowering:
    """lanes; copies: vectors of one iteration of the loop, each of which has accumulators of its own.

    totals: of each accumulator, by the number of lanes, what its copies hold; None before anything was taken in.
    variables: those of them that change."""

    def __init__(self, nest: Nest, names: Iterator[int]) -> None:
        self.nest, self.names = nest, names
        self.lanes, self.tail, self.copies = nest.block, nest.tail, nest.copies
        self.updates = {s.name: operation(s.value).op for s in nest.loop.body if isinstance(s, Assign)}
        self.totals: dict[str, dict[int, list[Expr | None]]] = {name: {} for name in self.updates}
        self.variables: set[str] = set()
        self.out: list[Stmt] = []

    def statements(self) -> tuple[Stmt, ...]:
        if not isinstance(self.nest.loop.extent, int):
            self.of_unknown_extent(self.nest.loop.extent)
            return tuple(self.out)
        extent = self.nest.loop.extent
        whole, rest = divmod(extent, self.lanes)
        moved_back: Piece | None = None
        if rest and self.tail == OVERLAP:                     # first: a store may be to what it reads
            moved_back = self.piece(Const(extent - self.lanes, INDEX), self.lanes)
            self.take(moved_back, self.lanes, 0, self.lanes - rest)
        groups = whole // self.copies
        if groups > 1:
            self.loop(groups)
        done = groups * self.copies if groups > 1 else 0
        for n, made in enumerate(self.pieces(Const(n * self.lanes, INDEX) for n in range(done, whole))):
            self.take(made, self.lanes, (done + n) % self.copies)
            self.out += made.stores
        if moved_back is not None:
            self.out += moved_back.stores
        elif rest and self.tail == MASK:
            self.masked(Const(whole * self.lanes, INDEX), Const(rest, INDEX))
        elif rest:
            self.peel(whole * self.lanes, rest)
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
        if self.nest.reduces:
            raise Refused("lanes that are no iterations would be combined")
        made = piece(self.nest, start, self.lanes, self.names, count)
        self.out += [*made.values, *made.stores]

    def piece(self, start: Expr, lanes: int) -> Piece:
        made = piece(self.nest, start, lanes, self.names)
        self.out += made.values
        return made

    def straight(self, start: int, lanes: int) -> None:
        made = self.piece(Const(start, INDEX), lanes)
        self.take(made, lanes, 0)
        self.out += made.stores

    def pieces(self, starts: Iterable[Expr]) -> list[Piece]:
        """Several vectors, each of which does a step before the next step begins."""
        made = [piece(self.nest, start, self.lanes, self.names) for start in starts]
        self.out += [s for step in zip(*(one.values for one in made)) for s in step]
        return made

    def take(self, made: Piece, lanes: int, copy: int, skipped: int = 0) -> None:
        """Combine terms with accumulators; those of the first `skipped` lanes are left out."""
        for name, term in made.taken.items():
            term = in_all_lanes(term, lanes)
            if skipped:
                neutral = self.neutral(name, term.type)
                places = tuple(lanes + n if n < skipped else n for n in range(lanes))
                term = Apply("shuffle", (term, neutral), term.type, places)
            held = self.held(name, lanes, copy)
            old = held[copy]
            value = term if old is None else Apply(self.updates[name], (old, term), term.type)
            if isinstance(old, Var) and old.name in self.variables:
                self.out.append(Assign(old.name, value))
            else:
                held[copy] = self.named(name, value)

    def held(self, name: str, lanes: int, copy: int) -> list[Expr | None]:
        """What the accumulators of so many lanes hold, up to this copy."""
        held = self.totals[name].setdefault(lanes, [])
        held += [None] * (copy + 1 - len(held))
        return held

    def named(self, name: str, value: Expr) -> Expr:
        if isinstance(value, Var):
            return value
        new = part_name(name, VALUE, self.names)
        self.out.append(Let(new, value))
        return Var(new, value.type)

    def neutral(self, name: str, type: str) -> Expr:
        value = identity(self.updates[name], vector(element_of(type), 1))
        return Apply("splat", (value,), type) if is_vector(type) else value

    def loop(self, groups: int | Expr) -> None:
        """The loop over groups of vectors."""
        before, self.out = self.out, []
        counter, at = (part_name(self.nest.loop.name, kind, self.names) for kind in (GROUP, PLACE))
        start = Let(at, index_apply("multiply", Var(counter, INDEX), Const(self.lanes * self.copies, INDEX)))
        begin: list[Mutable] = []
        pieces = self.pieces(index_apply("add", Var(at, INDEX), Const(copy * self.lanes, INDEX))
                             for copy in range(self.copies))
        for copy, made in enumerate(pieces):
            for name, term in made.taken.items():
                term = in_all_lanes(term, self.lanes)
                own = self.variable(name, term.type, copy, begin)
                self.out.append(Assign(own.name, Apply(self.updates[name], (own, term), term.type)))
            self.out += made.stores
        body, self.out = (start, *self.out), before
        self.out += [*begin, For(counter, groups, SERIAL, body)]

    def variable(self, name: str, type: str, copy: int, begin: list[Mutable]) -> Var:
        """The variable of an accumulator, which begins with what it holds so far."""
        held = self.held(name, self.lanes, copy)
        old = held[copy]
        if isinstance(old, Var) and old.name in self.variables:
            return old
        own = Mutable(part_name(name, ACCUMULATOR, self.names), self.neutral(name, type) if old is None else old)
        begin.append(own)
        self.variables.add(own.name)
        held[copy] = Var(own.name, type)
        return Var(own.name, type)

    def peel(self, start: int, rest: int) -> None:
        """The iterations that fill no vector: in halves of it, and single ones."""
        lanes = self.lanes // 2
        while lanes > 1 and enough_bytes(self.nest.types, lanes):
            if rest >= lanes:
                self.straight(start, lanes)
                start, rest = start + lanes, rest - lanes
            lanes //= 2
        if rest > MOST_SINGLE:
            raise Refused(f"{rest} iterations would run one by one")
        for n in range(rest):
            self.straight(start + n, 1)

    # -- joining

    def join(self, name: str) -> None:
        """Combine all accumulators of one name with its variable."""
        held = {lanes: [e for e in copies if e is not None] for lanes, copies in self.totals[name].items()}
        values: list[Expr] = []
        lanes = max(held)
        while lanes > 1:
            values += held.get(lanes, [])
            one = self.pairs(name, values)
            element = element_of(one.type)
            narrower = [n for n in held if n < lanes and n > 1]
            if narrower or bytes_of(vector(element, lanes)) > LEAST_BYTES:
                values, lanes = [self.named(name, Apply(self.updates[name], (
                    self.half(one, 0), self.half(one, lanes // 2)), vector(element, lanes // 2)))], lanes // 2
                if lanes > 1:
                    continue
                break
            values, lanes = [self.lanes_joined(name, one)], 1
        total = self.pairs(name, [*values, *held.get(1, [])])
        value = Apply(self.updates[name], (Var(name, total.type), total), total.type)
        self.out.append(Assign(name, value))

    def pairs(self, name: str, values: list[Expr]) -> Expr:
        """All values combined, as a tree."""
        values = list(values)
        while len(values) > 1:
            values = [self.named(name, Apply(self.updates[name], tuple(self.alike(values[n:n + 2])), values[n].type))
                      if n + 1 < len(values) else values[n] for n in range(0, len(values), 2)]
        return values[0]

    def alike(self, pair: list[Expr]) -> list[Expr]:
        """Masks of one width."""
        widest = max(pair, key=lambda e: bytes_of(e.type)).type
        return [e if e.type == widest else Apply("convert", (e,), widest) for e in pair]

    def half(self, value: Expr, first: int) -> Expr:
        lanes = lanes_of(value.type) // 2
        if lanes == 1:
            return Apply("lane", (value,), vector(element_of(value.type), 1), (first,))
        places = tuple(range(first, first + lanes))
        return Apply("shuffle", (value, value), vector(element_of(value.type), lanes), places)

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
