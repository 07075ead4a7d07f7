"""Computes maxima and minima of f32 as integers.

The chain of maxima then has no comparison with NaN, and lanes are reduced by dedicated instructions.

In: a Kernel. Out: the kernel whose VECTOR loops accumulate s32 keys (`hloc_maximum_key_f32`, targets/c/narrow.h)
instead of maxima or minima of f32.

    for i < n (VECTOR):  m = max(m, x[i])         s32 key = the smallest
                                                  for i < n (VECTOR): key = max(key, maximum_key(x[i]))
                                                  m = max(m, f32_of_maximum_key(key))
"""
from __future__ import annotations

from hloc.kernels.ir import VECTOR, Apply, Assign, Const, For, If, Kernel, Mutable, Stmt, Var, While
from hloc.kernels.walks import expressions, operation, parts, walk
from hloc.machine import Machine
from hloc.targets.cpu.vector_loops.narrow_extrema import EXTREMA, SHORTEST


def float_extrema(kernel: Kernel, machine: Machine) -> Kernel:
    """The kernel with f32 maxima and minima of VECTOR loops computed as integers."""
    return kernel._replace(body=tuple(new for s in kernel.body for new in _with_float_keys(s)))


def _with_float_keys(s: Stmt) -> tuple[Stmt, ...]:
    if isinstance(s, If):
        then, otherwise = (tuple(new for b in branch for new in _with_float_keys(b))
                           for branch in (s.then, s.otherwise))
        return (If(s.condition, then, otherwise),)
    if isinstance(s, For) and s.kind == VECTOR:
        return _keyed_loop(s)
    if isinstance(s, (For, While)):
        return (s._replace(body=tuple(new for b in s.body for new in _with_float_keys(b))),)
    return (s,)


def _keyed_loop(loop: For) -> tuple[Stmt, ...]:
    """A VECTOR loop that accumulates f32 extrema as keys; the keys are combined with the accumulators after it."""
    is_short = isinstance(loop.extent, int) and loop.extent < SHORTEST
    updates = {} if is_short else {s.name: operation(s.value) for s in loop.body
                                   if isinstance(s, Assign) and _is_extremum(s)}
    before, after, changed = [], [], {}
    for name, value in updates.items():
        own, key = Var(name, "f32"), Var(f"{name}_key_{loop.name}", "s32")
        if sum(e == own for e in parts(e for s in walk(loop.body) for e in expressions(s))) != 1:
            continue
        taken = value.arguments[value.arguments[0] == own]
        before.append(Mutable(key.name, Const(-1 << 31 if value.op == "maximum" else (1 << 31) - 1, "s32"), value.op))
        changed[name] = Assign(key.name, Apply(value.op, (key, Apply(f"{value.op}_key", (taken,), "s32")), "s32"))
        after.append(Assign(name, Apply(value.op, (own, Apply(f"f32_of_{value.op}_key", (key,), "f32")), "f32")))
    body = tuple(changed.get(s.name, s) if isinstance(s, Assign) else s for s in loop.body)
    return (*before, loop._replace(body=body), *after)


def _is_extremum(s: Assign) -> bool:
    value = s.value
    return (isinstance(value, Apply) and value.op in EXTREMA and value.type == "f32"
            and Var(s.name, "f32") in value.arguments)
