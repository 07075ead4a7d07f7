"""Convolutions whose windows the bulk copy engine gathers: a tile's rows are a patch of output positions.

In: a convolution's constants (convolutions.py). Out: the Patch of a tile, and the tensor maps of image and filter. The
positions that one tap of the window reads for a patch are a box of the image, `across` x `down` of `images` images, 64
channels deep; what lies outside of the image comes as zeros, which is its padding; strides are steps of the map.

    patch_of(128 images of 14 x 14, 128 rows) == Patch(14, 1, 9)       126 of 128 rows
"""
from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from hloc.targets.cuda.tiles.tensor_maps import LARGEST_BOX, LARGEST_SIZE, LARGEST_STEP, LINE, TensorMap

ELEMENT = 2                     # bytes: bf16, f16
DEPTH = LINE // ELEMENT         # channels of a line
MORE_TILES = 1.08               # of the fewest, for the sake of wider patches
FEWEST_ROWS = 0.85              # of a tile that must be output positions


class Patch(NamedTuple):
    """Output positions of one tile, in each direction, and of how many images."""

    across: int
    down: int
    images: int

    @property
    def rows(self) -> int:
        return self.across * self.down * self.images

    @property
    def constants(self) -> dict[str, int]:
        """Of conv_bulk.cuh."""
        return {"PATCH_ACROSS": self.across, "PATCH_DOWN": self.down, "PATCH_IMAGES": self.images}


def patch_of(c: dict[str, int], rows: int) -> Patch:
    """The widest patch among those of which about the fewest tiles of so many rows are needed."""
    return _patch((c["OUT2"], c["OUT1"], c["IMAGES"]), (c["STRIDE2"], c["STRIDE1"]), rows)


@lru_cache(maxsize=1024)
def _patch(sizes: tuple[int, int, int], strides: tuple[int, int], rows: int) -> Patch:
    most = [min(size, rows, (LARGEST_BOX - 1) // stride + 1) for size, stride in zip(sizes, strides)]
    found = [Patch(across, down, min(sizes[2], rows // (across * down)))
             for across in range(most[0], 0, -1) for down in range(min(most[1], rows // across), 0, -1)]
    fewest = min(_tiles(p, sizes) for p in found)
    return next(p for p in found if _tiles(p, sizes) <= MORE_TILES * fewest)


def _tiles(patch: Patch, sizes: tuple[int, ...]) -> int:
    tiles = 1
    for part, size in zip(patch, sizes):
        tiles *= -(-size // part)
    return tiles


def is_boxes(c: dict[str, int]) -> bool:
    """Whether boxes can be copied: whole lines of channels, no gaps between elements, filters as they lie; and tiles
    that are filled well enough."""
    plain = all(c[f"BASE{d}"] == 1 for d in range(3)) and c["OUT0"] == c["WINDOW0"] == c["SIZE0"] == 1 and not c["LOW0"]
    channels = c["X_C"] == 1 and c["CHANNELS"] % DEPTH == 0 and not c["IMAGES_FIRST"]
    filters = c["W_I"] == 1 or (c["W_O"] == 1 and c["FEATURES"] > 1)
    steps = max(c["STRIDE1"], c["STRIDE2"]) <= LARGEST_STEP
    sizes = max(c["CHANNELS"], c["FEATURES"], c["SIZE1"], c["SIZE2"], c["IMAGES"]) < LARGEST_SIZE // 2
    if not (plain and channels and filters and steps and sizes) or c["GROUPS"] * c["BATCH_GROUPS"] > 1:
        return False
    outputs = (c["OUT2"], c["OUT1"], c["IMAGES"])
    return all(c["M"] >= FEWEST_ROWS * rows * _tiles(patch_of(c, rows), outputs) for rows in (64, 128))


def maps_of_patches(c: dict[str, int], offsets: tuple[int, int], patch: Patch, columns: int, arguments: list[int]
                    ) -> tuple[TensorMap, TensorMap]:
    """Of the image and of the filter, whose places among the arguments and first elements are given."""
    image = [(c["CHANNELS"], 1), (c["SIZE2"], c["X_2"]), (c["SIZE1"], c["X_1"]), (c["IMAGES"], c["X_N"])]
    steps = (1, c["STRIDE2"], c["STRIDE1"], 1)
    box = (DEPTH, (patch.across - 1) * steps[1] + 1, (patch.down - 1) * steps[2] + 1, patch.images)
    depth, features = (c["CHANNELS"], c["W_I"]), (c["FEATURES"], c["W_O"])
    lines = [depth, features] if c["W_I"] == 1 else [features, depth]
    taps = [(c["WINDOW2"], c["W_2"]), (c["WINDOW1"], c["W_1"])]
    return (TensorMap.of(arguments[0], ELEMENT, offsets[0], image, box, steps),
            TensorMap.of(arguments[1], ELEMENT, offsets[1], [*lines, *taps],
                         (DEPTH, columns if c["W_I"] == 1 else DEPTH)))
