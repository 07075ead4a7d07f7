"""Convolutions that are one matmul per image without copies: Tiles of the library kernel "gemm" on a CPU.

    images   windows of one position, with contiguous positions (NCHW)
    frames   windows along a line without padding, with contiguous elements (sound: a short-time Fourier transform):
             rows of the product overlap in memory

In: the convolution and its operands' strides. Out: a ConvolutionProduct, or None. Of the two dimensions of the result,
the contiguous one becomes the columns, so that the epilogue reads and writes in rows:

    out[n, o, p] = epilogue(sum over k of filter[o, k] * image[n, k, p])      positions last
    out[n, p, o] = epilogue(sum over k of image[n, p, k] * filter[k, o])      features last
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hloc.analysis.strides import collapsed
from hloc.ir import Instruction, WindowDim, row_major, window_of
from hloc.kernels import indexing
from hloc.kernels.indexing import Index

TYPES = ("f32", "f64", "bf16", "f16")
FEWEST_FRAMES, LONG_FRAME = 16, 16
MOST_OVERLAPPING = 16           # frames that contain an element, if each is converted (f16) or fills half a vector
ONE = WindowDim()


class ConvolutionProduct(NamedTuple):
    """sizes: batch, positions, features, products in a sum; strides of image: batch, position, product in a sum; of
    filter: product in a sum, feature; of result: batch, position, feature."""

    sizes: tuple[int, int, int, int]
    image: tuple[int, int, int]
    filter: tuple[int, int]
    result: tuple[int, int, int]

    @property
    def is_transposed(self) -> bool:
        """Whether the filter is the left side."""
        return self.result[1] == 1 and self.sizes[1] > 1

    def parameters(self, image_offset: int, filter_offset: int) -> tuple[tuple[str, object], ...]:
        """The parameters listed in dot.py; if transposed, the filter is "lhs"."""
        batch, positions, features, depth = self.sizes
        if self.is_transposed:
            return (("sizes", (features, positions, depth)), ("batches", (batch, 1)),
                    ("lhs", (filter_offset, 0, 0, self.filter[1], self.filter[0])),
                    ("rhs", (image_offset, self.image[0], 0, self.image[2], self.image[1])),
                    ("result", (self.result[0], 0, self.result[2], self.result[1])))
        return (("sizes", (positions, features, depth)), ("batches", (batch, 1)),
                ("lhs", (image_offset, self.image[0], 0, *self.image[1:])),
                ("rhs", (filter_offset, 0, 0, *self.filter)),
                ("result", (self.result[0], 0, *self.result[1:])))

    def position(self) -> Index:
        """The flat position in the result of (batch, row, column)."""
        batch, positions, features, _ = self.sizes
        names = ("batch", "column", "row") if self.is_transposed else ("batch", "row", "column")
        result = indexing.ZERO
        for name, size, stride in zip(names, (batch, positions, features), self.result):
            result = indexing.add(result, indexing.scale(indexing.variable(name, size), stride))
        return result


def product_of_images(hero: Instruction, image: Sequence[int] | None = None,
                      kernel: Sequence[int] | None = None) -> ConvolutionProduct | None:
    """The product for operands with these strides, or contiguous ones; None if the convolution is no such product."""
    x, w, y = (i.shape.dimensions for i in (*hero.operands[:2], hero))
    n, windows = hero.get("dim_labels"), window_of(hero)
    if hero.get("feature_group_count", 1) != 1 or hero.get("batch_group_count", 1) != 1 \
            or any(i.shape.element_type not in TYPES for i in (hero, *hero.operands[:2])):
        return None
    image, kernel = image or row_major(x), kernel or row_major(w)
    out = row_major(y)
    places: tuple[int, int, int] | None
    summed: tuple[int, int, int] | None
    if all(window == ONE for window in windows):
        places = _joined([(x[d], image[d], out[e]) for d, e in zip(n.input_spatial, n.output_spatial)])
        summed = (x[n.input_feature], image[n.input_feature], kernel[n.kernel_input_feature])
        if places is None or places[0] == 1 or places[2] != 1 or places[1] != 1:
            return None
    else:
        lines = [d for d, window in enumerate(windows) if window != ONE or x[n.input_spatial[d]] != 1]
        if len(lines) != 1:
            return None
        places, summed = _frames(windows[d := lines[0]], x[n.input_spatial[d]], y[n.output_spatial[d]],
                                 image[n.input_spatial[d]], out[n.output_spatial[d]]), \
            _joined([(windows[d].size, image[n.input_spatial[d]] * windows[d].window_dilation,
                      kernel[n.kernel_spatial[d]]),
                     (x[n.input_feature], image[n.input_feature], kernel[n.kernel_input_feature])])
        if places is None or summed is None or summed[1] != 1 or summed[0] < LONG_FRAME:
            return None
        awkward = hero.operands[0].shape.element_type == "f16" or places[2] != 1 and 4 < y[n.output_feature] <= 8
        if awkward and summed[0] > MOST_OVERLAPPING * places[1]:
            return None
    return ConvolutionProduct(
        (y[n.output_batch], places[0], y[n.output_feature], summed[0]), (image[n.input_batch], places[1], summed[1]),
        (summed[2], kernel[n.kernel_output_feature]), (out[n.output_batch], places[2], out[n.output_feature]))


def _frames(window: WindowDim, size: int, count: int, step: int, out: int) -> tuple[int, int, int] | None:
    """(number, strides in image and result) of windows along a line, none of which includes padding."""
    if window.padding_low or window.base_dilation != 1 or window.reversal or count < FEWEST_FRAMES \
            or (count - 1) * window.stride + (window.size - 1) * window.window_dilation >= size:
        return None
    return count, step * window.stride, out


def _joined(parts: list[tuple[int, int, int]]) -> tuple[int, int, int] | None:
    """Dimensions (size, two strides), outermost first, collapsed into one; None if that is not possible."""
    (size, first, second), *others = collapsed(parts) or [(1, 1, 1)]
    return None if others else (size, first, second)
