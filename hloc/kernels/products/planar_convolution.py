"""Convolutions of few features: vectors run along the positions of an image, across the ends of its rows.

In: a convolution that fills_few_lanes (size_thresholds.py), of one or two spatial dimensions, with the fusion's
operations on its result. Out: one kernel, or None if its arrays would be large. The channels of an image, or of a tile
of it, become planes in a Local array, surrounded by padding, so that every tap is a constant offset in memory, also
across the end of a row. A library kernel has features in the lanes of its vectors, which few features do not fill.

    for each tile:   plane[c, y, x] = image[y - padding, x - padding, c], or 0
                     for f: for each tap and c: for p (VECTOR): sum[f, p] += plane[c, p + tap] * filter[tap, c, f]
                     for y: for x, f (VECTOR): out[y, x, f] = epilogue(sum[f, y * row + x])

A row of sums is as long as a row of a plane; values after the last column are ignored. A tile has whole rows, unless
one row is too long for the cache.
"""
from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from hloc.analysis.prologues import multiply_adds
from hloc.ir import ELEMENT_TYPES, Instruction, WindowDim, window_of
from hloc.kernels import indexing, loops, scalars
from hloc.kernels.builder import within
from hloc.kernels.elemental.loop import cost_of, shareable
from hloc.kernels.elements import always
from hloc.kernels.group import Group, KernelCall, Lowered, Outline
from hloc.kernels.indexing import Index, index_apply
from hloc.kernels.ir import INDEX, SERIAL, VECTOR, Apply, Const, Expr, Load, Store
from hloc.kernels.products.epilogues import store_results
from hloc.kernels.products.operands import behind_conversion
from hloc.kernels.rules.elementwise import zero
from hloc.kernels.rules.loops import accumulator_type, product_result

LANES = 16                      # the sums of a tile are padded to whole vectors of so many
ROOM, MOST_ROOM = 1 << 15, 1 << 17      # bytes of both Local arrays: they stay in the L1 cache, or in the L2 cache
LEAST_WIDTH = 64                # columns of a tile
TAPS = 8                        # of a row of the filter in one pass over the positions


def lower_planar_convolution(group: Group, convolution: Instruction) -> Lowered | None:
    """The kernel of such a convolution and its epilogue; None where its arrays would be too large."""
    planes = _Planar(group, convolution)
    if planes.bytes > MOST_ROOM:
        return None
    return Lowered((planes.kernel(),), can_share=tuple(shareable(group, (convolution,))))


def is_read_in_place(group: Group, convolution: Instruction) -> bool:
    """Whether the operands are in memory, and each result is as large as the convolution."""
    return all(behind_conversion(group, o) in group.parameters for o in convolution.operands) \
        and all(r.shape.num_elements == convolution.shape.num_elements for r in group.roots)


class _Planar:
    """The loops of one kernel.

    down, across    the spatial dimensions of rows (None: there is one row) and of columns, the inner one of the result
    rows, columns   of the result
    band, width     rows and columns of a tile of the result
    reach           the distance from the first tap to the last, in rows and columns
    plane           rows and columns that the windows of a tile cover
    """

    def __init__(self, group: Group, convolution: Instruction):
        self.outline, self.convolution = Outline(group), convolution
        self.numbers = convolution.get("dim_labels")
        self.sizes = convolution.shape.dimensions
        spatial = self.numbers.output_spatial
        *outer, self.across = sorted(range(len(spatial)), key=lambda n: spatial[n])
        self.down: int | None = outer[0] if outer else None
        self.windows = [WindowDim() if n is None else window_of(convolution)[n] for n in (self.down, self.across)]
        self.rows = 1 if self.down is None else self.sizes[spatial[self.down]]
        self.columns = self.sizes[spatial[self.across]]
        self.features = self.sizes[self.numbers.output_feature]
        self.channels = convolution.operands[0].shape.dimensions[self.numbers.input_feature]
        self.reach = [(w.size - 1) * w.window_dilation for w in self.windows]
        self.type = accumulator_type(convolution)
        self.cut(self.rows, self.columns)
        while self.bytes > ROOM and self.band > 1:
            self.cut(-(-self.band // 2), self.columns)
        while self.bytes > ROOM and self.width > LEAST_WIDTH:
            self.cut(1, -(-self.width // 2))

    def cut(self, band: int, width: int) -> None:
        """Choose tiles of so many rows and columns."""
        self.band, self.width = band, width
        self.plane = [band + self.reach[0], width + self.reach[1]]
        self.length = -(-band * self.plane[1] // LANES) * LANES
        self.staged = self.channels * math.prod(self.plane) + LANES + self.reach[1]
        self.bytes = (self.staged + self.features * self.length) * ELEMENT_TYPES[self.type].bytes

    def kernel(self) -> KernelCall:
        b = self.outline.builder
        tiles = [self.sizes[self.numbers.output_batch], -(-self.rows // self.band), -(-self.columns // self.width)]
        with loops.parallel(b, tiles) as (self.image, self.row_tile, self.column_tile):
            self.planes = b.local(self.type, self.staged, "planes")
            self.sums = b.local(self.type, self.features * self.length, "sum")
            self.stage()
            with b.loop(self.features) as feature:
                self.add_up(feature)
            self.finish()
        cost = cost_of(self.outline, self.convolution.shape.num_elements, b)
        return self.outline.finish(cost=cost._replace(flops=2 * multiply_adds(self.convolution)))

    def stage(self) -> None:
        """The planes of one tile, with zeros around the image."""
        b, source = self.outline.builder, self.convolution.operands[0]
        with b.loop(self.staged, VECTOR) as place:
            b.append(Store(self.planes, b.position(place), zero(self.type)))
        tall, wide = self.windows
        across = self.numbers.input_spatial[self.across]
        whole = self.columns + self.reach[1]
        first, end = max(0, wide.padding_low), min(whole, source.shape.dimensions[across] + wide.padding_low)
        if first >= end:
            return
        index: list[Index] = [self.image] * source.shape.rank
        with ExitStack() as stack:
            y = stack.enter_context(b.loop(self.plane[0]))
            if self.down is not None:
                down = self.numbers.input_spatial[self.down]
                row = indexing.add(indexing.scale(self.row_tile, self.band), y)
                index[down] = indexing.shift(row, -tall.padding_low)
                stack.enter_context(b.guard(within(index[down], source.shape.dimensions[down], b)))
            channel = index[self.numbers.input_feature] = stack.enter_context(b.loop(self.channels))
            x = stack.enter_context(self.columns_between(first, end))
            index[across] = indexing.shift(x, -wide.padding_low)
            value = scalars.convert_to(self.outline.elements.value(source, tuple(index)), self.type)
            place = indexing.linearize([channel, y, indexing.subtract(x, self.start)], [self.channels, *self.plane])
            b.append(Store(self.planes, b.position(place), value))

    @property
    def start(self) -> Index:
        """The first column of a tile."""
        return indexing.scale(self.column_tile, self.width)

    @contextmanager
    def columns_between(self, first: int, end: int) -> Iterator[Index]:
        """The loop over those columns of a tile's planes with first <= column < end, maybe none."""
        b, start, room = self.outline.builder, self.start, self.plane[1]
        if not start.terms:                                         # there is one tile
            with b.loop(min(end, room) - first, VECTOR) as offset:
                yield indexing.shift(offset, first)
            return
        begin = b.let(Apply("maximum", (Const(first, INDEX), b.position(start)), INDEX), "p")
        stop = Apply("minimum", (Const(end, INDEX), b.position(indexing.shift(start, room))), INDEX)
        length = b.let(index_apply("subtract", stop, begin), "p")
        with b.loop(length, VECTOR, high=min(room, end - first) - 1) as offset:
            # never a constant: loads would be hoisted out of the loop, which may have no iterations
            yield b.bind_index(index_apply("add", begin, b.position(offset)), first, max(first + 1, end - 1))

    def add_up(self, feature: Index) -> None:
        """The sums of one feature, some taps of a row of the filter at a time."""
        b = self.outline.builder
        start, window = indexing.scale(feature, self.length), self.windows[1]
        with b.loop(self.length, VECTOR) as place:
            b.append(Store(self.sums, b.position(indexing.add(start, place)), zero(self.type)))
        with b.loop(self.channels) as channel, b.loop(self.windows[0].size) as row, b.pinned([self.sums]):
            plane = indexing.add(indexing.scale(channel, math.prod(self.plane)),
                                 indexing.scale(row, self.windows[0].window_dilation * self.plane[1]))
            for first, count in loops.in_pieces(b, window.size, TAPS):
                factors = [b.let(self.factor(feature, channel, (row, indexing.shift(first, n)))) for n in range(count)]
                near = indexing.add(plane, indexing.scale(first, window.window_dilation))
                with b.loop(self.length, VECTOR) as place:
                    total = b.let(self.at(self.sums, indexing.add(start, place)))
                    for n, factor in enumerate(factors):
                        tap = indexing.shift(indexing.add(near, place), n * window.window_dilation)
                        product = Apply("multiply", (self.at(self.planes, tap), factor), self.type)
                        total = b.let(Apply("add", (total, product), self.type))
                    b.append(Store(self.sums, b.position(indexing.add(start, place)), total))

    def at(self, array: str, place: Index) -> Load:
        return Load(array, self.outline.builder.position(place), self.type)

    def factor(self, feature: Index, channel: Index, taps: tuple[Index, Index]) -> Expr:
        """The filter's element at a row and a column of taps."""
        kernel, numbers = self.convolution.operands[1], self.numbers
        w: list[Index] = [feature] * kernel.shape.rank
        w[numbers.kernel_input_feature] = channel
        for n, window, tap in zip((self.down, self.across), self.windows, taps):
            if n is not None:
                last = indexing.constant(window.size - 1)
                w[numbers.kernel_spatial[n]] = indexing.subtract(last, tap) if window.reversal else tap
        return scalars.convert_to(self.outline.elements.value(kernel, tuple(w)), self.type)

    def finish(self) -> None:
        """The epilogue: loops in the order of the result's dimensions, those from the columns on in one."""
        b, numbers = self.outline.builder, self.numbers
        down = None if self.down is None else numbers.output_spatial[self.down]
        across = numbers.output_spatial[self.across]
        inner = [d for d in range(across + 1, len(self.sizes)) if d != numbers.output_batch]
        index: list[Index] = [self.image] * len(self.sizes)
        y = indexing.ZERO
        with ExitStack() as stack:
            for d in range(across):
                if d == down:
                    index[d] = stack.enter_context(loops.block_loop(b, self.rows, self.band, self.row_tile, SERIAL))
                    y = indexing.subtract(index[d], indexing.scale(self.row_tile, self.band))
                elif d != numbers.output_batch:
                    index[d] = stack.enter_context(b.loop(self.sizes[d]))
            beside = [self.sizes[d] for d in inner]
            extent, width = (n * math.prod(beside) for n in (self.columns, self.width))
            i = stack.enter_context(loops.block_loop(b, extent, width, self.column_tile, VECTOR))
            index[across], *others = indexing.delinearize(i, [self.columns, *beside])
            for d, own in zip(inner, others):
                index[d] = own
            x = indexing.subtract(index[across], self.start)
            self.store(index, indexing.add(indexing.scale(y, self.plane[1]), x))

    def store(self, index: list[Index], place: Index) -> None:
        """The epilogue of one element, whose sum is at `place` among those of its feature."""
        b = self.outline.builder
        place = indexing.linearize([index[self.numbers.output_feature], place], [self.features, self.length])
        result = product_result(b.let(self.at(self.sums, place)), self.convolution.shape.element_type)
        store_results(self.outline, self.convolution, always(result), indexing.linearize(index, self.sizes))
