"""Integers that lie apart are read as floats of their bits: gcc makes a vector of such floats by insertions, and of
integers by shifts in scalar registers, which takes two to four times as long.

In: a Kernel. Out: the kernel whose VECTOR loops have `bits_read` around loads of 32 and 64-bit integers, but for those
that lie side by side or are the same for all lanes.

    out[i] = in[i * 5]   ->   out[i] = (int)hloc_bits_f32(((const hloc_any_f32 *)in)[i * 5])
"""
from __future__ import annotations

from collections.abc import Mapping

from hloc.kernels.ir import INDEX, Apply, Const, Expr, For, If, Kernel, Let, Load, Stmt, Var
from hloc.kernels.walks import with_expressions, with_parts, with_vector_loops
from hloc.machine import Machine

BY_SHIFTS = frozenset(["s32", "u32", "s64", "u64"])
SIDE_BY_SIDE = (-1, 0, 1)


def strided_integer_loads(kernel: Kernel, machine: Machine) -> Kernel:
    """The kernel with such reads, on x86."""
    if machine.arch != "x86_64":
        return kernel
    return kernel._replace(body=with_vector_loops(
        kernel.body, lambda loop: (loop._replace(body=_statements(loop.body, {loop.name: 1})),)))


def _statements(statements: tuple[Stmt, ...], strides: dict[str, int | None]) -> tuple[Stmt, ...]:
    """strides: of the names that change along the lanes."""
    return tuple(_statement(s, strides) for s in statements)


def _statement(s: Stmt, strides: dict[str, int | None]) -> Stmt:
    if isinstance(s, If):
        return If(_changed(s.condition, strides), _statements(s.then, strides), _statements(s.otherwise, strides))
    if isinstance(s, For):
        return s._replace(body=_statements(s.body, strides))
    if isinstance(s, Let) and s.value.type == INDEX:
        strides[s.name] = stride(s.value, strides)
    return with_expressions(s, lambda e: _changed(e, strides))


def _changed(expr: Expr, strides: Mapping[str, int | None]) -> Expr:
    changed = with_parts(expr, lambda part: _changed(part, strides))
    if isinstance(changed, Load) and changed.type in BY_SHIFTS \
            and stride(changed.position, strides) not in SIDE_BY_SIDE:
        return Apply("bits_read", (changed,), changed.type)
    return changed


def stride(expr: Expr, strides: Mapping[str, int | None]) -> int | None:
    """By how much a position grows from lane to lane; None where that is not always the same. Values that are not
    positions are different in each lane."""
    if isinstance(expr, Const):
        return 0
    if isinstance(expr, Var):
        return strides.get(expr.name, 0) if expr.type == INDEX else None
    if not isinstance(expr, Apply) or expr.type != INDEX:
        return None
    parts = [stride(a, strides) for a in expr.arguments]
    if not any(p != 0 for p in parts):
        return 0
    if None in parts or len(parts) != 2:
        return None
    a, b = parts
    if expr.op in ("add", "subtract"):
        return a + b if expr.op == "add" else a - b
    first, second = expr.arguments
    if expr.op == "multiply" and isinstance(second, Const):
        return a * second.value
    return b * first.value if expr.op == "multiply" and isinstance(first, Const) else None
