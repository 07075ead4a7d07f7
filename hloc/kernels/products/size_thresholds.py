"""The sizes from which a library kernel computes a matmul or a convolution; smaller ones are plain loops."""
from __future__ import annotations

import math

from hloc.ir import ELEMENT_TYPES, ConvolutionDimensionNumbers, Instruction, window_of

TINY = 2048                     # multiply-adds below which a tile costs more than it saves
SMALL = 4096                    # the same on a CPU, of each product of a batch
FEW_PAIRS = 32                  # products of channels and features that leave most lanes of a vector empty
FEW_GRADIENTS, MOST_SUMS, LONG_WINDOW = 16, 8, 16      # pairs of features, sums of a row, places in a row of windows


def long_windows(convolution: Instruction) -> bool:
    """Whether a convolution has few positions in a row of the result, few pairs of features, and windows that are long
    in the last dimension, along which both operands are contiguous, as in gradients of small filters: loops on a CPU,
    with vectors along the window."""
    n: ConvolutionDimensionNumbers = convolution.get("dim_labels")
    if not n.output_spatial:
        return False
    windows, y = window_of(convolution), convolution.shape.dimensions
    first, end = taps_always_inside(convolution)
    return (1 < y[n.output_spatial[-1]] <= MOST_SUMS and y[n.output_batch] * y[n.output_feature] <= FEW_GRADIENTS
            and all(math.prod(o.shape.dimensions[d[-1] + 1:]) == 1
                    for o, d in zip(convolution.operands, (n.input_spatial, n.kernel_spatial)))
            and all(w.base_dilation == 1 and not w.reversal for w in windows) and end - first >= LONG_WINDOW
            and math.prod(w.size for w in windows) > 4 * math.prod(y[d] for d in n.output_spatial)
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


def fills_few_lanes(convolution: Instruction) -> bool:
    """Whether a convolution has so few features and channels that vectors run along the positions of an image, across
    the ends of its rows: loops on a CPU."""
    n: ConvolutionDimensionNumbers = convolution.get("dim_labels")
    windows, kernel = window_of(convolution), convolution.operands[1].shape
    taps = math.prod(w.size for w in windows)
    return (kernel.dimensions[n.kernel_input_feature] * kernel.dimensions[n.kernel_output_feature] <= FEW_PAIRS
            and len(windows) <= 2 and 1 < taps <= math.prod(convolution.shape.dimensions[d] for d in n.output_spatial)
            and convolution.get("feature_group_count", 1) == convolution.get("batch_group_count", 1) == 1
            and all(w.stride == w.base_dilation == 1 for w in windows)
            and (kernel.element_type in ("bf16", "f16") or ELEMENT_TYPES[kernel.element_type].bytes >= 4))
