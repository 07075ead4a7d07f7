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
from typing import NamedTuple

from hloc.kernels import ir
from hloc.kernels.ir import SERIAL, VECTOR
from hloc.kernels.schedule.steps import Refused, Step, apply_steps
from hloc.kernels.walks import walk
from hloc.machine import Machine
from hloc.targets.cuda.container import Geometry
from hloc.targets.cuda.loops import transposes
from hloc.targets.cuda.loops.cache_read import with_cache_read
from hloc.targets.cuda.loops.fast_division import with_fast_division
from hloc.targets.cuda.loops.iteration_space import Space, elements_of, parallel_loop
from hloc.targets.cuda.loops.nest import (
    BLOCK,
    GRID_STEPS,
    LANE,
    LANES,
    ROW,
    WARP,
    GridNest,
)
from hloc.targets.cuda.loops.printing import Packs
from hloc.targets.cuda.loops.scatters import with_shared_scatters
from hloc.targets.cuda.loops.teams import BLOCKS_PER_SM, TeamKernel, refuse_threads, team_kernel
from hloc.targets.cuda.loops.transposes import Tiling, tiling_of
from hloc.targets.cuda.loops.vector_accesses import packs_of_space, with_vectors
from hloc.targets.functions import with_calls

MOST_INLINED = 32                       # functions of a kernel: ptxas takes 11 ms for each


def distributed(kernel: ir.Kernel, gpu: Machine) -> ir.Kernel:
    """The kernel rewritten for threads: scatters by owners or atomics, quotients by multiplication."""
    return with_shared_scatters(with_fast_division(with_calls(kernel, MOST_INLINED)), gpu)


class Form(NamedTuple):
    """A kernel of distributed() by tiles, by vectors or by teams; else a thread per iteration. threads: of a block;
    space: of a pointwise kernel."""

    kernel: ir.Kernel
    threads: int
    space: Space | None = None
    tiling: Tiling | None = None
    vectors: Packs | None = None
    team: TeamKernel | None = None

    @property
    def iterations(self) -> int:
        """What blocks share: tiles, vectors, rows of teams, or iterations."""
        loop = parallel_loop(self.kernel)
        return self.tiling.tiles if self.tiling else self.team.rows if self.team else \
            (elements_of(loop) if loop else 1) // (self.vectors.width if self.vectors else 1)


def form_of(nest: GridNest, steps: Sequence[Step], gpu: Machine) -> Form:
    """The form of a kernel of distributed(), whose nest this is, with a schedule. Raises Refused."""
    nest = apply_steps(nest, steps, GRID_STEPS)
    return _by_elements(nest) if nest.space else _by_rows(nest, gpu)


def geometry_of(form: Form, name: str, gpu: Machine) -> Geometry:
    """The launch geometry: threads for everything, up to a few blocks per SM; loops cover what is left."""
    team, threads, most = form.team, form.threads, BLOCKS_PER_SM
    if form.tiling:
        together, most = 1, transposes.BLOCKS_PER_SM
    elif team:
        together, threads = team.teams, team.threads * team.teams
    else:
        together = threads
        threads = min(threads, -(-max(1, form.iterations) // LANES) * LANES)
    blocks = max(1, min(-(-form.iterations // together), gpu.cores * most))
    return Geometry(name, (blocks, 1, 1), (threads, 1, 1))


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
        packs = packs_of_space(kernel, space, nest.width) if nest.width > 1 else None
        return Form(kernel, nest.threads, space, vectors=packs)
    if len(tiled) != 2 or tiled[1] != "d0":
        raise Refused("tiles are of d0 and another axis")
    edge, first = nest.axis(tiled[0] + "i").extent, nest.width
    for name in ("d0i", "d0io"):
        first *= next((a.extent or 1 for a in nest.axes if a.name == name), 1)
    if edge is None or first != edge:
        raise Refused(f"tiles are squares, not {edge} by {first}")
    return Form(kernel, nest.threads, space,
                tiling=tiling_of(kernel, space, tiled[0], edge, nest.width, nest.threads, nest.cached))


def _by_rows(nest: GridNest, gpu: Machine) -> Form:
    """A thread, a warp or a block for each iteration."""
    kernel, loop, kinds = nest.kernel, parallel_loop(nest.kernel), nest.kinds
    rows = {loop.name: kinds.get(loop.name, "")} if loop else {}
    if kinds.get(ROW, SERIAL) == SERIAL and ROW + "o" not in kinds:
        refuse_threads(kernel)
        _refuse_others(nest, dict.fromkeys(rows, LANE) | ({ROW: SERIAL} if ROW in kinds else {}))
        return Form(kernel, nest.threads)
    if not set(rows.values()) <= {WARP, BLOCK}:
        raise Refused(f"lanes share rows of warps or blocks: {nest}")
    _refuse_others(nest, rows | ({ROW: LANE} if nest.width == 1 else {ROW + "o": LANE, ROW + "i": VECTOR}))
    lanes, teams = (LANES, nest.threads // LANES) if WARP in rows.values() else (nest.threads, 1)
    if nest.cached:
        kernel = with_cache_read(kernel, lanes, nest.cached)
    team = with_vectors(team_kernel(kernel, lanes, teams, gpu), {b.name: b for b in kernel.buffers}, nest.width)
    if nest.width > 1 and not any(getattr(s, "packs", None) for s in walk(team.body)):
        raise Refused(f"no loop of a row reads or writes vectors of {nest.width}")
    return Form(kernel, nest.threads, team=team)


def _refuse_others(nest: GridNest, wanted: dict[str, str]) -> None:
    """Raise Refused unless the axes have these kinds."""
    if nest.kinds != wanted:
        text = ", ".join(f"{name} {kind}" for name, kind in wanted.items()) or "no axis"
        raise Refused(f"axes are {', '.join(f'{a.name} {a.kind}' for a in nest.axes)}; near to it: {text}")
