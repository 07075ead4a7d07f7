"""Windows over dynamic dimensions: elements beyond the sizes become neutral, the number of windows is computed."""
from __future__ import annotations

from typing import TYPE_CHECKING

from hloc.ir import Instruction, WindowDim, window_of
from hloc.passes.dynamic_padder.padded import Padded

if TYPE_CHECKING:
    from hloc.passes.dynamic_padder.walk import Walk


def window_count(w: Walk, size: Instruction, window: WindowDim) -> Instruction:
    """The number of windows that fit into `size` elements with their padding."""
    e = w.e
    spread = e.plus(e.times(e.plus(size, -1), window.base_dilation), 1) if window.base_dilation != 1 else size
    spread = e.at_least(spread, 0)
    reach = (window.size - 1) * window.window_dilation + 1
    room = e.plus(spread, window.padding_low + window.padding_high - reach)
    return e.over(e.at_least(e.plus(room, window.stride), 0), window.stride)


def reduce_window(w: Walk, i: Instruction) -> Padded | Instruction:
    if len(i.operands) != 2:
        raise w.refuse(i, "of several operands with dynamic dimensions")
    x, initial = w.operand(i, 0), w.operand(i, 1).array
    sizes = {d: window_count(w, size, window) for d, (size, window) in enumerate(zip(x.sizes, window_of(i)))
             if size is not None}
    return w.sized(i, w.again(i, [w.e.masked(x, initial), initial]), sizes)


def convolution(w: Walk, i: Instruction) -> Padded | Instruction:
    """Dynamic batch, features and input positions; positions of the kernel must be static."""
    x, kernel, numbers = w.operand(i, 0), w.operand(i, 1), i.get("dim_labels")
    if any(kernel.sizes[d] is not None for d in numbers.kernel_spatial):
        raise w.refuse(i, "with a kernel of dynamic size")
    windows = window_of(i)
    sizes = {numbers.output_batch: x.sizes[numbers.input_batch],
             numbers.output_feature: kernel.sizes[numbers.kernel_output_feature]}
    for position, place, window in zip(numbers.input_spatial, numbers.output_spatial, windows):
        size = x.sizes[position]
        if size is not None:
            sizes[place] = window_count(w, size, window)
    arrays = [w.e.masked(x, 0), w.e.masked(kernel, 0, [numbers.kernel_input_feature])]
    return w.sized(i, w.again(i, arrays), sizes)
