"""Grid nests: what a loop kernel computes, as axes, and the steps that bind these to blocks, warps and lanes of a GPU.

In: a Kernel. Out: a GridNest, which steps change (hloc/kernels/schedule/steps.py has their text); kernels.py prints it.

    d1 < 512, d0 < 4096         split(d0,4) vectorize(d0i,4) bind(d1,lane) bind(d0o,lane)
    i0 < 4096, row < 768        bind(i0,warp) split(row,4) vectorize(rowi,4) bind(rowo,lane) cache_read(in0)

The axes of a pointwise kernel are the dimensions of its iteration space (iteration_space.py), d0 the fastest. Those of
other kernels are the iterations of the PARALLEL loop, by its name, and `row`: the loops of an iteration that lanes may
share. Steps:

    split(d0,4)        d0o, blocks of 4 iterations, and d0i, the iterations of a block; lanes beyond the end do nothing
    bind(d0,lane)      iterations are dealt out to lanes, warps or blocks; axes bound to the same are numbered together
    vectorize(d0i,4)   the iterations of a block are loaded and stored at once; of a row at most so many, as types allow
    cache_read(in0)    an array is read once: a tile of it into shared memory, or what several loops of a row read into
                       registers
    threads(256)       of a block, which is what there is without this step
"""
from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hloc.kernels import ir
from hloc.kernels.ir import SERIAL, VECTOR
from hloc.kernels.schedule.steps import Refused
from hloc.kernels.walks import walk
from hloc.targets.cuda.loops.iteration_space import Space, parallel_loop, space_of

KINDS = BLOCK, WARP, LANE = "block", "warp", "lane"
LANES, THREADS, LARGEST_BLOCK = 32, 256, 1024       # of a warp; of a block: usual, at most
ROW = "row"


class Axis(NamedTuple):
    """extent: None if only the run knows it; kind: serial, vector (its iterations are one access), or one of KINDS."""

    name: str
    extent: int | None
    kind: str = SERIAL


class GridNest(NamedTuple):
    """kernel: what is computed; space: of a pointwise kernel; threads: of a block; cached: buffers that are read
    once."""

    kernel: ir.Kernel
    space: Space | None
    axes: tuple[Axis, ...]
    threads: int = THREADS
    cached: tuple[str, ...] = ()

    @property
    def kinds(self) -> dict[str, str]:
        """The kinds of the axes, by name."""
        return {a.name: a.kind for a in self.axes}

    @property
    def width(self) -> int:
        """The lanes of the vectors; 1 without."""
        return next((a.extent or 1 for a in self.axes if a.kind == VECTOR), 1)

    def axis(self, name: str) -> Axis:
        for axis in self.axes:
            if axis.name == name:
                return axis
        raise Refused(f"no axis {name}: there are {', '.join(a.name for a in self.axes) or 'none'}")

    def with_axis(self, old: Axis, *new: Axis) -> GridNest:
        return self._replace(axes=tuple(b for a in self.axes for b in (new if a is old else (a,))))

    def __str__(self) -> str:
        return ", ".join(a.name if a.extent is None else f"{a.name} < {a.extent}" for a in self.axes) or "one thread"


def grid_nest_of(kernel: ir.Kernel) -> GridNest:
    """The nest of a kernel, none of whose axes is bound."""
    space = space_of(kernel)
    if space is not None:
        return GridNest(kernel, space, tuple(Axis(name, n) for name, n in space.counters))
    loop = parallel_loop(kernel)
    axes: tuple[Axis, ...] = (Axis(loop.name, loop.trip_count),) if loop else ()
    if any(hasattr(s, "body") for s in walk(loop.body if loop else kernel.body)):
        axes += (Axis(ROW, None),)
    return GridNest(kernel, None, axes)


# -- steps -------------------------------------------------------------------------------------------------------------

def split(nest: GridNest, axis: str, n: int) -> GridNest:
    """Two axes for one: blocks of n iterations, and the iterations of a block."""
    one = nest.axis(axis)
    if n < 2 or one.kind != SERIAL:
        raise Refused(f"{axis} is {one.kind}: blocks of {n} are of serial axes, and of 2 iterations at least")
    return nest.with_axis(one, Axis(axis + "o", one.extent and -(-one.extent // n)), Axis(axis + "i", n))


def bind(nest: GridNest, axis: str, kind: str) -> GridNest:
    """The iterations of an axis are those of blocks, warps or lanes."""
    one = nest.axis(axis)
    if kind not in KINDS or one.kind != SERIAL:
        raise Refused(f"{axis} is {one.kind}, and bound to nothing but {', '.join(KINDS)}, once")
    return nest.with_axis(one, one._replace(kind=kind))


def vectorize(nest: GridNest, axis: str, lanes: int) -> GridNest:
    """The iterations of an axis are one access to memory."""
    one = nest.axis(axis)
    if one.extent != lanes or lanes & lanes - 1 or one.kind != SERIAL or nest.width > 1:
        raise Refused(f"{axis} has {one.extent} iterations: one axis is of vectors, of a power of two, and as many")
    return nest.with_axis(one, one._replace(kind=VECTOR))


def cache_read(nest: GridNest, buffer: str) -> GridNest:
    """A buffer is read once."""
    if buffer not in {b.name for b in nest.kernel.buffers} - set(nest.cached):
        raise Refused(f"{buffer} is no buffer, or is cached already")
    return nest._replace(cached=(*nest.cached, buffer))


def threads(nest: GridNest, n: int) -> GridNest:
    """The threads of a block."""
    if n % LANES or not LANES <= n <= LARGEST_BLOCK:
        raise Refused(f"a block has {LANES} to {LARGEST_BLOCK} threads, a multiple of {LANES}, not {n}")
    return nest._replace(threads=n)


GRID_STEPS: dict[str, Callable[..., GridNest]] = {f.__name__: f for f in (split, bind, vectorize, cache_read, threads)}
