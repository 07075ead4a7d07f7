"""Random shardings on the instructions of a module."""
from __future__ import annotations

import numpy as np

from hloc.ir import Module, Shape, Verbatim, parts_of
from hloc.sharding.annotation import REPLICATED, Sharding
from hloc.sharding.factors import fits
from hloc.sharding.meshes import AxisSharding, DeviceMesh

MESHES = (DeviceMesh((2,)), DeviceMesh((3,)), DeviceMesh((2, 2)), DeviceMesh((2, 3)), DeviceMesh((4,), (), (0, 2, 3, 1)))
# Their tuples are those of the asynchronous form; passes before the partitioner make plain ops of them.
NOT_ANNOTATED = ("-start", "-update", "-done")


def random_mesh(random: np.random.Generator) -> DeviceMesh:
    return MESHES[int(random.integers(len(MESHES)))]


def random_sharding(shape: Shape, mesh: DeviceMesh, random: np.random.Generator) -> AxisSharding:
    """Axes along dimensions that are long enough, evenly or not."""
    left, dimensions = random.permutation(len(mesh.sizes)).tolist(), []
    for size in shape.dimensions:
        own: list[int] = []
        while left and random.random() < 0.6 and fits(size, mesh.count([*own, left[-1]]), True):
            own.append(left.pop())
        dimensions.append(tuple(own))
    return AxisSharding(tuple(dimensions))


def annotate(module: Module, mesh: DeviceMesh, random: np.random.Generator) -> None:
    """Annotate the entry's parameters, and most of its other instructions."""
    for instruction in module.entry.instructions:
        if instruction.opcode.endswith(NOT_ANNOTATED) or random.random() > 0.7 and instruction.opcode != "parameter":
            continue
        parts = [mesh.annotation(random_sharding(p, mesh, random)) if p.is_array else REPLICATED
                 for p in parts_of(instruction.shape)]
        whole = Sharding("tuple", parts=tuple(parts)) if instruction.shape.is_tuple else parts[0]
        instruction.attributes["sharding"] = Verbatim(str(whole))
