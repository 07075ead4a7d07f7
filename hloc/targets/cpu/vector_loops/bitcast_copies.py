"""Moves numbers that a kernel only copies as floats of the same bits.

Compilers move complex64 as structs, one at a time, but f64 as vectors. They build a vector of floats by insertions, but
one of integers by shifts in scalar registers, which takes about twice as long.

In: a Kernel. Out: the same, with these types in buffers, local arrays and values, if these are only loaded, selected
and stored.

    out[i] = in[5 * i]   ->   the same, with in and out of f32 for s32
"""
from __future__ import annotations

import struct

from hloc.kernels.ir import Apply, Const, Expr, Kernel, Local, Stmt
from hloc.kernels.walks import expressions, parts, walk, with_all_parts
from hloc.machine import Machine

FLOATS = {"c64": "f64", "s64": "f64", "u64": "f64", "s32": "f32", "u32": "f32"}


def bitcast_copies(kernel: Kernel, machine: Machine) -> Kernel:
    """The kernel that moves these types as floats."""
    computed = {t for s in walk(kernel.body) for e in parts(expressions(s)) for t in _computed(e)}
    moved = {t: FLOATS[t] for t in {b.type for b in kernel.buffers} & FLOATS.keys() - computed}
    if not moved:
        return kernel

    def change(expr: Expr) -> Expr:
        if isinstance(expr, Const):
            return Const(_bits(expr.value), moved[expr.type]) if expr.type in moved else expr
        return expr._replace(type=moved[expr.type]) if expr.type in moved else expr

    def leaf(s: Stmt) -> Stmt | None:
        return s._replace(type=moved.get(s.type, s.type)) if isinstance(s, Local) else None
    buffers = tuple(b._replace(type=moved.get(b.type, b.type)) for b in kernel.buffers)
    return kernel._replace(buffers=buffers, body=with_all_parts(kernel.body, change, leaf))


def _computed(expr: Expr) -> set[str]:
    """The types with which an expression does other than select, and those of constants without a float."""
    if isinstance(expr, Const):
        return {expr.type} if expr.type != "c64" and expr.value else set()
    return {expr.type, *(a.type for a in expr.arguments)} if isinstance(expr, Apply) and expr.op != "select" else set()


def _bits(value: complex) -> float:
    """The f64 with the bits of a complex64, zero for zero. Python's NaN, 0x7fc00000, makes no NaN as the upper half of
    an f64."""
    return struct.unpack("<d", struct.pack("<ff", value.real, value.imag))[0]
