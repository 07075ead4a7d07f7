"""The memory of tiled arrays: which dimensions are padded, split and transposed, one step per tile.

    f32[10,200]{1,0:T(8,128)}      pad to [16,256]; split into [2,8,2,128]; in memory: [2,2,8,128]

Dimensions in memory are in the layout's order, the slowest first. Source: xla/layout.h.
"""
from __future__ import annotations

import math
import re
from typing import NamedTuple

from hloc.ir.shapes import Shape
from hloc.ir.types import ELEMENT_TYPES

_TILES = re.compile(r"T((?:\([^)]*\))+)")
LARGEST_MEMORY = 1 << 50        # elements of a padded array
_PACKED = re.compile(r"E\((\d+)\)")


class TileStep(NamedTuple):
    """An array of sizes `before` is padded to `padded`, split into `split`, and its dimensions put into `order`."""

    before: tuple[int, ...]
    padded: tuple[int, ...]
    split: tuple[int, ...]
    order: tuple[int, ...]

    @property
    def after(self) -> tuple[int, ...]:
        return tuple(self.split[d] for d in self.order)


def tiles(shape: Shape) -> tuple[tuple[int, ...], ...] | None:
    """The tiles of a layout, the outermost first; () without tiles. None where one joins dimensions (`*`)."""
    found = _TILES.search(shape.layout.suffix) if shape.layout else None
    if found is None:
        return ()
    if "*" in found[1]:
        return None
    return tuple(tuple(int(n) for n in part.split(",") if n.strip()) for part in found[1][1:-1].split(")("))


def in_memory(shape: Shape) -> tuple[int, ...]:
    """The dimensions by the layout's order, the slowest first."""
    return tuple(shape.dimensions[d] for d in reversed(shape.minor_to_major))


def tile_steps(shape: Shape) -> list[TileStep]:
    """From the dimensions in_memory to those of the memory itself."""
    sizes, steps = in_memory(shape), []
    for tile in tiles(shape) or ():
        before = (1,) * (len(tile) - len(sizes)) + sizes
        lead = len(before) - len(tile)
        counts = [-(-n // t) for n, t in zip(before[lead:], tile)]
        padded = (*before[:lead], *(c * t for c, t in zip(counts, tile)))
        split = (*before[:lead], *(n for pair in zip(counts, tile) for n in pair))
        order = (*range(lead), *range(lead, len(split), 2), *range(lead + 1, len(split), 2))
        steps.append(TileStep(before, padded, split, order))
        sizes = steps[-1].after
    return steps


def has_known_memory(shape: Shape) -> bool:
    """False for tiles that join dimensions, and for impossible sizes."""
    found = tiles(shape)
    if found is None or any(n < 1 for tile in found for n in tile):
        return False
    return max((math.prod(step.padded) for step in tile_steps(shape)), default=0) <= LARGEST_MEMORY


def depends_on_tiles(source: Shape, target: Shape) -> bool:
    """Whether reading the memory of one array as the other depends on tiles."""
    mine, theirs = tiles(source), tiles(target)
    if not mine and not theirs and mine is not None and theirs is not None:
        return False
    reach = max((len(t) for t in mine or ()), default=0)
    a, b = in_memory(source), in_memory(target)
    same_width = ELEMENT_TYPES[source.element_type].bits == ELEMENT_TYPES[target.element_type].bits
    return not (mine == theirs and mine is not None and same_width and min(len(a), len(b)) >= reach
                and a[len(a) - reach:] == b[len(b) - reach:])
