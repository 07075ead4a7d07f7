"""select-and-scatter on a GPU as a gather: elements read from windows, so that no two threads write to one position.

In: the instruction, its window. Out: two kernels. In the first, a thread finds the tap that `select` chooses in one
window. In the second, a thread computes an element of the result: it visits the windows that may contain it, in order,
and adds the sources of those that chose it.

    windows of 3 elements, 2 apart:  |0 1 2|       element 2 asks windows 0 and 1: did you choose tap 2, tap 0?
                                         |2 3 4|
"""
from __future__ import annotations

from contextlib import ExitStack

from hloc.ir import WindowDim
from hloc.kernels import indexing, scalars
from hloc.kernels.builder import within
from hloc.kernels.elemental.loop import loop_kernel
from hloc.kernels.group import Group, Lowered, Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import SERIAL, Apply, Const, Expr
from hloc.kernels.reductions.window_taps import is_plain, taps_of
from hloc.machine import Machine

NONE = Const(-1, "s32")             # the tap of a window that is entirely padding


def lower_gathered_windows(group: Group, machine: Machine, dims: tuple[WindowDim, ...]) -> Lowered:
    """dims: without dilation; the array has elements, and there are windows."""
    instruction = group.instruction
    _, source, start = instruction.operands
    sizes, count = source.shape.dimensions, source.shape.num_elements

    def choose(outline: Outline, window: tuple[Index, ...]) -> None:
        tap = chosen_tap(outline, group, dims, list(window))
        place = indexing.linearize(window, sizes)
        outline.builder.store(outline.scratch_buffer(0, "s32", count, "write"), place, tap)

    def gather(outline: Outline, index: tuple[Index, ...]) -> None:
        b = outline.builder
        taps = outline.scratch_buffer(0, "s32", count, "read")
        type = scalars.computation_type(instruction.shape.element_type)
        total = b.mutable(type, outline.elements.value(start, ()))
        with ExitStack() as stack:
            window, own = windows_of(outline, stack, dims, sizes, index)
            chosen = b.load(taps, "s32", indexing.linearize(window, sizes))
            is_own = Apply("compare_eq", (chosen, scalars.convert_to(b.position(own), "s32")), "pred")
            stack.enter_context(b.guard([is_own]))
            value = outline.elements.value(source, tuple(window))
            b.assign(total, outline.elements.inline(instruction.get("scatter"), [total, value], instruction)[0])
        outline.store(0, indexing.linearize(index, instruction.shape.dimensions), total)

    calls = (loop_kernel(group, machine, sizes, choose, "_choose"),
             loop_kernel(group, machine, instruction.shape.dimensions, gather, "_gather"))
    return Lowered(calls, (4 * count,))


def chosen_tap(outline: Outline, group: Group, dims: tuple[WindowDim, ...], window: list[Index]) -> Expr:
    """The number of the chosen tap: the first one, or a later one if `select` does not prefer the current choice."""
    instruction, b = group.instruction, outline.builder
    operand = instruction.operands[0]
    type = scalars.computation_type(operand.shape.element_type)
    best, chosen = b.mutable(type, Const(0, type)), b.mutable("s32", NONE)
    with ExitStack() as stack:
        sources, number = taps_of(outline, stack, dims, operand.shape.dimensions, window)
        value = b.let(outline.elements.value(operand, tuple(sources)))
        keep = outline.elements.inline(instruction.get("select"), [best, value], instruction)[0]
        first = Apply("compare_lt", (chosen, Const(0, "s32")), "pred")
        take = b.let(Apply("or", (first, Apply("not", (keep,), "pred")), "pred"))
        tap = scalars.convert_to(b.position(number), "s32")
        b.assign(best, Apply("select", (take, value, best), type))
        b.assign(chosen, Apply("select", (take, tap, chosen), "s32"))
    return chosen


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
