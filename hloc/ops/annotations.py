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
from dataclasses import replace

from hloc.ir import Shape, parts_of
from hloc.ops.meshes import axes_problem
from hloc.sharding.annotation import Iota, Sharding
from hloc.sharding.text import parse_sharding

_STRING = re.compile(r'"[^"]*"|/\*.*?\*/')
_ORIGIN_TOKEN = re.compile(r"\(|\)|\{[^{}()]*(?:\{[^{}()]*\})?[^{}()]*\}")


def composite_problem(attributes: str) -> str | None:
    """The frontend attributes of a composite call hold its name and, optionally, its version, a whole number."""
    if not re.search(r"""composite\.name=\s*(?:\{|["'][^"'])""", attributes):
        return "a composite call needs the frontend attribute composite.name"
    version = re.search(r"""composite\.version=\s*["']([^"']*)""", attributes)
    if version and not re.fullmatch(r"\s*\+?\d+\s*", version[1]):
        return f"composite.version is a number from 0 on, not {version[1]}"
    return None


def sharding_problem(text: str, shape: Shape, partitions: int = 1) -> str | None:
    """What XLA's verifier would say where the module runs in so many partitions (1: any number of devices may be
    named). Raises ParseError for what is no sharding."""
    sharding, parts = parse_sharding(text), parts_of(shape)
    if sharding.kind != "tuple":
        return next(filter(None, (_array_problem(sharding, part, partitions) for part in parts)), None)
    if not shape.is_aggregate:
        return "a list of shardings belongs to a tuple"
    if len(sharding.parts) != max(len(parts), 1):
        return f"there are {len(sharding.parts)} shardings, {shape.to_string(False)} has {len(parts)} parts"
    return next(filter(None, (_array_problem(*pair, partitions) for pair in zip(sharding.parts, parts))), None)


def _array_problem(sharding: Sharding, shape: Shape, partitions: int) -> str | None:
    """The number of tile dimensions is the shape's, besides those of subgroups; each device is named once."""
    text = str(replace(sharding, metadata=""))
    if sharding.kind == "named":
        return _mesh_problem(text, sharding, shape, partitions)
    if sharding.kind == "maximal":
        outside = partitions > 1 and not 0 <= (sharding.device or 0) < partitions
        return f"{text} is no device of {partitions}" if outside else None
    if sharding.kind != "tiled":
        return None
    count = math.prod(sharding.tiles)
    if partitions > 1 and count != partitions:
        return f"{text} names {count} devices, the module has {partitions} partitions"
    if isinstance(sharding.devices, Iota):
        if count != math.prod(sharding.devices.sizes):
            return f"{text}: the tiles and the devices differ in number"
    else:
        devices = sharding.devices or ()
        if len(set(devices)) != len(devices):
            return f"{text} names a device twice"
        if partitions > 1 and max(devices, default=0) >= partitions:
            return f"{text} names device {max(devices)} of {partitions}"
    if shape.is_array and sharding.data_rank != shape.rank:
        return f"{text} has {sharding.data_rank} tile dimensions, {shape.to_string(False)} has {shape.rank}"
    return None


def _mesh_problem(text: str, sharding: Sharding, shape: Shape, partitions: int) -> str | None:
    """A list of axes for each dimension, if there are lists; as many devices as partitions; axes of the mesh."""
    if sharding.mesh is None:
        return None
    devices = sharding.mesh.size
    named = any(d.axes for d in sharding.dimensions) or any(role.axes for role in sharding.roles)
    if partitions > 1 and named and devices != partitions:
        return f"{text} has {devices} devices, the module has {partitions} partitions"
    lists = len(sharding.dimensions)
    if not sharding.word and shape.is_array and lists != shape.rank:
        return f"{text} has {lists} lists of axes, {shape.to_string(False)} has {shape.rank} dimensions"
    problem = axes_problem(text)
    return problem and f"{text}: {problem}"


def origin_problem(text: str, shape: Shape) -> str | None:
    """The tuples of an origin are those of the shape; an origin of a generated call has none."""
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
    found: set[tuple[int, ...]] = set()
    pending: list[tuple[Shape, tuple[int, ...]]] = [(shape, ())]
    while pending:
        top, place = pending.pop()
        if not top.is_aggregate:
            found.add(place)
        else:
            pending.extend((part, (*place, n)) for n, part in enumerate(top.tuple_shapes))
    return found
