"""Convolutions as loops: over the features of one position at a time, or over the positions of a row, with the sums in
a Local array.

In: a convolution that is_small or slides_along_rows (size_thresholds.py), with the fusion's operations on its result.
Out: a kernel, or None if an operand would be recomputed for each tap. A library kernel would take longer to start, and
far longer to compile. Filters of f16 are widened to f32 before.

    for each position:  for f: sum[f] = 0
                        for each tap in the image: for c: for f: sum[f] += image[tap, c] * filter[tap, c, f]
                        for f: out[position, f] = epilogue(sum[f])

If images are planes, the window moves along their rows (sliding.py):

    for each f, row:    for x: sum[x] = 0
                        for each row of taps in the image: for c: for each tap: for x:
                            sum[x] += image[c, tap + x] * filter[tap, c, f]
"""
from __future__ import annotations

import math
from abc import ABC
from contextlib import ExitStack

from hloc.ir import Instruction, window_of
from hloc.kernels import indexing, scalars
from hloc.kernels.elemental.loop import shareable
from hloc.kernels.group import Group, Lowered
from hloc.kernels.indexing import Index
from hloc.kernels.ir import Apply, Load, Store
from hloc.kernels.products.operands import Access, OperandKernels, behind_conversion
from hloc.kernels.products.small_dot import RowsOfSums
from hloc.kernels.rules.loops import convolution_groups, open_taps
from hloc.kernels.sliding import Columns, slide
from hloc.machine import Machine

WIDTH = 512                     # positions of a row at a time


def lower_small_convolution(group: Group, convolution: Instruction, machine: Machine) -> Lowered | None:
    """The kernel of a small convolution and its epilogue; None if an operand is not in memory."""
    if not is_read_in_place(group, convolution):
        return None
    loops, operands = _SmallConvolution(group, convolution, convolution.shape.rank - 1), OperandKernels(group, machine)
    if convolution.operands[1].shape.element_type == "f16":
        loops.read_widened(operands.in_order(convolution.operands[1], "f32", range(convolution.shape.rank)))
    return Lowered((*operands.calls, loops.kernel()), tuple(operands.scratch),
                   can_share=tuple(shareable(group, (convolution,))))


def lower_sliding_convolution(group: Group, convolution: Instruction) -> Lowered | None:
    """The kernel of a convolution whose window moves along rows, and its epilogue; None as above."""
    if not is_read_in_place(group, convolution):
        return None
    kernel = _SlidingConvolution(group, convolution).kernel()
    return Lowered((kernel,), can_share=tuple(shareable(group, (convolution,))))


def is_read_in_place(group: Group, convolution: Instruction) -> bool:
    """Whether the operands are in memory, and each result is as large as the convolution."""
    return all(behind_conversion(group, o) in group.parameters for o in convolution.operands) \
        and all(r.shape.num_elements == convolution.shape.num_elements for r in group.roots)


class _Convolution(RowsOfSums, ABC):
    """A convolution as loops."""

    def depth(self) -> int:
        kernel = self.dot.operands[1].shape.dimensions
        return math.prod(kernel) // kernel[self.dot.get("dim_labels").kernel_output_feature]


class _SmallConvolution(_Convolution):
    """A convolution whose sums are its features."""

    def read_widened(self, filter: Access) -> None:
        """Read the filter in f32 from scratch memory: f16 would be converted for each position and tap."""
        outline, kernel = self.outline, self.dot.operands[1]
        name = outline.scratch_buffer(filter.stored_at.index, filter.type, filter.size, "read")
        outline.elements.sources[kernel] = lambda index: outline.builder.load(
            name, filter.type, indexing.linearize(index, kernel.shape.dimensions))

    def accumulate(self, index: list[Index], type: str) -> None:
        b, elements, numbers = self.outline.builder, self.outline.elements, self.dot.get("dim_labels")
        image, kernel = self.dot.operands
        x, _ = convolution_groups(self.dot, tuple(index))
        w: list[Index] = [index[0]] * kernel.shape.rank
        with ExitStack() as stack:
            conditions = open_taps(elements, stack, self.dot, index, x, w)
            stack.enter_context(b.guard(conditions))
            channel = stack.enter_context(b.loop(kernel.shape.dimensions[numbers.kernel_input_feature]))
            stack.enter_context(b.pinned([self.sums]))
            x[numbers.input_feature] = w[numbers.kernel_input_feature] = channel
            still = b.let(elements.value(image, tuple(x)))
            with self.along(index):
                w[numbers.kernel_output_feature] = index[self.vector]
                self.add_term(index, (still, elements.value(kernel, tuple(w))), type)


class _SlidingConvolution(_Convolution):
    """A convolution whose sums are those of a row."""

    def __init__(self, group: Group, convolution: Instruction):
        rank = convolution.shape.rank
        super().__init__(group, convolution, rank - 1, min(WIDTH, convolution.shape.dimensions[-1]))
        self.along_rows = convolution.get("dim_labels").output_spatial.index(rank - 1)

    def accumulate(self, index: list[Index], type: str) -> None:
        b, elements, numbers = self.outline.builder, self.outline.elements, self.dot.get("dim_labels")
        image, kernel = self.dot.operands
        window = window_of(self.dot)[self.along_rows]
        x, w = convolution_groups(self.dot, tuple(index))

        def take(column: Index, taps: list[tuple[Index, Index]]) -> None:
            index[self.vector] = column
            total = b.let(Load(self.sums, self.place(index), type))
            for tap, place in taps:
                x[numbers.input_spatial[self.along_rows]] = place
                last = indexing.constant(window.size - 1)
                w[numbers.kernel_spatial[self.along_rows]] = indexing.subtract(last, tap) if window.reversal else tap
                factors = (elements.value(image, tuple(x)), elements.value(kernel, tuple(w)))
                product = Apply("multiply", tuple(scalars.convert_to(f, type) for f in factors), type)
                total = b.let(Apply("add", (total, product), type))
            b.append(Store(self.sums, self.place(index), total))
        with ExitStack() as stack:
            stack.enter_context(b.guard(open_taps(elements, stack, self.dot, index, x, w, self.along_rows)))
            channel = stack.enter_context(b.loop(kernel.shape.dimensions[numbers.kernel_input_feature]))
            x[numbers.input_feature] = indexing.add(x[numbers.input_feature], channel)
            w[numbers.kernel_input_feature] = channel
            stack.enter_context(b.pinned([self.sums]))
            columns = Columns(b, self.sizes[self.vector], self.width, self.block)
            slide(columns, window._replace(reversal=False), image.shape.dimensions[-1], take)
