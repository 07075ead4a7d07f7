"""The sizes from which a library kernel computes a matmul or a convolution; smaller ones are plain loops.

Separate from the lowering, so that library kernels can be chosen, and compiled, before the lowering is imported.
"""
from __future__ import annotations

import math

from hloc.ir import ELEMENT_TYPES, ConvolutionDimensionNumbers, Instruction, WindowDim, window_of
from hloc.kernels.scalars import is_narrow
from hloc.kernels.sliding import LONGEST_STEP, SHORTEST_SLIDE, slides

TINY = 2048                     # multiply-adds below which a tile costs more than it saves
SMALL = 8192                    # the same for products whose columns are contiguous, and not bytes; else half of it
TINY_OF_MANY = 4096             # of each product of a batch; each has the tile's startup cost
SMALL_CONVOLUTION = 16384       # multiply-adds of convolutions with contiguous features; half of it for bytes
FEWEST_FEATURES = 4
IN_PLANES = 1 << 17             # multiply-adds of convolutions of few features;
LONGEST_TAPS = 8                # taps of a row that are added to sums in registers
FEW_FEATURES, FEW_PAIRS = 5, 16     # sums of one position that leave most lanes of a vector empty; with channels
FEW_PLANES = 4                  # pairs of an image's plane and a result's, along whose rows windows move; with more of
MOST_TAPS, LONG_ROW = 800, 96   # them, elements of the filter, and bytes of a row
SHORT_ROW, FEWEST_SHARING = 64, 8       # elements; features; the products of a channel's element, at most:
SHARED_BY_SHORT, SHARED_BY_FEW, SHARED = 100, 300, 160
SHARING_IMAGE = {"f32": 6, "f64": 6, "f16": 4, "bf16": 1}      # features whose long windows meet an image one by one,
FEW_GRADIENTS, FEW_SHORT, FEW_APART = 64, 8, 8                 # pairs, of short rows, of rows whose elements lie apart
MOST_SUMS, LONG_WINDOW, LONG_ENOUGH, MOST_ENDS = 8, 16, 48, 64     # sums; places in a row; terms at its ends
SHALLOW, NARROW = 8, 128        # products in a sum, and columns, of which rows are read and written faster than packed;
FEW_TERMS = 4                   # of so few terms, more columns: most of the time goes into storing them
WIDEST = 2048
WIDE = {"f32": 1024, "f64": 512}        # if tiles need no conversion


def has_few_terms(depth: int, columns: int, widest: int = WIDEST) -> bool:
    """Whether a product is faster as loops over its rows, for any number of rows."""
    return (depth <= SHALLOW and columns <= NARROW) or (depth <= FEW_TERMS and columns <= widest)


def multiply_adds(convolution: Instruction) -> int:
    """The multiply-adds of the whole convolution, including those on padding."""
    kernel = convolution.operands[1].shape.dimensions
    features = kernel[convolution.get("dim_labels").kernel_output_feature]
    return convolution.shape.num_elements * math.prod(kernel) // max(1, features)


def long_windows(convolution: Instruction) -> bool:
    """Whether a convolution has few positions in a row of the result, few pairs of features, and windows that are long
    in the last dimension, as in gradients of small filters: loops on a CPU, with vectors along the window."""
    n: ConvolutionDimensionNumbers = convolution.get("dim_labels")
    if not n.output_spatial:
        return False
    windows, y = window_of(convolution), convolution.shape.dimensions
    places, type = y[n.output_spatial[-1]], convolution.operands[1].shape.element_type
    first, end = taps_always_inside(convolution)
    apart = any(math.prod(o.shape.dimensions[d[-1] + 1:]) > 1
                for o, d in zip(convolution.operands, (n.input_spatial, n.kernel_spatial)))
    most = FEW_APART // (1 + is_narrow(type)) if apart else FEW_GRADIENTS if end - first >= LONG_ENOUGH else FEW_SHORT
    return (y[n.output_feature] <= SHARING_IMAGE.get(type, 0) and 1 < places <= MOST_SUMS
            and y[n.output_batch] * y[n.output_feature] <= most
            and all(w.base_dilation == 1 and not w.reversal for w in windows)
            and math.prod(w.size for w in windows) > 4 * math.prod(y[d] for d in n.output_spatial)
            and end - first >= LONG_WINDOW and (first + windows[-1].size - end) * places <= MOST_ENDS
            and windows[-1].window_dilation <= LONGEST_STEP and multiply_adds(convolution) > TINY
            and convolution.get("feature_group_count", 1) == convolution.get("batch_group_count", 1) == 1)


def taps_always_inside(convolution: Instruction) -> tuple[int, int]:
    """The first position, and the end, of the part of a window's row that is inside the image for all positions of a
    row of the result."""
    n: ConvolutionDimensionNumbers = convolution.get("dim_labels")
    window = window_of(convolution)[-1]
    size = convolution.operands[0].shape.dimensions[n.input_spatial[-1]]
    far = (convolution.shape.dimensions[n.output_spatial[-1]] - 1) * window.stride - window.padding_low
    first = max(0, -(-window.padding_low // window.window_dilation))
    return first, max(first, min(window.size, (size - 1 - far) // window.window_dilation + 1))


def is_shallow(convolution: Instruction) -> bool:
    """Whether this is a product of few columns and few terms per sum, over contiguous images: loops on a CPU."""
    n: ConvolutionDimensionNumbers = convolution.get("dim_labels")
    kernel = convolution.operands[1].shape
    rows = (n.output_batch, *n.output_spatial, n.output_feature)
    return (all(w == WindowDim() for w in window_of(convolution))
            and convolution.get("feature_group_count", 1) == convolution.get("batch_group_count", 1) == 1
            and rows == tuple(range(convolution.shape.rank)) and n.kernel_output_feature == kernel.rank - 1
            and (kernel.element_type in ("bf16", "f16") or not is_narrow(kernel.element_type))
            and kernel.dimensions[n.kernel_input_feature] <= SHALLOW and kernel.dimensions[-1] <= NARROW)


def is_small(convolution: Instruction) -> bool:
    """Whether a convolution has few multiply-adds, and contiguous features in filter and result: loops on a CPU."""
    n: ConvolutionDimensionNumbers = convolution.get("dim_labels")
    last = convolution.shape.rank - 1
    most = SMALL_CONVOLUTION // (2 if ELEMENT_TYPES[convolution.operands[1].shape.element_type].bytes == 1 else 1)
    return (multiply_adds(convolution) <= most and n.output_feature == n.kernel_output_feature == last
            and convolution.shape.dimensions[last] >= FEWEST_FEATURES
            and convolution.get("feature_group_count", 1) == convolution.get("batch_group_count", 1) == 1
            and all(w.base_dilation == 1 for w in window_of(convolution)))


def fills_few_lanes(convolution: Instruction) -> bool:
    """Whether a convolution has so few features that vectors run along the positions of an image, across the ends of
    its rows: it is small, or has few channels."""
    n: ConvolutionDimensionNumbers = convolution.get("dim_labels")
    windows, kernel = window_of(convolution), convolution.operands[1].shape.dimensions
    pairs = kernel[n.kernel_input_feature] * kernel[n.kernel_output_feature]
    return ((multiply_adds(convolution) <= IN_PLANES or pairs <= FEW_PAIRS)
            and convolution.get("feature_group_count", 1) == convolution.get("batch_group_count", 1) == 1
            and (n.output_batch, *n.output_spatial, n.output_feature) == (0, 1, 2, 3)
            and convolution.shape.dimensions[-1] <= FEW_FEATURES
            and all(w.stride == w.base_dilation == 1 for w in windows) and 1 < windows[-1].size <= LONGEST_TAPS
            and convolution.operands[1].shape.element_type in ("f32", "f64", "f16", "bf16"))


def _fills_lanes(convolution: Instruction, row: int) -> bool:
    """Whether so many features share each load of an image that a library kernel, with 16 features per vector, is
    faster."""
    n: ConvolutionDimensionNumbers = convolution.get("dim_labels")
    kernel = convolution.operands[1].shape
    features = kernel.dimensions[n.kernel_output_feature]
    most = SHARED_BY_SHORT if row < SHORT_ROW else SHARED if features >= FEWEST_SHARING else SHARED_BY_FEW
    taps = math.prod(kernel.dimensions[d] for d in n.kernel_spatial)
    return kernel.element_type == "f32" and features * taps > most


def slides_along_rows(convolution: Instruction) -> bool:
    """Whether a convolution has few planes, whose rows are contiguous along its windows' movement: loops on a CPU."""
    n: ConvolutionDimensionNumbers = convolution.get("dim_labels")
    last, kernel = convolution.shape.rank - 1, convolution.operands[1].shape
    if last not in n.output_spatial or n.input_spatial[n.output_spatial.index(last)] != last:
        return False
    planes = kernel.dimensions[n.kernel_input_feature] * kernel.dimensions[n.kernel_output_feature]
    row = convolution.shape.dimensions[last]
    return (slides(window_of(convolution)[n.output_spatial.index(last)])
            and row >= SHORTEST_SLIDE
            and convolution.get("feature_group_count", 1) == convolution.get("batch_group_count", 1) == 1
            and (planes <= FEW_PLANES or (kernel.num_elements <= MOST_TAPS and not is_narrow(kernel.element_type)
                                          and row * ELEMENT_TYPES[kernel.element_type].bytes >= LONG_ROW
                                          and not _fills_lanes(convolution, row)))
            and kernel.element_type in ("f32", "f64", "bf16", "f16", "s32", "u32", "s64", "u64"))
