"""Windows of many taps with stride one (moving sums, averages, maxima), by doubling: two adjacent windows form one of
twice the length. Seven taps or two hundred take a few passes over a block.

In: the lone reduce-window. Out: its kernel, or a refusal (`doubles`). Windows of 11 = 1 + 2 + 8:

    for blocks of 512 columns:  for k < 522: a[k] = x[first + k]             0 where that is padding
                                for i: sum[i] = 0 + a[i]
                                for k < 521: b[k] = a[k] + a[k + 1]          windows of 2
                                for i: sum[i] += b[i + 1]
                                for k < 519: a[k] = b[k] + b[k + 2]          of 4
                                for k < 515: b[k] = a[k] + a[k + 4]          of 8
                                for i: sum[i] += b[i + 3]

The window's other dimensions are reduced first, into `a`. Dimensions after that of the window, such as an image's
channels, are collapsed with it: neighbours along the window are so many columns apart. For idempotent operations such
as maxima, two overlapping windows suffice: max(b[i], b[i + 3]).
"""
from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack

from hloc.ir import ELEMENT_TYPES, Instruction, window_of
from hloc.kernels import indexing, loops, scalars
from hloc.kernels.group import Group, KernelCall, Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import VECTOR, Expr, Load
from hloc.kernels.monoids import identity, monoid
from hloc.kernels.reductions.window_taps import WIDTH, cost_of, is_plain, taps_of
from hloc.kernels.sliding import SHORTEST_SLIDE, Columns, slides
from hloc.machine import Machine

# Passes over a block are worth it if they are fewer than the taps by these factors. Other kernels process several taps
# at once if neighbours along the window are contiguous, and have short loops if they are only a few columns apart.
GAIN, GAIN_OF_FAR, GAIN_OF_NEAR = 1.7, 1.2, 0.6
NEAR = 32                               # columns
BLOCK = 3                               # columns of a block per column under a window
PASSES = 2                              # minimum for every block
MOST_BYTES = 1 << 13                    # under a window: with the arrays for a block, the L2 cache is large enough
IDEMPOTENT = ("maximum", "minimum", "and", "or")


def doubles(instruction: Instruction, machine: Machine) -> bool:
    """Whether the loops below suit a reduce-window."""
    if machine.kind != "cpu" or instruction.shape.is_tuple or not monoid(instruction.get("to_apply")):
        return False
    dims, result = window_of(instruction), instruction.shape.dimensions
    along = next(_window_dimensions(instruction), None)
    if along is None or not slides(dims[along]) or ELEMENT_TYPES[instruction.shape.element_type].kind == "complex":
        return False
    size, step = dims[along].size, _step(instruction)
    outer, columns = math.prod(w.size for w in dims[:along]), math.prod(result[along:])
    passes = outer + size.bit_length() - 1 + sum(1 for _ in _parts(instruction)) + PASSES
    width, under = _width(instruction), size * step
    taps = outer * size * _cost_of_tap(instruction)
    bytes_under = under * ELEMENT_TYPES[scalars.computation_type(instruction.shape.element_type)].bytes
    gain = GAIN if step == 1 else GAIN_OF_NEAR if step <= NEAR else GAIN_OF_FAR
    return gain * passes * (width + under) <= taps * width and bytes_under <= MOST_BYTES and columns >= SHORTEST_SLIDE


def _cost_of_tap(instruction: Instruction) -> float:
    """The relative cost of a tap: loads are widened for each tap, and maxima of floats take more than sums."""
    type = instruction.shape.element_type
    compares = ELEMENT_TYPES[type].kind == "float" and monoid(instruction.get("to_apply")) in ("maximum", "minimum")
    return 1 + (type != scalars.computation_type(type)) + 0.5 * compares


def _parts(instruction: Instruction) -> Iterator[tuple[int, int]]:
    """The lengths of the parts of a window, powers of two, and the offset of each."""
    size = window_of(instruction)[_last_window(instruction)].size
    if monoid(instruction.get("to_apply")) in IDEMPOTENT:
        longest = 1 << size.bit_length() - 1
        yield from ((longest, offset) for offset in dict.fromkeys((0, size - longest)))
        return
    offset = 0
    for length in (1 << n for n in range(size.bit_length())):
        if size & length:
            yield length, offset
            offset += length


def _width(instruction: Instruction) -> int:
    """Columns of a block: more if windows are long, so that little is recomputed."""
    along = _last_window(instruction)
    under = window_of(instruction)[along].size * _step(instruction)
    return min(max(WIDTH, BLOCK * under), math.prod(instruction.shape.dimensions[along:]))


def _window_dimensions(instruction: Instruction) -> Iterator[int]:
    """The dimensions that have a window, the last one first."""
    dims = window_of(instruction)
    return (d for d in reversed(range(len(dims))) if not is_plain(dims[d]))


def _last_window(instruction: Instruction) -> int:
    """The last dimension that has a window, of an instruction with one."""
    return next(_window_dimensions(instruction))


def _step(instruction: Instruction) -> int:
    """The distance in columns between neighbours along the window."""
    along = _last_window(instruction)
    return math.prod(instruction.shape.dimensions[along + 1:]) * window_of(instruction)[along].window_dilation


def doubling_kernel(group: Group) -> KernelCall:
    """The kernel of a reduce-window that `doubles`."""
    outline, instruction = Outline(group), group.instruction
    along, result = _last_window(instruction), group.result_shapes[0].dimensions
    width = _width(instruction)
    with loops.parallel(outline.builder, [*result[:along], -(-math.prod(result[along:]) // width)]) as opened:
        _Block(outline, instruction, width, list(opened)).emit()
    return outline.finish(cost=cost_of(outline, math.prod(result) * outline.builder.operations))


class _Block:
    """A block of `width` columns of the result: positions along the window's dimension and those after it. opened: its
    position along the dimensions before, and its number. step: columns between neighbours along the window.

    taken: the array of the values of windows of some length, from each position on; spare: the one for the next
    pass."""

    def __init__(self, outline: Outline, instruction: Instruction, width: int, opened: list[Index]):
        self.outline, self.instruction, self.width = outline, instruction, width
        self.position, self.number = opened[:-1], opened[-1]
        self.dims, self.along, self.step = window_of(instruction), _last_window(instruction), _step(instruction)
        self.size = self.dims[self.along].size
        self.type = scalars.computation_type(instruction.shape.element_type)
        self.room = width + (self.size - 1) * self.step
        self.taken, self.spare = (outline.builder.local(self.type, self.room, "taken") for _ in range(2))
        self.totals = outline.builder.local(self.type, width, "total")

    def emit(self) -> None:
        self.take_in()
        length, start = 1, self.outline.elements.value(self.instruction.operands[1], ())
        for number, (span, offset) in enumerate(_parts(self.instruction)):
            while length < span:
                self.double(length)
                length *= 2
            with self.outline.builder.loop(self.width, VECTOR) as i:
                total = self.at(self.totals, i) if number else start
                self.put(self.totals, i, self.join(total, self.at(self.taken, indexing.shift(i, offset * self.step))))
        self.store()

    def take_in(self) -> None:
        """Fill `taken` with the input of the windows, reduced along other dimensions."""
        b, operand, along = self.outline.builder, self.instruction.operands[0], self.along
        sizes, has_taps = operand.shape.dimensions, not all(map(is_plain, self.dims[:along]))
        op = monoid(self.instruction.get("to_apply"))
        assert op is not None
        neutral = identity(op, self.instruction.shape.element_type)
        with b.loop(self.room, VECTOR) as k:
            self.put(self.taken, k, neutral)
        before = self.dims[along].padding_low * math.prod(sizes[along + 1:])
        columns = math.prod(sizes[along:])
        block = Columns(b, columns, self.width, self.number, before, self.room - self.width - before)
        with ExitStack() as stack:
            sources, _ = taps_of(self.outline, stack, self.dims[:along], sizes, self.position)
            with block.between(0, columns) as column:
                k = block.offset(column)
                value = self.outline.elements.value(operand, (*sources, *indexing.delinearize(column, sizes[along:])))
                self.put(self.taken, k, self.join(self.at(self.taken, k), value) if has_taps else value)

    def double(self, length: int) -> None:
        """From windows of some length to those of twice the length."""
        with self.outline.builder.loop(self.room - (2 * length - 1) * self.step, VECTOR) as k:
            both = self.join(self.at(self.taken, k), self.at(self.taken, indexing.shift(k, length * self.step)))
            self.put(self.spare, k, both)
        self.taken, self.spare = self.spare, self.taken

    def store(self) -> None:
        result, along = self.instruction.shape, self.along
        columns = math.prod(result.dimensions[along:])
        with loops.block_loop(self.outline.builder, columns, self.width, self.number) as column:
            total = self.at(self.totals, indexing.subtract(column, indexing.scale(self.number, self.width)))
            flat = indexing.linearize([*self.position, column], [*result.dimensions[:along], columns])
            self.outline.store(0, flat, scalars.rounded(total, result.element_type))

    def at(self, name: str, place: Index) -> Expr:
        return self.outline.builder.let(Load(name, self.outline.builder.position(place), self.type))

    def put(self, name: str, place: Index, value: Expr) -> None:
        self.outline.builder.store(name, place, value)

    def join(self, a: Expr, b: Expr) -> Expr:
        return self.outline.elements.combined(self.instruction, [a, b])[0]
