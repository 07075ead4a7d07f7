"""Pads the channels of images so that a GPU reads them 16 bytes at a time, such as the 3 of a photograph.

    y = bf16[8,112,112,64] convolution(x: bf16[8,224,224,3], w: bf16[7,7,3,64]), window={... pad=3_3x3_3}
        =>  xp = bf16[8,224,230,8] pad(x, 0);  wp = bf16[7,7,8,64] pad(w, 0);  y = convolution(xp, wp), pad=3_3x0_0
    dw = bf16[7,7,3,64] convolution(x, dy), dim_labels=f01b_i01o->01bf, window={... pad=3_2x3_2}
        =>  dwp = bf16[7,7,8,64] convolution(xp, dy), pad=3_2x0_-1;  dw = slice(dwp)

Without it, elements of windows are read one by one. XLA's pass cudnn_pad_for_convolutions pads for tensor cores, too.
An image is padded if each element is read often enough, and its channels become at most four times as many. Its rows
get the windows' padding: then a row of a window, all taps and channels, is one line in memory (window_rows.py).
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hloc.analysis.prologues import FEW_FEATURES, multiply_adds
from hloc.ir import (
    ELEMENT_TYPES,
    Computation,
    ConvolutionDimensionNumbers,
    Instruction,
    Module,
    PaddingDim,
    SliceDim,
    Window,
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


class Edges(NamedTuple):
    """Zeros behind the channels of an image, and before and behind its positions in the dimension next to them."""

    channels: int
    low: int = 0
    high: int = 0


def _pad_all(computation: Computation) -> bool:
    convolutions = [i for i in computation.instructions if i.opcode == "convolution"]
    wanted: dict[Instruction, list[Edges]] = {}
    for i in convolutions:
        if edges_of(i).channels:
            wanted.setdefault(i.operands[0], []).append(edges_of(i))
    found = {image: Edges(*map(max, zip(*edges))) for image, edges in wanted.items()}
    shared: dict[tuple[Instruction, tuple[PaddingDim, ...]], Instruction] = {}

    def visit(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
        return _padded(instruction, found.get(instruction.operands[0]), rewriter, shared)
    return rewrite(computation, visit, revisit=False, opcodes={"convolution"})


def _padded(i: Instruction, edges: Edges | None, rewriter: Rewriter, shared: dict) -> Instruction | None:
    """The convolution of the padded image; None if its channels are read as they are. edges: that all convolutions of
    this image have enough of."""
    n: ConvolutionDimensionNumbers = i.get("dim_labels")
    image, kernel = i.operands
    last = image.shape.rank - 1
    own = edges_of(i)
    if not own.channels:
        return None
    d = across(i)
    edges = edges._replace(channels=own.channels) if edges and d is not None else own
    window: Window = i.get("window")
    if d is not None:
        dims = list(window.dimensions)
        dims[d] = dims[d]._replace(padding_low=dims[d].padding_low - edges.low,
                                   padding_high=dims[d].padding_high - edges.high)
        window = window._replace(dimensions=tuple(dims))
    attributes = {**i.attributes, "window": window}
    padding = [PaddingDim(0, 0)] * (last - 1) + [PaddingDim(edges.low, edges.high), PaddingDim(0, edges.channels)]
    padded = _pad(image, padding, rewriter, shared)
    if n.input_feature == last:
        channels = [PaddingDim(0, edges.channels * (k == n.kernel_input_feature)) for k in range(kernel.shape.rank)]
        operands = [padded, _pad(kernel, channels, rewriter, shared)]
        return rewriter.add("convolution", i.shape, operands, attributes)
    sizes = list(i.shape.dimensions)
    sizes[n.output_batch] += edges.channels
    whole = rewriter.add("convolution", i.shape.with_dimensions(sizes), [padded, kernel], attributes)
    return rewriter.add("slice", i.shape, [whole], {"slice": tuple(SliceDim(0, size) for size in i.shape.dimensions)})


def across(i: Instruction) -> int | None:
    """The dimension of the window whose positions are next to the channels, if an image can be padded there."""
    n: ConvolutionDimensionNumbers = i.get("dim_labels")
    place = i.operands[0].shape.rank - 2
    d = n.input_spatial.index(place) if place in n.input_spatial else None
    return d if d is not None and i.get("window").dimensions[d].base_dilation == 1 else None


def edges_of(i: Instruction) -> Edges:
    """The zeros that a convolution lacks to read its image in pieces. No channels: none, or padding does not pay."""
    channels, d = extra_channels(i), across(i)
    if not channels or d is None:
        return Edges(channels)
    dim = i.get("window").dimensions[d]
    return Edges(channels, max(0, dim.padding_low), max(0, dim.padding_high))


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


def _pad(x: Instruction, padding: Sequence[PaddingDim], rewriter: Rewriter, shared: dict) -> Instruction:
    """x with zeros around it; one instruction for all convolutions of x."""
    key = (x, tuple(padding))
    if key not in shared:
        sizes = [size + p.low + p.high for size, p in zip(x.shape.dimensions, padding)]
        zero = rewriter.constant(0, x.shape.element_type)
        shared[key] = rewriter.add("pad", x.shape.with_dimensions(sizes), [x, zero], {"padding": tuple(padding)})
    return shared[key]
