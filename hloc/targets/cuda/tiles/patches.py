"""Convolutions whose windows the bulk copy engine gathers: a tile's rows are a patch of output positions.

In: a convolution's constants (convolutions.py). Out: the Patch of a tile, and the tensor maps of image and filter. For
one tap of the window, a patch reads boxes of the image: `across` x `down` positions of `images` images, 128 bytes
of channels deep. The engine reads zeros outside of the image and behind its channels; these are the padding. Window
strides are steps of the map.

    patch_of(128 images of 14 x 14, 128 rows) == Patch(14, 1, 9)       126 of 128 rows
"""
from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from hloc.targets.cuda.tiles.tensor_maps import LARGEST_BOX, LARGEST_SIZE, LARGEST_STEP, LINE, PIECE, TensorMap

MORE_TILES = 1.08               # most tiles, relative to the fewest, for wider patches
FEWEST_ROWS = 0.85              # least share of a tile's rows that are output positions


class Patch(NamedTuple):
    """The output positions of one tile: their extent in each direction, and the number of images."""

    across: int
    down: int
    images: int

    @property
    def rows(self) -> int:
        return self.across * self.down * self.images

    def constants(self, c: dict[str, int], width: int) -> dict[str, int]:
        """Constants of conv_bulk.cuh. c: of the convolution; width: bytes of an element."""
        return {"PATCH_ACROSS": self.across, "PATCH_DOWN": self.down, "PATCH_IMAGES": self.images,
                "DEEP": deep_of(c, width), "K": depth_of(c, width)}


def deep_of(c: dict[str, int], width: int) -> int:
    """The depth of a tap: channels in whole lines."""
    return -(-c["CHANNELS"] * width // LINE) * LINE // width


def depth_of(c: dict[str, int], width: int) -> int:
    """The depth of the product, in whole lines for each tap."""
    return c["K"] // max(1, c["CHANNELS"]) * deep_of(c, width)


def patch_of(c: dict[str, int], rows: int) -> Patch:
    """The widest patch that needs about the fewest tiles (MORE_TILES). rows: of a tile."""
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


def is_boxes(c: dict[str, int], width: int) -> bool:
    """Whether operands can be copied in boxes: channels are contiguous and aligned, there is no base dilation, and
    filters are contiguous in one dimension (f32 are packed). Tiles of some size must be filled well enough
    (FEWEST_ROWS). c: with vectors; width: bytes of an element."""
    plain = all(c[f"BASE{d}"] == 1 for d in range(3)) and c["OUT0"] == c["WINDOW0"] == c["SIZE0"] == 1 and not c["LOW0"]
    channels = c["X_VECTOR"] * width == PIECE and not c["IMAGES_FIRST"]
    filters = width == 4 or c["W_VECTOR"] * width == PIECE
    steps = max(c["STRIDE1"], c["STRIDE2"]) <= LARGEST_STEP
    sizes = max(c["CHANNELS"], c["FEATURES"], c["SIZE1"], c["SIZE2"], c["IMAGES"]) < LARGEST_SIZE // 2
    if not (plain and channels and filters and steps and sizes) or c["GROUPS"] * c["BATCH_GROUPS"] > 1:
        return False
    outputs = (c["OUT2"], c["OUT1"], c["IMAGES"])
    return any(c["M"] >= FEWEST_ROWS * rows * _tiles(patch_of(c, rows), outputs) for rows in (64, 128))


def map_of_image(c: dict[str, int], offset: int, patch: Patch, argument: int, width: int) -> TensorMap:
    """The map of the image. offset: its first element; argument: its index among the kernel's; width: bytes of an
    element."""
    image = [(c["CHANNELS"], 1), (c["SIZE2"], c["X_2"]), (c["SIZE1"], c["X_1"]), (c["IMAGES"], c["X_N"])]
    steps = (1, c["STRIDE2"], c["STRIDE1"], 1)
    box = (LINE // width, (patch.across - 1) * steps[1] + 1, (patch.down - 1) * steps[2] + 1, patch.images)
    return TensorMap.of(argument, width, offset, image, box, steps)


def map_of_filter(c: dict[str, int], offset: int, columns: int, argument: int, width: int) -> TensorMap:
    """The map of a filter that is not packed, for tiles of so many columns."""
    depth, features = (c["CHANNELS"], c["W_I"]), (c["FEATURES"], c["W_O"])
    lines = [depth, features] if c["W_I"] == 1 else [features, depth]
    taps = [(c["WINDOW2"], c["W_2"]), (c["WINDOW1"], c["W_1"])]
    deep = LINE // width
    return TensorMap.of(argument, width, offset, [*lines, *taps], (deep, columns if c["W_I"] == 1 else deep))
