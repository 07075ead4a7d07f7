"""Annotations that must fit the shape that they are written on: sharding, origin.

In: the text of the attribute and a shape. Out: what is wrong, or None.

    sharding_problem("{devices=[2,1]<=[2]}", f32[4,4])      None
    sharding_problem("{devices=[2]<=[2]}", f32[4,4])        "{devices=[2]<=[2]} has 1 tile dimensions, f32[4,4] has 2"
    origin_problem('{({"a"},{"b"})}', f32[4])               "it is made of other parts than f32[4]"

Source: xla/hlo/ir/hlo_sharding.cc (HloSharding::Validate), xla/service/hlo_verifier.cc.
"""
from __future__ import annotations

import math
import re

from hloc.ir import Shape

_ONE = re.compile(r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")
_TILES = re.compile(r"devices=\s*\[([\d,\s]+)\]\s*(?:<=\s*\[([\d,\s]+)\]|((?:\d+\s*,?\s*)*))")
_STRING = re.compile(r'"[^"]*"|/\*.*?\*/')
_ORIGIN_TOKEN = re.compile(r"\(|\)|\{[^{}()]*(?:\{[^{}()]*\})?[^{}()]*\}")
_SUBGROUPS = re.compile(r"last_tile_dims=\{([^{}]*)\}")


def sharding_problem(text: str, shape: Shape) -> str | None:
    """What XLA's verifier would say; meshes are taken as they are."""
    if "mesh[" in text:
        return None
    text = re.sub(r"metadata=\{(?:[^{}]|\{[^{}]*\})*\}", "", _STRING.sub("", text)).strip()
    inner = text[1:-1].strip()
    if not (inner.startswith("{") or not inner):
        return next(filter(None, (_array_problem(text, part) for part in _parts(shape))), None)
    given, parts = _ONE.findall(inner), _parts(shape)
    if shape.tuple_shapes is None:
        return "a list of shardings belongs to a tuple"
    if len(given) != max(len(parts), 1):
        return f"there are {len(given)} shardings, {shape.to_string(False)} has {len(parts)} parts"
    return next(filter(None, map(_array_problem, given, parts)), None)


def _parts(shape: Shape) -> list[Shape]:
    """All parts that are no tuples, in order."""
    found, pending = [], [shape]
    while pending:
        top = pending.pop()
        if top.tuple_shapes is None:
            found.append(top)
        else:
            pending.extend(reversed(top.tuple_shapes))
    return found


def _array_problem(text: str, shape: Shape) -> str | None:
    """Tile dimensions as many as the shape's, besides those of subgroups; each device once."""
    match = _TILES.search(text)
    if match is None:
        return None
    tiles = _numbers(match[1])
    subgroups = _SUBGROUPS.search(text)
    extra = len(subgroups[1].split(",")) if subgroups else int("last_tile_dim_replicate" in text)
    if match[2]:
        if math.prod(tiles) != math.prod(_numbers(match[2])):
            return f"{text}: the tiles and the devices differ in number"
    else:
        devices = _numbers(match[3])
        if len(set(devices)) != len(devices):
            return f"{text} names a device twice"
    if shape.is_array and len(tiles) - extra != shape.rank:
        return f"{text} has {len(tiles) - extra} tile dimensions, {shape.to_string(False)} has {shape.rank}"
    return None


def _numbers(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", text)]


def origin_problem(text: str, shape: Shape) -> str | None:
    """The tuples of an origin are those of the shape; what comes from a call that was made up has none."""
    inner = _STRING.sub("", text).strip()[1:-1].strip()
    if inner.startswith("["):
        return None
    found: set[tuple[int, ...]] = set()
    path: list[int] = []                         # of the tuples that are open, how many parts came so far, less one
    for token in _ORIGIN_TOKEN.findall(inner):
        if token == ")":
            path = path[:-1]
            continue
        if path:
            path[-1] += 1
        if token == "(":
            path.append(-1)
        else:
            found.add(tuple(path))
    return None if found == _leaf_places(shape) else f"it is made of other parts than {shape.to_string(False)}"


def _leaf_places(shape: Shape) -> set[tuple[int, ...]]:
    found, pending = set(), [(shape, ())]
    while pending:
        top, place = pending.pop()
        if top.tuple_shapes is None:
            found.add(place)
        else:
            pending.extend((part, (*place, n)) for n, part in enumerate(top.tuple_shapes))
    return found
