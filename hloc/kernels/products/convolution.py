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

from hloc.analysis.prologues import MOST_SPATIAL, multiply_adds
from hloc.ir import ConvolutionDimensionNumbers, Instruction, row_major, window_of
from hloc.kernels import indexing
from hloc.kernels.elemental.loop import lower_loop
from hloc.kernels.group import Group, Lowered, Outline
from hloc.kernels.indexing import Index
from hloc.kernels.products.convolution_products import product_of_convolution
from hloc.kernels.products.epilogues import (
    algorithm_fact,
    call_of,
    epilogue_statements,
    stores_itself,
    tile_types,
)
from hloc.kernels.products.filter_gradient import lower_filter_gradient
from hloc.kernels.products.gemm import gemm_call
from hloc.kernels.products.operands import SIDES, Access, OperandKernels
from hloc.kernels.products.planar_convolution import is_read_in_place, lower_planar_convolution
from hloc.kernels.products.prologues import DEPTH, ROW, access_of, prologue
from hloc.kernels.products.size_thresholds import TINY, fills_few_lanes, long_windows
from hloc.machine import Machine

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
    operands, outline = OperandKernels(group, machine), Outline(group)
    sides = [access_of(operands, hero, number, type, _order(hero, number), range(hero.operands[number].shape.rank))
             for number in range(2)]
    product = product_of_convolution(hero, *(side.strides for side in sides)) if machine.kind == "cpu" else None
    if product:
        lines, exchanged = product
        return operands.lowered(hero, gemm_call(operands, hero, total, sides[::-1] if exchanged else sides, lines,
                                                outline))
    is_transposed = machine.kind == "cpu" and type in FAST_TYPES and _goes_along_positions(hero)
    epilogue = () if stores_itself(outline, hero, type, total) else \
        epilogue_statements(outline, hero, total, _position(hero, is_transposed))
    made = [prologue(operands, hero, n, side, _order(hero, n), _extents(hero, n, side))
            for n, side in enumerate(sides) if side.argument is None]
    facts = (*parameters(hero, (type, total), *sides), ("is_transposed", is_transposed), *algorithm_fact(hero, machine))
    return operands.lowered(hero, call_of(
        group, "convolution", tuple(zip(SIDES, sides)), [*(own for _, own in made), outline], facts, epilogue, work,
        tuple(p for p, _ in made)))


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


def _order(hero: Instruction, number: int) -> tuple[int, ...]:
    """The dimensions of an operand in the order of a tile's rows and its depth."""
    n: ConvolutionDimensionNumbers = hero.get("dim_labels")
    if number == 0:
        return (n.input_batch, *n.input_spatial, n.input_feature)
    return (n.kernel_output_feature, *n.kernel_spatial, n.kernel_input_feature)


def _extents(hero: Instruction, number: int, side: Access) -> tuple[tuple[str, int, int], ...]:
    """Of an operand that is an expression of its row and of its depth."""
    order, sizes = _order(hero, number), hero.operands[number].shape.dimensions
    depth = sizes[order[-1]] if number == 0 else side.size // sizes[order[0]]
    return (ROW, side.size // depth, depth), (DEPTH, depth, 1)


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
