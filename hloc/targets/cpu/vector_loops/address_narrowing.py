"""Computes data-dependent positions in VECTOR loops in 32 bits, so that the CPU gathers twice as many at once.

In: a Kernel. Out: the kernel, where positions that depend on values computed in the same VECTOR loop are computed in
s32. Only buffers with fewer than 2**31 elements are narrowed. Positions are inside the buffer, and additions and
multiplications wrap around, so the low 32 bits are exact.

    x[convert(row) * 1024 + column]   ->   x[convert(row * 1024 + convert(column, s32))]
"""
from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from hloc.kernels.ir import INDEX, SUM, VECTOR, Apply, Const, Expr, For, If, Kernel, Let, Load, Stmt, Var
from hloc.kernels.walks import parts, with_expressions, with_parts
from hloc.machine import Machine


def address_narrowing(kernel: Kernel, machine: Machine) -> Kernel:
    """The kernel with 32-bit positions where they depend on data."""
    small = frozenset(b.name for b in kernel.buffers if b.size < 1 << 31)
    return kernel._replace(body=_statements(kernel.body, small, None))


def _statements(statements: Iterable[Stmt], small: frozenset[str], data: dict[str, Expr] | None) -> tuple[Stmt, ...]:
    """data: values of the Lets of this VECTOR loop that depend on data; None outside of VECTOR loops."""
    return tuple(_statement(s, small, data) for s in statements)


def _statement(s: Stmt, small: frozenset[str], data: dict[str, Expr] | None) -> Stmt:
    if isinstance(s, For):
        return s._replace(body=_statements(s.body, small, {} if s.kind == VECTOR else data))
    if data is None:
        return s
    if isinstance(s, If):
        return If(_changed(s.condition, small, data), _statements(s.then, small, data),
                  _statements(s.otherwise, small, data))
    changed = with_expressions(s, lambda e: _changed(e, small, data))
    if isinstance(changed, Let) and changed.value.type == INDEX and _depends(changed.value, data):
        data[changed.name] = changed.value
    return changed


def _depends(value: Expr, data: dict[str, Expr]) -> bool:
    return any(isinstance(e, Load) or (isinstance(e, Var) and (e.type != INDEX or e.name in data))
               for e in parts([value]))


def _changed(expr: Expr, small: frozenset[str], data: dict[str, Expr]) -> Expr:
    changed = with_parts(expr, lambda part: _changed(part, small, data))
    if isinstance(changed, Load) and changed.buffer in small and _depends(changed.position, data):
        return changed._replace(position=Apply("convert", (_narrow(changed.position),), INDEX))
    return changed


def _narrow(expr: Expr) -> Expr:
    """The low 32 bits of a position."""
    if isinstance(expr, Const):
        return Const((expr.integer + (1 << 31)) % (1 << 32) - (1 << 31), "s32")
    if isinstance(expr, Apply) and expr.op == SUM:
        *factors, constant = expr.immediate
        terms = [_times(_narrow(atom), abs(factor)) for atom, factor in zip(expr.arguments, factors)]
        if constant:
            terms.append(_narrow(Const(constant, INDEX)))
        first = terms[0] if factors[0] > 0 else Apply("subtract", (Const(0, "s32"), terms[0]), "s32")
        signs = ["add" if factor > 0 else "subtract" for factor in (*factors[1:], 1)]
        return reduce(lambda total, term: Apply(term[0], (total, term[1]), "s32"), zip(signs, terms[1:]), first)
    if isinstance(expr, Apply) and expr.type == INDEX and expr.op == "multiply":
        return Apply(expr.op, tuple(_narrow(a) for a in expr.arguments), "s32")
    if isinstance(expr, Apply) and expr.op == "convert" and expr.arguments[0].type == "s32":
        return expr.arguments[0]
    return Apply("convert", (expr,), "s32")


def _times(expr: Expr, factor: int) -> Expr:
    return expr if factor == 1 else Apply("multiply", (expr, _narrow(Const(factor, INDEX))), "s32")
