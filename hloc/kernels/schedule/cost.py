"""The predicted time of loop IR with vectors on a CPU, in cycles: what schedules are compared by.

In: the statements of one iteration of an outer loop, and constants of a CPU. Out: cycles of an iteration.

It is the most of three: the work of the busiest unit (loads, stores, arithmetic, shuffles, division), the operations
that a CPU issues, and the longest chain of operations that wait for each other; of a chain only a part, if the CPU's
window holds several iterations that do not wait for each other's stores. Loads and stores that cross cache lines count
more, and so do loads that span what two stores to a local array left. Bytes from memory are the same for all schedules
of a nest, and are not counted.

Constants are in cpu_costs.json, fitted by benchmarks/fit_cpu_costs.py to measured kernels.
"""
from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from hloc.kernels.affine import affine
from hloc.kernels.ir import INDEX, Apply, Assign, Expr, For, Let, Load, Local, Mutable, Stmt, Store, Var
from hloc.kernels.operations import HEAVY
from hloc.kernels.vectors import MASKS, bits_of, bytes_of, element_of, is_vector
from hloc.kernels.walks import expressions, loads, parts, walk
from hloc.ops.table import SCALARS

LINE, REGISTER = 64, 64         # bytes of a cache line, and of the widest register
WRITTEN_OUT = 8                 # iterations of a scalar loop that compilers write out
UNITS = ("loads", "stores", "vectors", "shuffles", "divides")
FLOATS = ("f32", "f64")
FREE = ("bitcast", "series")
UNPRICED, DOUBLE = 150, 1000        # milliseconds of compilation that cost nothing, and more that count twice

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


def cost(body: Iterable[Stmt], machine: Constants, local: Collection[str] = ()) -> float:
    """Cycles of one iteration of a loop around these statements. local: arrays that were stored just before."""
    body = tuple(body)
    work = _Counter(machine, local).work(body)
    stored = {s.buffer for s in body if isinstance(s, Store)}
    waits = any(load.buffer in stored.intersection(local) for load in loads(body))      # for the iteration before
    return max(busy(work, machine), work.path / (1 if waits else held(work, machine["window"])))


class Code(NamedTuple):
    """What is written out for statements, each loop once: instructions of long functions, other instructions, and
    functions on vectors."""

    heavy: float
    light: float
    functions: float


def code_of(body: Iterable[Stmt]) -> Code:
    """What a C compiler is given for statements."""
    values = [e for s in walk(tuple(body)) for e in parts(expressions(s)) if isinstance(e, Apply) and e.type != INDEX]
    heavy = [e for e in values if e.op in HEAVY]
    return Code(sum(map(_instructions, heavy)), len(values) - len(heavy),
                len({(e.op, e.type) for e in values if is_vector(e.type)}))


def price(code: Code, machine: Constants) -> float:
    """The factor by which predicted cycles of a schedule are multiplied, as its code takes long to compile: 1 up to
    UNPRICED milliseconds, 2 at UNPRICED + DOUBLE."""
    return 1 + max(0, sum(n * machine[f"compile_{name}"] for name, n in code._asdict().items()) - UNPRICED) / DOUBLE


def work_of(body: Iterable[Stmt], machine: Constants) -> Work:
    """The work of statements."""
    return _Counter(machine, ()).work(tuple(body))


def busy(work: Work, machine: Constants) -> float:
    """Cycles for which the units or the issue of operations are busy."""
    return max(work.operations / machine["issue"],
               *(n / machine[f"{unit}_a_cycle"] for n, unit in zip(work.units, UNITS)))


def held(work: Work, window: float) -> float:
    """The number of iterations that a CPU runs at once."""
    return max(1.0, window / max(1.0, work.operations))


class _Counter:
    """depth: of each name, the cycles until its value is there."""

    def __init__(self, machine: Constants, local: Collection[str]) -> None:
        self.machine, self.local = machine, local
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
        counter = _Counter(self.machine, self.local)
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
                total[s.name] = total.get(s.name, 0.0) + self.latency(s.value)
        return max(total.values(), default=0.0)

    def value(self, e: Expr, units: list[float], seen: dict[Expr, float]) -> float:
        """Count an expression; the cycles until it is there. Equal ones are computed once."""
        if isinstance(e, Var):
            return self.depth.get(e.name, 0.0)
        if e.type == INDEX or not isinstance(e, (Load, Apply)):
            return 0.0
        if e not in seen:
            if isinstance(e, Load):
                seen[e] = self.load(e, units)
            else:
                before = max((self.value(a, units, seen) for a in e.arguments), default=0.0)
                for n, uses in enumerate(self.uses(e)):
                    units[n] += uses
                seen[e] = before + self.latency(e)
        return seen[e]

    def load(self, e: Load, units: list[float]) -> float:
        one = 1 if is_vector(e.type) else self.machine["scalar"]
        units[0] += one + self.machine["load_crossing"] * crossing(e.position, e.type)
        stalls = e.buffer in self.local and is_vector(e.type) and _begins_inside(e)
        return self.machine["load_latency"] + (self.machine["forward_stall"] if stalls else 0)

    def uses(self, e: Apply) -> tuple[float, ...]:
        """Uses of units of one operation, without its arguments."""
        if e.op in FREE or e.op == "splat" and not isinstance(e.arguments[0], (Load, Var, Apply)):
            return (0, 0, 0, 0, 0)
        widest = max(_bytes(a.type) for a in (e, *e.arguments))
        part = max(1.0, widest / REGISTER) if widest > REGISTER // 2 else self.machine["narrow"]
        if not any(is_vector(a.type) for a in (e, *e.arguments)):
            part = self.machine["scalar"]
        if e.op == "lane":
            return (0, 0, 0, part * self.machine["float_lane" if e.type in FLOATS else "integer_lane"], 0)
        if e.op in ("shuffle", "splat") or e.op == "convert" and _resized(e) and is_vector(e.type):
            small = bits_of(element_of(e.type)) < 32 and e.op == "shuffle"
            return (0, 0, 0, part * (self.machine["small_shuffle"] if small else 1), 0)
        if e.op in ("divide", "sqrt", "rsqrt"):
            return (0, 0, part, 0, part * self.machine["division"] * (2 if "f64" in e.type else 1))
        return (0, 0, part * self.operations(e), 0, 0)

    def operations(self, e: Apply) -> float:
        """Instructions of one operation on a register."""
        if e.op in ("maximum", "minimum"):
            return self.machine["extremum"] if element_of(e.type) in FLOATS else 1
        if e.op == "convert" and not is_vector(e.type) and "f16" in (e.type, e.arguments[0].type):
            return self.machine["scalar_half"]
        return _instructions(e)

    def latency(self, e: Apply) -> float:
        if e.op in FREE:
            return 0
        if e.op in ("shuffle", "lane", "splat"):
            return self.machine["shuffle_latency"]
        if e.op in HEAVY or e.op in ("divide", "sqrt"):
            return self.machine["float_latency"] * max(3, self.operations(e) / 2)
        if element_of(e.type) not in FLOATS:
            return self.machine["integer_latency"]
        return self.machine["extremum_latency" if e.op in ("maximum", "minimum") else "float_latency"]


def _instructions(e: Apply) -> float:
    row = SCALARS.get(e.op.removesuffix("_near").removesuffix("_held"))
    return 1 if row is None or element_of(e.type) in MASKS else max(1, row.cost)


def _bytes(type: str) -> int:
    return 8 if type == INDEX else bytes_of(type)


def _resized(e: Apply) -> bool:
    """Whether a conversion moves numbers to lanes of another width."""
    return _bytes(e.type) != _bytes(e.arguments[0].type)


def _begins_inside(e: Load) -> bool:
    """Whether a vector does not begin at a multiple of its length."""
    form, lanes = affine(e.position, {}), bytes_of(e.type) // (bits_of(element_of(e.type)) // 8)
    return any(n % lanes for n in (form.constant, *form.terms.values()))


def crossing(position: Expr, type: str) -> float:
    """The part of such loads that cross a cache line; rows begin anywhere."""
    size, step = bytes_of(type), bits_of(element_of(type)) // 8
    if size <= 8:
        return 0.0
    form = affine(position, {})
    whole = form.constant * step % size == 0 and all(f * step % LINE == 0 for f in form.terms.values())
    return 0.0 if whole else min(1.0, (size - step) / LINE)
