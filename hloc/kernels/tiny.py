"""From which size on a routine computes a product or a convolution; smaller ones are plain loops.

Told apart from the lowering, so that routines can be chosen, and compiled, before it is imported.
"""
from __future__ import annotations

import math

from hloc.ir import Instruction

TINY = 2048                     # multiply-adds below which a tile costs more than it saves
SHALLOW, NARROW = 8, 128        # products in a sum, and columns, of which rows are read and written faster than packed


def multiply_adds(convolution: Instruction) -> int:
    """Of the whole convolution, padding counted as if it were there."""
    kernel = convolution.operands[1].shape.dimensions
    features = kernel[convolution.get("dim_labels").kernel_output_feature]
    return convolution.shape.num_elements * math.prod(kernel) // max(1, features)
