"""Convolutions of one position over images whose positions lie side by side (NCHW): a Tile of the routine "gemm" on a
CPU. Each image is a product of the filter and itself, as they lie, so that what an epilogue reads and writes lies in
rows, too.

    out[n, o, p] = epilogue(sum over c of filter[o, c] * image[n, c, p])      p: the positions of an image
"""
from __future__ import annotations

import math

from hloc.ir import Instruction
from hloc.kernels import indexing
from hloc.kernels.indexing import Index
from hloc.kernels.products.operands import Access


def by_image(hero: Instruction, image: Access, kernel: Access) -> tuple[tuple[str, object], ...] | None:
    """The parameters of such a product (dot.py), for a convolution that is_by_image (tiny.py); None where an image that
    is read as it lies has its positions elsewhere."""
    n, x, y = hero.get("dim_labels"), hero.operands[0].shape.dimensions, hero.shape.dimensions
    sizes = [x[d] for d in n.input_spatial]
    if [image.strides[d] for d in n.input_spatial] != list(indexing.row_major_strides(sizes)):
        return None
    out = indexing.row_major_strides(y)
    return (
        ("sizes", (y[n.output_feature], math.prod(sizes), x[n.input_feature])), ("batches", (y[n.output_batch], 1)),
        ("lhs", (kernel.offset, 0, 0, kernel.strides[n.kernel_output_feature], kernel.strides[n.kernel_input_feature])),
        ("rhs", (image.offset, image.strides[n.input_batch], 0, image.strides[n.input_feature], 1)),
        ("result", (out[n.output_batch], 0, out[n.output_feature], 1)))


def position(hero: Instruction) -> Index:
    """The flat position in the result of (batch, row, column): image, feature, position of the image."""
    n, y = hero.get("dim_labels"), hero.shape.dimensions
    out, places = indexing.row_major_strides(y), math.prod(y[d] for d in n.output_spatial)
    parts = ((indexing.variable("batch", y[n.output_batch]), out[n.output_batch]),
             (indexing.variable("row", y[n.output_feature]), out[n.output_feature]),
             (indexing.variable("column", places), 1))
    result = indexing.ZERO
    for part, stride in parts:
        result = indexing.add(result, indexing.scale(part, stride))
    return result
