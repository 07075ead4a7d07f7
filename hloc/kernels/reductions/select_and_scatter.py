"""select-and-scatter, the gradient of a pooling, as a gather: elements read from windows, so that nothing is written
twice.

In: the lone instruction. Out: two kernels. The first finds the tap that `select` chooses in each window. The second
computes each element of the result: it visits the windows that may contain it, in order, and adds the sources of those
that chose it.

    windows of 3 elements, 2 apart:  |0 1 2|       element 2 asks windows 0 and 1: did you choose tap 2, tap 0?
                                         |2 3 4|

On a CPU windows and elements go together by schedules of row nests. Where windows move along the innermost dimension,
what has no padding is a loop of its own, so that conditions are the same for all its iterations, each of which computes
the elements of one stride. On a GPU, where the innermost dimension has no window, a thread has LANES elements of it,
for which it looks for windows once: those of adjacent threads are adjacent.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack

from hloc.errors import UnsupportedError
from hloc.ir import ELEMENT_TYPES, WindowDim, window_of
from hloc.kernels import indexing, loops, scalars
from hloc.kernels.builder import within
from hloc.kernels.elemental.loop import Emit, cost_of, loop_kernel
from hloc.kernels.group import Group, KernelCall, Lowered, Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import SERIAL, VECTOR, Apply, Const, Expr, Var
from hloc.kernels.rules.loops import is_plain, taps_of
from hloc.kernels.schedule.lowering import LEAST_BYTES
from hloc.machine import Machine

NONE = Const(-1, "s32")             # the tap of a window that is entirely padding
LANES = (4, 2)                      # elements of a thread
ADJACENT = 8                        # the fewest adjacent elements of adjacent threads: a sector of f32
ENOUGH = 256                        # the fewest threads per SM
WIDTH = 512                         # windows or strides of a row that go together on a CPU
MOST_WRITTEN_OUT = 16               # taps along a row, each a few instructions


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
    if not source.shape.num_elements or not dims:
        return Lowered((loop_kernel(group, machine, instruction.shape.dimensions, fill, "_fill"),))
    gather = _Gather(group, dims, machine)
    return Lowered((gather.choosing(), gather.gathering()), (ELEMENT_TYPES[gather.taps_type].bytes * gather.count,))


class _Gather:
    """sizes, count: of the windows; lanes: elements that a thread of a GPU computes."""

    def __init__(self, group: Group, dims: tuple[WindowDim, ...], machine: Machine):
        self.group, self.dims, self.machine, self.instruction = group, dims, machine, group.instruction
        self.operand, self.source, self.start = self.instruction.operands
        self.sizes, self.shape = self.source.shape.dimensions, self.instruction.shape.dimensions
        self.count, most = math.prod(self.sizes), math.prod(w.size for w in dims)
        is_narrow = machine.kind == "gpu" or is_plain(dims[-1]) and self.sizes[-1] >= LEAST_BYTES     # whole vectors
        self.taps_type = next(t for t in ("s8", "s16", "s32")
                              if is_narrow and most <= 1 << 8 * ELEMENT_TYPES[t].bytes - 1 or t == "s32")
        self.type = scalars.computation_type(self.instruction.shape.element_type)
        self.lanes = lanes_of(dims, self.sizes, machine)
        self.is_along_rows = machine.kind == "cpu" and not is_plain(dims[-1]) and dims[-1].size <= MOST_WRITTEN_OUT

    # -- the taps that windows choose

    def choosing(self) -> KernelCall:
        def choose(outline: Outline, window: tuple[Index, ...]) -> None:
            windows = [at_lane(window, self.sizes, lane, self.lanes) for lane in range(self.lanes)]
            found = self.chosen(outline, windows)
            taps = outline.scratch_buffer(0, self.taps_type, self.count, "write")
            for own, tap in zip(windows, found):
                place = indexing.linearize(own, self.sizes)
                outline.builder.store(taps, place, scalars.convert_to(tap, self.taps_type))
        if not self.is_along_rows:
            return loop_kernel(self.group, self.machine, (*self.sizes[:-1], self.sizes[-1] // self.lanes), choose,
                               "_choose")
        last, size = self.dims[-1], self.operand.shape.dimensions[-1]
        inside = -(-last.padding_low // last.stride), (size + last.padding_low - last.size) // last.stride + 1
        return self.rows(self.sizes[:-1], (0, self.sizes[-1]), inside, choose, "_choose")

    def chosen(self, outline: Outline, windows: list[tuple[Index, ...]]) -> list[Expr]:
        """What each of several windows chooses, which differ in the innermost dimension: the number of the first tap,
        or of a later one if `select` does not prefer the current choice."""
        b, type = outline.builder, scalars.computation_type(self.operand.shape.element_type)
        found = [(b.mutable(type, Const(0, type)), b.mutable("s32", NONE)) for _ in windows]
        with ExitStack() as stack:
            sources, conditions, number = taps_of(outline.elements, stack, self.dims, self.operand.shape.dimensions,
                                                  windows[0])
            stack.enter_context(b.guard(conditions))
            # `select` may look at the current choice alone: that changes with each tap, too.
            stack.enter_context(b.pinned([v.name for pair in found for v in pair]))
            tap = b.let(scalars.convert_to(b.position(number), "s32"))
            own = [sources] if len(windows) == 1 else [[*sources[:-1], window[-1]] for window in windows]
            values = [b.let(outline.elements.value(self.operand, tuple(place))) for place in own]
            for (best, chosen), value in zip(found, values):
                keep = outline.elements.inline(self.instruction.get("select"), [best, value], self.instruction)[0]
                first = Apply("compare_lt", (chosen, Const(0, "s32")), "pred")
                take = b.let(Apply("or", (first, Apply("not", (keep,), "pred")), "pred"))
                b.assign(best, Apply("select", (take, value, best), type))
                b.assign(chosen, Apply("select", (take, tap, chosen), "s32"))
        return [chosen for _, chosen in found]

    # -- the elements of the result

    def gathering(self) -> KernelCall:
        if self.is_along_rows:
            last, size = self.dims[-1], self.shape[-1]
            ends = -max(0, -(last.padding_low // last.stride)), -(-(size + last.padding_low) // last.stride)
            inside = (max((last.size - 1) // last.stride, -(-last.padding_low // last.stride)),
                      min(self.sizes[-1], (size + last.padding_low) // last.stride))
            return self.rows(self.shape[:-1], ends, inside, self.gather_stride, "_gather")

        def gather(outline: Outline, index: tuple[Index, ...]) -> None:
            totals = self.totals(outline, self.lanes)
            with ExitStack() as stack:
                window, number = self.windows_of(outline, stack, index, self.dims)
                self.add(outline, number, [(total, at_lane(tuple(window), self.sizes, lane, self.lanes))
                                           for lane, total in enumerate(totals)])
            for lane, total in enumerate(totals):
                place = at_lane(index, self.shape, lane, self.lanes)
                outline.store(0, indexing.linearize(place, self.shape), total)
        return loop_kernel(self.group, self.machine, (*self.shape[:-1], self.shape[-1] // self.lanes), gather,
                           "_gather")

    def gather_stride(self, outline: Outline, index: tuple[Index, ...]) -> None:
        """The elements of one stride along a row: number `phase` is tap phase + k * stride of window index - k."""
        b, last, totals = outline.builder, self.dims[-1], self.totals(outline, self.dims[-1].stride)
        with ExitStack() as stack:
            window, number = self.windows_of(outline, stack, index[:-1], self.dims[:-1])
            for phase, total in enumerate(totals):
                for tap in reversed(range(phase, last.size, last.stride)):
                    at = indexing.shift(index[-1], -(tap // last.stride))
                    own = indexing.shift(indexing.scale(number, last.size), tap)
                    with b.guard(within(at, self.sizes[-1], b)):
                        self.add(outline, own, [(total, (*window, at))])
        for phase, total in enumerate(totals):
            place = indexing.shift(indexing.scale(index[-1], last.stride), phase - last.padding_low)
            with b.guard(within(place, self.shape[-1], b)):
                outline.store(0, indexing.linearize((*index[:-1], place), self.shape), total)

    def totals(self, outline: Outline, count: int) -> list[Var]:
        value = outline.elements.value(self.start, ())
        return [outline.builder.mutable(self.type, value) for _ in range(count)]

    def add(self, outline: Outline, number: Index, found: Sequence[tuple[Var, tuple[Index, ...]]]) -> None:
        """Add the sources of windows to totals, if they chose the tap of this number."""
        b = outline.builder
        tap = b.let(scalars.convert_to(b.position(number), "s32"))
        taps = outline.scratch_buffer(0, self.taps_type, self.count, "read")
        with b.pinned([total.name for total, _ in found]):
            chosen = [b.let(b.load(taps, self.taps_type, indexing.linearize(at, self.sizes))) for _, at in found]
            values = [b.let(outline.elements.value(self.source, at)) for _, at in found]
            for (total, _), own, value in zip(found, chosen, values):
                is_own = Apply("compare_eq", (scalars.convert_to(own, "s32"), tap), "pred")
                added = outline.elements.inline(self.instruction.get("scatter"), [total, value], self.instruction)[0]
                b.assign(total, Apply("select", (is_own, added, total), self.type))

    def windows_of(self, outline: Outline, stack: ExitStack, index: tuple[Index, ...], dims: tuple[WindowDim, ...]
                   ) -> tuple[list[Index], Index]:
        """Loops over the windows that may contain an element, in order, guarded where there is none; the window, and
        the number of the element's tap in it."""
        b, found, number = outline.builder, list[Index](), indexing.ZERO
        for i, window, size in zip(index, dims, self.sizes):
            if is_plain(window):
                found.append(i)
                continue
            most = -(-window.size // window.stride)             # the maximum number of windows that contain an element
            back = max(0, -(window.padding_low // window.stride))
            place = indexing.shift(i, window.padding_low + back * window.stride)        # never negative
            last = indexing.shift(indexing.floor_divide(place, window.stride), -back)
            step = stack.enter_context(b.loop(most, SERIAL))
            at = indexing.shift(indexing.add(last, step), 1 - most)
            tap = indexing.subtract(indexing.shift(i, window.padding_low), indexing.scale(at, window.stride))
            stack.enter_context(b.guard([*within(at, size, b), *within(tap, window.size, b)]))
            found.append(at)
            number = indexing.add(indexing.scale(number, window.size), tap)
        return found, number

    # -- loops along rows

    def rows(self, outer: tuple[int, ...], ends: tuple[int, int], inside: tuple[int, int], emit: Emit, suffix: str
             ) -> KernelCall:
        """A kernel over `outer` and places along rows; those inside, where nothing is padding, have their own loops."""
        outline = Outline(self.group)
        begin, end = (min(max(n, ends[0]), ends[1]) for n in inside)
        with loops.parallel(outline.builder, outer) as opened:
            for first, stop in ((ends[0], begin), (begin, max(begin, end)), (max(begin, end), ends[1])):
                for place, length in loops.in_pieces(outline.builder, stop - first, WIDTH):
                    with outline.builder.loop(length, VECTOR) as i:
                        emit(outline, (*opened, indexing.shift(indexing.add(place, i), first)))
        taps = math.prod(w.size for w in self.dims)
        return outline.finish(suffix, cost_of(outline, self.count * taps, outline.builder))


def lanes_of(dims: tuple[WindowDim, ...], sizes: tuple[int, ...], machine: Machine) -> int:
    """The elements of a thread: as many threads are left as keep the GPU busy."""
    if machine.kind == "cpu" or not is_plain(dims[-1]):
        return 1
    return next((n for n in LANES if sizes[-1] % n == 0 and sizes[-1] // n >= ADJACENT
                 and math.prod(sizes) // n >= ENOUGH * machine.cores), 1)


def at_lane(index: tuple[Index, ...], sizes: tuple[int, ...], lane: int, lanes: int) -> tuple[Index, ...]:
    """The index of a thread's lane-th element."""
    return (*index[:-1], indexing.shift(index[-1], lane * (sizes[-1] // lanes)))
