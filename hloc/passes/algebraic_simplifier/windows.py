"""Rules for convolution and reduce-window: instructions whose effect a window can have are folded into it."""
from __future__ import annotations

from math import prod

from hloc.ir import Instruction, PaddingDim, Shape, Window, WindowDim, window_of
from hloc.ir.narrowing import all_known
from hloc.passes.patterns import identity_of, is_splat, monoid_of, reshape
from hloc.passes.rewriter import Rewriter

FEW_PARTS, LARGE_WINDOW = 8, 16     # windows along a dimension; elements of a window
LONG_WINDOW = 5                     # elements of a window along the last dimension


def convolution_of_pad(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """convolution(pad(x, 0), w) => convolution(x, w) with more padding, if only spatial dimensions are padded"""
    pad, kernel = instruction.operands
    if pad.opcode != "pad" or not is_splat(pad.operands[1], 0):
        return None
    spatial = instruction.get("dim_labels").input_spatial
    padding = pad.get("padding")
    if any(p != (0, 0, 0) for d, p in enumerate(padding) if d not in spatial):
        return None
    dimensions = [wider(dim, padding[d]) for dim, d in zip(window_of(instruction), spatial)]
    if not all_known(dimensions):
        return None
    return rewriter.change(instruction, operands=[pad.operands[0], kernel], window=Window(tuple(dimensions)))


def wider(dim: WindowDim, padding: PaddingDim) -> WindowDim | None:
    """`dim` of a window with `padding` added; None if that is not possible."""
    if padding.low < 0 or padding.high < 0 or (padding.interior and dim.base_dilation != 1):
        return None
    step = dim.base_dilation                       # base dilation also applies to the added padding
    return dim._replace(padding_low=dim.padding_low + padding.low * step,
                        padding_high=dim.padding_high + padding.high * step,
                        base_dilation=step * (padding.interior + 1))


def convolution_of_reversed_kernel(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """convolution(x, reverse(w)) => convolution(x, w) with a reversed window, if spatial dimensions are reversed"""
    x, kernel = instruction.operands
    spatial = instruction.get("dim_labels").kernel_spatial
    if kernel.opcode != "reverse" or not set(kernel.get("dimensions")) <= set(spatial):
        return None
    dimensions = tuple(dim._replace(reversal=dim.reversal != (d in kernel.get("dimensions")))
                       for dim, d in zip(window_of(instruction), spatial))
    return rewriter.change(instruction, operands=[x, kernel.operands[0]], window=Window(dimensions))


def convolution_of_planes(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """convolution(x[n,y,x,1], w) => convolution(x[n,1,y,x], w), with one feature: images are planes, and windows
    move along contiguous rows"""
    x, kernel = instruction.operands
    numbers = instruction.get("dim_labels")
    last, spatial = x.shape.rank - 1, tuple(range(1, x.shape.rank - 1))
    if (numbers.input_batch, numbers.input_spatial, numbers.input_feature) != (0, spatial, last) \
            or (numbers.output_batch, numbers.output_spatial, numbers.output_feature) != (0, spatial, last) \
            or not spatial or x.shape.dimensions[last] != 1 or instruction.shape.dimensions[last] != 1 \
            or instruction.get("batch_group_count", 1) != 1:
        return None
    planes = numbers._replace(input_feature=1, input_spatial=tuple(d + 1 for d in spatial),
                              output_feature=1, output_spatial=tuple(d + 1 for d in spatial))

    def as_planes(shape: Shape) -> Shape:
        return shape.with_dimensions((shape.dimensions[0], 1, *shape.dimensions[1:last]))
    result = rewriter.change(instruction, operands=[reshape(rewriter, x, as_planes(x.shape)), kernel],
                             shape=as_planes(instruction.shape), dim_labels=planes)
    return reshape(rewriter, result, instruction.shape)


def reduce_window_of_pad(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """reduce-window(pad(x, v), v) => reduce-window(x, v) with more padding, if v is neutral"""
    monoid = monoid_of(instruction)
    if monoid is None or instruction.operands[0].opcode != "pad":
        return None
    pad, initial = instruction.operands
    neutral = identity_of(monoid, initial.shape.element_type)
    if neutral is None or not is_splat(initial, neutral) or not is_splat(pad.operands[1], neutral):
        return None
    dimensions = [wider(dim, p) for dim, p in zip(window_of(instruction), pad.get("padding"))]
    if not all_known(dimensions):
        return None
    return rewriter.change(instruction, operands=[pad.operands[0], initial], window=Window(tuple(dimensions)))


def reduce_window_of_parts(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """reduce-window(x) => reduce(reshape(x)) if windows are adjacent, and along the last dimension few or long: then
    the elements of a window fill vectors, and neighbouring results do not"""
    dims = window_of(instruction)
    if monoid_of(instruction) is None or not dims or not all(map(windows_are_adjacent, dims)):
        return None
    sizes, results = instruction.operands[0].shape.dimensions, instruction.shape.dimensions
    few = dims[-1].size > 1 and results[-1] < FEW_PARTS and prod(d.size for d in dims) >= LARGE_WINDOW
    if not (few or dims[-1].size >= LONG_WINDOW) or any(n * d.size != size for n, d, size in zip(results, dims, sizes)):
        return None
    parts = [(n, inside) for count, d in zip(results, dims) for n, inside in ((count, False), (d.size, True))
             if not inside or n > 1]
    x, initial = instruction.operands
    apart = rewriter.add("reshape", x.shape.with_dimensions(n for n, _ in parts), [x])
    inside = tuple(place for place, (_, inside) in enumerate(parts) if inside)
    return rewriter.add("reduce", instruction.shape, [apart, initial],
                        {"dimensions": inside, "to_apply": instruction.get("to_apply")})


def windows_are_adjacent(dim: WindowDim) -> bool:
    """Whether each window along a dimension begins at the end of the previous one."""
    return dim._replace(size=1, stride=1) == WindowDim() and dim.size == dim.stride


RULES = {
    "convolution": (convolution_of_pad, convolution_of_reversed_kernel, convolution_of_planes),
    "reduce-window": (reduce_window_of_pad, reduce_window_of_parts),
}
