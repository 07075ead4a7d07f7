"""Indexing: gather, scatter. (sort and topk: sorting.py)

In: an operand, integer start indices, which dimension is what. Out: windows taken from, or combined into, the operand.

    r = f32[7,3] gather(f32[10,3] table, s32[7] rows), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0},
        index_vector_dim=1, slice_sizes={1,3}

gather clamps windows that reach outside; scatter skips such windows.
"""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hloc.ir import Instruction, Shape
from hloc.ops.checks import (
    array_operand,
    array_shape,
    attribute,
    check_combiner,
    dimension_list,
    listed,
    require,
    root_parts,
    same_dimensions_all,
    text,
)
from hloc.ops.combiners import Combiner
from hloc.ops.op import Op
from hloc.ops.values import result_of
from hloc.sharding import index_rules


def start_places(indices: np.ndarray, vector_dim: int, rank: int, index_map: Sequence[int],
                 batching: Sequence[int], indices_batching: Sequence[int]) -> tuple[tuple[int, ...], list]:
    """The batch dimensions of `indices`, and for each operand dimension the start there (an array over them, or 0)."""
    if vector_dim == indices.ndim:
        indices = indices[..., None]
    vectors = indices if vector_dim == indices.ndim - 1 else np.moveaxis(indices, vector_dim, -1)
    if vectors.dtype.kind == "u" and vectors.dtype.itemsize == 8:
        vectors = np.minimum(vectors, np.iinfo(np.int64).max)
    vectors = vectors.astype(np.int64, copy=False)
    batch = vectors.shape[:-1]
    starts: list = [0] * rank
    for number, dimension in enumerate(index_map):
        starts[dimension] = vectors[..., number]
    for dimension, source in zip(batching, indices_batching):
        place = source - (source > vector_dim)                    # the vector dimension is gone
        starts[dimension] = np.broadcast_to(_along(np.arange(batch[place]), place, len(batch)), batch)
    return batch, starts


def _along(values: np.ndarray, axis: int, rank: int) -> np.ndarray:
    """A vector as an array of `rank` dimensions that runs along one of them."""
    return values.reshape([-1 if d == axis else 1 for d in range(rank)])


# -- gather ------------------------------------------------------------------------------------------------------------

def evaluate_gather(evaluator, instruction: Instruction, operand: np.ndarray, indices: np.ndarray) -> np.ndarray:
    get = instruction.get
    sizes, offset_dims = get("slice_sizes"), tuple(get("offset_dims", ()))
    gone = set(get("collapsed_slice_dims", ())) | set(get("operand_batching_dims", ()))
    batch, starts = start_places(indices, get("index_vector_dim"), operand.ndim, get("start_index_map", ()),
                                 get("operand_batching_dims", ()), get("start_indices_batching_dims", ()))
    whole = [d for d in range(operand.ndim) if sizes[d] == operand.shape[d] and d not in gone]     # start is 0 there
    indexed = [d for d in range(operand.ndim) if d not in whole]
    window = [d for d in indexed if d not in gone]
    rank = len(batch) + len(window)
    places = []
    for d in indexed:
        start = np.clip(starts[d], 0, operand.shape[d] - sizes[d])
        start = np.broadcast_to(start, batch).reshape(batch + (1,) * len(window))
        if d in window:
            start = start + _along(np.arange(sizes[d]), len(batch) + window.index(d), rank)
        places.append(start)
    taken = operand.transpose(indexed + whole)
    taken = taken[tuple(np.broadcast_arrays(*places))] if places else \
        np.broadcast_to(taken, batch + taken.shape)
    return _in_result_order(taken, len(batch), window + whole, offset_dims)


def _in_result_order(taken: np.ndarray, batch_rank: int, window: Sequence[int],
                     offset_dims: Sequence[int]) -> np.ndarray:
    """From [batch..., window dimensions as listed] to the result, whose offset_dims hold the window in order."""
    axis_of = {d: batch_rank + n for n, d in enumerate(window)}
    offsets = dict(zip(offset_dims, (axis_of[d] for d in sorted(window))))
    rest = iter(range(batch_rank))
    order = [offsets[d] if d in offsets else next(rest) for d in range(taken.ndim)]
    return taken.transpose(order)


def infer_gather(instruction: Instruction) -> Shape:
    operand, indices = array_operand(instruction, 0), array_operand(instruction, 1)
    require(indices.kind in ("signed", "unsigned"), instruction, f"indices must be integers, are {text(indices)}")
    sizes = tuple(attribute(instruction, "slice_sizes"))
    require(len(sizes) == operand.rank, instruction,
            f"slice_sizes={listed(sizes)} must have one size per dimension of {text(operand)}")
    for d, (size, most) in enumerate(zip(sizes, operand.dimensions)):
        require(0 <= size <= most, instruction, f"slice size {size} is not within dimension {d} of {text(operand)}")
    collapsed = dimension_list(instruction, "collapsed_slice_dims", operand.rank)
    batch = _check_indices(instruction, operand, indices, "start_index_map", "operand_batching_dims",
                           "start_indices_batching_dims")
    batching = tuple(instruction.get("operand_batching_dims", ()))
    for d in collapsed + batching:
        require(sizes[d] <= 1, instruction,
                f"dimension {d} is omitted from the result, but its slice size is {sizes[d]}")
    window = [sizes[d] for d in range(operand.rank) if d not in collapsed and d not in batching]
    offsets = tuple(instruction.get("offset_dims", ()))
    require(len(offsets) == len(window), instruction,
            f"offset_dims={listed(offsets)} must name {len(window)} dimensions, one per window dimension that stays")
    rank = len(window) + len(batch)
    dimension_list(instruction, "offset_dims", rank, "result")
    require(list(offsets) == sorted(offsets), instruction, f"offset_dims={listed(offsets)} must be ascending")
    rest, own = iter(batch), iter(window)
    return array_shape(operand.element_type, [next(own) if d in offsets else next(rest) for d in range(rank)])


def _check_indices(instruction: Instruction, operand: Shape, indices: Shape, map_key: str, batching_key: str,
                   indices_batching_key: str) -> list[int]:
    """Checks the attributes about indices; returns the sizes of their batch dimensions."""
    vector_dim = attribute(instruction, "index_vector_dim")
    require(0 <= vector_dim <= indices.rank, instruction, f"index_vector_dim={vector_dim} does not fit {text(indices)}")
    length = indices.dimensions[vector_dim] if vector_dim < indices.rank else 1
    index_map = dimension_list(instruction, map_key, operand.rank)
    require(len(index_map) == length, instruction,
            f"{map_key}={listed(index_map)} must have {length} dimensions, as the index vectors of {text(indices)}")
    batching = dimension_list(instruction, batching_key, operand.rank)
    indices_batching = dimension_list(instruction, indices_batching_key, indices.rank, "indices")
    require(len(batching) == len(indices_batching), instruction,
            f"{batching_key}={listed(batching)} and {indices_batching_key}={listed(indices_batching)} differ in length")
    for a, b in zip(batching, indices_batching):
        require(b != vector_dim and operand.dimensions[a] == indices.dimensions[b], instruction,
                f"batching dimension {a} of {text(operand)} does not match {b} of the indices {text(indices)}")
    return [n for d, n in enumerate(indices.dimensions) if d != vector_dim]


# -- scatter -----------------------------------------------------------------------------------------------------------

def evaluate_scatter(evaluator, instruction: Instruction, *operands: np.ndarray):
    count = len(operands) // 2
    targets, indices, updates = operands[:count], operands[count], operands[count + 1:]
    places, inside = scatter_places(instruction, targets[0].shape, indices, updates[0].shape)
    combiner = Combiner(evaluator, instruction.get("to_apply"))
    flat_updates = [u.reshape(-1)[inside] for u in updates]
    results = scatter_into(combiner, [t.reshape(-1) for t in targets], places[inside], flat_updates)
    return result_of([r.reshape(t.shape) for r, t in zip(results, targets)], instruction.shape)


def scatter_places(instruction: Instruction, target: tuple[int, ...], indices: np.ndarray,
                   update: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """For each update element, in row-major order: its place in the flattened target, and whether its window fits."""
    get = instruction.get
    window_dims = tuple(get("update_window_dims", ()))
    batching = tuple(get("input_batching_dims", ()))
    gone = set(get("inserted_window_dims", ())) | set(batching)
    batch, starts = start_places(indices, get("index_vector_dim"), len(target), get("scatter_dims_to_operand_dims", ()),
                                 batching, get("scatter_indices_batching_dims", ()))
    batch_axes = [d for d in range(len(update)) if d not in window_dims]
    window_axes = iter(window_dims)
    places, inside = np.zeros(update, np.int64), np.ones(update, np.bool_)
    spread = [1] * len(update)
    for axis, n in zip(batch_axes, batch):
        spread[axis] = n
    for d, size in enumerate(target):
        start = starts[d].reshape(spread) if isinstance(starts[d], np.ndarray) else starts[d]
        along = None if d in gone else next(window_axes)
        reach = 1 if along is None else update[along]
        inside &= (start >= 0) & (start <= size - reach)
        place = start if along is None else start + _along(np.arange(reach), along, len(update))
        places += place * math.prod(target[d + 1:])
    return places.reshape(-1), inside.reshape(-1)


def scatter_into(combiner: Combiner, targets: Sequence[np.ndarray], places: np.ndarray,
                 updates: Sequence[np.ndarray]) -> list[np.ndarray]:
    """targets[place] = combiner(targets[place], update), one update after the other; all arrays are flat.

    Sums of f32 stay in f64 until the end; those of shorter floats are rounded at every update, as they are in XLA.
    """
    dtypes = [t.dtype for t in targets]
    if combiner.opcode == "second":
        results = [t.copy() for t in targets]
        for result, update in zip(results, updates):
            result[places] = update                               # NumPy: the last one stays
        return results
    results = [np.array(t) for t in combiner.widen_stored(targets)]
    updates = combiner.widen_stored(updates)
    if combiner.ufunc is not None:
        combiner.ufunc.at(results[0], places, updates[0])
    else:
        for chosen in rounds(places):
            where = places[chosen]
            parts = combiner([r[where] for r in results], [u[chosen] for u in updates])
            for result, part in zip(results, parts):
                result[where] = part
    return combiner.narrow(results, dtypes)


def rounds(places: np.ndarray) -> list[np.ndarray]:
    """Splits the update numbers so that no place occurs twice in a round, keeping the order at every place."""
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    fresh = np.ones(len(ordered), np.bool_)
    fresh[1:] = ordered[1:] != ordered[:-1]
    first = np.flatnonzero(fresh)
    occurrence = np.arange(len(ordered)) - np.repeat(first, np.diff(np.append(first, len(ordered))))
    by_round = np.argsort(occurrence, kind="stable")
    if not len(occurrence):
        return []
    return np.split(order[by_round], np.cumsum(np.bincount(occurrence))[:-1])


def infer_scatter(instruction: Instruction) -> Shape:
    number = len(instruction.operands)
    require(number >= 3 and number % 2 == 1, instruction,
            f"operands must be n arrays, indices, n updates; are {number}")
    count = number // 2
    operand = same_dimensions_all(instruction, range(count))
    indices = array_operand(instruction, count)
    update = same_dimensions_all(instruction, range(count + 1, number))
    require(indices.kind in ("signed", "unsigned"), instruction, f"indices must be integers, are {text(indices)}")
    types = [o.shape.element_type for o in instruction.operands[:count]]
    for a, b in zip(instruction.operands[:count], instruction.operands[count + 1:]):
        require(a.shape.kind == b.shape.kind, instruction,
                f"operand {text(a.shape)} and its update {text(b.shape)}: element types differ")
    combiner = check_combiner(instruction, "to_apply", types)
    batch = _check_indices(instruction, operand, indices, "scatter_dims_to_operand_dims", "input_batching_dims",
                           "scatter_indices_batching_dims")
    _check_update(instruction, operand, update, batch)
    shapes = [array_shape(s.element_type, operand.dimensions) for s in root_parts(combiner)]
    return Shape.tuple(shapes) if count > 1 else shapes[0]


def _check_update(instruction: Instruction, operand: Shape, update: Shape, batch: Sequence[int]) -> None:
    window_dims = dimension_list(instruction, "update_window_dims", update.rank, "update")
    inserted = dimension_list(instruction, "inserted_window_dims", operand.rank)
    batching = tuple(instruction.get("input_batching_dims", ()))
    require(list(window_dims) == sorted(window_dims), instruction,
            f"update_window_dims={listed(window_dims)} must be ascending")
    kept = [d for d in range(operand.rank) if d not in inserted and d not in batching]
    require(len(kept) == len(window_dims), instruction,
            f"update_window_dims={listed(window_dims)} must name {len(kept)} dimensions, one per window dimension")
    for axis, d in zip(window_dims, kept):
        require(update.dimensions[axis] <= operand.dimensions[d], instruction,
                f"dimension {axis} of the update {text(update)} is larger than dimension {d} of {text(operand)}")
    rest = [n for d, n in enumerate(update.dimensions) if d not in window_dims]
    require(rest == list(batch), instruction,
            f"the update {text(update)} has batch dimensions {listed(rest)}, the indices have {listed(batch)}")


ROWS: tuple[Op, ...] = (
    Op("gather", arity=2, infer=infer_gather, evaluate=evaluate_gather,
       required=("offset_dims", "collapsed_slice_dims", "start_index_map", "index_vector_dim", "slice_sizes"),
       optional=("operand_batching_dims", "start_indices_batching_dims", "indices_are_sorted"),
       sharding=index_rules.gather),
    Op("scatter", arity=(3, None), infer=infer_scatter, evaluate=evaluate_scatter,
       required=("update_window_dims", "inserted_window_dims", "scatter_dims_to_operand_dims", "index_vector_dim",
                 "to_apply"),
       optional=("input_batching_dims", "scatter_indices_batching_dims", "indices_are_sorted", "unique_indices"),
       sharding=index_rules.scatter),
)
