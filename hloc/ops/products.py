"""Sums of products: dot, ragged-dot, scaled-dot.

In: two arrays and which dimensions are batch and contracting. Out: [batch..., lhs free..., rhs free...].

    r = f32[2,5] dot(f32[2,3] a, f32[3,5] b), lhs_contracting_dims={1}, rhs_contracting_dims={0}

Operands of two types are multiplied in one that holds both (`sum_type`), sums stay in it, and are converted to the
result's type once. Products of integers wrap; those of floats are added in f64 if that is cheap, else in f32.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import ml_dtypes
import numpy as np

from hloc.ir import ELEMENT_TYPES, Instruction, Shape, numpy_dtype
from hloc.ir.types import element_type_of
from hloc.ops.checks import array_operand, array_shape, dimension_list, dynamic_of, fail, listed, require, text
from hloc.ops.conversions import convert_array
from hloc.ops.numerics import narrow
from hloc.ops.op import Op
from hloc.sharding import rules

CHEAP_PRODUCTS = 1 << 24
INTEGERS = frozenset({"pred", "signed", "unsigned"})        # kinds whose products wrap


class DotDimensions(NamedTuple):
    """The dimension numbers of a dot; the free ones are all that are neither batch nor contracting."""

    lhs_batch: tuple[int, ...]
    rhs_batch: tuple[int, ...]
    lhs_contracting: tuple[int, ...]
    rhs_contracting: tuple[int, ...]

    def lhs_free(self, rank: int) -> tuple[int, ...]:
        return tuple(d for d in range(rank) if d not in self.lhs_batch and d not in self.lhs_contracting)

    def rhs_free(self, rank: int) -> tuple[int, ...]:
        return tuple(d for d in range(rank) if d not in self.rhs_batch and d not in self.rhs_contracting)


def dot_dimensions(instruction: Instruction) -> DotDimensions:
    """The dimension numbers as written."""
    return DotDimensions(*(tuple(instruction.get(key, ())) for key in
                           ("lhs_batch_dims", "rhs_batch_dims", "lhs_contracting_dims", "rhs_contracting_dims")))


# -- multiplying -------------------------------------------------------------------------------------------------------

def compute_dtype(lhs: np.dtype, rhs: np.dtype, result: np.dtype, depth: int, products: int) -> np.dtype:
    """The type of the sums: exact for integers (modulo the result's width), wide for floats."""
    if "c" in (lhs.kind, rhs.kind, result.kind):
        return np.dtype(np.complex128)
    if _is_integer(lhs) and _is_integer(rhs) and _is_integer(result):
        bits = 8 * (lhs.itemsize + rhs.itemsize)
        return np.dtype(np.float64) if bits + math.ceil(math.log2(depth + 1)) < 53 else np.dtype(np.int64)
    wide = np.float64 in (lhs, rhs, result) or products <= CHEAP_PRODUCTS
    return np.dtype(np.float64 if wide else np.float32)


def _is_integer(dtype: np.dtype) -> bool:
    return ELEMENT_TYPES[element_type_of(dtype)].kind in INTEGERS


def round_to(sums: np.ndarray, lhs: np.dtype, rhs: np.dtype, result: np.dtype) -> np.ndarray:
    """Sums of products of two types in the result's type: those of integers wrap, others are converted."""
    if _is_integer(lhs) and _is_integer(rhs) and _is_integer(result):
        sums = sums.astype(np.int64, copy=False)
        if result == np.bool_:
            sums = narrow(sums, numpy_dtype(wider_type(element_type_of(lhs), element_type_of(rhs))))
    return convert_array(sums, element_type_of(result))


def dot(lhs: np.ndarray, rhs: np.ndarray, dims: DotDimensions, result: np.dtype) -> np.ndarray:
    """The product, by one batched matrix multiplication."""
    lhs_free, rhs_free = dims.lhs_free(lhs.ndim), dims.rhs_free(rhs.ndim)
    sizes = _sizes(lhs, dims.lhs_batch) + _sizes(lhs, lhs_free) + _sizes(rhs, rhs_free)
    depth = math.prod(_sizes(lhs, dims.lhs_contracting))
    dtype = compute_dtype(lhs.dtype, rhs.dtype, result, depth, math.prod(sizes) * depth)
    shared = _sizes(lhs, dims.lhs_batch)
    left = lhs.transpose(dims.lhs_batch + lhs_free + dims.lhs_contracting).astype(dtype, copy=False)
    right = rhs.transpose(dims.rhs_batch + dims.rhs_contracting + rhs_free).astype(dtype, copy=False)
    left = left.reshape(*shared, math.prod(_sizes(lhs, lhs_free)), depth)
    right = right.reshape(*shared, depth, math.prod(_sizes(rhs, rhs_free)))
    return round_to(matrix_product(left, right), lhs.dtype, rhs.dtype, result).reshape(sizes)


def matrix_product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """left @ right without copies of strided matrices, which BLAS supports."""
    if _by_columns(left) and _by_columns(right):                # as rows the other way round, which BLAS does faster
        return np.swapaxes(np.matmul(_for_blas(right.swapaxes(-1, -2)), _for_blas(left.swapaxes(-1, -2))), -1, -2)
    return np.matmul(_for_blas(left), _for_blas(right))


def _by_columns(array: np.ndarray) -> bool:
    return array.strides[-2] == array.itemsize < array.strides[-1]


def _for_blas(array: np.ndarray) -> np.ndarray:
    """The matrix itself if one of its last two dimensions is contiguous and the other strided beyond it."""
    (rows, columns), (down, along) = array.shape[-2:], array.strides[-2:]
    size = array.itemsize
    if along == size and down >= columns * size or down == size and along >= rows * size:
        return array
    return np.ascontiguousarray(array)


def _sizes(array: np.ndarray, dimensions: Sequence[int]) -> tuple[int, ...]:
    return tuple(array.shape[d] for d in dimensions)


def evaluate_dot(evaluator, instruction: Instruction, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    return dot(lhs, rhs, dot_dimensions(instruction), numpy_dtype(instruction.shape.element_type))


# -- shapes ------------------------------------------------------------------------------------------------------------

def product_type(instruction: Instruction, lhs: Shape, rhs: Shape) -> str:
    """The result's element type: as written, or the wider one of the operands."""
    written = instruction.shape
    if written is None:
        return wider_type(lhs.element_type, rhs.element_type)
    require(written.is_array, instruction, f"the result must be an array, is {text(written)}")
    return written.element_type


def wider_type(a: str, b: str) -> str:
    """The common element type of two operands, as XLA has it (HigherPrecisionType in xla/primitive_util.h): complex
    before float before integer, then the larger range, precision and width, signed before unsigned."""
    return b if _rank(b) > _rank(a) else a


def _rank(element_type: str) -> tuple[int, ...]:
    row = ELEMENT_TYPES[element_type]
    if row.kind in INTEGERS:
        return 0, -1, -1, 0 if row.kind == "pred" else row.bits, row.kind == "signed"
    info = ml_dtypes.finfo(row.dtype)
    return row.kind == "complex", int(info.maxexp), int(info.nmant), row.bits, 0


def sum_type(lhs: str, rhs: str, result: str) -> str:
    """The element type in which products of two types are multiplied and added up, before one conversion to `result`:
    one that holds both operands, and the result where that is wider. Floats of less than 32 bits take f32."""
    rows = [ELEMENT_TYPES[t] for t in (lhs, rhs, result)]
    kinds = {row.kind for row in rows}
    if kinds <= INTEGERS:
        return result if result != "pred" else wider_type(lhs, rhs)
    wide = any(row.name in ("f64", "c128") for row in rows) or "f8e8m0fnu" in (lhs, rhs)    # 2^-127 is no f32 at work
    return ("c128" if wide else "c64") if "complex" in kinds else "f64" if wide else "f32"


def _checked_dimensions(instruction: Instruction, lhs: Shape, rhs: Shape) -> DotDimensions:
    for side, shape in (("lhs", lhs), ("rhs", rhs)):
        batch = dimension_list(instruction, f"{side}_batch_dims", shape.rank, side)
        contracting = dimension_list(instruction, f"{side}_contracting_dims", shape.rank, side)
        both = sorted(set(batch) & set(contracting))
        require(not both, instruction, f"dimensions {listed(both)} of the {side} are both batch and contracting")
    dims = dot_dimensions(instruction)
    for what, left, right in (("batch", dims.lhs_batch, dims.rhs_batch),
                              ("contracting", dims.lhs_contracting, dims.rhs_contracting)):
        require(len(left) == len(right), instruction,
                f"lhs has {len(left)} {what} dimensions {listed(left)}, rhs has {len(right)} {listed(right)}")
        for a, b in zip(left, right):
            require(lhs.dimensions[a] == rhs.dimensions[b] or -1 in (lhs.dimensions[a], rhs.dimensions[b]), instruction,
                    f"{what} dimension {a} of lhs {text(lhs)} and {b} of rhs {text(rhs)} differ in size")
    return dims


def infer_dot(instruction: Instruction) -> Shape:
    lhs, rhs = array_operand(instruction, 0), array_operand(instruction, 1)
    dims = _checked_dimensions(instruction, lhs, rhs)
    return _product_shape(product_type(instruction, lhs, rhs), lhs, rhs, dims)


def _product_shape(element_type: str, lhs: Shape, rhs: Shape, dims: DotDimensions,
                   skip_rhs: Sequence[int] = ()) -> Shape:
    left = dims.lhs_batch + dims.lhs_free(lhs.rank)
    right = tuple(d for d in dims.rhs_free(rhs.rank) if d not in skip_rhs)
    sizes = [lhs.dimensions[d] for d in left] + [rhs.dimensions[d] for d in right]
    dynamic = [dynamic_of(lhs)[d] for d in left] + [dynamic_of(rhs)[d] for d in right]
    return array_shape(element_type, sizes, dynamic)


# -- ragged-dot --------------------------------------------------------------------------------------------------------

class Ragged(NamedTuple):
    """mode: "free", "contracting" or "batch", the role of the lhs dimension that is split into groups;
    prefix: the lhs dimensions that have group sizes of their own (all before the last of group_sizes)."""

    dims: DotDimensions
    mode: str
    dimension: int
    prefix: tuple[int, ...]
    rhs_group: int | None


def ragged_dimensions(instruction: Instruction, lhs: Shape, rhs: Shape) -> Ragged:
    dims = _checked_dimensions(instruction, lhs, rhs)
    ragged = dimension_list(instruction, "lhs_ragged_dims", lhs.rank, "lhs")
    require(len(ragged) == 1, instruction, f"lhs_ragged_dims must name one dimension, is {listed(ragged)}")
    groups = dimension_list(instruction, "rhs_group_dims", rhs.rank, "rhs")
    dimension = ragged[0]
    if dimension in dims.lhs_batch:
        mode, prefix = "batch", dims.lhs_batch[:dims.lhs_batch.index(dimension)]
    elif dimension in dims.lhs_contracting:
        mode = "contracting"
        prefix = dims.lhs_batch + dims.lhs_contracting[:dims.lhs_contracting.index(dimension)]
    else:
        mode = "free"
        prefix = dims.lhs_batch + tuple(d for d in dims.lhs_free(lhs.rank) if d < dimension)
    wanted = 1 if mode == "free" else 0
    require(len(groups) == wanted, instruction, f"rhs_group_dims={listed(groups)} must name {wanted} dimensions here, "
            f"where the ragged dimension {dimension} is {mode}")
    return Ragged(dims, mode, dimension, prefix, groups[0] if groups else None)


def is_grouped(instruction: Instruction) -> bool:
    """Whether the rows of a ragged-dot's left matrix are in groups, each multiplied by its own matrix."""
    lhs, rhs, sizes = (o.shape for o in instruction.operands)
    ragged = ragged_dimensions(instruction, lhs, rhs)
    kinds = {s.kind for s in (lhs, rhs, instruction.shape)}
    return ragged.mode == "free" and (lhs.rank, rhs.rank, sizes.rank) == (2, 3, 1) and len(kinds) == 1 \
        and len(ragged.dims.lhs_contracting) == 1 and sizes.element_type in ("s32", "s64") \
        and min(*lhs.dimensions, *rhs.dimensions) > 0


def infer_ragged_dot(instruction: Instruction) -> Shape:
    lhs, rhs, sizes = (array_operand(instruction, i) for i in range(3))
    ragged = ragged_dimensions(instruction, lhs, rhs)
    expected = tuple(lhs.dimensions[d] for d in ragged.prefix)
    require(sizes.kind in ("signed", "unsigned"), instruction, f"group sizes must be integers, are {text(sizes)}")
    require(sizes.rank == 1 or (sizes.rank > 0 and sizes.dimensions[:-1] == expected), instruction,
            f"group sizes must be [groups] or [{','.join(map(str, expected))},groups], are {text(sizes)}")
    element_type = product_type(instruction, lhs, rhs)
    groups = sizes.dimensions[-1]
    if ragged.mode == "free":
        assert ragged.rhs_group is not None
        require(rhs.dimensions[ragged.rhs_group] == groups, instruction,
                f"dimension {ragged.rhs_group} of rhs {text(rhs)} must be {groups}, as the group sizes {text(sizes)}")
        return _product_shape(element_type, lhs, rhs, ragged.dims, (ragged.rhs_group,))
    shape = _product_shape(element_type, lhs, rhs, ragged.dims)
    return shape.with_dimensions((groups,) + shape.dimensions) if ragged.mode == "contracting" else shape


def evaluate_ragged_dot(evaluator, instruction: Instruction, lhs, rhs, group_sizes) -> np.ndarray:
    """Group by group: elements of another group, also NaN and infinities, do not enter a sum."""
    written = instruction.shape.element_type
    if written == "f8e8m0fnu":                                              # has no zero for rows in no group
        return convert_array(_by_groups(instruction, lhs, rhs, group_sizes, np.dtype(np.float32)), written)
    return _by_groups(instruction, lhs, rhs, group_sizes, numpy_dtype(written))


def _by_groups(instruction: Instruction, lhs, rhs, group_sizes, result: np.dtype) -> np.ndarray:
    ragged = ragged_dimensions(instruction, instruction.operands[0].shape, instruction.operands[1].shape)
    dims = ragged.dims
    groups = range(group_sizes.shape[-1])
    number = _group_numbers(lhs.shape, ragged, group_sizes)
    if ragged.mode == "contracting":
        order = dims.rhs_batch + dims.rhs_contracting + dims.rhs_free(rhs.ndim)
        of_rhs = _along(number, dims.lhs_batch + dims.lhs_contracting, rhs.ndim).transpose(np.argsort(order))
        return np.stack([dot(_keep(lhs, number == g), _keep(rhs, of_rhs == g), dims, result) for g in groups]) \
            if groups else np.zeros(instruction.shape.dimensions, result)
    number = _along(number, dims.lhs_batch + dims.lhs_free(lhs.ndim), len(instruction.shape.dimensions))
    if ragged.mode == "batch":
        return _keep(dot(lhs, rhs, dims, result), number < len(groups))
    found = np.zeros(instruction.shape.dimensions, result)
    assert ragged.rhs_group is not None           # mode "free"
    dims = _without(dims, ragged.rhs_group)
    for g in groups:
        found = np.where(number == g, dot(lhs, np.take(rhs, g, ragged.rhs_group), dims, result), found)
    return found


def _along(number: np.ndarray, dimensions: tuple[int, ...], rank: int) -> np.ndarray:
    """Those dimensions of an array first, as many of size one behind them as make `rank`; all others have size one."""
    others = tuple(d for d in range(number.ndim) if d not in dimensions)
    sizes = [number.shape[d] for d in dimensions]
    return number.transpose(dimensions + others).reshape(sizes + [1] * (rank - len(sizes)))


def _group_numbers(lhs_sizes: Sequence[int], ragged: Ragged, group_sizes: np.ndarray) -> np.ndarray:
    """For each element of lhs (broadcast) the group that its place in the ragged dimension falls in. Sizes below 0 are
    0; groups behind the last place have none."""
    prefix = tuple(lhs_sizes[d] for d in ragged.prefix)
    most = lhs_sizes[ragged.dimension]
    sizes = np.minimum(group_sizes, np.uint64(most)) if group_sizes.dtype == np.uint64 else group_sizes
    sizes = np.clip(sizes.astype(np.int64), 0, most)
    ends = np.cumsum(np.broadcast_to(sizes, prefix + sizes.shape[-1:]), axis=-1)
    places = np.arange(lhs_sizes[ragged.dimension])
    number = (places[:, None] >= ends[..., None, :]).sum(-1)          # [prefix..., ragged]
    named = ragged.prefix + (ragged.dimension,)
    order = np.argsort(named)
    sizes = [lhs_sizes[d] if d in named else 1 for d in range(len(lhs_sizes))]
    return number.transpose(order).reshape(sizes)


def _keep(array: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return np.where(mask, array, np.zeros((), array.dtype))


def _without(dims: DotDimensions, rhs_dimension: int) -> DotDimensions:
    """The dimension numbers once a dimension of rhs is gone."""
    def shift(numbers):
        return tuple(d - (d > rhs_dimension) for d in numbers)
    return dims._replace(rhs_batch=shift(dims.rhs_batch), rhs_contracting=shift(dims.rhs_contracting))


# -- scaled-dot --------------------------------------------------------------------------------------------------------

def infer_scaled_dot(instruction: Instruction) -> Shape:
    lhs, rhs = array_operand(instruction, 0), array_operand(instruction, 1)
    for index, shape in ((2, lhs), (3, rhs)):
        _check_scale(instruction, shape, array_operand(instruction, index), index)
    dims = _checked_dimensions(instruction, lhs, rhs)
    written = instruction.shape
    element_type = written.element_type if written is not None else "bf16"
    return _product_shape(element_type, lhs, rhs, dims)


def _check_scale(instruction: Instruction, shape: Shape, scale: Shape, index: int) -> None:
    if scale.rank == 0:
        return
    fits = scale.rank == shape.rank and all(
        s > 0 and d % s == 0 for d, s in zip(shape.dimensions, scale.dimensions))
    if not fits:
        fail(instruction, f"the scale {text(scale)} (operand {index}) must divide {text(shape)} in every dimension")


def evaluate_scaled_dot(evaluator, instruction: Instruction, lhs, rhs, lhs_scale, rhs_scale) -> np.ndarray:
    dtypes = [numpy_dtype(scaled_type(instruction, n)) for n in (0, 1)]
    return dot(_scaled(lhs, lhs_scale, dtypes[0]), _scaled(rhs, rhs_scale, dtypes[1]), dot_dimensions(instruction),
               numpy_dtype(instruction.shape.element_type))


def scaled_type(instruction: Instruction, number: int) -> str:
    """The type in which an operand of a scaled-dot is multiplied by its scale: f32, or wider where one of them is."""
    operands = (instruction.operands[number], instruction.operands[2 + number])
    lhs, rhs = ("f32" if t == "f8e8m0fnu" else t for t in (o.shape.element_type for o in operands))
    return sum_type(lhs, rhs, "f32")


def _scaled(array: np.ndarray, scale: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Each element times the scale of its block."""
    scale = scale.astype(dtype)
    if scale.ndim:
        for d in range(array.ndim):
            scale = np.repeat(scale, array.shape[d] // scale.shape[d], axis=d)
    return array.astype(dtype) * scale


_DIMS = ("lhs_batch_dims", "rhs_batch_dims", "lhs_contracting_dims", "rhs_contracting_dims")

ROWS: tuple[Op, ...] = (
    Op("dot", arity=2, infer=infer_dot, evaluate=evaluate_dot,
       optional=_DIMS + ("operand_precision", "algorithm"), sharding=rules.dot),
    Op("ragged-dot", arity=3, infer=infer_ragged_dot, evaluate=evaluate_ragged_dot, required=("lhs_ragged_dims",),
       optional=_DIMS + ("rhs_group_dims", "operand_precision")),
    Op("scaled-dot", arity=4, infer=infer_scaled_dot, evaluate=evaluate_scaled_dot,
       optional=_DIMS + ("operand_precision", "algorithm")),
)
