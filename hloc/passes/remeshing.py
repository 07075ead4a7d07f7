"""Other sizes for the axes of a module's mesh: what --mesh says.

    x = f32[64,8] parameter(0), sharding={devices=[4,1]<=[4]}        with {"data": 8}
        =>   x = f32[64,8] parameter(0), sharding={mesh['data'=8], [{'data'}, {}]}

Axes have the names that the annotations give them; where these give none, they are named in their order. Axes of manual
regions keep their sizes: the shapes inside depend on them.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from hloc.errors import UsageError, VerifyError
from hloc.ir import Instruction, Module, Verbatim
from hloc.sharding.annotation import AxisUse, DimensionAxes, NamedMesh, Role, Sharding
from hloc.sharding.meshes import AxisSharding, DeviceMesh, axes_of
from hloc.sharding.text import parse_sharding


def remesh(module: Module, mesh: DeviceMesh, wanted: Mapping[str, int]) -> bool:
    """Say all annotations in a mesh of the wanted sizes. True where that is another mesh. Raises UsageError for axes
    that the module does not have, VerifyError, located, for arrays that cannot be divided so."""
    named = annotated_mesh(module) or NamedMesh(tuple(zip(mesh.names, mesh.sizes)), mesh.devices)
    sizes = _sizes(named, wanted)
    if sizes == [n for _, n in named.axes] and [name for name, _ in named.axes] == list(wanted):
        return False
    names = list(wanted) if not _has_names(module) else [name for name, _ in named.axes]
    new = NamedMesh(tuple(zip(names, sizes)))
    if named.order() is not None and sizes != [n for _, n in named.axes]:
        raise UsageError("--mesh cannot change the sizes of a mesh whose devices are not in order")
    new = NamedMesh(new.axes, named.devices if sizes == [n for _, n in named.axes] else None)
    for instruction in module.instructions():
        if "sharding" in instruction.attributes:
            one = parse_sharding(str(instruction.get("sharding")), instruction.span)
            parts = [_said(p, mesh, named, new, instruction) for p in (one.parts if one.kind == "tuple" else [one])]
            whole = Sharding("tuple", parts=tuple(parts)) if one.kind == "tuple" else parts[0]
            instruction.attributes["sharding"] = Verbatim(str(whole))
    return True


def _has_names(module: Module) -> bool:
    return any("mesh[" in str(i.get("sharding", "")) for i in module.instructions())


def annotated_mesh(module: Module) -> NamedMesh | None:
    """The mesh as the annotations name it, with axes of size 1, too; None where they name none."""
    for instruction in module.instructions():
        text = str(instruction.get("sharding", ""))
        if "mesh[" in text and "maximal_mesh" not in text:
            one = parse_sharding(text, instruction.span)
            found = next((p.mesh for p in (one, *one.parts) if p.mesh is not None and p.mesh.axes), None)
            if found is not None:
                return found
    return None


def _sizes(named: NamedMesh, wanted: Mapping[str, int]) -> list[int]:
    """The sizes of the module's axes, by name, or else in their order."""
    own = [name for name, _ in named.axes]
    if set(own) == set(wanted):
        return [wanted[name] for name in own]
    if len(own) == len(wanted) and all(name == f"axis{n}" for n, name in enumerate(own)):
        return list(wanted.values())
    told = ", ".join(f"{name}={size}" for name, size in named.axes)
    unknown = next((name for name in wanted if name not in own), None)
    if unknown is not None:
        raise UsageError(f"--mesh: the module's mesh has no axis {unknown!r}; its axes are {told}")
    missing = next(name for name in own if name not in wanted)
    raise UsageError(f"--mesh: the size of axis {missing!r} is missing; the module's axes are {told}")


def _said(sharding: Sharding, mesh: DeviceMesh, old: NamedMesh, new: NamedMesh, instruction: Instruction) -> Sharding:
    if sharding.kind == "manual" and old.axes != new.axes and old.size != new.size:
        raise _stays_manual(", ".join(name for name, _ in old.axes), old.size, instruction)
    if sharding.kind not in ("tiled", "named") or sharding.device is not None or sharding.word:
        return sharding
    if sharding.kind == "named":
        uses = (u for d in sharding.dimensions for u in d.axes)
        roles, dimensions = sharding.roles, sharding.dimensions
        if old.axes != new.axes and any(u.size is not None for u in uses):
            raise UsageError("--mesh cannot change the sizes of axes of which annotations use parts")
    else:
        axes = axes_of(sharding, sharding.data_rank, mesh)
        if axes is None:
            return sharding
        names = _axis_names(mesh, old, new)
        dimensions = tuple(DimensionAxes(tuple(AxisUse(names[a]) for a in one)) for one in axes.dimensions)
        roles = _manual(axes, names)
    _check_manual(dict(old.axes), dict(new.axes), roles, instruction)
    return Sharding("named", mesh=new, dimensions=dimensions, roles=roles, metadata=sharding.metadata)


def _axis_names(mesh: DeviceMesh, old: NamedMesh, new: NamedMesh) -> list[str]:
    """The new name of each axis of the recovered mesh."""
    names = [name for name, _ in old.axes]
    if not set(mesh.names) <= set(names):
        raise UsageError("--mesh cannot change the sizes of axes of which annotations use parts")
    return [new.axes[names.index(name)][0] for name in mesh.names]


def _manual(axes: AxisSharding, names: Sequence[str]) -> tuple[Role, ...]:
    manual = tuple(AxisUse(names[a]) for a in sorted(axes.manual))
    return (Role("manual", manual),) if manual else ()


def _check_manual(old: Mapping[str, int], new: Mapping[str, int], roles: Sequence[Role],
                  instruction: Instruction) -> None:
    for use in (u for role in roles if role.name == "manual" for u in role.axes):
        if use.name in old and old[use.name] != new.get(use.name):
            raise _stays_manual(use.name, old[use.name], instruction)


def _stays_manual(names: str, size: int, instruction: Instruction) -> VerifyError:
    return VerifyError(f"the module is manual along {names}: shapes inside are for {size} parts, and --mesh cannot "
                       "change that", instruction.span)
