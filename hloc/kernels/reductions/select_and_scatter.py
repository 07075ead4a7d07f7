"""select-and-scatter: the gradient of a pooling.

In: the lone instruction. Out: two kernels. The first fills the result with the initial value. The second finds the tap
that `select` chooses in each window, and adds the window's source to it. The first is omitted if the second visits
every element exactly once. Vectors run along the innermost dimension:
    columns   it has no window (images in NHWC): a block of columns chooses and scatters together
    rows      its windows have a stride of a few elements (NCHW, single planes, signals): a row of windows chooses
              together; then each element of the result adds what the windows that contain it chose, several elements
              at a time, so that stores are whole vectors
    one       everything else: one window after the other
A GPU has its own kernels (gathered_windows.py).
Windows that do not overlap along a dimension are independent there, and PARALLEL.
"""
from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from hloc.errors import UnsupportedError
from hloc.ir import WindowDim, window_of
from hloc.kernels import indexing, loops, scalars
from hloc.kernels.elemental.loop import loop_kernel
from hloc.kernels.group import Group, KernelCall, Lowered, Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import SERIAL, VECTOR, Apply, Const, Expr, Load
from hloc.kernels.reductions.gathered_windows import lower_gathered_windows
from hloc.kernels.reductions.window_taps import WIDTH, cost_of, first_column, is_plain, taps_of
from hloc.kernels.sliding import Columns, slide, slides, steps
from hloc.machine import Machine

SHORTEST_STEPS = 8              # columns of a window with a stride of several elements
MOST_TAPS = 16                  # along a row, each a few instructions per element of the result


def lower_select_and_scatter(group: Group, machine: Machine) -> Lowered:
    instruction = group.instruction
    source, initial = instruction.operands[1:]
    if instruction.shape.num_elements == 0:
        return Lowered(())
    dims = tuple(w._replace(reversal=False) for w in window_of(instruction))      # XLA does not reverse taps either
    if any(w.base_dilation != 1 or w.window_dilation != 1 for w in dims):
        raise UnsupportedError("select-and-scatter with dilation", instruction.span)

    def fill(outline: Outline, index: tuple[Index, ...]) -> None:
        value = outline.elements.value(initial, ())
        if not dims:                                    # a scalar: it is chosen by the only window
            value = outline.elements.inline(instruction.get("scatter"), [value, outline.elements.value(source, ())],
                                            instruction)[0]
        outline.store(0, indexing.linearize(index, instruction.shape.dimensions), value)
    first = loop_kernel(group, machine, instruction.shape.dimensions, fill, "_fill")
    if not source.shape.num_elements or not dims:
        return Lowered((first,))
    if machine.kind != "cpu":
        return lower_gathered_windows(group, machine, dims)
    if not _goes_along_rows(dims[-1], source.shape.dimensions[-1]):
        return Lowered((first, _Columns(group, dims).kernel()))
    rows = _Rows(group, dims)
    return Lowered((rows.kernel(),) if rows.is_whole else (first, rows.kernel()))


def _goes_along_rows(window: WindowDim, columns: int) -> bool:
    return (slides(window) or steps(window)) and window.size <= MOST_TAPS and columns >= SHORTEST_STEPS


class _Windows:
    """Common parts of both forms: which windows run together, what is kept of each, what it reads and adds."""

    def __init__(self, group: Group, dims: tuple[WindowDim, ...]):
        self.dims = dims
        self.instruction = group.instruction
        self.operand, self.source, self.start = self.instruction.operands
        self.outline = Outline(group)
        self.builder = self.outline.builder
        self.type = scalars.computation_type(self.operand.shape.element_type)

    @contextmanager
    def rows(self, blocks: int, room: int) -> Iterator[tuple[list[Index], Index]]:
        """The loops over the windows except along the innermost dimension, and over its blocks; arrays of `room`
        columns."""
        b, sizes, outer = self.builder, self.source.shape.dimensions, range(len(self.dims) - 1)
        apart = [d for d in outer if is_plain(self.dims[d]) or self.dims[d].size <= self.dims[d].stride]
        position = [indexing.ZERO] * len(outer)
        with ExitStack() as stack:
            opened = stack.enter_context(loops.parallel(b, [*(sizes[d] for d in apart), blocks]))
            self.best = b.local(self.type, room, "best")
            self.chosen = b.local("s32", room, "chosen")
            for d, counter in zip(apart, opened):
                position[d] = counter
            for d in set(outer) - set(apart):
                position[d] = stack.enter_context(b.loop(sizes[d], SERIAL))
            yield position, opened[-1]

    def finish(self) -> KernelCall:
        taps = math.prod(w.size for w in self.dims)
        return self.outline.finish(cost=cost_of(self.outline, self.source.shape.num_elements * taps * 2))

    def load(self, name: str, type: str, offset: Index) -> Expr:
        with self.builder.pinned([name]):
            return self.builder.let(Load(name, self.builder.position(offset), type))

    def choose(self, offset: Index, taps: list[tuple[Index, tuple[Index, ...]]]) -> None:
        """Choose a tap (its number, the element's index) if it is the first, or if select does not prefer the current
        choice."""
        b = self.builder
        best, chosen = self.load(self.best, self.type, offset), self.load(self.chosen, "s32", offset)
        for number, index in taps:
            value = b.let(self.outline.elements.value(self.operand, index))
            keep = self.outline.elements.inline(self.instruction.get("select"), [best, value], self.instruction)[0]
            first = Apply("compare_lt", (chosen, Const(0, "s32")), "pred")
            take = b.let(Apply("or", (first, Apply("not", (keep,), "pred")), "pred"))
            best = b.let(Apply("select", (take, value, best), self.type))
            tap = scalars.convert_to(b.position(number), "s32")
            chosen = b.let(Apply("select", (take, tap, chosen), "s32"))
        b.store(self.best, offset, best)
        b.store(self.chosen, offset, chosen)

    def has_chosen(self, offset: Index, number: Index) -> Expr:
        tap = scalars.convert_to(self.builder.position(number), "s32")
        return Apply("compare_eq", (self.load(self.chosen, "s32", offset), tap), "pred")

    def position(self, index: list[Index]) -> Index:
        return indexing.linearize(index, self.operand.shape.dimensions)

    def so_far(self, position: Index) -> Expr:
        """The current value of an element of the result, before more is added."""
        name = self.outline.result_buffer(0, "update")
        with self.builder.pinned([name]):
            old = self.builder.load(name, self.instruction.shape.element_type, position)
            return self.builder.let(scalars.widen(old))

    def scattered(self, old: Expr, value: Expr) -> Expr:
        return self.outline.elements.inline(self.instruction.get("scatter"), [old, value], self.instruction)[0]

    def store(self, position: Index, value: Expr, access: str = "update") -> None:
        name = self.outline.result_buffer(0, access)
        self.builder.store(name, position, scalars.narrow(value, self.instruction.shape.element_type))


class _Columns(_Windows):
    """A block of columns that have no window; a single window if the innermost dimension has one."""

    def kernel(self) -> KernelCall:
        b, columns = self.builder, self.source.shape.dimensions[-1]
        plain = is_plain(self.dims[-1])
        self.width = min(WIDTH, columns) if plain else 1
        blocks = -(-columns // self.width) if plain else 1
        with self.rows(blocks, self.width) as (position, block), ExitStack() as stack:
            self.block = block if plain else stack.enter_context(b.loop(columns, SERIAL))
            self.window([*position, first_column(self.block, self.width)])
        return self.finish()

    @contextmanager
    def columns(self) -> Iterator[tuple[Index, Index]]:
        """Every column of the block, and its position in the block."""
        if self.width == 1:
            yield self.block, indexing.ZERO
            return
        extent = self.source.shape.dimensions[-1]
        with loops.block_loop(self.builder, extent, self.width, self.block, VECTOR) as column:
            yield column, indexing.subtract(column, first_column(self.block, self.width))

    def window(self, position: list[Index]) -> None:
        sizes = self.operand.shape.dimensions
        with self.columns() as (_, offset):
            self.builder.store(self.chosen, offset, Const(-1, "s32"))
        for step in (self.choose_tap, self.scatter_to_tap):
            with self.builder.pinned([self.best, self.chosen]), ExitStack() as stack:
                sources, number = taps_of(self.outline, stack, self.dims, sizes, position)
                with self.columns() as (column, offset):
                    index = [*sources[:-1], column if is_plain(self.dims[-1]) else sources[-1]]
                    step(offset, number, index, [*position[:-1], column])

    def choose_tap(self, offset: Index, number: Index, index: list[Index], window: list[Index]) -> None:
        self.choose(offset, [(number, tuple(index))])

    def scatter_to_tap(self, offset: Index, number: Index, index: list[Index], window: list[Index]) -> None:
        with self.builder.guard([self.has_chosen(offset, number)]):
            value = self.outline.elements.value(self.source, tuple(window))
            position = self.position(index)
            self.store(position, self.scattered(self.so_far(position), value))


class _Rows(_Windows):
    """Windows that move along the innermost dimension by `stride` elements; an element is in up to `before` + 1
    windows.

    Elements are counted from the first tap of the first window, which may be padding; element group * stride + phase is
    tap (phase + k * stride) of window (group - k)."""

    def __init__(self, group: Group, dims: tuple[WindowDim, ...]):
        super().__init__(group, dims)
        window, windows = dims[-1], self.source.shape.dimensions[-1]
        self.before = (window.size - 1) // window.stride
        covered = self.operand.shape.dimensions[-1] + window.padding_low
        self.count = max(1, min(windows + self.before, -(-covered // window.stride)))
        self.is_whole = window.padding_low >= 0 and self.count * window.stride >= covered and all(
            is_plain(w) or w.size == w.stride and not w.padding_low and size == n * w.size
            for w, size, n in zip(dims[:-1], self.operand.shape.dimensions, self.source.shape.dimensions))

    def kernel(self) -> KernelCall:
        b, windows, groups = self.builder, self.source.shape.dimensions[-1], self.count
        width = min(WIDTH, groups)
        self.room = width + self.before
        with self.rows(-(-groups // width), self.room) as (position, block):
            self.given = b.local(scalars.computation_type(self.source.shape.element_type), self.room, "given")
            self.windows = Columns(b, windows, width, block, self.before)
            self.groups = Columns(b, groups, width, block)
            with b.pinned([self.best, self.chosen, self.given]):
                self.read(position)
                self.choose_taps(position)
                self.scatter(position)
        return self.finish()

    def read(self, position: list[Index]) -> None:
        """No tap is chosen yet; the sources of windows, and zero beyond them."""
        b = self.builder
        with b.loop(self.room, VECTOR) as offset:
            b.store(self.chosen, offset, Const(-1, "s32"))
            b.store(self.given, offset, Const(0, scalars.computation_type(self.source.shape.element_type)))
        with self.windows.all() as column:
            value = self.outline.elements.value(self.source, (*position, column))
            b.store(self.given, self.windows.offset(column), value)

    def choose_taps(self, position: list[Index]) -> None:
        window, sizes = self.dims[-1], self.operand.shape.dimensions
        with ExitStack() as stack:
            outer, number = taps_of(self.outline, stack, self.dims[:-1], sizes[:-1], position)
            first = indexing.scale(number, window.size)
            slide(self.windows, window, sizes[-1], lambda column, taps: self.choose(
                self.windows.offset(column), [(indexing.add(first, tap), (*outer, place)) for tap, place in taps]))

    def scatter(self, position: list[Index]) -> None:
        stride, low, sizes = self.dims[-1].stride, self.dims[-1].padding_low, self.operand.shape.dimensions
        first, end = low, min(sizes[-1] + low, self.groups.extent * stride)     # the elements that are not padding
        whole, rest = max(0, -(-first // stride)), end // stride
        with ExitStack() as stack:
            outer, number = taps_of(self.outline, stack, self.dims[:-1], sizes[:-1], position)
            for begin, stop in ((max(0, first // stride), whole), (whole, rest), (max(whole, rest), -(-end // stride))):
                if begin >= stop:
                    continue
                phases = [p for p in range(stride) if begin * stride + p >= first and (stop - 1) * stride + p < end]
                with self.groups.between(begin, stop) as group:
                    self.take(group, phases, outer, number)

    def take(self, group: Index, phases: list[int], outer: list[Index], number: Index) -> None:
        """Each element adds the sources of the windows that contain it and chose it, the first window first."""
        window, found = self.dims[-1], []
        for phase in phases:
            place = indexing.shift(indexing.scale(group, window.stride), phase - window.padding_low)
            position = self.position([*outer, place])
            value = self.outline.elements.value(self.start, ()) if self.is_whole else self.so_far(position)
            for tap in reversed(range(phase, window.size, window.stride)):
                offset = self.windows.offset(indexing.shift(group, -((tap - phase) // window.stride)))
                tapped = indexing.shift(indexing.scale(number, window.size), tap)
                given = self.load(self.given, scalars.computation_type(self.source.shape.element_type), offset)
                new = self.scattered(value, given)
                value = self.builder.let(Apply("select", (self.has_chosen(offset, tapped), new, value), new.type))
            found.append((position, value))
        for position, value in found:
            self.store(position, value, "write" if self.is_whole else "update")
