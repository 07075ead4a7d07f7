"""Small convolutions as loops: the features of one position at a time, their sums side by side in a Local array.

In: a convolution that is_small (tiny.py), with what its fusion does to the result. Out: one kernel, or None where an
operand would be computed anew for each tap. A routine would take longer to start, and far longer to compile.
Filters of f16 are brought into f32 before.

    for each position:  for f: sum[f] = 0
                        for each tap in the image: for c: for f: sum[f] += image[tap, c] * filter[tap, c, f]
                        for f: out[position, f] = epilogue(sum[f])
"""
from __future__ import annotations

import math
from contextlib import ExitStack

from hloc.ir import Instruction
from hloc.kernels import indexing
from hloc.kernels.group import Group, Lowered
from hloc.kernels.indexing import Index
from hloc.kernels.lower_loop import shareable
from hloc.kernels.lower_small_product import RowsOfSums
from hloc.kernels.operands import Access, OperandKernels, behind_conversion
from hloc.kernels.rules_loops import convolution_groups, open_taps
from hloc.machine import Machine


def lower_small_convolution(group: Group, convolution: Instruction, machine: Machine) -> Lowered | None:
    """The kernel of a small convolution and its epilogue; None where an operand does not lie in memory."""
    if any(behind_conversion(group, o) not in group.parameters for o in convolution.operands):
        return None
    if any(r.shape.num_elements != convolution.shape.num_elements for r in group.roots):
        return None
    loops, operands = _SmallConvolution(group, convolution, convolution.shape.rank - 1), OperandKernels(group, machine)
    if convolution.operands[1].shape.element_type == "f16":
        loops.read_widened(operands.in_order(convolution.operands[1], "f32", range(convolution.shape.rank)))
    return Lowered((*operands.calls, loops.kernel()), tuple(operands.scratch),
                   can_share=tuple(shareable(group, (convolution,))))


class _SmallConvolution(RowsOfSums):
    """One whose sums are its features."""

    def depth(self) -> int:
        kernel = self.dot.operands[1].shape.dimensions
        return math.prod(kernel) // kernel[self.dot.get("dim_labels").kernel_output_feature]

    def read_widened(self, filter: Access) -> None:
        """Read the filter in f32 from scratch memory: f16 would be converted for each position and tap."""
        outline, kernel = self.outline, self.dot.operands[1]
        name = outline.scratch_buffer(filter.argument.index, filter.type, filter.size, "read")
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
