"""Computes maxima and minima of f16 and bf16 as integers.

These need no conversions, and a vector holds twice as many.

In: a Kernel. Out: the kernel with integers (`hloc_maximum_key_f16`, targets/c/narrow.h) in VECTOR loops that only
compute maxima or minima of loaded values.

    for i < n (VECTOR):  m = max(m, f32(x[i]))              s16 key = the smallest
                                                            for i < n (VECTOR): key = max(key, maximum_key(x[i]))
                                                            m = max(m, f32(f16_of_maximum_key(key)))
"""
from __future__ import annotations

from hloc.kernels import ir
from hloc.kernels.walks import operation, taken_in, walk, with_vector_loops
from hloc.machine import Machine

NARROW = ("f16", "bf16")
EXTREMA = ("maximum", "minimum")
SHORTEST = 16                                               # iterations of a loop that is rewritten


def narrow_extrema(kernel: ir.Kernel, machine: Machine) -> ir.Kernel:
    """The kernel with maxima and minima of f16 and bf16 kept as integers."""
    if not any(b.type in NARROW for b in kernel.buffers):
        return kernel
    named = {s.name: s.value for s in walk(kernel.body) if isinstance(s, ir.Let)}
    return kernel._replace(body=with_vector_loops(kernel.body, lambda loop: _loop(loop, named)))


def _narrow_load(value: ir.Expr, named: dict[str, ir.Expr]) -> ir.Load | None:
    """The load that a value in f32 was widened from; None for other values."""
    while isinstance(value, ir.Var) and value.name in named:
        value = named[value.name]
    load = value.arguments[0] if isinstance(value, ir.Apply) and value.op == "convert" and value.type == "f32" else None
    return load if isinstance(load, ir.Load) and load.type in NARROW else None


def _key(op: str, load: ir.Load) -> ir.Expr:
    return ir.Apply(f"{op}_key", (load,), "s16")


def _of_key(op: str, type: str, key: ir.Expr) -> ir.Expr:
    return ir.Apply("convert", (ir.Apply(f"{type}_of_{op}_key", (key,), type),), "f32")


def _loop(loop: ir.For, named: dict[str, ir.Expr]) -> tuple[ir.Stmt, ...]:
    """A VECTOR loop with keys for accumulators, if it computes only extrema; else the loop itself."""
    found = {s.name: _update(s, named) for s in loop.body if isinstance(s, ir.Assign)}
    updates = {name: update for name, update in found.items() if update is not None}
    is_short = isinstance(loop.extent, int) and loop.extent < SHORTEST
    if is_short or not updates or len(updates) < len(found) \
            or not all(isinstance(s, (ir.Let, ir.Assign)) for s in loop.body):
        return (loop,)
    keys = {name: ir.Var(f"{name}_key_{loop.name}", "s16") for name in updates}
    before = [ir.Mutable(keys[n].name, ir.Const(-0x8000 if op == "maximum" else 0x7fff, "s16"), op)
              for n, (op, _) in updates.items()]
    body = [ir.Assign(keys[n].name, ir.Apply(op, (keys[n], _key(op, load)), "s16"))
            for n, (op, load) in updates.items()]
    after = [ir.Assign(n, ir.Apply(op, (ir.Var(n, "f32"), _of_key(op, load.type, keys[n])), "f32"))
             for n, (op, load) in updates.items()]
    needed = [s for s in loop.body if isinstance(s, ir.Let) and s.value.type != "f32"]
    return (*before, loop._replace(body=(*needed, *body)), *after)


def _update(s: ir.Assign, named: dict[str, ir.Expr]) -> tuple[str, ir.Load] | None:
    """(op, load) of an accumulator that is updated with the extremum of itself and a loaded value."""
    term = taken_in(s)
    if term is None or s.value.type != "f32" or operation(s.value).op not in EXTREMA:
        return None
    load = _narrow_load(term, named)
    return (operation(s.value).op, load) if load is not None else None
