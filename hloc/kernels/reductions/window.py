"""Windows: reduce-window (pooling, moving and running sums). Their gradients are in select_and_scatter.py.

In: the lone instruction. Out: a loop over the taps of each element, which go together by schedules of row nests. A
window that reaches from the first (or last) element to the current one, as cumsum and cummax are written, is a running
total: one kernel, in linear time, whose rows or columns go together by schedules, too:

    total = initial;  for i along the scan: total = to_apply(total, x[i]); out[i] = total

On a GPU with fewer of them than its threads, an operation with an identity is cut into blocks, in three kernels:

    for each block: sums[block] = total of its elements, which lanes share
    for each row:   before[block] = total of the sums of the blocks before it
    for each block: total = before[block]; as above
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from hloc.ir import ELEMENT_TYPES, Instruction, WindowDim, window_of
from hloc.kernels import indexing, loops, scalars
from hloc.kernels.elemental.loop import cost_of, loop_kernel
from hloc.kernels.group import Group, KernelCall, Lowered, Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import SERIAL, VECTOR, Cost, Expr
from hloc.kernels.monoids import can_reassociate, identity, monoid
from hloc.kernels.rules.loops import accumulate, element_types, is_plain, reduce_window_values
from hloc.machine import Machine

ROWS, LONG, WIDTH = 64, 8, 512  # of a scan: together though they leave the L1 cache; parts of longer rows; columns
THREADS = 256                   # of an SM that keep enough loads in flight
SHORTEST = 128                  # elements that are scanned in blocks: three launches take as long as these


def lower_reduce_window(group: Group, machine: Machine) -> Lowered:
    shape, result = group.instruction.operands[0].shape, group.result_shapes[0]
    if result.num_elements == 0:
        return Lowered(())
    dims = window_of(group.instruction)
    scanned = [d for d, w in enumerate(dims) if not is_plain(w)]
    if len(scanned) == 1 and direction(dims[scanned[0]], shape.dimensions[scanned[0]]):
        return lower_scan(group, machine, scanned[0], dims[scanned[0]])

    def element(outline: Outline, index: tuple[Index, ...]) -> None:
        results = outline.elements.drive(reduce_window_values(outline.elements, group.instruction, index))
        outline.store_all(indexing.linearize(index, result.dimensions), results)
    return Lowered((loop_kernel(group, machine, result.dimensions, element),))


def direction(w: WindowDim, size: int) -> int:
    """1 if the window holds everything up to the current element, -1 if everything from it on, else 0."""
    if w.size != size or w.stride != 1 or w.base_dilation != 1 or w.window_dilation != 1 or size < 2:
        return 0
    if (w.padding_low, w.padding_high) == (size - 1, 0):
        return 1
    return -1 if (w.padding_low, w.padding_high) == (0, size - 1) else 0


def lower_scan(group: Group, machine: Machine, dimension: int, window: WindowDim) -> Lowered:
    """The kernels of a window with a direction along this dimension."""
    sizes = group.instruction.operands[0].shape.dimensions
    is_backward = direction(window, sizes[dimension]) < 0
    rows, length, columns = math.prod(sizes[:dimension]), sizes[dimension], math.prod(sizes[dimension + 1:])
    block = _block(group.instruction, rows * columns, length, machine)
    if block < length:
        return _in_blocks(group, [rows, length, columns], block, is_backward)
    outline = Outline(group)
    b = outline.builder
    if columns == 1:
        bytes_each = max(ELEMENT_TYPES[t].bytes for t in _types(group.instruction))
        bytes = min(length * bytes_each, max(length * bytes_each // LONG, loops.ROW_BYTES // ROWS),
                    loops.ROW_BYTES // loops.FEWEST_ROWS)
        with loops.rows(b, [rows], bytes, machine) as (row,):
            _running_total(outline, b.loop(length, SERIAL), length, is_backward, lambda place: indexing.add(
                indexing.scale(row, length), place))
    else:
        width = min(WIDTH, columns) if machine.kind == "cpu" else 1
        with loops.parallel(b, [rows, -(-columns // width)]) as (row, beside), \
                loops.block_loop(b, columns, width, beside, SERIAL) as column:
            _running_total(outline, b.loop(length, SERIAL), length, is_backward, lambda place: indexing.linearize(
                [row, place, column], [1, length, columns]))
    return Lowered((outline.finish(cost=cost_of(outline, math.prod(sizes), b)),))


def _types(instruction: Instruction) -> list[str]:
    """The types in which totals are computed."""
    return [scalars.computation_type(t) for t in element_types(instruction)]


def _store(outline: Outline, instruction: Instruction, position: Index, totals: Sequence[Expr]) -> None:
    for leaf, (total, type) in enumerate(zip(totals, element_types(instruction))):
        outline.store(leaf, position, scalars.rounded(total, type))


def _running_total(outline: Outline, steps: AbstractContextManager[Index], length: int, is_backward: bool,
                   position_of: Callable[[Index], Index], starts: Sequence[Expr] = ()) -> None:
    """Along one row or column, or a block of it: the loop `steps`. position_of: a place along it; starts: the totals
    before, if they are not the initial values."""
    b, value, instruction = outline.builder, outline.elements.value, outline.group.instruction
    count = len(instruction.operands) // 2
    starts = starts or [value(i, ()) for i in instruction.operands[count:]]
    totals = [b.mutable(t, start) for t, start in zip(_types(instruction), starts)]
    with steps as step:
        place = indexing.subtract(indexing.constant(length - 1), step) if is_backward else step
        position = position_of(place)
        index = indexing.delinearize(position, instruction.operands[0].shape.dimensions)
        accumulate(outline.elements, totals, [value(o, index) for o in instruction.operands[:count]], instruction)
        _store(outline, instruction, position, totals)


# -- in blocks ---------------------------------------------------------------------------------------------------------

def _block(instruction: Instruction, rows: int, length: int, machine: Machine) -> int:
    """The elements of a block: as many as there are blocks, or more, if all threads of a GPU have one then."""
    if machine.kind != "gpu" or len(instruction.operands) > 2 or monoid(instruction.get("to_apply")) is None:
        return length
    blocks = min(math.isqrt(length), machine.cores * THREADS // rows)
    return -(-length // blocks) if length >= SHORTEST and blocks > 2 else length


def _in_blocks(group: Group, extents: list[int], block: int, is_backward: bool) -> Lowered:
    """Three kernels. extents: rows, elements of a scan, columns."""
    instruction, (rows, length, columns) = group.instruction, extents
    (type,), op, blocks = _types(instruction), monoid(instruction.get("to_apply")) or "", -(-length // block)
    own = [rows, blocks, columns]
    size = math.prod(own)

    def position_of(row: Index, column: Index, place: Index) -> Index:
        return indexing.linearize([row, place, column], extents)
    first, second, third = Outline(group), Outline(group), Outline(group)
    b = first.builder
    with loops.parallel(b, own) as (row, number, column):
        is_vector = can_reassociate(op, type)
        total = b.mutable(type, identity(op, type), op if is_vector else "")
        with loops.block_loop(b, length, block, number, VECTOR if is_vector else SERIAL) as step:
            place = indexing.subtract(indexing.constant(length - 1), step) if is_backward else step
            index = indexing.delinearize(position_of(row, column, place), instruction.operands[0].shape.dimensions)
            accumulate(first.elements, [total], [first.elements.value(instruction.operands[0], index)], instruction)
        b.store(first.scratch_buffer(0, type, size, "write"), indexing.linearize([row, number, column], own), total)
    b = second.builder
    sums, before = second.scratch_buffer(0, type, size, "read"), second.scratch_buffer(1, type, size, "write")
    with loops.parallel(b, [rows, columns]) as (row, column):
        total = b.mutable(type, second.elements.value(instruction.operands[1], ()))
        with b.loop(blocks, SERIAL) as number:
            at = indexing.linearize([row, number, column], own)
            b.store(before, at, total)
            accumulate(second.elements, [total], [b.load(sums, type, at)], instruction)
    b = third.builder
    before = third.scratch_buffer(1, type, size, "read")
    with loops.parallel(b, own) as (row, number, column):
        start = b.load(before, type, indexing.linearize([row, number, column], own))
        _running_total(third, loops.block_loop(b, length, block, number, SERIAL), length, is_backward,
                       lambda place: position_of(row, column, place), [start])
    work = math.prod(extents)
    calls: tuple[KernelCall, ...] = (first.finish("_sums", cost_of(first, work, first.builder)),
                                     second.finish("_before", Cost(size * 8, size)),
                                     third.finish("_scan", cost_of(third, work, b)))
    return Lowered(calls, (size * ELEMENT_TYPES[type].bytes,) * 2)
