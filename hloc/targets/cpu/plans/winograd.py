"""Winograd convolutions (runtime/conv_winograd.c): which convolutions use the algorithm, and how work is divided.

In: a Convolution. Out: whether it uses the algorithm; its Blocks. Names are those of the C code. With two cores and
vectors of 64 bytes:

    f32[1,56,56,64] by f32[3,3,64,64]        784 blocks of 2x2 positions: tasks of 98
    f32[1,14,14,256] by f32[3,3,256,256]     49 blocks, which is few: tasks of 4 panels of 32 features
"""
from __future__ import annotations

from math import ceil
from typing import NamedTuple

from hloc.machine import Machine
from hloc.targets.cpu.plans.convolution import ONES, Convolution, panel_columns
from hloc.targets.cpu.plans.matmul import tile_rows

DEPTH, PRODUCTS, APART = 64, 16, 16
FEW_ROWS, IMAGE_FLOATS, SUM_FLOATS = 16, 1 << 17, 1 << 18
UNIT, MOST_FEATURES = 16, 16384      # features: whole vectors; the size of no_places
LEAST_WORK = 1 << 19                 # multiply-adds; with fewer, transforms do not pay
# Costs of transforms: of filters, in blocks of products; of images and sums, in additional features of y and of x.
FILTERS, IMAGES, SUMS = 4, 3, 5
WORTH = 0.9                          # of the multiply-adds of direct convolution


class Blocks(NamedTuple):
    """How a convolution is divided; memory in floats."""

    few: bool
    tasks: int           # of `grain` blocks, or of panels if blocks are few
    grain: int
    filters: int         # for all transformed filters
    own: int             # for a thread


def goes_by_blocks(c: Convolution, machine: Machine) -> bool:
    """Whether the algorithm applies, and needs less work."""
    fits = c.window == (1, 3, 3) and c.stride == c.base_dilation == c.window_dilation == ONES \
        and c.feature_groups == c.batch_groups == c.x_size[0] == c.y_size[0] == 1 and not c.pad_low[0] \
        and c.x_features % UNIT == c.y_features % UNIT == 0 and 0 < c.x_features <= MOST_FEATURES
    direct = 9 * c.batch * c.y_size[1] * c.y_size[2] * c.x_features * c.y_features
    return fits and direct >= LEAST_WORK and _work(c, machine) <= WORTH * direct


def _work(c: Convolution, machine: Machine) -> float:
    """Multiply-adds of the busiest thread times the number of threads; transforms count as multiply-adds."""
    blocks, columns = blocks_of(c, machine), panel_columns(machine)
    longest = ceil(blocks.tasks / machine.cores) * machine.cores * blocks.grain
    if blocks.few:
        half = tile_rows(machine) // 2
        count, features, met = ceil(_count(c) / half) * half, longest * columns, blocks.grain * columns
    else:
        count, features, met = longest, ceil(c.y_features / columns) * columns, c.y_features
    return PRODUCTS * (count + FILTERS) * c.x_features * features * (1 + IMAGES / met + SUMS / c.x_features)


def blocks_of(c: Convolution, machine: Machine) -> Blocks:
    """Many: a task has the largest number of blocks that fits the cache among those that balance the threads. Few: as
    many panels as fit the cache, or fewer, so that threads have equal numbers of tasks."""
    rows, columns, count = tile_rows(machine), panel_columns(machine), _count(c)
    chunks, panels = ceil(c.x_features / DEPTH), ceil(c.y_features / columns)
    filters = _filter(machine)
    if count <= FEW_ROWS * rows and panels >= 2 * machine.cores:
        most = max(1, SUM_FLOATS // _sums(count, machine))
        grain = ceil(panels / (ceil(panels / (most * machine.cores)) * machine.cores))
        own = filters + _images(count) + grain * _sums(count, machine) + 4 * count * columns
        return Blocks(True, ceil(panels / grain), grain, 0, own)
    most = max(rows, IMAGE_FLOATS // (chunks * DEPTH * PRODUCTS))
    grain = min(range(rows, most + 1, rows), key=lambda n: (ceil(ceil(count / n) / machine.cores) * n, -n))
    own = chunks * _images(grain) + _sums(grain, machine) + 4 * grain * columns
    return Blocks(False, ceil(count / grain), grain, transformed_filters(c, machine), own)


def transformed_filters(c: Convolution, machine: Machine) -> int:
    """Floats of all transformed filters."""
    return ceil(c.y_features / panel_columns(machine)) * ceil(c.x_features / DEPTH) * _filter(machine)


def _filter(machine: Machine) -> int:
    """FILTER_FLOATS."""
    return PRODUCTS * (DEPTH * panel_columns(machine) + APART)


def _count(c: Convolution) -> int:
    return c.batch * ceil(c.y_size[1] / 2) * ceil(c.y_size[2] / 2)


def _images(blocks: int) -> int:
    return PRODUCTS * (blocks * DEPTH + APART)


def _sums(blocks: int, machine: Machine) -> int:
    rows = tile_rows(machine)
    return PRODUCTS * (ceil(blocks / rows) * rows * panel_columns(machine) + APART)
