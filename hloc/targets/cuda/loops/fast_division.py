"""Divisions whose results are rounded to bf16 use the device's fast f32 division.

In: a loop Kernel. Out: the same, with convert(divide(a, b)) as convert(quotient(a, b)). The fast division has an error
of at most two units in the last place of f32, and takes a third of the instructions. The quotient of two bf16 numbers
is never so close to the midpoint of two bf16 numbers that this error changes the rounding. For f16 it may be.
"""
from __future__ import annotations

from hloc.kernels.ir import Apply, Expr, Kernel
from hloc.kernels.walks import with_all_parts


def with_fast_division(kernel: Kernel) -> Kernel:
    return kernel._replace(body=with_all_parts(kernel.body, _changed))


def _changed(expr: Expr) -> Expr:
    if isinstance(expr, Apply) and expr.op == "convert" and expr.type == "bf16":
        (inner,) = expr.arguments
        if isinstance(inner, Apply) and inner.op == "divide" and inner.type == "f32":
            return expr._replace(arguments=(inner._replace(op="quotient"),))
    return expr
