"""Teams: a kernel whose PARALLEL iterations contain loops runs each iteration on a warp or on a block.

In: a Kernel, and how many lanes a team has. Out: a Form, or Refused. All lanes of a team run the row's scalar
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
from hloc.kernels.walks import assigned, loads, stores, walk, with_all_expressions, with_bodies, with_values
from hloc.targets.cuda.loops.cache_read import REGISTERS, registers
from hloc.targets.cuda.loops.iteration_space import parallel_loop
from hloc.targets.cuda.loops.nest import LANES as WARP
from hloc.targets.cuda.loops.nest import LARGEST_BLOCK
from hloc.targets.cuda.loops.rows import Own, Packs, Rows, Scan, Spread, bytes_of, rows_of, touched_by

BLOCKS_PER_SM = 16                  # at most; each block then has several rows
LARGEST_PRIVATE = 16 << 10          # bytes of Local arrays that one thread may have
STATIC_SHARED = 44 << 10
LOOKED_AT = 64
LANE = ir.Var("lane", ir.INDEX)
SLOT = ir.Var("slot", ir.INDEX)
FIRST_LANE = ir.Apply("compare_eq", (LANE, ir.Const(0, ir.INDEX)), "pred")


class Total(NamedTuple):
    """Reduces an accumulator over the lanes; all lanes get the result."""

    name: str
    op: str
    type: str


class Form(NamedTuple):
    """A kernel of distributed() as threads run it: teams share its rows. threads: of a block, at most; lanes: of a
    team, which is a warp or a block; 0: the grid is the only team, and its body is one Spread; body: of one row, named
    by `counter`; rows: how many there are; before: statements around them; tiled: rows are tiles (transposes.py)."""

    kernel: ir.Kernel
    threads: int
    lanes: int
    body: tuple[Own, ...]
    counter: str = ""
    rows: int = 1
    before: tuple[ir.Stmt, ...] = ()
    tiled: bool = False

    @property
    def units(self) -> int:
        """What blocks share: rows, or the vectors or elements of the grid."""
        return self.rows if self.lanes else self.body[0].iterations

    @property
    def block(self) -> int:
        """The threads of a block: no more warps than there is work for."""
        return min(self.threads, -(-max(1, self.units) * max(1, self.lanes) // WARP) * WARP)

    @property
    def teams(self) -> int:
        """Teams of a block; of the grid, threads."""
        return self.block // max(1, self.lanes)

    @property
    def vectors(self) -> Packs | None:
        """The vectors of the grid."""
        return None if self.lanes else self.body[0].packs


def by_threads(kernel: ir.Kernel, threads: int) -> Form:
    """A thread for each PARALLEL iteration. Raises Refused."""
    if any(isinstance(s, (Scan, ir.Last)) for s in walk(kernel.body)):
        raise Refused("lanes find updates, or join results, together")
    if (size := sum(bytes_of(s) for s in walk(kernel.body) if isinstance(s, ir.Local))) > LARGEST_PRIVATE:
        raise Refused(f"its arrays take {size >> 10} KiB of each thread: at most {LARGEST_PRIVATE >> 10} are used")
    loop = parallel_loop(kernel)
    if loop is None:
        return Form(kernel, threads, 0, (Spread((), kernel.body),))
    return Form(kernel, threads, 0, (Spread(((loop.name, loop.trip_count),), loop.body),),
                before=tuple(s for s in kernel.body if s is not loop))


def by_teams(kernel: ir.Kernel, lanes: int, threads: int) -> Form:
    """Teams of `lanes` for the rows of the kernel, in blocks of so many threads. Raises Refused."""
    rows = rows_of(kernel)
    if not rows.spreads and not rows.scans and not rows.joins:
        raise Refused("no loop of a row has independent iterations")
    if rows.scans and lanes != WARP:
        raise Refused("the lanes of a warp find updates together")
    if rows.joins and threads > lanes:
        raise Refused("blocks join their results")
    if rows.shared_bytes and (lanes == WARP or threads > lanes):
        raise Refused("a block shares the arrays of a row")
    if lanes < LARGEST_BLOCK and sum(registers(rows.locals[name].type, rows.locals[name].size, lanes)
                                     for name in rows.split) > REGISTERS:
        raise Refused(f"the registers of {lanes} lanes do not hold the arrays of a row")
    if rows.shared_bytes > STATIC_SHARED:
        raise Refused(f"it needs {rows.shared_bytes >> 10} KiB of memory per row")
    return Form(kernel, threads, lanes, tuple(_Team(rows, lanes).row(rows.body)), rows.counter, rows.count,
                rows.before)


def slots_of(size: int, threads: int) -> int:
    """Elements of a split array that one lane has: whole vectors, if the array consists of such."""
    slots = -(-size // threads)
    vector = next((n for n in (2, 4, 8) if n >= slots), slots)
    return vector if size % vector == 0 else slots


class _Team(NamedTuple):
    """Writes a row for lanes."""

    rows: Rows
    threads: int

    def row(self, statements: tuple[ir.Stmt, ...]) -> list[ir.Stmt]:
        """Row-level statements for a team."""
        done: list[ir.Stmt] = []
        for s in statements:
            if isinstance(s, ir.For) and id(s) in self.rows.spreads:
                done += self.sums(s, self.spread(self.rows.spreads[id(s)]))
            elif isinstance(s, ir.Local):
                done.append(self.local(s))
            elif isinstance(s, (ir.Store, ir.Atomic)):
                self.store(s, done)
            else:
                done.append(with_bodies(s, lambda body: tuple(self.row(body))))
        return _with_single_barriers(done)

    def sums(self, loop: ir.For, inside: list[Own]) -> list[Own]:
        """A distributed loop: all lanes but the first begin with the identity of what it accumulates, and all get the
        total."""
        own = [s for name, s in self.rows.mutables.items() if name in assigned(loop.body)]
        resets = [ir.Assign(s.name, ir.Apply("select", (
            FIRST_LANE, ir.Var(s.name, s.initial.type), identity(s.reassociable, s.initial.type)), s.initial.type))
            for s in own]
        return [*resets, *inside, *(Total(s.name, s.reassociable, s.initial.type) for s in own)]

    def spread(self, spread: Spread) -> list[Own]:
        """A loop over the lanes, with barriers if other lanes may still read, or will read, what it writes."""
        split = touched_by(spread.body) & self.rows.split
        slots = max((slots_of(self.rows.locals[n].size, self.threads) for n in split), default=0)
        own = {load: load._replace(position=SLOT) for load in loads(spread.body) if load.buffer in split}
        body = with_all_expressions(spread.body, lambda e: with_values(e, own), lambda s: ir.Store(
            s.buffer, SLOT, with_values(s.value, own)) if isinstance(s, ir.Store) and s.buffer in split else None)
        written = {s.buffer for s in stores(body)} & {*self.rows.buffers, *self.rows.locals} - split
        done: list[Own] = [Spread(spread.counters, body, slots)]
        if written:
            done.insert(0, ir.Barrier())
        if any(n in self.rows.loaded for n in written):
            done.append(ir.Barrier())
        return done

    def local(self, s: ir.Local) -> ir.Local | ir.Shared:
        return s._replace(size=slots_of(s.size, self.threads)) if s.name in self.rows.split else ir.Shared(*s)

    def store(self, statement: ir.Store | ir.Atomic, done: list[ir.Stmt]) -> None:
        """A store of the whole row, by the first lane; consecutive stores share their barriers."""
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
