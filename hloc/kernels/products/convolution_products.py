"""Convolutions that are one matmul per image without copies: Tiles of the library kernel "gemm" on a CPU.

    images   windows of one position, with contiguous positions (NCHW)
    frames   windows along a line without padding, with contiguous elements (sound: a short-time Fourier transform):
             rows of the product overlap in memory

In: the convolution and its operands' strides. Out: the Lines of the product, or None. Of the two dimensions of the
result, the contiguous one becomes the columns, so that the epilogue reads and writes in rows:

    out[n, o, p] = epilogue(sum over k of filter[o, k] * image[n, k, p])      positions last
    out[n, p, o] = epilogue(sum over k of image[n, p, k] * filter[k, o])      features last
"""
from __future__ import annotations

from collections.abc import Sequence

from hloc.analysis.strides import collapsed
from hloc.ir import Instruction, WindowDim, row_major, window_of
from hloc.kernels.products.gemm import Line, Lines

TYPES = ("f32", "f64", "bf16", "f16")
FEWEST_FRAMES, LONG_FRAME = 16, 16
MOST_OVERLAPPING = 16           # frames that contain an element, if each is converted (f16) or fills half a vector
ONE = WindowDim()


def product_of_images(hero: Instruction, image: Sequence[int] | None = None,
                      kernel: Sequence[int] | None = None) -> tuple[Lines, bool] | None:
    """The dimensions of the product for operands with these strides, or contiguous ones, and whether the filter is its
    left side; None if the convolution is no such product."""
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
    batch = (y[n.output_batch], image[n.input_batch], 0, out[n.output_batch])
    rows = (places[0], places[1], 0, places[2])
    columns = (y[n.output_feature], 0, kernel[n.kernel_output_feature], out[n.output_feature])
    one, summed_line = (1, 0, 0, 0), (*summed, 0)
    if places[2] != 1 or places[0] == 1:
        return (batch, one, rows, columns, summed_line), False
    return (_exchanged(batch), one, _exchanged(columns), _exchanged(rows), _exchanged(summed_line)), True


def _exchanged(line: Line) -> Line:
    """With the right array as the left one."""
    size, left, right, result = line
    return size, right, left, result


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
