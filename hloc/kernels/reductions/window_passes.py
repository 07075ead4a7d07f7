"""Windows by passes over a block of padded columns in the cache: conditions only where it is filled, and two adjacent
windows form one of twice the length. Seven taps or two hundred take a few passes.

In: the lone reduce-window. Out: its kernels, one for each way to put the window together. Windows of 11 = 1 + 2 + 8:

    for blocks of 512 columns:  for k < 522: a[k] = x[first + k]             0 where that is padding
                                for i: sum[i] = 0 + a[i]
                                for k < 521: b[k] = a[k] + a[k + 1]          windows of 2
                                for i: sum[i] += b[i + 1]
                                for k < 519: a[k] = b[k] + b[k + 2]          of 4
                                for k < 515: b[k] = a[k] + a[k + 4]          of 8
                                for i: sum[i] += b[i + 3]

The window's other dimensions are reduced first, into `a`. Dimensions after that of the window, such as an image's
channels, are collapsed with it: neighbours along the window are so many columns apart. For idempotent operations such
as maxima, two overlapping windows suffice: max(b[i], b[i + 3]).
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import groupby

from hloc.ir import ELEMENT_TYPES, Instruction, window_of
from hloc.kernels import indexing, loops, scalars
from hloc.kernels.column_blocks import TAPS, Columns
from hloc.kernels.group import Group, KernelCall, Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import VECTOR, Expr, Load
from hloc.kernels.monoids import identity, monoid
from hloc.kernels.reductions.window_taps import cost_of, is_plain, taps_of

WIDTH, BLOCK = 512, 3                   # the fewest columns of a block, and per column under a window
MOST_BYTES = 1 << 13                    # under a window: with the arrays for a block, the L2 cache is large enough
IDEMPOTENT = ("maximum", "minimum", "and", "or")

Parts = tuple[tuple[int, int], ...]     # lengths of the parts of a window, powers of two, and the offset of each


def kernels_by_passes(group: Group) -> Iterator[KernelCall]:
    """The kernels of a reduce-window by passes, if there are such."""
    instruction = group.instruction
    dims, result = window_of(instruction), instruction.shape.dimensions if instruction.shape.is_array else ()
    windows = [d for d, w in enumerate(dims) if not is_plain(w)]
    if not result or not windows or not monoid(instruction.get("to_apply")) \
            or not instruction.operands[0].shape.num_elements:
        return
    along, inner = dims[windows[-1]], math.prod(result[windows[-1] + 1:])
    under = along.size * inner * along.window_dilation * ELEMENT_TYPES[
        scalars.computation_type(instruction.shape.element_type)].bytes
    if along.base_dilation == 1 and (along.stride == 1 or inner == 1) and under <= MOST_BYTES:
        one_by_one = tuple((1, n) for n in range(along.size))
        for parts in dict.fromkeys((one_by_one, tuple(_doubled(instruction, along.size)))):
            yield _Block(group, windows[-1], parts).kernel()


def _doubled(instruction: Instruction, size: int) -> Iterator[tuple[int, int]]:
    """The parts of a window that is made in doublings."""
    if monoid(instruction.get("to_apply")) in IDEMPOTENT:
        longest = 1 << size.bit_length() - 1
        yield from ((longest, offset) for offset in dict.fromkeys((0, size - longest)))
        return
    offset = 0
    for length in (1 << n for n in range(size.bit_length())):
        if size & length:
            yield length, offset
            offset += length


class _Block:
    """A block of `width` columns of the result: positions along the window's dimension and those after it. step:
    columns between neighbours along the window.

    taken: the array of the values of windows of some length, from each position on; spare: the one for the next
    pass."""

    def __init__(self, group: Group, along: int, parts: Parts):
        self.outline, self.instruction, self.along, self.parts = Outline(group), group.instruction, along, parts
        self.dims, result = window_of(self.instruction), self.instruction.shape.dimensions
        self.window, self.inner = self.dims[along], math.prod(result[along + 1:])
        self.step = self.inner * self.window.window_dilation
        self.columns = math.prod(result[along:])
        self.width = min(max(WIDTH, BLOCK * self.window.size * self.step), self.columns)
        self.type = scalars.computation_type(self.instruction.shape.element_type)
        self.room = (self.width - 1) * self.window.stride + 1 + (self.window.size - 1) * self.step

    def kernel(self) -> KernelCall:
        b, result = self.outline.builder, self.instruction.shape.dimensions
        with loops.parallel(b, [*result[:self.along], -(-self.columns // self.width)]) as opened:
            self.position, self.number = list(opened[:-1]), opened[-1]
            self.taken, self.spare = (b.local(self.type, self.room, "taken") for _ in range(2))
            self.totals = b.local(self.type, self.width, "total")
            self.take_in()
            self.combine_parts()
            self.store()
        return self.outline.finish(cost=cost_of(self.outline, math.prod(result) * b.operations))

    def combine_parts(self) -> None:
        """The totals of windows, from their parts."""
        length, total = 1, None
        for span, parts in groupby(self.parts, lambda part: part[0]):
            while length < span:
                self.double(length)
                length *= 2
            offsets = [offset for _, offset in parts]
            for first in range(0, len(offsets), TAPS):
                self.add(offsets[first:first + TAPS], total is None)
                total = self.totals

    def add(self, offsets: Iterable[int], is_first: bool) -> None:
        start = self.outline.elements.value(self.instruction.operands[1], ())
        with self.outline.builder.loop(self.width, VECTOR) as i:
            total = start if is_first else self.at(self.totals, i)
            for offset in offsets:
                place = indexing.shift(indexing.scale(i, self.window.stride), offset * self.step)
                total = self.join(total, self.at(self.taken, place))
            self.put(self.totals, i, total)

    def take_in(self) -> None:
        """Fill `taken` with the input of the windows, reduced along other dimensions."""
        b, operand, along = self.outline.builder, self.instruction.operands[0], self.along
        sizes, has_taps = operand.shape.dimensions, not all(map(is_plain, self.dims[:along]))
        op = monoid(self.instruction.get("to_apply"))
        assert op is not None
        neutral = identity(op, self.instruction.shape.element_type)
        with b.loop(self.room, VECTOR) as k:
            self.put(self.taken, k, neutral)
        before, columns = self.window.padding_low * self.inner, math.prod(sizes[along:])
        width = self.width * self.window.stride
        block = Columns(b, columns, width, self.number, before, self.room - width - before)
        with ExitStack() as stack:
            sources, _ = taps_of(self.outline, stack, self.dims[:along], sizes, self.position)
            with block.between(0, columns) as column:
                k = block.offset(column)
                value = self.outline.elements.value(operand, (*sources, *indexing.delinearize(column, sizes[along:])))
                self.put(self.taken, k, self.join(self.at(self.taken, k), value) if has_taps else value)

    def double(self, length: int) -> None:
        """From windows of some length to those of twice the length."""
        with self.outline.builder.loop(self.room - (2 * length - 1) * self.step, VECTOR) as k:
            both = self.join(self.at(self.taken, k), self.at(self.taken, indexing.shift(k, length * self.step)))
            self.put(self.spare, k, both)
        self.taken, self.spare = self.spare, self.taken

    def store(self) -> None:
        result, along = self.instruction.shape, self.along
        with loops.block_loop(self.outline.builder, self.columns, self.width, self.number) as column:
            total = self.at(self.totals, indexing.subtract(column, indexing.scale(self.number, self.width)))
            flat = indexing.linearize([*self.position, column], [*result.dimensions[:along], self.columns])
            self.outline.store(0, flat, scalars.rounded(total, result.element_type))

    def at(self, name: str, place: Index) -> Expr:
        return self.outline.builder.let(Load(name, self.outline.builder.position(place), self.type))

    def put(self, name: str, place: Index, value: Expr) -> None:
        self.outline.builder.store(name, place, value)

    def join(self, a: Expr, b: Expr) -> Expr:
        return self.outline.elements.combined(self.instruction, [a, b])[0]
