"""Teams: a kernel whose PARALLEL iterations contain loops runs each iteration on a warp or on a block.

In: a Kernel, and how many lanes a team has. Out: a TeamKernel, or Refused. All lanes of a team run the row's scalar
statements, with the same results. Loops whose iterations are independent are distributed over the lanes. The first lane
does the stores of the whole row. Accumulators are reduced over the lanes by shuffles, in a fixed order.

    for i0 PARALLEL: v0 = 0; for i1 VECTOR: v0 += x[i0 * 768 + i1]; out[i0] = v0
      -> for i0 by teams: v0 = 0; Spread(i1 of 768: v0 += x[i0 * 768 + i1]); Total(v0); if lane == 0: out[i0] = v0

rows.py says which loops these are, and where a row's Local arrays lie.
"""
from __future__ import annotations

from typing import NamedTuple

from hloc.kernels import ir
from hloc.kernels.monoids import identity
from hloc.kernels.schedule.steps import Refused
from hloc.kernels.walks import assigned, stores, walk, with_all_expressions, with_bodies, with_parts
from hloc.machine import Machine
from hloc.targets.cuda.loops.cache_read import REGISTERS, registers
from hloc.targets.cuda.loops.nest import LANES as WARP
from hloc.targets.cuda.loops.nest import LARGEST_BLOCK
from hloc.targets.cuda.loops.rows import Own, Rows, Scan, Spread, bytes_of, rows_of, touched_by

BLOCKS_PER_SM = 16                  # at most; each block then has several rows
LARGEST_PRIVATE = 16 << 10          # bytes of Local arrays that one thread may have
STATIC_SHARED = 44 << 10
LOOKED_AT = 64
IDEMPOTENT = frozenset(["maximum", "minimum", "and", "or"])
LANE = ir.Var("lane", ir.INDEX)
SLOT = ir.Var("slot", ir.INDEX)
FIRST_LANE = ir.Apply("compare_eq", (LANE, ir.Const(0, ir.INDEX)), "pred")


class Total(NamedTuple):
    """Reduces an accumulator over the lanes; all lanes get the result."""

    name: str
    op: str
    type: str


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
    rows = rows_of(kernel)
    if not rows.spreads and not rows.scans and not rows.joins:
        raise Refused("no loop of a row has independent iterations")
    if rows.scans and lanes != WARP:
        raise Refused("the lanes of a warp find updates together")
    if rows.joins and teams > 1:
        raise Refused("blocks join their results")
    if rows.shared_bytes() and (lanes == WARP or teams > 1):
        raise Refused("a block shares the arrays of a row")
    if lanes < LARGEST_BLOCK and sum(registers(s.type, s.size, lanes) for s in rows.placed("split")) > REGISTERS:
        raise Refused(f"the registers of {lanes} lanes do not hold the arrays of a row")
    if rows.shared_bytes() > STATIC_SHARED:
        raise Refused(f"it needs {rows.shared_bytes() >> 10} KiB of memory per row")
    _refuse_private(sum(map(bytes_of, rows.placed("private"))))
    return TeamKernel(lanes, min(teams, max(1, rows.count)), rows.count, rows.counter, rows.before,
                      tuple(_Team(rows, lanes).row(rows.body, set())),
                      teams == 1 and rows.count <= BLOCKS_PER_SM * gpu.cores)


def refuse_threads(kernel: ir.Kernel) -> None:
    """Raise Refused where a thread by itself does not run an iteration."""
    if any(isinstance(s, (Scan, ir.Last)) for s in walk(kernel.body)):
        raise Refused("lanes find updates, or join results, together")
    _refuse_private(sum(bytes_of(s) for s in walk(kernel.body) if isinstance(s, ir.Local)))


def _refuse_private(size: int) -> None:
    """Raise Refused for Local arrays of so many bytes in each thread."""
    if size > LARGEST_PRIVATE:
        raise Refused(f"its arrays take {size >> 10} KiB of each thread: at most {LARGEST_PRIVATE >> 10} are used")


def slots_of(size: int, threads: int) -> int:
    """Elements of a split array that one lane has: whole vectors, if the array consists of such."""
    slots = -(-size // threads)
    vector = next((n for n in (2, 4, 8) if n >= slots), slots)
    return vector if size % vector == 0 else slots


class _Team(NamedTuple):
    """Writes a row for lanes."""

    rows: Rows
    threads: int

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
            elif isinstance(statement, ir.Local):
                done.append(self.local(statement))
            elif isinstance(statement, (ir.Store, ir.Atomic)):
                self.store(statement, done)
            else:
                done.append(with_bodies(statement, lambda body: tuple(self.row(body, open_sums))))
        return _with_single_barriers(done)

    def loop(self, loop: ir.For, open_sums: set[str], fresh: set[str]) -> list[Own]:
        mutables = self.rows.mutables
        sums = assigned(loop.body) & mutables.keys()
        spread = self.rows.spreads.get(id(loop))
        if spread is None:
            sums = {n for n in sums if self.rows.only_accumulated(n, loop.body) and self._summed_in_spreads(n, loop)}
        own = sorted(sums - open_sums)
        before: list[Own] = [self._reset(n) for n in own
                             if n not in fresh and mutables[n].reassociable not in IDEMPOTENT]
        fresh -= sums
        after: list[Own] = [Total(n, mutables[n].reassociable, mutables[n].initial.type) for n in own]
        if spread is not None:
            return [*before, *self.spread(spread), *after]
        row = tuple(self.row(loop.body, open_sums | sums))
        return [*before, ir.For(loop.name, loop.extent, ir.SERIAL, row), *after]

    def _summed_in_spreads(self, name: str, loop: ir.For) -> bool:
        """Whether all updates of an accumulator in this loop are in distributed loops."""
        level = list(self.rows.row_level(loop.body))
        return any(id(s) in self.rows.spreads for s in level) \
            and not any(isinstance(s, ir.Assign) and s.name == name for s in level)

    def _reset(self, name: str) -> ir.Assign:
        mutable = self.rows.mutables[name]
        type = mutable.initial.type
        values = ir.Var(name, type), identity(mutable.reassociable, type)
        return ir.Assign(name, ir.Apply("select", (FIRST_LANE, *values), type))

    def spread(self, spread: Spread) -> list[Own]:
        """A loop over the lanes, with barriers if other lanes may still read, or will read, what it writes."""
        split = {n for n in touched_by(spread.body) if self.rows.places.get(n) == "split"}
        slots = max((slots_of(self.rows.locals[n].size, self.threads) for n in split), default=0)
        body = _with_slots(spread.body, split) if split else spread.body
        written = {s.buffer for s in stores(body)} & {*self.rows.buffers, *self.rows.locals} - split
        done: list[Own] = [Spread(spread.counters, body, slots)]
        if written:
            done.insert(0, ir.Barrier())
        if any(n in self.rows.loaded for n in written):
            done.append(ir.Barrier())
        return done

    def local(self, statement: ir.Local) -> ir.Local | ir.Shared:
        place = self.rows.places[statement.name]
        if place == "shared":
            return ir.Shared(*statement)
        return statement._replace(size=slots_of(statement.size, self.threads)) if place == "split" else statement

    def store(self, statement: ir.Store | ir.Atomic, done: list[ir.Stmt]) -> None:
        """A store of the whole row, by the first lane; consecutive stores share their barriers."""
        if self.rows.places.get(statement.buffer) == "private":
            done.append(statement)
            return
        again = statement.buffer in self.rows.loaded
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


# -- positions in split arrays ---------------------------------------------------------------------------------------

def _with_slots(statements: tuple[ir.Stmt, ...], split: set[str]) -> tuple[ir.Stmt, ...]:
    """The statements with accesses of split arrays indexed by `slot`."""
    def change(expr: ir.Expr) -> ir.Expr:
        if isinstance(expr, ir.Load) and expr.buffer in split:
            return expr._replace(position=SLOT)
        return with_parts(expr, change)

    def stored(s: ir.Stmt) -> ir.Stmt | None:
        return ir.Store(s.buffer, SLOT, change(s.value)) if isinstance(s, ir.Store) and s.buffer in split else None
    return with_all_expressions(statements, change, stored)
