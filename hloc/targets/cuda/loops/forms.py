"""Forms: a kernel as threads run it, by the steps of a schedule: in tiles, in vectors, by teams, or iteration by
iteration.

In: the GridNest of a Kernel (nest.py) and steps. Out: a Form, or Refused with the reason; its launch geometry. How
axes are bound says what is printed:

    d1 lane, d0 lane                            a thread for each element
    d1 lane, d0o lane, d0i vector               a thread for each vector
    d1o d0o block, d1i d0i lane                 a block for a tile: d1 is what the cached arrays are read along
    i0 lane, row serial                         a thread for each row
    i0 warp or block, row lane                  a team for each row; rowo lane, rowi vector: by vectors
"""
from __future__ import annotations

from collections.abc import Sequence

from hloc.kernels import ir
from hloc.kernels.ir import SERIAL, VECTOR
from hloc.kernels.schedule.steps import Refused, Step, apply_steps
from hloc.machine import Machine
from hloc.targets.cuda.container import Geometry
from hloc.targets.cuda.loops.cache_read import with_cache_read
from hloc.targets.cuda.loops.fast_division import with_fast_division
from hloc.targets.cuda.loops.iteration_space import parallel_loop
from hloc.targets.cuda.loops.nest import (
    BLOCK,
    GRID_STEPS,
    LANE,
    LANES,
    ROW,
    WARP,
    GridNest,
)
from hloc.targets.cuda.loops.rows import Spread
from hloc.targets.cuda.loops.scatters import with_shared_scatters
from hloc.targets.cuda.loops.teams import BLOCKS_PER_SM, Form, by_teams, by_threads
from hloc.targets.cuda.loops.transposes import tiled_form
from hloc.targets.cuda.loops.vector_accesses import by_vectors, with_vectors
from hloc.targets.functions import with_calls

MOST_INLINED = 32                       # functions of a kernel: ptxas takes 11 ms for each


def distributed(kernel: ir.Kernel, gpu: Machine) -> ir.Kernel:
    """The kernel rewritten for threads: scatters by owners or atomics, quotients by multiplication."""
    return with_shared_scatters(with_fast_division(with_calls(kernel, MOST_INLINED)), gpu)


def form_of(nest: GridNest, steps: Sequence[Step]) -> Form:
    """The form of a kernel of distributed(), whose nest this is, with a schedule. Raises Refused."""
    nest = apply_steps(nest, steps, GRID_STEPS)
    return _by_elements(nest) if nest.space else _by_rows(nest)


def geometry_of(form: Form, name: str, gpu: Machine) -> Geometry:
    """The launch geometry: threads for everything, up to a few blocks per SM; loops cover what is left."""
    blocks = max(1, min(-(-form.units // form.teams), gpu.cores * BLOCKS_PER_SM))
    return Geometry(name, (blocks, 1, 1), (form.block, 1, 1))


def _by_elements(nest: GridNest) -> Form:
    """Tiles if an axis is bound to blocks; else vectors, or elements."""
    kernel, space, kinds = nest.kernel, nest.space, nest.kinds
    assert space is not None
    tiled = [axis for axis in space.sizes if kinds.get(axis + "o") == BLOCK]
    wanted: dict[str, str] = {}
    for axis in space.sizes:
        name = axis
        if tiled:
            wanted[name + "o" * (axis in tiled)] = BLOCK
        if not tiled or axis in tiled:
            name += "i" * (axis in tiled)
            wanted |= {name + "o": LANE, name + "i": VECTOR} if axis == "d0" and nest.width > 1 else {name: LANE}
    _refuse_others(nest, wanted)
    if not tiled:
        if nest.cached:
            raise Refused("what threads read by themselves is not cached")
        return Form(kernel, nest.threads, 0, (by_vectors(Spread(space.counters, space.body), nest.width, kernel),),
                    before=space.before)
    if len(tiled) != 2 or tiled[1] != "d0":
        raise Refused("tiles are of d0 and another axis")
    edge, first = (nest.axis(name).extent or 0 for name in (tiled[0] + "i", "d0io" if nest.width > 1 else "d0i"))
    if edge != first * nest.width:
        raise Refused(f"tiles are squares, not {edge} by {first * nest.width}")
    return tiled_form(kernel, space, tiled[0], edge, nest.width, nest.threads, nest.cached)


def _by_rows(nest: GridNest) -> Form:
    """A thread, a warp or a block for each iteration."""
    kernel, loop, kinds = nest.kernel, parallel_loop(nest.kernel), nest.kinds
    rows = {loop.name: kinds.get(loop.name, "")} if loop else {}
    if kinds.get(ROW, SERIAL) == SERIAL and ROW + "o" not in kinds:
        _refuse_others(nest, dict.fromkeys(rows, LANE) | ({ROW: SERIAL} if ROW in kinds else {}))
        return by_threads(kernel, nest.threads)
    if not set(rows.values()) <= {WARP, BLOCK}:
        raise Refused(f"lanes share rows of warps or blocks: {nest}")
    _refuse_others(nest, rows | ({ROW: LANE} if nest.width == 1 else {ROW + "o": LANE, ROW + "i": VECTOR}))
    lanes = LANES if WARP in rows.values() else nest.threads
    if nest.cached:
        kernel = with_cache_read(kernel, lanes, nest.cached)
    form = by_teams(kernel, lanes, nest.threads)
    return with_vectors(form, nest.width) if nest.width > 1 else form


def _refuse_others(nest: GridNest, wanted: dict[str, str]) -> None:
    """Raise Refused unless the axes have these kinds."""
    if nest.kinds != wanted:
        text = ", ".join(f"{name} {kind}" for name, kind in wanted.items()) or "no axis"
        raise Refused(f"axes are {', '.join(f'{a.name} {a.kind}' for a in nest.axes)}; near to it: {text}")
