"""Converts variables of one iteration of a VECTOR loop to SSA form.

Unrolled code, such as a sum over three channels, updates a variable step by step, and the other passes on VECTOR loops
handle only names.

In: a Kernel. Out: the kernel whose VECTOR loops have no Mutable of their own, if their bodies are straight-line code.
Narrow elements that it only moved stay as they are stored (kernels/conversion_elimination.py).

    float v = 0;  v = v + a[i];  v = v + b[i];  out[i] = v      v1 = 0 + a[i];  v2 = v1 + b[i];  out[i] = v2
"""
from __future__ import annotations

from hloc.kernels.conversion_elimination import without_conversions
from hloc.kernels.ir import Assign, Const, Expr, Kernel, Let, Load, Mutable, Stmt, Store, Var
from hloc.kernels.walks import with_expressions, with_values, with_vector_loops
from hloc.machine import Machine


def ssa_conversion(kernel: Kernel, machine: Machine) -> Kernel:
    """The kernel with a name for each value of such variables."""
    return kernel._replace(body=with_vector_loops(
        kernel.body, lambda loop: (loop._replace(body=_straight(loop.body)),)))


def _straight(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    own = {s.name for s in body if isinstance(s, Mutable)}
    if not own or not all(isinstance(s, (Let, Mutable, Assign, Store)) for s in body):
        return body
    now: dict[Var | Load, Expr] = {}
    steps: list[Stmt] = []
    for s in body:
        if not isinstance(s, (Mutable, Assign)) or s.name not in own:
            steps.append(with_expressions(s, lambda e: with_values(e, now)))
            continue
        value = with_values(s.initial if isinstance(s, Mutable) else s.value, now)
        if isinstance(value, (Const, Var)):
            now[Var(s.name, value.type)] = value
            continue
        name = f"{s.name}_{len(steps)}"
        steps.append(Let(name, value))
        now[Var(s.name, value.type)] = Var(name, value.type)
    return without_conversions(tuple(steps))
