"""Windows: reduce-window (pooling, running sums). Their gradients are in select_and_scatter.py.

In: the lone instruction. Out: kernels in one of four forms:
    scans     a window that reaches from the first (or last) element to the current one, as cumsum and cummax are
              written: one running total along that dimension, linear time
    doublings a long window that moves by one element along the innermost dimension: window_doubling.py
    columns   the innermost dimension has no window (pooling of NHWC images), or one that moves by one element at a time
              and may be padding (moving sums), or by a few (pooling of NCHW images): a block of columns accumulates in
              a Local array, the taps of the window around it, so that the inner loop has stride one, or few
    elements  everything else: the element rule of reduce-window
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack

from hloc.ir import ELEMENT_TYPES, Instruction, WindowDim, window_of
from hloc.kernels import indexing, loops, scalars
from hloc.kernels.elemental.loop import lower_loop
from hloc.kernels.group import Group, KernelCall, Lowered, Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import SERIAL, VECTOR, Expr, Load
from hloc.kernels.reductions.window_doubling import doubles, doubling_kernel
from hloc.kernels.reductions.window_taps import WIDTH, cost_of, first_column, is_plain, taps_of
from hloc.kernels.rules.loops import accumulate, element_types, reduce_window_values
from hloc.kernels.sliding import SHORTEST_SLIDE, Columns, slide, slides, steps
from hloc.kernels.vectors import is_lane
from hloc.machine import Machine

SHORTEST_STEPS = 8              # columns of a window with a stride of several elements
NARROWEST = 4
ROWS, LONG = 64, 8              # of a scan: together though they leave the L1 cache; parts of longer rows


def lower_reduce_window(group: Group, machine: Machine) -> Lowered:
    instruction = group.instruction
    shape = instruction.operands[0].shape
    result = group.result_shapes[0]
    if result.num_elements == 0:
        return Lowered(())
    dims = window_of(instruction)
    scanned = [d for d, w in enumerate(dims) if not is_plain(w)]
    if len(scanned) == 1 and _direction(dims[scanned[0]], shape.dimensions[scanned[0]]):
        return Lowered((_scan(group, machine, scanned[0], dims[scanned[0]]),))
    if shape.rank and doubles(instruction, machine):
        return Lowered((doubling_kernel(group),))
    if shape.rank and is_plain(dims[-1]) and shape.dimensions[-1] >= NARROWEST:
        return Lowered((_pool(group, dims),))
    # Elements would have conditions for each tap, or no vectors.
    is_apart = any(w.padding_low or w.padding_high for w in dims) or not is_lane(element_types(instruction)[0])
    if shape.rank and (slides(dims[-1]) and is_apart and result.dimensions[-1] >= SHORTEST_SLIDE
                       or machine.kind == "cpu" and steps(dims[-1]) and result.dimensions[-1] >= SHORTEST_STEPS):
        return Lowered((_pool(group, dims),))
    if not instruction.shape.is_tuple:
        return lower_loop(group, machine)
    return Lowered((_pool(group, dims) if shape.rank else _of_scalars(group),))


def _of_scalars(group: Group) -> KernelCall:
    """The one position of windows over several scalars."""
    outline = Outline(group)
    results = outline.elements.drive(reduce_window_values(outline.elements, group.instruction, ()))
    outline.store_all(indexing.ZERO, results)
    return outline.finish()


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
    if dimension == len(sizes) - 1 or math.prod(sizes[dimension + 1:]) == 1:
        _scan_rows(outline, instruction, machine, sizes[dimension], is_backward)
    else:
        _scan_columns(outline, instruction, dimension, is_backward)
    return outline.finish(cost=cost_of(outline, math.prod(sizes)))


def _place(length: int, step: Index, is_backward: bool) -> Index:
    return indexing.subtract(indexing.constant(length - 1), step) if is_backward else step


def _store(outline: Outline, instruction: Instruction, position: Index, totals: Sequence[Expr]) -> None:
    for leaf, (total, type) in enumerate(zip(totals, element_types(instruction))):
        outline.store(leaf, position, scalars.rounded(total, type))


def _scan_rows(outline: Outline, instruction: Instruction, machine: Machine, length: int, is_backward: bool) -> None:
    """Along rows, which go together by schedules of row nests."""
    b, value, count = outline.builder, outline.elements.value, _count(instruction)
    types = [scalars.computation_type(t) for t in element_types(instruction)]
    sizes = instruction.operands[0].shape.dimensions
    whole = length * max(ELEMENT_TYPES[t].bytes for t in types)
    bytes = min(whole, max(whole // LONG, loops.ROW_BYTES // ROWS), loops.ROW_BYTES // loops.FEWEST_ROWS)
    with loops.rows(b, [math.prod(sizes) // length], bytes, machine) as (row,):
        totals = [b.mutable(t, value(i, ())) for t, i in zip(types, instruction.operands[count:])]
        with b.loop(length, SERIAL) as step:
            position = indexing.add(indexing.scale(row, length), _place(length, step, is_backward))
            index = indexing.delinearize(position, sizes)
            accumulate(outline.elements, totals, [value(o, index) for o in instruction.operands[:count]], instruction)
            _store(outline, instruction, position, totals)


def _scan_columns(outline: Outline, instruction: Instruction, dimension: int, is_backward: bool) -> None:
    """Columns are the dimensions after the scanned one."""
    b, sizes = outline.builder, instruction.operands[0].shape.dimensions
    outer, length, columns = math.prod(sizes[:dimension]), sizes[dimension], math.prod(sizes[dimension + 1:])
    width = min(WIDTH, columns)
    arrays = _Columns(outline, instruction, width)
    with loops.parallel(b, [outer, -(-columns // width)]) as (row, block):
        arrays.open()
        with arrays.loop(columns, block) as column:
            arrays.clear(column)
        with b.loop(length, SERIAL) as step, arrays.loop(columns, block) as column:
            place = indexing.add(indexing.scale(row, length), _place(length, step, is_backward))
            position = indexing.add(indexing.scale(place, columns), column)
            _store(outline, instruction, position, arrays.update(column, indexing.delinearize(position, sizes)))


class _Columns:
    """Local arrays of running results for a block of columns, one per result."""

    def __init__(self, outline: Outline, instruction: Instruction, width: int):
        self.outline = outline
        self.instruction = instruction
        self.width = width
        self.types = [scalars.computation_type(t) for t in element_types(instruction)]
        self.names: list[str] = []

    def open(self) -> None:
        b = self.outline.builder
        self.names = [b.local(t, self.width, "total") for t in self.types]

    def loop(self, extent: int, block: Index) -> AbstractContextManager[Index]:
        self.block = block
        return loops.block_loop(self.outline.builder, extent, self.width, block, VECTOR)

    def offset(self, column: Index) -> Index:
        return indexing.subtract(column, indexing.scale(self.block, self.width))

    def read(self, column: Index) -> list[Expr]:
        position = self.outline.builder.position(self.offset(column))
        return [self.outline.builder.let(Load(n, position, t)) for n, t in zip(self.names, self.types)]

    def write(self, column: Index, values: list[Expr]) -> None:
        for name, value in zip(self.names, values):
            self.outline.builder.store(name, self.offset(column), value)

    def clear(self, column: Index) -> None:
        initial = self.instruction.operands[_count(self.instruction):]
        self.write(column, [self.outline.elements.value(i, ()) for i in initial])

    def update(self, column: Index, *indices: tuple[Index, ...]) -> list[Expr]:
        """Accumulate the elements at several indices, one after the other; gives the new totals."""
        operands = self.instruction.operands[:_count(self.instruction)]
        with self.outline.builder.pinned(self.names):
            totals = self.read(column)
            for index in indices:
                values = [self.outline.elements.value(o, index) for o in operands]
                totals = self.outline.elements.combined(self.instruction, [*totals, *values])
                totals = [self.outline.builder.let(t) for t in totals]
            self.write(column, totals)
        return totals


# -- pooling -----------------------------------------------------------------------------------------------------------

def _pool(group: Group, dims: tuple[WindowDim, ...]) -> KernelCall:
    """Columns are the innermost dimension; the taps of the window run outside of them."""
    instruction = group.instruction
    sizes = instruction.operands[0].shape.dimensions
    result = group.result_shapes[0].dimensions
    plain, moves = is_plain(dims[-1]), slides(dims[-1]) or steps(dims[-1])
    width = min(WIDTH, result[-1]) if plain or moves else 1
    outline = Outline(group)
    arrays = _Columns(outline, instruction, width)
    with loops.parallel(outline.builder, [*result[:-1], -(-result[-1] // width)]) as opened:
        arrays.open()
        with arrays.loop(result[-1], opened[-1]) as column:
            arrays.clear(column)
        position = [*opened[:-1], first_column(opened[-1], width)]
        with ExitStack() as stack:
            outside = len(dims) - 1 if moves else len(dims)
            sources, _ = taps_of(outline, stack, dims[:outside], sizes, position[:outside])
            if moves:
                columns = Columns(outline.builder, result[-1], width, opened[-1])
                slide(columns, dims[-1], sizes[-1], lambda column, taps: arrays.update(
                    column, *((*sources, place) for _, place in taps)))
            else:
                with arrays.loop(result[-1], opened[-1]) as column:
                    arrays.update(column, (*sources[:-1], column if plain else sources[-1]))
        with arrays.loop(result[-1], opened[-1]) as column:
            _store(outline, instruction, indexing.linearize([*opened[:-1], column], result), arrays.read(column))
    taps = math.prod(w.size for w in dims)
    return outline.finish(cost=cost_of(outline, math.prod(result) * taps))
