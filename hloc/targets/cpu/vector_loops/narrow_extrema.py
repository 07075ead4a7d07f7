"""Computes maxima and minima of f16 and bf16 as integers.

These need no conversions, and a vector holds twice as many.

In: a Kernel. Out: the kernel with integers (`hloc_maximum_key_f16`, targets/c/narrow.h) in VECTOR loops that only
compute maxima or minima of loaded values, and in Local arrays of such values.

    for i < n (VECTOR):  m = max(m, f32(x[i]))              s16 key = the smallest
                                                            for i < n (VECTOR): key = max(key, maximum_key(x[i]))
                                                            m = max(m, f32(f16_of_maximum_key(key)))
"""
from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from hloc.ir import numpy_dtype
from hloc.kernels import ir
from hloc.kernels.walks import expressions, parts, walk, with_expressions, with_parts, with_vector_loops
from hloc.machine import Machine

NANS = {"f16": 0x3ff, "bf16": 0x7f}                         # of one sign
EXTREMA = ("maximum", "minimum")
SHORTEST = 16                                               # iterations of a loop that is rewritten


def narrow_extrema(kernel: ir.Kernel, machine: Machine) -> ir.Kernel:
    """The kernel with maxima and minima of f16 and bf16 kept as integers."""
    if not any(b.type in NANS for b in kernel.buffers):
        return kernel
    named = {s.name: s.value for s in walk(kernel.body) if isinstance(s, ir.Let)}
    return kernel._replace(body=with_vector_loops(_arrays(kernel.body, named), lambda loop: _loop(loop, named)))


def _narrow_load(value: ir.Expr, named: dict[str, ir.Expr]) -> ir.Load | None:
    """The load that a value in f32 was widened from; None for other values."""
    while isinstance(value, ir.Var) and value.name in named:
        value = named[value.name]
    load = value.arguments[0] if isinstance(value, ir.Apply) and value.op == "convert" and value.type == "f32" else None
    return load if isinstance(load, ir.Load) and load.type in NANS else None


def _key(op: str, load: ir.Load) -> ir.Expr:
    return ir.Apply(f"{op}_key", (load,), "s16")


def _of_key(op: str, type: str, key: ir.Expr) -> ir.Expr:
    return ir.Apply("convert", (ir.Apply(f"{type}_of_{op}_key", (key,), type),), "f32")


# -- accumulators ------------------------------------------------------------------------------------------------------

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
    value = s.value
    if not isinstance(value, ir.Apply) or value.op not in EXTREMA or value.type != "f32":
        return None
    own = ir.Var(s.name, "f32")
    if own not in value.arguments:
        return None
    load = _narrow_load(value.arguments[value.arguments[0] == own], named)
    return (value.op, load) if load is not None else None


# -- arrays of accumulators --------------------------------------------------------------------------------------------

def _arrays(statements: tuple[ir.Stmt, ...], named: dict[str, ir.Expr]) -> tuple[ir.Stmt, ...]:
    """Local arrays of f32 that store only constants and extrema become arrays of keys."""
    found = {s.name: _extremum(s.name, statements, named) for s in walk(statements)
             if isinstance(s, ir.Local) and s.type == "f32"}
    keys = {name: kind for name, kind in found.items() if kind}
    if not keys:
        return statements
    changed = tuple(_with_keys(s, keys, named) for s in statements)
    used = {e.name for s in walk(changed) for e in parts(expressions(s)) if isinstance(e, ir.Var)}
    return _without(changed, named.keys() - used)


def _without(statements: Iterable[ir.Stmt], names: Collection[str]) -> tuple[ir.Stmt, ...]:
    """Statements without these Lets."""
    kept = [s for s in statements if not isinstance(s, ir.Let) or s.name not in names]
    return tuple(s._replace(body=_without(s.body, names)) if isinstance(s, (ir.For, ir.While)) else s for s in kept)


def _extremum(array: str, statements: tuple[ir.Stmt, ...], named: dict[str, ir.Expr]) -> tuple[str, str] | None:
    """(op, element type) of an array of extrema; None for others."""
    kinds = set()
    for s in walk(statements):
        if isinstance(s, ir.Store) and s.buffer == array and not _is_infinite(s.value):
            update = _array_update(s, named)
            kinds.add((update[0], update[1].type) if update else None)
    return kinds.pop() if len(kinds) == 1 else None


def _is_infinite(value: ir.Expr) -> bool:
    return isinstance(value, ir.Const) and math.isinf(value.real)


def _array_update(s: ir.Store, named: dict[str, ir.Expr]) -> tuple[str, ir.Load] | None:
    value = s.value
    if not isinstance(value, ir.Apply) or value.op not in EXTREMA or value.type != "f32":
        return None
    old = ir.Load(s.buffer, s.position, "f32")
    is_old = [named.get(a.name) == old if isinstance(a, ir.Var) else a == old for a in value.arguments]
    if is_old.count(True) != 1:
        return None
    load = _narrow_load(value.arguments[is_old.index(False)], named)
    return (value.op, load) if load is not None else None


def _with_keys(s: ir.Stmt, keys: dict[str, tuple[str, str]], named: dict[str, ir.Expr]) -> ir.Stmt:
    """A statement that stores keys to these arrays, and converts keys loaded from them to floats."""
    if isinstance(s, ir.Local) and s.name in keys:
        return s._replace(type="s16")
    if isinstance(s, ir.If):
        return ir.If(_of_keys(s.condition, keys), *(tuple(_with_keys(b, keys, named) for b in branch)
                                                 for branch in (s.then, s.otherwise)))
    if isinstance(s, (ir.For, ir.While)):
        return s._replace(body=tuple(_with_keys(b, keys, named) for b in s.body))
    if not isinstance(s, ir.Store) or s.buffer not in keys:
        return with_expressions(s, lambda e: _of_keys(e, keys))
    op, type = keys[s.buffer]
    if isinstance(s.value, ir.Const):
        return s._replace(value=ir.Const(_constant_key(s.value.real, op, type), "s16"))
    old, update = ir.Load(s.buffer, s.position, "s16"), _array_update(s, named)
    assert update is not None                   # of an array of extrema
    return s._replace(value=ir.Apply(op, (old, _key(op, update[1])), "s16"))


def _of_keys(expr: ir.Expr, keys: dict[str, tuple[str, str]]) -> ir.Expr:
    if isinstance(expr, ir.Load) and expr.buffer in keys:
        op, type = keys[expr.buffer]
        return _of_key(op, type, expr._replace(type="s16"))
    return with_parts(expr, lambda part: _of_keys(part, keys))


def _constant_key(value: float, op: str, type: str) -> int:
    """The key of an infinity."""
    bits = int(numpy_dtype(type).type(value).view("int16"))
    order = bits ^ 0x7fff if bits < 0 else bits
    return order - NANS[type] if op == "maximum" else order + NANS[type]
