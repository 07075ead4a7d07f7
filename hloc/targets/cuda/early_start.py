"""Kernels of a CUDA graph that start before the kernel before them has ended: programmatic dependent launch, from sm_90
on (device/early.cuh).

Every kernel begins with three calls (printer.kernel_start): it lets the next kernel start, fetches what no kernel
writes, and waits. So it touches other memory only after the kernel before it has ended. That kernel has itself waited,
or was started after the one before it had ended: the order of all kernels is kept. Which kernels of a graph start early
is chosen for each pair of neighbours by what it takes or saves (edge_us): their Geometry's `early` has the kernels
behind which they do.

    fetched(program, gpu)[3]  ->  {1: 2359296}        argument 1 of kernel 3 is prefetched: so many bytes
    with_fetches(kernel, {1: 2359296})  ->  the kernel; its Buffer 1 says so
"""
from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hloc.kernels.ir import Kernel, Tile
from hloc.kernels.plan import Branch, Launch, Program, Step, WhileLoop, all_steps
from hloc.machine import Machine
from hloc.targets.cuda.container import Geometry
from hloc.targets.cuda.execution.graphs import nodes_of
from hloc.targets.cuda.gpus import facts_of

FIRST_ARCH = 90
MOST_BLOCKS = 2                     # of a kernel, for each SM
# Microseconds, measured on an H200. Graphs of 500 kernels of 1, 132 and 1,056 blocks of 128 threads took 0.285 and 0.24
# less and 0.49 more each: a kernel that waits takes threads of SMs from those before and behind it.
GAIN_US, FULL_US = 0.285, 0.775     # less for each kernel; more if both kernels have all threads of the device
# An SM divides its memory anew between L1 and shared memory only when it is idle, so a kernel with more shared memory
# than any has by default cannot start beside one without. Fitted to what the transformer step, U-Net block and
# ResNet-50's inference took more or less with early starts.
SHARED_US = 1.1
DEFAULT_SHARED = 48 << 10           # bytes of a block
MOST_FETCHED = 4                    # arrays of a kernel
L2_SHARE = 4                        # a kernel fetches at most this part of L2


def known_to(gpu: Machine) -> bool:
    """Whether a GPU has the instructions."""
    return int(gpu.arch.removeprefix("sm_").rstrip("af")) >= FIRST_ARCH


def gains(blocks: int, gpu: Machine) -> bool:
    """Whether a kernel of so many blocks is small enough to start early, and to let the next one do so."""
    return known_to(gpu) and blocks <= MOST_BLOCKS * gpu.cores


class Launched(NamedTuple):
    """What counts of a launch: blocks, their threads, and bytes of shared memory."""

    blocks: int
    threads: int
    shared: int

    @staticmethod
    def of(start: Geometry) -> Launched:
        return Launched(math.prod(start.grid), math.prod(start.block), start.shared)


def edge_us(before: Launched, after: Launched, gpu: Machine, fetched_bytes: int = 0) -> float:
    """Microseconds that a program takes more, or less, if a launch starts before the one before it has ended.
    fetched_bytes: of weights that it loads into L2 meanwhile."""
    threads = facts_of(gpu)["threads"] * gpu.cores
    full = min(1.0, sum(one.blocks * one.threads for one in (before, after)) / threads)
    apart = (before.shared > DEFAULT_SHARED) != (after.shared > DEFAULT_SHARED)
    return FULL_US * full + SHARED_US * apart - GAIN_US - fetched_bytes / gpu.bandwidth * 1e6


def neighbours(steps: Sequence[Step], before: Step | None = None) -> Iterator[tuple[Launch, Launch]]:
    """Launches of which one is right behind the other on the stream. In a loop that a graph holds, the first step is
    also behind the last one. before: the step before these."""
    for step in steps:
        if isinstance(step, Launch) and isinstance(before, Launch):
            yield before, step
        elif isinstance(step, WhileLoop) and nodes_of(step) is not None and step.body:
            yield from neighbours(step.body, before)
            yield from neighbours(step.body[:1], step.body[-1])
        elif isinstance(step, WhileLoop):
            yield from neighbours(step.condition)
            yield from neighbours(step.body)
        elif isinstance(step, Branch):
            for branch in step.branches:
                yield from neighbours(branch)
        before = step.body[-1] if isinstance(step, WhileLoop) and nodes_of(step) is not None and step.body else step


def chosen(steps: Sequence[Step], kernels: Sequence[Geometry], gpu: Machine, fetches: Sequence[int]
           ) -> tuple[Geometry, ...]:
    """The kernels, with those behind which each starts early. fetches: bytes that each loads meanwhile."""
    found: dict[int, set[int]] = {}
    for before, step in neighbours(steps):
        first, second = kernels[before.kernel], kernels[step.kernel]
        if may(first, gpu) and may(second, gpu) and \
                edge_us(Launched.of(first), Launched.of(second), gpu, fetches[step.kernel]) < 0:
            found.setdefault(step.kernel, set()).add(before.kernel)
    return tuple(g._replace(early=tuple(sorted(found.get(n, ())))) for n, g in enumerate(kernels))


def starts_early(kernels: Sequence[Geometry], before: Step | None, step: Step) -> bool:
    """Whether a step of a graph starts early. before: the step right before it on the stream."""
    return isinstance(before, Launch) and isinstance(step, Launch) and before.kernel in kernels[step.kernel].early


def fetched(program: Program, gpu: Machine) -> dict[int, dict[int, int]]:
    """What kernels may fetch before they wait: for each kernel's number the arguments, with their bytes. These are
    parameters and constants, which no step writes, if the kernel reads all of its arguments. In a program that fits
    into L2, they are there already."""
    if not known_to(gpu) or program.peak <= gpu.l2_bytes:
        return {}
    found: dict[int, dict[int, int]] = {}
    for step in all_steps(program.steps):
        if isinstance(step, Launch):
            own = {n: ref.size for n, ref in enumerate(step.arguments)
                   if ref not in step.arguments[:n] and (ref.region == "constant" or ref.region == "parameter" and
                                                         not program.parameters[ref.index].shape.on_host)}
            before = found.setdefault(step.kernel, own)
            found[step.kernel] = {n: min(size, before[n]) for n, size in own.items() if n in before}
            if program.kernels[step.kernel].cost.bytes < sum(ref.size for ref in step.arguments):
                found[step.kernel] = {}
    return {kernel: _largest(sizes, gpu.l2_bytes // L2_SHARE) for kernel, sizes in found.items()}


def _largest(sizes: Mapping[int, int], most: int) -> dict[int, int]:
    """The largest arguments that fit together into so many bytes."""
    kept: dict[int, int] = {}
    for number, size in sorted(sizes.items(), key=lambda item: -item[1]):
        if size and sum(kept.values()) + size <= most and len(kept) < MOST_FETCHED:
            kept[number] = size
    return kept


def with_fetches(kernel: Kernel | Tile, sizes: Mapping[int, int]) -> Kernel | Tile:
    """The kernel, whose buffers say what is fetched."""
    return kernel._replace(buffers=tuple(b._replace(fetched=sizes.get(n, 0)) for n, b in enumerate(kernel.buffers)))


def may(launch: Geometry, gpu: Machine) -> bool:
    """Whether a launch may start early, and let the next one do so."""
    return launch.product is None and gains(math.prod(launch.grid), gpu)
