"""Reduces any and all over a row in explicit 32-bit lanes.

In: a Kernel. Out: the same with such VECTOR loops in blocks of one vector, if no element is narrower than 32 bits. gcc
keeps preds in bytes, which it combines one by one at the end of the loop: 34 cycles for 24 numbers, 8 with lanes. Rows
of narrow elements, whose preds are bytes anyway, stay unchanged.

    for i < 24 (VECTOR): v |= x[i] > 1    ->    for k < 16 (VECTOR): any[k] = x[k] > 1
                                                for k < 8 (VECTOR): any[k] |= x[k + 16] > 1
                                                for k < 8, then 4 (VECTOR): any[k] |= any[k + 8], then 4
                                                v |= (any[0] | any[1] | any[2] | any[3]) != 0
"""
from __future__ import annotations

from collections.abc import Iterator
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
from hloc.kernels.walks import expressions, operation, parts, taken_in, term_taken_in, with_vector_loops
from hloc.machine import Machine
from hloc.targets.cpu.vector_loops.reduction_tree import folded

LANES = 16
NARROWEST = 32                  # bits of an element


def pred_reduction_lanes(kernel: Kernel, machine: Machine) -> Kernel:
    """The kernel with explicit lanes for preds that VECTOR loops reduce."""
    numbers = count()            # of arrays, as adjacent loops may have counters with the same name
    return kernel._replace(body=with_vector_loops(
        kernel.body, lambda loop: _with_lanes(loop, numbers) if _is_worth(loop) else (loop,)))


def _is_worth(loop: For) -> bool:
    """Whether there is at least a vector of wide elements, and the loop reduces only preds."""
    joined = [s for s in loop.body if isinstance(s, Assign)]
    if not joined or not isinstance(loop.extent, int) or loop.extent < LANES:
        return False
    if not all(isinstance(s, (Let, Store, Assign)) for s in loop.body) or not all(map(_joins_preds, joined)):
        return False
    names = {s.name for s in joined}
    others = [e for s in loop.body for e in parts([term_taken_in(s)] if isinstance(s, Assign) else expressions(s))]
    return (not any(isinstance(e, Var) and e.name in names for e in others)
            and not any(isinstance(e, Load) and ELEMENT_TYPES[e.type].bits < NARROWEST for e in others))


def _joins_preds(s: Assign) -> bool:
    return s.value.type == "pred" and taken_in(s) is not None and operation(s.value).op in ("or", "and")


def _with_lanes(loop: For, numbers: Iterator[int]) -> tuple[Stmt, ...]:
    """The loops that replace it."""
    joined = [s for s in loop.body if isinstance(s, Assign)]
    arrays = {s.name: Local(f"{loop.name}_any{next(numbers)}", "s32", LANES) for s in joined}
    lane, block = Var(f"{loop.name}_lane", INDEX), Var(f"{loop.name}_block", INDEX)
    whole = loop.trip_count // LANES * LANES

    def piece(extent: int, start: Expr, *, first: bool = False) -> For:
        here = Let(loop.name, index_apply("add", start, lane))
        return For(lane.name, extent, VECTOR, (here, *(_joined(s, arrays, lane, first=first) for s in loop.body)))
    loops = [piece(LANES, Const(0, INDEX), first=True)]
    if whole > LANES:
        start = index_apply("multiply", index_apply("add", block, Const(1, INDEX)), Const(LANES, INDEX))
        loops.append(For(block.name, whole // LANES - 1, SERIAL, (piece(LANES, start),)))
    if loop.trip_count > whole:
        loops.append(piece(loop.trip_count - whole, Const(whole, INDEX)))
    ends = (end for s in joined for end in _end(s, arrays[s.name].name, lane))
    return (*arrays.values(), *loops, *ends)


def _joined(s: Stmt, arrays: dict[str, Local], lane: Var, *, first: bool) -> Stmt:
    """A statement of the loop; the term of an accumulator goes into its lane."""
    if not isinstance(s, Assign):
        return s
    name = arrays[s.name].name
    value = Apply("select", (term_taken_in(s), Const(1, "s32"), Const(0, "s32")), "s32")
    op = operation(s.value).op
    return Store(name, lane, value if first else Apply(op, (Load(name, lane, "s32"), value), "s32"))


def _end(s: Assign, name: str, lane: Var) -> tuple[Stmt, ...]:
    """Combine the lanes of an accumulator with it."""
    op = operation(s.value).op
    folds, last = folded(Load(name, lane, "s32"), LANES, op, 4)
    found = Apply("compare_ne", (last, Const(0, "s32")), "pred")
    return *folds, Assign(s.name, Apply(op, (Var(s.name, "pred"), found), "pred"))
