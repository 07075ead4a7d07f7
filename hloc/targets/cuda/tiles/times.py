"""The predicted time of a matrix product or convolution in each of its tilings.

In: a Tiling, Sizes and Sides. Out: the Work of its launches, and their time in microseconds by the cost model.
"""
from __future__ import annotations

import math
from collections.abc import Sequence

from hloc.machine import Machine
from hloc.targets.cuda.costs.model import estimate
from hloc.targets.cuda.costs.tile_work import Side, Sizes, Tiled, join_work, tiled_work
from hloc.targets.cuda.costs.work import Work
from hloc.targets.cuda.tiles.lines import Lines
from hloc.targets.cuda.tiles.tiling import BLOCKS_PER_SM, JOIN_THREADS, RESERVED, Tiling, join_blocks


def form_of(tiling: Tiling) -> str:
    """How the kernel of a tiling multiplies: Tiled.form."""
    if tiling.numbers is None:
        return "registers"
    if tiling.grouped:
        return "bulk" if tiling.bulk else "groups"
    return "pipeline" if tiling.dynamic else "steps"


def works_of(tiling: Tiling, sizes: Sizes, sides: tuple[Side, Side], gpu: Machine, lines: Sequence[Lines] = ()
             ) -> list[Work]:
    """The Work of each launch of a tiling: the kernels that pack operands (`lines`), the product, and with split depth
    the kernel that joins the pieces."""
    together = gpu.shared_bytes // (tiling.memory + RESERVED) if tiling.bulk else BLOCKS_PER_SM
    numbers = tiling.numbers
    words = (4 / numbers.word, numbers.products) if numbers else (1, 1)
    if not tiling.dynamic:
        sizes = sizes._replace(wide=1)
    tiled = Tiled.of(sizes, tiling.constants, form_of(tiling), tiling.threads, tiling.memory, gpu.cores * together)
    work = tiled_work(sizes, sides, tiled, words)
    work = work._replace(flops=work.flops * math.prod(words) / 2)            # in equivalent bf16 flops
    works = [*(one.work(gpu) for one in lines), work]
    if tiling.splits == 1:
        return works
    return [*works, join_work(sizes, tiling.splits, join_blocks(tiling.elements, gpu), JOIN_THREADS)]


def predicted_us(tiling: Tiling, sizes: Sizes, sides: tuple[Side, Side], gpu: Machine, lines: Sequence[Lines] = ()
                 ) -> float:
    """Microseconds of all launches of a tiling."""
    return sum(estimate(work, gpu).us for work in works_of(tiling, sizes, sides, gpu, lines))
