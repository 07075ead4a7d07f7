"""Pads the channels of images so that a GPU reads them 16 bytes at a time, such as the 3 of a photograph.

    y = bf16[8,112,112,64] convolution(x: bf16[8,224,224,3], w: bf16[7,7,3,64])
        =>  xp = bf16[8,224,224,8] pad(x, 0);  wp = bf16[7,7,8,64] pad(w, 0);  y = convolution(xp, wp)
    dw = bf16[7,7,3,64] convolution(x, dy), dim_labels=f01b_i01o->01bf
        =>  dwp = bf16[7,7,8,64] convolution(xp, dy), ...;  dw = slice(dwp)

Without it, elements of windows are read one by one. XLA's pass cudnn_pad_for_convolutions pads for tensor cores, too.
An image is padded if each element is read often enough, and padding makes it at most four times as large.
"""
from __future__ import annotations

from hloc.analysis.prologues import FEW_FEATURES, multiply_adds
from hloc.ir import (
    ELEMENT_TYPES,
    Computation,
    ConvolutionDimensionNumbers,
    Instruction,
    Module,
    PaddingDim,
    SliceDim,
)
from hloc.passes.context import PassContext
from hloc.passes.rewriter import Rewriter, rewrite

TYPES = ("bf16", "f16", "f32")
PIECE = 16                          # bytes
MOST_WASTE = 4                      # the padded size, relative to the size
FEWEST_READS = 2                    # of each element of the padded image
SMALLEST = 1 << 18                  # multiply-adds


def pad_for_convolutions(module: Module, context: PassContext) -> bool:
    """True if the image of a convolution was padded."""
    return any([_pad_all(computation) for computation in module.computations])


def _pad_all(computation: Computation) -> bool:
    shared: dict[tuple[Instruction, int, int], Instruction] = {}

    def visit(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
        return _padded(instruction, rewriter, shared)
    return rewrite(computation, visit, revisit=False, opcodes={"convolution"})


def _padded(i: Instruction, rewriter: Rewriter, shared: dict) -> Instruction | None:
    """The convolution of the padded image; None if its channels are read as they are."""
    n: ConvolutionDimensionNumbers = i.get("dim_labels")
    image, kernel = i.operands
    last = image.shape.rank - 1
    extra = extra_channels(i)
    if not extra:
        return None
    padded = _pad(image, last, extra, rewriter, shared)
    if n.input_feature == last:
        return rewriter.change(i, operands=[padded, _pad(kernel, n.kernel_input_feature, extra, rewriter, shared)])
    sizes = list(i.shape.dimensions)
    sizes[n.output_batch] += extra
    whole = rewriter.add("convolution", i.shape.with_dimensions(sizes), [padded, kernel], i.attributes)
    return rewriter.add("slice", i.shape, [whole], {"slice": tuple(SliceDim(0, size) for size in i.shape.dimensions)})


def extra_channels(i: Instruction) -> int:
    """How many channels a convolution lacks to read its image in pieces; 0 if that is none, or padding does not pay."""
    n: ConvolutionDimensionNumbers = i.get("dim_labels")
    image, type, last = i.operands[0].shape, i.operands[0].shape.element_type, i.operands[0].shape.rank - 1
    grouped = i.get("feature_group_count", 1) * i.get("batch_group_count", 1) > 1
    if type not in TYPES or grouped or last not in (n.input_feature, n.input_batch) or not image.num_elements:
        return 0
    size, features = image.dimensions[last], i.shape.dimensions[n.output_feature]
    extra = -size % (PIECE // ELEMENT_TYPES[type].bytes)
    elements, products = image.num_elements // size * (size + extra), multiply_adds(i)
    pays = products // max(1, features) >= FEWEST_READS * elements and products >= SMALLEST
    return extra if pays and size + extra <= MOST_WASTE * size and features > FEW_FEATURES else 0


def _pad(x: Instruction, dimension: int, extra: int, rewriter: Rewriter, shared: dict) -> Instruction:
    """x with zeros behind a dimension; one instruction for all convolutions of x."""
    key = (x, dimension, extra)
    if key not in shared:
        padding = tuple(PaddingDim(0, extra if d == dimension else 0) for d in range(x.shape.rank))
        sizes = [size + extra * (d == dimension) for d, size in enumerate(x.shape.dimensions)]
        zero = rewriter.constant(0, x.shape.element_type)
        shared[key] = rewriter.add("pad", x.shape.with_dimensions(sizes), [x, zero], {"padding": padding})
    return shared[key]
