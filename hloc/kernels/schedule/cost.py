"""The predicted time of loop IR with vectors on a CPU, in cycles: what schedules are compared by.

In: the statements of one iteration of an outer loop, and constants of a CPU. Out: cycles of an iteration.

It is the most of three: the work of the busiest unit (loads, stores, arithmetic, shuffles, division), the operations
that a CPU issues, and the longest chain of operations that wait for each other; of a chain only a part, if the CPU's
window holds several iterations. Of loops over rows, which do now this, now that, it is the sum of the work of all units
and of the chain. Loads and stores that cross cache lines count more. Bytes from memory are the same for all schedules
of a nest, and are not counted.

Constants are in cpu_costs.json, fitted by benchmarks/fit_cpu_costs.py to measured kernels.
"""
from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from hloc.kernels.indexing import sum_parts
from hloc.kernels.ir import INDEX, Apply, Assign, Expr, For, Let, Load, Local, Mutable, Stmt, Store, Var
from hloc.kernels.operations import HEAVY
from hloc.kernels.vectors import MASKS, bits_of, bytes_of, element_of, is_vector
from hloc.ops.table import SCALARS

LINE, REGISTER = 64, 64         # bytes of a cache line, and of the widest register
WRITTEN_OUT = 8                 # iterations of a scalar loop that compilers write out
UNITS = ("loads", "stores", "vectors", "shuffles", "divides")
_, _, VECTORS, SHUFFLES, DIVIDES = range(len(UNITS))
EXTREMA = ("maximum", "minimum")
FLOATS = ("f32", "f64")
FREE = ("bitcast", "series")

Constants = dict[str, float]


class Work(NamedTuple):
    """Of some statements: uses of each of UNITS, operations, and the cycles of the longest chain."""

    units: list[float]
    operations: float
    path: float


@cache
def constants(name: str) -> Constants:
    """The constants of a kind of CPU; those of `default` where it has no own."""
    rows = json.loads(Path(__file__).with_name("cpu_costs.json").read_text(encoding="utf-8"))
    return {**rows["default"], **rows.get(name, {})}


def cost(body: Iterable[Stmt], machine: Constants) -> float:
    """Cycles of one iteration of a loop around these statements."""
    work = _Counter(machine).work(tuple(body))
    return max(work.operations / machine["issue"], work.path / held(work, machine["window"]),
               *(n / machine[f"{unit}_a_cycle"] for n, unit in zip(work.units, UNITS)))


def row_cost(body: Iterable[Stmt], machine: Constants) -> float:
    """Cycles of loops over rows."""
    work = _Counter(machine).work(tuple(body))
    return sum(n * machine[f"row_{unit}"] for unit, n in zip((*UNITS, "path"), (*work.units, work.path)))


def held(work: Work, window: float) -> float:
    """The number of iterations that a CPU runs at once."""
    return max(1.0, window / max(1.0, work.operations))


class _Counter:
    """depth: of each name, the cycles until its value is there."""

    def __init__(self, machine: Constants) -> None:
        self.machine = machine
        self.depth: dict[str, float] = {}

    def work(self, body: tuple[Stmt, ...]) -> Work:
        units, path = [0.0] * len(UNITS), 0.0
        seen: dict[Expr, float] = {}
        loops: list[Work] = []
        for s in body:
            if isinstance(s, For):
                loops.append(self.loop(s))
                path += loops[-1].path
                continue
            if isinstance(s, Local):
                continue
            assert isinstance(s, (Let, Mutable, Assign, Store))         # as nest_of and lower have it
            done = self.value(s.initial if isinstance(s, Mutable) else s.value, units, seen)
            if isinstance(s, Store):
                units[1] += 1 + self.machine["store_crossing"] * crossing(s.position, s.value.type)
            else:
                self.depth[s.name] = done
            path = max(path, done)
        return Work([sum(n) for n in zip(units, *(w.units for w in loops))],
                    sum(units) + sum(w.operations for w in loops), path)

    def loop(self, s: For) -> Work:
        """All iterations of a loop, each of which waits for the accumulators of the one before."""
        counter = _Counter(self.machine)
        one = counter.work(s.body)
        around = (self.machine["loop"], self.machine["exit"]) if s.trip_count > WRITTEN_OUT else (0.0, 0.0)
        one = one._replace(operations=one.operations + around[0])
        each = max(counter.chain(s.body), one.path / held(one, self.machine["window"]))
        return Work([s.trip_count * n for n in one.units], s.trip_count * one.operations + around[1],
                    s.trip_count * each + one.path)

    def chain(self, body: tuple[Stmt, ...]) -> float:
        """Cycles from one value of an accumulator to the next, the most of all."""
        total: dict[str, float] = {}
        for s in body:
            if isinstance(s, Assign) and isinstance(s.value, Apply):
                total[s.name] = total.get(s.name, 0.0) + self.latency(operation_of(s.value))
        return max(total.values(), default=0.0)

    def value(self, e: Expr, units: list[float], seen: dict[Expr, float]) -> float:
        """Count an expression; the cycles until it is there. Equal ones are computed once."""
        if isinstance(e, Var):
            return self.depth.get(e.name, 0.0)
        if e.type == INDEX or not isinstance(e, (Load, Apply)):
            return 0.0
        known = seen.get(e)
        if known is not None:
            return known
        if isinstance(e, Load):
            done = self.load(e, units)
        else:
            done = max([self.value(a, units, seen) for a in e.arguments], default=0.0)
            done += self.apply(operation_of(e), units)
        seen[e] = done
        return done

    def load(self, e: Load, units: list[float]) -> float:
        one = 1 if is_vector(e.type) else self.machine["scalar"]
        units[0] += one + self.machine["load_crossing"] * crossing(e.position, e.type)
        return self.machine["load_latency"]

    def apply(self, one: Operation, units: list[float]) -> float:
        """Count an operation on registers; its latency."""
        machine = self.machine
        if one.unit:
            part = machine["scalar"] if not one.bytes else machine["narrow"]
            if one.bytes > REGISTER // 2:
                part = max(1.0, one.bytes / REGISTER)
            units[one.unit] += part * one.times * (machine[one.by] if one.by else 1)
            if one.divisions:
                units[DIVIDES] += part * machine["division"] * one.divisions
        return self.latency(one)

    def latency(self, one: Operation) -> float:
        return self.machine[one.waits] * one.waits_times if one.waits else 0


class Operation(NamedTuple):
    """What an operation takes on any CPU, without its arguments. bytes: of its widest value; 0: no vectors. unit: which
    of UNITS it uses, 0: none; so many times, `by` the constant of this name, if any; divisions: of the unit that
    divides; waits: the constant of its latency, if it has one, and its factor."""

    bytes: int
    unit: int
    times: float = 1
    by: str = ""
    divisions: int = 0
    waits: str = ""
    waits_times: float = 1


def operation_of(e: Apply) -> Operation:
    """What an operation takes."""
    is_constant = e.op == "splat" and not isinstance(e.arguments[0], (Load, Var, Apply))
    return _operation(e.op, e.type, tuple([a.type for a in e.arguments]), is_constant)


@cache
def _operation(op: str, type: str, types: tuple[str, ...], is_constant: bool) -> Operation:
    all_types, element = (type, *types), element_of(type)
    widest = max(map(_bytes, all_types)) if any(map(is_vector, all_types)) else 0
    instructions = _instructions(op, type)
    if op in FREE:
        return Operation(widest, 0)
    if op in ("shuffle", "lane", "splat"):
        waits, times = "shuffle_latency", 1.0
    elif op in HEAVY or op in ("divide", "sqrt"):
        waits, times = "float_latency", max(3, instructions / 2)
    elif element not in FLOATS:
        waits, times = "integer_latency", 1.0
    else:
        waits, times = "extremum_latency" if op in EXTREMA else "float_latency", 1.0

    def using(unit: int, count: float = 1, by: str = "", divisions: int = 0) -> Operation:
        return Operation(widest, unit, count, by, divisions, waits, times)
    if is_constant:
        return using(0)
    if op == "lane":
        return using(SHUFFLES, by="float_lane" if type in FLOATS else "integer_lane")
    if op in ("shuffle", "splat") or op == "convert" and is_vector(type) and _bytes(type) != _bytes(types[0]):
        return using(SHUFFLES, by="small_shuffle" if bits_of(element) < 32 and op == "shuffle" else "")
    if op in ("divide", "sqrt", "rsqrt"):
        return using(VECTORS, divisions=2 if "f64" in type else 1)
    if op in EXTREMA:
        return using(VECTORS, by="extremum" if element in FLOATS else "")
    if op == "convert" and not is_vector(type) and "f16" in (type, types[0]):
        return using(VECTORS, by="scalar_half")
    return using(VECTORS, instructions)


def _instructions(op: str, type: str) -> float:
    """Instructions of one operation on a register."""
    row = SCALARS.get(op.removesuffix("_near").removesuffix("_held"))
    return 1 if row is None or element_of(type) in MASKS else max(1, row.cost)


def _bytes(type: str) -> int:
    return 8 if type == INDEX else bytes_of(type)


def crossing(position: Expr, type: str) -> float:
    """The part of such loads that cross a cache line; rows begin anywhere."""
    size, step = bytes_of(type), bits_of(element_of(type)) // 8
    if size <= 8:
        return 0.0
    terms, constant = sum_parts(position)
    whole = constant * step % size == 0 and all(f * step % LINE == 0 for _, f in terms)
    return 0.0 if whole else min(1.0, (size - step) / LINE)
