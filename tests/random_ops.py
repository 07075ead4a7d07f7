"""The kinds of instructions in random modules (random_modules.py): each function writes one, with what it needs.

    elementwise(body)      e.g. adds   maximum.7 = f32[2,3] maximum(p.1, iota.5)

A maker that finds nothing to do writes nothing. Dimension numbers, windows and paddings are drawn freely; result shapes
are computed here a second time, so that the verifier's shape rules are checked against them.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from random_body import Body, Value, braces, joined, may_convert

from hloc.ir import ELEMENT_TYPES
from hloc.ir.types import ARRAY_TYPES
from hloc.ops.table import OPS

NUMERIC = tuple(t for t in ARRAY_TYPES if ELEMENT_TYPES[t].kind in ("signed", "unsigned", "float"))
SUMMED = ("f32", "f32", "s32", "f64", "bf16", "f16", "s8", "u32", "c64")
REAL = {"c64": "f32", "c128": "f64"}
HAS_OWN_MAKER = {"convert", "reduce-precision", "stochastic-convert", "complex"}
ELEMENTWISE = sorted(name for name, row in OPS.items() if row.is_elementwise and name not in HAS_OWN_MAKER)
USUAL = ("add", "multiply", "subtract", "maximum", "minimum", "select", "compare", "negate", "tanh", "and", "divide")


def usable(types) -> tuple[str, ...]:
    return tuple(sorted(t for t in types if ELEMENT_TYPES[t].dtype is not None))


# -- elementwise -------------------------------------------------------------------------------------------------------

def elementwise(body: Body) -> None:
    """Any op that has a scalar form, on a type of its domain."""
    row = OPS[body.choices.pick(USUAL) if body.choices.chance(50) else body.choices.pick(ELEMENTWISE)]
    special = {"select": select, "clamp": clamp, "compare": compare}.get(row.opcode)
    if special:
        return special(body)
    first = body.some(types=usable(row.domain))
    if row.opcode in ("maximum", "minimum") and first.kind == "complex":
        return None
    operands = [first] + [body.like(first.type, first.dims) for _ in range(row.least_operands - 1)]
    result = first.type
    if row.opcode in ("abs", "real", "imag"):
        result = REAL.get(result, result)
    elif row.opcode == "is-finite":
        result = "pred"
    body.emit(result, first.dims, row.opcode, operands)


def select(body: Body) -> None:
    value = body.some()
    predicate = body.like("pred", () if body.choices.chance(25) else value.dims)
    body.emit(value.type, value.dims, "select", [predicate, value, body.like(value.type, value.dims)])


def clamp(body: Body) -> None:
    value = body.some(types=NUMERIC)
    bounds = [body.like(value.type, () if body.choices.chance(50) else value.dims) for _ in range(2)]
    body.emit(value.type, value.dims, "clamp", [bounds[0], value, bounds[1]])


def compare(body: Body) -> None:
    value = body.some()
    other = body.like(value.type, value.dims)
    direction = body.choices.pick(("EQ", "NE") if value.kind == "complex" else ("LT", "GT", "EQ", "NE", "LE", "GE"))
    total = ["type=TOTALORDER"] if value.kind == "float" and body.choices.chance(20) else []
    body.emit("pred", value.dims, "compare", [value, other], f"direction={direction}", *total)


def convert(body: Body) -> None:
    value, target = body.some(), body.program.element_type()
    if may_convert(value.type, target):
        body.emit(target, value.dims, "convert", [value])


def bitcast_convert(body: Body) -> None:
    value = body.some(lambda v: v.kind not in ("pred", "complex") and ELEMENT_TYPES[v.type].bits >= 8)
    target = body.choices.pick(usable(t for t in NUMERIC if ELEMENT_TYPES[t].bits >= 8))
    have, want = ELEMENT_TYPES[value.type].bits, ELEMENT_TYPES[target].bits
    if value.kind in ("pred", "complex") or have < 8:
        return
    if have == want:
        body.emit(target, value.dims, "bitcast-convert", [value])
    elif have > want:
        body.emit(target, (*value.dims, have // want), "bitcast-convert", [value])
    elif value.dims and value.dims[-1] == want // have:
        body.emit(target, value.dims[:-1], "bitcast-convert", [value])


def reduce_precision(body: Body) -> None:
    value = body.some(types=("f32", "f16", "bf16", "f64"))
    bits = body.choices.pick(((5, 10), (8, 7), (4, 3), (8, 23), (2, 2), (5, 2)))
    body.emit(value.type, value.dims, "reduce-precision", [value], f"exponent_bits={bits[0]}",
              f"mantissa_bits={bits[1]}")


def make_complex(body: Body) -> None:
    value = body.some(types=("f32", "f64"))
    other = body.like(value.type, value.dims)
    body.emit({"f32": "c64", "f64": "c128"}[value.type], value.dims, "complex", [value, other])


# -- movement ----------------------------------------------------------------------------------------------------------

def broadcast(body: Body) -> None:
    value = body.some(lambda v: v.size <= 64)
    dims = list(value.dims)
    places = list(range(len(dims)))
    for _ in range(body.choices.integer(0, 2)):
        at = body.choices.integer(0, len(dims))
        dims.insert(at, body.choices.pick((2, 3, 1, 4, 5)))
        places = [p + (p >= at) for p in places]
    if math.prod(dims) <= body.program.most_elements:
        body.emit(value.type, dims, "broadcast", [value], f"dimensions={braces(places)}")


def factors(body: Body, size: int) -> list[int]:
    """Dimensions with `size` elements."""
    if size == 0:
        return body.choices.pick(([0], [0, 3], [2, 0], [1, 0, 2]))
    dims = []
    for factor in (2, 2, 3, 2, 5, 7):
        if size % factor == 0 and size > factor and body.choices.chance(50):
            dims.append(factor)
            size //= factor
    dims = body.choices.order([*dims, size] if size > 1 or body.choices.chance(30) else dims)
    if body.choices.chance(30):
        dims.insert(body.choices.integer(0, len(dims)), 1)
    return dims


def reshape(body: Body) -> None:
    value = body.some()
    body.emit(value.type, factors(body, value.size), "reshape", [value])


def bitcast(body: Body) -> None:
    value = body.some()
    if not body.program.layouts:
        body.emit(value.type, factors(body, value.size), "bitcast", [value])
        return
    order = body.choices.order(range(len(value.dims)))
    if order:
        body.emit(value.type, [value.dims[d] for d in order], "bitcast", [value])


def transpose(body: Body) -> None:
    value = body.some(lambda v: len(v.dims) > 1, rank=None)
    order = body.choices.order(range(len(value.dims)))
    body.emit(value.type, [value.dims[d] for d in order], "transpose", [value], f"dimensions={braces(order)}")


def slice_(body: Body) -> None:
    value = body.some(lambda v: len(v.dims) > 0)
    parts, dims = [], []
    for size in value.dims:
        start = body.choices.integer(0, size) if body.choices.chance(50) else 0
        limit = body.choices.integer(start, size) if body.choices.chance(50) else size
        stride = body.choices.pick((1, 1, 1, 2, 3))
        parts.append(f"[{start}:{limit}:{stride}]" if stride > 1 else f"[{start}:{limit}]")
        dims.append(-(-(limit - start) // stride))
    body.emit(value.type, dims, "slice", [value], f"slice={{{', '.join(parts)}}}")


def reverse(body: Body) -> None:
    value = body.some(lambda v: len(v.dims) > 0)
    which = body.choices.subset(range(len(value.dims)), body.choices.integer(0, len(value.dims)))
    body.emit(value.type, value.dims, "reverse", [value], f"dimensions={braces(which)}")


def pad(body: Body) -> None:
    value = body.some(lambda v: len(v.dims) > 0)
    parts, dims = [], []
    for size in value.dims:
        low, high = body.choices.pick((0, 1, 2, 0, -1)), body.choices.pick((0, 1, 3, 0, -1))
        interior = body.choices.pick((0, 0, 1, 2))
        total = size + low + high + interior * max(size - 1, 0)
        if total < 0:
            low, high, interior, total = 0, 0, 0, size
        parts.append(f"{low}_{high}_{interior}" if interior else f"{low}_{high}")
        dims.append(total)
    if value.dims and math.prod(dims) <= body.program.most_elements:
        body.emit(value.type, dims, "pad", [value, body.like(value.type, ())], f"padding={joined(parts)}")


def concatenate(body: Body) -> None:
    value = body.some(lambda v: len(v.dims) > 0)
    if not value.dims:
        return
    axis = body.choices.integer(0, len(value.dims) - 1)
    parts = [value]
    for _ in range(body.choices.integer(0, 2)):
        size = value.dims[axis] if body.choices.chance(50) else body.choices.integer(0, 4)
        parts.append(body.like(value.type, (*value.dims[:axis], size, *value.dims[axis + 1:])))
    dims = (*value.dims[:axis], sum(p.dims[axis] for p in parts), *value.dims[axis + 1:])
    body.emit(value.type, dims, "concatenate", body.choices.order(parts), f"dimensions={{{axis}}}")


def copy(body: Body) -> None:
    value = body.some()
    body.emit(value.type, value.dims, "copy", [value])


def dynamic_slice(body: Body) -> None:
    value = body.some()
    sizes = [body.choices.integer(min(1, n), n) for n in value.dims]
    starts = starts_for(body, value.dims)
    body.emit(value.type, sizes, "dynamic-slice", [value, *starts], f"dynamic_slice_sizes={braces(sizes)}")


def starts_for(body: Body, dims: Sequence[int]) -> list[Value]:
    """One scalar for each dimension, all of one type."""
    if not dims:
        return []
    first = body.index(dims[0])
    rest = []
    for _ in dims[1:]:
        rest.append(first if body.choices.chance(20) else body.like(first.type, ()))
    return [first, *rest]


def dynamic_update_slice(body: Body) -> None:
    value = body.some()
    sizes = [body.choices.integer(min(1, n), n) for n in value.dims]
    update = body.like(value.type, sizes)
    body.emit(value.type, value.dims, "dynamic-update-slice", [value, update, *starts_for(body, value.dims)])


# -- sorting, random bits ----------------------------------------------------------------------------------------------

def sort(body: Body) -> None:
    key = body.some(lambda v: len(v.dims) > 0, types=usable(t for t in ARRAY_TYPES if ELEMENT_TYPES[t].bits >= 8
                                                             and ELEMENT_TYPES[t].kind != "complex"))
    if not key.dims:
        return
    others = [body.like(body.program.element_type(), key.dims) for _ in range(body.choices.pick((0, 0, 1, 2)))]
    axis = body.choices.integer(0, len(key.dims) - 1)
    operands = [key, *others]
    total = ", type=TOTALORDER" if key.kind == "float" else ""        # with NaN, < alone is no order
    direction = body.choices.pick(("LT", "GT"))
    comparator = sort_comparator(body, [o.type for o in operands], direction, total)
    attributes = [f"dimensions={{{axis}}}", "is_stable=true", f"to_apply={comparator}"]
    if not others:
        body.emit(key.type, key.dims, "sort", operands, *attributes)
        return
    body.emit_tuple([(o.type, o.dims) for o in operands], "sort", operands, *attributes)


def sort_comparator(body: Body, types: Sequence[str], direction: str, total: str) -> str:
    lines = [f"  a{n}.{side} = {t}[] parameter({2 * n + side})" for n, t in enumerate(types) for side in (0, 1)]
    text = "\n".join(lines)
    return body.program.shared(
        f"order {types} {direction}{total}",
        f"$ {{\n{text}\n  ROOT less = pred[] compare(a0.0, a0.1), direction={direction}{total}\n}}\n")


def topk(body: Body) -> None:
    value = body.some(lambda v: len(v.dims) in (1, 2) and v.dims[-1] > 0, types=("f32", "bf16", "f32"))
    if not value.dims or not value.dims[-1] or len(value.dims) > 2:
        return
    dims = (*value.dims[:-1], body.choices.integer(1, value.dims[-1]))
    largest = "false" if body.choices.chance(20) else "true"
    body.emit_tuple([(value.type, dims), ("s32", dims)], "topk", [value], f"k={dims[-1]}", f"largest={largest}")


def random_bits(body: Body) -> None:
    state = body.like("u64", (2,))
    target = body.choices.pick(("u32", "u64", "u8", "u16"))
    body.emit_tuple([("u64", (2,)), (target, body.program.dims())], "rng-bit-generator", [state],
                "algorithm=rng_three_fry")


def barrier(body: Body) -> None:
    values = [body.some() for _ in range(body.choices.integer(1, 3))]
    shapes = [(v.type, v.dims) for v in values]
    texts = ", ".join(body.program.shape(t, d, plain=True) for t, d in shapes)
    group = body.line(f"({texts})", "tuple", values)
    body.emit_tuple(shapes, "opt-barrier", [group])


MakerTable = dict[Callable[[Body], None], int]
BASIC: MakerTable = {
    elementwise: 30, convert: 4, bitcast_convert: 2, reduce_precision: 1, make_complex: 1, broadcast: 5, reshape: 5,
    bitcast: 2, transpose: 5, slice_: 5, reverse: 2, pad: 4, concatenate: 4, copy: 1, dynamic_slice: 3,
}
STRUCTURED: MakerTable = {dynamic_update_slice: 3, sort: 2, topk: 1, random_bits: 1, barrier: 1}


def repeated(table: MakerTable) -> list[Callable[[Body], None]]:
    return [maker for maker, weight in table.items() for _ in range(weight)]
