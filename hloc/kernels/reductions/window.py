"""Windows: reduce-window (pooling, running sums). Their gradients are in select_and_scatter.py.

In: the lone instruction. Out: a kernel, of several forms the one of least predicted cost:
    elements  a loop over the taps of each element, which go together by schedules of row nests
    passes    a block of padded columns, over which passes go: window_passes.py
A window that reaches from the first (or last) element to the current one, as cumsum and cummax are written, is one
running total along that dimension, in linear time.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hloc.ir import ELEMENT_TYPES, Instruction, WindowDim, window_of
from hloc.kernels import indexing, loops, scalars
from hloc.kernels.elemental.loop import loop_kernel
from hloc.kernels.group import Group, KernelCall, Lowered, Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import SERIAL, Expr
from hloc.kernels.reductions.window_passes import kernels_by_passes
from hloc.kernels.reductions.window_taps import cost_of, is_plain
from hloc.kernels.rules.loops import accumulate, element_types, reduce_window_values
from hloc.kernels.schedule.kernel_cost import kernel_cycles
from hloc.machine import Machine

ROWS, LONG, WIDTH = 64, 8, 512  # of a scan: together though they leave the L1 cache; parts of longer rows; columns


def lower_reduce_window(group: Group, machine: Machine) -> Lowered:
    shape, result = group.instruction.operands[0].shape, group.result_shapes[0]
    if result.num_elements == 0:
        return Lowered(())
    dims = window_of(group.instruction)
    scanned = [d for d, w in enumerate(dims) if not is_plain(w)]
    if len(scanned) == 1 and _direction(dims[scanned[0]], shape.dimensions[scanned[0]]):
        return Lowered((_scan(group, machine, scanned[0], dims[scanned[0]]),))

    def element(outline: Outline, index: tuple[Index, ...]) -> None:
        results = outline.elements.drive(reduce_window_values(outline.elements, group.instruction, index))
        outline.store_all(indexing.linearize(index, result.dimensions), results)
    forms = [loop_kernel(group, machine, result.dimensions, element)]
    if machine.kind == "cpu":
        forms += kernels_by_passes(group)
    if len(forms) == 1:
        return Lowered((forms[0],))
    return Lowered((min(forms, key=lambda call: kernel_cycles(call.kernel, machine)),))


def _direction(w: WindowDim, size: int) -> int:
    """1 if the window holds everything up to the current element, -1 if everything from it on, else 0."""
    if w.size != size or w.stride != 1 or w.base_dilation != 1 or w.window_dilation != 1 or size < 2:
        return 0
    if (w.padding_low, w.padding_high) == (size - 1, 0):
        return 1
    return -1 if (w.padding_low, w.padding_high) == (0, size - 1) else 0


def _count(instruction: Instruction) -> int:
    return len(instruction.operands) // 2


# -- running totals ----------------------------------------------------------------------------------------------------

def _scan(group: Group, machine: Machine, dimension: int, window: WindowDim) -> KernelCall:
    """total = to_apply(total, x[i]); out[i] = total, for i along the scan."""
    instruction, outline = group.instruction, Outline(group)
    sizes = instruction.operands[0].shape.dimensions
    is_backward = _direction(window, sizes[dimension]) < 0
    length, columns = sizes[dimension], math.prod(sizes[dimension + 1:])
    if columns == 1:
        whole = length * max(ELEMENT_TYPES[scalars.computation_type(t)].bytes for t in element_types(instruction))
        bytes = min(whole, max(whole // LONG, loops.ROW_BYTES // ROWS), loops.ROW_BYTES // loops.FEWEST_ROWS)
        with loops.rows(outline.builder, [math.prod(sizes) // length], bytes, machine) as (row,):
            _running_total(outline, instruction, length, is_backward, lambda place: indexing.add(
                indexing.scale(row, length), place))
    else:
        width = min(WIDTH, columns) if machine.kind == "cpu" else 1
        with loops.parallel(outline.builder, [math.prod(sizes[:dimension]), -(-columns // width)]) as (row, block), \
                loops.block_loop(outline.builder, columns, width, block, SERIAL) as column:
            _running_total(outline, instruction, length, is_backward, lambda place: indexing.linearize(
                [row, place, column], [1, length, columns]))
    return outline.finish(cost=cost_of(outline, math.prod(sizes)))


def _store(outline: Outline, instruction: Instruction, position: Index, totals: Sequence[Expr]) -> None:
    for leaf, (total, type) in enumerate(zip(totals, element_types(instruction))):
        outline.store(leaf, position, scalars.rounded(total, type))


def _running_total(outline: Outline, instruction: Instruction, length: int, is_backward: bool,
                   position_of: Callable[[Index], Index]) -> None:
    """Along one row or column, which go together by schedules of row nests. position_of: a place along it."""
    b, value, count = outline.builder, outline.elements.value, _count(instruction)
    types = [scalars.computation_type(t) for t in element_types(instruction)]
    totals = [b.mutable(t, value(i, ())) for t, i in zip(types, instruction.operands[count:])]
    with b.loop(length, SERIAL) as step:
        place = indexing.subtract(indexing.constant(length - 1), step) if is_backward else step
        position = position_of(place)
        index = indexing.delinearize(position, instruction.operands[0].shape.dimensions)
        accumulate(outline.elements, totals, [value(o, index) for o in instruction.operands[:count]], instruction)
        _store(outline, instruction, position, totals)
