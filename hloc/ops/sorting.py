"""sort and topk.

In: arrays and a comparator (or k). Out: the arrays in order along one dimension; equal elements keep their order.

    r = f32[9] sort(f32[9] x), dimensions={0}, to_apply=less      less(a, b) = compare(a, b), direction=LT

A comparator that is one comparison of one key uses NumPy's sort; any other goes through a merge sort that asks it about
whole arrays of pairs at once.
"""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hloc.ir import Computation, Instruction, Shape, array
from hloc.ops.checks import (
    array_operand,
    array_shape,
    attribute,
    check_predicate,
    dimension_list,
    require,
    same_dimensions_all,
    scalar,
    text,
)
from hloc.ops.combiners import sole_root
from hloc.ops.op import Op
from hloc.ops.values import result_of
from hloc.sharding import rules


def evaluate_sort(evaluator, instruction: Instruction, *operands: np.ndarray):
    (axis,) = instruction.get("dimensions")
    order = sorted_order(evaluator, instruction, [np.moveaxis(x, axis, -1) for x in operands])
    order = np.moveaxis(order, -1, axis)
    return result_of([np.take_along_axis(x, order, axis) for x in operands], instruction.shape)


def sorted_order(evaluator, instruction: Instruction, operands: Sequence[np.ndarray]) -> np.ndarray:
    """The permutation that sorts along the last axis."""
    comparator = instruction.get("to_apply")
    key = sort_key(evaluator, comparator, operands)
    if key is not None:
        return np.argsort(key, axis=-1, kind="stable")
    return merge_sort(lambda left, right: evaluator.apply(
        comparator, *[x for pair in zip(left, right) for x in pair])[0], operands)


def sort_key(evaluator, comparator: Computation, operands: Sequence[np.ndarray]) -> np.ndarray | None:
    """A key whose ascending order is the comparator's, where that is f(a) < f(b) or f(a) > f(b) for one operand's two
    elements a and b and any elementwise f; None for any other."""
    root = sole_root(comparator)
    if root.opcode != "compare":
        return None
    left, right = root.operands
    direction, pair = root.get("direction"), same_function(left, right)
    if pair is not None and pair[0] > pair[1]:
        left, pair, direction = right, pair[::-1], {"LT": "GT", "GT": "LT"}.get(direction)
    if pair is None or pair[0] % 2 or pair[1] != pair[0] + 1 or direction not in ("LT", "GT"):
        return None
    key = operands[pair[0] // 2]
    if left.opcode != "parameter":
        function = Computation(f"{comparator.name}.key", comparator.instructions, left)
        (key,) = evaluator.apply(function, *[x for x in operands for _ in range(2)])
    if _is_float(key.dtype):
        return _float_key(key, direction, root.get("type"))
    if key.dtype.kind not in "iub":
        return None
    return key if direction == "LT" else ~key                     # complement reverses the order of integers


def same_function(left: Instruction, right: Instruction) -> tuple[int, int] | None:
    """The parameter numbers (i, j) where `left` is to parameter i what `right` is to parameter j, and to no other."""
    numbers: set[tuple[int, int]] = set()
    seen: set[tuple[Instruction, Instruction]] = set()
    stack = [(left, right)]
    while stack:
        pair = stack.pop()
        if pair in seen:
            continue
        seen.add(pair)
        a, b = pair
        if a.parameter_number is not None and b.parameter_number is not None:
            numbers.add((a.parameter_number, b.parameter_number))
        elif a is not b and not _alike(a, b):
            return None
        stack.extend(zip(a.operands, b.operands))
    return numbers.pop() if len(numbers) == 1 else None


def _alike(a: Instruction, b: Instruction) -> bool:
    ignored = ("metadata", "frontend_attributes", "origin")
    mine, theirs = ({k: v for k, v in i.attributes.items() if k not in ignored} for i in (a, b))
    if a.opcode == b.opcode == "constant":
        left, right = a.array_literal, b.array_literal
        return left is not None and right is not None and a.shape == b.shape and left.tobytes() == right.tobytes()
    return (a.opcode, a.shape, len(a.operands), mine) == (b.opcode, b.shape, len(b.operands), theirs)


def _float_key(key: np.ndarray, direction: str, compare_type: str | None) -> np.ndarray | None:
    if compare_type == "TOTALORDER":
        ordered = total_order(key)
        return ordered if direction == "LT" else ~ordered
    wide = key if key.dtype.kind == "f" else key.astype(np.float32)
    if np.isnan(wide).any():                                      # no order: ask the comparator
        return None
    return wide if direction == "LT" else -wide


def _is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtype.name.startswith(("bfloat", "float"))


def total_order(x: np.ndarray) -> np.ndarray:
    """Integers in the order -nan < -inf < ... < -0 < 0 < ... < inf < nan."""
    if x.dtype.itemsize == 1:                                     # f8 and smaller keep their sign at various places
        x = x.astype(np.float32)
    bits = np.ascontiguousarray(x).view(f"i{x.dtype.itemsize}").reshape(x.shape)
    return np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)


def merge_sort(less, operands: Sequence[np.ndarray]) -> np.ndarray:
    """A stable permutation for any comparator: runs of 1, 2, 4 ... are merged by binary search in each other."""
    shape = operands[0].shape
    n = shape[-1]
    order = np.broadcast_to(np.arange(n), shape).copy()
    run = 1
    while run < n:
        order = _merge(less, [np.take_along_axis(x, order, -1) for x in operands], order, run)
        run *= 2
    return order


def _merge(less, operands: Sequence[np.ndarray], order: np.ndarray, run: int) -> np.ndarray:
    """Each element goes to its place in its own run plus the number of elements of the sibling run before it."""
    n = order.shape[-1]
    places = np.arange(n)
    in_right = (places // run) % 2 == 1
    pair_start = places // (2 * run) * (2 * run)
    sibling = np.minimum(np.where(in_right, pair_start, pair_start + run), n)
    low = np.broadcast_to(sibling, order.shape)
    high = np.broadcast_to(np.minimum(sibling + run, n), order.shape)
    while (low < high).any():
        middle = (low + high) // 2
        probe = np.minimum(middle, n - 1)
        probed = [np.take_along_axis(x, probe, -1) for x in operands]
        # elements of the left run come before equal ones of the right run
        first = [np.where(in_right, x, y) for x, y in zip(operands, probed)]
        second = [np.where(in_right, y, x) for x, y in zip(operands, probed)]
        before = less(first, second) ^ in_right
        open_ = low < high
        low, high = np.where(open_ & before, middle + 1, low), np.where(open_ & ~before, middle, high)
    own = np.where(in_right, places - (pair_start + run), places - pair_start)
    target = pair_start + own + (low - sibling)
    merged = order.copy()                     # a comparator that is no order may leave places empty
    np.put_along_axis(merged, target, order, -1)
    return merged


def infer_sort(instruction: Instruction) -> Shape:
    first = same_dimensions_all(instruction, range(len(instruction.operands)))
    dimensions = dimension_list(instruction, "dimensions", first.rank)
    require(len(dimensions) == 1, instruction, "dimensions must name the one dimension to sort along")
    shapes = [o.shape.with_default_layout() for o in instruction.operands]
    check_predicate(instruction, "to_apply", [scalar(s.element_type) for s in shapes for _ in range(2)])
    return Shape.tuple(shapes) if len(shapes) > 1 else shapes[0]


# -- topk --------------------------------------------------------------------------------------------------------------

def top_k(x: np.ndarray, k: int, largest: bool) -> tuple[np.ndarray, np.ndarray]:
    """The first k of each row in (descending, if `largest`) total order, and their places; ties by place."""
    key = total_order(x) if _is_float(x.dtype) else x
    order = np.argsort(~key if largest else key, axis=-1, kind="stable")[..., :k]
    return np.take_along_axis(x, order, -1), order.astype(np.int32)


def evaluate_topk(evaluator, instruction: Instruction, operand: np.ndarray):
    return top_k(operand, instruction.get("k"), instruction.get("largest", True))


def infer_topk(instruction: Instruction) -> Shape:
    operand = array_operand(instruction, 0)
    k = attribute(instruction, "k")
    require(operand.rank > 0, instruction, f"the operand must have a dimension, is {text(operand)}")
    require(0 <= k <= operand.dimensions[-1], instruction, f"k={k} is more than the last dimension of {text(operand)}")
    sizes = operand.dimensions[:-1] + (k,)
    return Shape.tuple([array_shape(operand.element_type, sizes), array("s32", *sizes)])


ROWS: tuple[Op, ...] = (
    Op("sort", arity=(1, None), infer=infer_sort, evaluate=evaluate_sort, required=("dimensions", "to_apply"),
       optional=("is_stable",), sharding=rules.along(lambda i: i.get("dimensions"))),
    Op("topk", arity=1, infer=infer_topk, evaluate=evaluate_topk, required=("k",), optional=("largest", "is_stable"),
       sharding=rules.batched(1)),
)
