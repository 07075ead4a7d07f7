"""Teams: a kernel whose PARALLEL iterations contain loops runs each iteration on a warp or on a block.

In: a Kernel, and how many lanes a team has. Out: a TeamKernel, or Refused. All lanes of a team run the row's scalar
statements, with the same results. Loops whose iterations are independent are distributed over the lanes. The first lane
does the stores of the whole row. Accumulators are reduced over the lanes by shuffles, in a fixed order.

    for i0 PARALLEL: v0 = 0; for i1 VECTOR: v0 += x[i0 * 768 + i1]; out[i0] = v0
      -> for i0 by teams: v0 = 0; Spread(i1 of 768: v0 += x[i0 * 768 + i1]); Total(v0); if lane == 0: out[i0] = v0

A Local array that every loop reads and writes only at the index of its iteration is split over the lanes, so that it
fits into registers. Any other Local of a row is in shared memory.
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels import ir
from hloc.kernels.affine import Affine, affine, forms, injective, of_names
from hloc.kernels.monoids import identity
from hloc.kernels.schedule.nest import Refused, most_iterations
from hloc.kernels.walks import assigned, defined, expressions, loads, parts, stores, walk, with_expressions, with_parts
from hloc.machine import Machine
from hloc.targets.cuda.loops.cache_read import REGISTERS, registers
from hloc.targets.cuda.loops.iteration_space import parallel_loop
from hloc.targets.cuda.loops.nest import LANES as WARP
from hloc.targets.cuda.loops.nest import LARGEST_BLOCK

BLOCKS_PER_SM = 16                  # at most; each block then has several rows
LARGEST_PRIVATE = 16 << 10          # bytes of Local arrays that one thread may have
STATIC_SHARED = 44 << 10
LOOKED_AT = 64
IDEMPOTENT = frozenset(["maximum", "minimum", "and", "or"])
LANE = ir.Var("lane", ir.INDEX)
SLOT = ir.Var("slot", ir.INDEX)
FIRST_LANE = ir.Apply("compare_eq", (LANE, ir.Const(0, ir.INDEX)), "pred")


Own = Any      # a statement of the loop IR, or a Spread, Total or Scan; loops, too, hold these before they are printed


class Spread(NamedTuple):
    """The loops of `counters` fused into one, with its iterations distributed over the lanes. slots: iterations of one
    lane, if the body indexes split Local arrays by `slot`; else 0."""

    counters: tuple[tuple[str, int | ir.Expr], ...]
    body: tuple[ir.Stmt, ...]
    slots: int = 0


class Total(NamedTuple):
    """Reduces an accumulator over the lanes; all lanes get the result."""

    name: str
    op: str
    type: str


class Scan(NamedTuple):
    """The serial loops of `counters` fused into one, for a warp: lanes test LOOKED_AT iterations at once. The body ends
    in an If; the iterations that meet its condition are executed by all lanes together, one after the other."""

    counters: tuple[tuple[str, int], ...]
    body: tuple[ir.Stmt, ...]


class TeamKernel(NamedTuple):
    """threads: lanes of a team; teams: per block; rows: PARALLEL iterations; body: of one row, named by `counter`;
    once: each row has a block of its own."""

    threads: int
    teams: int
    rows: int
    counter: str
    before: tuple[ir.Stmt, ...]
    body: tuple[Own, ...]
    once: bool = False


def team_kernel(kernel: ir.Kernel, lanes: int, teams: int, gpu: Machine) -> TeamKernel:
    """The kernel for teams of `lanes`, of which a block has `teams`. Raises Refused."""
    loop = parallel_loop(kernel)
    before = tuple(s for s in kernel.body if s is not loop) if loop else ()
    body = loop.body if loop else kernel.body
    rows = loop.trip_count if loop else 1
    draft = _Draft(body, forms((*before, *body)), {b.name for b in kernel.buffers}, lanes)
    scans, joins = (any(isinstance(s, kind) for s in body) for kind in (Scan, ir.Last))
    if not draft.spreads and not scans and not joins:
        raise Refused("no loop of a row has independent iterations")
    if scans and lanes != WARP:
        raise Refused("the lanes of a warp find updates together")
    if joins and teams > 1:
        raise Refused("blocks join their results")
    if lanes > WARP and not draft.locals and not joins and all(0 < n <= lanes // 2 for n in draft.lengths()):
        raise Refused("most lanes would have no iteration")
    draft.place_locals()
    if draft.shared_bytes and (lanes == WARP or teams > 1):
        raise Refused("a block shares the arrays of a row")
    split = [s for name, s in draft.locals.items() if draft.places[name] == "split"]
    if lanes < LARGEST_BLOCK and sum(registers(s.type, s.size, lanes) for s in split) > REGISTERS:
        raise Refused(f"the registers of {lanes} lanes do not hold the arrays of a row")
    _check_memory(draft)
    return TeamKernel(lanes, min(teams, max(1, rows)), rows, loop.name if loop else "", before,
                      tuple(draft.row(body, set())), teams == 1 and rows <= BLOCKS_PER_SM * gpu.cores)


def refuse_threads(kernel: ir.Kernel) -> None:
    """Raise Refused where a thread by itself does not run an iteration."""
    if any(isinstance(s, (Scan, ir.Last)) for s in walk(kernel.body)):
        raise Refused("lanes find updates, or join results, together")
    private = sum(_bytes(s) for s in walk(kernel.body) if isinstance(s, ir.Local))
    if private > LARGEST_PRIVATE:
        raise Refused(f"arrays of {private >> 10} KiB: a thread has {LARGEST_PRIVATE >> 10}")


def slots_of(size: int, threads: int) -> int:
    """Elements of a split array that one lane has: whole vectors, if the array consists of such."""
    slots = -(-size // threads)
    vector = next((n for n in (2, 4, 8) if n >= slots), slots)
    return vector if size % vector == 0 else slots


def _bytes(array: ir.Local | ir.Shared) -> int:
    return array.size * ELEMENT_TYPES[array.type].bytes


def _check_memory(draft: _Draft) -> None:
    if draft.shared_bytes > STATIC_SHARED:
        raise Refused(f"it needs {draft.shared_bytes >> 10} KiB of memory per row")
    rest = sum(_bytes(s) for name, s in draft.locals.items() if draft.places[name] == "private")
    if rest > LARGEST_PRIVATE:
        raise Refused(f"it needs {rest >> 10} KiB of memory per thread")


@dataclass
class _Draft:
    """One row's body during its construction. spreads: id of the For -> its Spread, for distributed loops."""

    body: tuple[ir.Stmt, ...]
    known: dict[str, Affine]
    buffers: set[str]
    threads: int
    spreads: dict[int, Spread] = field(default_factory=dict)
    mutables: dict[str, ir.Mutable] = field(default_factory=dict)
    locals: dict[str, ir.Local] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Decides which loops at row level are distributed; records the Mutables and Locals declared at row level."""
        self.loaded = {load.buffer for load in loads(self.body)}
        for s in self._row_level(self.body):
            if isinstance(s, ir.Mutable):
                self.mutables[s.name] = s
            elif isinstance(s, ir.Local):
                self.locals[s.name] = s
            elif isinstance(s, ir.For) and (spread := self._spread(s)) is not None:
                self.spreads[id(s)] = spread

    def _row_level(self, statements: tuple[ir.Stmt, ...]) -> Iterator[ir.Stmt]:
        """The statements that all lanes run, outer before inner, in order; of distributed loops, not what is inside."""
        for s in statements:
            yield s
            if isinstance(s, ir.If):
                yield from self._row_level(s.then + s.otherwise)
            elif id(s) not in self.spreads and (body := getattr(s, "body", None)) is not None:
                yield from self._row_level(body)

    def lengths(self) -> list[int]:
        """The most iterations of each distributed loop; 0: unknown."""
        named = {s.name: s.value for s in self._row_level(self.body) if isinstance(s, ir.Let)}
        return [math.prod(most_iterations(n, named) for _, n in s.counters) for s in self.spreads.values()]

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
        if not all(self._only_accumulated(name, body) for name in assigned(body) - inside):
            return False
        written = [(s, around) for s, around in _with_loops(nest[:1]) if s.buffer not in inside]
        moving = defined(body) - {s.name for s in walk(nest[:1]) if isinstance(s, ir.For)}
        places: dict[str, Affine] = {}
        for store, around in written:
            place = affine(store.position, self.known)
            factors, extents = place.factors, {s.name: s.extent for s in around if isinstance(s.extent, int)}
            if factors is None or moving & factors.keys() or places.setdefault(store.buffer, place) != place \
                    or len(extents) < len(around) or not injective(factors, extents):
                return False
        return all(affine(load.position, self.known) == places[load.buffer]
                   for load in loads(body) if load.buffer in places)

    def _only_accumulated(self, name: str, statements: tuple[ir.Stmt, ...]) -> bool:
        """Whether this is a reassociable Mutable that these statements only update, with no other use of its value."""
        if name not in self.mutables or not self.mutables[name].reassociable:
            return False
        derived: dict[str, ir.Expr] = {}
        for statement in walk(statements):
            used = [p for p in parts(expressions(statement))
                    if isinstance(p, ir.Var) and (p.name == name or p.name in derived)]
            if used and isinstance(statement, ir.Let):
                derived[statement.name] = statement.value
            elif isinstance(statement, ir.Assign) and statement.name == name:
                if not self._takes_in(name, statement.value, derived):
                    return False
            elif used:
                return False
        return True

    def _takes_in(self, name: str, value: ir.Expr, derived: dict[str, ir.Expr]) -> bool:
        """Whether the value is v, or op(v, an expression without v), or a select between such values."""
        if isinstance(value, ir.Var):
            return value.name == name or value.name in derived and self._takes_in(name, derived[value.name], derived)
        if not isinstance(value, ir.Apply):
            return False
        holds = [a for a in value.arguments if _reads(a, {name, *derived})]
        is_choice = value.op == "select" and holds == list(value.arguments[1:])
        is_term = value.op == self.mutables[name].reassociable and len(holds) == 1
        return (is_choice or is_term) and all(self._takes_in(name, a, derived) for a in holds)

    # -- Local arrays ----------------------------------------------------------------------------------------------

    def place_locals(self) -> None:
        """Places each Local. split: over the lanes; private: each lane has an identical copy; shared: one per team."""
        touched = [(s, _touched(s.body)) for s in self.spreads.values()] if self.locals else []
        for name in self.locals:
            spreads = [s for s, names in touched if name in names]
            if not spreads:
                self.places[name] = "private"
            elif all(self._own(name, s) for s in spreads) and not self._at_row_level(name):
                self.places[name] = "split"
            else:
                self.places[name] = "shared"

    @property
    def shared_bytes(self) -> int:
        return sum(_bytes(s) for name, s in self.locals.items() if self.places[name] == "shared")

    def _own(self, name: str, spread: Spread) -> bool:
        """Whether every access in the loop is at the index of its iteration."""
        wanted, stride = {}, 1
        for counter, extent in reversed(spread.counters):
            wanted[counter] = stride
            stride *= extent if isinstance(extent, int) else 1
        positions = [s.position for s in stores(spread.body) if s.buffer == name]
        positions += [load.position for load in loads(spread.body) if load.buffer == name]
        return all(affine(p, self.known) == of_names(wanted) for p in positions)

    def _at_row_level(self, name: str) -> bool:
        return any(name in _touched((s,)) for s in self._row_level(self.body)
                   if not isinstance(s, ir.If) and not hasattr(s, "body"))

    # -- the new body ----------------------------------------------------------------------------------------------

    def row(self, statements: tuple[ir.Stmt, ...], open_sums: set[str]) -> list[ir.Stmt]:
        """Row-level statements for a team. open_sums: accumulators that an outer loop resets and reduces."""
        done: list[ir.Stmt] = []
        fresh: set[str] = set()
        for statement in statements:
            if isinstance(statement, ir.Mutable) and statement.reassociable \
                    and statement.initial == identity(statement.reassociable, statement.initial.type):
                fresh.add(statement.name)
            if isinstance(statement, ir.For):
                done += self.loop(statement, open_sums, fresh)
            elif isinstance(statement, ir.If):
                done.append(ir.If(statement.condition, tuple(self.row(statement.then, open_sums)),
                               tuple(self.row(statement.otherwise, open_sums))))
            elif isinstance(statement, ir.While):
                done.append(ir.While(statement.condition, tuple(self.row(statement.body, open_sums))))
            elif isinstance(statement, (Scan, ir.Last)):
                done.append(statement._replace(body=tuple(self.row(statement.body, open_sums))))
            elif isinstance(statement, ir.Local):
                done.append(self.local(statement))
            elif isinstance(statement, (ir.Store, ir.Atomic)):
                self.store(statement, done)
            else:
                done.append(statement)
        return _with_single_barriers(done)

    def loop(self, loop: ir.For, open_sums: set[str], fresh: set[str]) -> list[Own]:
        sums = assigned(loop.body) & self.mutables.keys()
        spread = self.spreads.get(id(loop))
        if spread is None:
            sums = {n for n in sums if self._only_accumulated(n, loop.body) and self._summed_in_spreads(n, loop)}
        own = sorted(sums - open_sums)
        before: list[Own] = [self._reset(n) for n in own
                             if n not in fresh and self.mutables[n].reassociable not in IDEMPOTENT]
        fresh -= sums
        after: list[Own] = [Total(n, self.mutables[n].reassociable, self.mutables[n].initial.type) for n in own]
        if spread is not None:
            return [*before, *self.spread(spread), *after]
        row = tuple(self.row(loop.body, open_sums | sums))
        return [*before, ir.For(loop.name, loop.extent, ir.SERIAL, row), *after]

    def _summed_in_spreads(self, name: str, loop: ir.For) -> bool:
        """Whether all updates of an accumulator in this loop are in distributed loops."""
        level = list(self._row_level(loop.body))
        return any(id(s) in self.spreads for s in level) \
            and not any(isinstance(s, ir.Assign) and s.name == name for s in level)

    def _reset(self, name: str) -> ir.Assign:
        mutable = self.mutables[name]
        type = mutable.initial.type
        values = ir.Var(name, type), identity(mutable.reassociable, type)
        return ir.Assign(name, ir.Apply("select", (FIRST_LANE, *values), type))

    def spread(self, spread: Spread) -> list[Own]:
        """A loop over the lanes, with barriers if other lanes may still read, or will read, what it writes."""
        split = {n for n in _touched(spread.body) if self.places.get(n) == "split"}
        slots = max((slots_of(self.locals[n].size, self.threads) for n in split), default=0)
        body = tuple(_with_slots(s, split) for s in spread.body) if split else spread.body
        written = {s.buffer for s in stores(body) if s.buffer in self.buffers or s.buffer in self.locals} - split
        done: list[Own] = [Spread(spread.counters, body, slots)]
        if written:
            done.insert(0, ir.Barrier())
        if any(n in self.loaded for n in written):
            done.append(ir.Barrier())
        return done

    def local(self, statement: ir.Local) -> ir.Local | ir.Shared:
        place = self.places[statement.name]
        if place == "shared":
            return ir.Shared(*statement)
        return statement._replace(size=slots_of(statement.size, self.threads)) if place == "split" else statement

    def store(self, statement: ir.Store | ir.Atomic, done: list[ir.Stmt]) -> None:
        """A store of the whole row, by the first lane; consecutive stores share their barriers."""
        if self.places.get(statement.buffer) == "private":
            done.append(statement)
            return
        again = statement.buffer in self.loaded
        if done and isinstance(done[-1], ir.If) and done[-1].condition == FIRST_LANE and not again:
            done[-1] = done[-1]._replace(then=(*done[-1].then, statement))
            return
        done += [ir.Barrier(), ir.If(FIRST_LANE, (statement,))]
        if again:
            done.append(ir.Barrier())


def _with_single_barriers(statements: list[ir.Stmt]) -> list[ir.Stmt]:
    """The statements without barriers between which nothing happens; a Last begins with one."""
    done: list[ir.Stmt] = []
    passed = False
    for s in statements:
        if isinstance(s, ir.Barrier) and passed:
            continue
        if isinstance(s, ir.Last) and done and isinstance(done[-1], ir.Barrier):
            done.pop()
        passed = isinstance(s, ir.Barrier) or passed and isinstance(s, (ir.Local, ir.Shared))
        done.append(s)
    return done


def _with_loops(statements: Iterable[Own],
                around: tuple[ir.For, ...] = ()) -> Iterator[tuple[ir.Store, tuple[ir.For, ...]]]:
    """All stores, each with the loops around it."""
    for s in statements:
        if isinstance(s, ir.Store):
            yield s, around
        elif isinstance(s, ir.If):
            yield from _with_loops(s.then + s.otherwise, around)
        elif hasattr(s, "body"):
            yield from _with_loops(s.body, (*around, s) if isinstance(s, ir.For) else around)


def _reads(expr: ir.Expr, names: set[str]) -> bool:
    return any(isinstance(p, ir.Var) and p.name in names for p in parts([expr]))


def _touched(statements: tuple[ir.Stmt, ...]) -> set[str]:
    """The buffers that statements read or write."""
    return {load.buffer for load in loads(statements)} | {s.buffer for s in stores(statements)}


# -- positions in split arrays ---------------------------------------------------------------------------------------

def _with_slots(statement: ir.Stmt, split: set[str]) -> ir.Stmt:
    """The statement with accesses of split arrays indexed by `slot`."""
    if isinstance(statement, ir.If):
        return ir.If(_replaced(statement.condition, split), tuple(_with_slots(s, split) for s in statement.then),
                  tuple(_with_slots(s, split) for s in statement.otherwise))
    if isinstance(statement, ir.While):
        return ir.While(_replaced(statement.condition, split), tuple(_with_slots(s, split) for s in statement.body))
    if isinstance(statement, ir.For):
        extent = statement.extent if isinstance(statement.extent, int) else _replaced(statement.extent, split)
        return statement._replace(body=tuple(_with_slots(s, split) for s in statement.body), extent=extent)
    if isinstance(statement, ir.Store) and statement.buffer in split:
        return ir.Store(statement.buffer, SLOT, _replaced(statement.value, split))
    if isinstance(statement, ir.Atomic):
        return statement._replace(position=_replaced(statement.position, split),
                                  value=_replaced(statement.value, split))
    return with_expressions(statement, lambda e: _replaced(e, split))


def _replaced(expr: ir.Expr, split: set[str]) -> ir.Expr:
    if isinstance(expr, ir.Load) and expr.buffer in split:
        return expr._replace(position=SLOT)
    return with_parts(expr, lambda part: _replaced(part, split))
