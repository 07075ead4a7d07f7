"""Sharding rules of ops with windows, and of those that shift elements: parts of a result need elements of other parts.

Along such a dimension a device gets from its neighbours what its part reads beyond its own (a halo): the rule's Reach
says which elements these are.
"""
from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from hloc.ir import ConvolutionDimensionNumbers, Instruction, Shape, SliceDim, WindowDim, window_of
from hloc.sharding.index_rules import cut
from hloc.sharding.rules import Builder, Mapping, ShardingRule, combiner_of, sums_join


def slice_(instruction: Instruction) -> ShardingRule:
    made = Builder()
    sizes, result = instruction.operands[0].shape.dimensions, instruction.shape.dimensions
    factors = [made.factor(size) for size in result]
    for d, (s, size) in enumerate(zip(instruction.get("slice"), sizes)):
        if (s.start, s.limit, s.stride) != (0, size, 1):
            made.reach(0, d, factors[d], stride=s.stride, offset=s.start)
    whole = tuple((f,) for f in factors)
    return replace(made.rule([whole], [whole]), other=cut(instruction))


def pad(instruction: Instruction) -> ShardingRule:
    made = Builder()
    factors = [made.factor(size) for size in instruction.shape.dimensions]
    for d, p in enumerate(instruction.get("padding")):
        if tuple(p) != (0, 0, 0):
            made.reach(0, d, factors[d], offset=-p.low, dilation=p.interior + 1)
    whole = tuple((f,) for f in factors)
    return made.rule([whole, ()], [whole])


def concatenate(instruction: Instruction) -> ShardingRule:
    made = Builder()
    (d,) = instruction.get("dimensions")
    factors = [made.factor(size) for size in instruction.shape.dimensions]
    sizes = [o.shape.dimensions[d] for o in instruction.operands]
    for number, before in enumerate(accumulate(sizes[:-1], initial=0)):
        made.reach(number, d, factors[d], offset=-before)
    whole = tuple((f,) for f in factors)
    return made.rule([whole] * len(sizes), [whole])


class Rotation(NamedTuple):
    """An array whose elements move along a dimension, those that leave it at one end coming in at the other: element
    `first` becomes the first."""

    source: Instruction
    dimension: int
    first: int


def rotation(instruction: Instruction) -> Rotation | None:
    """What a concatenation of two slices of one array is, where it has all of the array."""
    if instruction.opcode != "concatenate" or len(instruction.operands) != 2:
        return None
    left, right = instruction.operands
    if left.opcode != "slice" or right.opcode != "slice" or left.operands[0] is not right.operands[0]:
        return None
    source, (d,) = left.operands[0], instruction.get("dimensions")
    size, first = source.shape.dimensions[d], left.get("slice")[d].start
    whole = [SliceDim(0, n) for n in source.shape.dimensions]
    behind, before = list(whole), list(whole)
    behind[d], before[d] = SliceDim(first, size), SliceDim(0, first)
    if [*left.get("slice")] != behind or [*right.get("slice")] != before:
        return None
    return Rotation(source, d, first)


def rotated(rotation: Rotation) -> ShardingRule:
    """Of a rotation, as an op on its source."""
    made = Builder()
    factors = [made.factor(size) for size in rotation.source.shape.dimensions]
    made.reach(0, rotation.dimension, factors[rotation.dimension], offset=rotation.first, wraps=True)
    whole = tuple((f,) for f in factors)
    return made.rule([whole], [whole])


def reverse(instruction: Instruction) -> ShardingRule:
    made = Builder()
    factors = [made.factor(size) for size in instruction.shape.dimensions]
    for d in instruction.get("dimensions"):
        made.reach(0, d, factors[d], flipped=True)
    whole = tuple((f,) for f in factors)
    return made.rule([whole], [whole])


def reduce_window(instruction: Instruction) -> ShardingRule:
    """Where it is not known what does nothing, windows with padding or holes reach over all of a dimension."""
    made = Builder()
    count = len(instruction.operands) // 2
    results = instruction.shape.tuple_shapes or (instruction.shape,)
    windows = window_of(instruction) or (WindowDim(),) * results[0].rank
    joins = combiner_of(instruction) is not None
    factors = [made.factor(size, whole=not joins and (w.padding_low, w.padding_high, w.base_dilation) != (0, 0, 1))
               for size, w in zip(results[0].dimensions, windows)]
    for d, w in enumerate(windows):
        if w != WindowDim() and factors[d] not in made.whole:
            for number in range(count):
                made.reach(number, d, factors[d], stride=w.stride, offset=-w.padding_low,
                           span=(w.size - 1) * w.window_dilation + 1, dilation=w.base_dilation)
    whole = tuple((f,) for f in factors)
    rule = made.rule([whole] * count + [()] * count, [whole] * count)
    return replace(rule, other=running(instruction)) if joins and count == 1 else rule


def running(instruction: Instruction) -> ShardingRule | None:
    """Of a reduce-window whose windows have all elements up to one, or from one on, along a dimension (a cumulative
    sum) and one element along the others."""
    sizes = instruction.operands[0].shape.dimensions
    wide = [d for d, w in enumerate(window_of(instruction)) if w != WindowDim()]
    if len(wide) != 1:
        return None
    w, size = window_of(instruction)[wide[0]], sizes[wide[0]]
    upward, downward = (WindowDim(size, 1, low, high) for low, high in ((size - 1, 0), (0, size - 1)))
    if size == 0 or w not in (upward, downward):
        return None
    made = Builder()
    factors = tuple((made.factor(n),) for n in sizes)
    return replace(made.rule([factors, ()], [factors]), running=frozenset(factors[wide[0]]), downward=w == downward)


def select_and_scatter(instruction: Instruction) -> ShardingRule:
    """Along a dimension with padding it reaches over all: an element of padding is never selected, one that a
    neighbour sends may be."""
    made = Builder()
    operand, source = (o.shape for o in instruction.operands[:2])
    joins = combiner_of(instruction, "scatter") == "add"
    factors, of_source = [], []
    for d, w in enumerate(window_of(instruction) or (WindowDim(),) * operand.rank):
        if w == WindowDim():
            factors.append(made.factor(operand.dimensions[d]))
            of_source.append(factors[-1])
        elif joins and (w.padding_low, w.padding_high, w.base_dilation, w.window_dilation) == (0, 0, 1, 1):
            factors.append(made.factor(operand.dimensions[d]))
            made.reach(0, d, factors[d], windows=w)
            of_source.append(made.reach(1, d, factors[d], windows=w, is_source=True))
        else:
            factors.append(made.factor(operand.dimensions[d], whole=True))
            of_source.append(made.factor(source.dimensions[d], whole=True))
    whole = tuple((f,) for f in factors)
    return made.rule([whole, tuple((f,) for f in of_source), ()], [whole])


def convolution(instruction: Instruction) -> ShardingRule:
    """By images and by output features, summed over input features; groups keep the features whole. Spatial dimensions
    by places of the result, or, where the kernel is larger than that (the gradient of a filter), by places of the
    kernel, over which is summed."""
    made = Builder()
    numbers: ConvolutionDimensionNumbers = instruction.get("dim_labels")
    image, kernel = (o.shape for o in instruction.operands)
    batch_groups = instruction.get("batch_group_count", 1) > 1
    grouped = batch_groups or instruction.get("feature_group_count", 1) > 1
    joins = sums_join(instruction)
    batch = made.factor(image.dimensions[numbers.input_batch], whole=batch_groups)
    summed = made.factor(image.dimensions[numbers.input_feature], whole=grouped or not joins,
                         reduced=joins and not grouped)
    output = made.factor(kernel.dimensions[numbers.kernel_output_feature], whole=grouped)
    inputs = made.factor(kernel.dimensions[numbers.kernel_input_feature], whole=True) if grouped else summed
    of_image = {numbers.input_batch: batch, numbers.input_feature: summed}
    of_kernel = {numbers.kernel_input_feature: inputs, numbers.kernel_output_feature: output}
    of_result = {numbers.output_batch: batch, numbers.output_feature: output}
    places = zip(window_of(instruction), numbers.input_spatial, numbers.kernel_spatial, numbers.output_spatial)
    for w, i, k, o in places:
        size = instruction.shape.dimensions[o]
        if w.size > size and joins and not w.reversal:
            of_kernel[k] = of_image[i] = made.factor(w.size, reduced=True)
            of_result[o] = made.factor(size, whole=True)
            made.reach(0, i, of_image[i], stride=w.window_dilation, offset=-w.padding_low,
                       span=(size - 1) * w.stride + 1, dilation=w.base_dilation)
        else:
            of_result[o] = of_image[i] = made.factor(size)
            of_kernel[k] = made.factor(w.size, whole=True)
            made.reach(0, i, of_image[i], stride=w.stride, offset=-w.padding_low,
                       span=(w.size - 1) * w.window_dilation + 1, dilation=w.base_dilation)
    if batch_groups:
        of_result[numbers.output_batch] = made.factor(instruction.shape.dimensions[numbers.output_batch], whole=True)

    def mapping(shape: Shape, known: dict[int, int]) -> Mapping:
        return tuple((known[d],) for d in range(shape.rank))
    return made.rule([mapping(image, of_image), mapping(kernel, of_kernel)], [mapping(instruction.shape, of_result)])
