"""A sharding annotation: on which devices the parts of an array, or of each array of a tuple, lie.

    {replicated}                          all of it on every device
    {maximal device=3}                    all of it on one
    {manual}, {unreduced}, {unknown}      a part of its own / one summand on each device / to be found
    {devices=[2,1,4]<=[8] last_tile_dim_replicate}       tiles: two along dimension 0, each on four devices
    {devices=[2,2]0,2,1,3}                the same with the devices written out
    {mesh['x'=2,'y'=4], [{'x'}, {}]}      axes of a mesh along each dimension
    {{replicated}, {manual}}              one for each array of a tuple

`Sharding` holds each of them as it is written; hloc/sharding/text.py reads them and str() prints them as XLA does.
hloc/sharding/meshes.py says them all in axes of one mesh. Source: xla/hlo/ir/hlo_sharding.cc, named_sharding.cc.
"""
from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hloc.phrases import escaped

WORDS = ("replicated", "manual", "unknown", "unreduced")          # shardings of one word
AXIS_ROLES = ("replicated", "unreduced", "manual")                # of a mesh's axes that divide no dimension
LARGEST_DEVICE_COUNT = 1 << 20


class Iota(NamedTuple):
    """Devices by a rule: they count up in `sizes`, and the dimensions of that are put in `order`."""

    sizes: tuple[int, ...]
    order: tuple[int, ...]

    def __str__(self) -> str:
        sorted_order = self.order == tuple(range(len(self.sizes)))
        turned = "" if sorted_order else f"T({listed(self.order)})"
        return f"[{listed(self.sizes)}]{turned}"

    def numbers(self) -> np.ndarray:
        return np.arange(math.prod(self.sizes)).reshape(self.sizes).transpose(self.order)


class AxisUse(NamedTuple):
    """An axis of a mesh, or the part of it of size `size` behind a part of size `before`: 'x':(before)size."""

    name: str
    before: int | None = None
    size: int | None = None

    def __str__(self) -> str:
        part = "" if self.size is None else f":({self.before}){self.size}"
        return f"'{escaped(self.name)}'{part}"


class DimensionAxes(NamedTuple):
    """The axes along which a dimension is divided, the major one first. is_open: a compiler may add more."""

    axes: tuple[AxisUse, ...] = ()
    is_open: bool = False

    def __str__(self) -> str:
        return "{" + ", ".join([*map(str, self.axes), *(["?"] if self.is_open else [])]) + "}"


class Role(NamedTuple):
    """What axes are that divide no dimension; combiner: how the summands of unreduced ones are joined, where not by
    adding them up."""

    name: str
    axes: tuple[AxisUse, ...]
    combiner: str = ""

    def __str__(self) -> str:
        return f"{self.name}={self.combiner}" + "{" + ", ".join(map(str, self.axes)) + "}"


class NamedMesh(NamedTuple):
    """Devices in a grid. axes: names and sizes; devices: in which order they lie there (None: they count up)."""

    axes: tuple[tuple[str, int], ...]
    devices: Iota | tuple[int, ...] | None = None

    @property
    def size(self) -> int:
        return math.prod(size for _, size in self.axes)

    def order(self) -> tuple[int, ...] | None:
        """The devices, the last axis counting fastest; None where they count up."""
        numbers = tuple(self.devices.numbers().reshape(-1).tolist()) if isinstance(self.devices, Iota) else self.devices
        return None if numbers == tuple(range(len(numbers or ()))) else numbers

    def __str__(self) -> str:
        text = "mesh[" + ",".join(f"'{escaped(name)}'={size}" for name, size in self.axes) + "]"
        if self.devices is None:
            return text
        inner = str(self.devices) if isinstance(self.devices, Iota) else listed(self.devices)
        if isinstance(self.devices, Iota) and "T" not in inner:
            inner += f"T({listed(self.devices.order)})"
        return f"{text}, device_ids=({inner})"


@dataclass(frozen=True, slots=True)
class Sharding:
    """One annotation.

    kind        replicated, manual, unknown, unreduced, maximal, tiled, named or tuple
    device      of a maximal one
    tiles       of a tiled one: how many parts along each dimension, then the sizes of the subgroups
    devices     of a tiled one: which device has which tile, by a rule or written out
    replicate_last, subgroups    what its last sizes are: last_tile_dim_replicate, or last_tile_dims={...}
    mesh, dimensions, roles      of a named one; word: what stands in the place of dimensions. One that is on one device
                                 of a mesh has `device` alone
    group       ("as" or "like", number): shard_as, shard_like
    metadata    verbatim
    parts       of a tuple
    """

    kind: str
    device: int | None = None
    tiles: tuple[int, ...] = ()
    devices: Iota | tuple[int, ...] | None = None
    replicate_last: bool = False
    subgroups: tuple[str, ...] = ()
    mesh: NamedMesh | None = None
    dimensions: tuple[DimensionAxes, ...] = ()
    roles: tuple[Role, ...] = ()
    word: str = ""
    group: tuple[str, int] | None = None
    metadata: str = ""
    parts: tuple[Sharding, ...] = ()

    @property
    def data_rank(self) -> int:
        """How many dimensions its array has; of tiled and named ones."""
        if self.kind == "named":
            return len(self.dimensions)
        return len(self.tiles) - len(self.subgroup_kinds)

    @property
    def subgroup_kinds(self) -> tuple[str, ...]:
        """What the tiles behind the array's dimensions are: replicated, manual or unreduced."""
        return ("replicated",) if self.replicate_last else self.subgroups

    def role(self, name: str) -> tuple[AxisUse, ...]:
        """Axes of a named one that are replicated, unreduced or manual as a whole."""
        return next((role.axes for role in self.roles if role.name == name), ())

    def assignment(self) -> np.ndarray:
        """Of a tiled one: the device of each tile, in the shape `tiles`."""
        numbers = self.devices.numbers() if isinstance(self.devices, Iota) else np.array(self.devices, int)
        return numbers.reshape(self.tiles)

    def leaves(self, count: int) -> list[Sharding]:
        """One for each of `count` arrays of a shape: a tuple's own, else the same for all."""
        return list(self.parts) if self.kind == "tuple" and count else [self] * count

    def __str__(self) -> str:
        if self.kind == "tuple":
            marked = [f"/*index={i}*/{p}" if i and i % 5 == 0 else str(p) for i, p in enumerate(self.parts)]
            return "{" + ", ".join(marked) + "}"
        if self.kind == "named":
            return "{" + ", ".join(self._named_words()) + "}"
        words = [self._placement()]
        if self.replicate_last:
            words.append("last_tile_dim_replicate")
        if self.subgroups:
            words.append("last_tile_dims={" + ", ".join(self.subgroups) + "}")
        if self.group:
            words.append(f"shard_{self.group[0]} {self.group[1]}")
        if self.metadata:
            words.append(f"metadata={self.metadata}")
        return "{" + " ".join(words) + "}"

    def _placement(self) -> str:
        if self.kind == "maximal":
            return f"maximal device={self.device}"
        if self.kind != "tiled":
            return self.kind
        devices = f"<={self.devices}" if isinstance(self.devices, Iota) else listed(self.devices or ())
        return f"devices=[{listed(self.tiles)}]{devices}"

    def _named_words(self) -> list[str]:
        metadata = [f"metadata={self.metadata}"] if self.metadata else []
        if self.device is not None:
            return [f"maximal_mesh[device_id={self.device}]", *metadata]
        dimensions = self.word or "[" + ", ".join(map(str, self.dimensions)) + "]"
        return [str(self.mesh), dimensions, *map(str, self.roles), *metadata]


REPLICATED = Sharding("replicated")
MANUAL = Sharding("manual")


def listed(values: Iterable[object]) -> str:
    return ",".join(map(str, values))
