"""The Work of a loop kernel, from its loop IR and the form in which threads share it.

In: a Form and the GPU. Out: a Work: instructions by kind, bytes by level (loop_memory.py), and the number of
dependent loads in a thread (rounds). Nothing is printed or compiled.

    loop_work(form, GPUS["h200"]).rounds      of a thread that adds up 25,088 rows one by one: 25,088

The model of the compiler's loop optimizations follows measurements. Loads of unrolled iterations wait together. No load
is moved past a barrier, past a store (which may alias it), or out of a conditional (which may not execute it).
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from hloc.ir import ELEMENT_TYPES
from hloc.kernels import ir
from hloc.kernels.walks import expressions, names_in, parts, walk
from hloc.machine import Machine
from hloc.ops.table import SCALARS
from hloc.targets.cuda.costs.loop_memory import Access, Scope, Threads, memory_of, taken
from hloc.targets.cuda.costs.model import estimate
from hloc.targets.cuda.costs.sizes import is_choice
from hloc.targets.cuda.costs.work import WARP, Work
from hloc.targets.cuda.loops.cache_read import registers
from hloc.targets.cuda.loops.forms import geometry_of
from hloc.targets.cuda.loops.kernels import VECTORS_AT_ONCE, in_flight
from hloc.targets.cuda.loops.rows import Own, Scan, Spread, bytes_of
from hloc.targets.cuda.loops.teams import FIRST_LANE, LOOKED_AT, Form, Total

USUALLY_UNROLLED = 4                # iterations that compilers unroll by default
UNKNOWN_TRIPS = 16                  # assumed for loops whose trip count is computed
FEW_LOADS = 4                       # most loads per iteration of loops with a large unroll factor
TOGETHER, TOGETHER_OF_MANY = 32, 8  # loads of a thread in flight together, if iterations have few, or many
LARGEST_UNROLLED = 64               # slots
REGISTERS = 40                      # of a thread that holds no arrays; few kernels differ
BESIDE_ARRAYS, OF_ARRAYS = 24, 0.6  # registers of one that does: beside them, and of each of theirs, as some are reused
INSTRUCTIONS = {name: row.gpu_cost or row.cost for name, row in SCALARS.items() if row.cost > 1}
QUOTIENT, OF_INDEX = 4, 0.5         # instructions of an INDEX division by a constant, of another INDEX operation
UNROLLED = 8                        # iterations of loops that compilers unroll completely
TOTAL = 10                          # instructions of a reduction over a warp
ARRIVAL = 8                         # loads that take as long as to find out whether a team is the last one


def loop_work(form: Form, gpu: Machine) -> Work:
    """The Work of a kernel as it is printed for this GPU."""
    return _Count(form, gpu).work()


def work_within(form: Form, gpu: Machine, us: float) -> Work:
    """The same; without the bytes that are moved, which take a sample, if it takes longer than so many microseconds
    anyway."""
    count = _Count(form, gpu)
    least = count.work(moves=False) if us < math.inf else None
    return least if least is not None and estimate(least, gpu).us > us else count.work()


class _Count:
    """Counts the Work of one kernel."""

    def __init__(self, form: Form, gpu: Machine) -> None:
        kernel, start = form.kernel, geometry_of(form, form.kernel.name, gpu)
        blocks, threads = start.grid[0], start.block[0]
        self.form, self.gpu = form, gpu
        self.lets: dict[str, ir.Expr] = {}
        self.buffers = {b.name: b for b in kernel.buffers}
        self.accesses: list[Access] = []
        self.counts: dict[str, float] = {}
        self.shared, self.joining, self.syncs = 0, 0.0, 0.0
        self.packed: dict[ir.Load | ir.Store | ir.Atomic, int] = {}     # vectors of the current loop -> elements
        loop = next((s for s in kernel.body if isinstance(s, ir.For) and s.kind == ir.PARALLEL), None)
        body: tuple[ir.Stmt, ...] = loop.body if loop else kernel.body
        counters: tuple[tuple[str, int], ...] = ((loop.name, loop.trip_count),) if loop else ()
        before = tuple(s for s in kernel.body if s is not loop) if loop else ()
        of_rows = form.lanes > 0 and not form.tiled
        if of_rows:
            body, before = form.body, form.before
            self.threads = Threads(blocks, threads, form.rows, form.teams, form.lanes, counters)
        else:
            self.threads = Threads(blocks, threads, math.prod(n for _, n in counters), threads, 1, counters)
        arrays = [s for s in walk(body) if isinstance(s, ir.Local) and s.size <= LARGEST_UNROLLED] if of_rows else []
        self.in_registers = {s.name for s in arrays}
        held = sum(registers(s.type, s.size, 1) for s in arrays)
        self.registers = max(REGISTERS, round(BESIDE_ARRAYS + OF_ARRAYS * held))
        self.count(before, Scope(0, self.threads.lanes))
        self.rounds = self.count(body, Scope(1, self.threads.lanes))

    def work(self, moves: bool = True) -> Work:
        """The counts, for all threads. moves: with the bytes that are moved."""
        form, threads = self.form, self.threads
        memory, traffic, sectors = memory_of(self.accesses, self.buffers, self.lets, threads, form.tiled,
                                             self.gpu) if moves else (0.0, 0.0, 0.0)
        counts, units = {**self.counts, "sector": sectors}, threads.units_of_one
        counts["alu"] = counts.get("alu", 0) + counts.pop("index", 0) / (form.vectors.width if form.vectors else 1)
        shared, rounds, uneven = self.shared, self.rounds * units, units * threads.at_once / max(1, threads.units)
        if form.vectors:
            width, together = form.vectors.width, len(form.vectors.loads) + len(form.vectors.stores)
            counts["access"] *= 1 - min(1, together / max(1, len(self.accesses))) * (1 - 1 / width)
            rounds = math.ceil(units / width) * max(1, self.rounds)
        if form.tiled:
            rounds, uneven, packs = 2 * math.ceil(form.rows / threads.blocks), 1, form.body[-1].packs
            shared, width = sum(bytes_of(s) for s in form.body if isinstance(s, ir.Shared)), packs.width if packs else 1
            counts["access"] *= 2 if width == 1 else (1 + 3 / width) / 2      # only loads from the tile are of elements
        return Work(threads.blocks, threads.threads, self.registers, shared, memory, traffic, counts,
                    rounds=float(rounds), uneven=float(uneven), syncs=float(self.syncs * units), after=self.joining)

    # -- statements: each method records instructions and accesses, and returns the number of dependent loads ------

    def count(self, statements: Iterable[ir.Stmt], scope: Scope) -> float:
        rounds, deepest = 0.0, 0
        levels: dict[str, int] = {}
        for s in statements:
            if isinstance(s, (ir.For, Spread)):
                rounds += self.loop(s, scope)
            elif isinstance(s, ir.While):
                rounds += self.search(s, scope)
            elif isinstance(s, Scan):
                rounds += self.scan(s, scope)
            elif isinstance(s, ir.If):
                rounds += self.branch(s, scope)
            elif isinstance(s, ir.Last):
                self.add("atomic", 1, scope._replace(lanes=1))
                self.joining += ARRIVAL + self.count(s.body, scope._replace(trips=scope.trips / s.count))
            elif isinstance(s, Total):
                self.add("shuffle", TOTAL, scope)
            elif isinstance(s, ir.Barrier):
                self.add("barrier", 1, scope)
                self.syncs += scope.trips * (self.threads.lanes > WARP)
            elif isinstance(s, ir.Shared):
                self.shared += s.size * ELEMENT_TYPES[s.type].bytes
            elif isinstance(s, (ir.Let, ir.Mutable, ir.Assign, ir.Store, ir.Atomic)):
                deepest = max(deepest, self.simple(s, scope, levels))
        return rounds + deepest

    def simple(self, s: ir.Let | ir.Mutable | ir.Assign | ir.Store | ir.Atomic, scope: Scope,
               levels: dict[str, int]) -> int:
        """levels: the number of dependent loads before each name."""
        if isinstance(s, (ir.Let, ir.Mutable)):
            self.lets[s.name] = s.value if isinstance(s, ir.Let) else s.initial
        level = 0
        for e in expressions(s):
            self.expression(e, scope, 1 / self.packed.get(s, 1) if isinstance(s, ir.Store) and e is s.position else 1)
            level = max(level, self.level(e, levels))
        if isinstance(s, (ir.Store, ir.Atomic)):
            if s.buffer in self.buffers:
                self.accesses.append(Access(s.buffer, s.position, scope, False))
            if s.buffer not in self.in_registers:
                self.add("atomic" if isinstance(s, ir.Atomic) else "access", 1 / self.packed.get(s, 1), scope)
        else:
            levels[s.name] = level
        return level

    def level(self, expr: ir.Expr, levels: Mapping[str, int]) -> int:
        """The longest chain of dependent loads in an expression. A load that a select takes waits for its condition."""
        if isinstance(expr, ir.Var):
            return levels.get(expr.name, 0)
        if isinstance(expr, ir.Load):
            return self.level(expr.position, levels) + (expr.buffer in self.buffers)
        if not isinstance(expr, ir.Apply):
            return 0
        each = [self.level(a, levels) for a in expr.arguments]
        return each[0] + max(each[1:]) if is_choice(expr) else max(each, default=0)

    def expression(self, expr: ir.Expr, scope: Scope, share: float = 1) -> None:
        """share: of the lanes that compute a position, which a vector has once."""
        if isinstance(expr, ir.Load):
            share /= self.packed.get(expr, 1)
            if expr.buffer not in self.in_registers:
                self.add("access", share, scope)
                self.add("alu", 0.5 * share, scope)
            if expr.buffer in self.buffers:
                self.accesses.append(Access(expr.buffer, expr.position, scope, True))
            self.expression(expr.position, scope, share)
        elif isinstance(expr, ir.Apply):
            if expr.type == ir.INDEX:
                self.index(expr, scope, share)
            else:
                self.add("special" if expr.op in INSTRUCTIONS else "alu", instructions(expr), scope)
            for argument in expr.arguments:
                self.expression(argument, scope, share)

    def index(self, part: ir.Apply, scope: Scope, share: float) -> None:
        """Operations of a position, where compilers leave them: outside of the loops whose counters they do not depend
        on. What only counters of unrolled loops add is part of an instruction's address."""
        terms: list[tuple[ir.Expr, float]] = [(part, QUOTIENT if part.op in ("divide", "remainder") else OF_INDEX)]
        if part.op == ir.SUM:
            terms = [(atom, OF_INDEX * (1 + (abs(f) != 1))) for atom, f in zip(part.arguments, part.immediate)]
        for term, cost in terms:
            trips, seen = scope.trips, names_in([term], self.lets)
            for name, extent, shared in reversed(scope.loops):
                if name in seen:
                    break
                trips /= 1 if shared else max(1, extent)            # a loop may have no iteration
            unrolled = {name for name, extent, shared in scope.loops if not shared and extent <= UNROLLED}
            if part.op != ir.SUM or not seen or not seen <= unrolled:
                self.add("index", cost * share, scope._replace(trips=trips))

    def add(self, kind: str, count: float, scope: Scope) -> None:
        """Adds `count` instructions of a lane per trip, as warp instructions of the whole kernel."""
        units, alone = self.threads.units, self.threads.lanes == 1
        warps = units / WARP if alone else units * math.ceil(scope.lanes / WARP)
        self.counts[kind] = self.counts.get(kind, 0.0) + count * scope.trips * warps

    def branch(self, s: ir.If, scope: Scope) -> float:
        self.expression(s.condition, scope)
        inside = scope._replace(lanes=1) if s.condition == FIRST_LANE else scope
        waits = any(isinstance(p, ir.Load) for p in parts([s.condition]))
        share = 1.0 if s.condition == FIRST_LANE else taken(s.condition, scope, self.threads, self.lets)
        rounds = share * self.count(s.then, inside._replace(trips=scope.trips * share))
        return max(rounds, self.count(s.otherwise, inside)) + waits

    def search(self, s: ir.While, scope: Scope) -> float:
        inside = scope._replace(trips=scope.trips * UNKNOWN_TRIPS, loops=(*scope.loops, ("", UNKNOWN_TRIPS, False)))
        self.expression(s.condition, inside)
        return (self.count(s.body, inside) + 1) * UNKNOWN_TRIPS

    def loop(self, s: ir.For | Spread, scope: Scope) -> float:
        shared = isinstance(s, Spread)
        counters: tuple[tuple[str, int | ir.Expr], ...] = s.counters if isinstance(s, Spread) else ((s.name, s.extent),)
        extents = [self.trips(n) for _, n in counters]
        total, lanes = math.prod(extents), self.threads.lanes if shared else 1
        loops = (*scope.loops, *((name, n, shared) for (name, _), n in zip(counters, extents)))
        packs = s.packs if isinstance(s, Spread) else None
        self.packed = dict.fromkeys((*packs.loads, *packs.stores), packs.width) if packs else {}
        rounds = self.count(s.body, scope._replace(trips=scope.trips * total / lanes, loops=loops))
        self.packed = {}
        return self.repeated(s, {name for name, _ in counters}, math.ceil(total / lanes), rounds)

    def trips(self, extent: int | ir.Expr) -> int:
        """The trip count of a loop; of one that ends at a minimum, at most its constant."""
        value = self.lets.get(extent.name) if isinstance(extent, ir.Var) else extent
        if isinstance(value, ir.Apply) and value.op == "minimum":
            value = next((a for a in value.arguments if isinstance(a, ir.Const)), value)
        return value if isinstance(value, int) else value.integer if isinstance(value, ir.Const) else UNKNOWN_TRIPS

    def repeated(self, s: ir.For | Spread, counters: set[str], steps: int, rounds: float) -> float:
        """Rounds of a loop of `steps` iterations with `rounds` dependent loads each."""
        inside: list[Own] = list(walk(s.body))
        if any(isinstance(i, (ir.While, Scan, ir.Barrier, ir.Atomic, Total))
               or isinstance(i, (ir.For, Spread)) and not is_flat(i) for i in inside):
            return steps * rounds
        spreads = [i for i in inside if isinstance(i, Spread)]
        slots, packs = math.prod(i.slots for i in spreads), [i.packs for i in spreads]
        if any(isinstance(i, ir.Store) and i.buffer in self.buffers for i in inside):
            width = s.packs.width if isinstance(s, Spread) and s.packs and s.packs.loads else 1
            return math.ceil(steps / width) * rounds * slots
        if any(is_choice(p) for i in inside for p in parts(expressions(i))):
            return rounds if isinstance(s, Spread) and s.slots else steps * rounds
        loads = [p for i in inside for p in parts(expressions(i)) if isinstance(p, ir.Load) and p.buffer in self.buffers
                 and counters & names_in([p.position], self.lets)]
        if not loads:
            return rounds
        if any(p and p.loads for p in packs):
            return math.ceil(steps / VECTORS_AT_ONCE) * max(1, rounds)
        together = TOGETHER if len(loads) * slots <= FEW_LOADS else TOGETHER_OF_MANY
        if isinstance(s, Spread):
            own = s.packs
            vectors = in_flight(own) * own.width if own and own.loads else 2
            together = max(USUALLY_UNROLLED, s.slots, vectors) * len(loads)
        return max(1, math.ceil(steps * slots * len(loads) / together)) * max(1, rounds)

    def scan(self, s: Scan, scope: Scope) -> float:
        total, guard = math.prod(n for _, n in s.counters), s.body[-1]
        assert isinstance(guard, ir.If)
        loops = (*scope.loops, *((name, n, True) for name, n in s.counters))
        looks = scope._replace(trips=scope.trips * total / WARP, loops=loops)
        rounds = self.count(s.body[:-1], looks)
        self.expression(guard.condition, looks)
        hits = total / max(1, self.threads.units)               # per owner, on average
        more = self.count(guard.then, scope._replace(trips=scope.trips * hits, loops=loops))
        return (rounds + 1) * math.ceil(total / LOOKED_AT) + more * hits


def is_flat(loop: ir.For | Spread) -> bool:
    """Whether compilers unroll it completely."""
    return isinstance(loop, Spread) and 0 < loop.slots <= LARGEST_UNROLLED


def instructions(part: ir.Apply) -> float:
    """Approximate instructions of one operation on elements."""
    if part.op == "convert":
        return 1 if ELEMENT_TYPES[part.type].bytes >= 4 else 2
    return INSTRUCTIONS.get(part.op, 1) * (2 if ELEMENT_TYPES[part.type].bytes > 4 else 1)
