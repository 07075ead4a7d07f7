"""Converts single numbers between f16 and f32 by the CPU's instructions.

Compilers do not select these; in VECTOR loops, which are left to them, they vectorize conversions by integers.

In: a Kernel. Out: the kernel with `widen` and `narrow` for conversions outside of VECTOR loops, printed as
hloc_widen_f16 and hloc_narrow_f32 of runtime/half_rows.h.

    out[0] = f16(f32(x[0]) * 2)   ->   out[0] = narrow(widen(x[0]) * 2)
"""
from __future__ import annotations

from hloc.kernels.ir import VECTOR, Apply, Expr, For, Kernel
from hloc.kernels.walks import with_all_parts
from hloc.machine import Machine

SINGLE = {("f16", "f32"): "widen", ("f32", "f16"): "narrow"}


def scalar_conversions(kernel: Kernel, machine: Machine) -> Kernel:
    """The kernel with such conversions."""
    return kernel._replace(body=with_all_parts(
        kernel.body, _by_instruction, lambda s: s if isinstance(s, For) and s.kind == VECTOR else None))


def _by_instruction(expr: Expr) -> Expr:
    if not isinstance(expr, Apply) or expr.op != "convert":
        return expr
    return expr._replace(op=SINGLE.get((expr.arguments[0].type, expr.type), expr.op))
