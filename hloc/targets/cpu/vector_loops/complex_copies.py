"""Moves complex64 that a kernel only copies as f64 of the same bits.

Compilers move f64 as vectors, but pairs of floats as structs, one at a time.

In: a Kernel. Out: the same, with f64 for c64 in buffers, local arrays and values, if these are only loaded, selected
and stored.
"""
from __future__ import annotations

import struct

from hloc.kernels.ir import Apply, Const, Expr, For, If, Kernel, Load, Local, Stmt, Var, While
from hloc.kernels.walks import expressions, parts, walk, with_all_expressions, with_parts
from hloc.machine import Machine

PAIR, WHOLE = "c64", "f64"


def complex_copies(kernel: Kernel, machine: Machine) -> Kernel:
    """The kernel that moves complex64 as f64."""
    if all(b.type != PAIR for b in kernel.buffers) \
            or not all(_is_moved(e) for s in walk(kernel.body) for e in parts(expressions(s))):
        return kernel
    buffers = tuple(b._replace(type=WHOLE) if b.type == PAIR else b for b in kernel.buffers)
    return kernel._replace(buffers=buffers, body=_with_arrays(with_all_expressions(kernel.body, _whole)))


def _is_moved(expr: Expr) -> bool:
    """Whether an expression has the same meaning for f64: its only operations are selects."""
    return not isinstance(expr, Apply) or expr.op == "select" \
        or PAIR not in (expr.type, *(a.type for a in expr.arguments))


def _whole(expr: Expr) -> Expr:
    if isinstance(expr, Const):
        return Const(_bits(expr.value), WHOLE) if expr.type == PAIR else expr
    changed = with_parts(expr, _whole)
    return changed._replace(type=WHOLE) if isinstance(changed, (Var, Load, Apply)) and changed.type == PAIR else changed


def _bits(value: complex) -> float:
    """The f64 with the bits of the number. Python's NaN, 0x7fc00000, makes no NaN as the upper half of an f64."""
    return struct.unpack("<d", struct.pack("<ff", value.real, value.imag))[0]


def _with_arrays(statements: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """The statements with local arrays of f64 for those of c64, in nested bodies too."""
    def one(s: Stmt) -> Stmt:
        if isinstance(s, Local):
            return s._replace(type=WHOLE) if s.type == PAIR else s
        if isinstance(s, If):
            return s._replace(then=_with_arrays(s.then), otherwise=_with_arrays(s.otherwise))
        return s._replace(body=_with_arrays(s.body)) if isinstance(s, (For, While)) else s
    return tuple(map(one, statements))
