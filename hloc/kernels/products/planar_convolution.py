"""Convolutions of few features: vectors run along the positions of an image, across the ends of its rows.

In: a convolution that fills_few_lanes (size_thresholds.py), with the fusion's operations on its result. Out: one
kernel, or None if its arrays would be large. The channels of an image, or of a band of its rows, become planes in a
Local array, surrounded by padding, so that every tap is a constant offset in memory, also across the end of a row:

    for each band:   plane[c, y, x] = image[y - padding, x - padding, c], or 0
                     for f: for each tap and c: for p (VECTOR): sum[f, p] += plane[c, p + tap] * filter[tap, c, f]
                     for y: for x, f (VECTOR): out[y, x, f] = epilogue(sum[f, y * row + x])

A row of sums is as long as a row of a plane; values after the last column are ignored.
"""
from __future__ import annotations

import math
from contextlib import ExitStack

from hloc.ir import ELEMENT_TYPES, Instruction, window_of
from hloc.kernels import indexing, loops, scalars
from hloc.kernels.builder import within
from hloc.kernels.elemental.loop import cost_of, shareable
from hloc.kernels.group import Group, KernelCall, Lowered, Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import SERIAL, VECTOR, Apply, Load, Store
from hloc.kernels.products.size_thresholds import multiply_adds
from hloc.kernels.rules.elementwise import zero
from hloc.kernels.rules.loops import accumulator_type, product_result

LANES = 16                      # the sums of an image are padded to whole vectors of so many
ROOM, MOST_ROOM = 1 << 15, 1 << 17      # bytes of both Local arrays: they stay in the L1 cache, or in the L2 cache


def lower_planar_convolution(group: Group, convolution: Instruction) -> Lowered | None:
    """The kernel of such a convolution and its epilogue; None where its arrays would be too large."""
    planes = _Planar(group, convolution)
    if planes.bytes > MOST_ROOM:
        return None
    return Lowered((planes.kernel(),), can_share=tuple(shareable(group, (convolution,))))


class _Planar:
    """The loops of one kernel. band: rows of a result at a time; reach: the distance from the first tap to the last;
    plane: rows and columns that the windows of a band cover."""

    def __init__(self, group: Group, convolution: Instruction):
        self.outline, self.convolution = Outline(group), convolution
        self.numbers, self.windows = convolution.get("dim_labels"), window_of(convolution)
        self.sizes = convolution.shape.dimensions
        self.channels = convolution.operands[0].shape.dimensions[self.numbers.input_feature]
        self.rows, self.columns, self.features = self.sizes[1:]
        self.reach = [(w.size - 1) * w.window_dilation for w in self.windows]
        self.type = accumulator_type(convolution)
        self.cut(self.rows)
        while self.bytes > ROOM and self.band > 1:
            self.cut(-(-self.band // 2))

    def cut(self, band: int) -> None:
        """Choose bands of so many rows."""
        self.band, self.plane = band, [band + self.reach[0], self.columns + self.reach[1]]
        self.length = -(-band * self.plane[1] // LANES) * LANES
        self.staged = self.channels * math.prod(self.plane) + LANES + self.reach[1]
        self.bytes = (self.staged + self.features * self.length) * ELEMENT_TYPES[self.type].bytes

    def kernel(self) -> KernelCall:
        b = self.outline.builder
        with loops.parallel(b, [self.sizes[0], -(-self.rows // self.band)]) as (image, number):
            self.planes = b.local(self.type, self.staged, "planes")
            self.sums = b.local(self.type, self.features * self.length, "sum")
            self.first = indexing.scale(number, self.band)
            self.stage(image)
            with b.loop(self.features) as feature:
                self.add_up(feature)
            with loops.block_loop(b, self.rows, self.band, number, SERIAL) as y, \
                    b.loop(self.columns * self.features, VECTOR) as i:
                self.finish([image, y, indexing.floor_divide(i, self.features), indexing.modulo(i, self.features)])
        cost = cost_of(self.outline, self.convolution.shape.num_elements, b)
        return self.outline.finish(cost=cost._replace(flops=2 * multiply_adds(self.convolution)))

    def stage(self, image: Index) -> None:
        """The planes of one band, with zeros around the image."""
        b, source = self.outline.builder, self.convolution.operands[0]
        with b.loop(self.staged, VECTOR) as place:
            b.append(Store(self.planes, b.position(place), zero(self.type)))
        (tall, wide), (down, along) = self.windows, self.numbers.input_spatial
        height, width = source.shape.dimensions[down], source.shape.dimensions[along]
        first, end = max(0, wide.padding_low), min(self.plane[1], width + wide.padding_low)
        if first >= end:
            return
        index: list[Index] = [image] * source.shape.rank
        with ExitStack() as stack:
            y = stack.enter_context(b.loop(self.plane[0]))
            index[down] = indexing.shift(indexing.add(self.first, y), -tall.padding_low)
            stack.enter_context(b.guard(within(index[down], height, b)))
            channel = index[self.numbers.input_feature] = stack.enter_context(b.loop(self.channels))
            x = indexing.shift(stack.enter_context(b.loop(end - first, VECTOR)), first)
            index[along] = indexing.shift(x, -wide.padding_low)
            value = scalars.convert_to(self.outline.elements.value(source, tuple(index)), self.type)
            place = indexing.linearize([channel, y, x], [self.channels, *self.plane])
            b.append(Store(self.planes, b.position(place), value))

    def add_up(self, feature: Index) -> None:
        """The sums of one feature, a row of taps at a time."""
        b, kernel = self.outline.builder, self.convolution.operands[1]
        start = indexing.scale(feature, self.length)

        def at(place: Index) -> Load:
            return Load(self.sums, b.position(indexing.add(start, place)), self.type)
        with b.loop(self.length, VECTOR) as place:
            b.append(Store(self.sums, at(place).position, zero(self.type)))
        w: list[Index] = [feature] * kernel.shape.rank
        with b.loop(self.channels) as channel, b.loop(self.windows[0].size) as row, b.pinned([self.sums]):
            w[self.numbers.kernel_input_feature] = channel
            first = indexing.add(indexing.scale(channel, math.prod(self.plane)),
                                 indexing.scale(row, self.windows[0].window_dilation * self.plane[1]))
            taps = []
            for column in range(self.windows[1].size):
                for window, d, tap in zip(self.windows, self.numbers.kernel_spatial,
                                          (row, indexing.constant(column))):
                    last = indexing.constant(window.size - 1)
                    w[d] = indexing.subtract(last, tap) if window.reversal else tap
                factor = scalars.convert_to(self.outline.elements.value(kernel, tuple(w)), self.type)
                taps.append((b.let(factor), column * self.windows[1].window_dilation))
            with b.loop(self.length, VECTOR) as place:
                total = b.let(at(place))
                for factor, distance in taps:
                    near = indexing.shift(indexing.add(first, place), distance)
                    product = Apply("multiply", (Load(self.planes, b.position(near), self.type), factor), self.type)
                    total = b.let(Apply("add", (total, product), self.type))
                b.append(Store(self.sums, at(place).position, total))

    def finish(self, index: list[Index]) -> None:
        """The epilogue of one element."""
        outline, b = self.outline, self.outline.builder
        row = indexing.scale(indexing.subtract(index[1], self.first), self.plane[1])
        place = indexing.linearize([index[3], indexing.add(row, index[2])],
                                   [self.features, self.length])
        position = indexing.linearize(index, self.sizes)
        total = b.let(Load(self.sums, b.position(place), self.type))
        result = product_result(total, self.convolution.shape.element_type)
        outline.elements.sources[self.convolution] = lambda _: result
        outline.store_all(position, [outline.elements.value(r, indexing.delinearize(position, r.shape.dimensions))
                                     for r in outline.group.roots])
