"""The size of a kernel's pieces for the thread pool.

In: a Kernel or its Cost, and the Machine. Out: iterations per piece, or the number of pieces. Example: a kernel of
1,000 rows that moves 400 KB at 20 GB/s takes 20 us, which makes two pieces of 500 rows.
"""
from __future__ import annotations

import math

from hloc.kernels.ir import PARALLEL, Cost, For, Kernel
from hloc.machine import Machine

SMALLEST_PIECE_SECONDS = 10e-6      # a fork and join costs a few microseconds: smaller pieces do not pay
SMALLEST_IN_LOOP = 3e-6             # in loops the threads are awake, and a fork and join costs half
CORE_FLOPS = 8e9                    # of one core on ordinary scalar expressions, per second
MOST_PIECES = 64
MOST_LONG_PIECES = 10_000
LONGEST_PIECE_SECONDS = 20e-3      # after each the pool checks whether to stop


def extent_of(kernel: Kernel) -> int:
    """Iterations of the kernel's PARALLEL loop; 1 without one."""
    loop = next((s for s in kernel.body if isinstance(s, For) and s.kind == PARALLEL), None)
    return loop.trip_count if loop else 1


def seconds_of(cost: Cost, machine: Machine) -> float:
    """The approximate seconds on one core."""
    return max(cost.bytes / machine.bandwidth, cost.flops / CORE_FLOPS)


def pieces_of(cost: Cost, machine: Machine, in_loop: bool = False) -> int:
    """The number of pieces of at least about 10 microseconds, a multiple of the cores, and no more than balance needs;
    below 2: do not divide."""
    if machine.cores == 1:
        return max(1, long_pieces(cost, machine))
    seconds = max(seconds_of(cost, machine), 1e-9)
    least = SMALLEST_IN_LOOP if in_loop else SMALLEST_PIECE_SECONDS
    pieces = max(min(int(seconds / least), MOST_PIECES), long_pieces(cost, machine))
    return pieces if pieces < machine.cores else pieces // machine.cores * machine.cores


def long_pieces(cost: Cost, machine: Machine) -> int:
    """The least number of pieces of a long kernel."""
    return min(int(seconds_of(cost, machine) / LONGEST_PIECE_SECONDS), MOST_LONG_PIECES)


def grain_of(kernel: Kernel, machine: Machine, in_loop: bool = False) -> int:
    """Iterations per piece of work; the whole extent if dividing does not pay."""
    extent = extent_of(kernel)
    most = min(pieces_of(kernel.cost, machine, in_loop), extent)
    if most < 2:
        return extent
    fewest = most if most < machine.cores else max(machine.cores, min(most, long_pieces(kernel.cost, machine)))
    grains = [-(-extent // pieces) for pieces in range(most, fewest - 1, -machine.cores)]
    return min(grains, key=lambda grain: _longest(extent, grain, machine.cores))


def _longest(extent: int, grain: int, cores: int) -> int:
    """Iterations of the core with most, if all are equally fast."""
    return math.ceil(math.ceil(extent / grain) / cores) * grain
