"""Selects the kernels that are compiled for the CPU's widest vectors.

In: a Kernel, or the statements of an epilogue. Out: whether the C function is marked HLOC_WIDE (targets/c/base.h).
Compilers prefer 256-bit vectors even if there are 512-bit ones, as short and memory-bound loops gain nothing from
these. Loops over exp, tanh or bf16, which take dozens of instructions per element, run a fifth to a half faster: there
are half as many instructions. The rows of an epilogue are short, but of whole vectors. Loops that read 32-bit elements
at data-dependent positions are scalar or wide: a gather of 16 takes little longer than one of 8.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import INDEX, VECTOR, Apply, Assign, Expr, For, If, Kernel, Let, Load, Stmt, Store, Var
from hloc.kernels.scalars import is_narrow
from hloc.kernels.schedule.nest import most_iterations
from hloc.kernels.walks import expressions, parts, walk
from hloc.machine import Machine
from hloc.targets.functions import is_function

SHORTEST = 64                                   # iterations of a loop: four vectors, or two whole ones
LANES = 16
MANY = 64                                       # operations per element: as many as a function's


def vector_width(kernel: Kernel, machine: Machine) -> Kernel:
    """The kernel, marked if it is compiled for the widest vectors."""
    return kernel._replace(wide=is_wide(kernel))


def is_wide(kernel: Kernel) -> bool:
    """Whether every VECTOR loop is long, and one of them is compute-heavy. Loops that run once for many iterations of
    others, as those over the rows of a block, may be short; so may loops that only move elements."""
    named = {s.name: s.value for s in walk(kernel.body) if isinstance(s, Let)}
    nested = list(_vector_loops(kernel.body))
    deepest = max((depth for depth, _ in nested), default=0)
    loops = [s for depth, s in nested if depth == deepest]
    if all(_moves(s.body) for s in loops):
        loops = [s for _, s in nested if not _moves(s.body)]
    heavy = any(computes_much(s.body) or _gathers(s.body, kernel) for s in loops)
    return heavy and all(_is_long(most_iterations(s.extent, named)) for s in loops)


def _moves(statements: Iterable[Stmt]) -> bool:
    """Whether only positions are computed."""
    return not any(isinstance(e, Apply) and e.type != INDEX for s in statements for e in parts(expressions(s)))


def _vector_loops(body: Iterable[Stmt], depth: int = 0) -> Iterator[tuple[int, For]]:
    """The VECTOR loops of a kernel, with the number of loops around each."""
    for s in body:
        if isinstance(s, For) and s.kind == VECTOR:
            yield depth, s
        elif isinstance(s, If):
            yield from _vector_loops(s.then + s.otherwise, depth)
        else:
            yield from _vector_loops(getattr(s, "body", ()), depth + 1)


def _gathers(statements: Iterable[Stmt], kernel: Kernel) -> bool:
    """Whether a loop reads elements at positions that it computes from data, all of 32 bits."""
    statements = list(walk(statements))
    found = {s.name for s in statements if isinstance(s, Let) and any(_is_place(e) for e in parts([s.value]))}
    bits = {b.name: ELEMENT_TYPES[b.type].bits for b in kernel.buffers}
    read = {bits.get(e.buffer) for e in parts(s.value for s in statements if isinstance(s, (Let, Assign, Store)))
            if isinstance(e, Load) and any(isinstance(p, Var) and p.name in found for p in parts([e.position]))}
    return read == {32}


def _is_place(expr: Expr) -> bool:
    """Whether this is an INDEX that is computed from values."""
    return isinstance(expr, Apply) and expr.op == "convert" and expr.type == INDEX and expr.arguments[0].type != INDEX


def _is_long(extent: int) -> bool:
    return extent >= SHORTEST or (extent >= 2 * LANES and extent % LANES == 0)


def computes_much(statements: Iterable[Stmt]) -> bool:
    """Whether a loop takes many instructions per element."""
    values = [s.value for s in walk(statements) if isinstance(s, (Let, Assign, Store))]
    done = [e for e in parts(values) if isinstance(e, Apply) and e.type != INDEX]
    return len(done) >= MANY or any(is_heavy(e) for e in done)


def is_heavy(expr: Apply) -> bool:
    """Whether this is a function of many instructions, or such a conversion: of narrow floats, or from floats to
    integers."""
    if expr.op != "convert" or INDEX in (expr.type, expr.arguments[0].type):
        return is_function(expr)
    to, source = (ELEMENT_TYPES[t].kind for t in (expr.type, expr.arguments[0].type))
    return is_narrow(expr.type) or is_narrow(expr.arguments[0].type) or (source == "float" and to != "float")
