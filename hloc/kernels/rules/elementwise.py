"""Element rules of ops that compute from elements at the same index, and of ops that only move elements.

Each rule yields (operand, index) and receives that operand's element; see elements.py. The index algebra does the rest:
a reshape is a change of index, a broadcast drops dimensions.
"""
from __future__ import annotations

import numpy as np

from hloc.errors import UnsupportedError, elided_constant
from hloc.ir import Instruction
from hloc.kernels import indexing, scalars
from hloc.kernels.builder import within
from hloc.kernels.elements import Elements, Indices, Rule, Steps, elements_at
from hloc.kernels.indexing import Index
from hloc.kernels.ir import INDEX, Apply, Const, Expr, Load
from hloc.kernels.walks import with_parts
from hloc.ops.table import SCALARS

LONGEST_CHOICE = 4096           # runs of equal values of an array, each of which is a constant in the code


def elementwise(e: Elements, instruction: Instruction, index: Indices) -> Steps:
    arguments = yield from elements_at(instruction.operands, index)
    if instruction.opcode == "select" and e.builder.loads_first:
        arguments[1:] = [loads_before(e, value) for value in arguments[1:]]
    return scalars.elementwise(instruction, arguments, e.unrounded)


def loads_before(e: Elements, value: Expr) -> Expr:
    """The value with names for all loads in it: a compiler then loads regardless of a condition."""
    if isinstance(value, Load):
        return e.builder.let(value)
    return with_parts(value, lambda part: loads_before(e, part))


def map_(e: Elements, instruction: Instruction, index: Indices) -> Steps:
    arguments = yield from elements_at(instruction.operands, index)
    return e.inline(instruction.get("to_apply"), arguments, instruction)[0]


def constant(e: Elements, instruction: Instruction, index: Indices) -> Steps:
    yield from ()
    literal = instruction.literal
    if literal is None:
        raise elided_constant(instruction.span)
    if instruction.shape.num_elements > 1:
        return element_of_constant(e, instruction, index)
    return scalars.literal(literal, instruction.shape.element_type)


def element_of_constant(e: Elements, constant: Instruction, index: Indices) -> Expr:
    """One of the values of an array, in a function of scalars: selected by bisection, as an expression for any
    template."""
    type, values = constant.shape.element_type, np.asarray(constant.literal).ravel()
    place = indexing.linearize(index, constant.shape.dimensions)
    low, high = (min(max(n, 0), len(values) - 1) for n in indexing.bounds(place))       # a pad may ask outside of it
    bits = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)
    starts = [low, *(low + 1 + np.flatnonzero((bits[low + 1:high + 1] != bits[low:high]).any(axis=1))).tolist()]
    if len(starts) > LONGEST_CHOICE:
        raise UnsupportedError(f"an array constant of more than {LONGEST_CHOICE:,} values inside a function of scalars",
                               constant.span)

    def chosen(first: int, last: int) -> Expr:
        """The value among the runs of equal values from `first` to `last`."""
        if first == last:
            return scalars.literal(values[starts[first]], type)
        middle = (first + last) // 2
        is_before = Apply("compare_lt", (position, Const(starts[middle + 1], INDEX)), "pred")
        left, right = chosen(first, middle), chosen(middle + 1, last)
        return Apply("select", (is_before, left, right), left.type)

    position = e.builder.position(place)
    return chosen(0, len(starts) - 1)


def iota(e: Elements, instruction: Instruction, index: Indices) -> Steps:
    yield from ()
    dimension = instruction.get("iota_dimension", 0)
    high = instruction.shape.dimensions[dimension]
    return scalars.from_index(e.builder.position(index[dimension]), high, instruction.shape.element_type)


def broadcast(e: Elements, instruction: Instruction, index: Indices) -> Steps:
    operand = instruction.operands[0]
    dimensions = instruction.get("dimensions", ())
    wanted = tuple(indexing.ZERO if operand.shape.dimensions[i] == 1 else index[d] for i, d in enumerate(dimensions))
    return (yield operand, wanted)


def reshape(e: Elements, instruction: Instruction, index: Indices) -> Steps:
    operand = instruction.operands[0]
    wanted = indexing.reshape(index, instruction.shape.dimensions, operand.shape.dimensions)
    value = yield operand, wanted
    if operand.shape.element_type != instruction.shape.element_type:
        return scalars.bitcast(value, operand.shape.element_type, instruction.shape.element_type, instruction)
    return value


def transpose(e: Elements, instruction: Instruction, index: Indices) -> Steps:
    wanted: list = [indexing.ZERO] * len(index)
    for position, dimension in enumerate(instruction.get("dimensions", ())):
        wanted[dimension] = index[position]
    return (yield instruction.operands[0], tuple(wanted))


def slice_(e: Elements, instruction: Instruction, index: Indices) -> Steps:
    wanted = tuple(indexing.shift(indexing.scale(i, s.stride), s.start)
                   for i, s in zip(index, instruction.get("slice")))
    return (yield instruction.operands[0], wanted)


def reverse(e: Elements, instruction: Instruction, index: Indices) -> Steps:
    turned = instruction.get("dimensions", ())
    sizes = instruction.shape.dimensions
    wanted = tuple(indexing.subtract(indexing.constant(sizes[d] - 1), i) if d in turned else i
                   for d, i in enumerate(index))
    return (yield instruction.operands[0], wanted)


def pad(e: Elements, instruction: Instruction, index: Indices) -> Steps:
    operand, fill = instruction.operands
    value = yield fill, ()
    wanted, conditions = padded_index(e, index, instruction.get("padding"), operand.shape.dimensions)
    if not conditions:
        return (yield operand, wanted)
    return (yield from guarded(e, operand, wanted, conditions, value))


def padded_index(e: Elements, index: Indices, padding: tuple, sizes: tuple[int, ...]) -> tuple[Indices, list[Expr]]:
    """The source position of an element of a pad, and the conditions for it not to be the fill value."""
    wanted: list[Index] = []
    conditions: list[Expr] = []
    for i, p, size in zip(index, padding, sizes):
        source, needed = undilated(e, indexing.shift(i, -p.low), p.interior + 1, size)
        conditions += needed
        wanted.append(source)
    return tuple(wanted), conditions


def undilated(e: Elements, place: Index, dilation: int, size: int) -> tuple[Index, list[Expr]]:
    """The element at a place of `size` elements with `dilation` - 1 gaps between them, and the conditions for there to
    be one."""
    conditions: list[Expr] = []
    if dilation > 1:
        rest = indexing.modulo(place, dilation)
        if rest.terms or rest.constant:
            conditions.append(Apply("compare_eq", (e.builder.position(rest), Const(0, INDEX)), "pred"))
        place = indexing.floor_divide(place, dilation)
    return place, conditions + within(place, size, e.builder)


def guarded(e: Elements, operand: Instruction, wanted: Indices, conditions: list[Expr], otherwise: Expr) -> Steps:
    """The operand's element where all conditions hold, else `otherwise`; nothing is loaded outside."""
    result = e.builder.mutable(otherwise.type, otherwise)
    with e.builder.guard(conditions):
        value = yield operand, wanted
        e.builder.assign(result, value)
    return result


def concatenate(e: Elements, instruction: Instruction, index: Indices) -> Steps:
    dimension = instruction.get("dimensions")[0]
    low, high = indexing.bounds(index[dimension])
    pieces = []
    start = 0
    for operand in instruction.operands:
        size = operand.shape.dimensions[dimension]
        if size and start <= high and start + size > low:
            pieces.append((operand, start, size))
        start += size
    type = scalars.computation_type(instruction.shape.element_type)
    result = None
    for operand, start, size in pieces:
        source = indexing.shift(index[dimension], -start)
        wanted = (*index[:dimension], source, *index[dimension + 1:])
        conditions = within(source, size, e.builder)
        if not conditions:
            return (yield operand, wanted)
        if result is None:
            result = e.builder.mutable(type, zero(type))
        with e.builder.guard(conditions):
            value = yield operand, wanted
            e.builder.assign(result, value)
    return result if result is not None else zero(type)


def zero(type: str) -> Const:
    return Const({"pred": False, "f32": 0.0, "f64": 0.0, "c64": 0j, "c128": 0j}.get(type, 0), type)


def forward(e: Elements, instruction: Instruction, index: Indices) -> Steps:
    return (yield instruction.operands[0], index)


MOVEMENT_RULES: dict[str, Rule] = {
    "map": map_, "constant": constant, "iota": iota, "broadcast": broadcast, "reshape": reshape,
    "bitcast": reshape, "transpose": transpose, "slice": slice_, "reverse": reverse, "pad": pad,
    "concatenate": concatenate, "copy": forward, "optimization-barrier": forward, "opt-barrier": forward,
    "reduce-precision": elementwise, "compare": elementwise, "convert": elementwise,
    "stochastic-convert": elementwise, "bitcast-convert": elementwise,
}
ELEMENTWISE_RULES: dict[str, Rule] = {row.opcode: elementwise for row in SCALARS.values()
                                      if row.opcode not in MOVEMENT_RULES}
