"""Combines the lanes of float sums over short rows as a tree.

Compilers, which may not reorder additions, combine them one after the other: sixteen take 64 cycles, as a tree 16.

In: a Kernel. Out: the same with VECTOR loops that sum (or multiply) a few vectors in explicit lanes.

    for i < 32 (VECTOR): v += f(x[i])     ->    for k < 16 (VECTOR): s[k] = 0
                                                for g < 2: for k < 16 (VECTOR): s[k] += f(x[16 g + k])
                                                for k < 8, then 4, 2 (VECTOR): s[k] += s[k + 8], then 4, 2
                                                v += s[0] + s[1]

Sums of rows of 8 to 100 numbers take 0.3 to 0.9 of the time (on a Zen 4).
"""
from __future__ import annotations

from functools import reduce
from itertools import count

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.indexing import index_apply
from hloc.kernels.ir import (
    INDEX,
    SERIAL,
    VECTOR,
    Apply,
    Assign,
    Const,
    Expr,
    For,
    Kernel,
    Let,
    Load,
    Local,
    Stmt,
    Store,
    Var,
)
from hloc.kernels.walks import assigned, expressions, operation, parts, taken_in, term_taken_in, with_vector_loops
from hloc.machine import Machine
from hloc.targets.functions import is_function

NEUTRAL = {"add": 0, "multiply": 1}
FLOATS = ("f32", "f64")
FEWEST_BYTES, MOST_LANES = 32, 64
HALF = 32                       # bytes of the vectors that compilers prefer
LONGEST = 512                   # elements of a row: for longer rows the combination is a small part of the time
MOST_SUMS = 4                   # of one loop


def reduction_tree(kernel: Kernel, machine: Machine) -> Kernel:
    """The kernel with explicit lanes for sums over short rows."""
    return kernel._replace(body=with_vector_loops(kernel.body, _Rows(machine.vector_bytes, kernel.wide).in_lanes))


class _Rows:
    """One kernel. numbers: of arrays, as adjacent loops may have counters with the same name."""

    def __init__(self, vector_bytes: int, wide: bool) -> None:
        self.vector_bytes = vector_bytes
        self.preferred_bytes = vector_bytes if wide else min(vector_bytes, HALF)
        self.numbers = count()

    def in_lanes(self, loop: For) -> tuple[Stmt, ...]:
        sums = float_sums(loop) if isinstance(loop.extent, int) and loop.extent <= LONGEST else []
        lanes = self.lanes(loop, sums) if 0 < len(sums) <= MOST_SUMS else 0
        if not lanes:
            return (loop,)
        loops = by_lanes(loop, sums, lanes, f"_short{next(self.numbers)}")
        rest = loops[-1]
        return (*loops[:-1], *self.in_lanes(rest)) if loop.trip_count % lanes and isinstance(rest, For) else loops

    def lanes(self, loop: For, sums: list[Assign]) -> int:
        """The number of lanes. With functions: those of a vector, or of a shorter row; else up to twice the compiler's
        number, dividing the row. 0: there is none."""
        read = [e for s in loop.body for e in parts(expressions(s))]
        size = max(ELEMENT_TYPES[s.value.type].bytes for s in sums)
        held = [ELEMENT_TYPES[e.type].bytes for e in read if isinstance(e, Load)]
        held += [ELEMENT_TYPES[s.value.type].bytes for s in loop.body if isinstance(s, Store)]
        smallest = min([size, *held])
        if any(isinstance(e, Apply) and is_function(e) for e in read):
            lanes = min(self.vector_bytes // smallest, 1 << loop.trip_count.bit_length() - 1)
            return lanes if lanes <= MOST_LANES and lanes * size >= FEWEST_BYTES else 0
        lanes = min(2 * self.preferred_bytes // smallest, MOST_LANES)
        while loop.trip_count % lanes and lanes * size > FEWEST_BYTES:
            lanes //= 2
        return lanes if loop.trip_count % lanes == 0 else 0


def term_of(s: Assign) -> Expr | None:
    """The term of a sum or product; None for other accumulators."""
    term = taken_in(s)
    return term if term is not None and operation(s.value).op in NEUTRAL else None


def loads_without_sums(loop: For) -> list[Expr]:
    """The expressions of a loop's statements; of its accumulators, only the terms."""
    found = [term_of(s) if isinstance(s, Assign) else e for s in loop.body for e in expressions(s)]
    return [e for e in found if e is not None]


def float_sums(loop: For) -> list[Assign]:
    """The float sums and products of a loop; none if it has other reductions, is not straight-line code, or reads
    them."""
    sums = [s for s in loop.body if isinstance(s, Assign)]
    if any(term_of(s) is None or s.value.type not in FLOATS for s in sums) or len({s.name for s in sums}) < len(sums) \
            or not all(isinstance(s, (Let, Store, Assign)) for s in loop.body):
        return []
    changing = assigned(loop.body)
    return [] if any(isinstance(e, Var) and e.name in changing for e in parts(loads_without_sums(loop))) else sums


def by_lanes(loop: For, sums: list[Assign], lanes: int, tag: str) -> tuple[Stmt, ...]:
    """The loops that replace one whose extent is at least `lanes`. tag: for new names."""
    lane, group = (Var(f"{loop.name}_{name}{tag}", INDEX) for name in ("lane", "group"))
    own = {s.name: Load(f"{loop.name}_sums{tag}_{n}", lane, s.value.type) for n, s in enumerate(sums)}
    whole, rest = divmod(loop.trip_count, lanes)

    def along(*statements: Stmt, extent: int = lanes) -> For:
        return For(lane.name, extent, VECTOR, statements)

    def moved(first: Expr) -> Let:
        return Let(loop.name, index_apply("add", first, lane))

    def by_lane(s: Stmt) -> Stmt:
        if not isinstance(s, Assign):
            return s
        load, term = own[s.name], term_taken_in(s)
        added = Apply(operation(s.value).op, (load, term), s.value.type)
        return Store(load.buffer, lane, added if whole > 1 else term)
    result: list[Stmt] = [Local(load.buffer, load.type, lanes) for load in own.values()]
    if whole > 1:
        first = index_apply("multiply", group, Const(lanes, INDEX))
        result.append(along(*(Store(own[s.name].buffer, lane, Const(NEUTRAL[operation(s.value).op], s.value.type))
                              for s in sums)))
        result.append(For(group.name, whole, SERIAL, (along(moved(first), *map(by_lane, loop.body)),)))
    else:
        result.append(along(Let(loop.name, lane), *map(by_lane, loop.body)))
    for s in sums:
        result += joined(own[s.name], lanes, s)
    if rest:
        result.append(along(moved(Const(whole * lanes, INDEX)), *loop.body, extent=rest))
    return tuple(result)


def joined(array: Load, lanes: int, total: Assign) -> tuple[Stmt, ...]:
    """Combine the lanes of an array, given as its load at a lane, with an accumulator."""
    op = operation(total.value).op
    loops, value = folded(array, lanes, op, 2)
    return (*loops, Assign(total.name, Apply(op, (Var(total.name, array.type), value), array.type)))


def folded(array: Load, lanes: int, op: str, least: int) -> tuple[list[For], Expr]:
    """The loops that combine halves until `least` lanes are left, and the combination of these."""
    lane = array.position
    assert isinstance(lane, Var)

    def at(place: Expr) -> Expr:
        return array._replace(position=place)

    def joined(a: Expr, b: Expr) -> Expr:
        return Apply(op, (a, b), array.type)

    def fold(width: int) -> For:
        other = at(index_apply("add", array.position, Const(width, INDEX)))
        return For(lane.name, width, VECTOR,
                   (Store(array.buffer, array.position, Apply(op, (array, other), array.type)),))
    widths = [lanes >> n for n in range(1, lanes.bit_length())]
    last = (at(Const(k, INDEX)) for k in range(least))
    return [fold(n) for n in widths if n >= least], reduce(joined, last)
