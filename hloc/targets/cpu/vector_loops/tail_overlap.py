"""Overlaps the last two vectors of short rows that are not a multiple of a vector.

The last vector ends at the end of the row.

In: a Kernel. Out: the same with such VECTOR loops, if their elements are expensive, without the compiler's scalar tail
loop, which takes as long as many vectors.

    for i < 62 (VECTOR): out[i] = f(x[i])      for k < 16 (VECTOR): last[k] = f(x[46 + k])
                                          ->   for i < 48 (VECTOR): out[i] = f(x[i])
                                               for k < 16 (VECTOR): out[46 + k] = last[k]

A remainder of half a vector is computed as one: a later read of the row in the same pieces is then forwarded from the
last store, and CPUs stall if a load spans two stores (a loop over 24 integers: 0.8 of the time). Otherwise the last
vector is computed first: `out` may be the memory of `x`, whose elements are read before they are overwritten.
Loops that reduce, or convert f16, have schedules (loop_schedules.py).
"""
from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from hloc.kernels import ir
from hloc.kernels.indexing import index_apply
from hloc.kernels.scalars import is_narrow
from hloc.kernels.walks import expressions, parts, with_vector_loops
from hloc.machine import Machine
from hloc.targets.cpu.vector_loops.loop_schedules import has_schedule
from hloc.targets.cpu.vector_loops.vector_width import is_heavy

LANES, HALF = 16, 8
LONGEST = 64 * LANES            # for longer rows the remainder is a small part
LEAST_REST = 3                  # elements after the last whole vector
LEAST_WORK = 12                 # operations per element
FUNCTION, ROUNDING = 12, 6      # operations of a function, and to round to a narrow type


def tail_overlap(kernel: ir.Kernel, machine: Machine) -> ir.Kernel:
    """The kernel with rows of whole vectors."""
    numbers = count()            # of arrays, as adjacent loops may have counters with the same name
    return kernel._replace(body=with_vector_loops(kernel.body, lambda loop: (
        _whole(loop, numbers) if _is_worth(loop) and not has_schedule(loop, machine) else (loop,))))


def _is_worth(loop: ir.For) -> bool:
    """Whether this is a short row with a remainder, of independent, expensive elements."""
    if not isinstance(loop.extent, int) or not LANES < loop.extent <= LONGEST or loop.extent % LANES < LEAST_REST:
        return False
    straight = all(isinstance(s, (ir.Let, ir.Store)) for s in loop.body)
    return straight and not _reads_own_stores(loop) and _work(loop) >= LEAST_WORK


def _reads_own_stores(loop: ir.For) -> bool:
    """Whether a statement loads from an array that one before it stores to: the last vector would load too early."""
    stored: set[str] = set()
    for s in loop.body:
        if any(isinstance(e, ir.Load) and e.buffer in stored for e in parts(expressions(s))):
            return True
        stored |= {s.buffer} if isinstance(s, ir.Store) else set()
    return False


def _work(loop: ir.For) -> int:
    done = [e for s in _needed(loop.body) for e in parts(expressions(s))
            if isinstance(e, ir.Apply) and e.type != ir.INDEX]
    narrow = sum(ROUNDING for e in done if e.op == "convert" and is_narrow(e.type))
    return narrow + sum(FUNCTION if is_heavy(e) else 1 for e in done if e.op != "convert")


def _whole(loop: ir.For, numbers: Iterator[int]) -> tuple[ir.Stmt, ...]:
    """The loops that replace it."""
    extent = loop.trip_count
    whole = extent // LANES * LANES
    lane = ir.Var(f"{loop.name}_lane", ir.INDEX)
    if extent - whole == HALF:
        here = ir.Let(loop.name, index_apply("add", lane, ir.Const(whole, ir.INDEX)))
        return loop._replace(extent=whole), ir.For(lane.name, HALF, ir.VECTOR, (here, *loop.body))
    here = ir.Let(loop.name, index_apply("add", lane, ir.Const(extent - LANES, ir.INDEX)))
    arrays = {s: ir.Local(f"{loop.name}_last{next(numbers)}", s.value.type, LANES) for s in loop.body
              if isinstance(s, ir.Store)}
    first = (ir.Store(arrays[s].name, lane, s.value) if s in arrays else s for s in loop.body)
    stores = tuple(s._replace(value=ir.Load(arrays[s].name, lane, s.value.type)) if s in arrays else s
                   for s in loop.body)
    return (*arrays.values(), ir.For(lane.name, LANES, ir.VECTOR, (here, *first)), loop._replace(extent=whole),
            ir.For(lane.name, LANES, ir.VECTOR, (here, *_needed(stores))))


def _needed(statements: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
    """All but unused names: their uses were moved into other loops, or into the last vector."""
    names: set[str] = set()
    kept: list[ir.Stmt] = []
    for s in reversed(statements):
        if not isinstance(s, ir.Let) or s.name in names:
            names.update(e.name for e in parts(expressions(s)) if isinstance(e, ir.Var))
            kept.append(s)
    return tuple(reversed(kept))
