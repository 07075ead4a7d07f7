"""Convolutions whose windows are about as large as the images, with few positions in the result: gradients of small
filters with few features.

In: a convolution with long_windows (size_thresholds.py) whose operands are in memory, with the fusion's operations on
its result. Out: one kernel. The sums of a row of results are accumulated together, with vectors along the window:

    for each f, o, y (PARALLEL):  for each image n, row r of the window that meets the image:
                                      for t (VECTOR): for x (unrolled): sum[x] += image[n, y+r, x+t] * window[n, r, t]
                                  for x: out[f, o, y, x] = epilogue(sum[x])

At padding, at both ends of a row, terms are added one at a time.
"""
from __future__ import annotations

from contextlib import ExitStack

from hloc.analysis.prologues import multiply_adds
from hloc.ir import Instruction, window_of
from hloc.kernels import indexing, loops
from hloc.kernels.elemental.loop import cost_of, shareable
from hloc.kernels.elements import always
from hloc.kernels.group import Group, KernelCall, Lowered, Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import VECTOR, Expr, Var
from hloc.kernels.products.epilogues import store_results
from hloc.kernels.products.size_thresholds import taps_always_inside
from hloc.kernels.rules.elementwise import zero
from hloc.kernels.rules.loops import accumulator_type, convolution_groups, multiply_add, open_taps, product_result


def lower_filter_gradient(group: Group, convolution: Instruction) -> Lowered:
    """The kernel of such a convolution, whose operands are in memory, and its epilogue."""
    return Lowered((_FilterGradient(group, convolution).kernel(),), can_share=tuple(shareable(group, (convolution,))))


class _FilterGradient:
    """along: the window's last dimension; dimension: that of the result."""

    def __init__(self, group: Group, convolution: Instruction):
        self.outline, self.convolution = Outline(group), convolution
        self.numbers, self.sizes = convolution.get("dim_labels"), convolution.shape.dimensions
        self.along = len(self.numbers.output_spatial) - 1
        self.dimension = self.numbers.output_spatial[self.along]
        self.window = window_of(convolution)[self.along]

    def kernel(self) -> KernelCall:
        b, type = self.outline.builder, accumulator_type(self.convolution)
        others = [d for d in range(len(self.sizes)) if d != self.dimension]
        with loops.parallel(b, [self.sizes[d] for d in others]) as opened:
            index: list[Index] = [indexing.ZERO] * len(self.sizes)
            for d, counter in zip(others, opened):
                index[d] = counter
            sums = [b.mutable(type, zero(type), "add") for _ in range(self.sizes[self.dimension])]
            self.add_up(index, sums)
            for place, total in enumerate(sums):
                index[self.dimension] = indexing.constant(place)
                self.finish(index, b.bind(total))
        cost = cost_of(self.outline, self.convolution.shape.num_elements, b)
        return self.outline.finish(cost=cost._replace(flops=2 * multiply_adds(self.convolution)))

    def add_up(self, index: list[Index], sums: list[Var]) -> None:
        """All terms of a row of results."""
        b, numbers, kernel = self.outline.builder, self.numbers, self.convolution.operands[1].shape
        x, w = convolution_groups(self.convolution, tuple(index))
        first, end = taps_always_inside(self.convolution)
        with ExitStack() as stack:
            channel = stack.enter_context(b.loop(kernel.dimensions[numbers.kernel_input_feature]))
            x[numbers.input_feature] = w[numbers.kernel_input_feature] = channel
            conditions = open_taps(self.outline.elements, stack, self.convolution, index, x, w, self.along)
            stack.enter_context(b.guard(conditions))
            stack.enter_context(b.pinned([s.name for s in sums]))
            with b.loop(end - first, VECTOR) as i:
                self.add_terms(x, w, indexing.shift(i, first), sums)
            for tap in (*range(first), *range(end, self.window.size)):
                self.add_terms(x, w, indexing.constant(tap), sums)

    def add_terms(self, x: list[Index], w: list[Index], tap: Index, sums: list[Var]) -> None:
        """Add the terms of one window position to each sum for which it is inside the image. This is known for a
        constant position."""
        elements, (image, kernel) = self.outline.elements, self.convolution.operands
        d, size = self.numbers.input_spatial[self.along], image.shape.dimensions[self.numbers.input_spatial[self.along]]
        w[self.numbers.kernel_spatial[self.along]] = tap
        factor = self.outline.builder.let(elements.value(kernel, tuple(w)))
        for place, total in enumerate(sums):
            at = indexing.shift(indexing.scale(tap, self.window.window_dilation),
                                place * self.window.stride - self.window.padding_low)
            if at.terms or 0 <= at.constant < size:
                x[d] = at
                multiply_add(elements, total, elements.value(image, tuple(x)), factor)

    def finish(self, index: list[Index], total: Expr) -> None:
        """The epilogue of one element."""
        result = product_result(total, self.convolution.shape.element_type)
        store_results(self.outline, self.convolution, always(result), indexing.linearize(index, self.sizes))
