"""Loops that one piece of a kernel's work may spend seconds in look whether the run has been told to stop.

In: a Kernel. Out: the same; a loop that runs long within one iteration of the PARALLEL loop looks once in a while.

    for (long i = 0; i < 4000000000; i++) s += x;      =>      for each block of them: if (HLOC_STOPS()) return; ...

Most kernels stay as they are: pieces of the PARALLEL loop take 20 ms at most (program/grain.py), and between two of
them the pool looks. A stopped kernel returns in the middle, and its results are not used.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from hloc.kernels.indexing import index_apply
from hloc.kernels.ir import INDEX, PARALLEL, SERIAL, Apply, Const, For, If, Kernel, Let, Stmt, Var, While
from hloc.kernels.walks import with_bodies

LONG = 10_000_000               # statements, of a nanosecond or a few each: then it is time to look
OFTEN = 1_000                   # what makes it worth looking each time: to look is a load and a branch
UNKNOWN_TRIPS = 1_000


class InterruptCheck(NamedTuple):
    """Leave the kernel where its run has been told to stop."""


CHECK: Any = InterruptCheck()      # no statement of the loop IR: loops hold it from here to the printer only


def with_interrupt_checks(kernel: Kernel) -> Kernel:
    """The kernel, in which no more than LONG statements run without a look."""
    return kernel._replace(body=with_checks(kernel.body))


def with_checks(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """Statements in whose loops, and theirs, is a look where they run long."""
    return tuple(_with_checks(s) if work((s,)) > LONG else s for s in body)


def _with_checks(s: Any) -> Stmt:
    """A loop, or an If, which holds one: others are one statement."""
    if isinstance(s, If) or (once := work(s.body)) > LONG:
        return with_bodies(s, with_checks)
    if isinstance(s, For) and s.kind == PARALLEL:
        return s
    if once >= OFTEN or isinstance(s, While):
        return s._replace(body=(CHECK, *s.body))
    return in_blocks(s, LONG // once)


def in_blocks(s: For, block: int) -> For:
    """The loop, a look before each `block` iterations."""
    start, inside = Var(f"{s.name}_block", INDEX), Var(f"{s.name}_in", INDEX)
    extent = Const(s.extent, INDEX) if isinstance(s.extent, int) else s.extent
    blocks = index_apply("divide", index_apply("add", extent, Const(block - 1, INDEX)), Const(block, INDEX))
    first = index_apply("multiply", start, Const(block, INDEX))
    left = index_apply("subtract", extent, first)
    loop = For(inside.name, Apply("minimum", (left, Const(block, INDEX)), INDEX), s.kind,
               (Let(s.name, index_apply("add", first, inside)), *s.body))
    count = math.ceil(s.extent / block) if isinstance(s.extent, int) else blocks
    return For(start.name, count, SERIAL, (CHECK, loop))


def work(body: Sequence[Stmt]) -> int:
    """Statements that run, roughly."""
    total = 0
    for s in body:
        if isinstance(s, If):
            total += max(work(s.then), work(s.otherwise))
        elif isinstance(s, For):
            total += (s.extent if isinstance(s.extent, int) else UNKNOWN_TRIPS) * work(s.body)
        elif isinstance(s, While):
            total += UNKNOWN_TRIPS * work(s.body)
        total += 1
    return total
