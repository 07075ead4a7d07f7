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
from hloc.ops.meshes import axes_problem

_ONE = re.compile(r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")
_TILES = re.compile(r"devices=\s*\[([\d,\s]+)\]\s*(?:<=\s*\[([\d,\s]+)\]|((?:\d+\s*,?\s*)*))")
_MESH = re.compile(r"(?<![a-z_])mesh\[([^\[\]]*)\]")
_MAXIMAL = re.compile(r"maximal\s+device=(-?\d+)")
_STRING = re.compile(r'"[^"]*"|/\*.*?\*/')
_ORIGIN_TOKEN = re.compile(r"\(|\)|\{[^{}()]*(?:\{[^{}()]*\})?[^{}()]*\}")
_SUBGROUPS = re.compile(r"last_tile_dims=\{([^{}]*)\}")


def composite_problem(attributes: str) -> str | None:
    """The frontend attributes of a composite call tell its name and, where it has one, its version, a whole number."""
    if not re.search(r"""composite\.name=\s*(?:\{|["'][^"'])""", attributes):
        return "a composite call needs the frontend attribute composite.name"
    version = re.search(r"""composite\.version=\s*["']([^"']*)""", attributes)
    if version and not re.fullmatch(r"\s*\+?\d+\s*", version[1]):
        return f"composite.version is a number from 0 on, not {version[1]}"
    return None


def sharding_problem(text: str, shape: Shape, partitions: int = 1) -> str | None:
    """What XLA's verifier would say where the module runs in so many partitions (1: any number of devices may be
    named)."""
    text = re.sub(r"metadata=\{(?:[^{}]|\{[^{}]*\})*\}", "", _STRING.sub(_short, text)).strip()
    inner = text[1:-1].strip()
    if not (inner.startswith("{") or not inner):
        return next(filter(None, (_array_problem(text, part, partitions) for part in _parts(shape))), None)
    given, parts = _ONE.findall(inner), _parts(shape)
    if shape.tuple_shapes is None:
        return "a list of shardings belongs to a tuple"
    if len(given) != max(len(parts), 1):
        return f"there are {len(given)} shardings, {shape.to_string(False)} has {len(parts)} parts"
    return next(filter(None, (_array_problem(*pair, partitions) for pair in zip(given, parts))), None)


def _short(found: re.Match) -> str:
    """For a string one without brackets, for a comment nothing."""
    return "'_'" if found.group().startswith('"') else ""


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


def _array_problem(text: str, shape: Shape, partitions: int) -> str | None:
    """Tile dimensions as many as the shape's, besides those of subgroups; each device once, and every partition."""
    mesh = _MESH.search(text)
    if mesh:
        return _mesh_problem(text, mesh, shape, partitions)
    match = _TILES.search(text)
    if match is None:
        single = _MAXIMAL.search(text)
        outside = single and partitions > 1 and not 0 <= int(single[1]) < partitions
        return f"{text} is no device of {partitions}" if outside else None
    tiles = _numbers(match[1])
    subgroups = _SUBGROUPS.search(text)
    extra = len(subgroups[1].split(",")) if subgroups else int("last_tile_dim_replicate" in text)
    if partitions > 1 and math.prod(tiles) != partitions:
        return f"{text} names {math.prod(tiles)} devices, the module has {partitions} partitions"
    if match[2]:
        if math.prod(tiles) != math.prod(_numbers(match[2])):
            return f"{text}: the tiles and the devices differ in number"
    else:
        devices = _numbers(match[3])
        if len(set(devices)) != len(devices):
            return f"{text} names a device twice"
        if partitions > 1 and max(devices, default=0) >= partitions:
            return f"{text} names device {max(devices)} of {partitions}"
    if shape.is_array and len(tiles) - extra != shape.rank:
        return f"{text} has {len(tiles) - extra} tile dimensions, {shape.to_string(False)} has {shape.rank}"
    return None


def _mesh_problem(text: str, mesh: re.Match, shape: Shape, partitions: int) -> str | None:
    """A list of axes for each dimension, where there are lists; as many devices as partitions; axes of the mesh."""
    devices = math.prod(_numbers("".join(re.findall(r"=\s*\d+", mesh[1]))))
    if partitions > 1 and re.search(r"['\"][^'\"]+['\"]", text[mesh.end():]) and devices != partitions:
        return f"{text} has {devices} devices, the module has {partitions} partitions"
    axes = re.search(r"[\])]\s*,\s*\[([^\[\]]*)\]", text[mesh.end() - 1:])
    if axes and shape.is_array and axes[1].count("{") != shape.rank:
        return f"{text} has {axes[1].count('{')} lists of axes, {shape.to_string(False)} has {shape.rank} dimensions"
    problem = axes_problem(text)
    return problem and f"{text}: {problem}"


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
