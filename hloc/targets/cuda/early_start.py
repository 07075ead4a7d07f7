"""Kernels of a CUDA graph that start before the kernel before them has ended: programmatic dependent launch, from sm_90
on (device/early.cuh).

Every kernel begins with three calls (printer.kernel_start): it lets the next kernel start, fetches what no kernel
writes, and waits. So it touches other memory only after the kernel before it has ended. That kernel has itself waited,
or was started after the one before it had ended: the order of all kernels is kept. In a graph, a kernel starts early if
it and the kernel right before it are small: their Geometry says `early`.

    fetched(program, gpu)[3]  ->  {1: 2359296}        argument 1 of kernel 3 is prefetched: so many bytes
    with_fetches(kernel, {1: 2359296})  ->  the kernel; its Buffer 1 says so
"""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hloc.kernels.ir import Kernel, Tile
from hloc.kernels.plan import Launch, Program, Step, all_steps
from hloc.machine import Machine
from hloc.targets.cuda.container import Geometry

FIRST_ARCH = 90
# Blocks for each SM. On an H200 500 kernels of one block for each SM took 0.24 us less each, of eight blocks 0.49 more.
MOST_BLOCKS = 2
MOST_FETCHED = 4                    # arrays of a kernel
L2_SHARE = 4                        # a kernel fetches at most this part of L2


def known_to(gpu: Machine) -> bool:
    """Whether a GPU has the instructions."""
    return int(gpu.arch.removeprefix("sm_").rstrip("af")) >= FIRST_ARCH


def gains(blocks: int, gpu: Machine) -> bool:
    """Whether a kernel of so many blocks should start early, and let the next one do so."""
    return known_to(gpu) and blocks <= MOST_BLOCKS * gpu.cores


def starts_early(kernels: Sequence[Geometry], before: Step | None, step: Step) -> bool:
    """Whether a step of a graph starts early. before: the step right before it on the stream."""
    return isinstance(before, Launch) and isinstance(step, Launch) and \
        kernels[before.kernel].early and kernels[step.kernel].early


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


def is_early(launch: Geometry, gpu: Machine) -> bool:
    """Whether a launch may start early."""
    return launch.product is None and gains(math.prod(launch.grid), gpu)
