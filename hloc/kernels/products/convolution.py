"""Convolutions: a Tile of the library kernel "convolution" with sizes and strides, and an epilogue from the surrounding
fusion.

In: a convolution, or a kOutput fusion with one as its hero. Out: the tile; before it a kernel for each operand that is
not a strided view, unless it is computed while the tile is loaded (prologues.py). Tiny convolutions and those of more
than three spatial dimensions are plain loops; on a CPU also windows of single channels of f64, integers and complex
numbers.

Tile "convolution". Buffers: "lhs", "rhs", what the epilogue reads, what is written. Parameters (strides in elements;
tuples per spatial dimension in the order of dim_labels):
    types              (element type of both operands, type of the sums)
    batch, lhs_features, features, feature_groups, batch_groups
    lhs_size, window, size (of the result), stride, padding_low, base_dilation, window_dilation, reversal
    lhs                (offset, batch, feature, spatial ...)
    rhs                (offset, input feature, output feature, spatial ...)
    result             (batch, feature, spatial ...) of buffer "out0", used without an epilogue
    is_transposed      whether the epilogue runs along positions
    algorithm          as of "gemm"
With a prologue, lhs and rhs have strides as if contiguous. lhs is (batch, spatial ..., feature): its row is the
position in the first dimensions, its depth the feature. rhs is (output feature, spatial ..., input feature): its row is
the output feature.
Epilogue: statements over INDEX Vars "row" and "column" and Var("acc", type of the sums): column is the output feature,
row the position among (batch, spatial ...) in row-major order. If transposed, "batch" is the image, row the output
feature, column the position among (spatial ...).
"""
from __future__ import annotations

import math

from hloc.analysis.prologues import MOST_SPATIAL
from hloc.ir import ELEMENT_TYPES, ConvolutionDimensionNumbers, Instruction, row_major, window_of
from hloc.kernels import indexing
from hloc.kernels.elemental.loop import lower_loop, shareable
from hloc.kernels.group import Group, KernelCall, Lowered, Outline, buffers_of
from hloc.kernels.indexing import Index
from hloc.kernels.ir import Buffer, Cost, Prologue, Tile
from hloc.kernels.products.convolution_products import product_of_images
from hloc.kernels.products.epilogues import algorithm_fact, epilogue_statements, stores_itself, tile_types
from hloc.kernels.products.filter_gradient import lower_filter_gradient
from hloc.kernels.products.operands import Access, OperandKernels, behind_conversion, strided
from hloc.kernels.products.planar_convolution import is_read_in_place, lower_planar_convolution
from hloc.kernels.products.prologues import DEPTH, ROW, computed_access, prologue
from hloc.kernels.products.size_thresholds import (
    TINY,
    fills_few_lanes,
    long_windows,
    multiply_adds,
)
from hloc.machine import Machine

SIDES = ("lhs", "rhs")
FAST_TYPES = ("f32", "bf16", "f16")         # of operands with library kernels of their own, which produce sums along
FEWEST_PLACES = 16                          # positions, if there are at least so many
FEW_SPREAD = 16                             # features


def lower_convolution(group: Group, machine: Machine) -> Lowered:
    heroes = [m for m in group.members if m.opcode == "convolution"]
    hero = heroes[0]
    numbers: ConvolutionDimensionNumbers = hero.get("dim_labels")
    work = multiply_adds(hero)
    of_loops = machine.kind == "cpu" and _is_by_channel(hero) and hero.operands[0].shape.element_type not in FAST_TYPES
    if len(heroes) != 1 or work <= TINY or len(numbers.output_spatial) > MOST_SPATIAL or of_loops:
        return lower_loop(group, machine)
    small = machine.kind == "cpu" and _as_loops(group, hero)
    if small:
        return small
    type, total = tile_types(group, hero, machine)
    operands = OperandKernels(group, machine)
    sides = [_access(operands, hero, number, type) for number in range(2)]
    outline = Outline(group)
    product = product_of_images(hero, *(side.strides for side in sides)) if machine.kind == "cpu" else None
    is_transposed = machine.kind == "cpu" and type in FAST_TYPES and _goes_along_positions(hero)
    epilogue = () if stores_itself(outline, hero, type, total) else \
        epilogue_statements(outline, hero, total, product.position() if product else _position(hero, is_transposed))
    made = [_prologue(group, hero, n, side) for n, side in enumerate(sides) if side.argument is None]
    buffers, arguments = buffers_of([*(own for _, own in made), outline])
    reads = tuple(Buffer(SIDES[n], type, side.size) for n, side in enumerate(sides) if side.argument)
    moved = sum(b.size * ELEMENT_TYPES[b.type].bytes for b in (*reads, *buffers))
    given = (*(side.argument for side in sides if side.argument), *arguments)
    library_kernel, facts = "convolution", (*parameters(hero, (type, total), *sides), ("is_transposed", is_transposed),
                                      *algorithm_fact(hero, machine))
    if product:
        offsets = (side.offset for side in sides)
        library_kernel, facts = "gemm", (("types", (type, total)), *product.parameters(*offsets))
    if product and product.is_transposed:
        reads, given = (reads[1]._replace(name="lhs"), reads[0]._replace(name="rhs")), (given[1], given[0], *given[2:])
    tile = Tile(group.kernel_name, library_kernel, reads + buffers, facts, epilogue,
                cost=Cost(moved, 2 * work), origin=group.origin, prologues=tuple(p for p, _ in made))
    call = KernelCall(tile, given)
    return Lowered((*operands.calls, call), tuple(operands.scratch), can_share=tuple(shareable(group, (hero,))))


def _is_by_channel(hero: Instruction) -> bool:
    """Whether each channel has a window of its own."""
    groups, numbers = hero.get("feature_group_count", 1), hero.get("dim_labels")
    return 1 < groups == hero.shape.dimensions[numbers.output_feature] \
        and hero.operands[1].shape.dimensions[numbers.kernel_input_feature] == 1


def _as_loops(group: Group, hero: Instruction) -> Lowered | None:
    """The loops of a convolution, if no library kernel is faster."""
    if fills_few_lanes(hero) and is_read_in_place(group, hero) and (found := lower_planar_convolution(group, hero)):
        return found
    return lower_filter_gradient(group, hero) if long_windows(hero) and is_read_in_place(group, hero) else None


def _access(operands: OperandKernels, hero: Instruction, number: int, type: str) -> Access:
    """An operand as it is in memory, or computed while it is loaded, or else packed in order."""
    group, operand = operands.group, _source(operands.group, hero.operands[number], type)
    found = strided(group, operand, type) if operand.shape.element_type == type else None
    if found is None and operands.machine.kind == "gpu":
        found = computed_access(group, hero, number, operand, type, _order(hero, number), operands.machine)
    return found or operands.in_order(operand, type, range(operand.shape.rank))


def _order(hero: Instruction, number: int) -> tuple[int, ...]:
    """The dimensions of an operand in the order of a tile's rows and its depth."""
    n: ConvolutionDimensionNumbers = hero.get("dim_labels")
    if number == 0:
        return (n.input_batch, *n.input_spatial, n.input_feature)
    return (n.kernel_output_feature, *n.kernel_spatial, n.kernel_input_feature)


def _prologue(group: Group, hero: Instruction, number: int, side: Access) -> tuple[Prologue, Outline]:
    """An operand as an expression of its row and of its depth."""
    operand, order = _source(group, hero.operands[number], side.type), _order(hero, number)
    depth = operand.shape.dimensions[order[-1]] if number == 0 else side.size // operand.shape.dimensions[order[0]]
    extents = ((ROW, side.size // depth, depth), (DEPTH, depth, 1))
    return prologue(group, operand, SIDES[number], side, order, extents)


def _source(group: Group, operand: Instruction, type: str) -> Instruction:
    inner = behind_conversion(group, operand)
    return inner if inner.shape.element_type == type else operand


def parameters(hero: Instruction, types: tuple[str, str], lhs: Access, rhs: Access) -> tuple[tuple[str, object], ...]:
    """The parameters of a convolution, as listed in the module docstring."""
    n: ConvolutionDimensionNumbers = hero.get("dim_labels")
    x, y = hero.operands[0].shape.dimensions, hero.shape.dimensions
    windows = window_of(hero)
    strides = row_major(y)
    return (
        ("types", types), ("batch", x[n.input_batch]), ("lhs_features", x[n.input_feature]),
        ("features", y[n.output_feature]), ("feature_groups", hero.get("feature_group_count", 1)),
        ("batch_groups", hero.get("batch_group_count", 1)),
        ("lhs_size", tuple(x[d] for d in n.input_spatial)), ("window", tuple(w.size for w in windows)),
        ("size", tuple(y[d] for d in n.output_spatial)), ("stride", tuple(w.stride for w in windows)),
        ("padding_low", tuple(w.padding_low for w in windows)),
        ("base_dilation", tuple(w.base_dilation for w in windows)),
        ("window_dilation", tuple(w.window_dilation for w in windows)),
        ("reversal", tuple(bool(w.reversal) for w in windows)),
        ("lhs", (lhs.offset, lhs.strides[n.input_batch], lhs.strides[n.input_feature],
                 *(lhs.strides[d] for d in n.input_spatial))),
        ("rhs", (rhs.offset, rhs.strides[n.kernel_input_feature], rhs.strides[n.kernel_output_feature],
                 *(rhs.strides[d] for d in n.kernel_spatial))),
        ("result", (strides[n.output_batch], strides[n.output_feature], *(strides[d] for d in n.output_spatial))),
    )


def _goes_along_positions(hero: Instruction) -> bool:
    """Whether the reads and writes of an epilogue are contiguous along positions, not features, and a library kernel
    produces many of these at a time."""
    n: ConvolutionDimensionNumbers = hero.get("dim_labels")
    windows, rank = window_of(hero), hero.shape.rank
    places = math.prod(hero.shape.dimensions[d] for d in n.output_spatial)
    spread = hero.shape.dimensions[n.output_feature] <= FEW_SPREAD      # with more, transposed ones give them singly
    return (n.output_spatial == tuple(range(rank))[rank - len(n.output_spatial):] and places >= FEWEST_PLACES
            and hero.get("feature_group_count", 1) == hero.get("batch_group_count", 1) == 1
            and any(w.size > 1 or w.stride > 1 for w in windows)
            and (spread or all(w.base_dilation == 1 for w in windows))
            and math.prod(w.size for w in windows) <= 4 * places)


def _position(hero: Instruction, is_transposed: bool) -> Index:
    """The flat position in the result of (row, column), or if transposed of (batch, row, column)."""
    n: ConvolutionDimensionNumbers = hero.get("dim_labels")
    y = hero.shape.dimensions
    if is_transposed:
        places = math.prod(y[d] for d in n.output_spatial)
        names = (("batch", n.output_batch), ("row", n.output_feature))
        parts = [indexing.scale(indexing.variable(name, y[d]), row_major(y)[d]) for name, d in names]
        return indexing.add(indexing.add(*parts), indexing.variable("column", places))
    order = (n.output_batch, *n.output_spatial)
    row = indexing.variable("row", math.prod(y[d] for d in order))
    index: list[Index] = [indexing.ZERO] * len(y)
    for d, i in zip(order, indexing.delinearize(row, [y[d] for d in order])):
        index[d] = i
    index[n.output_feature] = indexing.variable("column", y[n.output_feature])
    return indexing.linearize(index, y)
