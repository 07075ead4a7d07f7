"""A convolution as runtime/conv.h takes it, computed from the parameters of its Tile.

In: parameters as in hloc/kernels/products/convolution.py. Out: a Convolution, of one batch group. Names are those of
the C code. Missing spatial dimensions come first, as in hloc_conv_args.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

from hloc.kernels.ir import Tile
from hloc.machine import Machine
from hloc.targets.cpu.building.library_kernels import FAST_TYPES

ONES = (1, 1, 1)


class Convolution(NamedTuple):
    """hloc_conv_args of one batch group, and facts; strides in elements."""

    batch: int
    x_features: int
    y_features: int
    feature_groups: int
    batch_groups: int
    x_size: tuple
    window: tuple
    y_size: tuple
    stride: tuple
    pad_low: tuple
    base_dilation: tuple
    window_dilation: tuple
    reversed: tuple
    x_n: int
    x_c: int
    x_s: tuple
    w_i: int
    w_o: int
    w_s: tuple
    y_n: int
    y_c: int
    y_s: tuple
    y_is_narrow: bool
    type: str
    has_epilogue: bool
    is_packed: bool = False          # w is packed by an earlier step, or by this one (packing.py)
    packs: bool = False              # by this one, which computes nothing else

    @property
    def taps(self) -> int:
        return prod(self.window)

    @property
    def depth(self) -> int:
        """Of a group: its input features."""
        return self.x_features // self.feature_groups

    @property
    def features(self) -> int:
        """Of a group: its output features."""
        return self.y_features // self.feature_groups

    @property
    def arguments(self) -> dict[str, object]:
        """Those of all batch groups, but for addresses, and for where sums go."""
        whole = self._replace(batch=self.batch * self.batch_groups, y_features=self.y_features * self.batch_groups)
        return dict(zip(self._fields[:self._fields.index("y_n")], whole))

    @property
    def is_f32(self) -> bool:
        return self.type == "f32"


class Choices(NamedTuple):
    """hloc_conv_choices of runtime/conv.h; sizes in floats unless they say bytes.

    move_x, move_w      are copied into the order of the library kernel; pitch, image: from one position, image of x to
                        the next
    one_piece           by rows: a whole row of the window is one run of x
    is_few, by_dots     by rows: all positions in each task; lanes are x's features. Winograd: few blocks
    framed              other types: x itself is the frame
    at_w, at_panels     where copies begin, behind that of x: w; panels, filters or spread images
    first, second, own  bytes of scratch memory
    panels_at_once ...  of a task; row_group: tiles of one, by rows; grain: tasks that a thread takes at once
    images, piece       in memory at once; positions of a row that a task sums, depthwise: channels of a task
    patch_rows          copied at once, 0: none
    """

    move_x: bool = False
    move_w: bool = False
    one_piece: bool = False
    is_few: bool = False
    by_dots: bool = False
    framed: bool = False
    pitch: int = 0
    image: int = 0
    at_w: int = 0
    at_panels: int = 0
    first: int = 0
    second: int = 0
    own: int = 0
    panels_at_once: int = 0
    blocks_at_once: int = 0
    row_group: int = 0
    grain: int = 0
    images: int = 0
    piece: int = 0
    patch_rows: int = 0


def convolution_of(tile: Tile) -> Convolution:
    """Of a Tile of the library kernel "convolution"."""
    narrow = not tile.epilogue and len(tile.buffers) > 2 and tile.buffers[2].type in ("bf16", "f16")
    return arguments(dict(tile.parameters), bool(tile.epilogue), narrow)


def arguments(given: Mapping, has_epilogue: bool, y_is_narrow: bool = False) -> Convolution:
    """The arguments of one batch group; strides are settled if the type has several algorithms."""
    unused, groups = 3 - len(given["window"]), given["batch_groups"]

    def three(values: Sequence, filler: int) -> tuple:
        return (filler,) * unused + tuple(values)
    _, x_n, x_c, *x_s = given["lhs"]
    _, w_i, w_o, *w_s = given["rhs"]
    y_n, y_c, *y_s = given["result"] if not has_epilogue else (0, 0, *[0] * len(given["window"]))
    c = Convolution(
        given["batch"] // groups, given["lhs_features"], given["features"] // groups, given["feature_groups"], groups,
        three(given["lhs_size"], 1), three(given["window"], 1), three(given["size"], 1), three(given["stride"], 1),
        three(given["padding_low"], 0), three(given["base_dilation"], 1), three(given["window_dilation"], 1),
        three(given["reversal"], 0), x_n, x_c, three(x_s, 0), w_i, w_o, three(w_s, 0), y_n, y_c, three(y_s, 0),
        y_is_narrow, given["types"][0], has_epilogue, "packing" in given, given.get("packing") == "packs")
    return _normalized(c) if c.type in FAST_TYPES["conv"] else c


def _normalized(c: Convolution) -> Convolution:
    """Strides of dimensions of size one are arbitrary: chosen so that contiguous images and features are recognized."""
    x_s, y_s = list(c.x_s), list(c.y_s)
    for d in (1, 0):
        x_s[d] = c.x_size[d + 1] * x_s[d + 1] if c.x_size[d] == 1 else x_s[d]
        y_s[d] = c.y_size[d + 1] * y_s[d + 1] if c.y_size[d] == 1 else y_s[d]
    x_c, y_c = 1 if c.x_features == 1 else c.x_c, 1 if c.y_features == 1 else c.y_c
    return c._replace(x_c=x_c, y_c=y_c, x_s=tuple(x_s), y_s=tuple(y_s))


def panel_columns(machine: Machine) -> int:
    """HLOC_CONV_COLUMNS."""
    return 2 * machine.vector_bytes // 4
