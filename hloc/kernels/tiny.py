"""From which size on a routine computes a product or a convolution; smaller ones are plain loops.

Told apart from the lowering, so that routines can be chosen, and compiled, before it is imported.
"""
from __future__ import annotations

import math

from hloc.ir import ELEMENT_TYPES, ConvolutionDimensionNumbers, Instruction, WindowDim, window_of
from hloc.kernels.scalars import is_narrow

TINY = 2048                     # multiply-adds below which a tile costs more than it saves
SMALL = 8192                    # the same for products whose columns lie side by side, and no bytes; else half of it
SMALL_CONVOLUTION = 16384       # multiply-adds of convolutions whose features lie side by side; half of it for bytes
FEWEST_FEATURES = 4
SHALLOW, NARROW = 8, 128        # products in a sum, and columns, of which rows are read and written faster than packed


def multiply_adds(convolution: Instruction) -> int:
    """Of the whole convolution, padding counted as if it were there."""
    kernel = convolution.operands[1].shape.dimensions
    features = kernel[convolution.get("dim_labels").kernel_output_feature]
    return convolution.shape.num_elements * math.prod(kernel) // max(1, features)


def is_shallow(convolution: Instruction) -> bool:
    """A product of few columns and few terms in a sum, over images as they lie: loops on a CPU."""
    n: ConvolutionDimensionNumbers = convolution.get("dim_labels")
    kernel = convolution.operands[1].shape
    rows = (n.output_batch, *n.output_spatial, n.output_feature)
    return (all(w == WindowDim() for w in window_of(convolution))
            and convolution.get("feature_group_count", 1) == convolution.get("batch_group_count", 1) == 1
            and rows == tuple(range(convolution.shape.rank)) and n.kernel_output_feature == kernel.rank - 1
            and (kernel.element_type in ("bf16", "f16") or not is_narrow(kernel.element_type))
            and kernel.dimensions[n.kernel_input_feature] <= SHALLOW and kernel.dimensions[-1] <= NARROW)


def is_small(convolution: Instruction) -> bool:
    """A convolution of few multiply-adds whose features lie side by side, in filter and result: loops on a CPU."""
    n: ConvolutionDimensionNumbers = convolution.get("dim_labels")
    last = convolution.shape.rank - 1
    most = SMALL_CONVOLUTION // (2 if ELEMENT_TYPES[convolution.operands[1].shape.element_type].bytes == 1 else 1)
    return (multiply_adds(convolution) <= most and n.output_feature == n.kernel_output_feature == last
            and convolution.shape.dimensions[last] >= FEWEST_FEATURES
            and convolution.get("feature_group_count", 1) == convolution.get("batch_group_count", 1) == 1
            and all(w.base_dilation == 1 for w in window_of(convolution)))
