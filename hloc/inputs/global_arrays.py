"""Arrays of all devices and their parts: slicing a partitioned module's inputs, joining its results.

    takes, gives = entry_arrays(module)             of a module whose entry keeps shardings
    parts = [p.part(x, device) for p, x in ...]     what a device is given
    whole = gives[0].joined(results)                of all devices' results

Parts of a dimension that does not divide evenly are filled up with zeros; what fills a result up is cut off.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hloc.errors import Span, UnsupportedError
from hloc.inputs.arrays import Parameter
from hloc.ir import Instruction, Module, Shape, array, parts_of
from hloc.sharding.annotation import Sharding
from hloc.sharding.meshes import AxisSharding, DeviceMesh, axes_of, mesh_of
from hloc.sharding.text import parse_sharding


class GlobalArray(NamedTuple):
    """An entry parameter or result as all devices have it together. shape: of the whole array."""

    name: str
    shape: Shape
    sharding: AxisSharding
    mesh: DeviceMesh

    def _place(self, device: int) -> list[tuple[int, int]]:
        """By dimension: from where to where the device's part goes, beyond the end where it is filled up."""
        place = []
        for size, axes in zip(self.shape.dimensions, self.sharding.dimensions):
            part = -(-size // self.mesh.count(axes))
            number = int(self.mesh.parts(axes)[device]) if axes else 0
            place.append((number * part, (number + 1) * part))
        return place

    def part(self, whole: np.ndarray, device: int) -> np.ndarray:
        """The part that a device has."""
        place = self._place(device)
        found = whole[tuple(slice(low, high) for low, high in place)]
        missing = [(0, high - low - n) for (low, high), n in zip(place, found.shape)]
        return np.pad(found, missing) if any(m for _, m in missing) else np.array(found, order="C")

    def joined(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """The whole array from the devices' parts, in the order of the devices."""
        if not self.sharding.used:
            return parts[0]
        whole = np.empty(self.shape.dimensions, parts[0].dtype)
        for device, part in enumerate(parts):
            place = [(low, min(high, n)) for (low, high), n in zip(self._place(device), whole.shape)]
            inner = tuple(slice(0, max(high - low, 0)) for low, high in place)
            whole[tuple(slice(low, max(high, low)) for low, high in place)] = part[inner]
        return whole


def entry_arrays(module: Module, whole: Module | None = None,
                 ) -> tuple[list[GlobalArray], list[GlobalArray] | None]:
    """Parameters and results of a partitioned module's entry, flattened; None for results that no annotation tells
    about. whole: the module before it was partitioned, which knows the sizes of uneven arrays."""
    sizes = [p.shape for p in whole.entry.parameters] if whole else [None] * len(module.entry.parameters)
    takes = [one for p, shape in zip(module.entry.parameters, sizes) for one in _arrays(p, p.name, shape)]
    root = module.entry.root
    if "sharding" not in root.attributes:
        return takes, None
    return takes, _arrays(root, "result", whole.entry.root.shape if whole else None)


def _arrays(instruction: Instruction, name: str, whole: Shape | None) -> list[GlobalArray]:
    shapes = parts_of(instruction.shape)
    wholes = parts_of(whole) if whole is not None else [None] * len(shapes)
    text = str(instruction.get("sharding", "{replicated}"))
    annotations = parse_sharding(text, instruction.span).leaves(len(shapes))
    several = instruction.shape.is_tuple or name == "result"
    return [_array(f"{name}.{n}" if several else name, shape, wanted, sharding, instruction.span)
            for n, (shape, wanted, sharding) in enumerate(zip(shapes, wholes, annotations)) if shape.is_array]


def _array(name: str, shape: Shape, whole: Shape | None, sharding: Sharding, span: Span | None) -> GlobalArray:
    mesh = mesh_of([sharding])
    axes = axes_of(sharding, shape.rank, mesh)
    if axes is None:
        raise UnsupportedError(f"{name} has the sharding {sharding}: no parts of it are known", span)
    counted = [n * mesh.count(a) for n, a in zip(shape.dimensions, axes.dimensions)]
    return GlobalArray(name, whole or array(shape.element_type, *counted), axes, mesh)


def parameters_of(arrays: Sequence[GlobalArray]) -> list[Parameter]:
    """As entry_parameters, of whole arrays."""
    return [Parameter(one.name, one.shape) for one in arrays]
