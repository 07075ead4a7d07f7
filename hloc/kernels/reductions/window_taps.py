"""Common parts of window kernels: which dimensions have a window, and the loops over the taps.

In: a window's dimensions and a position of the result. Out: positions of the input, in an Outline's builder.
"""
from __future__ import annotations

from contextlib import ExitStack

from hloc.ir import WindowDim
from hloc.kernels import indexing
from hloc.kernels.group import Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import SERIAL, Cost
from hloc.kernels.rules.loops import window_source


def is_plain(window: WindowDim) -> bool:
    """The dimension has no window: output and input positions are the same."""
    return window._replace(window_dilation=1, reversal=False) == WindowDim()


def cost_of(outline: Outline, operations: int) -> Cost:
    return Cost(sum(b.size * 4 for b in outline.buffers()[0]), operations)


def taps_of(outline: Outline, stack: ExitStack, dims: tuple[WindowDim, ...], sizes: tuple[int, ...],
            position: list[Index]) -> tuple[list[Index], Index]:
    """Loops over the taps of a window, guarded where they may fall outside; the input indices and the tap's number."""
    b = outline.builder
    sources: list[Index] = []
    number = indexing.ZERO
    for i, window, size in zip(position, dims, sizes):
        if is_plain(window):
            sources.append(i)
            continue
        tap = stack.enter_context(b.loop(window.size, SERIAL))
        source, conditions = window_source(outline.elements, i, tap, window, size)
        stack.enter_context(b.guard(conditions))
        sources.append(source)
        number = indexing.add(indexing.scale(number, window.size), tap)
    return sources, number
