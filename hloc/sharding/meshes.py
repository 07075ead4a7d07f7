"""One mesh for all annotations of a module, and shardings as axes of it.

In: shardings as they are written, over the same devices. Out: a DeviceMesh whose axes are as small as they need to be,
and for each sharding the axes along each dimension, which is what propagation and partitioning reckon with.

    {devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}, {devices=[4,1]<=[4]}
        DeviceMesh((2, 2)),  AxisSharding(((1,), ())),  AxisSharding(((0, 1), ()))

A device's number is read as digits, one for each axis. An annotation fits a mesh if each of its tiles' coordinates is
made of such digits. Where the devices of a mesh are not in order (device_ids), their order is the mesh's `devices`.
"""
from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hloc.ir.narrowing import all_known
from hloc.sharding.annotation import AxisUse, Iota, NamedMesh, Sharding

Axes = tuple[int, ...]


class AxisSharding(NamedTuple):
    """Axes of a mesh, by number, along each dimension (the major one first). Along all others the array is replicated,
    but for those in `manual`: there each device has an array of its own, of the shape that is written."""

    dimensions: tuple[Axes, ...]
    manual: frozenset[int] = frozenset()

    @property
    def used(self) -> frozenset[int]:
        """The axes that divide a dimension."""
        return frozenset(axis for axes in self.dimensions for axis in axes)

    def along(self, dimension: int, axes: Axes) -> AxisSharding:
        """The same with other axes along one dimension."""
        return self._replace(dimensions=(*self.dimensions[:dimension], axes, *self.dimensions[dimension + 1:]))


def replicated(rank: int, manual: frozenset[int] = frozenset()) -> AxisSharding:
    return AxisSharding(((),) * rank, manual)


class DeviceMesh(NamedTuple):
    """sizes: of its axes, the last counting fastest; names: how messages call them; devices: who stands where (None:
    in order)."""

    sizes: tuple[int, ...]
    names: tuple[str, ...] = ()
    devices: tuple[int, ...] | None = None

    @property
    def size(self) -> int:
        return math.prod(self.sizes)

    def count(self, axes: Iterable[int]) -> int:
        """How many parts such axes make."""
        product = 1
        for axis in axes:
            product *= self.sizes[axis]
        return product

    def grid(self) -> np.ndarray:
        """The device at each place, in the shape `sizes`."""
        numbers = np.arange(self.size) if self.devices is None else np.array(self.devices)
        return numbers.reshape(self.sizes)

    def parts(self, axes: Axes) -> np.ndarray:
        """By device: which part along such axes it has."""
        order = [*axes, *(a for a in range(len(self.sizes)) if a not in axes)]
        grid = self.grid().transpose(order).reshape(self.count(axes), -1)
        numbers = np.empty(self.size, np.int64)
        numbers[grid] = np.arange(len(grid))[:, None]
        return numbers

    def groups(self, axes: Axes) -> np.ndarray:
        """Groups of devices that differ along such axes alone, the members in the order of the parts."""
        others = [a for a in range(len(self.sizes)) if a not in axes]
        return self.grid().transpose([*others, *axes]).reshape(-1, self.count(axes))

    def named(self, axes: Iterable[int]) -> str:
        """The names of axes, for messages."""
        return ", ".join(self.names[a] if self.names else f"axis {a}" for a in axes)

    def annotation(self, sharding: AxisSharding) -> Sharding:
        """As XLA writes it."""
        manual = tuple(sorted(sharding.manual))
        if not sharding.used:
            if not manual:
                return Sharding("replicated")
            if len(manual) == len(self.sizes):
                return Sharding("manual")
        used = [a for axes in sharding.dimensions for a in axes]
        rest = [a for a in range(len(self.sizes)) if a not in used and a not in manual]
        tiles = [self.count(axes) for axes in sharding.dimensions]
        order, subgroups = (*used, *manual, *rest), []
        for kind, axes in (("manual", manual), ("replicated", rest)):
            if self.count(axes) > 1:
                tiles.append(self.count(axes))
                subgroups.append(kind)
        last = subgroups == ["replicated"]
        return Sharding("tiled", tiles=tuple(tiles), devices=self._order(order), replicate_last=last,
                        subgroups=() if last else tuple(subgroups))

    def _order(self, order: Axes) -> Iota | tuple[int, ...]:
        if self.devices is not None:
            return tuple(self.grid().transpose(order).reshape(-1).tolist())
        return iota(self.sizes, order)


def iota(sizes: tuple[int, ...], order: Axes) -> Iota:
    """The same order of devices with as few dimensions as it can be said in."""
    kept = [a for a in order if sizes[a] > 1]
    runs: list[list[int]] = []
    real = [a for a in range(len(sizes)) if sizes[a] > 1]
    after = dict(zip(real, real[1:]))
    for axis in kept:
        if runs and after.get(runs[-1][-1]) == axis:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    by_place = sorted(range(len(runs)), key=lambda n: runs[n][0])
    new_sizes = tuple(math.prod(sizes[a] for a in runs[n]) for n in by_place)
    return Iota(new_sizes or (1,), tuple(by_place.index(n) for n in range(len(runs))) or (0,))


# -- finding the mesh --------------------------------------------------------------------------------------------------

class Digits(NamedTuple):
    """Along one dimension of tiles: (size, stride) of each digit of the device's number, the major one first."""

    along: tuple[tuple[tuple[int, int], ...], ...]


def digits_of(numbers: np.ndarray) -> Digits | None:
    """How device numbers follow from the coordinates of tiles; None where they are no digits of them."""
    along: list[tuple[tuple[int, int], ...]] = []
    total = np.zeros(numbers.shape, np.int64)
    for dimension, size in enumerate(numbers.shape):
        line = numbers[tuple(slice(None) if d == dimension else 0 for d in range(numbers.ndim))]
        shape = [size if d == dimension else 1 for d in range(numbers.ndim)]
        total = total + (line - numbers.flat[0]).reshape(shape)
        digits = _digits_of_line(line)
        if digits is None:
            return None
        along.append(digits)
    if numbers.flat[0] != 0 or not np.array_equal(total, numbers):
        return None
    return Digits(tuple(along))


def _digits_of_line(line: np.ndarray) -> tuple[tuple[int, int], ...] | None:
    found: list[tuple[int, int]] = []
    whole = line
    while len(line) > 1:
        stride = int(line[1] - line[0])
        run = int(np.argmin(np.append(line - line[0] == stride * np.arange(len(line)), False)))
        run = max(n for n in range(1, run + 1) if len(line) % n == 0)
        if stride <= 0 or run == 1:
            return None
        found.insert(0, (run, stride))
        line = line[::run]
    told = np.zeros(1, np.int64)
    for size, stride in found:
        told = (told[:, None] + stride * np.arange(size)).reshape(-1)
    return tuple(found) if np.array_equal(told, whole - whole[0]) else None


def mesh_of(shardings: Iterable[Sharding], named: NamedMesh | None = None) -> DeviceMesh:
    """The mesh of such shardings: what `named` says, its axes cut where a sharding cuts them. A sharding that does not
    fit the others is left out: axes_of() gives None for it. One device where none divides anything."""
    tiled = [s for s in shardings if s.kind == "tiled" and (s.tiles if isinstance(s.devices, Iota) else s.devices)
             and _is_whole(s)]
    meshes = [named] if named else []
    meshes += [s.mesh for s in shardings if s.kind == "named" and s.mesh is not None and s.mesh.axes]
    size = max([m.size for m in meshes] + [math.prod(s.tiles) for s in tiled], default=1)
    meshes, tiled = [m for m in meshes if m.size == size], [s for s in tiled if math.prod(s.tiles) == size]
    base = _base_order(meshes, tiled)
    cuts = {1, size}
    for mesh in meshes:
        if mesh.order() == base:
            _cut(cuts, _suffixes([n for _, n in mesh.axes]))
    for sharding in shardings:
        _cut(cuts, _part_cuts(sharding))
    for sharding in tiled:
        found = digits_of(_relative(sharding.assignment(), base))
        _cut(cuts, [c for line in found.along for n, stride in line for c in (stride, n * stride)] if found else [])
    places = sorted(cuts, reverse=True)
    sizes = tuple(a // b for a, b in zip(places, places[1:])) or (1,)
    return DeviceMesh(sizes, _names(sizes, meshes[0] if meshes else None), base)


def _is_whole(sharding: Sharding) -> bool:
    """Whether it has a device for each tile."""
    devices = sharding.devices.sizes if isinstance(sharding.devices, Iota) else None
    count = math.prod(devices) if devices is not None else len(set(sharding.devices or ()))
    return count == math.prod(sharding.tiles)


def _base_order(meshes: list[NamedMesh], tiled: list[Sharding]) -> tuple[int, ...] | None:
    """The order of the devices: that of the mesh, or the one that most annotations fit; in order, if they can be."""
    for mesh in meshes:
        if mesh.order() is not None:
            return mesh.order()
    numbers = [s.assignment() for s in tiled]
    odd = [n for n in numbers if digits_of(n) is None]
    if not odd:
        return None
    other = tuple(odd[0].reshape(-1).tolist())
    fitting = sum(digits_of(_relative(n, other)) is not None for n in numbers)
    return other if fitting > len(numbers) - len(odd) else None


def _relative(numbers: np.ndarray, base: tuple[int, ...] | None) -> np.ndarray:
    """Places in the order `base` instead of device numbers."""
    if base is None:
        return numbers
    place = np.empty(len(base), np.int64)
    place[list(base)] = np.arange(len(base))
    return place[numbers] if numbers.size == len(base) and numbers.max() < len(base) else numbers


def _suffixes(sizes: list[int]) -> list[int]:
    return [math.prod(sizes[n:]) for n in range(len(sizes) + 1)]


def _part_cuts(sharding: Sharding) -> list[int]:
    """Where parts of axes cut a named mesh."""
    if sharding.kind != "named" or sharding.mesh is None:
        return []
    names = [name for name, _ in sharding.mesh.axes]
    after = _suffixes([n for _, n in sharding.mesh.axes])
    uses = [u for d in sharding.dimensions for u in d.axes] + [u for r in sharding.roles for u in r.axes]
    found = []
    for use in uses:
        if use.size is not None and use.name in names:
            size, stride = sharding.mesh.axes[names.index(use.name)][1], after[names.index(use.name) + 1]
            low = size // max((use.before or 1) * use.size, 1) * stride
            found += [low, low * use.size]
    return found


def _cut(cuts: set[int], more: list[int]) -> None:
    """Add places where axes end, if all of them can be: each divides the next."""
    places = sorted(cuts | set(more))
    if all(small > 0 and large % small == 0 for small, large in zip(places, places[1:])):
        cuts.update(more)


def _names(sizes: tuple[int, ...], mesh: NamedMesh | None) -> tuple[str, ...]:
    """Of the mesh's axes, where there is one: x, or x:0, x:1 for the parts of an axis."""
    if mesh is None:
        return tuple(f"axis{n}" for n in range(len(sizes)))
    cuts = _suffixes(list(sizes))
    found: list[str] = []
    after = _suffixes([n for _, n in mesh.axes])
    for place in cuts[1:]:
        axis = next((n for n, low in enumerate(after[1:]) if low <= place), len(mesh.axes) - 1)
        name = mesh.axes[axis][0]
        parts = sum(after[axis + 1] <= c < after[axis] for c in cuts[1:])
        found.append(name if parts == 1 else f"{name}:{sum(f.partition(':')[0] == name for f in found)}")
    return tuple(found)


# -- one sharding on the mesh ------------------------------------------------------------------------------------------

@lru_cache(maxsize=4096)
def axes_of(sharding: Sharding, rank: int, mesh: DeviceMesh) -> AxisSharding | None:
    """A sharding of an array of so many dimensions in axes of the mesh; None where it has no axes there. What is on one
    device only is as if it were replicated."""
    everything = frozenset(range(len(mesh.sizes)))
    if sharding.kind == "manual" or sharding.word == "manual":
        return replicated(rank, everything)
    if sharding.kind in ("replicated", "maximal", "unknown") or sharding.device is not None or sharding.word:
        return replicated(rank)
    if sharding.kind == "named":
        return _axes_of_named(sharding, mesh)
    if sharding.kind != "tiled" or math.prod(sharding.tiles) != mesh.size or not _is_whole(sharding):
        return replicated(rank) if sharding.kind == "tiled" and math.prod(sharding.tiles) == 1 else None
    found = digits_of(_relative(sharding.assignment(), mesh.devices))
    along = [_axes_at(line, mesh) for line in found.along] if found else []
    if not found or not all_known(along) or sharding.data_rank != rank:
        return None
    roles = dict(zip(sharding.subgroup_kinds, along[rank:]))
    if "unreduced" in roles:
        return None
    return AxisSharding(tuple(along[:rank]), frozenset(roles.get("manual", ())))


def _axes_at(line: tuple[tuple[int, int], ...], mesh: DeviceMesh) -> Axes | None:
    """The axes whose digits these are."""
    found: list[int] = []
    after = _suffixes(list(mesh.sizes))
    for size, stride in line:
        if size * stride not in after or stride not in after:
            return None
        found += range(after.index(size * stride), after.index(stride))
    return tuple(a for a in found if mesh.sizes[a] > 1)



def _axes_of_named(sharding: Sharding, mesh: DeviceMesh) -> AxisSharding | None:
    named = sharding.mesh
    if named is None or named.size != mesh.size or named.order() != mesh.devices or any(
            role.name == "unreduced" and role.axes for role in sharding.roles):
        return replicated(len(sharding.dimensions)) if named is not None and not any(
            d.axes for d in sharding.dimensions) and not sharding.roles else None
    along = [_named_axes(d.axes, named, mesh) for d in sharding.dimensions]
    manual = _named_axes(sharding.role("manual"), named, mesh)
    return AxisSharding(tuple(along), frozenset(manual)) if all_known(along) and manual is not None else None


def _named_axes(uses: Iterable[AxisUse], named: NamedMesh, mesh: DeviceMesh) -> Axes | None:
    names, after = [name for name, _ in named.axes], _suffixes([n for _, n in named.axes])
    found: list[tuple[int, int]] = []
    for use in uses:
        if use.name not in names:
            return None
        place = names.index(use.name)
        size, stride = named.axes[place][1], after[place + 1]
        if use.size is None:
            found.append((size, stride))
        else:
            found.append((use.size, size // ((use.before or 1) * use.size) * stride))
    return _axes_at(tuple(pair for pair in found if pair[0] > 1), mesh)
