"""How the axes of a partitioned module's mesh are called: by its annotations, by its text, or by who asked for them.

    axis_sizes(module, divided, {"data": 4, "model": 2})      {"data": 4, "model": 2}
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping

from hloc.ir import Module
from hloc.parallel import Partition
from hloc.passes.remeshing import annotated_mesh
from hloc.sharding.meshes import DeviceMesh
from hloc.sharding.sdy import frontend_attributes, meshes_of


def axis_sizes(module: Module, divided: Partition, asked: Mapping[str, int] | None = None) -> dict[str, int]:
    """The axes of a partition by name, those of size 1, too: as the annotations or the text name them, else as they
    were asked for, else axis0 and so on. {} where the module came partitioned."""
    if divided.mesh is None:
        return {}
    found = dict(zip(divided.mesh.names, divided.mesh.sizes))
    written = meshes_of(frontend_attributes(str(module.attributes.get("frontend_attributes", "{}"))))
    annotated = annotated_mesh(module)
    for named in [*([annotated] if annotated else []), *written.values()]:
        sizes = dict(named.axes)
        if asked and set(asked) == set(sizes):
            sizes = {name: asked[name] for name in sizes}
        if _real(sizes.values()) == divided.mesh.sizes:
            return sizes
    return dict(asked) if asked and _real(asked.values()) == divided.mesh.sizes else found


def _real(sizes: Iterable[int]) -> tuple[int, ...]:
    return tuple(size for size in sizes if size > 1)


def with_names(mesh: DeviceMesh | None, sizes: Mapping[str, int]) -> DeviceMesh | None:
    """The mesh with the names of axis_sizes, where they are as many."""
    names = tuple(name for name, size in sizes.items() if size > 1)
    return mesh._replace(names=names) if mesh is not None and len(names) == len(mesh.sizes) else mesh
