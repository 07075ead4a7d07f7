"""Reductions: reduce, reduce-window, select-and-scatter, map, scan.

In: arrays, start values, a combiner. Out: arrays with some dimensions combined away.

    r = f32[4] reduce(f32[4,9] x, f32[] zero), dimensions={1}, to_apply=add

XLA leaves the order of combining free; here neighbours stay in order, and each initial value is used exactly once.
"""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hloc.ir import Instruction, Shape, WindowDim, array, numpy_dtype, window_of
from hloc.ops.checks import (
    array_operand,
    array_shape,
    attribute,
    check_call,
    check_combiner,
    check_predicate,
    dimension_list,
    dynamic_of,
    fail,
    parameter_shapes,
    require,
    root_parts,
    same_dimensions_all,
    scalar,
    text,
)
from hloc.ops.combiners import Combiner
from hloc.ops.convolution import check_window, spread_and_pad, window_positions, window_slices
from hloc.ops.indexing import scatter_into
from hloc.ops.op import Op
from hloc.ops.values import result_of
from hloc.sharding import rules, window_rules

LONGEST_CHAIN = 512         # more elements are combined in pairs, pairs of pairs ...
LARGEST_SIMPLE_WINDOW = 64


def result_types(shape: Shape) -> list[np.dtype]:
    return [numpy_dtype(s.element_type) for s in (shape.tuple_shapes if shape.is_tuple else (shape,))]


def _halves(operands: Sequence) -> tuple[list, list]:
    """Inputs and start values."""
    return list(operands[:len(operands) // 2]), list(operands[len(operands) // 2:])


# -- reduce ------------------------------------------------------------------------------------------------------------

def evaluate_reduce(evaluator, instruction: Instruction, *operands: np.ndarray):
    inputs, starts = _halves(operands)
    dimensions = instruction.get("dimensions")
    combiner = Combiner(evaluator, instruction.get("to_apply"))
    starts = combiner.widen(starts)
    if not inputs[0].size:
        kept = [n for d, n in enumerate(inputs[0].shape) if d not in dimensions]
        parts = [np.broadcast_to(s, kept) for s in starts]
    elif combiner.ufunc is not None:
        parts = combiner(starts, [combiner.reduce(inputs[0], tuple(dimensions))])
    else:
        parts = fold(combiner, starts, [_reduced_first(x, dimensions) for x in combiner.widen(inputs)])
    return result_of(combiner.narrow(parts, result_types(instruction.shape)), instruction.shape)


def _reduced_first(x: np.ndarray, dimensions: Sequence[int]) -> np.ndarray:
    """[reduced elements in row-major order, kept dimensions...]"""
    reduced = sorted(dimensions)
    kept = [d for d in range(x.ndim) if d not in reduced]
    sizes = tuple(x.shape[d] for d in kept)
    return x.transpose(reduced + kept).reshape((math.prod(x.shape[d] for d in reduced),) + sizes)


def fold(combiner: Combiner, starts: Sequence[np.ndarray], rows: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Combines along axis 0, one row after the other; long axes are shortened by combining neighbours first."""
    rows = list(rows)
    while rows[0].shape[0] > LONGEST_CHAIN:
        even = rows[0].shape[0] // 2 * 2
        pairs = combiner([x[0:even:2] for x in rows], [x[1:even:2] for x in rows])
        rows = [np.concatenate([p, x[even:]]) for p, x in zip(pairs, rows)]
    totals = [np.broadcast_to(s, x.shape[1:]) for s, x in zip(starts, rows)]
    for k in range(rows[0].shape[0]):
        totals = combiner(totals, [x[k] for x in rows])
    return totals


def infer_reduce(instruction: Instruction) -> Shape:
    count = _check_pairs(instruction)
    first = same_dimensions_all(instruction, range(count))
    dimensions = dimension_list(instruction, "dimensions", first.rank)
    combiner = check_combiner(instruction, "to_apply", _element_types(instruction, count))
    kept = [d for d in range(first.rank) if d not in dimensions]
    sizes, dynamic = [first.dimensions[d] for d in kept], [dynamic_of(first)[d] for d in kept]
    shapes = [array_shape(s.element_type, sizes, dynamic) for s in root_parts(combiner)]
    return Shape.tuple(shapes) if combiner.root.shape.is_tuple else shapes[0]


def _check_pairs(instruction: Instruction) -> int:
    """Operands are n arrays and n scalars of the same types; returns n."""
    number = len(instruction.operands)
    require(number >= 2 and number % 2 == 0, instruction,
            f"operands must be arrays and as many start values, are {number}")
    for index in range(number // 2):
        start = array_operand(instruction, number // 2 + index)
        data = array_operand(instruction, index)
        require(start.rank == 0, instruction, f"start value {index} must be a scalar, is {text(start)}")
        require(start.kind == data.kind, instruction,
                f"operand {index} is {text(data)}, its start value is {text(start)}: element types differ")
    return number // 2


def _element_types(instruction: Instruction, count: int) -> list[str]:
    return [o.shape.element_type for o in instruction.operands[:count]]


# -- reduce-window -----------------------------------------------------------------------------------------------------

def evaluate_reduce_window(evaluator, instruction: Instruction, *operands: np.ndarray):
    """Gaps of dilation and padding are not combined."""
    inputs, starts = _halves(operands)
    combiner = Combiner(evaluator, instruction.get("to_apply"))
    window = window_of(instruction)
    positions = [window_positions(n, w) for n, w in zip(inputs[0].shape, window)]
    there = spread_and_pad(np.ones(inputs[0].shape, np.bool_), 0, window, False)
    inputs = [spread_and_pad(x, 0, window, 0) for x in combiner.widen(inputs)]
    if math.prod(w.size for w in window) <= LARGEST_SIMPLE_WINDOW:
        totals = _window_by_place(combiner, starts, inputs, there, window, positions)
    else:
        totals = _window_by_doubling(combiner, starts, inputs, there, window, positions)
    return result_of(combiner.narrow(totals, result_types(instruction.shape)), instruction.shape)


def _window_by_place(combiner, starts, inputs, there, window, positions) -> list[np.ndarray]:
    totals = [np.broadcast_to(s, positions) for s in combiner.widen(starts)]
    for _, slices in window_slices(window, positions):
        totals = _where(there[slices], combiner(totals, [x[slices] for x in inputs]), totals)
    return totals


def _window_by_doubling(combiner, starts, inputs, there, window, positions) -> list[np.ndarray]:
    """One dimension after the other, last first; a window of 13 is made of windows of 8, 4 and 1."""
    for axis in reversed(range(there.ndim)):
        inputs, there = _slide(combiner, inputs, there, axis, window[axis], positions[axis])
    starts = [np.broadcast_to(s, positions) for s in combiner.widen(starts)]
    return _where(there, combiner(starts, inputs), starts)


def _slide(combiner, inputs, there, axis: int, window: WindowDim, count: int):
    """Windows along one axis. `power` is the combination of 2^k neighbours, `total` of those already taken."""
    if count == 0:
        empty = _part(there, axis, 0, 0)
        return [_part(x, axis, 0, 0) for x in inputs], empty
    power, total, taken, step = (inputs, there), None, 0, 1
    length = there.shape[axis]
    while True:
        if window.size & step:
            piece = _shift(power, axis, taken * window.window_dilation, length)
            total = piece if total is None else _join(combiner, total, piece)
            taken += step
        if taken == window.size:
            break
        power = _join(combiner, power, _shift(power, axis, step * window.window_dilation, length))
        step *= 2
    assert total is not None                      # a window has at least one element
    places = slice(0, (count - 1) * window.stride + 1, window.stride)
    index = (slice(None),) * axis + (places,)
    return [x[index] for x in total[0]], total[1][index]


def _part(x: np.ndarray, axis: int, start: int, stop: int) -> np.ndarray:
    return x[(slice(None),) * axis + (slice(start, stop),)]


def _shift(state, axis: int, offset: int, length: int):
    """Element i becomes element i + offset; elements beyond the end are absent."""
    if offset == 0:
        return state
    arrays, there = state

    def moved(x):
        tail = np.zeros(x.shape[:axis] + (min(offset, length),) + x.shape[axis + 1:], x.dtype)
        return np.concatenate([_part(x, axis, min(offset, length), length), tail], axis)
    return [moved(x) for x in arrays], moved(there)


def _join(combiner, left, right):
    """Combine two states where both are present, elsewhere take the present one."""
    (a, here), (b, also) = left, right
    both = _where(here & also, combiner(a, b), _where(here, a, b))
    return both, here | also


def _where(mask: np.ndarray, yes: Sequence[np.ndarray], no: Sequence[np.ndarray]) -> list[np.ndarray]:
    if mask.all():
        return list(yes)
    return [np.where(mask, y, n) for y, n in zip(yes, no)]


def infer_reduce_window(instruction: Instruction) -> Shape:
    count = _check_pairs(instruction)
    first = same_dimensions_all(instruction, range(count))
    combiner = check_combiner(instruction, "to_apply", _element_types(instruction, count))
    sizes = _window_sizes(instruction, first)
    shapes = [array_shape(s.element_type, sizes) for s in root_parts(combiner)]
    return Shape.tuple(shapes) if combiner.root.shape.is_tuple else shapes[0]


def _window_sizes(instruction: Instruction, operand: Shape) -> list[int]:
    window = window_of(instruction)
    check_window(instruction, window, operand.rank, text(operand))
    return [window_positions(n, w) for n, w in zip(operand.dimensions, window)]


# -- select-and-scatter ------------------------------------------------------------------------------------------------

def evaluate_select_and_scatter(evaluator, instruction: Instruction, operand, source, start) -> np.ndarray:
    """In each window the element that `select` prefers gets the window's source element, by `scatter`."""
    window = window_of(instruction)
    select = instruction.get("select")
    places = spread_and_pad(np.arange(1, operand.size + 1).reshape(operand.shape), 0, window, 0)
    values = spread_and_pad(operand, 0, window, 0)
    chosen_place = np.zeros(source.shape, np.int64)               # 0: no element seen yet
    chosen = np.zeros(source.shape, operand.dtype)
    for _, slices in window_slices(window, source.shape):
        place, value = places[slices], values[slices]
        (keep,) = evaluator.apply(select, chosen, value)
        take = (place > 0) & ((chosen_place == 0) | ~keep)
        chosen_place, chosen = np.where(take, place, chosen_place), np.where(take, value, chosen)
    combiner = Combiner(evaluator, instruction.get("scatter"))
    target = np.full(operand.size, start, operand.dtype)
    met = chosen_place.reshape(-1) > 0
    (total,) = scatter_into(combiner, [target], chosen_place.reshape(-1)[met] - 1, [source.reshape(-1)[met]])
    return total.reshape(operand.shape)


def infer_select_and_scatter(instruction: Instruction) -> Shape:
    operand, source, start = (array_operand(instruction, i) for i in range(3))
    select = parameter_shapes(attribute(instruction, "select"))
    elements = [scalar(operand.element_type)] * 2
    if operand.kind == "float" and all(s.kind == "float" and not s.rank for s in select):       # of any precision
        elements = [scalar(s.element_type) for s in select]
    check_predicate(instruction, "select", elements)
    for given in (operand, source):
        check_combiner(instruction, "scatter", [given.element_type])
    require(start.rank == 0 and (start.element_type == operand.element_type or start.kind == operand.kind == "float"),
            instruction, f"the start value must be {operand.element_type}[], is {text(start)}")
    expected = array(source.element_type, *_window_sizes(instruction, operand))
    require(source.dimensions == expected.dimensions, instruction,
            f"the windows of {text(operand)} give {text(expected)}, the source is {text(source)}")
    return operand.with_default_layout()


# -- map ---------------------------------------------------------------------------------------------------------------

def evaluate_map(evaluator, instruction: Instruction, *operands: np.ndarray) -> np.ndarray:
    computation = instruction.get("to_apply")
    types = [numpy_dtype(p.shape.element_type) for p in computation.parameters]
    (result,) = evaluator.apply(computation, *(o.astype(t, copy=False) for o, t in zip(operands, types)))
    return result.astype(numpy_dtype(instruction.shape.element_type), copy=False)


def infer_map(instruction: Instruction) -> Shape:
    first = same_dimensions_all(instruction, range(len(instruction.operands)))
    computation = attribute(instruction, "to_apply")
    elements = [scalar(o.shape.element_type) for o in instruction.operands]
    for number, wanted in enumerate(parameter_shapes(computation)[:len(elements)]):
        if wanted.kind == elements[number].kind == "float" and not wanted.rank:     # of any precision
            elements[number] = wanted
    result = check_call(instruction, "to_apply", computation, elements)
    if result.is_tuple and len(result.tuple_shapes) == 1:
        result = result.tuple_shapes[0]
    if not result.is_array or result.rank:
        fail(instruction, f"to_apply=%{computation.name} must return a scalar, returns {text(result)}")
    return array_shape(result.element_type, first.dimensions, dynamic_of(first))


# -- scan --------------------------------------------------------------------------------------------------------------

def evaluate_scan(evaluator, instruction: Instruction, *operands):
    """(outputs..., carries) = to_apply(elements of inputs..., carries), along one dimension."""
    count = attribute(instruction, "num_carries")
    inputs, carries = list(operands[:len(operands) - count]), list(operands[len(operands) - count:])
    (axis,), body = instruction.get("dimensions"), instruction.get("to_apply")
    places = range(inputs[0].shape[axis])
    rows: list[list] = []
    for place in reversed(places) if instruction.get("is_reverse") else places:
        given = evaluator.call(body, [np.take(x, place, axis) for x in inputs] + carries)
        given = given if type(given) is tuple else (given,)
        rows.append(list(given[:len(given) - count]))
        carries = list(given[len(given) - count:])
    if instruction.get("is_reverse"):
        rows.reverse()
    shapes = instruction.shape.tuple_shapes
    outputs = [np.stack([r[k] for r in rows], axis) if rows else np.zeros(s.dimensions, numpy_dtype(s.element_type))
               for k, s in enumerate(shapes[:len(shapes) - count])]
    return tuple(outputs + carries)


def infer_scan(instruction: Instruction) -> Shape:
    count = attribute(instruction, "num_carries")
    shapes = [array_operand(instruction, i) for i in range(len(instruction.operands))]
    require(0 <= count < len(shapes), instruction, f"num_carries={count} leaves no input of {len(shapes)} operands")
    inputs, carries = shapes[:len(shapes) - count], shapes[len(shapes) - count:]
    dimensions, body = attribute(instruction, "dimensions"), attribute(instruction, "to_apply")
    require(len(dimensions) == 1, instruction, "dimensions must name the one dimension to scan along")
    (axis,) = dimensions
    for shape in inputs:
        require(0 <= axis < shape.rank, instruction, f"there is no dimension {axis} in {text(shape)}")
        require(shape.dimensions[axis] == inputs[0].dimensions[axis], instruction,
                f"{text(inputs[0])} and {text(shape)} differ in dimension {axis}, which is scanned")
    elements = [s.with_dimensions(s.dimensions[:axis] + s.dimensions[axis + 1:]) for s in inputs]
    check_call(instruction, "to_apply", body, elements + carries)
    results = root_parts(body)
    length = inputs[0].dimensions[axis]
    outputs = [s.with_dimensions(s.dimensions[:axis] + (length,) + s.dimensions[axis:])
               for s in results[:len(results) - count]]
    return Shape.tuple(outputs + [s.with_default_layout() for s in carries])


ROWS: tuple[Op, ...] = (
    Op("reduce", arity=(2, None), infer=infer_reduce, evaluate=evaluate_reduce, required=("dimensions", "to_apply"),
       sharding=rules.reduce),
    Op("reduce-window", arity=(2, None), infer=infer_reduce_window, evaluate=evaluate_reduce_window,
       required=("to_apply",), optional=("window",), sharding=window_rules.reduce_window),
    Op("select-and-scatter", arity=3, infer=infer_select_and_scatter, evaluate=evaluate_select_and_scatter,
       required=("select", "scatter"), optional=("window",), sharding=window_rules.select_and_scatter),
    Op("map", arity=(1, None), infer=infer_map, evaluate=evaluate_map, required=("to_apply",),
       optional=("dimensions",), sharding=rules.elementwise),
    Op("scan", arity=(1, None), infer=infer_scan, evaluate=evaluate_scan,
       required=("dimensions", "to_apply", "num_carries"), optional=("is_reverse", "is_associative")),
)
