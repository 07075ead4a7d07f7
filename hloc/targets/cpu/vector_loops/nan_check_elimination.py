"""Omits the NaN check of roundings to bf16 that do not need it.

A layer norm, which rounds after each step, takes a fifth less time.

In: a Kernel. Out: the kernel with conversions from f32 to bf16 marked (`convert_held`, printed as hloc_f32_to_bf16_held
and hloc_round_bf16_f32_held of targets/c/narrow.h) if every NaN they may get is representable in bf16.

Rounding adds to the bits of a number. This could turn a NaN whose low 16 bits are not zero into an infinity or a zero,
so a select preserves NaNs. A NaN that is widened from bf16 or made by the CPU (0xffc00000) has no such bits, and
operations propagate the bits of an operand's NaN. For f32 in memory, and for wider types, nothing is known.

    r = f32(bf16(f32(x[i]) - m))   ->   hloc_round_bf16_f32_held(hloc_bf16_to_f32(x[i]) - m)
"""
from __future__ import annotations

from typing import TypeGuard

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import Apply, Assign, Expr, Kernel, Let, Load, Local, Mutable, Store, Var
from hloc.kernels.walks import expressions, parts, walk, with_all_parts
from hloc.machine import Machine
from hloc.ops.table import SCALARS

KEEPS_NANS = frozenset(name for name, row in SCALARS.items() if row.keeps_nans)       # tests try all NaNs of bf16


def nan_check_elimination(kernel: Kernel, machine: Machine) -> Kernel:
    """The kernel with roundings to bf16 that have no NaN check, if all NaNs are representable in bf16."""
    if not any(_is_rounding(e) for s in walk(kernel.body) for e in parts(expressions(s))):
        return kernel
    free = _free_names(kernel)

    def change(expr: Expr) -> Expr:
        return expr._replace(op="convert_held") if _is_rounding(expr) and _held(expr.arguments[0], free) else expr
    return kernel._replace(body=with_all_parts(kernel.body, change))


def _is_rounding(expr: Expr) -> TypeGuard[Apply]:
    return isinstance(expr, Apply) and expr.op == "convert" and expr.type == "bf16" and expr.arguments[0].type == "f32"


def _free_names(kernel: Kernel) -> frozenset[str]:
    """Names and arrays with arbitrary NaNs: buffers of f32, and values computed from them."""
    statements = list(walk(kernel.body))
    given = [(s.name, s.initial if isinstance(s, Mutable) else s.value) for s in statements
             if isinstance(s, (Let, Mutable, Assign))]
    given += [(s.buffer, s.value) for s in statements if isinstance(s, Store)]
    local = {s.name for s in statements if isinstance(s, Local)}
    free = {e.buffer for s in statements for e in parts(expressions(s)) if isinstance(e, Load)} - local
    while True:
        more = {name for name, value in given if name not in free and not _held(value, free)}
        if not more:
            return frozenset(free)
        free |= more


def _held(expr: Expr, free: frozenset[str] | set[str]) -> bool:
    """Whether a NaN of this expression has zeros in the bits that bf16 lacks."""
    if isinstance(expr, Var):
        return expr.name not in free
    if isinstance(expr, Load):
        return expr.type != "f32" or expr.buffer not in free
    if not isinstance(expr, Apply) or _is_held_type(expr.type):
        return True
    if expr.op in ("convert", "convert_held"):
        return _is_held_type(expr.arguments[0].type)
    if expr.op == "select":
        return all(_held(a, free) for a in expr.arguments[1:])
    return expr.op in KEEPS_NANS and all(_held(a, free) for a in expr.arguments)


def _is_held_type(type: str) -> bool:
    """Whether each NaN of a type, widened, is representable in bf16: types with short significands, and integers."""
    kind = ELEMENT_TYPES[type].kind if type in ELEMENT_TYPES else ""
    return kind != "complex" and (kind != "float" or ELEMENT_TYPES[type].bits <= 8 or type == "bf16")
