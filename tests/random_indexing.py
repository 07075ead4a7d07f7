"""Reductions, windows, gather and scatter in random modules: the kinds of instructions with much to choose."""
from __future__ import annotations

import math
from collections.abc import Sequence

from random_body import Body, braces, joined, largest

from hloc.ir import ELEMENT_TYPES

COMBINERS = {"float": ("add", "maximum", "minimum", "multiply"), "complex": ("add", "multiply"), "pred": ("and", "or"),
             "signed": ("add", "maximum", "minimum", "multiply", "and", "or", "xor"),
             "unsigned": ("add", "maximum", "minimum", "or")}
REDUCED = ("f32", "f32", "f32", "s32", "pred", "f64", "bf16", "f16", "u32", "s64", "c64", "u8")
INDEX_TYPES = ("s32", "s32", "s64", "u32", "s8", "u8")


def combiner(body: Body, opcode: str, element_type: str) -> str:
    return body.program.shared(
        f"{opcode} {element_type}",
        f"$ {{\n  a = {element_type}[] parameter(0)\n  b = {element_type}[] parameter(1)\n"
        f"  ROOT r = {element_type}[] {opcode}(a, b)\n}}\n")


def identity(opcode: str, element_type: str) -> str:
    kind, bits = ELEMENT_TYPES[element_type].kind, ELEMENT_TYPES[element_type].bits
    if kind == "pred":
        return "true" if opcode == "and" else "false"
    if kind == "complex":
        return "(0, 0)" if opcode == "add" else "(1, 0)"
    if opcode in ("maximum", "minimum"):
        if kind == "float":
            return "-inf" if opcode == "maximum" else "inf"
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind == "signed" else (0, (1 << bits) - 1)
        return str(low if opcode == "maximum" else high)
    return {"multiply": "1", "and": "-1"}.get(opcode, "0")


def reduce(body: Body) -> None:
    if body.choices.chance(15):
        return arg_reduce(body)
    value = body.some(types=REDUCED)
    opcode = body.choices.pick(COMBINERS[value.kind])
    which = body.choices.subset(range(len(value.dims)), body.choices.integer(0, len(value.dims)))
    if body.choices.chance(75):
        start = body.emit(value.type, (), "constant", [identity(opcode, value.type)])
    else:
        start = body.like(value.type, ())
    dims = [n for d, n in enumerate(value.dims) if d not in which]
    body.emit(value.type, dims, "reduce", [value, start], f"dimensions={braces(which)}",
              f"to_apply={combiner(body, opcode, value.type)}")


ARG_MAX = """$ {
  a = f32[] parameter(0)
  i = s32[] parameter(1)
  b = f32[] parameter(2)
  j = s32[] parameter(3)
  more = pred[] compare(a, b), direction=GT
  same = pred[] compare(a, b), direction=EQ
  strange = pred[] compare(a, a), direction=NE
  before = pred[] compare(i, j), direction=LT
  tie = pred[] and(same, before)
  first = pred[] or(more, strange)
  take = pred[] or(first, tie)
  value = f32[] select(first, a, b)
  place = s32[] select(take, i, j)
  ROOT r = (f32[], s32[]) tuple(value, place)
}
"""


def arg_reduce(body: Body) -> None:
    """The largest and its place, as JAX writes it: two arrays reduced at once."""
    value = body.some(lambda v: len(v.dims) > 0, types=("f32",))
    if not value.dims:
        return
    axis = body.choices.integer(0, len(value.dims) - 1)
    place = body.emit("s32", value.dims, "iota", (), f"iota_dimension={axis}")
    low = body.emit("f32", (), "constant", ["-inf"])
    none = body.emit("s32", (), "constant", ["0"])
    dims = [n for d, n in enumerate(value.dims) if d != axis]
    body.emit_tuple([("f32", dims), ("s32", dims)], "reduce", [value, place, low, none], f"dimensions={{{axis}}}",
                f"to_apply={body.program.shared('argmax', ARG_MAX)}")


def windowed(body: Body, size: int, dilate_base: bool = True) -> tuple[int, int, int, int, int, int, int]:
    """Size, stride, low, high, base dilation, window dilation of one window dimension, and the number of places."""
    choices = body.choices
    edges = body.program.edges
    window, stride = choices.pick((2, 1, 3, 5, 7) if edges else (2, 1, 3)), choices.pick((1, 1, 2, 3))
    paddings = (0, 0, 1, -1, 2, -2, 7) if edges else (0, 0, 1, 2)
    low, high = choices.pick(paddings), choices.pick(paddings)
    dilations = (1, 2, 1, 3) if edges else (1, 1, 1, 2)
    base = choices.pick(dilations) if dilate_base else 1
    spread = choices.pick(dilations) if dilate_base else 1
    if choices.chance(5):
        low = -1
    padded = ((size - 1) * base + 1 if size else 0) + low + high
    reach = (window - 1) * spread + 1
    if padded < 0:
        low, padded = low - padded, 0
    return window, stride, low, high, base, spread, (padded - reach) // stride + 1 if padded >= reach else 0


def window_text(parts: Sequence[tuple], reversal: Sequence[int] = ()) -> str:
    text = f"window={{size={joined([p[0] for p in parts])} stride={joined([p[1] for p in parts])} " \
           f"pad={joined([f'{p[2]}_{p[3]}' for p in parts])} lhs_dilate={joined([p[4] for p in parts])} " \
           f"rhs_dilate={joined([p[5] for p in parts])}"
    return text + (f" rhs_reversal={joined(reversal)}}}" if any(reversal) else "}")


def reduce_window(body: Body) -> None:
    value = body.some(lambda v: len(v.dims) > 0, types=REDUCED)
    if not value.dims:
        return
    opcode = body.choices.pick(COMBINERS[value.kind])
    parts = [windowed(body, n) if body.choices.chance(60) else (1, 1, 0, 0, 1, 1, n) for n in value.dims]
    dims = [p[6] for p in parts]
    if math.prod(dims) > body.program.most_elements:
        return
    start = body.emit(value.type, (), "constant", [identity(opcode, value.type)])
    body.emit(value.type, dims, "reduce-window", [value, start], window_text(parts),
              f"to_apply={combiner(body, opcode, value.type)}")


def select_and_scatter(body: Body) -> None:
    value = body.some(lambda v: 0 < len(v.dims) and v.size > 0, types=("f32", "f64", "s32"))
    if not value.dims or not value.size:
        return
    parts = [windowed(body, n, dilate_base=False) for n in value.dims]
    source = body.like(value.type, [p[6] for p in parts])
    start = body.emit(value.type, (), "constant", ["0"])
    select = body.program.shared(
        f"choose {value.type}", f"$ {{\n  a = {value.type}[] parameter(0)\n  b = {value.type}[] parameter(1)\n"
        "  ROOT r = pred[] compare(a, b), direction=GE\n}\n")
    body.emit(value.type, value.dims, "select-and-scatter", [value, source, start], window_text(parts),
              f"select={select}", f"scatter={combiner(body, 'add', value.type)}")


# -- gather and scatter ------------------------------------------------------------------------------------------------

def indexed(body: Body, dims) -> tuple:
    """What gather and scatter share: mapped dimensions, window sizes, dropped dimensions, batch sizes and the indices.

    The window has size 1 in dropped dimensions; the others are window dimensions of the result, or of the update.
    """
    choices = body.choices
    rank = len(dims)
    mapped = choices.order(range(rank))[:choices.integer(0 if choices.chance(10) else 1, rank)]
    sizes = [choices.integer(min(1, n), n) if d not in mapped or choices.chance(40) else min(1, n)
             for d, n in enumerate(dims)]
    dropped = [d for d in range(rank) if sizes[d] == 1 and choices.chance(60)]
    batch = [choices.pick((2, 3, 1, 5, 4, 0)) for _ in range(choices.pick((1, 0, 2, 1)))]
    place = choices.integer(0, len(batch))
    if len(mapped) == 1 and choices.chance(50):
        place, shape = len(batch), batch
    else:
        shape = [*batch[:place], len(mapped), *batch[place:]]
    indices = index_array(body, shape, max(dims, default=1))
    kept = [sizes[d] for d in range(rank) if d not in dropped]
    window = choices.subset(range(len(kept) + len(batch)), len(kept))
    left_batch, left_window = list(batch), list(kept)
    result = [left_window.pop(0) if d in window else left_batch.pop(0) for d in range(len(kept) + len(batch))]
    return mapped, sizes, dropped, place, indices, window, result


def index_array(body: Body, shape, limit: int):
    """Indices: an iota, a constant or any integers, which are rarely all inside."""
    choices = body.choices
    element_type = choices.pick(INDEX_TYPES)
    if math.prod(shape) <= 12 and choices.chance(60):
        low = 0 if element_type.startswith("u") else -1
        high = min(limit, largest(element_type))
        numbers = [choices.integer(low, high) for _ in range(math.prod(shape))]
        flat = body.emit(element_type, (len(numbers),), "constant", ["{" + ", ".join(map(str, numbers)) + "}"])
        return body.emit(element_type, shape, "reshape", [flat])
    return body.like(element_type, shape)


def gather(body: Body) -> None:
    value = body.some(lambda v: len(v.dims) > 0)
    if not value.dims:
        return
    mapped, sizes, dropped, place, indices, window, result = indexed(body, value.dims)
    if math.prod(result) > body.program.most_elements:
        return
    body.emit(value.type, result, "gather", [value, indices], f"offset_dims={braces(window)}",
              f"collapsed_slice_dims={braces(dropped)}", f"start_index_map={braces(mapped)}",
              f"index_vector_dim={place}", f"slice_sizes={braces(sizes)}")


def scatter(body: Body) -> None:
    value = body.some(lambda v: len(v.dims) > 0, types=REDUCED)
    if not value.dims:
        return
    mapped, _, dropped, place, indices, window, result = indexed(body, value.dims)
    if math.prod(result) > body.program.most_elements:
        return
    opcode = body.choices.pick(COMBINERS[value.kind])
    update = body.like(value.type, result)
    body.emit(value.type, value.dims, "scatter", [value, indices, update], f"update_window_dims={braces(window)}",
              f"inserted_window_dims={braces(dropped)}", f"scatter_dims_to_operand_dims={braces(mapped)}",
              f"index_vector_dim={place}", f"to_apply={combiner(body, opcode, value.type)}")


INDEXING = {reduce: 8, reduce_window: 3, select_and_scatter: 1, gather: 4, scatter: 4}
