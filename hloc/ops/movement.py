"""Rows of the ops that only move elements: broadcast, reshape, transpose, slice, reverse, pad, concatenate, iota, copy,
dynamic-slice, dynamic-update-slice.

    pad(f32[3] {1,2,3}, 0), padding=1_-1_1     -> {0,1,0,2,0}        one in front, one between, one cut off behind
    dynamic-slice(s32[4], start 7), sizes {2}  -> the last two       starts are clamped so that the slice fits

A dynamic dimension has the value's size, not its bound.
"""
from __future__ import annotations

import math

import numpy as np

from hloc.errors import RunError
from hloc.ir import UNBOUNDED, Instruction, Layout, Shape
from hloc.ir.types import COMPLEX, FLOATING, INTEGRAL
from hloc.ops.blocks import BLOCK
from hloc.ops.checks import array_operand, array_shape, attribute, dimension_list, dynamic_of, fail, listed, text
from hloc.ops.numerics import narrow, result_type, widen
from hloc.ops.op import Op
from hloc.ops.rules import first_operand_shape, same_type_family, scalar_operand, wider_type
from hloc.sharding import index_rules, rules, window_rules


def _retyped(instruction: Instruction, value: np.ndarray) -> np.ndarray:
    """In the result's element type: passes may let a move change the precision of floats."""
    dtype = result_type(instruction)
    return value if value.dtype == dtype else narrow(widen(value), dtype)


# -- broadcast, reshape, transpose -------------------------------------------------------------------------------------

def _broadcast(evaluator, instruction, operand):
    shape = list(instruction.shape.dimensions)
    dimensions = instruction.get("dimensions", ())
    for source, target in enumerate(dimensions):
        shape[target] = operand.shape[source]
    order = sorted(range(len(dimensions)), key=dimensions.__getitem__)
    source = operand.transpose(order).reshape([n if d in dimensions else 1 for d, n in enumerate(shape)])
    if math.prod(shape) > BLOCK:
        return np.broadcast_to(_retyped(instruction, source), shape)           # a view: filling an array takes time
    result = np.empty(shape, operand.dtype)
    result[...] = source
    return _retyped(instruction, result)


def _broadcast_shape(instruction: Instruction) -> Shape:
    """The attribute gives the place of each operand dimension; the sizes of the others are only in the written
    shape."""
    operand, result = array_operand(instruction, 0), instruction.shape
    if not result.is_array:
        fail(instruction, f"cannot broadcast {text(operand)} to {text(result)}")
    dimensions = dimension_list(instruction, "dimensions", result.rank, "result")
    if len(dimensions) != operand.rank:
        fail(instruction, f"dimensions={listed(dimensions)} must name {operand.rank} dimensions, one for each of "
                          f"{text(operand)}")
    for source, target in enumerate(dimensions):
        if operand.dimensions[source] != result.dimensions[target]:
            fail(instruction, f"dimension {source} of {text(operand)} goes to dimension {target} of {text(result)}, "
                              f"but {operand.dimensions[source]} is not {result.dimensions[target]}")
    return result.with_element_type(operand.element_type)


def _reshape(evaluator, instruction, operand):
    shape = instruction.shape
    sizes = list(shape.dimensions)
    if operand.size != math.prod(sizes):
        old = instruction.operands[0].shape
        kept = [d for d, n in enumerate(old.dimensions) if n != 1 or dynamic_of(old)[d]]
        placed = [d for d, n in enumerate(sizes) if n != 1 or dynamic_of(shape)[d]]
        if [old.dimensions[d] for d in kept] == [sizes[d] for d in placed]:  # only dimensions of 1 come or go
            for d, k in zip(placed, kept):
                sizes[d] = operand.shape[k]
            return _retyped(instruction, operand.reshape(sizes))
        dynamic = [d for d in range(shape.rank) if dynamic_of(shape)[d] or sizes[d] == UNBOUNDED]
        rest = math.prod(n for d, n in enumerate(sizes) if d not in dynamic)
        if len(dynamic) != 1 or not rest or operand.size % rest:
            raise RunError(f"reshape of {list(operand.shape)} to {text(shape)}: the sizes do not say how",
                           instruction.span)
        sizes[dynamic[0]] = operand.size // rest
    return _retyped(instruction, operand.reshape(sizes))


def _reshape_shape(instruction: Instruction) -> Shape:
    operand, result = array_operand(instruction, 0), instruction.shape
    if not result.is_array:
        fail(instruction, f"cannot reshape {text(operand)} to {text(result)}")
    unbounded = UNBOUNDED in operand.dimensions or UNBOUNDED in result.dimensions
    if not unbounded and operand.num_elements != result.num_elements:
        fail(instruction, f"{text(operand)} has {operand.num_elements} elements, "
                          f"{text(result)} has {result.num_elements}")
    return result.with_element_type(operand.element_type)


def _transpose(evaluator, instruction, operand):
    return _retyped(instruction, np.ascontiguousarray(np.transpose(operand, instruction.attributes["dimensions"]))
                    .reshape([operand.shape[d] for d in instruction.attributes["dimensions"]]))


def _transpose_shape(instruction: Instruction) -> Shape:
    """The layout is permuted too, so that a transpose moves nothing in memory unless another layout is asked for."""
    operand = array_operand(instruction, 0)
    order = dimension_list(instruction, "dimensions", operand.rank)
    if len(order) != operand.rank:
        fail(instruction, f"dimensions={listed(order)} is no order of the {operand.rank} dimensions of {text(operand)}")
    place = {dimension: position for position, dimension in enumerate(order)}
    layout = operand.layout and Layout(tuple(place[d] for d in operand.minor_to_major), operand.layout.suffix)
    flags = tuple(dynamic_of(operand)[d] for d in order) if operand.dynamic_dimensions else ()
    return Shape(operand.element_type, tuple(operand.dimensions[d] for d in order), (), flags, layout)


# -- slice, reverse, pad, concatenate, iota ----------------------------------------------------------------------------

def _slice(evaluator, instruction, operand):
    parts = tuple(slice(s.start, s.limit, s.stride) for s in instruction.attributes["slice"])
    return _retyped(instruction, np.array(operand[parts], copy=True, ndmin=operand.ndim))


def _slice_shape(instruction: Instruction) -> Shape:
    operand = array_operand(instruction, 0)
    parts = attribute(instruction, "slice")
    if len(parts) != operand.rank:
        fail(instruction, f"slice has {len(parts)} parts, {text(operand)} has {operand.rank} dimensions")
    sizes, flags = [], []
    for dimension, (part, size) in enumerate(zip(parts, operand.dimensions)):
        if not (0 <= part.start <= part.limit and part.stride > 0) or (part.limit > size != UNBOUNDED):
            fail(instruction, f"[{part.start}:{part.limit}:{part.stride}] is no slice of dimension {dimension} of "
                              f"{text(operand)}")
        sizes.append(-(-(part.limit - part.start) // part.stride))
        flags.append(dynamic_of(operand)[dimension] and size != UNBOUNDED)
    return array_shape(operand.element_type, sizes, flags)


def _reverse(evaluator, instruction, operand):
    return _retyped(instruction, np.array(np.flip(operand, instruction.attributes["dimensions"]), copy=True))


def _reverse_shape(instruction: Instruction) -> Shape:
    operand = array_operand(instruction, 0)
    dimension_list(instruction, "dimensions", operand.rank)
    return operand


def _pad(evaluator, instruction, operand, value):
    padding = instruction.attributes["padding"]
    sizes = [padded_size(n, p) for n, p in zip(operand.shape, padding)]
    result = np.full(sizes, _retyped(instruction, value))
    source, target = [], []
    for size, whole, (low, _, interior) in zip(operand.shape, sizes, padding):
        step = interior + 1
        first = max(0, -(low // step))                  # elements before it fall off in front
        last = min(size, -(-(whole - low) // step))     # and from here on after the end
        source.append(slice(first, max(first, last)))
        target.append(slice(low + first * step, low + (last - 1) * step + 1, step) if last > first else slice(0, 0))
    result[tuple(target)] = _retyped(instruction, operand[tuple(source)])
    return result


def padded_size(size: int, padding) -> int:
    """Length of a dimension after padding; negative padding cuts off."""
    return size + padding.low + padding.high + padding.interior * max(size - 1, 0)


def _pad_shape(instruction: Instruction) -> Shape:
    operand, value = array_operand(instruction, 0), scalar_operand(instruction, 1)
    padding = attribute(instruction, "padding")
    if len(padding) != operand.rank:
        fail(instruction, f"padding has {len(padding)} parts, {text(operand)} has {operand.rank} dimensions")
    if not same_type_family(operand, value):
        fail(instruction, f"operands differ in element type: {text(operand)} and {text(value)}")
    sizes = []
    for dimension, (size, part) in enumerate(zip(operand.dimensions, padding)):
        sizes.append(size if size == UNBOUNDED else padded_size(size, part))
        if part.interior < 0 or (sizes[-1] < 0 and size != UNBOUNDED):
            fail(instruction, f"padding {part.low}_{part.high}_{part.interior} does not fit dimension {dimension} of "
                              f"{text(operand)}")
    return array_shape(wider_type(operand.element_type, value.element_type), sizes, dynamic_of(operand))


def _concatenate(evaluator, instruction, *operands):
    return np.concatenate([_retyped(instruction, o) for o in operands], axis=instruction.attributes["dimensions"][0])


def _concatenate_shape(instruction: Instruction) -> Shape:
    first = array_operand(instruction, 0)
    dimensions = dimension_list(instruction, "dimensions", first.rank)
    if len(dimensions) != 1:
        fail(instruction, f"dimensions={listed(dimensions)} must name one dimension")
    along = dimensions[0]
    sizes, flags, element_type = list(first.dimensions), list(dynamic_of(first)), first.element_type
    for index in range(1, len(instruction.operands)):
        other = array_operand(instruction, index)
        if not _fits_next_to(first, other, along):
            fail(instruction, f"operands differ beside dimension {along}: {text(first)} and {text(other)}")
        if not same_type_family(first, other):
            fail(instruction, f"operands differ in element type: {text(first)} and {text(other)}")
        unbounded = UNBOUNDED in (sizes[along], other.dimensions[along])
        sizes[along] = UNBOUNDED if unbounded else sizes[along] + other.dimensions[along]
        flags = [a or b for a, b in zip(flags, dynamic_of(other))]
        element_type = wider_type(element_type, other.element_type)
    return array_shape(element_type, sizes, flags)


def _fits_next_to(first: Shape, other: Shape, along: int) -> bool:
    return first.rank == other.rank and all(
        d == along or a == b or UNBOUNDED in (a, b)
        for d, (a, b) in enumerate(zip(first.dimensions, other.dimensions)))


def _iota_dimension(instruction: Instruction) -> int:
    return instruction.get("iota_dimension", 0)


def _iota(evaluator, instruction):
    shape, along = instruction.shape, _iota_dimension(instruction)
    with np.errstate(all="ignore"):
        counts = narrow(np.arange(shape.dimensions[along], dtype=np.int64), result_type(instruction))
    spread = counts.reshape([-1 if d == along else 1 for d in range(shape.rank)])
    return np.ascontiguousarray(np.broadcast_to(spread, shape.dimensions))


def _iota_shape(instruction: Instruction) -> None:
    shape = instruction.shape
    if not shape.is_array or shape.element_type not in INTEGRAL | FLOATING | COMPLEX:
        fail(instruction, f"counts in integers, floats or complex numbers, not {text(shape)}")
    if not 0 <= _iota_dimension(instruction) < shape.rank:
        fail(instruction, f"iota_dimension={_iota_dimension(instruction)} is no dimension of {text(shape)}")


def _copy(evaluator, instruction, operand):
    return _retyped(instruction, operand) if isinstance(operand, np.ndarray) else operand


# -- dynamic slices ----------------------------------------------------------------------------------------------------

def clamped_starts(starts, size, part) -> tuple[int, ...]:
    """Start indices (scalars, or one vector), moved so that a part of these sizes lies inside the whole."""
    flat = [int(n) for start in starts for n in np.ravel(start)]
    return tuple(min(max(start, 0), whole - piece) for start, whole, piece in zip(flat, size, part))


def _dynamic_slice(evaluator, instruction, operand, *starts):
    sizes = instruction.attributes["dynamic_slice_sizes"]
    first = clamped_starts(starts, operand.shape, sizes)
    return _retyped(instruction, np.array(operand[tuple(slice(s, s + n) for s, n in zip(first, sizes))], copy=True))


def _dynamic_update_slice(evaluator, instruction, operand, update, *starts):
    first = clamped_starts(starts, operand.shape, update.shape)
    result = np.array(_retyped(instruction, operand), copy=True)
    result[tuple(slice(s, s + n) for s, n in zip(first, update.shape))] = _retyped(instruction, update)
    return result


def _check_starts(instruction: Instruction, first: int, rank: int) -> None:
    """One integral scalar for each dimension, all of one type; or, as older modules have it, one vector."""
    starts = [array_operand(instruction, k) for k in range(first, len(instruction.operands))]
    for start in starts:
        if start.kind not in ("signed", "unsigned"):
            fail(instruction, f"start indices must be integers, not {text(start)}")
        if start != starts[0] and not start.compatible(starts[0]):
            fail(instruction, f"start indices differ: {text(starts[0])} and {text(start)}")
    if len(starts) == 1 and starts[0].rank == 1:
        count = starts[0].dimensions[0]
    else:
        count = len(starts)
        if any(start.rank for start in starts):
            fail(instruction, f"start indices must be scalars, not {text(next(s for s in starts if s.rank))}")
    if count != rank:
        fail(instruction, f"{count} start indices are given for {rank} dimensions of "
                          f"{text(instruction.operands[0].shape)}")


def _dynamic_slice_shape(instruction: Instruction) -> Shape:
    operand = array_operand(instruction, 0)
    _check_starts(instruction, 1, operand.rank)
    sizes = attribute(instruction, "dynamic_slice_sizes")
    if len(sizes) != operand.rank:
        fail(instruction, f"dynamic_slice_sizes={listed(sizes)} must have {operand.rank} sizes, as {text(operand)}")
    for dimension, (size, whole) in enumerate(zip(sizes, operand.dimensions)):
        if size < 0 or size > whole != UNBOUNDED:
            fail(instruction, f"size {size} does not fit dimension {dimension} of {text(operand)}")
    flags = [d and size == whole for d, size, whole in zip(dynamic_of(operand), sizes, operand.dimensions)]
    return array_shape(operand.element_type, sizes, flags)


def _dynamic_update_slice_shape(instruction: Instruction) -> Shape:
    operand, update = array_operand(instruction, 0), array_operand(instruction, 1)
    _check_starts(instruction, 2, operand.rank)
    if operand.rank != update.rank or any(
            n > whole and UNBOUNDED not in (n, whole) for n, whole in zip(update.dimensions, operand.dimensions)):
        fail(instruction, f"update {text(update)} does not fit {text(operand)}")
    if not same_type_family(operand, update):
        fail(instruction, f"operands differ in element type: {text(operand)} and {text(update)}")
    return operand


ROWS = (
    Op("broadcast", 1, _broadcast_shape, _broadcast, optional=("dimensions",), sharding=rules.broadcast),
    Op("reshape", 1, _reshape_shape, _reshape, optional=("inferred_dimension",), sharding=rules.reshape),
    Op("transpose", 1, _transpose_shape, _transpose, required=("dimensions",), sharding=rules.transpose),
    Op("slice", 1, _slice_shape, _slice, required=("slice",), sharding=window_rules.slice_),
    Op("reverse", 1, _reverse_shape, _reverse, required=("dimensions",),
       sharding=window_rules.reverse),
    Op("pad", 2, _pad_shape, _pad, required=("padding",), sharding=window_rules.pad),
    Op("concatenate", (1, None), _concatenate_shape, _concatenate, required=("dimensions",),
       sharding=window_rules.concatenate),
    Op("iota", 0, _iota_shape, _iota, required=("iota_dimension",), sharding=rules.elementwise),
    Op("copy", 1, first_operand_shape, _copy, optional=("cross_program_prefetch_index",),
       sharding=rules.elementwise),
    Op("dynamic-slice", (1, None), _dynamic_slice_shape, _dynamic_slice, required=("dynamic_slice_sizes",),
       sharding=index_rules.dynamic_slice),
    Op("dynamic-update-slice", (2, None), _dynamic_update_slice_shape, _dynamic_update_slice,
       sharding=index_rules.dynamic_update_slice),
)
