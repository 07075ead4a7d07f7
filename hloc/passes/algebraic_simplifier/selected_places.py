"""Rewrites a select of one index of a loop-carried array as an update at that index.

    p = pred[9,4] broadcast(compare(iota(), i, EQ))          v = f32[1,4] select(0 <= i < 9, slice of y, slice of x)
    r = f32[9,4] select(p, y, x)                        =>   r = f32[9,4] dynamic-update-slice(x, v, i, 0)

x is an element of the computation's parameter, and r is the same element of its result, as in the body of a loop.
Caches of keys and values are filled in this way, by comparing positions. Elsewhere the select is one pass over x, and
the update would need a copy of x.
"""
from __future__ import annotations

from hloc.ir import Instruction
from hloc.passes.algebraic_simplifier.selected_updates import lies_within, part, the_one_value
from hloc.passes.patterns import highest, is_integer, spread, without_ones
from hloc.passes.rewriter import Rewriter


def select_of_one_place(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """select(iota == i, y, x) => dynamic-update-slice(x, y at i, i) if a loop carries x and the result replaces it"""
    predicate, y, x = instruction.operands
    equal, axes = behind_views(predicate, list(range(predicate.shape.rank)))
    if equal.opcode != "compare" or equal.get("direction") not in ("EQ", "NE"):
        return None
    if equal.get("direction") == "NE":
        y, x = x, y
    place = place_compared(equal, axes, rewriter)
    if place is None or not takes_place_of(instruction, x, rewriter):
        return None
    dimension, index = place
    size = x.shape.dimensions[dimension]
    if size - 1 > highest(index.shape.element_type):
        return None
    window = x.shape.with_dimensions(1 if d == dimension else n for d, n in enumerate(x.shape.dimensions))
    starts = [rewriter.constant(0, index.shape.element_type)] * x.shape.rank
    starts[dimension] = index
    inside = spread(rewriter, lies_within(rewriter, index, size - 1), window)
    new = rewriter.add("select", window, [inside, part(rewriter, y, window, starts), part(rewriter, x, window, starts)])
    return rewriter.add("dynamic-update-slice", instruction.shape, [x, new, *starts])


def place_compared(compare: Instruction, axes: list[int | None], rewriter: Rewriter) -> tuple[int, Instruction] | None:
    """The dimension whose indices are compared with one number, and that number."""
    for counting, number in (compare.operands, compare.operands[::-1]):
        iota, where = behind_views(counting, axes)
        if iota.opcode != "iota" or not is_integer(iota):
            continue
        dimension, index = where[iota.get("iota_dimension")], the_one_value(number, rewriter)
        if dimension is not None and index is not None:
            return dimension, index
    return None


def behind_views(value: Instruction, axes: list[int | None]) -> tuple[Instruction, list[int | None]]:
    """The array from which broadcasts, and reshapes that add dimensions of size 1, compute `value`. axes: the name of
    each dimension; None for those of size 1 that a reshape adds."""
    while True:
        if value.opcode == "broadcast":
            axes = [axes[d] for d in value.get("dimensions")]
        elif value.opcode == "reshape" and value.shape.num_elements > 1 and \
                without_ones(value.shape.dimensions) == without_ones(value.operands[0].shape.dimensions):
            large = iter([axis for axis, size in zip(axes, value.shape.dimensions) if size != 1])
            axes = [None if size == 1 else next(large) for size in value.operands[0].shape.dimensions]
        else:
            return value, axes
        value = value.operands[0]


def takes_place_of(new: Instruction, old: Instruction, rewriter: Rewriter) -> bool:
    """Whether `old` is an element of the computation's parameter, and `new` the same element of its result."""
    root = rewriter.computation.root
    if old.opcode != "get-tuple-element" or old.operands[0].opcode != "parameter" or root.opcode != "tuple" \
            or root.shape != old.operands[0].shape:
        return False
    return rewriter.resolve(root.operands[old.get("index")]) is new


RULES = {"select": (select_of_one_place,)}
