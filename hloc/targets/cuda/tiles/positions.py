"""Convolutions that sum over many positions, such as gradients of filters: the bulk copy engine copies positions.

In: a convolution's constants (convolutions.py) whose input is contiguous along the batch and whose kernel is contiguous
along the features. Out: the Positions of one step of the depth, and the tensor maps. The sums are a product

    dw[tap] = x[tap]^T dy        x^T: (channels x positions), dy: (positions x features)

for each tap, and both operands are contiguous across the depth. wgmma reads this for types of two bytes. For f32 dy is
packed as lines along the depth (lines.py), and x passes through registers. In XLA's terms the channels of x are the
batch, the positions of dy are the window, and the taps are the output positions. A step of the depth is one box of x
and one of dy. Boxes divide the positions evenly: behind the end of dy would be zeros, but x has elements there, and
infinity times zero is NaN.

    positions_of(128 images of 28 x 28 of bf16) == Positions(4, 4, 4)
"""
from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from hloc.targets.cuda.tiles.tensor_maps import LARGEST_BOX, LARGEST_SIZE, LARGEST_STEP, LINE, PIECE, TensorMap

WIDER = 0.9                     # least share of the best fill for boxes with longer rows


class Positions(NamedTuple):
    """The positions of one step: their extent in each direction, and the number of images."""

    across: int
    down: int
    images: int

    @property
    def size(self) -> int:
        return self.across * self.down * self.images

    def depth(self, c: dict[str, int], width: int) -> int:
        """The depth in whole steps, of elements of so many bytes."""
        steps = c["WINDOW2"] // self.across * (c["WINDOW1"] // self.down) * (c["CHANNELS"] // self.images)
        return steps * step_of(width)

    def constants(self, c: dict[str, int], width: int) -> dict[str, int]:
        """Constants of conv_bulk.cuh."""
        return {"PATCH_ACROSS": self.across, "PATCH_DOWN": self.down, "PATCH_IMAGES": self.images,
                "PANELS": panels_of(c, width), "K": self.depth(c, width)}


def step_of(width: int) -> int:
    """Most positions of one step, and channels or features per line. width: bytes of an element."""
    return LINE // width


def panels_of(c: dict[str, int], width: int) -> int:
    """Lines that hold the channels of one position."""
    return -(-c["IMAGES"] // step_of(width))


def rows_of(c: dict[str, int], width: int) -> int:
    """Rows of the product, in whole lines."""
    return panels_of(c, width) * step_of(width) * c["POINTS"]


def positions_of(c: dict[str, int], width: int) -> Positions:
    """The box with the longest rows among those that fill a step about as well as the best one does."""
    return _positions((c["WINDOW2"], c["WINDOW1"], c["CHANNELS"]), (c["DILATION2"], c["DILATION1"]), step_of(width))


@lru_cache(maxsize=1024)
def _positions(sizes: tuple[int, int, int], steps: tuple[int, int], whole: int) -> Positions:
    most = [min(whole, (LARGEST_BOX - 1) // step + 1) for step in steps]
    found = [Positions(across, down, images) for across in _divisors(sizes[0], most[0])
             for down in _divisors(sizes[1], min(most[1], whole // across))
             for images in _divisors(sizes[2], whole // (across * down))]
    best = max(p.size for p in found)
    return next(p for p in found if p.size >= WIDER * best)


def _divisors(size: int, most: int) -> list[int]:
    """The divisors of a size up to a limit, the largest first."""
    return [n for n in range(min(size, most), 0, -1) if size % n == 0]


def is_positions(c: dict[str, int], offsets: tuple[int, int], width: int) -> bool:
    """Whether operands can be copied in boxes of positions. offsets: their first elements; width: bytes of an
    element."""
    plain = all(c[f"BASE{d}"] == 1 and not c[f"REVERSAL{d}"] for d in range(3)) \
        and c["OUT0"] == c["WINDOW0"] == c["SIZE0"] == 1 and not c["LOW0"] and c["GROUPS"] * c["BATCH_GROUPS"] == 1
    lines = c["X_N"] == 1 and c["IMAGES"] > 1 and c["W_O"] == 1 and c["FEATURES"] > 1
    names = (("X_C", "CHANNELS"), ("W_I", "CHANNELS"), ("X_1", "SIZE1"), ("X_2", "SIZE2"), ("W_1", "WINDOW1"),
             ("W_2", "WINDOW2"))
    strides = [c[stride] for stride, size in names if c[size] > 1]
    aligned = all(n % (PIECE // width) == 0 for n in (*strides, *offsets)) and all(n > 0 for n in strides)
    sizes = max(c[n] for n in ("IMAGES", "CHANNELS", "FEATURES", "SIZE1", "SIZE2")) < LARGEST_SIZE // 2
    return plain and lines and aligned and sizes and max(c["DILATION1"], c["DILATION2"]) <= LARGEST_STEP


def maps_of_positions(c: dict[str, int], offsets: tuple[int, int], part: Positions, arguments: list[int], width: int
                      ) -> tuple[TensorMap, TensorMap]:
    """The maps of the input and the kernel. offsets: their first elements; arguments: their indices among the
    kernel's; width: bytes of an element."""
    image = [(c["IMAGES"], 1), (c["SIZE2"], c["X_2"]), (c["SIZE1"], c["X_1"]), (c["CHANNELS"], c["X_C"])]
    steps = (1, c["DILATION2"], c["DILATION1"], 1)
    box = (step_of(width), (part.across - 1) * steps[1] + 1, (part.down - 1) * steps[2] + 1, part.images)
    kernel = [(c["FEATURES"], 1), (c["WINDOW2"], c["W_2"]), (c["WINDOW1"], c["W_1"]), (c["CHANNELS"], c["W_I"])]
    return (TensorMap.of(arguments[0], width, offsets[0], image, box, steps),
            TensorMap.of(arguments[1], width, offsets[1], kernel, (step_of(width), *part)))
