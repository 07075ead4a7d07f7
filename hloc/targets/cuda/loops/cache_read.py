"""Elements that several loops of a row read are loaded from memory once, and kept in registers for the later loops.

In: a loop Kernel, the number of lanes that compute one of its rows (teams.py), and buffers that two or more of the
row's loops read at the same positions, as in softmax and layer norm. Out: the same kernel, with a Local array for each.
teams.py distributes the array over the lanes. No lane holds more than REGISTERS.

                                                           for c: cached0[c] = x[r * 4096 + c]
    for i VECTOR: m = max(m, x[r * 4096 + i])          ->  for i: m = max(m, cached0[i])
    for j VECTOR: s += exp(x[r * 4096 + j] - m)            for j: s += exp(cached0[j] - m)
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels import ir
from hloc.kernels.affine import affine, factor_of, factors_of, forms, plus, without
from hloc.kernels.schedule.steps import Refused
from hloc.kernels.walks import (
    assigned,
    defined,
    expressions,
    loads,
    parts,
    walk,
    with_all_expressions,
    with_values,
)
from hloc.targets.cuda.loops.iteration_space import parallel_loop
from hloc.targets.cuda.loops.nest import LARGEST_BLOCK

REGISTERS = 64                      # the most that one lane uses for all its arrays
REGISTERS_OF_LARGEST = 32            # of a lane of the largest block
COUNTER = ir.Var("#", ir.INDEX)     # replaces the counters of all loops when places are compared


def with_cache_read(kernel: ir.Kernel, lanes: int, buffers: tuple[str, ...]) -> ir.Kernel:
    """The kernel with kept rows of these buffers. Raises Refused if one is not read twice, or rows are too long."""
    changed, arrays = _with_kept(kernel, buffers)
    most = REGISTERS if lanes < LARGEST_BLOCK else REGISTERS_OF_LARGEST
    if sum(registers(a.type, a.size, lanes) for a in arrays) > most:
        raise Refused(f"{lanes} lanes have no registers for {', '.join(buffers)}")
    return changed


@lru_cache(maxsize=32)
def _with_kept(kernel: ir.Kernel, buffers: tuple[str, ...]) -> tuple[ir.Kernel, list[ir.Local]]:
    """The kernel with kept rows of these buffers, and the arrays of its rows. Raises Refused."""
    row, kept = parallel_loop(kernel), {place: reads for place, reads in _shared(kernel).items()
                                        if place.load.buffer in buffers}
    if missing := set(buffers) - {place.load.buffer for place in kept}:
        raise Refused(f"read once, or at other places: {', '.join(missing)}")
    arrays = {place: ir.Local(f"cached{n}", place.load.type, place.extent) for n, place in enumerate(kept)}
    body: list[ir.Stmt] = [*arrays.values()]
    for s in row.body if row else kernel.body:
        if first := {place: arrays[place] for place, reads in kept.items() if reads[0][0] is s}:
            body.append(_copies(first))
        own = {load: arrays[place] for place, reads in kept.items() for loop, load in reads if loop is s}
        body.append(_reading(s, own) if isinstance(s, ir.For) and own else s)
    changed = tuple(s._replace(body=tuple(body)) if s is row else s for s in kernel.body) if row else tuple(body)
    return kernel._replace(body=changed), [s for s in body if isinstance(s, ir.Local)]


def _copies(arrays: Mapping[Place, ir.Local]) -> ir.For:
    """The loop that reads places of one extent into their arrays, all at once."""
    (extent,), (name, *_) = {a.size for a in arrays.values()}, (a.name for a in arrays.values())
    counter = ir.Var(f"{name}_at", ir.INDEX)
    return ir.For(counter.name, extent, ir.VECTOR, tuple(
        ir.Store(array.name, counter, with_values(place.load, {COUNTER: counter})) for place, array in arrays.items()))


def _reading(loop: ir.For, arrays: Mapping[ir.Load, ir.Local]) -> ir.For:
    """The loop, which reads these arrays in the place of memory."""
    counter = ir.Var(loop.name, ir.INDEX)
    values = {load: ir.Load(array.name, counter, load.type) for load, array in arrays.items()}
    return loop._replace(body=with_all_expressions(loop.body, lambda e: with_values(e, values)))


def read_again(kernel: ir.Kernel) -> list[str]:
    """The buffers that several loops of a row read at the same positions, those that most read first."""
    found = sorted(_shared(kernel).items(), key=lambda one: -len(one[1]))
    return list(dict.fromkeys(place.load.buffer for place, _ in found))


def registers(type: str, size: int, lanes: int) -> int:
    """The registers of a lane for its part of an array."""
    return -(-size // lanes) * max(1, ELEMENT_TYPES[type].bytes // 4)


class Place(NamedTuple):
    """What loops of so many iterations read; the position is an affine form of the row and COUNTER."""

    load: ir.Load
    extent: int


def _shared(kernel: ir.Kernel) -> dict[Place, list[tuple[ir.For, ir.Load]]]:
    """The places that several loops of a row read, whatever their counters are called, with these. The first one reads
    its place unconditionally; earlier loops of the row still read memory."""
    row, everything, found = parallel_loop(kernel), walk(kernel.body), dict[Place, list[tuple[ir.For, ir.Load]]]()
    written = {s.buffer for s in everything if isinstance(s, (ir.Store, ir.Atomic))}
    readable, known = {b.name for b in kernel.buffers} - written, forms(kernel.body)
    changing = {s.name: s for s in everything if isinstance(s, ir.Mutable)}
    for loop in row.body if row else kernel.body:
        if not isinstance(loop, ir.For) or loop.kind != ir.VECTOR or not isinstance(loop.extent, int) \
                or not all(changing[n].reassociable for n in assigned(loop.body) & changing.keys()):
            continue
        varying, always = {*defined(loop.body), *changing}, set(unconditional(
            e for s in loop.body for e in expressions(s)))
        for load in dict.fromkeys(loads(loop.body)):
            form = affine(load.position, known)
            step, start = factor_of(form, loop.name), without(form, loop.name)
            factors = factors_of(start)
            if load.buffer not in readable or not step or factors is None or varying & factors.keys():
                continue
            place = Place(load._replace(position=plus(start, COUNTER, step)), loop.extent)
            if place in found or load in always:
                found.setdefault(place, []).append((loop, load))
    return {place: reads for place, reads in found.items() if any(loop is not reads[0][0] for loop, _ in reads)}


def unconditional(roots: Iterable[ir.Expr]) -> Iterable[ir.Load]:
    """Loads that are always executed: not those in the branches of a select."""
    stack = list(roots)
    while stack:
        top = stack.pop()
        if isinstance(top, ir.Load):
            yield top
        if not isinstance(top, ir.Apply) or top.op != "select":
            stack.extend(list(parts([top]))[1:] if isinstance(top, ir.Load) else getattr(top, "arguments", ()))
        else:
            stack.append(top.arguments[0])
