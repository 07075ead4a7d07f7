"""Convolutions that are one matmul, or one per image, without copies: Tiles of the library kernel "gemm" on a CPU.

    pointwise   windows of one position
    whole       windows that cover the image, as in gradients of pointwise filters
    frames      windows along a line (sound: a short-time Fourier transform): rows of the product overlap in memory

In: the convolution and its operands' strides. Out: the Lines of the product, or None. Of the two dimensions of the
result, the contiguous one becomes the columns, so that the epilogue reads and writes in rows:

    out[n, o, p] = epilogue(sum over k of filter[o, k] * image[n, k, p])      positions last
    out[n, p, o] = epilogue(sum over k of image[n, p, k] * filter[k, o])      features last
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence

from hloc.analysis.strides import collapsed
from hloc.ir import Instruction, WindowDim, row_major, window_of
from hloc.kernels.products.gemm import Line, Lines

FEWEST_FRAMES, LONG_FRAME = 16, 16
MOST_OVERLAPPING = 16           # frames that contain an element, if each is converted (f16) or fills half a vector
ONE: Line = (1, 0, 0, 0)


def product_of_convolution(hero: Instruction, image: Sequence[int], kernel: Sequence[int]) -> tuple[Lines, bool] | None:
    """The dimensions of the product for operands with these strides, and whether the filter is its left side; None if
    the convolution is no such product: a window includes padding, or positions do not follow each other."""
    x, w, y = (i.shape.dimensions for i in (*hero.operands[:2], hero))
    n, windows, out = hero.get("dim_labels"), window_of(hero), row_major(y)
    spatial = list(zip(windows, n.input_spatial, n.kernel_spatial, n.output_spatial))
    if hero.get("feature_group_count", 1) != 1 or hero.get("batch_group_count", 1) != 1 \
            or not all(_is_inside(window, x[i], y[o]) for window, i, _, o in spatial):
        return None
    rows = _joined((y[o], image[i] * window.stride, 0, out[o]) for window, i, _, o in spatial)
    terms = _joined([(w[n.kernel_input_feature], image[n.input_feature], kernel[n.kernel_input_feature], 0),
                     *((window.size, image[i] * window.window_dilation, kernel[k], 0) for window, i, k, _ in spatial)])
    batch = (y[n.output_batch], image[n.input_batch], 0, out[n.output_batch])
    columns = (y[n.output_feature], 0, kernel[n.kernel_output_feature], out[n.output_feature])
    if rows is None or terms is None or not (
            rows == ONE or all(window.size == 1 for window in windows) or _are_frames(hero, rows, terms, columns)):
        return None
    if (joined := _joined((batch, rows))) is not None:
        batch, rows = ONE, joined
    if rows[0] == 1 or rows[3] != 1:
        return (batch, ONE, rows, columns, terms), False
    return (_exchanged(batch), ONE, _exchanged(columns), _exchanged(rows), _exchanged(terms)), True


def _is_inside(window: WindowDim, size: int, count: int) -> bool:
    """Whether no window includes padding."""
    return not window.padding_low and window.base_dilation == 1 and not (window.reversal and window.size > 1) \
        and (count - 1) * window.stride + (window.size - 1) * window.window_dilation < size


def _joined(parts: Iterable[Line]) -> Line | None:
    """Dimensions as one, in the order of the image; None if that is not possible."""
    (size, image, kernel, result), *others = collapsed(sorted(parts, key=lambda part: -part[1])) or [ONE]
    return None if others else (size, image, kernel, result)


def _are_frames(hero: Instruction, rows: Line, terms: Line, columns: Line) -> bool:
    """Whether a matmul of overlapping rows is faster than a convolution."""
    awkward = hero.operands[0].shape.element_type == "f16" or rows[3] != 1 and 4 < columns[0] <= 8
    return rows[0] >= FEWEST_FRAMES and terms[0] >= LONG_FRAME and terms[1] == 1 \
        and not (awkward and terms[0] > MOST_OVERLAPPING * rows[1])


def _exchanged(line: Line) -> Line:
    """With the right array as the left one."""
    size, left, right, result = line
    return size, right, left, result
