"""Branches for small angles in sines and cosines outside of loops, as in the steps of an ODE solver.

Most angles are small, and range reduction of huge ones makes the chain of dependent operations twice as long.

In: a Kernel. Out: the kernel with `sin_near`, `cos_near` (targets/c/float32.h) in statements outside of its loops. In
VECTOR loops both sides of a branch would be computed.
"""
from __future__ import annotations

from hloc.kernels.ir import Apply, Expr, Kernel
from hloc.kernels.walks import with_expressions, with_parts
from hloc.machine import Machine

NEAR = {"sin": "sin_near", "cos": "cos_near"}


def near_angles(kernel: Kernel, machine: Machine) -> Kernel:
    """The kernel with the near variants for f32 angles outside of loops."""
    return kernel._replace(body=tuple(with_expressions(s, _near) for s in kernel.body))


def _near(expr: Expr) -> Expr:
    expr = with_parts(expr, _near)
    if isinstance(expr, Apply) and expr.type == "f32" and expr.op in NEAR:
        return expr._replace(op=NEAR[expr.op])
    return expr
