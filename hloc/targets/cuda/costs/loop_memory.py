"""Memory traffic of a loop kernel: bytes of distinct elements, and bytes between L1 and L2.

In: its accesses with the loops around them, and how threads share it. Out: both, and the sectors that warps request.
Distinct elements are counted by the counters that a position depends on. Sectors are counted in sampled blocks. A block
reads a sector once while L1 keeps it: for a few iterations, or permanently for small arrays.
"""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import Buffer, Expr, Load
from hloc.kernels.walks import names_in, parts
from hloc.machine import Machine
from hloc.targets.cuda.costs.accesses import SECTOR, Points, mixed, sectors
from hloc.targets.cuda.costs.work import WARP

BLOCKS, STEPS, WARPS = 2, 8, 64     # of a sample: blocks, consecutive iterations, warps
CONDITIONS = 256                    # warps of a sample of a branch's condition
KEPT, KEPT_BY = 32 << 10, 4         # most bytes of an array that stays in L1; blocks per SM that read it again


class Scope(NamedTuple):
    """The surroundings of a statement. trips: executions by a lane in one unit (a row of a team, an iteration of a
    thread); lanes: that execute it together; loops: those around it in a unit, the innermost last, with their trip
    counts and whether lanes share the iterations."""

    trips: float
    lanes: float
    loops: tuple[tuple[str, int, bool], ...] = ()


class Access(NamedTuple):
    """A load or store, and its scope."""

    buffer: str
    position: Expr
    scope: Scope
    load: bool


class Threads(NamedTuple):
    """How threads share a kernel. units: in total; side_by_side: units at a time in a block; lanes: threads per unit;
    counters: of the units."""

    blocks: int
    threads: int
    units: int
    side_by_side: int
    lanes: int
    counters: tuple[tuple[str, int], ...]

    @property
    def at_once(self) -> int:
        return self.blocks * self.side_by_side

    @property
    def units_of_one(self) -> int:
        """Consecutive units of a thread."""
        return math.ceil(self.units / max(1, self.at_once))


def memory_of(accesses: Sequence[Access], buffers: Mapping[str, Buffer], lets: Mapping[str, Expr], threads: Threads,
              tiled: bool, gpu: Machine) -> tuple[float, float, float]:
    """Bytes of distinct elements, bytes between L1 and L2, and sectors that warps request from L1. tiled: strided
    accesses are transposed through shared memory."""
    traffic = asked = 0.0
    elements: dict[str, float] = {}
    groups: dict[tuple, list[Access]] = {}
    for a in accesses:
        groups.setdefault((a.buffer, a.scope, a.load), []).append(a)
    samples: dict[tuple, Sample] = {}
    for (name, scope, _), group in groups.items():
        size, width = buffers[name].size, ELEMENT_TYPES[buffers[name].type].bytes
        done = scope.trips * threads.units * (max(1.0, scope.lanes) if threads.lanes > 1 else 1)
        key = scope.loops, scope.lanes == 1
        if key not in samples:
            samples[key] = _sample(scope, threads)
        alone, together = _sampled(group, samples[key], width, size, lets)
        if tiled:
            alone, together = width * len(group), min(together, width * len(group))
        once = size * width * min(threads.blocks, KEPT_BY * gpu.cores) if size * width <= KEPT else math.inf
        traffic += min(together * done, once)
        asked += alone * done / SECTOR / WARP
        places = sum(min(done, _places(a, threads, lets)) for a in group)
        elements[name] = min(size, elements.get(name, 0) + places)
    memory = sum(n * ELEMENT_TYPES[buffers[b].type].bytes for b, n in elements.items())
    return float(memory), float(traffic), float(asked)


def taken(condition: Expr, scope: Scope, threads: Threads, lets: Mapping[str, Expr]) -> float:
    """The share of warps in which a condition is true for a lane, from sampled ones. 1 if it depends on a load."""
    waiting = [condition, *(lets[name] for name in names_in([condition], lets) if name in lets)]
    if any(isinstance(p, Load) for p in parts(waiting)):
        return 1.0
    random, lanes = np.random.default_rng(0), max(1, threads.lanes)
    lane = np.tile(np.arange(WARP), CONDITIONS)
    if lanes < WARP:                                        # neighbours of a warp have units of their own
        first = random.integers(0, max(1, threads.units - WARP // lanes + 1), CONDITIONS).repeat(WARP)
        unit, lane = first + lane // lanes, lane % lanes
    else:
        unit = random.integers(0, max(1, threads.units), CONDITIONS).repeat(WARP)
        lane = lane + random.integers(0, lanes // WARP, CONDITIONS).repeat(WARP) * WARP
    known = {**mixed(np.minimum(unit, max(0, threads.units - 1)), threads.counters), "lane": lane}
    for shared in (False, True):
        loops = [(name, n) for name, n, spread in scope.loops if spread == shared]
        total = math.prod(n for _, n in loops)
        steps = random.integers(0, max(1, -(-total // lanes) if shared else total), CONDITIONS).repeat(WARP)
        known.update(mixed(np.minimum(steps * lanes + lane if shared else steps, max(0, total - 1)), loops))
    true = np.broadcast_to(Points(known, lets).value(condition) != 0, lane.shape)
    return float(true.reshape(CONDITIONS, WARP).any(axis=1).mean())


def _places(access: Access, threads: Threads, lets: Mapping[str, Expr]) -> float:
    """Upper bound of the distinct positions of an access, from the counters that it depends on."""
    extents = dict(threads.counters) | {name: n for name, n, _ in access.scope.loops}
    seen = names_in([access.position], lets)
    return math.prod(float(n) for name, n in extents.items() if name in seen)


class Sample(NamedTuple):
    """Points of a scope: values of its counters, blocks, and numbers of warps and iterations."""

    known: Mapping[str, np.ndarray]
    blocks: np.ndarray
    warps: np.ndarray


def _sample(scope: Scope, threads: Threads) -> Sample:
    shape = (BLOCKS, threads.threads, STEPS)
    block, thread, step = (np.broadcast_to(a, shape).ravel() for a in np.ogrid[:BLOCKS, :threads.threads, :STEPS])
    known, keep = _points(scope, threads, block, thread, step)
    warp = ((block * threads.threads + thread) // WARP * STEPS + step)[keep]
    exists = np.zeros(BLOCKS * (threads.threads + WARP) // WARP * STEPS, np.int64)
    exists[warp] = 1
    return Sample({name: np.broadcast_to(v, keep.shape)[keep] for name, v in known.items()}, block[keep],
                  np.cumsum(exists)[warp] - 1)


def _sampled(group: Sequence[Access], sample: Sample, width: float, size: int,
             lets: Mapping[str, Expr]) -> tuple[float, float]:
    """Bytes of sectors per execution of these accesses by a lane. The first value counts each warp and access alone,
    the second a block's threads and a few iterations together."""
    if not sample.blocks.size:
        return width, width
    points = Points(sample.known, lets)
    positions = [np.broadcast_to(points.value(a.position), sample.blocks.shape) for a in group]
    few = sample.warps < WARPS
    alone = sum(sectors([p[few]], width, size, sample.warps[few]) for p in positions)
    return alone, sectors(positions, width, size, sample.blocks)


def _points(scope: Scope, threads: Threads, block: np.ndarray, thread: np.ndarray, step: np.ndarray):
    """Values of all counters at the points of a sample, and a mask of the points that exist."""
    random, lanes = np.random.default_rng(0), threads.lanes
    first = random.integers(0, max(1, threads.units // max(1, threads.side_by_side)), BLOCKS)
    unit = np.minimum(first[block] * threads.side_by_side + thread // lanes, max(0, threads.units - 1))
    spread = [(name, n) for name, n, shared in scope.loops if shared]
    serial = [(name, n) for name, n, shared in scope.loops if not shared]
    total = math.prod(n for _, n in spread)
    slots = math.ceil(total / lanes) if spread else 1
    iterations = slots * math.prod(n for _, n in serial)
    number = random.integers(0, max(1, iterations - STEPS), BLOCKS)[block] + step
    point = number % max(1, slots) * lanes + thread % lanes
    known = {**mixed(unit, threads.counters), **mixed(np.minimum(point, max(0, total - 1)), spread),
             **mixed(number // max(1, slots), serial), "lane": thread % lanes}
    keep = step < iterations
    if spread:
        keep = keep & (point < total)
    return known, keep & (thread % lanes == 0) if lanes > 1 and scope.lanes == 1 else keep
