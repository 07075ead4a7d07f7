"""select-and-scatter on a GPU as a gather: elements read from windows, so that no two threads write to one position.

In: the instruction, its window. Out: two kernels. In the first, a thread finds the tap that `select` chooses in one
window. In the second, a thread computes an element of the result: it visits the windows that may contain it, in order,
and adds the sources of those that chose it. Where the innermost dimension has no window, a thread has LANES elements of
it, for which it looks for windows once: those of adjacent threads are adjacent.

    windows of 3 elements, 2 apart:  |0 1 2|       element 2 asks windows 0 and 1: did you choose tap 2, tap 0?
                                         |2 3 4|
"""
from __future__ import annotations

import math
from contextlib import ExitStack

from hloc.ir import ELEMENT_TYPES, WindowDim
from hloc.kernels import indexing, scalars
from hloc.kernels.builder import within
from hloc.kernels.elemental.loop import loop_kernel
from hloc.kernels.group import Group, Lowered, Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import SERIAL, Apply, Const, Expr
from hloc.kernels.reductions.window_taps import is_plain, taps_of
from hloc.machine import Machine

NONE = Const(-1, "s32")             # the tap of a window that is entirely padding
LANES = (4, 2)                      # elements of a thread
ADJACENT = 8                        # the fewest adjacent elements of adjacent threads: a sector of f32
ENOUGH = 256                        # the fewest threads per SM


def lower_gathered_windows(group: Group, machine: Machine, dims: tuple[WindowDim, ...]) -> Lowered:
    """dims: without dilation; the array has elements, and there are windows."""
    instruction = group.instruction
    _, source, start = instruction.operands
    sizes, count, shape = source.shape.dimensions, source.shape.num_elements, instruction.shape.dimensions
    most = math.prod(w.size for w in dims)
    taps_type = next(t for t in ("s8", "s16", "s32") if most <= 1 << 8 * ELEMENT_TYPES[t].bytes - 1)
    lanes = lanes_of(dims, sizes, machine)

    def choose(outline: Outline, window: tuple[Index, ...]) -> None:
        windows = [at_lane(window, sizes, lane, lanes) for lane in range(lanes)]
        found = chosen_taps(outline, group, dims, windows)
        taps = outline.scratch_buffer(0, taps_type, count, "write")
        for own, tap in zip(windows, found):
            outline.builder.store(taps, indexing.linearize(own, sizes), scalars.convert_to(tap, taps_type))

    def gather(outline: Outline, index: tuple[Index, ...]) -> None:
        b = outline.builder
        taps = outline.scratch_buffer(0, taps_type, count, "read")
        type = scalars.computation_type(instruction.shape.element_type)
        totals = [b.mutable(type, outline.elements.value(start, ())) for _ in range(lanes)]
        with ExitStack() as stack:
            window, own = windows_of(outline, stack, dims, sizes, index)
            number = b.let(scalars.convert_to(b.position(own), "s32"))
            places = [at_lane(tuple(window), sizes, lane, lanes) for lane in range(lanes)]
            chosen = [b.let(b.load(taps, taps_type, indexing.linearize(place, sizes))) for place in places]
            values = [b.let(outline.elements.value(source, place)) for place in places]
            for total, tap, value in zip(totals, chosen, values):
                is_own = Apply("compare_eq", (scalars.convert_to(tap, "s32"), number), "pred")
                added = outline.elements.inline(instruction.get("scatter"), [total, value], instruction)[0]
                b.assign(total, Apply("select", (is_own, added, total), type))
        for lane, total in enumerate(totals):
            outline.store(0, indexing.linearize(at_lane(index, shape, lane, lanes), shape), total)

    calls = (loop_kernel(group, machine, (*sizes[:-1], sizes[-1] // lanes), choose, "_choose"),
             loop_kernel(group, machine, (*shape[:-1], shape[-1] // lanes), gather, "_gather"))
    return Lowered(calls, (ELEMENT_TYPES[taps_type].bytes * count,))


def lanes_of(dims: tuple[WindowDim, ...], sizes: tuple[int, ...], machine: Machine) -> int:
    """The elements of a thread: as many threads are left as keep the GPU busy."""
    if not is_plain(dims[-1]):
        return 1
    return next((n for n in LANES if sizes[-1] % n == 0 and sizes[-1] // n >= ADJACENT
                 and math.prod(sizes) // n >= ENOUGH * machine.cores), 1)


def at_lane(index: tuple[Index, ...], sizes: tuple[int, ...], lane: int, lanes: int) -> tuple[Index, ...]:
    """The index of a thread's lane-th element."""
    return (*index[:-1], indexing.shift(index[-1], lane * (sizes[-1] // lanes)))


def chosen_taps(outline: Outline, group: Group, dims: tuple[WindowDim, ...], windows: list[tuple[Index, ...]]
                ) -> list[Expr]:
    """What each of several windows chooses, which differ in the innermost dimension: the number of the first tap, or of
    a later one if `select` does not prefer the current choice."""
    instruction, b = group.instruction, outline.builder
    operand = instruction.operands[0]
    type = scalars.computation_type(operand.shape.element_type)
    found = [(b.mutable(type, Const(0, type)), b.mutable("s32", NONE)) for _ in windows]
    with ExitStack() as stack:
        sources, number = taps_of(outline, stack, dims, operand.shape.dimensions, list(windows[0]))
        tap = b.let(scalars.convert_to(b.position(number), "s32"))
        own = [sources] if len(windows) == 1 else [[*sources[:-1], window[-1]] for window in windows]
        values = [b.let(outline.elements.value(operand, tuple(place))) for place in own]
        for (best, chosen), value in zip(found, values):
            keep = outline.elements.inline(instruction.get("select"), [best, value], instruction)[0]
            first = Apply("compare_lt", (chosen, Const(0, "s32")), "pred")
            take = b.let(Apply("or", (first, Apply("not", (keep,), "pred")), "pred"))
            b.assign(best, Apply("select", (take, value, best), type))
            b.assign(chosen, Apply("select", (take, tap, chosen), "s32"))
    return [chosen for _, chosen in found]


def windows_of(outline: Outline, stack: ExitStack, dims: tuple[WindowDim, ...], sizes: tuple[int, ...],
               index: tuple[Index, ...]) -> tuple[list[Index], Index]:
    """Loops over the windows that may contain an element, in order, guarded where there is none; the window, and the
    number of the element's tap in it."""
    b, found, number = outline.builder, [], indexing.ZERO
    for i, window, size in zip(index, dims, sizes):
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
